"""Between the wire's messages and the plain data of the rules."""

from __future__ import annotations

from datetime import time

from lookout.rules import (
    Activity,
    Coverage,
    EventKind,
    Incident,
    IncidentEvent,
    Outcome,
    Rule,
    RuleError,
    ScheduleEntry,
    Verdict,
    WatchState,
    Zone,
)
from lookout.v1 import alerts_pb2, state_pb2, verdicts_pb2, watches_pb2
from lookout.wire import ids

_OUTCOMES = {
    verdicts_pb2.Verdict.OUTCOME_ANSWERED: Outcome.ANSWERED,
    verdicts_pb2.Verdict.OUTCOME_GAP: Outcome.GAP,
    verdicts_pb2.Verdict.OUTCOME_SKIPPED: Outcome.SKIPPED,
    verdicts_pb2.Verdict.OUTCOME_DEGRADED: Outcome.DEGRADED,
}
_KINDS = {
    EventKind.OPENED: alerts_pb2.Alert.KIND_OPENED,
    EventKind.UPDATED: alerts_pb2.Alert.KIND_UPDATED,
    EventKind.CLOSED: alerts_pb2.Alert.KIND_CLOSED,
}


def rule(message: watches_pb2.Rule) -> Rule:
    """The rule of a watch, defaults filled in. Raises RuleError naming the field."""
    return Rule(
        threshold=message.threshold or 0.5,
        clear_threshold=message.clear_threshold or None,
        k=message.k or 1,
        n=message.n or message.k or 1,
        cooldown_ms=round(message.cooldown_s * 1000),
        schedule=tuple(_span(span) for span in message.schedule),
        zones=tuple(Zone(tuple((p.x, p.y) for p in zone.points), zone.name) for zone in message.zones),
    )


def _span(message: watches_pb2.ScheduleEntry) -> ScheduleEntry:
    try:
        start, end = time.fromisoformat(message.start), time.fromisoformat(message.end)
    except ValueError as error:
        raise RuleError(f"schedule: {message.start!r} to {message.end!r} are not times like 22:00") from error
    return ScheduleEntry(start, end, frozenset(message.weekdays or range(1, 8)), message.time_zone or "UTC")


def answer(verdict: verdicts_pb2.Verdict) -> Verdict:
    """A verdict as the rules see it. Raises RuleError for an outcome or rule that cannot be followed."""
    outcome = _OUTCOMES.get(verdict.outcome)
    if outcome is None:
        raise RuleError(f"verdict {verdict.id}: outcome {verdict.outcome} is unknown")
    if outcome is Outcome.ANSWERED and verdict.basis == "idle":
        outcome = Outcome.IDLE
    return Verdict(
        camera=verdict.camera,
        epoch=verdict.epoch,
        window=verdict.window,
        watch=verdict.watch,
        version=verdict.watch_version,
        outcome=outcome,
        p_yes=verdict.p_yes,
        start_ms=verdict.start.ToMilliseconds(),
        end_ms=verdict.end.ToMilliseconds(),
        rule=rule(verdict.rule),
        activity=_activity(verdict),
        evidence=tuple(frame.SerializeToString(deterministic=True) for frame in verdict.evidence),
    )


def _activity(verdict: verdicts_pb2.Verdict) -> Activity | None:
    cells = verdict.activity_rows * verdict.activity_cols
    if not cells:
        return None
    bits = int.from_bytes(verdict.activity, "little")
    active = frozenset(cell for cell in range(cells) if bits >> cell & 1)
    return Activity(verdict.activity_rows, verdict.activity_cols, active)


def alert(camera: str, watch: str, question: str, event: IncidentEvent) -> alerts_pb2.Alert:
    """An incident event as it is published."""
    incident = event.incident
    frames = [frame for _, window in incident.evidence for frame in window]
    message = alerts_pb2.Alert(
        id=ids.stable_id("alert", incident.id, event.kind, event.end_ms, event.reason),
        incident=incident.id,
        kind=_KINDS[event.kind],
        camera=camera,
        epoch=event.epoch,
        watch=watch,
        watch_version=event.version,
        question=question,
        score=incident.score,
        peak=incident.peak,
        windows=incident.windows,
        reason=event.reason,
        evidence=[verdicts_pb2.Evidence.FromString(frame) for frame in dict.fromkeys(frames)],
        coverage=_coverage(incident.coverage),
    )
    message.start.FromMilliseconds(incident.opened_ms)
    message.end.FromMilliseconds(event.end_ms)
    return message


def _coverage(coverage: Coverage) -> alerts_pb2.Coverage:
    return alerts_pb2.Coverage(
        answered_s=coverage.answered / 1000,
        idle_s=coverage.idle / 1000,
        gap_s=coverage.gap / 1000,
        skipped_s=coverage.skipped / 1000,
        degraded_s=coverage.degraded / 1000,
    )


def pack(watch: str, question: str, state: WatchState) -> state_pb2.WatchState:
    """A watch's state as the checkpoint keeps it."""
    message = state_pb2.WatchState(
        watch=watch,
        version=state.version,
        epoch=state.epoch,
        window=state.window,
        recent=sum(yes << place for place, yes in enumerate(reversed(state.recent))),
        seen=len(state.recent),
        newest_ms=state.newest_ms,
        cooldown_until_ms=state.cooldown_until_ms,
    )
    if state.incident is not None:
        message.incident.CopyFrom(_pack_incident(state.incident, question))
    return message


def _pack_incident(incident: Incident, question: str) -> state_pb2.OpenIncident:
    return state_pb2.OpenIncident(
        id=incident.id,
        opened_ms=incident.opened_ms,
        peak=incident.peak,
        score=incident.score,
        windows=incident.windows,
        reported_peak=incident.reported_peak,
        evidence=[
            state_pb2.WindowEvidence(
                p_yes=p, frames=[verdicts_pb2.Evidence.FromString(frame) for frame in frames]
            )
            for p, frames in incident.evidence
        ],
        question=question,
        coverage=_coverage(incident.coverage),
    )


def unpack(message: state_pb2.WatchState) -> WatchState:
    """The inverse of `pack`."""
    return WatchState(
        version=message.version,
        epoch=message.epoch,
        window=message.window,
        recent=tuple(bool(message.recent >> place & 1) for place in reversed(range(message.seen))),
        newest_ms=message.newest_ms,
        cooldown_until_ms=message.cooldown_until_ms,
        incident=_unpack_incident(message.incident) if message.HasField("incident") else None,
    )


def _unpack_incident(message: state_pb2.OpenIncident) -> Incident:
    return Incident(
        id=message.id,
        opened_ms=message.opened_ms,
        peak=message.peak,
        score=message.score,
        windows=message.windows,
        reported_peak=message.reported_peak,
        evidence=tuple(
            (
                window.p_yes,
                tuple(frame.SerializeToString(deterministic=True) for frame in window.frames),
            )
            for window in message.evidence
        ),
        coverage=_unpack_coverage(message.coverage),
    )


def _unpack_coverage(message: alerts_pb2.Coverage) -> Coverage:
    return Coverage(
        answered=round(message.answered_s * 1000),
        idle=round(message.idle_s * 1000),
        gap=round(message.gap_s * 1000),
        skipped=round(message.skipped_s * 1000),
        degraded=round(message.degraded_s * 1000),
    )
