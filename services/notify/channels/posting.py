"""One POST to an address that was checked."""

from __future__ import annotations

import time

from lookout.errors import BadRecordError, TransientError
from lookout.runtime.net.fetch import Deadline, UriFetcher, connected, passing, request_of
from lookout.runtime.net.guarded_resolving import unguarded
from lookout.services.notify.messages import DeliveryError


def post(allowed: UriFetcher, address: str, headers: dict[str, str], body: bytes) -> tuple[str, int]:
    """Post a body.

    Args:
        allowed: Where messages may go.
        address: URL of the target.
        headers: More headers.
        body: The body.

    Returns:
        The target's host, and the status of its answer.

    Raises:
        DeliveryError: It may not be reached, or does not answer.
    """
    deadline = Deadline(time.monotonic() + allowed.timeout_s)
    try:
        url, place = allowed.place(address)
        where, own = request_of(url)
        sent: dict[bytes | str, bytes | str] = {**own, "content-length": str(len(body))}
        sent.update(headers)
        with (
            unguarded(),  # the address was checked: it is connected to as it is
            passing(url),
            connected(place, deadline) as pool,
            pool.stream("POST", where, headers=sent, content=body) as answer,
        ):
            return url.hostname or "", answer.status  # its body is of no interest, however long it is
    except BadRecordError as error:
        raise DeliveryError(error.detail) from error
    except TransientError as error:
        raise DeliveryError(str(error)) from error
