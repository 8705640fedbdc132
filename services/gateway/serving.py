"""Runs uvicorn in one of the service's threads."""

from __future__ import annotations

import socket
import ssl
import threading
import time
from pathlib import Path
from typing import Final

import uvicorn
from fastapi import FastAPI

from lookout.errors import StartupError
from lookout.runtime.observe import logs
from lookout.services.gateway.access.slow import PatientProtocol
from lookout.services.gateway.settings import GatewaySettings

_READ_EVERY_S: Final = 5.0
_GRACE_S: Final = 3


class HttpServer:
    """An HTTP server.

    Args:
        app: The application.
        settings: The address, port and certificate.

    Raises:
        StartupError: The port is taken, or a certificate cannot be read.
    """

    def __init__(self, app: FastAPI, settings: GatewaySettings) -> None:
        self._settings = settings
        family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
        self._socket = socket.socket(family)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            self._socket.bind((settings.host, settings.http_port))
        except OSError as error:
            self._socket.close()
            raise StartupError(f"LOOKOUT_HTTP_PORT={settings.http_port}: {error.strerror}") from error
        self.port: int = self._socket.getsockname()[1]
        self._stopped = threading.Event()
        config = uvicorn.Config(
            app,
            log_config=None,
            access_log=False,
            server_header=False,
            date_header=True,
            proxy_headers=bool(settings.trusted_proxies),
            forwarded_allow_ips=list(settings.trusted_proxies),
            timeout_graceful_shutdown=_GRACE_S,
            ws="none",
            http=PatientProtocol,
        )
        config.load()
        if settings.http_cert_file is not None:
            config.ssl = self._context = self._read_certificate()
            config.ssl.sni_callback = self._use_newest
        self._server = uvicorn.Server(config)

    def run(self) -> None:
        """Serve until `stop`."""
        self._server.run(sockets=[self._socket])

    def follow_certificate(self) -> None:
        """Reread the certificate whenever its files change, until `stop`."""
        files = [file for file in (self._settings.http_cert_file, self._settings.http_key_file) if file]
        before = _changed(files)
        while not self._stopped.wait(_READ_EVERY_S):
            now = _changed(files)
            if now == before:
                continue
            try:
                self._context = self._read_certificate()
            except StartupError as error:  # incomplete or invalid; the earlier certificate stays
                logs.get("gateway").warning("the certificate cannot be read", error=str(error))
                continue
            before = now

    def await_start(self, seconds: float) -> bool:
        """Wait until the server has started; return False if it has not started within `seconds`."""
        deadline = time.monotonic() + seconds
        while not self._server.started and time.monotonic() < deadline:
            time.sleep(0.01)
        return self._server.started

    def stop(self) -> None:
        """Stop the server. Calls in progress get a few seconds to finish."""
        self._stopped.set()
        self._server.should_exit = True

    def _use_newest(self, connection: ssl.SSLObject, name: str | None, context: ssl.SSLContext) -> None:
        """Give each new connection the newest certificate, in a new context.

        Replacing the certificate in a context that is in use is not safe, because a connection that begins at
        that moment could get the new certificate and the old key.
        """
        connection.context = self._context

    def _read_certificate(self) -> ssl.SSLContext:
        cert, key = self._settings.http_cert_file, self._settings.http_key_file
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        try:
            context.load_cert_chain(str(cert), str(key))
        except (OSError, ssl.SSLError) as error:
            raise StartupError(f"LOOKOUT_HTTP_CERT_FILE={cert}: {error}") from error
        return context


def _changed(files: list[Path]) -> list[float]:
    return [file.stat().st_mtime if file.exists() else 0.0 for file in files]
