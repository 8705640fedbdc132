"""Asks services on this machine whether they are ready, without proxies, which could not reach them."""

from __future__ import annotations

from http.client import HTTPConnection

_TEXT_BYTES = 500


def ask_ready(port: int, timeout_s: float) -> str | None:
    """Ask a service whether it is ready (`/readyz`).

    Args:
        port: The service's metrics port on this machine.
        timeout_s: Seconds within which the service must answer.

    Returns:
        What the service waits for; None if it is ready.

    Raises:
        OSError: The service does not answer.
        http.client.HTTPException: Another program answers at this port.
    """
    connection = HTTPConnection("127.0.0.1", port, timeout=timeout_s)
    try:
        connection.request("GET", "/readyz")
        answer = connection.getresponse()
        text = answer.read(_TEXT_BYTES).decode(errors="replace").strip()
    finally:
        connection.close()
    return None if answer.status == 200 else text or f"status {answer.status}"
