"""One camera's frames records become stride blocks of kept tokens."""

import threading
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

import numpy as np
import structlog
from google.protobuf.message import Message

from lookout.pruning import Carry, prune_block
from lookout.runtime import (
    BadRecordError,
    Handler,
    Output,
    Record,
    RecordsGoneError,
    Result,
    StoredCheckpoint,
    TransientError,
    digest,
)
from lookout.services.prune_encode.blocks import (
    BlockRecord,
    Member,
    check_segment,
    closed_before,
    describe,
    inputs_of,
    members,
    sample_of,
)
from lookout.services.prune_encode.encoder import Encoded, Encoder
from lookout.services.prune_encode.settings import PruneEncodeSettings
from lookout.store import (
    Array,
    LineageBrokenError,
    StoreError,
    StoreFullError,
    StoreLifecycle,
    TensorClient,
    TensorStore,
    Unread,
)
from lookout.v1.frames_pb2 import FramesRecord
from lookout.v1.lineage_pb2 import STAGE_TOKENS, RecordRef, StreamEvent, TensorRef
from lookout.v1.state_pb2 import Checkpoint, PruneState
from lookout.v1.tokens_pb2 import StrideBlock, TokensRecord
from lookout.wire import FRAMES, TOKENS, Stage, WireError, from_bytes, tensor_id

__all__ = ["CameraState", "PruneEncodeHandler"]

#: raise when masks are decided differently and old checkpoints cannot be continued
STATE_VERSION = 1

_log = structlog.get_logger(__name__)


class RecordSource(Protocol):
    """Where records are read again (`lookout.runtime.RecordReader`)."""

    def read(self, topic: str, partition: int, offsets: Iterable[int]) -> Sequence[Record]:
        """Errors: RecordsGoneError, TransientError."""
        ...


@dataclass(frozen=True, slots=True)
class Open:
    """The open block of an epoch, and what the next one must know."""

    epoch: int = 0
    wall_us: int = 0
    block: int = 0  # index of the open block
    held: tuple[BlockRecord, ...] = ()  # records with frames of the open block
    carry: Carry | None = None
    watermark_us: int = 0
    ended: bool = False  # the epoch was cut by a gap

    @property
    def started(self) -> bool:
        """Whether it is an epoch at all."""
        return self.epoch > 0


@dataclass(slots=True)
class CameraState:
    """A camera."""

    camera: str
    open: Open


@dataclass(slots=True)
class Made:
    """What one input record gives before it is committed."""

    outputs: list[Output] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)


class PruneEncodeHandler(StoreLifecycle, Handler[CameraState]):
    """frames.v1 -> tokens.v1; embeddings go to the store.

    A block is closed when the stream is covered beyond its last sample, or cut. Its masks follow from its
    frames and the carry-over of the block before, so a replay gives the same.
    """

    def __init__(
        self,
        settings: PruneEncodeSettings,
        encoder: Encoder,
        store: TensorStore,
        client: TensorClient,
        log: RecordSource,
        *,
        model_digest: str,
    ) -> None:
        self._settings, self._encoder, self._model = settings, encoder, model_digest
        self._store, self._client, self._records = store, client, log
        self._grid = (
            encoder.tower.grid_for(settings.input_height, settings.input_width)
            if settings.input_height and settings.input_width
            else encoder.tower.grid
        )
        self._policy = settings.policy
        self._tokens_digest = digest(model_digest, settings.dtype, self._grid.height, self._grid.width)
        self.config_digest = digest(
            STATE_VERSION,
            self._tokens_digest,
            settings.fps,
            settings.stride_s,
            settings.window_s,
            settings.rule.value,
            self._policy.threshold,
            settings.alpha,
            settings.luma_tau,
            settings.anchors.value,
            settings.accumulation.value,
            settings.prune,
        )
        self.counts: Counter[str] = Counter()
        self._counting = threading.Lock()
        store.makes(STAGE_TOKENS, self.materialize)

    # -- state

    def load(self, camera: str, stored: StoredCheckpoint | None) -> CameraState:
        """The open block, read again from the records its checkpoint names."""
        if stored is None:
            return CameraState(camera, Open())
        kept = stored.checkpoint.prune
        state = Open(
            epoch=kept.epoch,
            wall_us=kept.wall_offset_us,
            block=kept.block,
            watermark_us=kept.watermark_us,
            ended=kept.any and kept.last_block >= kept.block,
        )
        if stored.config_changed:
            return CameraState(camera, state)
        try:
            records = self._records.read(FRAMES.name, stored.partition, kept.offsets)
        except RecordsGoneError as error:
            # The block is closed with fewer frames; its coverage says so.
            _log.warning("frames of the open block are lost", camera=camera, error=str(error))
            records = []
        held = tuple(BlockRecord(_ref(record), from_bytes(record.value, FramesRecord)) for record in records)
        return CameraState(camera, replace(state, held=held, carry=Carry.unpack(kept.active)))

    def handle(self, state: CameraState, record: Record) -> Result:
        """A segment's frames, or an event of the stream."""
        message = _parsed(record)
        now = state.open
        if message.epoch < now.epoch or (message.epoch == now.epoch and now.ended):
            self.counts["stale"] += 1
            return Result()
        made = Made()
        if message.epoch > now.epoch:
            if now.started and not now.ended:
                self._cut(state.camera, now, _ref(record), made)
            now = Open(epoch=message.epoch, wall_us=message.wall_offset_us)
        if message.HasField("segment"):
            now = self._segment(state.camera, now, record, message, made)
        elif message.event.kind == StreamEvent.KIND_GAP:
            now = self._gap(state.camera, now, record, message, made)
        else:
            made.outputs.append(_forwarded(message))
        state.open = now
        with self._counting:
            self.counts += made.counts
        return Result(made.outputs, self._checkpoint(now))

    # -- segments

    def _segment(self, camera: str, now: Open, record: Record, message: FramesRecord, made: Made) -> Open:
        check_segment(message, self._grid, residual=self._policy.alpha > 0)
        source, settings = _ref(record), self._settings
        held = (*now.held, BlockRecord(source, message))
        watermark = max(now.watermark_us, message.segment.end_us)
        first = max(now.block, closed_before(watermark, settings.step_us, settings.samples))
        carry, empty = now.carry, 0
        for index in range(now.block, first):
            chosen = members(held, index, settings.samples)
            empty = 0 if chosen else empty + 1
            if empty > settings.blocks:
                continue  # a long hole: a window of empty blocks says all there is to say
            carry = self._close(camera, now, index, chosen, carry=carry, source=source, made=made)
        held = tuple(each for each in held if _reaches(each, first, settings.samples))
        return replace(now, block=first, held=held, carry=carry, watermark_us=watermark)

    def _close(
        self,
        camera: str,
        now: Open,
        index: int,
        chosen: Sequence[Member],
        *,
        carry: Carry | None,
        source: RecordRef,
        made: Made,
        last: bool = False,
    ) -> Carry | None:
        """Write one block; the carry-over behind it. Raises TransientError before anything is kept."""
        stride = self._settings.stride_us
        record = TokensRecord(camera=camera, epoch=now.epoch, wall_offset_us=now.wall_us)
        block = record.block
        block.index, block.start_us, block.end_us = index, index * stride, (index + 1) * stride
        block.model_digest, block.last = self._model, last
        pixels, chosen = self._pixels(chosen)
        samples = [sample_of(m, p, self._grid) for m, p in zip(chosen, pixels, strict=True)]
        masks, carry = prune_block(samples, self._grid, self._policy, carry)
        describe(block, chosen, pixels, masks, self._grid)
        segments = [member.held.record.segment.segment for member in chosen]
        tags = self._encode(record, pixels, segments, source) if masks else []
        made.outputs.append(Output(TOKENS.name, camera, record.SerializeToString(), tag=tags))
        made.counts.update(
            blocks=1,
            empty=not chosen,
            frames=len(chosen),
            patches=block.patches_total,
            encoded=block.patches_encoded,
            tokens=sum(mask.kept for mask in masks),
        )
        return carry

    def _pixels(self, chosen: Sequence[Member]) -> tuple[list[np.ndarray], list[Member]]:
        """Pixels of each frame, and the frames that still have any."""
        pixels: list[np.ndarray] = []
        left: list[Member] = []
        for held in {id(member.held): member.held for member in chosen}.values():
            ours = [member for member in chosen if member.held is held]
            first, last = ours[0].row, ours[-1].row
            try:
                rows = self._client.fetch(
                    held.record.segment.pixels, held.record, rows=[(first, last + 1)]
                ).array
            except LineageBrokenError as error:
                _log.warning("frames are lost", record=str(held.ref.offset), error=str(error))
                self.counts["lost"] += len(ours)
                continue
            except StoreError as error:
                raise TransientError(str(error)) from error
            pixels += [rows[member.row - first] for member in ours]
            left += ours
        return pixels, left

    def _encode(
        self,
        record: TokensRecord,
        pixels: list[np.ndarray],
        segments: Sequence[RecordRef],
        source: RecordRef,
    ) -> list[TensorRef]:
        """Run the tower, put its tokens into the store and name them in the record."""
        block = record.block
        frames = inputs_of(block.patches, pixels, self._grid)
        encoded = self._encoder.encode(frames)
        tower = self._encoder.tower
        block.flops_vision = tower.flops(frames)
        whole = [replace(frame, keep=np.ones_like(frame.keep)) for frame in frames]
        block.flops_vision_dense = tower.flops(whole)
        refs = []
        for name, array in (("", encoded.tokens), ("/deepstack", encoded.deepstack)):
            if array is None:
                continue
            wanted = self._reference(record, name, segments, source)
            ref = self._put(wanted, array, encoded.dtype, source.partition)
            (block.deepstack if name else block.embeddings).CopyFrom(ref)
            refs.append(ref)
        return refs

    def _reference(
        self, record: TokensRecord, name: str, segments: Sequence[RecordRef], source: RecordRef
    ) -> TensorRef:
        block = record.block
        made_by = f"{self._tokens_digest}.{source.partition}.{source.offset}{name}"
        return TensorRef(
            id=tensor_id(Stage.PRUNE_ENCODE, record.camera, record.epoch, block.start_us, made_by),
            stage=STAGE_TOKENS,
            camera=record.camera,
            epoch=record.epoch,
            config_digest=self._tokens_digest,
            segments=[each for n, each in enumerate(segments) if each not in segments[:n]],
            input=source,
        )

    def _put(self, ref: TensorRef, array: Array, dtype: str, partition: int) -> TensorRef:
        unread = Unread(partition, self._settings.stride_us / 1e6)
        try:
            return self._store.put(ref, array, unread, dtype)
        except StoreFullError as error:
            raise TransientError(str(error)) from error

    # -- events

    def _gap(self, camera: str, now: Open, record: Record, message: FramesRecord, made: Made) -> Open:
        """Close the open block if it has a frame, pass the gap on, end the epoch."""
        closed = self._cut(camera, now, _ref(record), made)
        made.outputs.append(_forwarded(message))
        return replace(now, block=closed, held=(), carry=None, ended=True)

    def _cut(self, camera: str, now: Open, source: RecordRef, made: Made) -> int:
        """Close the last block of an epoch early; the block behind it."""
        chosen = members(now.held, now.block, self._settings.samples)
        if not chosen:
            return now.block
        self._close(camera, now, now.block, chosen, carry=now.carry, source=source, made=made, last=True)
        return now.block + 1

    def _checkpoint(self, now: Open) -> Checkpoint:
        # An epoch cut by a gap has no open block: its last one is what `block` names.
        written = now.block + (1 if now.ended else 0)
        return Checkpoint(
            prune=PruneState(
                epoch=now.epoch,
                wall_offset_us=now.wall_us,
                block=now.block,
                offsets=[each.ref.offset for each in now.held],
                active=now.carry.pack() if now.carry is not None else b"",
                last_block=max(0, written - 1),
                any=written > 0,
                watermark_us=now.watermark_us,
            )
        )

    # -- tokens

    def materialize(self, ref: TensorRef, record: Message) -> Array:
        """Tokens again, from the pixels and the masks named in the record.

        Raises LineageBrokenError where they cannot be had, or the record is of another model.
        """
        if not isinstance(record, TokensRecord) or not record.HasField("block"):
            raise LineageBrokenError(f"{ref.id}: tokens are made from a tokens record with a block")
        block = record.block
        if block.model_digest != self._model:
            raise LineageBrokenError(f"{ref.id}: made by model {block.model_digest}, this is {self._model}")
        encoded = self._again(block, ref)
        array = encoded.deepstack if ref.id == block.deepstack.id and ref.id else encoded.tokens
        if array is None:
            raise LineageBrokenError(f"{ref.id}: this model has no deepstack features")
        return array

    def _again(self, block: StrideBlock, ref: TensorRef) -> Encoded:
        held: list[BlockRecord] = []
        try:
            for at in block.inputs:
                found = self._records.read(at.topic, at.partition, [at.offset])[0]
                held.append(BlockRecord(at, from_bytes(found.value, FramesRecord)))
        except (RecordsGoneError, WireError) as error:
            raise LineageBrokenError(f"{ref.id}: {error}") from error
        pixels = []
        for frame in block.frames:
            source = held[frame.input].record
            rows = [(frame.row, frame.row + 1)]
            pixels.append(self._client.fetch(source.segment.pixels, source, rows=rows).array[0])
        return self._encoder.encode(inputs_of(block.patches, pixels, self._grid))


def _parsed(record: Record) -> FramesRecord:
    try:
        message = from_bytes(record.value, FramesRecord)
    except WireError as error:
        raise BadRecordError("bad-frames", str(error)) from error
    if message.camera != record.camera:
        raise BadRecordError("bad-frames", f"a record of camera {message.camera!r} under another key")
    if message.WhichOneof("body") is None or not message.epoch:
        raise BadRecordError("bad-frames", "neither a segment nor an event of an epoch")
    return message


def _ref(record: Record) -> RecordRef:
    return RecordRef(topic=record.topic, partition=record.partition, offset=record.offset)


def _reaches(held: BlockRecord, block: int, samples: int) -> bool:
    """Whether a record has frames of `block` or later ones."""
    frames = held.record.segment.frames
    return bool(frames) and frames[-1].sample // samples >= block


def _forwarded(message: FramesRecord) -> Output:
    event = TokensRecord(
        camera=message.camera, epoch=message.epoch, wall_offset_us=message.wall_offset_us, event=message.event
    )
    return Output(TOKENS.name, message.camera, event.SerializeToString())
