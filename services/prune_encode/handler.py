"""Turns one camera's frames records into stride blocks of kept tokens."""

import time
from collections.abc import Callable, Sequence
from dataclasses import replace

import structlog

from lookout.errors import BadRecordError
from lookout.past.erasures import Fence
from lookout.pruning import Carry
from lookout.runtime.store import CameraQuotaError, TensorClient, TensorStore
from lookout.runtime.worker import Record, RecordSource, StoredCheckpoint, digest, sampling_text
from lookout.services.prune_encode.block import REASON_CHARS, Missing, OpenBlock
from lookout.services.prune_encode.blocks import (
    BlockRecord,
    Member,
    blocks_between,
    check_segment,
    check_times,
    closed_before,
    first_whole,
    frames_of,
    input_needed,
    input_of,
    members,
    reaches,
)
from lookout.services.prune_encode.closing import BlockCloser
from lookout.services.prune_encode.encoder import Encoder
from lookout.services.prune_encode.metrics import EVENTS, REASONS
from lookout.services.prune_encode.pixels import PixelSource
from lookout.services.prune_encode.settings import PruneEncodeSettings
from lookout.streams.stages import Camera, Draft, ProducingStage, forwarded, reference_of
from lookout.v1.frames_pb2 import FramesRecord
from lookout.v1.lineage_pb2 import CAUSE_QUOTA, STAGE_TOKENS, RecordRef, Sampling, StreamEvent
from lookout.v1.state_pb2 import Checkpoint
from lookout.wire import FRAMES, TOKENS, received

#: raise this number when masks are decided differently, so that old checkpoints are not used
STATE_VERSION = 2

_log = structlog.get_logger(__name__)


class PruneEncodeHandler(ProducingStage[OpenBlock]):
    """Reads frames.v1 and writes tokens.v1; embeddings go to the tensor store.

    A block is closed when the stream is covered beyond its last sample, or when a gap ends the epoch.
    Its masks depend only on its frames and on the carry-over from the previous block, so a replay gives the
    same masks. The lengths of blocks and windows come from the frames records; decode sets them once per
    epoch.
    """

    events = EVENTS
    reasons = REASONS
    source_topic = FRAMES.name

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
        super().__init__(store, records, fence, clock)
        self._settings, self._policy = settings, settings.policy
        self._grid = (
            encoder.tower.grid_for(settings.input_height, settings.input_width)
            if settings.input_height and settings.input_width
            else encoder.tower.grid
        )
        tokens = digest(model_digest, settings.dtype, self._grid.height, self._grid.width)
        self.config_digest = digest(STATE_VERSION, tokens, repr(self._policy))
        self.shared_settings = {**settings.shared, "grid": f"{self._grid.height}x{self._grid.width}"}
        self.closer = BlockCloser(
            encoder,
            PixelSource(client, settings.pixels_wait_s, clock),
            records,
            self.put,
            self._grid,
            self._policy,
            model_digest,
            tokens,
            self._fence,
        )
        self._warned: set[tuple[str, str]] = set()  # (camera, subject) of the logged warnings
        store.makes(STAGE_TOKENS, self.closer.materialize)

    def begin(self, camera: str) -> OpenBlock:
        """See `KeyedStage.begin`."""
        return OpenBlock()

    def restore(self, camera: str, stored: StoredCheckpoint) -> OpenBlock:
        """See `KeyedStage.restore`."""
        return OpenBlock.of(stored.checkpoint.prune, self._settings.sampling)

    def offsets(self, stored: StoredCheckpoint) -> Sequence[int]:
        """See `KeyedStage.offsets`."""
        return stored.checkpoint.prune.offsets

    def resume(self, unit: OpenBlock, records: Sequence[Record], stored: StoredCheckpoint) -> OpenBlock:
        """See `KeyedStage.resume`. If records are gone, the block has fewer frames."""
        sources = [BlockRecord(reference_of(record), received(FramesRecord, record)) for record in records]
        if stored.config_changed:  # made for another model input
            sources = [source for source in sources if input_of(source.record) == input_needed(self._grid)]
        return replace(unit, records=tuple(sources))

    def checkpoint(self, unit: OpenBlock) -> Checkpoint:
        """See `KeyedStage.checkpoint`."""
        return Checkpoint(prune=unit.message())

    def join(self, camera: Camera[OpenBlock], record: Record, draft: Draft) -> OpenBlock | None:
        """Add a segment's frames or a stream event to the open block. None: the record is ignored, because a
        canary does not try this camera or the epoch has already ended.
        """
        if not self._settings.tries(camera.camera):
            return None
        message, unit = frames_of(record), camera.unit
        if message.epoch < unit.epoch or (message.epoch == unit.epoch and unit.ended):
            draft.counts["stale"] += 1
            return None
        unit = self._entered(camera, record, message, draft)
        labels = message.labels if message.HasField("labels") else None
        unit = replace(unit, wall_us=message.wall_offset_us, labels=labels)
        if message.HasField("segment"):
            unit = self._segment(camera.camera, unit, record, message, draft)
        else:
            unit = self._event(camera.camera, unit, record, message, draft)
        if draft.tensors and not draft.counts["over_quota"]:
            self._keeper.forget(camera.camera)
        return unit

    def _entered(
        self, camera: Camera[OpenBlock], record: Record, message: FramesRecord, draft: Draft
    ) -> OpenBlock:
        """Return the open block of the record's epoch. If no gap ended an earlier epoch, close that epoch
        first.
        """
        unit = camera.unit
        sampling = message.sampling if message.sampling.step_us else self._settings.sampling
        if message.epoch > unit.epoch:
            if unit.running:
                self._cut(camera.camera, unit, reference_of(record), draft)
            self._compare_sampling(camera.camera, sampling)
            return OpenBlock(epoch=message.epoch, sampling=sampling)
        if sampling != unit.sampling and message.sampling.step_us:
            raise BadRecordError(
                "bad-frames",
                f"the record has {sampling_text(sampling)}, but its epoch has {sampling_text(unit.sampling)}",
            )
        return unit

    def _segment(
        self, camera: str, unit: OpenBlock, record: Record, message: FramesRecord, draft: Draft
    ) -> OpenBlock:
        check_segment(message, self._grid, residual=self._policy.residual)
        check_times(message, unit.sampling.step_us)
        self._compare_vectors(camera, message)
        source, samples = reference_of(record), unit.sampling.block_samples
        if self._settings.canary is not None and not unit.watermark_us:
            unit = replace(unit, block=first_whole(message, samples))
        records = (*unit.records, BlockRecord(source, message))
        watermark = max(unit.watermark_us, message.segment.end_us)
        first = max(unit.block, closed_before(watermark, unit.sampling.step_us, samples))
        for index in blocks_between(records, unit.block, first, samples, unit.sampling.window_blocks):
            frames = members(records, index, samples)
            unit = replace(unit, carry=self._close(camera, unit, index, frames, source=source, draft=draft))
            if len(frames) == samples:
                unit = replace(unit, missing=None)
        records = tuple(entry for entry in records if reaches(entry, first, samples))
        return replace(unit, block=first, records=records, watermark_us=watermark)

    def _event(
        self, camera: str, unit: OpenBlock, record: Record, message: FramesRecord, draft: Draft
    ) -> OpenBlock:
        """Forward an event to prefill. A gap also closes the open block, if it has frames, and ends the
        epoch.
        """
        event = message.event
        if event.kind == StreamEvent.KIND_GAP:
            closed = self._cut(camera, unit, reference_of(record), draft)
            unit = replace(unit, block=closed, records=(), carry=None, ended=True)
        elif event.kind == StreamEvent.KIND_SKIPPED:
            unit = replace(unit, missing=Missing(event.cause or CAUSE_QUOTA, event.reason[:REASON_CHARS]))
        elif event.kind == StreamEvent.KIND_LATE:
            unit = replace(unit, late_block=unit.block)
        draft.write(TOKENS.name, camera, forwarded(message))
        return unit

    def _cut(self, camera: str, unit: OpenBlock, source: RecordRef, draft: Draft) -> int:
        """Close the open block early, if it has frames, because its epoch ends; return the next block's
        index.
        """
        frames = members(unit.records, unit.block, unit.sampling.block_samples)
        if not frames:
            return unit.block
        self._close(camera, unit, unit.block, frames, source=source, draft=draft)
        return unit.block + 1

    def _close(
        self,
        camera: str,
        unit: OpenBlock,
        index: int,
        frames: Sequence[Member],
        *,
        source: RecordRef,
        draft: Draft,
    ) -> Carry | None:
        """Write a block (`BlockCloser.close`); if the camera is over its quota, write it without frames."""
        before = len(draft.tensors)
        try:
            if frames:
                self._keeper.check(camera)
            return self.closer.close(camera, unit, index, frames, source=source, draft=draft)
        except CameraQuotaError as error:
            self._undo(draft, before)
            draft.counts["over_quota"] += 1
            reason = f"quota: {error}"
            _log.warning("block skipped", camera=camera, block=index, reason=reason)
            unit = replace(unit, missing=Missing(CAUSE_QUOTA, reason))
            return self.closer.close(camera, unit, index, [], source=source, draft=draft)

    def _compare_sampling(self, camera: str, sampling: Sampling) -> None:
        """Warn if the records' sampling, which is used, differs from this service's settings."""
        if sampling == self._settings.sampling:
            self._warned.discard((camera, "sampling"))
        elif self._warns(camera, "sampling"):
            _log.warning(
                "decode and this service have different values of LOOKOUT_FPS, LOOKOUT_STRIDE_S or "
                "LOOKOUT_WINDOW_S: decode's values are used; give both the same",
                camera=camera,
                records=sampling_text(sampling),
                settings=sampling_text(self._settings.sampling),
            )

    def _compare_vectors(self, camera: str, message: FramesRecord) -> None:
        """Warn if luma is used because decode did not gather the motion vectors that the policy needs."""
        needed, gathered = self._policy.gathers, message.segment.facts.gather
        if needed is not None and gathered != needed.value and self._warns(camera, "vectors"):
            _log.warning(
                "the masks need motion vectors, which decode did not gather, so luma is used: give decode "
                "the same LOOKOUT_PRESET and LOOKOUT_PRUNING",
                camera=camera,
                needed=needed.value,
                gathered=gathered or "nothing",
            )

    def _warns(self, camera: str, what: str) -> bool:
        """Return whether to log a warning, which happens only once per camera."""
        new = (camera, what) not in self._warned
        self._warned.add((camera, what))
        return new
