"""Labels: people's opinions on whether an incident, or a moment that a search found, was right."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Depends, Path, Request
from starlette.responses import Response

from lookout.administration import label_rows
from lookout.services.gateway.guard import Operator, Viewer
from lookout.services.gateway.history import queries
from lookout.services.gateway.messages import answer, body_of, route
from lookout.services.gateway.parts import Parts, parts_of
from lookout.services.gateway.principal import Principal
from lookout.services.gateway.problems import ProblemError, not_found
from lookout.services.gateway.writes import Asked, Asking, entry
from lookout.text import question_text
from lookout.v1.actions_pb2 import Opinion
from lookout.v1.alerts_pb2 import Alert
from lookout.v1.gateway_pb2 import LabelList
from lookout.v1.labels_pb2 import Label
from lookout.wire import LABELS, from_json

router = APIRouter(prefix="/v1/labels", tags=["labels"])


@router.get("", **route(LabelList))
def list_labels(request: Request, principal: Viewer) -> Response:
    """List people's labels of incidents and answers."""
    with parts_of(request).database.reading() as connection:
        visible = {camera.id for camera in queries.cameras_of(connection, principal)}
        rows = queries.documents(connection, LABELS.name)
    labels = [from_json(row.body, Label) for row in rows if principal.unlimited or row.camera in visible]
    return answer(LabelList(labels=labels))


@router.post("", **route(Label, takes=Opinion))
def put_label(
    request: Request,
    principal: Operator,
    asked: Asked,
    opinion: Annotated[Opinion, Depends(body_of(Opinion))],
) -> Response:
    """Say whether an incident, or a moment that a search found, was right."""
    parts = parts_of(request)
    if opinion.HasField("moment"):
        label, tenant = _moment(parts, principal, opinion)
    else:
        label, tenant = _incident(parts, principal, opinion.incident, opinion.right)
    return answer(_write(parts, principal, asked, label, tenant))


@router.delete("/{incident}", **route(None, status=204))
def remove_label(
    request: Request, principal: Operator, asked: Asked, incident: Annotated[str, Path(max_length=64)]
) -> Response:
    """Remove the label of an incident or a moment."""
    parts = parts_of(request)
    label, tenant = _written(parts, principal, incident) or _incident(parts, principal, incident, False)
    _write(parts, principal, asked, label, tenant, remove=True)
    return Response(status_code=204)


def _written(parts: Parts, principal: Principal, incident: str) -> tuple[Label, str] | None:
    """Return a written label and its camera's tenant; None if it does not exist or the caller may not see
    it.
    """
    with parts.database.reading() as connection:
        visible = {camera.id: camera.tenant for camera in queries.cameras_of(connection, principal)}
        rows = queries.documents(connection, LABELS.name)
    labels = (from_json(row.body, Label) for row in rows if row.camera in visible)
    return next(((label, visible[label.camera]) for label in labels if label.incident == incident), None)


def _incident(parts: Parts, principal: Principal, incident: str, right: bool) -> tuple[Label, str]:
    """Make the label for an incident; return it and the camera's tenant."""
    with parts.database.reading() as connection:
        hit = queries.incident(connection, principal, incident)
    if hit is None:
        raise not_found("incident", incident)
    alert = from_json(hit[0].alert, Alert)
    label = Label(
        camera=alert.camera,
        watch=alert.watch,
        incident=alert.incident,
        right=right,
        question=alert.question,
        start=alert.start,
        end=alert.end,
    )
    return label, alert.tenant


def _moment(parts: Parts, principal: Principal, opinion: Opinion) -> tuple[Label, str]:
    """Make the label for a moment that a search found; return it and the camera's tenant."""
    moment = opinion.moment
    with parts.database.reading() as connection:
        cameras = [row for row in queries.cameras_of(connection, principal) if row.id == moment.camera]
    if not cameras:
        raise not_found("camera", moment.camera)
    if not moment.incident or moment.start.ToMilliseconds() >= moment.end.ToMilliseconds():
        raise ProblemError(
            400, "moment: give `incident`, which is the id of the hit's verdict, and `start` before `end`"
        )
    question = question_text(moment.question, lambda text: ProblemError(400, f"moment.question: {text}"))
    label = Label(
        camera=moment.camera,
        watch=moment.watch or "find",
        incident=moment.incident,
        right=opinion.right,
        question=question,
        start=moment.start,
        end=moment.end,
    )
    return label, cameras[0].tenant


def _write(
    parts: Parts, principal: Principal, asked: Asking, label: Label, tenant: str, *, remove: bool = False
) -> Label:
    with parts.writes.once(principal, asked, LABELS.name) as written:
        if written is None:
            rows = label_rows([label], principal.actor, remove=remove)
            action = "label.remove" if remove else "label.write"
            audit = entry(action, label.incident, camera=label.camera, tenant=tenant)
            parts.writes.write(principal, asked, LABELS.name, rows, audit)
    return label
