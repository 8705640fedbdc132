"""One camera's token records become outcomes."""

import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Protocol

import structlog

from lookout import models
from lookout.errors import BadRecordError, RecordsGoneError
from lookout.models.engines import EngineError, Question
from lookout.models.windows import WindowError, WindowPlan
from lookout.past.erasures import Fence
from lookout.past.memory.chapters import Born
from lookout.runtime.fairness import FairShares
from lookout.runtime.tenants import TenantUsage
from lookout.runtime.worker import (
    DeadLetter,
    Delivery,
    Handler,
    Record,
    RecordSource,
    Result,
    StoredCheckpoint,
    digest,
)
from lookout.services.prefill.idle import Answered
from lookout.services.prefill.loading import BlockLoader, LostTokensError, WindowRecord
from lookout.services.prefill.overload import OverloadPolicy, Standing
from lookout.services.prefill.settings import PrefillSettings
from lookout.services.prefill.shares import DeviceShares
from lookout.services.prefill.watches import Active, Watches
from lookout.streams import (
    AnsweredWindow,
    BlockFacts,
    Cause,
    ChainRunner,
    NoAnswer,
    NoAnswerKind,
    WindowChain,
    WindowRule,
)
from lookout.streams.chains import cause_of, check_block, foreign_reason, plan_digest, stream_name
from lookout.streams.chains.verdicts import WindowTime, answered, output, unanswered
from lookout.v1 import lineage_pb2, tokens_pb2, verdicts_pb2
from lookout.v1.state_pb2 import Checkpoint, PrefillState
from lookout.wire import TOKENS, WireError, received, tenant_of

#: what is counted, in `lookout_events_total`
EVENTS = {
    "answered": "outcomes with an answer",
    "gap": "outcomes of windows in which there was no picture",
    "skipped": "outcomes of windows left out by overload or by a quota",
    "degraded": "outcomes of windows that could not be answered",
    "incomplete": "answers for which the tokens of some blocks were missing or came late",
    "damaged": "outcomes of windows of which samples are damaged",
    "key": "answers whose window was computed in full",
    "full": "answers whose window continued a chain, but was computed in full",
    "incremental": "answers whose window reused the KV of frames of the window before",
    "idle": "answers repeated because nothing had changed",
    "unwatched": "windows that no watch asks about",
    "stale": "records of windows that were decided already",
}

#: raise when windows are decided differently and old checkpoints cannot be continued
STATE_VERSION = 1

Verdict = verdicts_pb2.Verdict
Event = lineage_pb2.StreamEvent
Tokens = tokens_pb2.TokensRecord
_log = structlog.get_logger(__name__)


@dataclass(slots=True)
class CameraState:
    """The open window of one camera.

    Attributes:
        chain: What the engine holds of the camera. Never restored: a state that was loaded starts with a key
            window.
        last: The newest window decided in `epoch`.
        answered: What idle windows may repeat; never restored either.
        born: KV of the block of the window that was just decided, which is kept once that is committed.
    """

    camera: str
    chain: WindowChain
    epoch: int = 0
    window: list[WindowRecord] = field(default_factory=list)
    last: int | None = None
    watches_offset: int = 0
    watermark_us: int = 0
    answered: Answered | None = None
    born: Born | None = None


class Remembers(Protocol):
    """What keeps committed blocks for questions about the past (`lookout.services.prefill.remembering`)."""

    def take(self, plan: WindowPlan, camera: str, epoch: int, origin_us: int) -> Born | None: ...

    def enter(self, born: Born) -> None: ...

    def leave(self, camera: str) -> None: ...


class PrefillHandler(Handler[CameraState]):
    """Decides window k when block k arrives; windows continue the KV of the window before.

    A block without frames gives the outcome `gap` for its window; so does a gap event, for the window after
    the last, and the epoch's state is dropped. Late events and records of what was decided already give
    nothing.
    """

    events = EVENTS

    def __init__(
        self,
        settings: PrefillSettings,
        watches: Watches,
        loader: BlockLoader,
        runner: ChainRunner,
        *,
        log: RecordSource,
        model_digest: str = "",
        wait_for_watches: Callable[[int], object] = lambda offset: None,
        on_audit: Callable[[float], object] = lambda difference: None,
        clock: Callable[[], float] = time.time,
        memory: Remembers | None = None,
        fence: Fence | None = None,
        tenants: TenantUsage | None = None,
        shares: DeviceShares | None = None,
        folder: Path | None = None,
    ) -> None:
        """`folder` is the checkpoint, which may list the questions that it was trained for; None: none."""
        self._writes = folder is None or models.writes_text(folder)
        self._listed = None if folder is None else models.listed_questions(folder)
        self._memory, self._fence = memory, fence or Fence()
        self._tenants = tenants or TenantUsage(
            settings.quotas, ("questions", "device_s"), interval_s=settings.tenant_interval_s, clock=clock
        )
        self._shares = shares or DeviceShares(FairShares(), self._tenants)
        self.config_digest = digest(
            "prefill", STATE_VERSION, model_digest, settings.window_s, settings.stride_s, settings.fps
        )
        self.shared_settings = settings.shared
        self._settings = settings
        self._watches = watches
        self._loader = loader
        self._runner = runner
        self._plan_digest = plan_digest(runner.rule.planner, reuse=runner.rule.reuse)
        self._records = log
        self._model_digest = model_digest
        self._wait_for_watches = wait_for_watches
        self._overload = OverloadPolicy(settings, clock)
        self._rule = WindowRule(settings.window_blocks, settings.max_damage)
        self._current: dict[str, CameraState] = {}
        self._on_audit = on_audit

    # -- state

    def load(self, camera: str, stored: StoredCheckpoint | None) -> CameraState:
        """The open window, read again from the records its checkpoint names."""
        state = self._loaded(camera, stored)
        self._current[camera] = state
        return state

    def released(self, camera: str, partition: int) -> None:
        """Another worker has the camera now, or its state starts again: its KV is not needed any more."""
        state = self._current.pop(camera, None)
        if state is not None:
            self._leave(state)
        self._shares.forget(camera)
        if self._memory is not None:
            self._memory.leave(camera)

    def ends(self, camera: str, active_ms: float) -> bool:
        """A camera that was erased whole is forgotten once it is silent."""
        return self._fence.ends(camera, active_ms)

    def erase(self, camera: str) -> int:
        """Free what is computed of a camera's present epoch, tokens and KV: its next window is a key
        window, of blocks that were not erased.

        Returns:
            Streams that were let go of. May be called on any thread.
        """
        state = self._current.get(camera)
        if state is None:
            return 0
        stream = f"{camera}/{state.epoch}"
        self._runner.forget(stream)
        self._loader.leave(stream)
        return 1

    def committed(self, deliveries: Sequence[Delivery]) -> None:
        """The windows are decided for good: what was born in them is remembered."""
        for delivery in deliveries:
            if self._memory is not None and delivery.output.tag is not None:
                self._memory.enter(delivery.output.tag)

    def _loaded(self, camera: str, stored: StoredCheckpoint | None) -> CameraState:
        chain = self._runner.rule.begin()
        if stored is None:
            return CameraState(camera, chain)
        checkpoint = stored.checkpoint.prefill
        chain.key_every = min(chain.key_every, checkpoint.key_every or chain.key_every)
        state = CameraState(
            camera,
            chain,
            epoch=checkpoint.epoch,
            last=checkpoint.last_window if checkpoint.any else None,
            watches_offset=checkpoint.watches_offset,
            watermark_us=checkpoint.watermark_us,
        )
        if stored.config_changed:  # other windows: the blocks at hand make none of them
            return state
        self._wait_for_watches(checkpoint.watches_offset)
        try:
            records = self._records.read(TOKENS.name, stored.partition, checkpoint.offsets)
        except RecordsGoneError as error:
            # Outcomes stay one each; the next windows see less, and say so in their coverage.
            _log.warning("the open window is lost", camera=camera, error=str(error))
            records = []
        state.window = [
            self._held(stored_record.offset, received(Tokens, stored_record)) for stored_record in records
        ]
        return state

    def handle(self, state: CameraState, record: Record) -> Result:
        """A block or an event of a stream."""
        try:
            message = received(Tokens, record)
        except WireError as error:
            raise BadRecordError("bad-tokens", str(error)) from error
        if message.epoch < state.epoch:
            return Result(counts={"stale": 1})
        match message.WhichOneof("body"):
            case "block":
                return self._block(state, record, message)
            case "event":
                return self._event(state, message)
            case _:
                raise BadRecordError("bad-tokens", "neither a block nor an event")

    def rejected(self, state: CameraState, record: Record, reason: DeadLetter) -> Result | None:
        """A block that nothing can be made of still has its outcomes; the window starts again behind it."""
        try:
            message = received(Tokens, record)
        except WireError:
            return None
        if (
            message.epoch < state.epoch
            or message.WhichOneof("body") != "block"
            or self._is_stale(state, message)
        ):
            return None
        span = _span([WindowRecord(record.offset, message)])
        active = self._watches.active(span.camera, span.start_wall_ms, tenant_of(span.tenant))
        refusal = NoAnswer(Cause.REJECTED, f"{reason.reason}: {reason.detail}")
        verdicts = [unanswered(span, watch, refusal) for watch in active.watches]
        self._enter(state, message.epoch)
        self._advance(state, message, [], span)
        state.watches_offset = active.offset
        return self._result(state, verdicts)

    # -- blocks

    def _block(self, state: CameraState, record: Record, message: Tokens) -> Result:
        block = message.block
        if self._is_stale(state, message):
            return Result(counts={"stale": 1})
        check_block(block)
        self._enter(state, message.epoch)
        window = self._window(state, record, message)
        span = _span(window)
        if state.answered is not None:
            state.answered = state.answered.after(block, self._settings.block_samples)
        active, verdicts = self._decide(state, span, window, record)
        self._advance(state, message, window, span)
        state.watches_offset = active.offset
        if self._current.get(state.camera) is not state:
            self._leave(state)  # released while it was computed: nobody else will free its KV
        return self._result(state, verdicts)

    def _is_stale(self, state: CameraState, message: Tokens) -> bool:
        """Whether the block's window is decided already."""
        decided = state.last if message.epoch == state.epoch else None
        return decided is not None and message.block.index <= decided

    def _held(self, offset: int, message: Tokens) -> WindowRecord:
        """A record of the window. Of another model or sampling it counts as lost: no window mixes them."""
        foreign = foreign_reason(message, self._model_digest, self._settings.sampling)
        return WindowRecord(
            offset, message, lost=foreign is not None, degraded=foreign is not None, foreign=foreign
        )

    def _window(self, state: CameraState, record: Record, message: Tokens) -> list[WindowRecord]:
        """The records of the window that closes with this one."""
        window = [*state.window, self._held(record.offset, message)]
        return window[-self._rule.length([member.record.block.index for member in window]) :]

    def _decide(
        self, state: CameraState, span: WindowTime, window: list[WindowRecord], record: Record
    ) -> tuple[Active, list[verdicts_pb2.Verdict]]:
        active = self._watches.active(span.camera, span.start_wall_ms, tenant_of(span.tenant))
        if not active.watches:
            return active, []
        verdicts = self._idle(state, span, window, active)
        if verdicts is None:
            verdicts = self._asked(state, span, window, active, record)
            state.answered = self._remembered(window, verdicts)
        facts = self._facts(window)
        # The tower encoded the newest block for all questions, whatever became of the window.
        tower_us = window[-1].record.block.tower_us
        for verdict in verdicts:
            verdict.cost.device_us += tower_us // len(verdicts)
            verdict.coverage = self._rule.coverage(facts)
            verdict.damaged = self._rule.damage(facts)
            verdict.model_digest = self._model_digest
        return active, verdicts

    def _idle(
        self, state: CameraState, span: WindowTime, window: list[WindowRecord], active: Active
    ) -> list[verdicts_pb2.Verdict] | None:
        """The last answers once more, where nothing has changed since."""
        age = self._settings.idle_age_s
        if age is None or state.answered is None or window[-1].lost:
            return None
        return state.answered.again(span, active.watches, window[-1].record.block, age)

    def _remembered(
        self, window: list[WindowRecord], verdicts: list[verdicts_pb2.Verdict]
    ) -> Answered | None:
        """What the windows behind this one may repeat."""
        settings, blocks = self._settings, [member.record.block for member in window]
        complete_window = len(blocks) == settings.window_blocks and not any(member.lost for member in window)
        complete = all(verdict.outcome == Verdict.OUTCOME_ANSWERED for verdict in verdicts)
        if settings.idle_age_s is None or not complete_window or not complete:
            return None
        return Answered.of(blocks, verdicts, settings.block_samples, settings.idle_luma)

    def _asked(
        self,
        state: CameraState,
        span: WindowTime,
        window: list[WindowRecord],
        active: Active,
        record: Record,
    ) -> list[verdicts_pb2.Verdict]:
        """The window's outcomes, computed, or why there is no answer."""
        refusal = self._refusal(span, window, record, active)
        if refusal is None:
            try:
                return self._answer(state, span, window, active, shed=self._overload.sheds(record))
            except LostTokensError as error:
                refusal = NoAnswer(Cause.TOKENS_LOST, str(error))
            except (EngineError, WindowError) as error:
                refusal = NoAnswer(Cause.ENGINE, str(error))
        newest = window[-1].record.block
        return [unanswered(span, watch, refusal, newest=newest) for watch in active.watches]

    def _refusal(
        self, span: WindowTime, window: Sequence[WindowRecord], record: Record, active: Active
    ) -> NoAnswer | None:
        """Why a window is not even tried. Overload is no reason for a window without a picture."""
        refusal = self._rule.refusal(self._facts(window))
        if refusal is not None and refusal.kind is not NoAnswerKind.DEGRADED:
            return refusal
        tenant = tenant_of(span.tenant)
        if (quota := self._tenants.refusal(tenant)) is not None:
            return NoAnswer(Cause.QUOTA, quota)
        standing = Standing.of(window[-1].record.labels.priority, active.watches)
        overload = self._overload.skips(
            record, span.window, standing, lambda alone: self._shares.excess(tenant, alone=alone)
        )
        return refusal if overload is None else NoAnswer(Cause.OVERLOAD, overload)

    def _facts(self, window: Sequence[WindowRecord]) -> list[BlockFacts]:
        return [member.facts(self._settings.block_samples) for member in window]

    def _answer(
        self,
        state: CameraState,
        span: WindowTime,
        window: list[WindowRecord],
        active: Active,
        *,
        shed: bool,
    ) -> list[verdicts_pb2.Verdict]:
        """The window's verdicts; with `shed` without descriptions and without an audit."""
        describe = 0 if shed or not self._writes else self._settings.describe_tokens
        questions = [
            Question(watch.id, watch.question, describe if watch.describe else 0) for watch in active.watches
        ]
        blocks = self._loader.load(window)
        tenant = tenant_of(span.tenant)
        self._shares.note(state.camera, tenant)
        self._tenants.add(tenant, "questions", len(questions))
        outcome = self._runner.ask(state.chain, blocks, questions, audited=not shed)
        verdicts = self._verdicts(state, span, window, active, outcome)
        if self._memory is not None:
            origin_us = window[-1].record.wall_offset_us
            state.born = self._memory.take(outcome.plan, state.camera, state.epoch, origin_us)
        for verdict, watch in zip(verdicts, active.watches, strict=True):
            if watch.describe and not describe:
                verdict.reason = self._overload.shed_reason if shed else "the model writes no text"
        return verdicts

    def _verdicts(
        self,
        state: CameraState,
        span: WindowTime,
        window: list[WindowRecord],
        active: Active,
        asked: AnsweredWindow,
    ) -> list[verdicts_pb2.Verdict]:
        blocks = [member.record.block for member in window if not member.lost]
        verdicts = []
        for watch, answer in zip(active.watches, asked.answer.answers, strict=True):
            verdict = answered(span, watch, asked, answer, blocks=blocks)
            listed = self._listed
            verdict.untrained = listed is not None and models.find_listed(listed, watch.question) is None
            verdict.degraded = any(member.degraded for member in window)
            verdict.key_every = state.chain.key_every
            verdict.plan_digest = self._plan_digest
            verdicts.append(verdict)
        if asked.audit is not None:
            self._on_audit(asked.audit.difference)
        return verdicts

    def _result(self, state: CameraState, verdicts: Sequence[verdicts_pb2.Verdict]) -> Result:
        for verdict in verdicts:
            verdict.watches_offset = state.watches_offset
        counts = Counter(Verdict.Outcome.Name(verdict.outcome)[8:].lower() for verdict in verdicts)
        counts.update(verdict.basis for verdict in verdicts if verdict.basis)
        counts["incomplete"] = sum(verdict.degraded for verdict in verdicts)
        counts["damaged"] = sum(verdict.damaged > 0 for verdict in verdicts)
        counts["unwatched"] = not verdicts
        outputs = [output(verdict) for verdict in verdicts]
        born, state.born = state.born, None
        if born is not None:
            # All outputs of a record are committed together.
            outputs[0] = replace(outputs[0], tag=born)
        return Result(outputs, self._checkpoint(state), counts=counts)

    # -- events

    def _event(self, state: CameraState, message: Tokens) -> Result:
        event = message.event
        if event.kind != Event.KIND_GAP:
            return Result()
        self._enter(state, message.epoch)
        window = 0 if state.last is None else state.last + 1
        span = WindowTime(
            message.camera,
            message.epoch,
            message.wall_offset_us,
            window,
            event.start_us,
            event.end_us,
            message.labels.tenant,
        )
        active = self._watches.active(span.camera, span.start_wall_ms, tenant_of(span.tenant))
        cause = cause_of(event.cause) or Cause.NO_FRAMES
        verdicts = [unanswered(span, watch, NoAnswer(cause, event.reason)) for watch in active.watches]
        self._advance(state, message, [], span)
        self._leave(state)
        state.watches_offset = active.offset
        return self._result(state, verdicts)

    # -- checkpoints

    def _enter(self, state: CameraState, epoch: int) -> None:
        """Let go of the epoch before, where a record begins another one.

        Before the first window of the epoch is decided: its plan is what the second window continues.
        """
        if epoch == state.epoch:
            return
        self._leave(state)
        state.epoch, state.last, state.window, state.answered = epoch, None, [], None
        state.watermark_us = 0

    def _advance(
        self, state: CameraState, message: Tokens, window: list[WindowRecord], decided: WindowTime
    ) -> None:
        """The next window needs all blocks of this one but the oldest."""
        state.last = decided.window
        state.watermark_us = max(state.watermark_us, decided.end_us)
        keep = self._settings.window_blocks - 1
        # `[-0:]` would be all of them.
        state.window = window[-keep:] if keep else []
        if not window:
            state.answered = None
        elif state.window:
            self._loader.leave(stream_name(message), state.window[0].record.block.index)

    def _leave(self, state: CameraState) -> None:
        """Let go of the KV and the tokens of the camera's present epoch."""
        state.chain.plan = None
        stream = f"{state.camera}/{state.epoch}"
        self._runner.forget(stream)
        self._loader.leave(stream)

    def _checkpoint(self, state: CameraState) -> Checkpoint:
        plan, key_every = state.chain.plan, state.chain.key_every
        return Checkpoint(
            prefill=PrefillState(
                epoch=state.epoch,
                offsets=[member.offset for member in state.window],
                last_window=state.last or 0,
                any=state.last is not None,
                watches_offset=state.watches_offset,
                watermark_us=state.watermark_us,
                since_key=0 if plan is None else plan.since_key,
                key_every=0 if key_every == self._runner.rule.longest else key_every,
            )
        )


def _span(window: Sequence[WindowRecord]) -> WindowTime:
    """The window that closes with the last of these records."""
    newest = window[-1].record
    return WindowTime(
        newest.camera,
        newest.epoch,
        newest.wall_offset_us,
        newest.block.index,
        window[0].record.block.start_us,
        newest.block.end_us,
        newest.labels.tenant,
    )
