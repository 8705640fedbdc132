"""The gRPC server of a service: health, reflection, its port, traces that go through it."""

from __future__ import annotations

import socket

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc
from opentelemetry import trace

from lookout.errors import StartupError
from lookout.runtime.net import GrpcSecurity, GrpcServer, load_connections
from lookout.runtime.observe import traced, tracing
from lookout.v1 import tensors_pb2, tensors_pb2_grpc
from lookout.wire import headers


class Tensors(tensors_pb2_grpc.TensorServiceServicer):
    def __init__(self) -> None:
        self.traces: list[int] = []

    def GetTensor(self, request: object, context: object) -> object:
        self.traces.append(trace.get_current_span().get_span_context().trace_id)
        yield tensors_pb2.GetTensorResponse(chunk=b"abc")


@pytest.fixture
def server() -> object:
    server = GrpcServer("127.0.0.1", 0)
    tensors = Tensors()
    server.add(
        lambda one: tensors_pb2_grpc.add_TensorServiceServicer_to_server(tensors, one),
        "lookout.v1.TensorService",
    )
    server.start()
    with grpc.insecure_channel(f"127.0.0.1:{server.port}") as channel:
        yield server, tensors, channel
    server.stop(0.1)


def test_grpc_health_follows_readiness(server: tuple[GrpcServer, Tensors, grpc.Channel]) -> None:
    stub = health_pb2_grpc.HealthStub(server[2])
    serving = health_pb2.HealthCheckResponse.SERVING
    for name in ("", "lookout.v1.TensorService"):
        assert stub.Check(health_pb2.HealthCheckRequest(service=name)).status != serving
    server[0].serving(True)
    for name in ("", "lookout.v1.TensorService"):
        assert stub.Check(health_pb2.HealthCheckRequest(service=name)).status == serving


def test_reflection_is_off_unless_asked_for(server: tuple[GrpcServer, Tensors, grpc.Channel]) -> None:
    request = reflection_pb2.ServerReflectionRequest(list_services="")
    with pytest.raises(grpc.RpcError) as refused:
        list(reflection_pb2_grpc.ServerReflectionStub(server[2]).ServerReflectionInfo(iter([request])))
    assert refused.value.code() is grpc.StatusCode.UNIMPLEMENTED
    asked = GrpcServer(
        "127.0.0.1", 0, security=load_connections(GrpcSecurity, {"LOOKOUT_GRPC_REFLECTION": "1"})
    )
    asked.add(lambda one: None, "lookout.v1.TensorService")
    asked.start()
    with grpc.insecure_channel(f"127.0.0.1:{asked.port}") as channel:
        stub = reflection_pb2_grpc.ServerReflectionStub(channel)
        (answer,) = stub.ServerReflectionInfo(iter([request]))
    asked.stop(0)
    names = {each.name for each in answer.list_services_response.service}
    assert {"lookout.v1.TensorService", "grpc.health.v1.Health"} <= names


def test_a_taken_port_names_its_setting(server: tuple[GrpcServer, Tensors, grpc.Channel]) -> None:
    with pytest.raises(StartupError, match=f"LOOKOUT_GRPC_PORT={server[0].port}"):
        GrpcServer("127.0.0.1", server[0].port)


def test_a_trace_goes_through_kafka_headers_and_grpc(
    server: tuple[GrpcServer, Tensors, grpc.Channel],
) -> None:
    tracing.setup("decode", "decode-0")
    with tracing.span("record") as first:
        carried = tracing.inject()
    wanted = first.get_span_context().trace_id
    assert f"{wanted:032x}" in (headers.text(carried, headers.TRACEPARENT) or "")
    stub = tensors_pb2_grpc.TensorServiceStub(traced(server[2]))
    with tracing.span("record", carried) as second:
        assert second.get_span_context().trace_id == wanted
        list(stub.GetTensor(tensors_pb2.GetTensorRequest()))
    assert server[1].traces == [wanted]


@pytest.mark.skipif(not socket.has_dualstack_ipv6(), reason="this machine has no IPv6")
@pytest.mark.parametrize(("host", "addresses"), [("0.0.0.0", ("127.0.0.1", "[::1]")), ("::1", ("[::1]",))])
def test_it_is_reached_over_ipv6(host: str, addresses: tuple[str, ...]) -> None:
    server = GrpcServer(host, 0, security=load_connections(GrpcSecurity, {"LOOKOUT_GRPC_INSECURE": "true"}))
    server.start()
    try:
        for address in addresses:
            with grpc.insecure_channel(f"{address}:{server.port}") as channel:
                health = health_pb2_grpc.HealthStub(channel)
                assert health.Check(health_pb2.HealthCheckRequest(), timeout=10).status
    finally:
        server.stop(0.1)
