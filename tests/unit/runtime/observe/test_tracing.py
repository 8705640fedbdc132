"""Traces reach a collector, over TLS where its address says so."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.proto.collector.trace.v1.trace_service_pb2_grpc import (
    TraceServiceServicer,
    add_TraceServiceServicer_to_server,
)
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor

from lookout.runtime.observe.tracing import exporter
from tests.certificates import Authority


class Collector(TraceServiceServicer):
    """Keeps the names of spans; `open` and `secured` are its ports without and with TLS."""

    def __init__(self, files: dict[str, Path]) -> None:
        self.names: list[str] = []
        self._server = grpc.server(ThreadPoolExecutor(2))
        add_TraceServiceServicer_to_server(self, self._server)
        pair = files["grpc_key_file"].read_bytes(), files["grpc_cert_file"].read_bytes()
        self.open = self._server.add_insecure_port("127.0.0.1:0")
        self.secured = self._server.add_secure_port("127.0.0.1:0", grpc.ssl_server_credentials([pair]))
        self._server.start()

    def Export(
        self, request: ExportTraceServiceRequest, context: grpc.ServicerContext
    ) -> ExportTraceServiceResponse:
        for resource in request.resource_spans:
            self.names += [span.name for scope in resource.scope_spans for span in scope.spans]
        return ExportTraceServiceResponse()

    def stop(self) -> None:
        """Close both ports."""
        self._server.stop(0).wait()


@pytest.fixture
def collector(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Collector]:
    files = Authority().write(tmp_path)
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_CERTIFICATE", str(files["grpc_ca_file"]))
    running = Collector(files)
    yield running
    running.stop()


@pytest.mark.parametrize(("scheme", "port"), [("http", "open"), ("https", "secured")])
def test_a_collector_is_reached_as_its_address_says(collector: Collector, scheme: str, port: str) -> None:
    provider = TracerProvider()
    provider.add_span_processor(
        SimpleSpanProcessor(exporter(f"{scheme}://127.0.0.1:{getattr(collector, port)}"))
    )
    with provider.get_tracer("tests").start_as_current_span("work"):
        pass
    provider.shutdown()
    assert collector.names == ["work"]
