"""Answers requests for byte ranges (RFC 9110, section 14)."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from starlette.requests import Request
from starlette.responses import Response

_RANGE: Final = re.compile(r"bytes=(\d{0,15})-(\d{0,15})", re.IGNORECASE)


def ranged(request: Request, data: bytes, media_type: str, headers: Mapping[str, str]) -> Response:
    """Respond with all bytes, or with the range that the request asks for.

    Args:
        request: The request, with or without the headers range and if-range.
        data: All bytes.
        media_type: The data's media type.
        headers: Headers for the response, including the etag.
    """
    headers = {**headers, "accept-ranges": "bytes"}
    match = _RANGE.fullmatch(request.headers.get("range", "").strip())
    # If the request asks for several ranges, or for a range of another version, all bytes are a valid answer.
    if match is None or request.headers.get("if-range", headers["etag"]) != headers["etag"]:
        return Response(data, 200, headers, media_type)
    first, last = match.groups()
    if not first and not last:
        return Response(data, 200, headers, media_type)
    begin = int(first) if first else max(0, len(data) - int(last))
    end = min(int(last), len(data) - 1) if first and last else len(data) - 1
    if begin >= len(data) or end < begin:
        return Response(status_code=416, headers={**headers, "content-range": f"bytes */{len(data)}"})
    headers["content-range"] = f"bytes {begin}-{end}/{len(data)}"
    return Response(data[begin : end + 1], 206, headers, media_type)
