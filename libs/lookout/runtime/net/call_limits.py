"""Limits of a gRPC server: how many calls a peer may have open, and how long a caller may stall."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import grpc

from lookout.runtime.net.grpc_security import HEALTH

_LOOK_S = 0.5
Clock = Callable[[], float]


@dataclass(frozen=True, slots=True)
class CallLimits:
    """Limits on what callers may occupy of a gRPC server.

    Attributes:
        calls: Maximum number of calls at the same time.
        calls_a_peer: Maximum number of calls from one host at the same time.
        idle_s: Seconds that a caller may take to send its request, or to read one part of the answer.
        stream_s: Seconds that a caller may take to read a whole answer. The server's own work between two
            parts does not count.
        health_calls: Maximum number of calls of the health service at the same time, which are counted
            separately.
    """

    calls: int = 24
    calls_a_peer: int = 12
    idle_s: float = 15.0
    stream_s: float = 120.0
    health_calls: int = 8

    @property
    def threads(self) -> int:
        """Number of threads that the server needs; two of them are for rejecting calls."""
        return self.calls + self.health_calls + 2


@dataclass(slots=True)
class _Call:
    context: grpc.ServicerContext
    deadline: float | None  # None while the server works, not the caller
    waited: float = 0.0  # seconds that the caller has taken to read parts


class LimitCalls(grpc.ServerInterceptor):  # type: ignore[misc]
    """Enforces the limits on every call.

    A call counts from its first byte until it ends. If the caller sends no request or does not read the
    answer, the call is cancelled. Otherwise it could occupy a thread of the server for any length of time.
    """

    def __init__(self, limits: CallLimits, clock: Clock = time.monotonic) -> None:
        self._limits, self._clock = limits, clock
        self._lock = threading.Lock()
        self._calls: dict[int, _Call] = {}
        self._held: Counter[tuple[bool, str]] = Counter()
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="grpc-limits", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Stop looking for stalled calls."""
        self._stopped.set()

    def intercept_service(self, continuation: Callable[[Any], Any], details: Any) -> Any:
        """Wrap the handler so that its calls stay within the limits."""
        handler = continuation(details)
        if handler is None or handler.request_streaming:
            return handler
        health = details.method.startswith(HEALTH)
        if health and handler.response_streaming:
            return handler  # Watch does not occupy a thread
        # The request is taken as a stream, so that the call is counted before the request arrives.
        if handler.response_streaming:
            return grpc.stream_stream_rpc_method_handler(
                self._streamed(handler.unary_stream),
                handler.request_deserializer,
                handler.response_serializer,
            )
        return grpc.stream_unary_rpc_method_handler(
            self._answered(handler.unary_unary, health),
            handler.request_deserializer,
            handler.response_serializer,
        )

    def expire(self) -> None:
        """Cancel the calls whose callers took too long."""
        now = self._clock()
        with self._lock:
            late = [active for active in self._calls.values() if active.deadline is not None]
        over = [active for active in late if active.deadline is not None and now > active.deadline]
        for call in over:
            call.context.cancel()

    def _run(self) -> None:
        while not self._stopped.wait(_LOOK_S):
            self.expire()

    def _streamed(self, serve: Callable[[Any, Any], Iterator[Any]]) -> Callable[[Any, Any], Iterator[Any]]:
        def within(requests: Iterator[Any], context: grpc.ServicerContext) -> Iterator[Any]:
            call = self._begin(context, health=False)
            request = _request(requests, context)
            call.deadline = None
            for part in serve(request, context):
                now = self._clock()
                call.deadline = now + min(self._limits.idle_s, self._limits.stream_s - call.waited)
                yield part
                call.deadline = None
                call.waited += self._clock() - now

        return within

    def _answered(self, serve: Callable[[Any, Any], Any], health: bool) -> Callable[[Any, Any], Any]:
        def within(requests: Iterator[Any], context: grpc.ServicerContext) -> Any:
            call = self._begin(context, health)
            request = _request(requests, context)
            call.deadline = None
            return serve(request, context)

        return within

    def _begin(self, context: grpc.ServicerContext, health: bool) -> _Call:
        limits, host = self._limits, host_of(context)
        limit = limits.health_calls if health else limits.calls
        # Kubernetes probes come from the node's address, which pods may share, so one host gets at most half.
        limit_a_peer = max(1, limit // 2) if health else limits.calls_a_peer
        call = _Call(context, self._clock() + limits.idle_s)
        with self._lock:
            # Health checks are counted separately, so that a busy server does not look like a dead process.
            total = sum(count for (kind, _), count in self._held.items() if kind == health)
            free = total < limit and self._held[health, host] < limit_a_peer
            if free:
                self._held[health, host] += 1
                self._calls[id(call)] = call

        def end() -> None:
            with self._lock:
                self._calls.pop(id(call), None)
                self._held[health, host] -= 1
                if self._held[health, host] <= 0:
                    del self._held[health, host]

        if not free:
            context.abort(
                grpc.StatusCode.RESOURCE_EXHAUSTED,
                f"too many calls from {host}, or from all peers together; retry later",
            )
        if not context.add_callback(end):  # the call is already over, so nobody reads the answer
            end()
        return call


class PeerBytes:
    """Limits the bytes that are being sent to one host. Thread-safe.

    Args:
        limit: Maximum bytes per host. An answer that is sent alone may exceed the limit.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._lock = threading.Lock()
        self._sending: Counter[str] = Counter()

    @contextmanager
    def share(self, length: int, context: grpc.ServicerContext) -> Iterator[None]:
        """Count an answer's bytes while it is sent; abort with RESOURCE_EXHAUSTED if they exceed the
        limit."""
        host = host_of(context)
        with self._lock:
            full = self._sending[host] > 0 and self._sending[host] + length > self._limit
            if not full:
                self._sending[host] += length
        if full:
            context.abort(
                grpc.StatusCode.RESOURCE_EXHAUSTED,
                f"more than {self._limit} bytes would be in transfer to {host}; retry later",
            )
        try:
            yield
        finally:
            with self._lock:
                self._sending[host] -= length
                if self._sending[host] <= 0:
                    del self._sending[host]


def _request(requests: Iterator[Any], context: grpc.ServicerContext) -> Any:
    request = next(requests, None)
    if request is None:
        context.abort(grpc.StatusCode.INVALID_ARGUMENT, "the call has no request")
    return request


def host_of(context: grpc.ServicerContext) -> str:
    """Return the caller's host, without the port, which differs between connections."""
    kind, _, place = str(context.peer()).partition(":")
    return place.rpartition(":")[0] if kind in ("ipv4", "ipv6") else str(context.peer())
