"""Labels: whether an incident was right."""

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
from lookout.services.gateway.problems import not_found
from lookout.services.gateway.writes import Asked, Asking, entry
from lookout.v1.actions_pb2 import Opinion
from lookout.v1.alerts_pb2 import Alert
from lookout.v1.gateway_pb2 import LabelList
from lookout.v1.labels_pb2 import Label
from lookout.wire import LABELS, from_json

router = APIRouter(prefix="/v1/labels", tags=["labels"])


@router.get("", **route(LabelList))
def list_labels(request: Request, principal: Viewer) -> Response:
    """What people said about incidents and answers."""
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
    """Say whether an incident was right."""
    return answer(_write(parts_of(request), principal, asked, opinion.incident, opinion.right))


@router.delete("/{incident}", **route(None, status=204))
def remove_label(
    request: Request, principal: Operator, asked: Asked, incident: Annotated[str, Path(max_length=64)]
) -> Response:
    """Take a label back."""
    _write(parts_of(request), principal, asked, incident, None)
    return Response(status_code=204)


def _write(parts: Parts, principal: Principal, asked: Asking, incident: str, right: bool | None) -> Label:
    with parts.database.reading() as connection:
        hit = queries.incident(connection, principal, incident)
    if hit is None:
        raise not_found("incident", incident)
    alert = from_json(hit[0].alert, Alert)
    label = Label(
        camera=alert.camera,
        watch=alert.watch,
        incident=alert.incident,
        right=bool(right),
        question=alert.question,
        start=alert.start,
        end=alert.end,
    )
    with parts.writes.once(principal, asked, LABELS.name) as written:
        if written is None:
            rows = label_rows([label], principal.actor, remove=right is None)
            action = "label.remove" if right is None else "label.write"
            audit = entry(action, incident, camera=alert.camera, tenant=alert.tenant)
            parts.writes.write(principal, asked, LABELS.name, rows, audit)
    return label
