"""gRPC credentials: certificates and tokens from files, reloaded when the files change."""

from __future__ import annotations

import hmac
import ipaddress
import ssl
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

import grpc

from lookout.errors import StartupError
from lookout.runtime.net.connections import GrpcSecurity, read_secret, setting
from lookout.runtime.observe import logs
from lookout.runtime.observe.tracing import CallDetails

HEALTH: Final = "/grpc.health.v1.Health/"
_KEY: Final = "authorization"
_FILES: Final = ("grpc_ca_file", "grpc_cert_file", "grpc_key_file")

_log = logs.get("grpc")


class Token:
    """The fleet's token, read again when its file changes. Thread-safe."""

    def __init__(self, settings: GrpcSecurity) -> None:
        self._fixed = settings.grpc_token.get_secret_value() if settings.grpc_token is not None else None
        self._path = settings.grpc_token_file
        self._read: tuple[tuple[int, int], str] | None = None

    @classmethod
    def of(cls, settings: GrpcSecurity) -> Token | None:
        """Return the token in the settings; None if they configure no token.

        Raises:
            StartupError: its file cannot be read.
        """
        if settings.grpc_token is None and settings.grpc_token_file is None:
            return None
        token = cls(settings)
        token.value()
        return token

    def value(self) -> str:
        """Return the current token. If its file is gone, the last token that was read stays in use."""
        if self._path is None:
            return self._fixed or ""
        try:
            facts = self._path.stat()
            version = (facts.st_mtime_ns, facts.st_ino)
            if self._read is None or self._read[0] != version:
                self._read = (version, read_secret(self._path, setting("grpc_token_file")))
        except (OSError, StartupError) as error:
            if self._read is None:
                raise StartupError(f"{setting('grpc_token_file')}={self._path}: {error}") from None
        return self._read[1] if self._read is not None else ""

    def matches(self, shown: str) -> bool:
        """Whether what a caller sent is the token."""
        return hmac.compare_digest(shown.encode(), f"Bearer {self.value()}".encode())


class Certificates:
    """The three files of mutual TLS. Thread-safe.

    If certificate and key do not match, the previous pair stays in use.
    """

    def __init__(self, settings: GrpcSecurity) -> None:
        self._paths = [_path(settings, name) for name in _FILES]
        self._lock = threading.Lock()
        self._seen: tuple[tuple[int, int], ...] = ()
        self._version = 0
        self._contents: tuple[bytes, bytes, bytes] = (b"", b"", b"")
        self._load(first=True)

    @property
    def version(self) -> int:
        """A number that increases each time new certificates are loaded; reading it checks the files."""
        with self._lock:
            self._load(first=False)
            return self._version

    @property
    def contents(self) -> tuple[bytes, bytes, bytes]:
        """Return the authorities, the certificate and its key, each as PEM."""
        return self._contents

    def _load(self, *, first: bool) -> None:
        try:
            versions = tuple((facts.st_mtime_ns, facts.st_ino) for facts in (p.stat() for p in self._paths))
            if versions == self._seen:
                return
            authorities, certificate, key = self._paths
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_verify_locations(authorities)
            context.load_cert_chain(certificate, key)  # fails if the files are only half replaced
            read = authorities.read_bytes(), certificate.read_bytes(), key.read_bytes()
        except (OSError, ssl.SSLError) as error:
            names = ", ".join(
                f"{setting(name)}={path}" for name, path in zip(_FILES, self._paths, strict=True)
            )
            if first:
                raise StartupError(f"{names}: cannot be used: {error}") from None
            _log.warning(
                "new certificates cannot be used; the previous ones stay in use",
                files=names,
                error=str(error),
            )
            return
        self._seen, self._contents = versions, read
        self._version += 1
        if not first:
            _log.info("new certificates are in use")


#: Services of a fleet reach each other directly. Otherwise gRPC would send calls to the proxy in
#: `https_proxy`, which is for outside addresses, and the calls would wait for ever. Trace exporters do use
#: the proxy.
_NO_PROXY: Final = ("grpc.enable_http_proxy", 0)


class Channels:
    """Opens channels to other services with the credentials of the settings."""

    def __init__(self, settings: GrpcSecurity) -> None:
        """Raises StartupError if a file cannot be used."""
        self._certificates = Certificates(settings) if settings.grpc_tls else None
        self._token = Token.of(settings)
        self._name = settings.grpc_tls_name

    @property
    def version(self) -> int:
        """The version of the certificates. Channels that were opened at an earlier version use replaced
        certificates.
        """
        return self._certificates.version if self._certificates is not None else 0

    def open(self, address: str, options: Sequence[tuple[str, Any]] = ()) -> grpc.Channel:
        """Open a channel to host:port."""
        options = [*options, _NO_PROXY]
        if self._certificates is None:
            channel = grpc.insecure_channel(address, options=options)
        else:
            authorities, certificate, key = self._certificates.contents
            named = [("grpc.ssl_target_name_override", self._name)] if self._name else []
            credentials = grpc.ssl_channel_credentials(authorities, key, certificate)
            channel = grpc.secure_channel(address, credentials, options=[*options, *named])
        return channel if self._token is None else grpc.intercept_channel(channel, _ShowToken(self._token))


def listen(server: grpc.Server, address: str, host: str, settings: GrpcSecurity) -> int:
    """Add a port to the server, with TLS if configured; return the port's number.

    Raises:
        StartupError: other machines would be served without TLS, or a file cannot be used.
        RuntimeError: the port is taken.
    """
    if settings.grpc_tls:
        return int(server.add_secure_port(address, _server_credentials(Certificates(settings))))
    if not settings.grpc_insecure and not is_loopback(host):
        raise StartupError(
            f"LOOKOUT_HOST={host} serves other machines without TLS: set {', '.join(map(setting, _FILES))}, "
            "or LOOKOUT_HOST=127.0.0.1, or LOOKOUT_GRPC_INSECURE=true in a network that nobody else can reach"
        )
    return int(server.add_insecure_port(address))


def is_loopback(host: str) -> bool:
    """Whether an address can be reached only from this machine."""
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost"


def _server_credentials(certificates: Certificates) -> grpc.ServerCredentials:
    def configuration() -> Any:
        authorities, certificate, key = certificates.contents
        return grpc.ssl_server_certificate_configuration([(key, certificate)], authorities)

    used = certificates.version

    def changed() -> Any:
        """Return new credentials if the files changed; gRPC calls it at each handshake."""
        nonlocal used
        version = certificates.version
        if version == used:
            return None
        used = version
        return configuration()

    return grpc.dynamic_ssl_server_credentials(configuration(), changed, require_client_authentication=True)


def _path(settings: GrpcSecurity, name: str) -> Path:
    path: Path = getattr(settings, name)
    return path


class AskForToken(grpc.ServerInterceptor):  # type: ignore[misc]
    """Rejects calls without the token. Health checks need none."""

    def __init__(self, token: Token) -> None:
        self._token = token
        # The handler takes a stream, so that rejecting does not wait for a request, which may never come.
        self._refusal = grpc.stream_unary_rpc_method_handler(_refuse)

    def intercept_service(self, continuation: Callable[[Any], Any], details: Any) -> Any:
        """Return the handler, or one that rejects the call."""
        if details.method.startswith(HEALTH):
            return continuation(details)
        shown = next((value for key, value in details.invocation_metadata or () if key == _KEY), "")
        return continuation(details) if self._token.matches(str(shown)) else self._refusal


def _refuse(_requests: Any, context: grpc.ServicerContext) -> None:
    context.abort(
        grpc.StatusCode.UNAUTHENTICATED,
        "the fleet's token is missing or wrong: check LOOKOUT_GRPC_TOKEN_FILE",
    )


_Unary: Any = grpc.UnaryUnaryClientInterceptor
_Stream: Any = grpc.UnaryStreamClientInterceptor


class _ShowToken(_Unary, _Stream):  # type: ignore[misc]
    def __init__(self, token: Token) -> None:
        self._token = token

    def intercept_unary_unary(self, call: Callable[..., Any], details: Any, request: Any) -> Any:
        return call(self._with_token(details), request)

    def intercept_unary_stream(self, call: Callable[..., Any], details: Any, request: Any) -> Any:
        return call(self._with_token(details), request)

    def _with_token(self, details: Any) -> CallDetails:
        return CallDetails(details, [*(details.metadata or ()), (_KEY, f"Bearer {self._token.value()}")])
