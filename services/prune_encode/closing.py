"""Closes blocks, that is, computes their masks, tokens and records; also recomputes lost tokens."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
from google.protobuf.message import Message

from lookout.models.vision import Grid
from lookout.past.erasures import Fence
from lookout.pruning import Carry, MaskPolicy, prune_block
from lookout.runtime.store import Array, LineageBrokenError
from lookout.runtime.worker import RecordSource
from lookout.services.prune_encode.block import OpenBlock
from lookout.services.prune_encode.blocks import BlockRecord, Member, describe, inputs_of, sample_of
from lookout.services.prune_encode.encoder import Encoder
from lookout.services.prune_encode.pixels import PixelSource
from lookout.streams.stages import Draft, check_lineage, envelope, lineage_record
from lookout.v1.frames_pb2 import FramesRecord
from lookout.v1.lineage_pb2 import STAGE_TOKENS, RecordRef, TensorRef
from lookout.v1.tokens_pb2 import StrideBlock, TokensRecord
from lookout.wire import TOKENS, Stage, WireError, received, tensor_id


class Puts(Protocol):
    """Puts a tensor into the store (`ProducingStage.put`)."""

    def __call__(
        self, draft: Draft, ref: TensorRef, array: Array, seconds: float, dtype: str = ""
    ) -> TensorRef: ...


@dataclass(frozen=True, slots=True)
class BlockCloser:
    """Computes and writes blocks. Any thread may call it, but only one at a time per camera.

    Attributes:
        encoder: Runs the vision tower.
        pixels: Fetches pixels.
        records: Rereads frames records.
        put: Puts tokens into the store.
        grid: The model input's patch grid.
        policy: Decides the masks.
        model: The model's digest.
        tokens: Digest of everything that the tokens depend on.
        fence: The erasures in force.
    """

    encoder: Encoder
    pixels: PixelSource
    records: RecordSource
    put: Puts
    grid: Grid
    policy: MaskPolicy
    model: str
    tokens: str
    fence: Fence

    def close(
        self,
        camera: str,
        unit: OpenBlock,
        index: int,
        frames: Sequence[Member],
        *,
        source: RecordRef,
        draft: Draft,
    ) -> Carry | None:
        """Write a block; return what pruning carries over to the next block, None if nothing.

        Args:
            camera: The camera's id.
            unit: The open block.
            index: The block to close: the open one or a later one.
            frames: The block's frames, in order.
            source: The record that closes the block.
            draft: Takes the block's record and its tokens.

        Raises:
            TransientError: The block's pixels, or space for its tokens, are not available now.
            CameraQuotaError: The camera's tokens exceeded its share of the store for too long.
        """
        wall_us = frames[-1].held.record.wall_offset_us if frames else unit.wall_us
        record = envelope(TokensRecord, camera, unit.epoch, wall_us, unit.sampling, unit.labels)
        block, stride = record.block, unit.sampling.block_samples * unit.sampling.step_us
        block.index, block.start_us, block.end_us = index, index * stride, (index + 1) * stride
        block.model_digest = self.model
        fetched = self.pixels.fetch(camera, unit.epoch, index, frames)
        if len(fetched.frames) < unit.sampling.block_samples:
            missing = fetched.missing or unit.why_missing(index)
            if missing is not None:
                block.missing, block.missing_cause = missing.reason, missing.cause
        members, pixels = fetched.frames, fetched.pixels
        samples = [sample_of(m, p, self.grid) for m, p in zip(members, pixels, strict=True)]
        masks, carry = prune_block(samples, self.grid, self.policy, unit.carry)
        describe(block, members, pixels, masks, self.grid)
        segments = [member.held.record.segment.segment for member in members]
        refs = self._encode(record, pixels, segments, source, draft) if masks else []
        draft.write(TOKENS.name, camera, record, refs)
        draft.counts.update(
            blocks=1,
            empty_blocks=not members,
            frames=len(members),
            lost_frames=len(frames) - len(members),
            patches=block.patches_total,
            patches_encoded=block.patches_encoded,
            tokens=sum(mask.kept for mask in masks),
        )
        return carry

    def _encode(
        self,
        record: TokensRecord,
        pixels: list[np.ndarray],
        segments: Sequence[RecordRef],
        source: RecordRef,
        draft: Draft,
    ) -> list[TensorRef]:
        """Run the tower, put the tokens into the store, write their references into the record, and return
        the references.
        """
        block = record.block
        frames = inputs_of(block.patches, pixels, self.grid)
        encoded = self.encoder.encode(frames)
        tower = self.encoder.tower
        block.flops_vision, block.tower_us = tower.flops(frames), round(encoded.seconds * 1e6)
        # The FLOPs of the same frames with every patch: the baseline for the savings that verdicts report.
        dense_frames = [replace(frame, keep=np.ones_like(frame.keep)) for frame in frames]
        block.flops_vision_dense = tower.flops(dense_frames)
        refs = []
        for name, array in (("", encoded.tokens), ("/deepstack", encoded.deepstack)):
            if array is None:
                continue
            made_by = f"{self.tokens}.{source.partition}.{source.offset}{name}"
            ref = TensorRef(
                id=tensor_id(Stage.PRUNE_ENCODE, record.camera, record.epoch, block.start_us, made_by),
                stage=STAGE_TOKENS,
                camera=record.camera,
                epoch=record.epoch,
                config_digest=self.tokens,
                # distinct segments; a set would lose the frames' order
                segments=[segment for n, segment in enumerate(segments) if segment not in segments[:n]],
                input=source,
            )
            ref = self.put(draft, ref, array, (block.end_us - block.start_us) / 1e6, encoded.dtype)
            (block.deepstack if name else block.embeddings).CopyFrom(ref)
            refs.append(ref)
        return refs

    def materialize(self, ref: TensorRef, record: Message) -> Array:
        """Recompute a block's tokens from the pixels and masks in its record.

        Raises:
            LineageBrokenError: The tokens cannot be recomputed, or the record is from another model.
        """
        block = check_lineage(ref, record, TokensRecord, "block", self.fence).block
        if block.model_digest != self.model:
            raise LineageBrokenError(
                f"{ref.id}: the tokens were made by model {block.model_digest}, but this service runs "
                f"model {self.model}"
            )
        frames = inputs_of(block.patches, self.pixels.again(block, self._sources(block, ref)), self.grid)
        encoded = self.encoder.encode(frames)
        array = encoded.deepstack if ref.id == block.deepstack.id and ref.id else encoded.tokens
        if array is None:
            raise LineageBrokenError(
                f"{ref.id}: the tokens have DeepStack features, but this service's model has none"
            )
        return array

    def _sources(self, block: StrideBlock, ref: TensorRef) -> list[BlockRecord]:
        try:
            return [
                BlockRecord(at, received(FramesRecord, lineage_record(self.records, at, ref)))
                for at in block.inputs
            ]
        except WireError as error:
            raise LineageBrokenError(f"{ref.id}: {error}") from error
