"""One camera's token records become outcomes."""

import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import structlog

from lookout.engines import EngineError, Question, StreamFailedError, WindowAnswer, WindowRequest
from lookout.runtime import (
    BadRecordError,
    DeadLetter,
    Handler,
    Output,
    Record,
    RecordsGoneError,
    Result,
    StoredCheckpoint,
    TransientError,
    digest,
)
from lookout.services.prefill.blocks import check_block, empty_block, load_block, stream_name
from lookout.services.prefill.idle import Answered
from lookout.services.prefill.settings import PrefillSettings
from lookout.services.prefill.verdicts import (
    DIGITS,
    WindowTime,
    cost_of,
    evidence_of,
    outcome,
    output,
    show_activity,
)
from lookout.services.prefill.watches import Active, Watches
from lookout.store import LineageBrokenError, StoreError, TensorClient
from lookout.v1 import lineage_pb2, tokens_pb2, verdicts_pb2
from lookout.v1.state_pb2 import Checkpoint, PrefillState
from lookout.windows import Planner, StrideBlock, WindowError, WindowPlan
from lookout.wire import TOKENS, WireError, from_bytes

__all__ = ["CameraState", "PrefillHandler"]

#: raise when windows are decided differently and old checkpoints cannot be continued
STATE_VERSION = 1

Verdict = verdicts_pb2.Verdict
Event = lineage_pb2.StreamEvent
Tokens = tokens_pb2.TokensRecord
_log = structlog.get_logger(__name__)


class RecordSource(Protocol):
    """Where records are read again (`lookout.runtime.RecordReader`)."""

    def read(self, topic: str, partition: int, offsets: Iterable[int]) -> Sequence[Record]: ...


class Answers(Protocol):
    """What answers one window (`lookout.services.prefill.batcher.Batcher`)."""

    def answer(self, request: WindowRequest) -> WindowAnswer: ...


@dataclass(slots=True)
class WindowRecord:
    """One record of the open window. Its tokens are fetched for each window, mostly from the own store.

    `lost`: they can never be had again; `degraded`: some came, or were lost, out of the ordinary.
    """

    offset: int
    record: Tokens
    lost: bool = False
    degraded: bool = False


@dataclass(slots=True)
class CameraState:
    """The open window of one camera. `last` is the newest window decided in `epoch`; `answered` what idle
    windows may repeat (it is not kept over a takeover)."""

    camera: str
    epoch: int = 0
    window: list[WindowRecord] = field(default_factory=list)
    last: int | None = None
    watches_offset: int = 0
    watermark_us: int = 0
    answered: Answered | None = None


@dataclass(frozen=True, slots=True)
class _LostTokens:
    """Why a window has no answer."""

    kind: "verdicts_pb2.Verdict.Outcome"
    reason: str


class _LostError(Exception):
    """A block's tokens can never be had again."""


class PrefillHandler(Handler[CameraState]):
    """Decides window k when block k arrives; every window that is asked is computed in full.

    A block without frames gives the outcome `gap` for its window; so does a gap event, for the window after
    the last, and the epoch's state is dropped. Late events and records of what was decided already give
    nothing.
    """

    def __init__(
        self,
        settings: PrefillSettings,
        watches: Watches,
        client: TensorClient,
        answers: Answers,
        planner: Planner,
        *,
        log: RecordSource,
        model_digest: str = "",
        wait_for_watches: Callable[[int], object] = lambda offset: None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.config_digest = digest(
            "prefill", STATE_VERSION, model_digest, settings.window_s, settings.stride_s, settings.fps
        )
        self._settings = settings
        self._watches = watches
        self._client = client
        self._answers = answers
        self._planner = planner
        self._records = log
        self._model_digest = model_digest
        self._wait_for_watches = wait_for_watches
        self._clock = clock
        self._unavailable: dict[tuple[str, int], float] = {}  # since when a block's tokens cannot be had
        self.counts: Counter[str] = Counter()

    # -- state

    def load(self, camera: str, stored: StoredCheckpoint | None) -> CameraState:
        """The open window, read again from the records its checkpoint names."""
        if stored is None:
            return CameraState(camera)
        kept = stored.checkpoint.prefill
        last = kept.last_window if kept.any else None
        if stored.config_changed:  # other windows: the blocks at hand make none of them
            return CameraState(camera, kept.epoch, [], last, kept.watches_offset, kept.watermark_us)
        self._wait_for_watches(kept.watches_offset)
        try:
            records = self._records.read(TOKENS.name, stored.partition, kept.offsets)
        except RecordsGoneError as error:
            # Outcomes stay one each; the next windows see less, and say so in their coverage.
            _log.warning("the open window is lost", camera=camera, error=str(error))
            records = []
        window = [WindowRecord(record.offset, from_bytes(record.value, Tokens)) for record in records]
        return CameraState(camera, kept.epoch, window, last, kept.watches_offset, kept.watermark_us)

    def handle(self, state: CameraState, record: Record) -> Result:
        """A block or an event of a stream."""
        try:
            message = from_bytes(record.value, Tokens)
        except WireError as error:
            raise BadRecordError("bad-tokens", str(error)) from error
        if message.camera != record.camera:
            raise BadRecordError("bad-tokens", f"a record of camera {message.camera!r} under another key")
        if message.epoch < state.epoch:
            self.counts["stale"] += 1
            return Result()
        match message.WhichOneof("body"):
            case "block":
                return self._block(state, record, message)
            case "event":
                return self._event(state, message)
            case _:
                raise BadRecordError("bad-tokens", "neither a block nor an event")

    def rejected(self, state: CameraState, record: Record, reason: DeadLetter) -> Result | None:
        """A block that nothing can be made of still has its outcomes; the window starts anew behind it."""
        try:
            message = from_bytes(record.value, Tokens)
        except WireError:
            return None
        ours = message.camera == record.camera and message.epoch >= state.epoch
        if not ours or message.WhichOneof("body") != "block":
            return None
        if message.epoch == state.epoch and state.last is not None and message.block.index <= state.last:
            return None
        span = _span_of([WindowRecord(record.offset, message)])
        active = self._watches.active(span.camera, span.start_wall_ms)
        lost = _LostTokens(Verdict.OUTCOME_DEGRADED, f"{reason.reason}: {reason.detail}")
        verdicts = [outcome(span, watch, lost.kind, lost.reason) for watch in active.watches]
        self._advance(state, message, [], message.block.index)
        state.watches_offset = active.offset
        return Result([output(verdict) for verdict in verdicts], self._checkpoint(state))

    # -- blocks

    def _block(self, state: CameraState, record: Record, message: Tokens) -> Result:
        block = message.block
        last = state.last if message.epoch == state.epoch else None
        if last is not None and block.index <= last:
            self.counts["stale"] += 1
            return Result()
        check_block(block)
        window = self._window(state, record, message)
        if state.answered is not None:
            calm = message.epoch == state.epoch
            state.answered = state.answered.after(block, self._settings.samples) if calm else None
        active, outputs = self._decide(state, window, record)
        self._advance(state, message, window, block.index)
        state.watches_offset, state.watermark_us = active.offset, block.end_us
        return Result(outputs, self._checkpoint(state))

    def _window(self, state: CameraState, record: Record, message: Tokens) -> list[WindowRecord]:
        """The records of the window that closes with this one."""
        index = message.block.index
        held = [each for each in state.window if each.record.epoch == message.epoch]
        window = [*held, WindowRecord(record.offset, message)]
        first = max(0, index - self._settings.blocks + 1)
        window = [each for each in window if each.record.block.index >= first]
        expected = range(index - len(window) + 1, index + 1)
        if [each.record.block.index for each in window] != list(expected):
            return window[-1:]  # blocks are missing: the window starts anew
        return window

    def _decide(
        self, state: CameraState, window: list[WindowRecord], record: Record
    ) -> tuple[Active, list[Output]]:
        span = _span_of(window)
        active = self._watches.active(span.camera, span.start_wall_ms)
        if not active.watches:
            self.counts["unwatched"] += 1
            return active, []
        verdicts = self._idle(state, span, window, active)
        if verdicts is None:
            verdicts = self._asked(span, window, active, record)
            state.answered = self._remembered(window, verdicts)
        for verdict in verdicts:
            verdict.coverage = self._coverage(window)
            verdict.model_digest = self._model_digest
        self.counts.update(Verdict.Outcome.Name(verdict.outcome) for verdict in verdicts)
        return active, [output(verdict) for verdict in verdicts]

    def _idle(
        self, state: CameraState, span: WindowTime, window: list[WindowRecord], active: Active
    ) -> list[verdicts_pb2.Verdict] | None:
        """The last answers once more, where nothing has changed since."""
        age, newest = self._settings.idle_age_s, window[-1].record.block
        if age is None or state.answered is None or self._is_foreign(newest):
            return None
        verdicts = state.answered.again(span, active.watches, newest, age)
        if verdicts is not None:
            self.counts["idle"] += len(verdicts)
        return verdicts

    def _remembered(
        self, window: list[WindowRecord], verdicts: list[verdicts_pb2.Verdict]
    ) -> Answered | None:
        """What the windows behind this one may repeat."""
        settings, blocks = self._settings, [held.record.block for held in window]
        whole = len(blocks) == settings.blocks and not any(held.lost for held in window)
        answered = all(verdict.outcome == Verdict.OUTCOME_ANSWERED for verdict in verdicts)
        if settings.idle_age_s is None or not whole or not answered:
            return None
        return Answered.of(blocks, verdicts, settings.samples, settings.idle_luma)

    def _asked(
        self, span: WindowTime, window: list[WindowRecord], active: Active, record: Record
    ) -> list[verdicts_pb2.Verdict]:
        """The window's outcomes, computed, or why there is no answer."""
        lost = self._unanswerable(window[-1].record.block, record)
        if lost is None:
            shed = self._is_older(record, self._settings.shed_after_s)
            verdicts, lost = self._answer(span, window, active, 0 if shed else self._settings.describe_tokens)
        if lost is not None:
            verdicts = [outcome(span, watch, lost.kind, lost.reason) for watch in active.watches]
        return verdicts

    def _unanswerable(self, newest: tokens_pb2.StrideBlock, record: Record) -> _LostTokens | None:
        """Why a window is not even tried."""
        if not newest.patches:
            return _LostTokens(Verdict.OUTCOME_GAP, "no frames")
        settings = self._settings
        if self._is_older(record, settings.skip_after_s):
            return _LostTokens(Verdict.OUTCOME_SKIPPED, f"overload: older than {settings.skip_after_s:g} s")
        if newest.index % 2 and self._is_older(record, settings.thin_after_s):
            why = f"overload: older than {settings.thin_after_s:g} s, every second window"
            return _LostTokens(Verdict.OUTCOME_SKIPPED, why)
        if self._is_foreign(newest):
            models = f"encoded by model {newest.model_digest}, this is {self._model_digest}"
            return _LostTokens(Verdict.OUTCOME_DEGRADED, models)
        return None

    def _is_foreign(self, block: tokens_pb2.StrideBlock) -> bool:
        """Whether another model encoded the block."""
        ours = self._model_digest
        return bool(block.model_digest and ours and block.model_digest != ours)

    def _is_older(self, record: Record, limit: float | None) -> bool:
        return limit is not None and self._clock() - record.timestamp_ms / 1000 > limit

    def _load(self, held: WindowRecord) -> StrideBlock:
        """A block with its tokens; without frames where they are lost. Raises TransientError and
        _LostError."""
        if held.lost:
            return empty_block(held.record)
        key = (stream_name(held.record), held.record.block.index)
        try:
            loaded = load_block(held.record, self._client)
        except LineageBrokenError as error:
            reason = str(error)
        except StoreError as error:
            since = self._unavailable.setdefault(key, self._clock())
            if self._clock() - since < self._settings.give_up_s:
                raise TransientError(str(error)) from error
            reason = f"not to be had for {self._settings.give_up_s:g} s: {error}"
        else:
            self._unavailable.pop(key, None)
            if loaded.degraded and not held.degraded:
                self.counts["degraded fetch"] += 1
            held.degraded |= loaded.degraded
            return loaded.block
        self._unavailable.pop(key, None)
        held.lost = held.degraded = True
        _log.warning("a block's tokens are lost", stream=key[0], block=key[1], reason=reason)
        raise _LostError(reason)

    def _blocks(self, window: list[WindowRecord]) -> list[StrideBlock]:
        """The window's blocks. Raises _LostError where the newest is lost."""
        blocks = []
        for held in window:
            try:
                blocks.append(self._load(held))
            except _LostError:
                if held is window[-1]:
                    raise
                blocks.append(empty_block(held.record))
        return blocks

    def _answer(
        self, span: WindowTime, window: list[WindowRecord], active: Active, describe: int
    ) -> tuple[list[verdicts_pb2.Verdict], _LostTokens | None]:
        """The window's verdicts, with descriptions of at most `describe` tokens where they are asked for."""
        questions = [
            Question(watch.id, watch.question, describe if watch.describe else 0) for watch in active.watches
        ]
        try:
            blocks = self._blocks(window)
            plan = self._planner.plan(blocks)
            answer = self._ask(WindowRequest(plan, blocks, questions, keep=False))
        except (EngineError, WindowError, _LostError) as error:
            return [], _LostTokens(Verdict.OUTCOME_DEGRADED, str(error))
        verdicts = self._verdicts(span, window, active, plan, answer)
        for verdict, watch in zip(verdicts, active.watches, strict=True):
            if watch.describe and not describe:
                verdict.reason = f"overload: older than {self._settings.shed_after_s:g} s, not described"
        return verdicts, None

    def _ask(self, request: WindowRequest) -> WindowAnswer:
        """One window's answer; a stream that failed is tried once more."""
        try:
            return self._answers.answer(request).unwrap()
        except StreamFailedError:
            return self._answers.answer(request).unwrap()

    def _verdicts(
        self,
        span: WindowTime,
        window: list[WindowRecord],
        active: Active,
        plan: WindowPlan,
        answer: WindowAnswer,
    ) -> list[verdicts_pb2.Verdict]:
        blocks = [held.record.block for held in window if not held.lost]
        degraded = any(held.degraded for held in window)
        verdicts = []
        for watch, one in zip(active.watches, answer.answers, strict=True):
            verdict = outcome(span, watch, Verdict.OUTCOME_ANSWERED)
            verdict.p_yes = round(one.p_yes, DIGITS)
            verdict.basis = "full"
            verdict.degraded = degraded
            verdict.description = one.text or ""
            verdict.cost.CopyFrom(cost_of(plan, answer.cost, blocks, one))
            verdict.evidence.extend(evidence_of(window[-1].record.block, span.wall_offset_us))
            show_activity(verdict, window[-1].record.block)
            verdicts.append(verdict)
        return verdicts

    def _coverage(self, window: list[WindowRecord]) -> float:
        seen = sum(len(held.record.block.frames) for held in window if not held.lost)
        return min(1.0, seen / (len(window) * self._settings.samples))

    # -- events

    def _event(self, state: CameraState, message: Tokens) -> Result:
        event = message.event
        if event.kind != Event.KIND_GAP:
            self.counts[Event.Kind.Name(event.kind)] += 1
            return Result()
        last = state.last if message.epoch == state.epoch else None
        window = 0 if last is None else last + 1
        span = WindowTime(
            message.camera, message.epoch, message.wall_offset_us, window, event.start_us, event.end_us
        )
        active = self._watches.active(span.camera, span.start_wall_ms)
        verdicts = [outcome(span, watch, Verdict.OUTCOME_GAP, event.reason) for watch in active.watches]
        self.counts.update(Verdict.Outcome.Name(verdict.outcome) for verdict in verdicts)
        self._advance(state, message, [], window)
        state.watches_offset, state.watermark_us = active.offset, max(state.watermark_us, event.end_us)
        return Result([output(verdict) for verdict in verdicts], self._checkpoint(state))

    # -- checkpoints

    def _advance(self, state: CameraState, message: Tokens, window: list[WindowRecord], decided: int) -> None:
        """The next window needs all blocks of this one but the oldest."""
        state.epoch, state.last = message.epoch, decided
        keep = self._settings.blocks - 1
        state.window = window[-keep:] if keep else []
        if not window:
            state.answered = None

    def _checkpoint(self, state: CameraState) -> Checkpoint:
        return Checkpoint(
            prefill=PrefillState(
                epoch=state.epoch,
                offsets=[held.offset for held in state.window],
                last_window=state.last or 0,
                any=state.last is not None,
                watches_offset=state.watches_offset,
                watermark_us=state.watermark_us,
            )
        )


def _span_of(window: list[WindowRecord]) -> WindowTime:
    newest = window[-1].record
    return WindowTime(
        newest.camera,
        newest.epoch,
        newest.wall_offset_us,
        newest.block.index,
        window[0].record.block.start_us,
        newest.block.end_us,
    )
