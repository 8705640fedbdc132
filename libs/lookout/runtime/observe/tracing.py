"""Trace context in Kafka headers and gRPC metadata (W3C `traceparent`)."""

from __future__ import annotations

import contextvars
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import grpc
from opentelemetry import context as otel, trace
from opentelemetry.context import Context
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from lookout.wire import headers as names
from lookout.wire.headers import Headers

if TYPE_CHECKING:
    from opentelemetry.sdk.trace.export import SpanExporter

_PROPAGATOR = TraceContextTextMapPropagator()


def setup(stage: str, instance: str, endpoint: str | None = None) -> None:
    """Set up tracing for this process. Spans go to `endpoint` (OTLP over gRPC); with None, trace context is
    only passed on."""
    provider = TracerProvider(
        resource=Resource.create({"service.name": f"lookout-{stage}", "service.instance.id": instance})
    )
    if endpoint:
        from opentelemetry.sdk.trace.export import BatchSpanProcessor

        provider.add_span_processor(BatchSpanProcessor(exporter(endpoint)))
    trace.set_tracer_provider(provider)


def exporter(endpoint: str) -> SpanExporter:
    """Return an exporter to a collector, which uses TLS if the address begins with https://."""
    from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter

    return OTLPSpanExporter(endpoint=endpoint, insecure=not endpoint.startswith("https://"))


def tracer() -> trace.Tracer:
    """Return the runtime's tracer."""
    return trace.get_tracer("lookout")


def extract(headers: Headers) -> Context:
    """Return the trace context in a record's headers."""
    parent = names.text(headers, names.TRACEPARENT)
    return _PROPAGATOR.extract({names.TRACEPARENT: parent} if parent else {})


def inject(context: Context | None = None) -> Headers:
    """Return headers with the given trace context, by default the current one; empty if there is no
    context.
    """
    carrier: dict[str, str] = {}
    _PROPAGATOR.inject(carrier, context)
    return names.encode(carrier)


@contextmanager
def span(name: str, headers: Headers = (), **attributes: str | int | float) -> Iterator[trace.Span]:
    """Open a span under the trace context in `headers`; without headers, under the current context."""
    parent = extract(headers) if headers else None
    with tracer().start_as_current_span(name, context=parent, attributes=attributes) as current:
        yield current


_Unary: Any = grpc.UnaryUnaryClientInterceptor
_Stream: Any = grpc.UnaryStreamClientInterceptor


class ClientTracing(_Unary, _Stream):  # type: ignore[misc]
    """Sends the current trace context with every call."""

    def intercept_unary_unary(self, call: Callable[..., Any], details: Any, request: Any) -> Any:
        """Add the context to a call with a single answer."""
        return call(_traced(details), request)

    def intercept_unary_stream(self, call: Callable[..., Any], details: Any, request: Any) -> Any:
        """Add the context to a call with a streamed answer."""
        return call(_traced(details), request)


def _traced(details: Any) -> CallDetails:
    carrier: dict[str, str] = {}
    _PROPAGATOR.inject(carrier)
    return CallDetails(details, [*(details.metadata or ()), *carrier.items()])


class ServerTracing(grpc.ServerInterceptor):  # type: ignore[misc]
    """Runs every call under the caller's trace context."""

    def intercept_service(self, continuation: Callable[[Any], Any], details: Any) -> Any:
        """Wrap the handler if the call carries a context."""
        handler = continuation(details)
        carrier = {key: value for key, value in details.invocation_metadata or () if key == names.TRACEPARENT}
        if handler is None or not carrier:
            return handler
        context = _PROPAGATOR.extract(carrier)
        if handler.unary_unary and not handler.request_streaming:
            return grpc.unary_unary_rpc_method_handler(
                _within(handler.unary_unary, context),
                handler.request_deserializer,
                handler.response_serializer,
            )
        if handler.unary_stream:
            return grpc.unary_stream_rpc_method_handler(
                _within_stream(handler.unary_stream, context),
                handler.request_deserializer,
                handler.response_serializer,
            )
        return handler


def _within(call: Callable[..., Any], context: Context) -> Callable[..., Any]:
    def wrapped(request: Any, servicer: Any) -> Any:
        token = otel.attach(context)
        try:
            return call(request, servicer)
        finally:
            otel.detach(token)

    return wrapped


def _within_stream(call: Callable[..., Any], context: Context) -> Callable[..., Any]:
    """Run each step of a generator under the context, because a generator's body runs only while it is
    read.
    """

    def wrapped(request: Any, servicer: Any) -> Iterator[Any]:
        carried = contextvars.copy_context()
        # In a copy of the context, because the server's thread runs other calls between two parts.
        carried.run(otel.attach, context)
        stream = carried.run(lambda: iter(call(request, servicer)))
        while (part := carried.run(next, stream, None)) is not None:
            yield part

    return wrapped


def traced(channel: grpc.Channel) -> grpc.Channel:
    """Wrap a channel with `ClientTracing`."""
    return grpc.intercept_channel(channel, ClientTracing())


class CallDetails(grpc.ClientCallDetails):  # type: ignore[misc]
    """A call's details with other metadata."""

    def __init__(self, details: Any, metadata: Sequence[tuple[str, str]]) -> None:
        self.method = details.method
        self.timeout = details.timeout
        self.metadata = metadata
        self.credentials = details.credentials
        self.wait_for_ready = details.wait_for_ready
        self.compression = details.compression
