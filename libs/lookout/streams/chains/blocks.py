"""Converts token records to the blocks of a window: checks a record, fetches its embeddings, and cuts the
embeddings into frames."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import torch
from google.protobuf.message import Message

from lookout.errors import BadRecordError
from lookout.models.windows import StrideBlock
from lookout.runtime.store import Array, TensorClient
from lookout.runtime.worker import sampling_text
from lookout.streams import BlockFacts, Cause, FrameTime, NoAnswer, encoded_frame
from lookout.v1 import lineage_pb2, tokens_pb2
from lookout.v1.lineage_pb2 import Sampling, TensorRef
from lookout.video.motion import unpack_mask

WIRE_CAUSES: Final[dict[Cause, lineage_pb2.Cause]] = {
    cause: getattr(lineage_pb2, f"CAUSE_{cause.name}") for cause in Cause
}
"""The value in messages of every cause."""


@dataclass(frozen=True, slots=True)
class LoadedBlock:
    """A block with its tokens. `degraded`: whether some tokens were recomputed from earlier records, because
    the directory of stored tensors did not answer."""

    block: StrideBlock
    degraded: bool = False


def cause_of(value: lineage_pb2.Cause) -> Cause | None:
    """Convert a cause from the wire; None if unset or unknown."""
    return next((cause for cause, wire_cause in WIRE_CAUSES.items() if wire_cause == value), None)


def stream_name(record: tokens_pb2.TokensRecord) -> str:
    """Return the name under which the engine keeps the KV of the record's camera and epoch."""
    return f"{record.camera}/{record.epoch}"


def block_facts(
    record: tokens_pb2.TokensRecord, samples: int, *, foreign: NoAnswer | None = None, lost: bool = False
) -> BlockFacts:
    """Return the facts about a block that decide whether a window with it is asked.

    Args:
        record: The block's record.
        samples: Grid points of a block.
        foreign: Why the block does not fit this configuration (`foreign_reason`).
        lost: Whether the block's tokens are lost permanently.
    """
    block = record.block
    return BlockFacts(
        index=block.index,
        samples=samples,
        frames=len(block.frames) if block.patches else 0,
        damaged=sum(frame.corrupt for frame in block.frames),
        grid=(block.group_rows, block.group_cols) if block.patches else None,
        missing=NoAnswer(cause_of(block.missing_cause) or Cause.NO_FRAMES, block.missing or "no frames"),
        foreign=foreign,
        lost=lost,
    )


def foreign_reason(
    record: tokens_pb2.TokensRecord, model_digest: str, sampling: Sampling | None = None
) -> NoAnswer | None:
    """Return why a block does not fit this configuration; None if it does.

    Args:
        record: The block's record.
        model_digest: Digest of the engine's model; empty: do not compare it.
        sampling: Sampling of the windows; None: do not compare it.
    """
    block_digest = record.block.model_digest
    if block_digest and model_digest and block_digest != model_digest:
        return NoAnswer(Cause.OTHER_MODEL, f"encoded by model {block_digest}, but this is {model_digest}")
    if sampling is not None and record.HasField("sampling") and record.sampling != sampling:
        return NoAnswer(
            Cause.OTHER_SAMPLING,
            f"sampled at {sampling_text(record.sampling)}; LOOKOUT_FPS, _STRIDE_S and "
            f"_WINDOW_S set {sampling_text(sampling)}",
        )
    return None


def check_block(block: tokens_pb2.StrideBlock) -> None:
    """Check that a block's patches, keep masks and tensor shapes fit each other.

    Raises:
        BadRecordError: They do not fit each other.
    """
    total = 0
    # The record comes from another process, so it is checked before any tensor is fetched for it.
    for number, patch in enumerate(block.patches):
        if not patch.frames or max(patch.frames) >= len(block.frames):
            raise BadRecordError(
                "bad-tokens", f"patch {number} refers to a frame that the block does not have"
            )
        if int(keep_mask(block, patch).sum()) != patch.kept:
            raise BadRecordError(
                "bad-tokens", f"patch {number}: the number of groups in the keep mask is not {patch.kept}"
            )
        total += patch.kept
    if block.patches and (not block.embeddings.shape or block.embeddings.shape[0] != total):
        shape = list(block.embeddings.shape)
        raise BadRecordError("bad-tokens", f"embeddings of shape {shape} do not fit {total} kept groups")
    if len(block.deepstack.shape) and list(block.deepstack.shape)[1:] != list(block.embeddings.shape):
        raise BadRecordError(
            "bad-tokens", f"deepstack of shape {list(block.deepstack.shape)} does not fit the embeddings"
        )


def keep_mask(block: tokens_pb2.StrideBlock, patch: tokens_pb2.TemporalPatch) -> np.ndarray:
    """Return the keep mask of a temporal patch: bool [group_rows, group_cols].

    Raises:
        BadRecordError: The number of bits does not match the grid.
    """
    try:
        return unpack_mask(patch.keep, block.group_rows, block.group_cols)
    except ValueError as error:
        raise BadRecordError("bad-tokens", f"invalid keep mask: {error}") from error


def empty_block(record: tokens_pb2.TokensRecord) -> StrideBlock:
    """Return a block without frames."""
    return StrideBlock(stream_name(record), record.block.index, ())


def load_block(record: tokens_pb2.TokensRecord, client: TensorClient, step_us: int) -> LoadedBlock:
    """Return a record's block with its tokens. Raises the errors of `TensorClient.fetch`.

    Args:
        record: The block's record.
        client: Fetches the block's tokens.
        step_us: Microseconds of stream time between two points of the sampling grid.
    """
    block = record.block
    if not block.patches:
        return LoadedBlock(empty_block(record))
    tokens, degraded = _fetch(client, block.embeddings, record)
    deep: torch.Tensor | None = None
    if len(block.deepstack.shape):
        deep, deep_degraded = _fetch(client, block.deepstack, record)
        degraded |= deep_degraded
    frames = []
    start = 0
    for patch in block.patches:
        rows = slice(start, start + patch.kept)
        start += patch.kept
        shown = [block.frames[number] for number in patch.frames]
        frames.append(
            encoded_frame(
                [FrameTime(frame.time_us, frame.sample) for frame in shown],
                patch.anchor,
                keep_mask(block, patch),
                tokens[rows],
                None if deep is None else deep[:, rows],
                step_us=step_us,
            )
        )
    return LoadedBlock(StrideBlock(stream_name(record), block.index, tuple(frames)), degraded)


def _fetch(client: TensorClient, ref: TensorRef, record: Message) -> tuple[torch.Tensor, bool]:
    fetched = client.fetch(ref, record)
    return _torch(fetched.array, ref.dtype), fetched.degraded


def _torch(array: Array, dtype: str) -> torch.Tensor:
    """Copy an array of the store, which is read-only and shared, into a torch tensor."""
    copied = torch.from_numpy(np.array(array))
    return copied.view(torch.bfloat16) if dtype == "bfloat16" else copied
