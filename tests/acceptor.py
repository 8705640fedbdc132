"""A server on loopback for tests: a thread for every connection."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable


class Acceptor:
    """Listens from the start until `close`.

    Args:
        serve: Called with every connection; the connection is closed when it returns or a socket fails.
        host: Address to listen on; the port is a free one.
        silence_s: Seconds without a byte after which reading or writing fails.
    """

    def __init__(
        self, serve: Callable[[socket.socket], None], host: str = "127.0.0.1", silence_s: float = 20.0
    ) -> None:
        self._serve, self._silence_s = serve, silence_s
        self._server = socket.create_server((host, 0))
        self.address = f"{host}:{self._server.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        """Take no connections any more."""
        # Closing alone leaves a thread in accept() with the port taken.
        with contextlib.suppress(OSError):
            self._server.shutdown(socket.SHUT_RDWR)
        self._server.close()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._server.accept()
            except OSError:
                return
            threading.Thread(target=self._answer, args=(connection,), daemon=True).start()

    def _answer(self, connection: socket.socket) -> None:
        with connection, contextlib.suppress(OSError):
            connection.settimeout(self._silence_s)
            self._serve(connection)
