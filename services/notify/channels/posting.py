"""Sends HTTP requests to targets; every failure raises `DeliveryError`."""

from __future__ import annotations

import time

from lookout.errors import BadRecordError, TransientError
from lookout.runtime.net import posting
from lookout.runtime.net.fetch import Deadline, UriFetcher
from lookout.services.notify.messages import DeliveryError


def post(allowed: UriFetcher, address: str, headers: dict[str, str], body: bytes) -> tuple[str, int]:
    """Post a body; the response's body is not read.

    Args:
        allowed: Where messages may be sent.
        address: URL of the target.
        headers: Further headers.
        body: The body.

    Returns:
        The target's host, and the response's status.

    Raises:
        DeliveryError: The target may not be reached, or does not answer.
    """
    host, status, _ = request(allowed, address, headers, body)
    return host, status


def request(
    allowed: UriFetcher,
    address: str,
    headers: dict[str, str],
    body: bytes,
    *,
    method: str = "POST",
    limit: int = 0,
    deadline: Deadline | None = None,
) -> tuple[str, int, bytes]:
    """Send a request.

    Args:
        allowed: Where the request may be sent.
        address: URL of the target.
        headers: Further headers.
        body: The body.
        method: HTTP method.
        limit: Maximum bytes of the response's body; 0: it is not read.
        deadline: Time limit of the whole request; None: the timeout of `allowed`, from now on.

    Returns:
        The target's host, the response's status, and its body.

    Raises:
        DeliveryError: The target may not be reached, does not answer, or its response is too long.
    """
    deadline = deadline or Deadline(time.monotonic() + allowed.timeout_s)
    try:
        return posting.request(allowed, address, headers, body, deadline, method=method, limit=limit)
    except BadRecordError as error:
        raise DeliveryError(error.detail) from error
    except TransientError as error:
        raise DeliveryError(str(error)) from error
