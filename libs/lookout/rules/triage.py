"""Follows how people handle an incident: state, assignee, and whether the answer was right."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Final

from lookout.v1.actions_pb2 import IncidentAction, IncidentState

_NEW, _CLAIMED = IncidentState.INCIDENT_STATE_NEW, IncidentState.INCIDENT_STATE_CLAIMED
_ACKNOWLEDGED = IncidentState.INCIDENT_STATE_ACKNOWLEDGED
_RESOLVED, _WRONG = IncidentState.INCIDENT_STATE_RESOLVED, IncidentState.INCIDENT_STATE_FALSE_POSITIVE
_REOPENED = IncidentState.INCIDENT_STATE_REOPENED
_OPEN: Final = frozenset({_NEW, _CLAIMED, _ACKNOWLEDGED, _REOPENED})
#: for each action, the states in which it is allowed and the resulting state
STEPS: Final[dict[IncidentAction.Kind, tuple[frozenset[IncidentState], IncidentState]]] = {
    IncidentAction.KIND_CLAIM: (frozenset({_NEW, _ACKNOWLEDGED, _REOPENED}), _CLAIMED),
    IncidentAction.KIND_ACKNOWLEDGE: (frozenset({_NEW, _CLAIMED, _REOPENED}), _ACKNOWLEDGED),
    IncidentAction.KIND_RESOLVE: (_OPEN, _RESOLVED),
    IncidentAction.KIND_FALSE_POSITIVE: (_OPEN, _WRONG),
    IncidentAction.KIND_REOPEN: (frozenset({_RESOLVED, _WRONG}), _REOPENED),
    IncidentAction.KIND_RELEASE: (frozenset({_CLAIMED, _ACKNOWLEDGED}), _NEW),
}


@dataclass(frozen=True, slots=True)
class Triage:
    """The handling of an incident by people.

    Attributes:
        state: The incident's state.
        assignee: Who claimed the incident; empty: nobody.
        right: Whether people found the incident's answer right; None: nobody has decided.
        said_ms: When `right` was set or withdrawn, Unix milliseconds.
        notes: How many actions have a note.
    """

    state: IncidentState = _NEW
    assignee: str = ""
    right: bool | None = None
    said_ms: int = 0
    notes: int = 0


def allowed(triage: Triage, kind: IncidentAction.Kind) -> bool:
    """Whether an action is allowed in the incident's state."""
    return kind == IncidentAction.KIND_NOTE or (kind in STEPS and triage.state in STEPS[kind][0])


def step(triage: Triage, act: IncidentAction) -> Triage:
    """Return an incident's handling after an action; an action that is not allowed changes nothing."""
    if not allowed(triage, act.kind):
        return triage
    if act.note:
        triage = replace(triage, notes=triage.notes + 1)
    if act.kind == IncidentAction.KIND_NOTE:
        return triage
    triage = replace(triage, state=STEPS[act.kind][1])
    if act.kind in (IncidentAction.KIND_CLAIM, IncidentAction.KIND_RELEASE):
        return replace(triage, assignee=act.actor if act.kind == IncidentAction.KIND_CLAIM else "")
    if act.kind == IncidentAction.KIND_REOPEN:
        return replace(triage, assignee="", right=None, said_ms=act.time.ToMilliseconds())
    if act.kind in (IncidentAction.KIND_RESOLVE, IncidentAction.KIND_FALSE_POSITIVE):
        right = act.kind == IncidentAction.KIND_RESOLVE
        return replace(triage, right=right, said_ms=act.time.ToMilliseconds())
    return triage


def triage_of(acts: Iterable[IncidentAction]) -> Triage:
    """Return an incident's handling after its actions, in the order of the topic."""
    triage = Triage()
    for act in acts:
        triage = step(triage, act)
    return triage
