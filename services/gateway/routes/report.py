"""A report of a shift or a day: incidents, time without answers, unusual spans, counts by hour."""

from __future__ import annotations

import time
from typing import Any, Final

import grpc
from fastapi import APIRouter, Request
from starlette.responses import Response

from lookout.runtime.net import Channels
from lookout.services.gateway.guard import Viewer
from lookout.services.gateway.history import queries
from lookout.services.gateway.history.buckets import HOUR_MS
from lookout.services.gateway.history.shift import shift_report
from lookout.services.gateway.history.shift_text import sentences
from lookout.services.gateway.messages import answer, route
from lookout.services.gateway.parameters import CameraGlob, Moment, parse_ms
from lookout.services.gateway.parts import Parts, parts_of
from lookout.services.gateway.principal import Principal
from lookout.services.gateway.problems import ProblemError
from lookout.v1 import memory_pb2_grpc
from lookout.v1.gateway_pb2 import ShiftReport
from lookout.v1.memory_pb2 import ScoredSpan, UnusualRequest

router = APIRouter(prefix="/v1/report", tags=["history"])
_LONGEST_MS: Final = 31 * 24 * HOUR_MS
_RECALL_S: Final = 10.0


@router.get("", **route(ShiftReport))
def report(
    request: Request,
    principal: Viewer,
    camera: CameraGlob = None,
    since: Moment = None,
    until: Moment = None,
) -> Response:
    """What happened on cameras: the last 8 hours by default, 31 days at most."""
    end_ms = parse_ms("until", until) or int(time.time() * 1000)
    given_ms = parse_ms("since", since)
    begin_ms = max(0, end_ms - 8 * HOUR_MS) if given_ms is None else given_ms
    if begin_ms >= end_ms:
        raise ProblemError(400, "since: it must be before until")
    if end_ms - begin_ms > _LONGEST_MS:
        raise ProblemError(400, "since: a report is about 31 days at most")
    return answer(composed(parts_of(request), principal, camera, begin_ms, end_ms))


def composed(
    parts: Parts, principal: Principal, camera: str | None, begin_ms: int, end_ms: int
) -> ShiftReport:
    """A report of what a principal may see.

    Args:
        parts: Of the gateway.
        principal: For whom it is.
        camera: An id or glob; None: all.
        begin_ms: Unix milliseconds.
        end_ms: Unix milliseconds, after `begin_ms`.
    """
    with parts.database.reading() as connection:
        message = shift_report(connection, principal, camera, begin_ms, end_ms)
        cameras = queries.wholly_seen(connection, principal, camera)
    if cameras:
        about = UnusualRequest(
            cameras=[camera or "*"] if principal.unlimited else cameras,
            since_us=begin_ms * 1000,
            until_us=end_ms * 1000,
            exact=not principal.unlimited,
        )
        spans, message.note = _unusual(parts, about)
        message.unusual.extend(spans)
    message.sentences.extend(sentences(message))
    return message


def _unusual(parts: Parts, request: UnusualRequest) -> tuple[list[ScoredSpan], str]:
    """Unusual spans of cameras, as recall names them; and a note if they are not known."""
    if parts.settings.recall is None:
        return [], "unusual spans need a fleet with memory"
    channel = Channels(parts.settings).open(parts.settings.recall, [("grpc.enable_retries", 0)])
    stub: Any = memory_pb2_grpc.RecallServiceStub(channel)  # type: ignore[no-untyped-call]
    try:
        response = stub.Unusual(request, timeout=_RECALL_S)
        return list(response.spans), response.note
    except grpc.RpcError as error:
        return [], f"unusual spans are not known: recall does not answer: {error.code().name}"
    finally:
        channel.close()
