"""HTTP range requests (RFC 9110, section 14) to a checked address, all for the same version of a resource."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from types import TracebackType
from typing import Self

import httpcore

from lookout.errors import BadRecordError, TransientError
from lookout.runtime.net.fetch import Deadline, UriFetcher, check_status, connected, passing, request_of
from lookout.video.files.content_version import version_of

RANGE_S = 60.0
"""Maximum seconds for one range."""
_CONTENT_RANGE = re.compile(rb"bytes (\d{1,18})-(\d{1,18})/(\d{1,18})")


class UriRanges:
    """Reads a URI in ranges, over one connection if the host keeps it open.

    Every range request carries `If-Range`, and every answer must name the same version and size as the first
    answer, so all bytes come from one version. The host is resolved and checked once.

    Args:
        fetcher: Checks what may be fetched, and from where.
        uri: The URI.

    Raises:
        BadRecordError: It may not be fetched.
        TransientError: Its host does not resolve now.
    """

    def __init__(self, fetcher: UriFetcher, uri: str) -> None:
        self._url, address = fetcher.place(uri)
        self._seconds = min(RANGE_S, fetcher.timeout_s)
        self._deadline = Deadline(0.0)
        self._pool = connected(address, self._deadline)
        self.size, self.version = 0, ""
        self.requests = self.fetched = 0

    def begin(self) -> bool:
        """Ask for the first byte, to learn whether the host serves ranges.

        Returns:
            Whether the host serves ranges and names a version. If so, `size` and `version` are set.

        Raises:
            BadRecordError: The URI may not be fetched, or its answer cannot be used.
            TransientError: The host does not answer, or is unavailable for now.
        """
        with passing(self._url):
            answer = self._ask(0, 1)
            check_status(answer, 200, 206, 416)
            self.version = version_of(answer.headers)
            span = _span(answer)
            if answer.status != 206 or span is None or not self.version:
                return False
            self.size = span[2]
            return span[:2] == (0, 0)

    def read(self, start: int, stop: int, take: Callable[[bytes], object]) -> None:
        """Read the bytes [start, stop) in one attempt; `take` may have been called before an error is raised.

        Args:
            start: First byte.
            stop: The byte after the last one.
            take: Called with every piece, in order.

        Raises:
            BadRecordError: The recording has changed (`uri-changed`), or the answer is not the requested
                range.
            TransientError: The host does not answer, closes the connection early, or is unavailable for now.
        """
        wanted = stop - start
        with passing(self._url):
            self._deadline.at = time.monotonic() + self._seconds
            where, headers = request_of(self._url)
            ranged = {**headers, **self._range(start, stop)}
            with self._pool.stream("GET", where, headers=ranged) as answer:
                self.requests += 1
                check_status(answer, 200, 206, 412, 416)
                span, version = _span(answer), version_of(answer.headers)
                if answer.status != 206 or version != self.version or (span and span[2] != self.size):
                    raise BadRecordError("uri-changed", "the recording changed while it was read")
                if span is None or span[:2] != (start, stop - 1):
                    raise BadRecordError(
                        "bad-range", f"the host did not answer with the requested bytes {start}-{stop - 1}"
                    )
                for piece in answer.iter_stream():
                    wanted -= len(piece)
                    if wanted < 0:
                        raise BadRecordError(
                            "bad-range", "the host sends more bytes than its answer announces"
                        )
                    self.fetched += len(piece)
                    take(piece)
                    self._deadline.left()
        if wanted:
            raise TransientError(
                f"{self._url.hostname}: the connection closed {wanted} bytes before the end of the range"
            )

    def _ask(self, start: int, stop: int) -> httpcore.Response:
        """Return the answer to a range request. Its body is not read yet, because a host that ignores Range
        headers would send the whole file.
        """
        self._deadline.at = time.monotonic() + self._seconds
        where, headers = request_of(self._url)
        ranged = {**headers, "range": f"bytes={start}-{stop - 1}"}
        with self._pool.stream("GET", where, headers=ranged) as answer:
            self.requests += 1
            return answer

    def _range(self, start: int, stop: int) -> dict[bytes | str, bytes | str]:
        return {"range": f"bytes={start}-{stop - 1}", "if-range": self.version}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._pool.close()


def _span(answer: httpcore.Response) -> tuple[int, int, int] | None:
    """Return first byte, last byte and total size from `Content-Range`; None if this header is missing or
    invalid.
    """
    headers = {name.lower(): value for name, value in answer.headers}
    match = _CONTENT_RANGE.fullmatch(headers.get(b"content-range", b"").strip())
    if match is None:
        return None
    first, last, size = (int(number) for number in match.groups())
    return (first, last, size) if first <= last < size else None
