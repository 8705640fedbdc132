"""Turns one camera's segments into frames records, and decides its epochs and stream time."""

import time
from collections.abc import Callable
from dataclasses import replace

import structlog

from lookout.past.erasures import Fence
from lookout.rules import FORGOTTEN
from lookout.rules.masks import Masks
from lookout.runtime.observe import LimitedLog
from lookout.runtime.store import CameraQuotaError, TensorStore
from lookout.runtime.tenants import TenantUsage
from lookout.runtime.worker import DeadLetter, Record, RecordSource, Result, StoredCheckpoint, digest
from lookout.services.decode.advice import Advice
from lookout.services.decode.epoch import OpenEpoch
from lookout.services.decode.health import HealthWriter
from lookout.services.decode.joining import SegmentJoiner, use
from lookout.services.decode.metrics import EVENTS, REASONS
from lookout.services.decode.quota import LeftOutCount, Usage
from lookout.services.decode.segments import SegmentReader
from lookout.services.decode.settings import DecodeSettings
from lookout.services.decode.stream import (
    began_ms,
    labels_of,
)
from lookout.services.decode.writing import FramesWriter
from lookout.streams.filmed import SegmentDecoder
from lookout.streams.stages import (
    Camera,
    Draft,
    ProducingStage,
)
from lookout.v1.lineage_pb2 import STAGE_FRAMES
from lookout.v1.state_pb2 import Checkpoint
from lookout.wire import headers, tenant_of

#: raise this number when stream time or motion is decided differently, so that old checkpoints are not used
STATE_VERSION = 2
#: maximum number of cameras whose quota usage is remembered after they moved to another partition
_LEFT = 10_000

_log = structlog.get_logger(__name__)


class DecodeHandler(ProducingStage[OpenEpoch]):
    """Reads camera.segments.v1 and writes frames.v1; pixels go to the tensor store.

    A segment continues the epoch if it begins within one window after the end of the previous segment, or
    overlaps that one by less than `overlap_s`. A segment whose whole time is already written is late. Any
    other jump of the container's clock, or a segment after a silence, ends the epoch with a gap and opens the
    next one.
    """

    tick_every = 0.5
    events = EVENTS
    reasons = REASONS

    def __init__(
        self,
        settings: DecodeSettings,
        decoder: SegmentDecoder,
        store: TensorStore,
        records: RecordSource,
        *,
        clock: Callable[[], float] = time.monotonic,
        wall_ms: Callable[[], float] = lambda: time.time() * 1000,
        backend: str = "software",
        fence: Fence | None = None,
        tenants: TenantUsage | None = None,
        masks: Masks | None = None,
        asks_for_outages: Callable[[str, str], bool] = lambda *_: False,
    ) -> None:
        super().__init__(store, records, fence, clock)
        self._tenants = tenants or TenantUsage(
            settings.quotas, ("bytes", "cameras"), interval_s=settings.tenant_interval_s
        )
        self._settings = settings
        self._advice = Advice(settings.claim_s, clock)
        self._left: dict[str, Usage] = {}  # quota usage of cameras that moved to another partition
        self.reader = SegmentReader(
            settings, decoder, records, self._fence, backend, masks=masks, clock=clock
        )
        self._health = HealthWriter(asks_for_outages, on=settings.camera_health)
        self._writer = FramesWriter(settings, self.reader, self.put, LimitedLog(_log, clock), self._health)
        self._joiner = SegmentJoiner(
            settings, self.reader, self._writer, self._advice, self._tenants, clock=clock, wall_ms=wall_ms
        )
        self.config_digest = digest(
            STATE_VERSION,
            self.reader.pixels,
            repr(settings.gather),
            settings.step_us,
            settings.block_samples,
            settings.window_blocks,
            settings.overlap_s,
        )
        model_input = f"{settings.input_width}x{settings.input_height}"
        self.shared_settings = {**settings.shared, "input": model_input}
        store.makes(STAGE_FRAMES, self.reader.materialize)

    def begin(self, camera: str) -> OpenEpoch:
        """See `KeyedStage.begin`."""
        return OpenEpoch(usage=self._left.get(camera, Usage()))

    def restore(self, camera: str, stored: StoredCheckpoint) -> OpenEpoch:
        """See `KeyedStage.restore`."""
        return OpenEpoch.of(stored.checkpoint.decode, config_changed=stored.config_changed)

    def checkpoint(self, unit: OpenEpoch) -> Checkpoint:
        """See `KeyedStage.checkpoint`."""
        return Checkpoint(decode=unit.message())

    def revoked(self, partition: int) -> None:
        """See `Handler.revoked`."""
        self._advice.release(partition)
        super().revoked(partition)

    def join(self, camera: Camera[OpenEpoch], record: Record, draft: Draft) -> OpenEpoch:
        """Add a segment to the camera's stream, or process the notice that the camera continues in another
        partition.
        """
        camera.unit = replace(
            camera.unit, usage=camera.unit.usage.at(record.timestamp_ms, self._settings.quota)
        )
        if not record.value and headers.text(record.headers, headers.MOVED) is not None:
            return self._moved(camera, draft)
        unit = self._joined(camera, self._counted(camera, draft, record.timestamp_ms), record, draft)
        if self._advice.two_partitions(record):
            draft.counts["in_two_partitions"] += 1
        return unit

    def turn_down(
        self, camera: Camera[OpenEpoch], record: Record, reason: DeadLetter, draft: Draft
    ) -> OpenEpoch:
        """Charge a segment that cannot be used to the camera's quota.

        The segment does not end a silence, because a camera whose segments cannot be read counts as silent.
        """
        use(camera, failures=1)
        unit = self._counted(camera, draft, record.timestamp_ms)
        return self._health.refused(camera.camera, unit, record, draft)

    def tick(self, state: Camera[OpenEpoch], now: float) -> Result | None:
        """Write a gap once a camera has been silent for too long, forget a camera that stays silent, and
        write the dead letter of skipped segments when their interval is over. None: nothing is due.

        Only observed time counts as silence: ticks stop during a backlog or without a broker, and neither
        means that the camera is silent.
        """
        unit, now_ms = state.unit, now * 1000
        if unit.stream.open and unit.seen.watch(now) >= self._settings.silence_s:
            return self.change(state, lambda draft: self._offline(state, draft))
        if not unit.stream.open and unit.is_gone(now_ms, self._settings):
            return self.change(state, lambda draft: self._gone(state, draft))
        return self._due(state, now_ms)

    def passed(self, state: Camera[OpenEpoch], record_ms: int) -> Result | None:
        """Write a gap once a camera has been silent for too long while other cameras of its partition sent
        records; None: no gap is due.
        """
        stream = state.unit.stream
        quiet_ms = record_ms - stream.arrived_ms
        if stream.open and stream.arrived_ms > 0 and quiet_ms > self._settings.silence_s * 1000:
            return self.change(state, lambda draft: self._offline(state, draft))
        return self._due(state, record_ms)

    def forget(self, state: Camera[OpenEpoch]) -> Result | None:
        """Write the dead letter of skipped segments and close the camera's incident, before the camera is
        forgotten.

        Neither could happen later, because the camera's checkpoint is deleted.
        """

        def ended(draft: Draft) -> OpenEpoch:
            return self._health.end(state.camera, self._counted(state, draft), FORGOTTEN, draft)

        return self.change(state, ended)

    def _joined(self, camera: Camera[OpenEpoch], unit: OpenEpoch, record: Record, draft: Draft) -> OpenEpoch:
        began_us = began_ms(record) * 1000
        if (erasure := self._fence.hides(camera.camera, began_us, began_us)) is not None:
            return self._writer.left_out(camera.camera, unit, record, draft, erased=erasure.id)
        tenant = tenant_of(labels_of(record).tenant)
        # The camera's own quota is checked before its tenant's, because its message is more specific.
        exceeded = unit.usage.exceeded(self._settings.quota) or self._tenants.refusal(tenant, camera.camera)
        if exceeded is not None:
            return self._writer.left_out(camera.camera, unit, record, draft, quota=exceeded)
        try:
            # Checked before decoding, so that a camera whose unread pixels fill its share of the store costs
            # no CPU time.
            self._keeper.check(camera.camera)
            unit = self._joiner.join(camera, unit, record, draft)
        except CameraQuotaError as error:
            unit = replace(unit, usage=camera.unit.usage)
            return self._writer.left_out(camera.camera, unit, record, draft, quota=f"quota: {error}")
        self._keeper.forget(camera.camera)
        unit.seen.heard()
        return unit

    def _moved(self, camera: Camera[OpenEpoch], draft: Draft) -> OpenEpoch:
        """End the epoch of a camera that continues in another partition, and forget the camera here.

        The gap is written even after a gap for silence, because the camera is not offline. The camera's quota
        usage is kept, because anyone who can write its segments can also write such a notice.
        """
        unit = camera.unit
        forgotten = self._forgotten(camera, draft)
        self._left[camera.camera] = unit.usage
        while len(self._left) > _LEFT:
            del self._left[next(iter(self._left))]
        if unit.stream.epoch:
            self._writer.gap(camera.camera, unit, "moved", draft)
            draft.counts["moved"] += 1
        return forgotten

    def _forgotten(self, camera: Camera[OpenEpoch], draft: Draft) -> OpenEpoch:
        self._counted(camera, draft)
        draft.forget = True
        return OpenEpoch()

    def _gone(self, camera: Camera[OpenEpoch], draft: Draft) -> OpenEpoch:
        self._health.end(camera.camera, camera.unit, FORGOTTEN, draft)
        return self._forgotten(camera, draft)

    def _counted(self, camera: Camera[OpenEpoch], draft: Draft, now_ms: float | None = None) -> OpenEpoch:
        """Write the dead letter of skipped segments and restart their count; return the camera's new state.

        Args:
            camera: The camera; it is not changed.
            draft: Takes the dead letter.
            now_ms: Unix milliseconds; write only if the interval is over by then. None: write in any case.
        """
        unit = camera.unit
        due = unit.left_out.segments is not None and (
            now_ms is None or unit.left_out.due(now_ms, self._settings.quota)
        )
        if not due:
            return unit
        draft.outputs.append(unit.left_out.letter(camera.camera, unit.left_out_why))
        return replace(unit, left_out=LeftOutCount())

    def _due(self, camera: Camera[OpenEpoch], now_ms: float) -> Result | None:
        if not camera.unit.left_out.due(now_ms, self._settings.quota):
            return None
        return self.change(camera, lambda draft: self._counted(camera, draft))

    def _offline(self, camera: Camera[OpenEpoch], draft: Draft) -> OpenEpoch:
        return self._writer.gap(camera.camera, camera.unit, camera.unit.stream.silence, draft)
