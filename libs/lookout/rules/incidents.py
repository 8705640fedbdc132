"""Turns verdicts into incidents: a pure function of the state and the next verdict, in event time."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Final

from lookout.rules.schedule import in_schedule
from lookout.rules.types import (
    Coverage,
    EventKind,
    Incident,
    IncidentEvent,
    Outcome,
    Rule,
    WatchState,
    WatchVerdict,
)
from lookout.rules.zones import inside_any

PEAK_STEP: Final = 0.1  # smallest rise of the peak that causes another event
EVIDENCE_WINDOWS: Final = 3

CLEARED: Final = "cleared"
GAP: Final = "gap"
NEW_VERSION: Final = "new-version"
SCHEDULE: Final = "schedule"
REMOVED: Final = "removed"
FORGOTTEN: Final = "forgotten"

_BLIND: Final = frozenset({Outcome.SKIPPED, Outcome.DEGRADED, Outcome.GATED})


def step(
    state: WatchState | None, answer: WatchVerdict, incident: str
) -> tuple[WatchState, list[IncidentEvent]]:
    """Return the state of a watch on a camera after an answer, and the events that the answer caused.

    An answer that is not newer than the newest one changes nothing. An answer's version may be lower than the
    previous one's, because a watch that was removed and added again starts at version 1.

    Args:
        state: The state before the answer; None: this is the first answer.
        answer: The answer.
        incident: Id of the incident that the answer may open. The caller derives the id from the answer, so
            that a replay gives the same ids.
    """
    if state is None:
        state = WatchState(answer.version, answer.epoch)
    if _stale(state, answer):
        return state, []
    events: list[IncidentEvent] = []
    if answer.version != state.version:
        state, closed = _close(state, NEW_VERSION)
        events += closed
        state = replace(state, version=answer.version, recent=(), cooldown_until_ms=0, held_since_ms=0)
    if answer.epoch != state.epoch:
        state, closed = _close(state, GAP)
        events += closed
        state = replace(state, epoch=answer.epoch, window=-1, recent=(), held_since_ms=0)
    state = _covered(state, answer)
    if answer.outcome is Outcome.GAP:
        state, closed = _close(replace(state, recent=(), held_since_ms=0), GAP)
        return state, events + closed
    # Nothing was seen, so an open incident stays open, and the window does not count as a no. It is also
    # unknown whether the condition held throughout, so `hold_ms` starts again.
    if answer.outcome in _BLIND:
        return replace(state, held_since_ms=0), events
    state, further = _judged(state, answer, incident)
    return state, events + further


def remove(state: WatchState, reason: str = REMOVED) -> tuple[WatchState, list[IncidentEvent]]:
    """Close the open incident, if any, because its watch or camera was removed.

    Returns:
        The state without an incident, and the event that closes the incident; no event: none was open.
    """
    return _close(state, reason)


def _stale(state: WatchState, answer: WatchVerdict) -> bool:
    return (answer.epoch, answer.window) <= (state.epoch, state.window)


def _judged(state: WatchState, answer: WatchVerdict, identity: str) -> tuple[WatchState, list[IncidentEvent]]:
    rule = answer.rule
    state = _scored(state, answer)
    # The score was updated first, so that the event that closes the incident has the newest answer's score.
    if not in_schedule(rule.schedule, answer.end_ms):
        return _close(replace(state, recent=(), held_since_ms=0), SCHEDULE)
    yes = _is_yes(state, answer)
    since_ms = (state.held_since_ms or answer.end_ms) if yes else 0
    state = replace(state, recent=(*state.recent, yes)[-rule.n :], held_since_ms=since_ms)
    enough = sum(state.recent) >= rule.k
    if state.incident is None:
        held = yes and answer.end_ms - since_ms >= rule.hold_ms
        if held and enough and answer.end_ms >= state.cooldown_until_ms:
            return _open(state, answer, identity)
        return state, []
    if not enough:
        return _close(state, CLEARED, rule)
    return _update(state, answer, yes)


def _scored(state: WatchState, answer: WatchVerdict) -> WatchState:
    """Set an open incident's score to the newest answer's, even if that answer closes it."""
    if state.incident is None:
        return state
    return replace(state, incident=replace(state.incident, score=answer.p_yes))


def _is_yes(state: WatchState, answer: WatchVerdict) -> bool:
    """Whether an answer counts as yes. Between the two thresholds, it does only while an incident is open.
    Zones matter only while none is open."""
    rule = answer.rule
    if answer.p_yes < rule.clear:
        return False
    if answer.p_yes < rule.threshold:
        return state.incident is not None
    return state.incident is not None or not rule.zones or inside_any(rule.zones, answer.activity)


def _open(state: WatchState, answer: WatchVerdict, identity: str) -> tuple[WatchState, list[IncidentEvent]]:
    incident = Incident(
        id=identity,
        opened_ms=answer.start_ms,
        peak=answer.p_yes,
        score=answer.p_yes,
        windows=1,
        reported_peak=answer.p_yes,
        evidence=((answer.p_yes, answer.evidence),),
        coverage=_added(Coverage(), answer.outcome, answer.end_ms - answer.start_ms),
        raised_ms=answer.end_ms,
    )
    state = replace(state, incident=incident)
    return state, [_event(EventKind.OPENED, state, incident)]


def _update(state: WatchState, answer: WatchVerdict, yes: bool) -> tuple[WatchState, list[IncidentEvent]]:
    """Add the answer to the open incident. An event is due if the peak rises by `PEAK_STEP` since the last
    event, or if the number of windows with a yes reaches a power of two."""
    incident = state.incident
    assert incident is not None
    strongest = sorted([*incident.evidence, (answer.p_yes, answer.evidence)], key=lambda item: -item[0])
    incident = replace(
        incident,
        peak=max(incident.peak, answer.p_yes),
        windows=incident.windows + yes,
        evidence=tuple(strongest[:EVIDENCE_WINDOWS]),
    )
    # Powers of two, so that an incident of several hours has a dozen events, not thousands.
    due = incident.peak >= incident.reported_peak + PEAK_STEP or (
        yes and incident.windows & (incident.windows - 1) == 0
    )
    if due:
        incident = replace(incident, reported_peak=incident.peak)
    state = replace(state, incident=incident)
    return state, [_event(EventKind.UPDATED, state, incident)] if due else []


def _close(
    state: WatchState, reason: str, rule: Rule | None = None
) -> tuple[WatchState, list[IncidentEvent]]:
    if state.incident is None:
        return state, []
    event = _event(EventKind.CLOSED, state, state.incident, reason)
    # Only an incident that cleared starts a cooldown: a gap or a new version says nothing about the scene.
    until = state.newest_ms + rule.cooldown_ms if rule else state.cooldown_until_ms
    return replace(state, incident=None, cooldown_until_ms=until), [event]


def _event(kind: EventKind, state: WatchState, incident: Incident, reason: str = "") -> IncidentEvent:
    return IncidentEvent(kind, incident, state.version, state.epoch, state.newest_ms, reason)


def _covered(state: WatchState, answer: WatchVerdict) -> WatchState:
    """Advance to the answer's window; to an open incident, add the time that no earlier answer covered."""
    state = _on_clock_of(state, answer)
    incident = state.incident
    if incident is not None:
        new = max(0, answer.end_ms - max(state.newest_ms, answer.start_ms))
        incident = replace(incident, coverage=_added(incident.coverage, answer.outcome, new))
    newest = max(state.newest_ms, answer.end_ms)
    return replace(state, incident=incident, newest_ms=newest, window=answer.window)


def _on_clock_of(state: WatchState, answer: WatchVerdict) -> WatchState:
    """Return the state on the answer's clock, which may have been set back since the previous answer.

    The rest of a cooldown and the age of an incident are kept; the time for which a condition must hold
    starts again. A gap may begin before the end of a window whose last stride was cut short; this does not
    mean that the clock was set back.
    """
    if answer.end_ms >= state.newest_ms or answer.outcome is Outcome.GAP:
        return state
    back_ms = state.newest_ms - answer.start_ms
    incident = state.incident
    if incident is not None:
        incident = replace(
            incident,
            opened_ms=max(0, incident.opened_ms - back_ms),
            raised_ms=max(0, incident.raised_ms - back_ms),
        )
    return replace(
        state,
        newest_ms=answer.start_ms,
        cooldown_until_ms=max(0, state.cooldown_until_ms - back_ms),
        incident=incident,
        held_since_ms=0,
    )


def _added(coverage: Coverage, outcome: Outcome, milliseconds: int) -> Coverage:
    name = outcome.value
    return replace(coverage, **{name: getattr(coverage, name) + milliseconds})


def best_frames(incident: Incident) -> list[bytes]:
    """Return the frames of an incident's strongest windows, serialised, best first.

    Each window votes for its frames; its first frame gets the most weight. Votes are needed because a single
    window may attend to a frame that shows nothing yet, while several windows rarely do so for the same
    frame. In a tie, the frame of the stronger window comes first.
    """
    votes: Counter[bytes] = Counter()
    for _, window in incident.evidence:
        for place, frame in enumerate(dict.fromkeys(window)):
            votes[frame] += 60 // (place + 1)  # whole numbers, so that sums do not depend on the order
    return [frame for frame, _ in votes.most_common()]
