"""A gRPC server with health checks, trace context, credentials and optional reflection."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import grpc
from grpc_health.v1 import health as grpc_health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from lookout.errors import StartupError
from lookout.runtime.net.call_limits import CallLimits, LimitCalls
from lookout.runtime.net.connections import GrpcSecurity, without_security
from lookout.runtime.net.grpc_security import AskForToken, Token, listen
from lookout.runtime.observe.tracing import ServerTracing

AddService = Callable[[grpc.Server], None]
MAX_MESSAGE_BYTES = 8 << 20  # fits tensors' chunks of 1 MiB, and records with motion grids


class GrpcServer:
    """A gRPC server: add services, then call `start`. The health service answers NOT_SERVING until
    `serving(True)`.

    Args:
        host: address to listen on; 0.0.0.0: all addresses, IPv6 included.
        port: port to listen on; 0: any free port.
        limits: how much of the server its callers may occupy.
        security: who may call; unset: anyone on this machine.

    Raises:
        StartupError: the port is taken, or other machines would be served without TLS.
    """

    def __init__(
        self, host: str, port: int, limits: CallLimits | None = None, security: GrpcSecurity | None = None
    ) -> None:
        security, limits = security or without_security(), limits or CallLimits()
        self._limits = LimitCalls(limits)
        token = Token.of(security)
        self._reflection = security.grpc_reflection
        self._names: list[str] = []
        self._health = grpc_health.HealthServicer()
        self._server = grpc.server(
            ThreadPoolExecutor(limits.threads, thread_name_prefix="grpc"),
            interceptors=(
                *([AskForToken(token)] if token is not None else []),
                self._limits,
                ServerTracing(),
            ),
            options=[
                ("grpc.so_reuseport", 0),
                ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
                ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
                ("grpc.keepalive_time_ms", 30_000),
                ("grpc.max_concurrent_streams", 2 * limits.calls),
            ],
        )
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self._server)
        address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        try:
            self.port: int = listen(self._server, address, host, security)
        except RuntimeError as error:
            raise StartupError(
                f"LOOKOUT_GRPC_PORT={port}: cannot listen on {address} ({error}): choose another port; 0 "
                f"takes any free port"
            ) from error

    def add(self, service: AddService, *names: str) -> None:
        """Register a servicer (`lambda server: add_XServicer_to_server(x, server)`) under its full names."""
        service(self._server)
        self._names.extend(names)

    def start(self) -> None:
        """Listen for calls."""
        if self._reflection:
            health = health_pb2.DESCRIPTOR.services_by_name["Health"].full_name
            reflection.enable_server_reflection((*self._names, health, reflection.SERVICE_NAME), self._server)
        self.serving(False)
        self._server.start()

    def serving(self, ready: bool) -> None:
        """Set what the health service answers for the server ("") and for every added service."""
        status = (
            health_pb2.HealthCheckResponse.SERVING if ready else health_pb2.HealthCheckResponse.NOT_SERVING
        )
        for name in ("", *self._names):
            self._health.set(name, status)

    def stop(self, grace_s: float = 1.0) -> None:
        """Reject new calls at once, and cancel running calls after `grace_s` seconds."""
        self._health.enter_graceful_shutdown()
        self._server.stop(grace_s).wait(grace_s + 1.0)
        self._limits.stop()
