"""One camera's frames records become stride blocks of kept tokens."""

import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import structlog
from google.protobuf.message import Message

from lookout.errors import BadRecordError, RecordsGoneError, TransientError
from lookout.past.erasures import Fence, check_fence
from lookout.pruning import Carry, prune_block
from lookout.runtime.store import (
    Array,
    CameraQuotaError,
    Keeper,
    LineageBrokenError,
    StoreError,
    StoreLifecycle,
    TensorClient,
    TensorStore,
    Unread,
    WaitBudget,
)
from lookout.runtime.worker import (
    Handler,
    Output,
    Record,
    RecordSource,
    Result,
    StoredCheckpoint,
    digest,
    sampling_text,
)
from lookout.services.prune_encode.blocks import (
    BlockRecord,
    Member,
    blocks_between,
    check_segment,
    check_times,
    closed_before,
    describe,
    input_needed,
    input_of,
    inputs_of,
    members,
    sample_of,
)
from lookout.services.prune_encode.encoder import Encoded, Encoder
from lookout.services.prune_encode.settings import PruneEncodeSettings
from lookout.v1.cameras_pb2 import CameraLabels
from lookout.v1.frames_pb2 import FramesRecord
from lookout.v1.lineage_pb2 import (
    CAUSE_LATE,
    CAUSE_PIXELS_LOST,
    CAUSE_QUOTA,
    CAUSE_UNSPECIFIED,
    STAGE_TOKENS,
    Cause,
    RecordRef,
    Sampling,
    StreamEvent,
    TensorRef,
)
from lookout.v1.state_pb2 import Checkpoint, PruneState
from lookout.v1.tokens_pb2 import StrideBlock, TokensRecord
from lookout.wire import FRAMES, TOKENS, Stage, WireError, received, tensor_id

#: what is counted, in `lookout_events_total`
EVENTS = {
    "blocks": "stride blocks written",
    "empty_blocks": "those of them without a frame",
    "frames": "frames in blocks",
    "lost_frames": "frames whose pixels were not available",
    "patches": "patches of the frames",
    "patches_encoded": "patches that went through the vision tower",
    "tokens": "tokens kept",
    "over_quota": "blocks left out because their camera used up its quota",
    "stale": "records of epochs that had ended",
}

#: raise when masks are decided differently and old checkpoints cannot be continued
STATE_VERSION = 2
#: of the reason why samples are missing: what fits a checkpoint, and what a block says of it
REASON_CHARS = 200

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Missing:
    """Why samples are missing: the cause for programs, the reason for people (empty: none was given)."""

    cause: "Cause"
    reason: str


@dataclass(frozen=True, slots=True)
class Open:
    """The open block of an epoch, and what the next one must know."""

    epoch: int = 0
    wall_us: int = 0  # Unix time minus stream time, as the newest record says
    sampling: Sampling = field(default_factory=Sampling)  # of the epoch
    block: int = 0  # index of the open block
    held: tuple[BlockRecord, ...] = ()  # records with frames of the open block
    carry: Carry | None = None
    watermark_us: int = 0
    ended: bool = False  # the epoch was cut by a gap
    missing: Missing | None = None  # why samples of the open block are missing, where that is known
    late_block: int | None = None  # the open block at the newest late segment
    labels: CameraLabels | None = None  # as the newest record says; None: nothing but defaults

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
class Draft:
    """What one input record gives before it is committed."""

    outputs: list[Output] = field(default_factory=list)
    tensors: list[TensorRef] = field(default_factory=list)  # put into the store
    counts: Counter[str] = field(default_factory=Counter)


class PruneEncodeHandler(StoreLifecycle, Handler[CameraState]):
    """frames.v1 -> tokens.v1; embeddings go to the store.

    A block is closed when the stream is covered beyond its last sample, or cut. Its masks follow from its
    frames and the carry-over of the block before, so a replay gives the same. How long blocks and windows
    are is what the frames records say: decode alone decides it, and never within an epoch.
    """

    events = EVENTS

    def __init__(
        self,
        settings: PruneEncodeSettings,
        encoder: Encoder,
        store: TensorStore,
        client: TensorClient,
        records: RecordSource,
        *,
        model_digest: str,
        clock: Callable[[], float] = time.monotonic,
        fence: Fence | None = None,
    ) -> None:
        self._fence = fence or Fence()
        self._settings, self._encoder, self._model = settings, encoder, model_digest
        self._store, self._client, self._records = store, client, records
        self._keeper = Keeper(store, clock)
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
            repr(self._policy),
        )
        self.shared_settings = {**settings.shared, "grid": f"{self._grid.height}x{self._grid.width}"}
        self._waits = WaitBudget(settings.pixels_wait_s, clock)
        self._other_sampling: set[str] = set()  # cameras of which it was told
        self._without_vectors: set[str] = set()  # as well
        store.makes(STAGE_TOKENS, self.materialize)

    # -- state

    def ends(self, camera: str, active_ms: float) -> bool:
        """A camera that was erased whole is forgotten once it is silent."""
        return self._fence.ends(camera, active_ms)

    def load(self, camera: str, stored: StoredCheckpoint | None) -> CameraState:
        """The open block, read again from the records its checkpoint names."""
        if stored is None:
            return CameraState(camera, Open())
        checkpoint = stored.checkpoint.prune
        state = Open(
            epoch=checkpoint.epoch,
            wall_us=checkpoint.wall_offset_us,
            sampling=checkpoint.sampling if checkpoint.sampling.step_us else self._settings.sampling,
            block=checkpoint.block,
            watermark_us=checkpoint.watermark_us,
            ended=checkpoint.any and checkpoint.last_block >= checkpoint.block,
            missing=_missing_of(checkpoint),
            # Also where no frame is open: a stream whose segments end with their blocks has nothing else.
            carry=Carry.unpack(checkpoint.active),
            late_block=checkpoint.late_block - 1 if checkpoint.late_block else None,
            labels=checkpoint.labels if checkpoint.HasField("labels") else None,
        )
        if not checkpoint.offsets:
            return CameraState(camera, state)
        try:
            records = self._records.read(FRAMES.name, stored.partition, checkpoint.offsets)
        except RecordsGoneError as error:
            # The block is closed with fewer frames; its coverage says so.
            _log.warning("frames of the open block are lost", camera=camera, error=str(error))
            records = []
        sources = tuple(BlockRecord(_ref(record), received(FramesRecord, record)) for record in records)
        if stored.config_changed:  # of another model input
            sources = tuple(item for item in sources if input_of(item.record) == input_needed(self._grid))
        return CameraState(camera, replace(state, held=sources))

    def handle(self, state: CameraState, record: Record) -> Result:
        """A segment's frames, or an event of the stream."""
        message = _parsed(record)
        now = state.open
        if message.epoch < now.epoch or (message.epoch == now.epoch and now.ended):
            return Result(counts={"stale": 1})
        draft = Draft()
        try:
            now = self._taken(state.camera, now, record, message, draft)
        except BaseException:
            # Nobody will read what a part of the record's blocks left there.
            self._store.release(draft.tensors)
            raise
        state.open = now
        if draft.tensors and not draft.counts["over_quota"]:
            self._keeper.forget(state.camera)
        return Result(draft.outputs, self._checkpoint(now), counts=draft.counts)

    def _taken(self, camera: str, now: Open, record: Record, message: FramesRecord, draft: Draft) -> Open:
        sampling = message.sampling if message.sampling.step_us else self._settings.sampling
        if message.epoch > now.epoch:
            if now.started and not now.ended:
                self._cut(camera, now, _ref(record), draft)
            now = Open(epoch=message.epoch, sampling=sampling)
            self._compare(camera, sampling)
        elif sampling != now.sampling and message.sampling.step_us:
            raise BadRecordError(
                "bad-frames",
                f"{sampling_text(sampling)} in an epoch of {sampling_text(now.sampling)}",
            )
        labels = message.labels if message.HasField("labels") else None
        now = replace(now, wall_us=message.wall_offset_us, labels=labels)
        if message.HasField("segment"):
            return self._segment(camera, now, record, message, draft)
        if message.event.kind == StreamEvent.KIND_GAP:
            return self._gap(camera, now, record, message, draft)
        draft.outputs.append(_forwarded(message))
        if message.event.kind == StreamEvent.KIND_SKIPPED:
            cause = message.event.cause or CAUSE_QUOTA
            return replace(now, missing=Missing(cause, message.event.reason[:REASON_CHARS]))
        if message.event.kind == StreamEvent.KIND_LATE:
            return replace(now, late_block=now.block)
        return now

    def _compare(self, camera: str, sampling: Sampling) -> None:
        """Blocks are cut as the records say; where this service is set otherwise, people should know."""
        if sampling == self._settings.sampling:
            self._other_sampling.discard(camera)
        elif camera not in self._other_sampling:
            self._other_sampling.add(camera)
            _log.warning(
                "decode samples with other LOOKOUT_FPS, LOOKOUT_STRIDE_S or LOOKOUT_WINDOW_S than set here: "
                "blocks follow the records",
                camera=camera,
                records=sampling_text(sampling),
                settings=sampling_text(self._settings.sampling),
            )

    # -- segments

    def _compare_vectors(self, camera: str, message: FramesRecord) -> None:
        """Where the policy needs vectors and decode exported none, pixels decide: people should know."""
        needed = self._policy.gathers
        if needed is None or message.segment.facts.gather == needed.value:
            return
        if camera not in self._without_vectors:
            self._without_vectors.add(camera)
            _log.warning(
                "masks need motion vectors, which decode did not gather; luma is used: give decode the "
                "same LOOKOUT_PRESET, LOOKOUT_PRUNING, LOOKOUT_CHANGE and LOOKOUT_GATHER_METHOD",
                camera=camera,
                needed=needed.value,
                gathered=message.segment.facts.gather or "nothing",
            )

    def _segment(self, camera: str, now: Open, record: Record, message: FramesRecord, draft: Draft) -> Open:
        check_segment(message, self._grid, residual=self._policy.residual)
        check_times(message, now.sampling.step_us)
        self._compare_vectors(camera, message)
        source, samples = _ref(record), now.sampling.block_samples
        sources = (*now.held, BlockRecord(source, message))
        watermark = max(now.watermark_us, message.segment.end_us)
        first = max(now.block, closed_before(watermark, now.sampling.step_us, samples))
        carry = now.carry
        for index in blocks_between(sources, now.block, first, samples, now.sampling.window_blocks):
            block_members = members(sources, index, samples)
            carry = self._close(camera, now, index, block_members, carry=carry, source=source, draft=draft)
            if len(block_members) == samples:
                now = replace(now, missing=None)
        sources = tuple(item for item in sources if _reaches(item, first, samples))
        return replace(now, block=first, held=sources, carry=carry, watermark_us=watermark)

    def _close(
        self,
        camera: str,
        now: Open,
        index: int,
        chosen: Sequence[Member],
        *,
        carry: Carry | None,
        source: RecordRef,
        draft: Draft,
    ) -> Carry | None:
        """Write one block; the carry-over behind it. A block that cannot be kept because its camera is over
        its quota is written without frames.

        Raises:
            TransientError: Its pixels, or room for its tokens, are not available now.
        """
        before = len(draft.tensors)
        try:
            if chosen:
                self._keeper.check(camera)
            return self._write(camera, now, index, chosen, carry=carry, source=source, draft=draft)
        except CameraQuotaError as error:
            self._store.release(draft.tensors[before:])
            del draft.tensors[before:]
            draft.counts["over_quota"] += 1
            reason = f"quota: {error}"
            left_out = replace(now, missing=Missing(CAUSE_QUOTA, reason))
            _log.warning("block left out", camera=camera, block=index, reason=reason)
            return self._write(camera, left_out, index, [], carry=carry, source=source, draft=draft)

    def _write(
        self,
        camera: str,
        now: Open,
        index: int,
        chosen: Sequence[Member],
        *,
        carry: Carry | None,
        source: RecordRef,
        draft: Draft,
    ) -> Carry | None:
        wall_us = chosen[-1].held.record.wall_offset_us if chosen else now.wall_us
        record = TokensRecord(
            camera=camera,
            epoch=now.epoch,
            wall_offset_us=wall_us,
            sampling=now.sampling,
            labels=now.labels,
        )
        block, stride = record.block, now.sampling.block_samples * now.sampling.step_us
        block.index, block.start_us, block.end_us = index, index * stride, (index + 1) * stride
        block.model_digest = self._model
        expected = len(chosen)
        pixels, chosen, missing = self._pixels(camera, now.epoch, index, chosen)
        if len(chosen) < now.sampling.block_samples:
            why = missing or now.missing or _late(now, index)
            if why is not None:
                block.missing, block.missing_cause = why.reason, why.cause
        samples = [sample_of(m, p, self._grid) for m, p in zip(chosen, pixels, strict=True)]
        masks, carry = prune_block(samples, self._grid, self._policy, carry)
        describe(block, chosen, pixels, masks, self._grid)
        segments = [member.held.record.segment.segment for member in chosen]
        tags = self._encode(record, pixels, segments, source, draft) if masks else []
        draft.outputs.append(Output(TOKENS.name, camera, record.SerializeToString(), tensors=tags))
        draft.counts.update(
            blocks=1,
            empty_blocks=not chosen,
            frames=len(chosen),
            lost_frames=expected - len(chosen),
            patches=block.patches_total,
            patches_encoded=block.patches_encoded,
            tokens=sum(mask.kept for mask in masks),
        )
        return carry

    def _pixels(
        self, camera: str, epoch: int, index: int, chosen: Sequence[Member]
    ) -> tuple[list[np.ndarray], list[Member], Missing | None]:
        """Pixels of each frame, the frames that still have any, and why others have none.

        Raises TransientError while pixels are not available and the block's deadline is not over.
        """
        pixels: list[np.ndarray] = []
        available: list[Member] = []
        missing: Missing | None = None
        # One fetch for each segment: a block's frames are neighbours in it.
        for block_record in {id(member.held): member.held for member in chosen}.values():
            ours = [member for member in chosen if member.held is block_record]
            first, last = ours[0].row, ours[-1].row
            try:
                rows = self._client.fetch(
                    block_record.record.segment.pixels, block_record.record, rows=[(first, last + 1)]
                ).array
            except LineageBrokenError as error:
                missing = Missing(CAUSE_PIXELS_LOST, f"pixels are lost: {error}")
            except StoreError as error:
                missing = Missing(CAUSE_PIXELS_LOST, self._late_pixels(camera, epoch, index, error))
            else:
                pixels += [rows[member.row - first] for member in ours]
                available += ours
                continue
            _log.warning("frames are left out", record=str(block_record.ref.offset), reason=missing.reason)
        self._waits.done(camera)
        return pixels, available, missing

    def _late_pixels(self, camera: str, epoch: int, index: int, error: StoreError) -> str:
        """Why a block goes without pixels that are not available. Before its deadline: TransientError."""
        why = self._waits.over(camera, (epoch, index), error)
        if not why:
            raise TransientError(str(error)) from error
        return f"pixels {why}"

    def _encode(
        self,
        record: TokensRecord,
        pixels: list[np.ndarray],
        segments: Sequence[RecordRef],
        source: RecordRef,
        draft: Draft,
    ) -> list[TensorRef]:
        """Run the tower, put its tokens into the store and name them in the record."""
        block = record.block
        frames = inputs_of(block.patches, pixels, self._grid)
        encoded = self._encoder.encode(frames)
        tower = self._encoder.tower
        block.flops_vision, block.tower_us = tower.flops(frames), round(encoded.seconds * 1e6)
        # What the same frames would cost with every patch: the other side of the savings that verdicts
        # report.
        dense_frames = [replace(frame, keep=np.ones_like(frame.keep)) for frame in frames]
        block.flops_vision_dense = tower.flops(dense_frames)
        refs = []
        for name, array in (("", encoded.tokens), ("/deepstack", encoded.deepstack)):
            if array is None:
                continue
            reference = self._reference(record, name, segments, source)
            seconds = (block.end_us - block.start_us) / 1e6
            ref = self._keeper.put(reference, array, Unread(source.partition, seconds), encoded.dtype)
            draft.tensors.append(ref)
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
            # Each once, in the order of the frames; `set` would lose the order.
            segments=[segment for n, segment in enumerate(segments) if segment not in segments[:n]],
            input=source,
        )

    # -- events

    def _gap(self, camera: str, now: Open, record: Record, message: FramesRecord, draft: Draft) -> Open:
        """Close the open block if it has a frame, pass the gap on, end the epoch."""
        closed = self._cut(camera, now, _ref(record), draft)
        draft.outputs.append(_forwarded(message))
        return replace(now, block=closed, held=(), carry=None, ended=True)

    def _cut(self, camera: str, now: Open, source: RecordRef, draft: Draft) -> int:
        """Close the last block of an epoch early; the block behind it."""
        open_members = members(now.held, now.block, now.sampling.block_samples)
        if not open_members:
            return now.block
        self._close(camera, now, now.block, open_members, carry=now.carry, source=source, draft=draft)
        return now.block + 1

    def _checkpoint(self, now: Open) -> Checkpoint:
        # An epoch cut by a gap has no open block: its last one is what `block` names.
        written = now.block + (1 if now.ended else 0)
        return Checkpoint(
            prune=PruneState(
                epoch=now.epoch,
                wall_offset_us=now.wall_us,
                block=now.block,
                offsets=[block_record.ref.offset for block_record in now.held],
                active=now.carry.pack() if now.carry is not None else b"",
                last_block=max(0, written - 1),
                any=written > 0,
                watermark_us=now.watermark_us,
                sampling=now.sampling,
                missing=now.missing.reason if now.missing else "",
                missing_cause=now.missing.cause if now.missing else CAUSE_UNSPECIFIED,
                late_block=0 if now.late_block is None else now.late_block + 1,
                labels=now.labels,
            )
        )

    # -- tokens

    def materialize(self, ref: TensorRef, record: Message) -> Array:
        """Tokens again, from the pixels and the masks named in the record.

        Raises:
            LineageBrokenError: They are not available, or the record is of another model.
        """
        if not isinstance(record, TokensRecord) or not record.HasField("block"):
            raise LineageBrokenError(f"{ref.id}: tokens are made from a tokens record with a block")
        block = record.block
        if block.model_digest != self._model:
            raise LineageBrokenError(f"{ref.id}: made by model {block.model_digest}, this is {self._model}")
        if record.camera != ref.camera:
            raise LineageBrokenError(f"{ref.id}: the record is of another camera")
        check_fence(self._fence, ref, record.wall_offset_us, block.start_us, block.end_us)
        encoded = self._again(block, ref)
        array = encoded.deepstack if ref.id == block.deepstack.id and ref.id else encoded.tokens
        if array is None:
            raise LineageBrokenError(f"{ref.id}: this model has no deepstack features")
        return array

    def _again(self, block: StrideBlock, ref: TensorRef) -> Encoded:
        block_records: list[BlockRecord] = []
        try:
            for at in block.inputs:
                found = self._records.read(at.topic, at.partition, [at.offset])[0]
                if found.camera != ref.camera:
                    raise LineageBrokenError(f"{ref.id}: offset {at.offset} is a record of another camera")
                block_records.append(BlockRecord(at, received(FramesRecord, found)))
        except (RecordsGoneError, WireError) as error:
            raise LineageBrokenError(f"{ref.id}: {error}") from error
        pixels = []
        for frame in block.frames:
            source = block_records[frame.input].record
            rows = [(frame.row, frame.row + 1)]
            pixels.append(self._client.fetch(source.segment.pixels, source, rows=rows).array[0])
        return self._encoder.encode(inputs_of(block.patches, pixels, self._grid))


def _parsed(record: Record) -> FramesRecord:
    try:
        message = received(FramesRecord, record)
    except WireError as error:
        raise BadRecordError("bad-frames", str(error)) from error
    if message.WhichOneof("body") is None or not message.epoch:
        raise BadRecordError("bad-frames", "neither a segment nor an event of an epoch")
    return message


def _missing_of(checkpoint: PruneState) -> Missing | None:
    """Why samples of the open block are missing, as a checkpoint says; a reason may be empty."""
    if checkpoint.missing_cause == CAUSE_UNSPECIFIED and not checkpoint.missing:
        return None
    return Missing(checkpoint.missing_cause, checkpoint.missing)


def _ref(record: Record) -> RecordRef:
    return RecordRef(topic=record.topic, partition=record.partition, offset=record.offset)


def _late(now: Open, index: int) -> Missing | None:
    """Why samples of a block are missing where segments of the last window came late: a segment that comes
    after later ones finds its blocks closed.
    """
    if now.late_block is None or index > now.late_block + now.sampling.window_blocks:
        return None
    return Missing(
        CAUSE_LATE, "late: the camera's segments do not come in order, and late ones find their time decided"
    )


def _reaches(held: BlockRecord, block: int, samples: int) -> bool:
    """Whether a record has frames of `block` or later ones."""
    frames = held.record.segment.frames
    return bool(frames) and frames[-1].sample // samples >= block


def _forwarded(message: FramesRecord) -> Output:
    event = TokensRecord(
        camera=message.camera,
        epoch=message.epoch,
        wall_offset_us=message.wall_offset_us,
        sampling=message.sampling,
        event=message.event,
        labels=message.labels if message.HasField("labels") else None,
    )
    return Output(TOKENS.name, message.camera, event.SerializeToString())
