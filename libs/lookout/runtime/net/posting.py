"""Sends one HTTP request to an address that was checked."""

from __future__ import annotations

from lookout.errors import BadRecordError
from lookout.runtime.net.fetch import Deadline, UriFetcher, connected, passing, request_of
from lookout.runtime.net.guarded_resolving import unguarded


def request(
    allowed: UriFetcher,
    address: str,
    headers: dict[str, str],
    body: bytes,
    deadline: Deadline,
    *,
    method: str = "POST",
    limit: int,
) -> tuple[str, int, bytes]:
    """Send a request.

    Args:
        allowed: Where the request may be sent.
        address: URL of the target.
        headers: Further headers.
        body: The body.
        deadline: Time limit of the whole request.
        method: HTTP method.
        limit: Maximum bytes of the answer; 0: the answer is not read.

    Returns:
        The target's host, the status of its answer, and the answer.

    Raises:
        BadRecordError: The target may not be reached, or its answer is too long.
        TransientError: The target does not answer.
    """
    with unguarded():  # the address was checked here, and is connected to unchanged
        url, place = allowed.place(address)
    where, own = request_of(url)
    sent: dict[bytes | str, bytes | str] = {**own, "content-length": str(len(body))}
    sent.update(headers)
    received = bytearray()
    with (
        unguarded(),
        passing(url),
        connected(place, deadline) as pool,
        pool.stream(method, where, headers=sent, content=body) as answer,
    ):
        for piece in answer.iter_stream() if limit else ():
            received += piece
            deadline.left()
            if len(received) > limit:
                why = f"{url.hostname} answers with more than {limit} bytes"
                raise BadRecordError("too-many-bytes", why)
        return url.hostname or "", answer.status, bytes(received)
