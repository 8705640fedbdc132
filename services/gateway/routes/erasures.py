"""Erasures of a camera, or of a time range of a camera, everywhere."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Depends, Path, Request
from starlette.responses import Response

from lookout.administration import erasure_requests, label_rows
from lookout.past.erasures.fence import Fence
from lookout.past.erasures.records import ErasureHistory
from lookout.past.erasures.signing import ErasureSigner
from lookout.runtime.worker.growth import decode_state
from lookout.runtime.worker.topic_reader import read_topic
from lookout.services.gateway.guard import Administrator
from lookout.services.gateway.history import queries
from lookout.services.gateway.messages import answer, body_of, route
from lookout.services.gateway.parts import Parts, parts_of
from lookout.services.gateway.principal import Principal
from lookout.services.gateway.problems import ProblemError, not_found
from lookout.services.gateway.writes import Asked, entry
from lookout.v1.actions_pb2 import ErasureRequest
from lookout.v1.erasures_pb2 import Erasure
from lookout.v1.gateway_pb2 import ErasureList, ErasureView
from lookout.v1.labels_pb2 import Label
from lookout.wire import ERASURES, LABELS, PIPELINE, Stage, from_json, is_camera_id, to_json

router = APIRouter(prefix="/v1/erasures", tags=["erasures"])


@router.get("", **route(ErasureList))
def list_erasures(request: Request, principal: Administrator) -> Response:
    """List the requested erasures, and who has confirmed them."""
    return answer(ErasureList(erasures=_views(parts_of(request), principal)))


@router.get("/{identity}", **route(ErasureView))
def get_erasure(
    request: Request, principal: Administrator, identity: Annotated[str, Path(max_length=64)]
) -> Response:
    """Return an erasure. `lookout erase --receipt` prints its signed receipt."""
    for view in _views(parts_of(request), principal):
        if view.erasure.id == identity:
            return answer(view)
    raise not_found("erasure", identity)


@router.post("", **route(ErasureList, takes=ErasureRequest, status=202))
def erase(
    request: Request,
    principal: Administrator,
    asked: Asked,
    wanted: Annotated[ErasureRequest, Depends(body_of(ErasureRequest))],
) -> Response:
    """Erase a camera, or a time range of a camera, everywhere. An erasure cannot be undone."""
    parts = parts_of(request)
    if not is_camera_id(wanted.camera):
        raise ProblemError(400, "camera: give a camera's id of 1 to 200 bytes; patterns are not accepted")
    with parts.database.reading() as connection:
        # Cameras of several tenants may share an id. The erasure applies to the id, so all must be visible.
        rows = queries.tenants_of(connection, wanted.camera)
    if not principal.unlimited and not (rows and all(principal.sees(wanted.camera, name) for name in rows)):
        raise not_found("camera", wanted.camera)
    with parts.writes.once(principal, asked, ERASURES.name) as written:
        if written is not None:
            return answer(ErasureList(erasures=_views(parts, principal)), 202)
        requests = erasure_requests(
            wanted.camera,
            wanted.since.ToMicroseconds() if wanted.HasField("since") else None,
            wanted.until.ToMicroseconds() if wanted.HasField("until") else None,
            principal.actor,
            lambda camera: _newest_epoch(parts, camera),
        )
        signer = ErasureSigner.of(parts.settings)
        for erasure in requests:
            signer.sign(erasure)
        # Labels are removed first. If that fails, no erasure was requested yet, and repeating the call does
        # everything.
        if labels := _labels(parts, requests):
            rows_of_labels = label_rows(labels, principal.actor, remove=True)
            parts.writes.write_only(principal, asked, LABELS.name, rows_of_labels)
        parts.writes.write(
            principal,
            asked,
            ERASURES.name,
            {erasure.id: to_json(erasure) for erasure in requests},
            entry("erasure.request", requests[0].id, camera=wanted.camera),
        )
    asked_for = {erasure.id for erasure in requests}
    return answer(
        ErasureList(erasures=[view for view in _views(parts, principal) if view.erasure.id in asked_for]), 202
    )


def _newest_epoch(parts: Parts, camera: str) -> tuple[int, int] | None:
    """Return the begin and end of a camera's newest epoch in Unix microseconds, from decode's checkpoint;
    None if it has no epoch.
    """
    span: tuple[int, int] | None = None
    for message in read_topic(parts.settings, "gateway-erasures", PIPELINE[Stage.DECODE].state.name):
        state = decode_state(message) if message.key() == camera.encode() else None
        if state is not None and state.epoch:
            span = state.wall_offset_us, state.wall_offset_us + state.watermark_us
    return span


def _labels(parts: Parts, requests: list[Erasure]) -> list[Label]:
    """Return the labels of incidents in the time to be erased."""
    fence = Fence(requests)
    with parts.database.reading() as connection:
        labels = [from_json(row.body, Label) for row in queries.documents(connection, LABELS.name)]
    return [
        label
        for label in labels
        if fence.hides(label.camera, label.start.ToMicroseconds(), label.end.ToMicroseconds()) is not None
    ]


def _views(parts: Parts, principal: Principal) -> list[ErasureView]:
    history = ErasureHistory(ErasureSigner.of(parts.settings))
    with parts.database.reading() as connection:
        for row in queries.documents(connection, ERASURES.name):
            history.take(row.key, row.body)
        views = []
        for identity, erasure in sorted(history.log.erasures.items()):
            tenants = queries.tenants_of(connection, erasure.camera)
            if not principal.unlimited and not any(principal.sees(erasure.camera, name) for name in tenants):
                continue
            views.append(
                ErasureView(
                    erasure=erasure,
                    confirmations=history.log.confirmed(identity).values(),
                    waiting=[member.instance for member in history.log.open_at(identity)],
                )
            )
    return views
