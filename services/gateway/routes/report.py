"""Reports about a shift or a day: incidents, time without answers, unusual spans, counts per hour."""

from __future__ import annotations

import time
from typing import Annotated, Final

from fastapi import APIRouter, Query, Request
from starlette.responses import Response

from lookout.rules.types import is_time_zone
from lookout.services.gateway.guard import Viewer
from lookout.services.gateway.history.buckets import HOUR_MS
from lookout.services.gateway.history.shift import STRETCHES
from lookout.services.gateway.messages import answer, route
from lookout.services.gateway.parameters import CameraGlob, Moment, parse_ms
from lookout.services.gateway.parts import parts_of
from lookout.services.gateway.problems import ProblemError
from lookout.services.gateway.reports import composed
from lookout.text import clean
from lookout.v1.gateway_pb2 import ShiftReport

router = APIRouter(prefix="/v1/report", tags=["history"])
_LONGEST_MS: Final = 31 * 24 * HOUR_MS
_STRETCHES: Final = 100_000


@router.get("", **route(ShiftReport))
def report(
    request: Request,
    principal: Viewer,
    camera: CameraGlob = None,
    since: Moment = None,
    until: Moment = None,
    prose: bool = False,
    zone: Annotated[
        str, Query(max_length=64, description="time zone of the sentences, such as Europe/Berlin")
    ] = "UTC",
    stretches: Annotated[
        int, Query(ge=1, le=_STRETCHES, description="maximum number of stretches without answers to list")
    ] = STRETCHES,
) -> Response:
    """Report what happened on cameras: by default in the last 8 hours, at most in 31 days.

    With `prose`, a configured model also writes the report in its own words, which can take 30 seconds.
    """
    end_ms = parse_ms("until", until) or int(time.time() * 1000)
    given_ms = parse_ms("since", since)
    begin_ms = max(0, end_ms - 8 * HOUR_MS) if given_ms is None else given_ms
    if begin_ms >= end_ms:
        raise ProblemError(400, "since: must be before until")
    if end_ms - begin_ms > _LONGEST_MS:
        raise ProblemError(400, "since: a report can cover at most 31 days")
    if not is_time_zone(zone):
        raise ProblemError(400, f"zone: {clean(zone, 40)!r} is not an IANA time zone such as Europe/Berlin")
    scope = parts_of(request), principal, camera, begin_ms, end_ms
    return answer(composed(*scope, prose=prose, zone=zone, stretches=stretches))
