"""Decides a window's outcomes: a repeated answer, a computed answer, or no answer and the reason."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from lookout import models
from lookout.models.engines import EngineError, Question
from lookout.models.windows import WindowError, WindowPlan
from lookout.rules import asks_strides
from lookout.runtime.fairness import FairShares
from lookout.runtime.tenants import TenantUsage
from lookout.runtime.worker import Record
from lookout.services.prefill.idle import Answered
from lookout.services.prefill.loading import BlockLoader, LoadedWindow, WindowRecord
from lookout.services.prefill.overload import OverloadPolicy, Standing
from lookout.services.prefill.settings import PrefillSettings
from lookout.services.prefill.shares import DeviceShares
from lookout.services.prefill.window import OpenWindow
from lookout.streams import (
    BlockFacts,
    Cause,
    ChainRunner,
    NoAnswer,
    NoAnswerKind,
    WindowRule,
)
from lookout.streams.chains import plan_digest, stream_name, strides_digest
from lookout.streams.chains.gates import has_gate
from lookout.streams.chains.verdicts import WindowTime, answered, unanswered
from lookout.v1.verdicts_pb2 import Verdict
from lookout.v1.watches_pb2 import Watch
from lookout.wire import tenant_of


@dataclass(frozen=True, slots=True)
class DecidedWindow:
    """The outcomes of a window.

    Attributes:
        verdicts: One verdict per watch, in the order of the watches.
        records: The window's records, marked with whether their tokens are available.
        answered: The answers that later windows may repeat while nothing changes; None: there are none.
        plan: The plan that the engine computed; None: the engine computed nothing.
    """

    verdicts: list[Verdict]
    records: tuple[WindowRecord, ...]
    answered: Answered | None = None
    plan: WindowPlan | None = None


class WindowAsker:
    """Decides windows. Any thread may call it, but only one at a time per camera.

    Args:
        settings: Prefill's settings.
        loader: Fetches tokens.
        runner: Computes windows by the fleet's preset; strides of its sampling for watches that ask them.
        model_digest: Digest of the model.
        on_audit: Called after each audit with the difference of p(yes) between the key window and the
            incremental answer.
        clock: Unix seconds.
        tenants: The tenants' quotas.
        shares: How tenants share the device.
        folder: The checkpoint's folder, which may list the questions that the model was trained for; None:
            there is no checkpoint.
        fault: Returns why the model's tokenizer cannot encode a question; None if it can.
    """

    def __init__(
        self,
        settings: PrefillSettings,
        loader: BlockLoader,
        runner: ChainRunner,
        *,
        model_digest: str = "",
        on_audit: Callable[[float], object] = lambda difference: None,
        clock: Callable[[], float] = time.time,
        tenants: TenantUsage | None = None,
        shares: DeviceShares | None = None,
        folder: Path | None = None,
        fault: Callable[[str], str | None] = lambda question: None,
    ) -> None:
        self._settings, self._loader, self.runner = settings, loader, runner
        # The fleet's preset may ask strides anyway.
        self._strides = runner if runner.rule.planner.settings.alone else runner.alone()
        self._model_digest, self._on_audit, self._fault = model_digest, on_audit, fault
        self._writes = folder is None or models.writes_text(folder)
        self._listed = None if folder is None else models.listed_questions(folder)
        planner = runner.rule.planner
        self._digests = plan_digest(planner, reuse=runner.rule.reuse), strides_digest(planner)
        self._overload = OverloadPolicy(settings, clock)
        self._rule = WindowRule(settings.window_blocks, settings.max_damage)
        self._tenants = tenants or TenantUsage(
            settings.quotas, ("questions", "device_s"), interval_s=settings.tenant_interval_s, clock=clock
        )
        self._shares = shares or DeviceShares(FairShares(), self._tenants)

    def window(self, records: Sequence[WindowRecord]) -> tuple[WindowRecord, ...]:
        """Return the records of the window that closes with the last of these."""
        return tuple(records[-self._rule.length([member.record.block.index for member in records]) :])

    def decide(
        self,
        unit: OpenWindow,
        span: WindowTime,
        records: tuple[WindowRecord, ...],
        watches: Sequence[Watch],
        source: Record,
    ) -> DecidedWindow:
        """Decide a window and return its outcomes.

        Args:
            unit: The camera's open window, whose chain is advanced to this window.
            span: The window's time.
            records: The window's records, oldest first.
            watches: The watches in force; if there are none, the result has no verdicts.
            source: The record that closed the window.

        Raises:
            TransientError: Tokens are not available now.
        """
        if not watches:
            return DecidedWindow([], records, unit.answered)
        if unit.chain.plan is not None and all(map(asks_strides, watches)):
            # No watch needs the KV any more.
            unit.chain.plan = None
            self.runner.forget(stream_name(records[-1].record))
        faults = {watch.id: fault for watch in watches if (fault := self._fault(watch.question)) is not None}
        closed = {name: NoAnswer(Cause.ENGINE, fault) for name, fault in faults.items()}
        closed |= self._closed(unit, records, [watch for watch in watches if watch.id not in faults])
        open_watches = [watch for watch in watches if watch.id not in closed]
        decided = DecidedWindow([], records, unit.answered)
        if open_watches:
            decided = self._repeated(unit, span, records, open_watches) or self._asked(
                unit, span, records, open_watches, source
            )
        if closed:
            decided = replace(decided, verdicts=_with_gated(decided, span, watches, closed))
        facts = self._facts(decided.records)
        # The tower encoded the newest block for all questions, even if the window has no answer.
        tower_us = records[-1].record.block.tower_us // len(watches)
        for verdict in decided.verdicts:
            verdict.cost.device_us += tower_us
            verdict.coverage = self._rule.coverage(facts)
            verdict.damaged = self._rule.damage(facts)
            verdict.model_digest = self._model_digest
        return decided

    def _closed(
        self, unit: OpenWindow, records: tuple[WindowRecord, ...], watches: Sequence[Watch]
    ) -> dict[str, NoAnswer]:
        """Return the watches whose gate does not hold, by id. Empty for a window that is not computed
        anyway.
        """
        if not any(map(has_gate, watches)) or self._rule.refusal(self._facts(records)) is not None:
            return {}
        blocks = [member.record.block for member in records]
        return unit.gates.closed(watches, blocks, self._settings.block_samples)

    def forget(self, camera: str) -> None:
        """Forget a camera that now belongs to another worker."""
        self._shares.forget(camera)

    def leave(self, stream: str, before: int | None = None) -> None:
        """Drop a stream's tokens and KV. With `before`, drop only the tokens of blocks below that index."""
        self._loader.leave(stream, before)
        if before is None:
            self.runner.forget(stream)

    def _repeated(
        self,
        unit: OpenWindow,
        span: WindowTime,
        records: tuple[WindowRecord, ...],
        watches: Sequence[Watch],
    ) -> DecidedWindow | None:
        """Return the last answers again; None if something changed since, or they may not be repeated."""
        age = self._settings.idle_age_s
        if age is None or unit.answered is None or records[-1].lost:
            return None
        verdicts = unit.answered.again(span, watches, records[-1].record.block, age)
        return None if verdicts is None else DecidedWindow(verdicts, records, unit.answered)

    def _asked(
        self,
        unit: OpenWindow,
        span: WindowTime,
        records: tuple[WindowRecord, ...],
        watches: Sequence[Watch],
        source: Record,
    ) -> DecidedWindow:
        refusal = self._refusal(span, records, source, watches)
        if refusal is None:
            shed = self._overload.sheds(source)
            loaded = self._loader.load(records)
            records = loaded.records
            if loaded.newest_lost:
                refusal = NoAnswer(Cause.TOKENS_LOST, loaded.newest_lost)
            else:
                return self._answer(unit, span, loaded, watches, shed=shed)
        newest = records[-1].record.block
        return DecidedWindow([unanswered(span, watch, refusal, newest=newest) for watch in watches], records)

    def _answer(
        self,
        unit: OpenWindow,
        span: WindowTime,
        loaded: LoadedWindow,
        watches: Sequence[Watch],
        *,
        shed: bool,
    ) -> DecidedWindow:
        """Compute the window's answers; with `shed`, without descriptions and audit.

        Watches that are asked about windows and those that are asked about strides share nothing, so that the
        answers of one do not depend on whether there is another.
        """
        tenant = tenant_of(span.tenant)
        self._shares.note(span.camera, tenant)
        self._tenants.add(tenant, "questions", len(watches))
        found: dict[str, Verdict] = {}
        plan = None
        # Strides first: if the device fails at them, the chain of windows has not moved on.
        for runner in dict.fromkeys((self._strides, self.runner)):
            group = [watch for watch in watches if self._runner_of(watch) is runner]
            if not group:
                continue
            try:
                verdicts, computed = self._computed(runner, unit, span, loaded, group, shed=shed)
            except (EngineError, WindowError) as error:
                refusal, newest = NoAnswer(Cause.ENGINE, str(error)), loaded.records[-1].record.block
                verdicts = [unanswered(span, watch, refusal, newest=newest) for watch in group]
            else:
                plan = computed if runner is self.runner else None
            found |= {verdict.watch: verdict for verdict in verdicts}
        verdicts = [found[watch.id] for watch in watches]
        return DecidedWindow(verdicts, loaded.records, self._repeatable(loaded.records, verdicts), plan)

    def _runner_of(self, watch: Watch) -> ChainRunner:
        return self._strides if asks_strides(watch) else self.runner

    def _computed(
        self,
        runner: ChainRunner,
        unit: OpenWindow,
        span: WindowTime,
        loaded: LoadedWindow,
        watches: Sequence[Watch],
        *,
        shed: bool,
    ) -> tuple[list[Verdict], WindowPlan]:
        """Let the engine answer watches that are all asked by one runner.

        Raises:
            EngineError: It cannot.
            WindowError: The blocks do not form a window.
        """
        describe = 0 if shed or not self._writes else self._settings.describe_tokens
        questions = [
            Question(watch.id, watch.question, describe if watch.describe else 0) for watch in watches
        ]
        window = runner.ask(unit.chain, loaded.blocks, questions, audited=not shed)
        if window.audit is not None:
            self._on_audit(window.audit.difference)
        blocks = [member.record.block for member in loaded.records if not member.lost]
        digest = self._digests[runner is not self.runner]
        verdicts = []
        for watch, answer in zip(watches, window.answer.answers, strict=True):
            verdict = answered(span, watch, window, answer, blocks=blocks)
            verdict.untrained = models.is_untrained(self._listed, watch.question)
            verdict.degraded = any(member.degraded for member in loaded.records)
            verdict.plan_digest = digest
            if not window.alone:
                verdict.key_every = unit.chain.key_every
            if watch.describe and not describe:
                verdict.reason = self._overload.shed_reason if shed else "the model cannot write text"
            verdicts.append(verdict)
        return verdicts, window.plan

    def _repeatable(self, records: Sequence[WindowRecord], verdicts: Sequence[Verdict]) -> Answered | None:
        """Return the answers that later windows may repeat while nothing changes; None if they must not."""
        settings, blocks = self._settings, [member.record.block for member in records]
        full = len(blocks) == settings.window_blocks and not any(member.lost for member in records)
        complete = all(verdict.outcome == Verdict.OUTCOME_ANSWERED for verdict in verdicts)
        if settings.idle_age_s is None or not full or not complete:
            return None
        return Answered.of(blocks, verdicts, settings.block_samples, settings.idle_luma)

    def _refusal(
        self, span: WindowTime, records: Sequence[WindowRecord], source: Record, watches: Sequence[Watch]
    ) -> NoAnswer | None:
        """Return why a window is not computed; None if it is.

        A lack of pictures takes precedence over quotas and overload as the reason.
        """
        refusal = self._rule.refusal(self._facts(records))
        if refusal is not None and refusal.kind is not NoAnswerKind.DEGRADED:
            return refusal
        tenant = tenant_of(span.tenant)
        if (quota := self._tenants.refusal(tenant)) is not None:
            return NoAnswer(Cause.QUOTA, quota)
        standing = Standing.of(records[-1].record.labels.priority, watches)
        overload = self._overload.skips(
            source, span.window, standing, lambda alone: self._shares.excess(tenant, alone=alone)
        )
        return refusal if overload is None else NoAnswer(Cause.OVERLOAD, overload)

    def _facts(self, records: Sequence[WindowRecord]) -> list[BlockFacts]:
        return [member.facts(self._settings.block_samples) for member in records]


def _with_gated(
    decided: DecidedWindow, span: WindowTime, watches: Sequence[Watch], closed: Mapping[str, NoAnswer]
) -> list[Verdict]:
    """Return the outcomes of all watches, in order, including the watches that were not asked."""
    newest = decided.records[-1].record.block
    outcomes = iter(decided.verdicts)
    return [
        unanswered(span, watch, closed[watch.id], newest=newest) if watch.id in closed else next(outcomes)
        for watch in watches
    ]
