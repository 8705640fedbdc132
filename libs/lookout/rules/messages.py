"""Converts messages of the wire format to the plain data of the rules."""

from __future__ import annotations

import math
from collections.abc import Iterable
from datetime import time

from lookout.rules.types import Activity, Outcome, Rule, RuleError, ScheduleEntry, WatchVerdict, Zone
from lookout.structured import hold_s_of
from lookout.v1 import verdicts_pb2, watches_pb2

_OUTCOMES = {
    verdicts_pb2.Verdict.OUTCOME_ANSWERED: Outcome.ANSWERED,
    verdicts_pb2.Verdict.OUTCOME_GAP: Outcome.GAP,
    verdicts_pb2.Verdict.OUTCOME_SKIPPED: Outcome.SKIPPED,
    verdicts_pb2.Verdict.OUTCOME_DEGRADED: Outcome.DEGRADED,
    verdicts_pb2.Verdict.OUTCOME_GATED: Outcome.GATED,
}


def rule_of(message: watches_pb2.Rule, question: str = "") -> Rule:
    """Return the rule of a watch, with defaults for fields that are not set.

    Args:
        message: The rule as written.
        question: The watch's question, whose condition may have to hold for some time
            (`count >= 3 for 10 s`).

    Raises:
        RuleError: A field has an invalid value.
    """
    if not math.isfinite(message.cooldown_s * 1000):
        raise RuleError(f"cooldown must be a number of seconds, not {message.cooldown_s}")
    return Rule(
        # In protobuf an unset number is 0.
        threshold=message.threshold or 0.5,
        clear_threshold=message.clear_threshold or None,
        k=message.k or 1,
        n=message.n or message.k or 1,
        cooldown_ms=round(message.cooldown_s * 1000),
        schedule=schedule_of(message.schedule),
        zones=tuple(Zone(tuple((p.x, p.y) for p in zone.points), zone.name) for zone in message.zones),
        hold_ms=round(1000 * hold_s_of(question)),
    )


def schedule_of(spans: Iterable[watches_pb2.ScheduleEntry]) -> tuple[ScheduleEntry, ...]:
    """Convert weekly spans.

    Raises:
        RuleError: A span is invalid.
    """
    return tuple(_entry(span) for span in spans)


def _entry(message: watches_pb2.ScheduleEntry) -> ScheduleEntry:
    # `time` has no 24:00; as an end, 00:00 means the same, because it is not after the start.
    start, end = _time_of_day(message.start), _time_of_day("00:00" if message.end == "24:00" else message.end)
    return ScheduleEntry(start, end, frozenset(message.weekdays or range(1, 8)), message.time_zone or "UTC")


def _time_of_day(text: str) -> time:
    try:
        moment = time.fromisoformat(text)
    except ValueError:
        moment = None
    if moment is None or moment.tzinfo is not None:
        raise RuleError(f"schedule: {text!r} is not a time of day such as 22:00")
    return moment


def verdict_of(verdict: verdicts_pb2.Verdict, rule: Rule | None = None) -> WatchVerdict:
    """Convert a verdict.

    Args:
        verdict: The message.
        rule: The rule to apply; None: the rule in the message.

    Raises:
        RuleError: The outcome is unknown, or the rule or the activity is invalid.
    """
    outcome = _OUTCOMES.get(verdict.outcome)
    if outcome is None:
        raise RuleError(f"verdict {verdict.id}: outcome {verdict.outcome} is unknown")
    if outcome is Outcome.ANSWERED and verdict.basis == "idle":
        outcome = Outcome.IDLE
    return WatchVerdict(
        camera=verdict.camera,
        epoch=verdict.epoch,
        window=verdict.window,
        watch=verdict.watch,
        version=verdict.watch_version,
        outcome=outcome,
        p_yes=verdict.p_yes,
        start_ms=verdict.start.ToMilliseconds(),
        end_ms=verdict.end.ToMilliseconds(),
        rule=rule_of(verdict.rule, verdict.question) if rule is None else rule,
        activity=_activity(verdict),
        evidence=tuple(frame.SerializeToString(deterministic=True) for frame in verdict.evidence),
    )


def _activity(verdict: verdicts_pb2.Verdict) -> Activity | None:
    cells = verdict.activity_rows * verdict.activity_cols
    if not cells:
        return None
    if len(verdict.activity) != -(-cells // 8):
        rows, cols = verdict.activity_rows, verdict.activity_cols
        raise RuleError(
            f"verdict {verdict.id}: activity has {len(verdict.activity)} bytes for a grid of {rows}x{cols}"
        )
    # The length of the field limits this loop, whatever the numbers say.
    active = frozenset(
        8 * place + bit
        for place, byte in enumerate(verdict.activity)
        for bit in range(8)
        if byte >> bit & 1 and 8 * place + bit < cells
    )
    return Activity(verdict.activity_rows, verdict.activity_cols, active)
