"""A body that is posted to an address which was checked, and its answer."""

from __future__ import annotations

from lookout.errors import BadRecordError
from lookout.runtime.net.fetch import Deadline, UriFetcher, connected, passing, request_of
from lookout.runtime.net.guarded_resolving import unguarded


def posted(
    allowed: UriFetcher, address: str, headers: dict[str, str], body: bytes, deadline: Deadline
) -> tuple[int, bytes]:
    """Post a body.

    Args:
        allowed: Where it may go, and how many bytes an answer may have.
        address: URL of the target.
        headers: More headers.
        body: The body.
        deadline: When all has ended.

    Returns:
        The status of the answer, and the answer.

    Raises:
        BadRecordError: The target may not be reached, or answers with too much.
        TransientError: It does not answer.
    """
    url, place = allowed.place(address)
    where, own = request_of(url)
    sent: dict[bytes | str, bytes | str] = {**own, "content-length": str(len(body))}
    sent.update(headers)
    received = bytearray()
    with (
        unguarded(),  # the address was checked: it is connected to as it is
        passing(url),
        connected(place, deadline) as pool,
        pool.stream("POST", where, headers=sent, content=body) as answer,
    ):
        for piece in answer.iter_stream():
            received += piece
            deadline.left()
            if len(received) > allowed.limit:
                raise BadRecordError(
                    "too-many-bytes", f"{url.hostname} answers with more than {allowed.limit}"
                )
        return answer.status, bytes(received)
