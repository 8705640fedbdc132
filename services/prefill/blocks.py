"""Token records as the blocks of a window: keep masks unpacked, embeddings fetched and cut into frames."""

from dataclasses import dataclass

import numpy as np
import torch
from google.protobuf.message import Message

from lookout.errors import BadRecordError
from lookout.motion import unpack_mask
from lookout.store import Array, TensorClient
from lookout.v1 import tokens_pb2
from lookout.v1.lineage_pb2 import TensorRef
from lookout.windows import EncodedFrame, StrideBlock

__all__ = ["Loaded", "check_block", "empty_block", "keep_mask", "load_block", "stream_name"]


@dataclass(frozen=True, slots=True)
class Loaded:
    """A block with its tokens. `degraded`: some were made again by lineage, because
    the directory did not answer."""

    block: StrideBlock
    degraded: bool = False


def stream_name(record: tokens_pb2.TokensRecord) -> str:
    """The engine's name of one epoch of one camera."""
    return f"{record.camera}/{record.epoch}"


def check_block(block: tokens_pb2.StrideBlock) -> None:
    """Check that a block does not contradict itself.

    Raises:
        BadRecordError: It does.
    """
    kept = 0
    for number, patch in enumerate(block.patches):
        if not patch.frames or max(patch.frames) >= len(block.frames):
            raise BadRecordError("bad-tokens", f"patch {number} names frames that the block does not have")
        if int(keep_mask(block, patch).sum()) != patch.kept:
            raise BadRecordError(
                "bad-tokens", f"patch {number}: the keep mask does not keep {patch.kept} groups"
            )
        kept += patch.kept
    if block.patches and (not block.embeddings.shape or block.embeddings.shape[0] != kept):
        shape = list(block.embeddings.shape)
        raise BadRecordError("bad-tokens", f"embeddings of shape {shape} for {kept} kept groups")
    if len(block.deepstack.shape) and list(block.deepstack.shape)[1:] != list(block.embeddings.shape):
        raise BadRecordError(
            "bad-tokens", f"deepstack of shape {list(block.deepstack.shape)} beside embeddings"
        )


def keep_mask(block: tokens_pb2.StrideBlock, patch: tokens_pb2.TemporalPatch) -> np.ndarray:
    """bool [group_rows, group_cols] of a patch.

    Raises:
        BadRecordError: The bits do not fit.
    """
    try:
        return unpack_mask(patch.keep, block.group_rows, block.group_cols)
    except ValueError as error:
        raise BadRecordError("bad-tokens", f"a keep mask: {error}") from error


def empty_block(record: tokens_pb2.TokensRecord) -> StrideBlock:
    """A block that nothing is seen of."""
    return StrideBlock(stream_name(record), record.block.index, ())


def load_block(record: tokens_pb2.TokensRecord, client: TensorClient, step_us: int) -> Loaded:
    """The block with its tokens. Raises the store's errors.

    Args:
        record: The block's record.
        client: Where its tokens are fetched.
        step_us: Microseconds of stream time between two samples.
    """
    block = record.block
    if not block.patches:
        return Loaded(empty_block(record))
    tokens, degraded = _fetch(client, block.embeddings, record)
    deep: torch.Tensor | None = None
    if len(block.deepstack.shape):
        deep, more = _fetch(client, block.deepstack, record)
        degraded |= more
    frames = []
    start = 0
    for patch in block.patches:
        rows = slice(start, start + patch.kept)
        start += patch.kept
        seen = [block.frames[number] for number in patch.frames]
        frames.append(
            EncodedFrame(
                time_us=seen[0].time_us,
                anchor=patch.anchor,
                keep=keep_mask(block, patch),
                tokens=tokens[rows],
                deepstack=None if deep is None else deep[:, rows],
                slot_us=seen[0].sample * step_us,
                label_us=sum(frame.time_us for frame in seen) // len(seen),
            )
        )
    return Loaded(StrideBlock(stream_name(record), block.index, tuple(frames)), degraded)


def _fetch(client: TensorClient, ref: TensorRef, record: Message) -> tuple[torch.Tensor, bool]:
    fetched = client.fetch(ref, record)
    return _torch(fetched.array, ref.dtype), fetched.degraded


def _torch(array: Array, dtype: str) -> torch.Tensor:
    """A tensor of its own (what the store hands out is read-only and shared)."""
    copied = torch.from_numpy(np.array(array))
    return copied.view(torch.bfloat16) if dtype == "bfloat16" else copied
