"""Cameras' and incidents' pictures and clips."""

from __future__ import annotations

import hashlib
from typing import Annotated, Any, Final, Literal

from fastapi import APIRouter, Path, Query, Request
from starlette.concurrency import run_in_threadpool
from starlette.responses import Response

from lookout.errors import TransientError
from lookout.runtime.observe import logs
from lookout.services.gateway.guard import Operator, Viewer, still_is
from lookout.services.gateway.history import queries
from lookout.services.gateway.media.facts import clip_facts, media_type
from lookout.services.gateway.media.keeping import PAD_S, WIDTH, Keeping, clip_span, near_of
from lookout.services.gateway.media.live import LiveResponse, Viewer as LiveViewer
from lookout.services.gateway.media.ranges import ranged
from lookout.services.gateway.media.store import LONGEST_US, PictureSize, Piece, Sees
from lookout.services.gateway.messages import answer, route
from lookout.services.gateway.parameters import parse_ms
from lookout.services.gateway.parts import Parts, parts_of
from lookout.services.gateway.principal import Principal
from lookout.services.gateway.problems import ProblemError, not_found
from lookout.services.gateway.writes import Asked, Asking, entry
from lookout.v1.alerts_pb2 import Alert
from lookout.v1.lineage_pb2 import RecordRef
from lookout.v1.media_pb2 import ClipFacts, KeptEvidence
from lookout.wire import VERDICTS, from_json

router = APIRouter(prefix="/v1", tags=["media"])
#: header with a clip's codec, because not every browser plays hevc
CODEC_HEADER: Final = "lookout-codec"
#: header that says that a privacy mask hides part of the response
MASKED_HEADER: Final = "lookout-masked"
_PICTURE: Final = {"image/jpeg": {"schema": {"type": "string", "format": "binary"}}}
_VIDEO: Final = {"video/mp4": {"schema": {"type": "string", "format": "binary"}}}
PICTURES: Final[dict[str, Any]] = route(None, media=_PICTURE)
CLIPS: Final[dict[str, Any]] = route(
    None,
    media=_VIDEO,
    responses={
        206: {"description": "the requested range", "content": _VIDEO},
        416: {"description": "the range begins after the clip's end"},
    },
)
_Incident = Annotated[str, Path(max_length=64)]
_Camera = Annotated[str, Path(max_length=200)]
_Width = Annotated[int, Query(ge=64, le=4096, description="maximum pixels of the picture's width")]
_Overlay = Annotated[
    Literal["patches"] | None, Query(description="patches: dim the parts that were not given to the model")
]
_Whole = Annotated[
    bool,
    Query(description="show the whole picture as filmed, which masks refer to, instead of the model's input"),
]
_Begin = Annotated[str, Query(alias="from", max_length=40, description="RFC 3339")]
_End = Annotated[str, Query(alias="to", max_length=40, description="RFC 3339, at most 5 minutes later")]
_Pad = Annotated[float, Query(ge=0, le=60, description="seconds before and after the incident")]


@router.get("/incidents/{identity}/picture.jpg", **PICTURES)
def incident_picture(
    request: Request,
    principal: Viewer,
    asked: Asked,
    identity: _Incident,
    width: _Width = WIDTH,
    overlay: _Overlay = None,
) -> Response:
    """Return the frame that got the most attention, from the incident's newest alert."""
    parts = parts_of(request)
    alert, kept = _alert(parts, principal, identity)
    try:
        piece = parts.media.evidence(alert, principal.sees, PictureSize(width, overlay is not None))
    except ProblemError:
        kept_piece = None if kept is None or overlay else _keeping(parts).picture(kept)
        if kept_piece is None:
            raise
        piece = kept_piece
    _note(parts, principal, asked, "picture.view", identity, alert.camera, piece)
    return _picture_answer(piece)


def incident_frame(
    request: Request, principal: Principal, asked: Asking, identity: str, time: str
) -> Response:
    """Return the picture nearest to a time within an incident's clip.

    Raises:
        ProblemError: The time is not within the incident's clip, or nothing was filmed then.
    """
    parts = parts_of(request)
    alert, _ = _alert(parts, principal, identity)
    at_us = (parse_ms("time", time) or 0) * 1000
    begin_us, end_us = clip_span(alert, PAD_S)
    if not begin_us <= at_us <= end_us:
        raise ProblemError(404, f"incident {alert.incident}: {time} is not within its clip")
    piece = parts.media.picture(alert.camera, at_us, principal.sees, PictureSize(WIDTH), near_of(alert))
    _note(parts, principal, asked, "picture.view", identity, alert.camera, piece)
    return _picture_answer(piece)


@router.get("/incidents/{identity}/clip.mp4", **CLIPS)
def incident_clip(
    request: Request, principal: Viewer, asked: Asked, identity: _Incident, pad: _Pad = PAD_S
) -> Response:
    """Return the incident's clip as it was filmed: at most its first five minutes.

    The clip is re-encoded only if a privacy mask hides part of it.
    """
    parts = parts_of(request)
    alert, piece = _incident_clip(parts, principal, identity, pad)
    _note(parts, principal, asked, "clip.view", identity, alert.camera, piece)
    return _clip_answer(request, piece)


@router.get("/incidents/{identity}/clip.json", **route(ClipFacts))
def incident_clip_facts(
    request: Request, principal: Viewer, identity: _Incident, pad: _Pad = PAD_S
) -> Response:
    """Return what a player must know about the incident's clip before loading it."""
    alert, piece = _incident_clip(parts_of(request), principal, identity, pad)
    return answer(clip_facts(alert.camera, piece))


@router.get("/incidents/{identity}/keep", **route(KeptEvidence))
def get_kept(request: Request, principal: Viewer, identity: _Incident) -> Response:
    """Return what is kept of an incident's evidence beyond Kafka's retention."""
    kept = _keeping(parts_of(request)).find(identity, principal.sees)
    if kept is None:
        raise not_found("kept evidence of incident", identity)
    return answer(kept)


@router.post("/incidents/{identity}/keep", **route(KeptEvidence))
def keep(request: Request, principal: Operator, asked: Asked, identity: _Incident) -> Response:
    """Keep an incident's picture and clip beyond Kafka's retention, for as long as the incident itself. For
    an open incident, the evidence so far is kept, and completed once the incident has closed.
    """
    parts = parts_of(request)
    keeping = _keeping(parts)
    alert, _ = _alert(parts, principal, identity)
    kept = keeping.keep(alert, principal.sees, principal.actor)
    tenant = min(kept.tenants, default="")
    parts.writes.note(principal, asked, entry("evidence.keep", identity, camera=alert.camera, tenant=tenant))
    return answer(kept)


@router.delete("/incidents/{identity}/keep", **route(None, status=204))
def release(request: Request, principal: Operator, asked: Asked, identity: _Incident) -> Response:
    """Remove an incident's kept evidence. Footage in Kafka stays."""
    parts = parts_of(request)
    keeping = _keeping(parts)
    kept = keeping.find(identity, principal.sees)
    if kept is None:
        raise not_found("kept evidence of incident", identity)
    keeping.release(identity)
    tenant = min(kept.tenants, default="")
    parts.writes.note(
        principal, asked, entry("evidence.release", identity, camera=kept.camera, tenant=tenant)
    )
    return Response(status_code=204)


@router.get("/cameras/{camera:path}/frames/{time}.jpg", **PICTURES)
def camera_picture(
    request: Request,
    principal: Viewer,
    asked: Asked,
    camera: _Camera,
    time: Annotated[str, Path(max_length=40, description="RFC 3339")],
    width: _Width = WIDTH,
    overlay: _Overlay = None,
    whole: _Whole = False,
) -> Response:
    """Return the picture nearest to a time, among those that the model was given."""
    if whole and overlay is not None:
        raise ProblemError(
            400, "whole, overlay: an overlay is possible only on the model's input; ask for one of the two"
        )
    parts = parts_of(request)
    at_us = (parse_ms("time", time) or 0) * 1000
    sees = _sees(parts, principal, camera)
    size = PictureSize(width, overlay is not None, whole)
    piece = parts.media.picture(camera, at_us, sees, size, _near(parts, camera, at_us))
    _note(parts, principal, asked, "picture.view", f"{camera}@{time}", camera, piece)
    return _picture_answer(piece)


@router.get("/cameras/{camera:path}/clip.mp4", **CLIPS)
def camera_clip(
    request: Request, principal: Viewer, asked: Asked, camera: _Camera, begin: _Begin, end: _End
) -> Response:
    """Return a clip of what a camera filmed, from the preceding keyframe on.

    The clip is re-encoded only if a privacy mask hides part of it.
    """
    parts = parts_of(request)
    piece = _camera_clip(parts, principal, camera, begin, end)
    _note(parts, principal, asked, "clip.view", f"{camera}@{begin}", camera, piece)
    return _clip_answer(request, piece)


@router.get("/cameras/{camera:path}/clip.json", **route(ClipFacts))
def camera_clip_facts(
    request: Request, principal: Viewer, camera: _Camera, begin: _Begin, end: _End
) -> Response:
    """Return what a player must know about a clip before loading it."""
    return answer(clip_facts(camera, _camera_clip(parts_of(request), principal, camera, begin, end)))


@router.get("/cameras/{camera:path}/live", **route(None, media=_VIDEO))
async def camera_live(request: Request, principal: Viewer, asked: Asked, camera: _Camera) -> Response:
    """Stream what a camera films now, from its newest keyframe on, as an endless fragmented MP4.

    The stream ends if the camera sends nothing for half a minute, or video of another size or format. Then
    ask again.
    """
    parts = parts_of(request)
    sees = await run_in_threadpool(_sees, parts, principal, camera)
    viewer = LiveViewer(principal.actor, sees, lambda: still_is(request, principal))
    view = await parts.live.open(camera, viewer)
    try:
        seen = entry("live.view", camera, camera=camera, tenant=view.tenant)
        await run_in_threadpool(parts.writes.note, principal, asked, seen)
    except BaseException:
        view.close()
        raise
    headers = {CODEC_HEADER: view.clip.codec, "x-accel-buffering": "no", **_masked(view.clip.masked)}
    return LiveResponse(view, media_type=media_type(view.clip), headers=headers)


def _alert(parts: Parts, principal: Principal, identity: str) -> tuple[Alert, KeptEvidence | None]:
    """Return an incident's newest alert, and its kept evidence, None if nothing is kept."""
    kept = None
    if parts.keeping is not None:
        try:
            kept = parts.keeping.find(identity, principal.sees)
        except TransientError as error:  # footage in Kafka is still shown
            logs.get("gateway").warning("the store of kept evidence does not answer", error=str(error)[:300])
    with parts.database.reading() as connection:
        row_and_acts = queries.incident(connection, principal, identity)
    if row_and_acts is not None:
        return from_json(row_and_acts[0].alert, Alert), kept
    if kept is None:
        raise not_found("incident", identity)
    return kept.alert, kept  # the history may have been rebuilt after the alert expired in alerts.v1


def _sees(parts: Parts, principal: Principal, camera: str) -> Sees:
    """Return the function that says what a caller may see of a camera.

    Raises:
        ProblemError: The caller may see nothing of the camera.
    """
    with parts.database.reading() as connection:
        tenants = queries.tenants_of(connection, camera)
    if not any(principal.sees(camera, tenant) for tenant in tenants):
        raise not_found("camera", camera)
    return principal.sees


def _near(parts: Parts, camera: str, at_us: int) -> RecordRef | None:
    """Return a reference to a record of about a time; None if there is none. It is needed because footage may
    arrive long after it was filmed, so the time alone does not say where its records are.
    """
    with parts.database.reading() as connection:
        place = queries.verdict_near(connection, camera, at_us // 1000)
    return place and RecordRef(topic=VERDICTS.name, partition=place[0], offset=place[1])


def _incident_clip(parts: Parts, principal: Principal, identity: str, pad: float) -> tuple[Alert, Piece]:
    alert, kept = _alert(parts, principal, identity)
    if kept is not None and kept.complete and pad == PAD_S and (piece := _keeping(parts).clip(kept)):
        return alert, piece
    try:
        return alert, parts.media.clip(alert.camera, *clip_span(alert, pad), principal.sees, near_of(alert))
    except ProblemError:
        if kept is None or (piece := _keeping(parts).clip(kept)) is None:
            raise
        return alert, piece


def _keeping(parts: Parts) -> Keeping:
    """Return the store of kept evidence.

    Raises:
        ProblemError: This gateway has no such store.
    """
    if parts.keeping is None:
        raise ProblemError(409, "this gateway keeps no evidence: set LOOKOUT_KEEP_URL")
    return parts.keeping


def _camera_clip(parts: Parts, principal: Principal, camera: str, begin: str, end: str) -> Piece:
    begin_us, end_us = ((parse_ms(*pair) or 0) * 1000 for pair in (("from", begin), ("to", end)))
    if not 0 < end_us - begin_us <= LONGEST_US:
        raise ProblemError(400, "from, to: a clip must have more than 0 and at most 300 seconds")
    sees = _sees(parts, principal, camera)
    return parts.media.clip(camera, begin_us, end_us, sees, _near(parts, camera, begin_us))


def _note(
    parts: Parts, principal: Principal, asked: Asking, action: str, subject: str, camera: str, piece: Piece
) -> None:
    """Write to the audit log who viewed what. A player's many range requests for a clip count as one view."""
    if parts.media.is_new_view(principal.actor, asked.address, action, subject):
        tenant = min(piece.tenants, default="")
        parts.writes.note(principal, asked, entry(action, subject, camera=camera, tenant=tenant))


def _masked(masked: bool) -> dict[str, str]:
    return {MASKED_HEADER: "true"} if masked else {}


def _picture_answer(piece: Piece) -> Response:
    return Response(piece.data, media_type="image/jpeg", headers=_masked(bool(piece.masks)))


def _clip_answer(request: Request, piece: Piece) -> Response:
    assert piece.clip is not None
    headers = {
        CODEC_HEADER: piece.clip.codec,
        "etag": f'"{hashlib.sha256(piece.data).hexdigest()[:32]}"',
        "cache-control": "private, no-store",
        **_masked(piece.clip.masked),
    }
    return ranged(request, piece.data, media_type(piece.clip), headers)
