"""Incidents, and people's actions on them."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Depends, Path, Query, Request
from starlette.responses import Response

from lookout.administration import label_rows
from lookout.rules.triage import Triage, allowed
from lookout.services.gateway.guard import Operator, Viewer
from lookout.services.gateway.history import queries
from lookout.services.gateway.history.views import view_of_row
from lookout.services.gateway.messages import answer, body_of, route
from lookout.services.gateway.parameters import CameraGlob, Moment, parse_ms
from lookout.services.gateway.parts import Parts, parts_of
from lookout.services.gateway.principal import Principal
from lookout.services.gateway.problems import ProblemError, not_found
from lookout.services.gateway.writes import Asked, Asking, entry
from lookout.v1.actions_pb2 import IncidentAction, IncidentState
from lookout.v1.gateway_pb2 import IncidentPage, IncidentView
from lookout.v1.labels_pb2 import Label
from lookout.wire import ACTIONS, CAMERA_HEALTH, LABELS, from_json, stable_id, to_json
from lookout.wire.message_json import enum_name

router = APIRouter(prefix="/v1/incidents", tags=["incidents"])
STATES = {enum_name("IncidentState", name): IncidentState.Value(name) for name, _ in IncidentState.items()}
RESOLVE, FALSE_POSITIVE = IncidentAction.KIND_RESOLVE, IncidentAction.KIND_FALSE_POSITIVE
REOPEN = IncidentAction.KIND_REOPEN
_Id = Annotated[str, Path(max_length=64)]


@router.get("", **route(IncidentPage))
def list_incidents(
    request: Request,
    principal: Viewer,
    asked: Asked,
    camera: CameraGlob = None,
    watch: Annotated[str | None, Query(max_length=200)] = None,
    state: Annotated[
        list[str] | None, Query(max_length=10, description=f"one of {', '.join(list(STATES)[1:])}")
    ] = None,
    since: Moment = None,
    until: Moment = None,
    assignee: Annotated[str | None, Query(max_length=200)] = None,
    closed: bool | None = None,
    q: Annotated[str | None, Query(max_length=200, description="words in the question")] = None,
    limit: Annotated[int, Query(ge=1, le=500)] = 100,
    after: Annotated[str, Query(max_length=100, description="`next` from the previous page")] = "",
    acts: Annotated[bool, Query(description="whether to include people's actions")] = False,
) -> Response:
    """List incidents, newest first."""
    if unknown := [name for name in state or () if name not in STATES]:
        raise ProblemError(400, f"state: {unknown[0]!r} is not one of {', '.join(list(STATES)[1:])}")
    criteria = queries.IncidentFilter(
        camera,
        watch,
        [STATES[name] for name in state or ()],
        parse_ms("since", since),
        parse_ms("until", until),
        assignee,
        q,
        closed,
    )
    parts = parts_of(request)
    if q:
        _note_search(parts, principal, asked, q)
    with parts.database.reading() as connection:
        rows, following = queries.incidents(connection, principal, criteria, after, limit)
        views = [view_of_row(row, row.tenant) for row in rows]
        if acts:
            queries.add_acts(connection, views)
    return answer(IncidentPage(incidents=views, next=following))


def _note_search(parts: Parts, principal: Principal, asked: Asking, words: str) -> None:
    """Write to the audit log who searched for what. Further pages and repetitions add no entry."""
    if parts.media.is_new_view(principal.actor, asked.address, "incident.search", words):
        parts.writes.note(principal, asked, entry("incident.search", words))


@router.get("/{identity}", **route(IncidentView))
def get_incident(request: Request, principal: Viewer, identity: _Id) -> Response:
    """Return an incident with all of people's actions on it."""
    return answer(_incident(parts_of(request), principal, identity))


@router.post("/{identity}/actions", **route(IncidentView, takes=IncidentAction))
def act(
    request: Request,
    principal: Operator,
    asked: Asked,
    identity: _Id,
    criteria: Annotated[IncidentAction, Depends(body_of(IncidentAction))],
) -> Response:
    """Act on an incident: claim, acknowledge, resolve, reopen, release, note, or call it a false positive.

    Only the fields `kind` and `note` are read.
    """
    parts = parts_of(request)
    before = _incident(parts, principal, identity)
    kind = enum_name("Kind", IncidentAction.Kind.Name(criteria.kind))
    if criteria.kind == IncidentAction.KIND_UNSPECIFIED:
        kinds = "claim, acknowledge, resolve, false-positive, reopen, release or note"
        raise ProblemError(400, f"kind: choose {kinds}")
    if criteria.kind == FALSE_POSITIVE and before.watch == CAMERA_HEALTH:
        raise ProblemError(
            409,
            f"incident {identity} is a fault of its camera, and camera health learns only from what the "
            "camera shows: resolve the incident instead. A new view becomes the usual one after six hours",
        )
    if criteria.kind == IncidentAction.KIND_NOTE and not criteria.note.strip():
        raise ProblemError(400, "note: must not be empty")
    with parts.writes.once(principal, asked, ACTIONS.name) as written:
        if written is not None:
            return answer(_incident(parts, principal, identity))
        before = _incident(parts, principal, identity)
        if not allowed(Triage(before.state), criteria.kind):
            state = enum_name("IncidentState", IncidentState.Name(before.state))
            by = f" by {before.assignee}" if before.assignee else ""
            raise ProblemError(
                409, f"this incident of {before.camera} is {state}{by}, so {kind} is not possible"
            )
        record = IncidentAction(
            id=stable_id("act", principal.actor, asked.key),
            incident=identity,
            kind=criteria.kind,
            actor=principal.actor,
            note=criteria.note,
            camera=before.camera,
            tenant=before.tenant,
            watch=before.watch,
            question=before.question,
            start=before.start,
            end=before.end,
        )
        _label(parts, principal, record)
        record.time.GetCurrentTime()
        parts.writes.write(
            principal,
            asked,
            ACTIONS.name,
            {before.camera: to_json(record)},
            entry(f"incident.{kind}", identity, camera=before.camera, tenant=before.tenant),
        )
    return answer(_incident(parts, principal, identity))


def _label(parts: Parts, principal: Principal, act: IncidentAction) -> None:
    """Write the label that an action implies to labels.v1, for back-tests and reports.

    The label is written before the action, and without the request's id, so that if the process dies in
    between, repeating the request writes both.
    """
    if act.kind not in (RESOLVE, FALSE_POSITIVE, REOPEN) or act.watch == CAMERA_HEALTH:
        return
    label = Label(
        camera=act.camera,
        watch=act.watch,
        incident=act.incident,
        right=act.kind == RESOLVE,
        question=act.question,
        start=act.start,
        end=act.end,
    )
    rows = label_rows([label], principal.actor, remove=act.kind == REOPEN)
    parts.writes.write_beside(principal, LABELS.name, rows)


def _incident(parts: Parts, principal: Principal, identity: str) -> IncidentView:
    with parts.database.reading() as connection:
        hit = queries.incident(connection, principal, identity)
    if hit is None:
        raise not_found("incident", identity)
    row, acts = hit
    view = view_of_row(row, row.tenant)
    view.actions.extend(from_json(body, IncidentAction) for body in acts)
    return view
