"""Turns one camera's token records into outcomes of windows."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

from lookout.errors import BadRecordError
from lookout.past.erasures import Fence
from lookout.runtime.worker import DeadLetter, Delivery, Record, RecordSource, StoredCheckpoint, digest
from lookout.services.prefill.asking import WindowAsker
from lookout.services.prefill.loading import WindowRecord
from lookout.services.prefill.metrics import EVENTS, REASONS, DeviceSeconds
from lookout.services.prefill.remembering import ChapterLanes
from lookout.services.prefill.settings import PrefillSettings
from lookout.services.prefill.watches import Active, Watches
from lookout.services.prefill.window import OpenWindow, window_time
from lookout.streams import Cause, NoAnswer
from lookout.streams.chains import cause_of, check_block, foreign_reason, stream_name
from lookout.streams.chains.gates import Gates
from lookout.streams.chains.verdicts import WindowTime, output, unanswered
from lookout.streams.stages import Camera, Draft, KeyedStage
from lookout.v1.lineage_pb2 import StreamEvent
from lookout.v1.state_pb2 import Checkpoint
from lookout.v1.tokens_pb2 import TokensRecord
from lookout.v1.verdicts_pb2 import Verdict
from lookout.wire import TOKENS, VERDICTS, WireError, received, tenant_of

#: raise this when windows are decided differently, so that old checkpoints are unusable
STATE_VERSION = 1


class PrefillHandler(KeyedStage[OpenWindow]):
    """Decides window k when block k arrives. A window reuses the previous window's KV.

    If block k has no frames, window k gets the outcome `gap`. A gap event writes one more window with the
    outcome `gap` and drops the epoch's state. Late events and records of windows that are already decided are
    ignored.

    Args:
        settings: Prefill's settings.
        watches: The watches whose questions are asked.
        asker: Decides windows.
        records: Rereads the open window's records after a restart.
        model_digest: Digest of the model.
        wait_for_watches: Returns after watches.v1 has been read up to an offset.
        memory: Writes the KV of committed windows into chapters; None: nothing is remembered.
        fence: The erasures in force.

    Attributes:
        device_seconds: Counts the device seconds that committed verdicts cost.
    """

    events = EVENTS
    reasons = REASONS
    source_topic = TOKENS.name

    def __init__(
        self,
        settings: PrefillSettings,
        watches: Watches,
        asker: WindowAsker,
        *,
        records: RecordSource,
        model_digest: str = "",
        wait_for_watches: Callable[[int], object] = lambda offset: None,
        memory: ChapterLanes | None = None,
        fence: Fence | None = None,
    ) -> None:
        super().__init__(records, fence)
        self.config_digest = digest(
            "prefill", STATE_VERSION, model_digest, settings.window_s, settings.stride_s, settings.fps
        )
        self.shared_settings = settings.shared
        self._settings, self._watches, self._asker = settings, watches, asker
        self._model_digest, self._memory = model_digest, memory
        self._wait_for_watches = wait_for_watches
        self.device_seconds = DeviceSeconds()

    def begin(self, camera: str) -> OpenWindow:
        """See `KeyedStage.begin`."""
        return OpenWindow(self._asker.runner.rule.begin())

    def restore(self, camera: str, stored: StoredCheckpoint) -> OpenWindow:
        """See `KeyedStage.restore`."""
        message, unit = stored.checkpoint.prefill, self.begin(camera)
        unit.chain.key_every = min(unit.chain.key_every, message.key_every or unit.chain.key_every)
        return replace(
            unit,
            epoch=message.epoch,
            last=message.last_window if message.any else None,
            watches_offset=message.watches_offset,
            watermark_us=message.watermark_us,
            gates=Gates.of(message.gates),
        )

    def offsets(self, stored: StoredCheckpoint) -> Sequence[int]:
        """See `KeyedStage.offsets`."""
        if stored.config_changed:  # windows are cut differently now, so the stored blocks fit none of them
            return ()
        self._wait_for_watches(stored.checkpoint.prefill.watches_offset)
        return stored.checkpoint.prefill.offsets

    def resume(self, unit: OpenWindow, records: Sequence[Record], stored: StoredCheckpoint) -> OpenWindow:
        """See `KeyedStage.resume`. If blocks are missing, the window's coverage is lower."""
        members = [self._held(record.offset, received(TokensRecord, record)) for record in records]
        return replace(unit, records=tuple(members))

    def checkpoint(self, unit: OpenWindow) -> Checkpoint:
        """See `KeyedStage.checkpoint`."""
        return Checkpoint(prefill=unit.message(self._asker.runner.rule.longest))

    def leave(self, state: Camera[OpenWindow]) -> None:
        """Free the tokens and the KV of the camera's current epoch."""
        self._leave(state.camera, state.unit)

    def released(self, camera: str, partition: int) -> None:
        """See `Handler.released`."""
        self._asker.forget(camera)
        self.device_seconds.forget(camera)
        if self._memory is not None:
            self._memory.leave(camera)

    def committed(self, deliveries: Sequence[Delivery]) -> None:
        """See `Handler.committed`."""
        self.device_seconds.add(
            entry.output.value for entry in deliveries if entry.output.topic == VERDICTS.name
        )

    def join(self, camera: Camera[OpenWindow], record: Record, draft: Draft) -> OpenWindow | None:
        """Decide the window that a block closes, or handle a stream event. None: the record is ignored."""
        try:
            message = received(TokensRecord, record)
        except WireError as error:
            raise BadRecordError("bad-tokens", str(error)) from error
        if message.epoch < camera.unit.epoch:
            draft.counts["stale"] += 1
            return None
        match message.WhichOneof("body"):
            case "block":
                return self._block(camera, record, message, draft)
            case "event":
                return self._event(camera, message, draft)
            case _:
                raise BadRecordError("bad-tokens", "neither a block nor an event")

    def turn_down(
        self, camera: Camera[OpenWindow], record: Record, reason: DeadLetter, draft: Draft
    ) -> OpenWindow | None:
        """Write the outcomes for a block that cannot be used, after which the window starts empty. None: not
        even its window is known, or it is already decided.
        """
        try:
            message = received(TokensRecord, record)
        except WireError:
            return None
        if message.WhichOneof("body") != "block" or camera.unit.is_decided(
            message.epoch, message.block.index
        ):
            return None
        refusal = NoAnswer(Cause.REJECTED, f"{reason.reason}: {reason.detail}")
        span = window_time((WindowRecord(record.offset, message),))
        return self._unanswered(self._entered(camera, message), span, refusal, draft)

    def _block(
        self, camera: Camera[OpenWindow], record: Record, message: TokensRecord, draft: Draft
    ) -> OpenWindow | None:
        block = message.block
        if camera.unit.is_decided(message.epoch, block.index):
            draft.counts["stale"] += 1
            return None
        check_block(block)
        unit = self._entered(camera, message)
        if unit.answered is not None:
            unit = replace(unit, answered=unit.answered.after(block, self._settings.block_samples))
        records = self._asker.window([*unit.records, self._held(record.offset, message)])
        span = window_time(records)
        active = self._active(span)
        decided = self._asker.decide(unit, span, records, active.watches, record)
        if self._memory is not None and decided.plan is not None:
            born = self._memory.take(decided.plan, camera.camera, message.epoch, message.wall_offset_us)
            draft.then = None if born is None else partial(self._memory.enter, born)
        self._write(decided.verdicts, active, draft)
        keep = self._settings.window_blocks - 1
        open_records = decided.records[-keep:] if keep else ()  # not `[-0:]`, which would take all records
        if open_records:
            self._asker.leave(stream_name(message), open_records[0].record.block.index)
        gates = unit.gates.after(active.watches, decided.verdicts)
        unit = replace(unit, records=open_records, answered=decided.answered, gates=gates)
        return self._advanced(unit, span, active)

    def _event(self, camera: Camera[OpenWindow], message: TokensRecord, draft: Draft) -> OpenWindow | None:
        event = message.event
        if event.kind != StreamEvent.KIND_GAP:
            return None
        unit = self._entered(camera, message)
        window = 0 if unit.last is None else unit.last + 1
        span = WindowTime(
            message.camera,
            message.epoch,
            message.wall_offset_us,
            window,
            event.start_us,
            event.end_us,
            message.labels.tenant,
        )
        cause = cause_of(event.cause) or Cause.NO_FRAMES
        unit = self._unanswered(unit, span, NoAnswer(cause, event.reason), draft)
        self._leave(camera.camera, unit)
        return unit

    def _held(self, offset: int, message: TokensRecord) -> WindowRecord:
        """Make a record of the open window. A record of another model or sampling counts as lost, since a
        window must not mix them.
        """
        foreign = foreign_reason(message, self._model_digest, self._settings.sampling)
        return WindowRecord(
            offset, message, lost=foreign is not None, degraded=foreign is not None, foreign=foreign
        )

    def _active(self, span: WindowTime) -> Active:
        return self._watches.active(span.camera, span.start_wall_ms, tenant_of(span.tenant))

    def _entered(self, camera: Camera[OpenWindow], message: TokensRecord) -> OpenWindow:
        """Return the open window in the record's epoch, and free the tokens and KV of an earlier epoch.

        This must happen before the epoch's first window is decided, because its second window continues the
        first one's plan.
        """
        unit = camera.unit
        if message.epoch == unit.epoch:
            return unit
        self._leave(camera.camera, unit)
        return replace(
            unit, epoch=message.epoch, records=(), last=None, answered=None, watermark_us=0, gates=Gates()
        )

    def _leave(self, camera: str, unit: OpenWindow) -> None:
        unit.chain.plan, unit.chain.strides = None, {}
        self._asker.leave(f"{camera}/{unit.epoch}")

    def _unanswered(self, unit: OpenWindow, span: WindowTime, refusal: NoAnswer, draft: Draft) -> OpenWindow:
        """Write outcomes that say why a window has no answer; return the next open window, which has no
        records.
        """
        active = self._active(span)
        verdicts = [unanswered(span, watch, refusal) for watch in active.watches]
        self._write(verdicts, active, draft)
        gates = unit.gates.after(active.watches, verdicts)
        return self._advanced(replace(unit, records=(), answered=None, gates=gates), span, active)

    @staticmethod
    def _advanced(unit: OpenWindow, span: WindowTime, active: Active) -> OpenWindow:
        watermark = max(unit.watermark_us, span.end_us)
        return replace(unit, last=span.window, watermark_us=watermark, watches_offset=active.offset)

    @staticmethod
    def _write(verdicts: Sequence[Verdict], active: Active, draft: Draft) -> None:
        counts = draft.counts
        for verdict in verdicts:
            verdict.watches_offset = active.offset
            counts[Verdict.Outcome.Name(verdict.outcome).removeprefix("OUTCOME_").lower()] += 1
            if verdict.basis:
                counts[verdict.basis] += 1
            counts["incomplete"] += verdict.degraded
            counts["damaged"] += verdict.damaged > 0
            draft.outputs.append(output(verdict))
        counts["unwatched"] += not verdicts
