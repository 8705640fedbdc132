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
        host: Address to listen on.
        port: Port to listen on; 0 is a free one.
        silence_s: Seconds without a byte after which reading or writing fails.
    """

    def __init__(
        self,
        serve: Callable[[socket.socket], None],
        host: str = "127.0.0.1",
        port: int = 0,
        *,
        silence_s: float = 20.0,
    ) -> None:
        self._serve, self._silence_s = serve, silence_s
        self._server = socket.create_server((host, port))
        self.address = f"{host}:{self._server.getsockname()[1]}"
        self._thread = threading.Thread(target=self._accept, daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Take no connections any more; those that are there last as long as `serve` and its client."""
        # Closing alone leaves a thread in accept() with the port taken.
        with contextlib.suppress(OSError):
            self._server.shutdown(socket.SHUT_RDWR)
        self._server.close()
        self._thread.join()

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
