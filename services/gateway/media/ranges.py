"""Answers to requests for a range of bytes (RFC 9110, 14)."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from starlette.requests import Request
from starlette.responses import Response

_RANGE: Final = re.compile(r"bytes=(\d{0,15})-(\d{0,15})", re.IGNORECASE)


def ranged(request: Request, data: bytes, media_type: str, headers: Mapping[str, str]) -> Response:
    """Answer with all bytes, or with the range that the request asks for.

    Args:
        request: With or without the headers range and if-range.
        data: All bytes.
        media_type: Its media type.
        headers: Headers of the answer, with the etag.
    """
    headers = {**headers, "accept-ranges": "bytes"}
    match = _RANGE.fullmatch(request.headers.get("range", "").strip())
    # For several ranges, or a range of another version, all bytes are a valid answer.
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
