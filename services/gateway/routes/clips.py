"""Clips from recordings that jobs asked about."""

from __future__ import annotations

import threading
from typing import Annotated, Any, Final
from urllib.parse import unquote, urlsplit

from fastapi import APIRouter, Path, Query, Request
from starlette.responses import Response

from lookout.recordings.jobs.sources import Sources
from lookout.runtime.net.fetch import UriFetcher
from lookout.services.gateway.guard import Viewer
from lookout.services.gateway.messages import route
from lookout.services.gateway.parts import Parts, parts_of
from lookout.services.gateway.problems import ProblemError
from lookout.services.gateway.routes.jobs import job_of
from lookout.services.gateway.settings import GatewaySettings
from lookout.services.gateway.writes import Asked, entry
from lookout.text import public_url
from lookout.video.files import RecordingClip
from lookout.video.sandbox import open_recording

router = APIRouter(prefix="/v1", tags=["jobs"])
_LONGEST_S: Final = 300.0
#: maximum bytes to fetch from a host that ignores Range headers
_FETCH_BYTES: Final = 512 << 20
#: maximum number of clips that are cut at the same time, and seconds for which further requests wait
_CUTS: Final = threading.BoundedSemaphore(2)
_WAIT_S: Final = 20.0
_BYTES: Final = {"schema": {"type": "string", "format": "binary"}}
_CLIP: Final[dict[str, Any]] = route(None, media={"video/mp4": _BYTES, "video/webm": _BYTES})
_Seconds = Annotated[float, Query(ge=0, le=1e9, description="from the recording's first picture")]


@router.get("/recordings/{identity}/clip", **_CLIP)
def recording_clip(
    request: Request,
    principal: Viewer,
    asked: Asked,
    identity: Annotated[str, Path(max_length=100)],
    recording: Annotated[int, Query(ge=0, description="its index in the job's answers, from 0")],
    start_s: _Seconds,
    end_s: _Seconds,
) -> Response:
    """Return a span of a recording as it is stored, from the preceding keyframe on, without sound; at most 5
    minutes.

    The gateway can read uploaded recordings, and web addresses that it may fetch from.
    """
    if not 0 < end_s - start_s <= _LONGEST_S:
        raise ProblemError(
            400, f"start_s, end_s: a clip must have more than 0 and at most {_LONGEST_S:g} seconds"
        )
    parts = parts_of(request)
    view = job_of(parts, principal, identity)
    recordings = view.answers.recordings
    if recording >= len(recordings):
        raise ProblemError(404, f"recording: the job has answers about only {len(recordings)} recordings")
    clip = _cut(parts, recordings[recording].uri, start_s, end_s)
    parts.writes.note(principal, asked, entry("clip.view", identity, tenant=view.request.tenant))
    kind = "quicktime" if clip.container == "mov" else clip.container
    name = f"clip-{start_s:g}-{end_s:g}.{clip.container}"
    headers = {"content-disposition": f'inline; filename="{name}"', "cache-control": "private, no-store"}
    return Response(clip.data, 200, headers, f"video/{kind}")


def _cut(parts: Parts, uri: str, start_s: float, end_s: float) -> RecordingClip:
    """Cut a span out of a recording, in a confined process.

    Raises:
        ProblemError: The gateway may not read the recording, or too many clips are being cut.
        LookoutError: The recording cannot be read, or the span cannot be cut.
    """
    store = None if parts.uploads is None else parts.uploads.url
    if not uri.startswith(("http://", "https://", *([] if store is None else [f"{store}/"]))):
        raise ProblemError(
            409,
            f"{public_url(uri)}: the gateway cuts clips only from uploads and web addresses; "
            "for other recordings use `lookout analyze --clips`",
        )
    if not _CUTS.acquire(timeout=_WAIT_S):
        raise ProblemError(503, "other clips are being cut: try again in a moment", {"Retry-After": "5"})
    try:
        with (
            _sources(parts.settings, store).open(uri) as source,
            open_recording(source.data, sandbox=True, workers=1) as reader,
        ):
            return reader.clip(round(start_s * 1e6), round(end_s * 1e6))
    finally:
        _CUTS.release()


def _sources(settings: GatewaySettings, store: str | None) -> Sources:
    """Return sources that open uploads, and web addresses that the gateway may fetch from."""
    fetcher = UriFetcher(
        settings.uri_schemes,
        settings.uri_hosts,
        settings.uri_networks,
        _FETCH_BYTES,
        settings.uri_timeout_s,
    )
    if store is None:
        return Sources(fetcher=fetcher)
    if store.startswith("file://"):
        return Sources([unquote(urlsplit(store).path)], fetcher=fetcher)
    return Sources(fetcher=fetcher, stores=[store])
