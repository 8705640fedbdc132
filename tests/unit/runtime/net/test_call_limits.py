"""Callers that keep calls open do not keep others out."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from lookout.runtime.net import CallLimits, GrpcServer, PeerBytes
from lookout.v1 import tensors_pb2, tensors_pb2_grpc
from tests.eventually import eventually

LIMITS = CallLimits(calls=4, calls_a_peer=4, idle_s=60.0, stream_s=120.0, health_calls=8)
METHOD = "/lookout.v1.TensorService/GetTensor"


class Endless(tensors_pb2_grpc.TensorServiceServicer):  # type: ignore[misc]
    """Sends as much as anybody takes."""

    def GetTensor(self, request: object, context: object) -> Iterator[tensors_pb2.GetTensorResponse]:
        while True:
            yield tensors_pb2.GetTensorResponse(chunk=bytes(1 << 20))


class Watched:
    """A server whose clock stands still until it is set."""

    def __init__(self, service: Callable[[Watched], object] = lambda watched: Endless()) -> None:
        self.now = 0.0
        self.server = GrpcServer("127.0.0.1", 0, LIMITS)
        self.server._limits._clock = lambda: self.now
        self.server.add(
            lambda one: tensors_pb2_grpc.add_TensorServiceServicer_to_server(service(self), one),
            "lookout.v1.TensorService",
        )
        self.server.start()
        self.server.serving(True)
        self.address = f"127.0.0.1:{self.server.port}"

    def held(self) -> int:
        return sum(self.server._limits._held.values())

    def nothing_held_a_while_later(self) -> bool:
        self.now += LIMITS.idle_s + 1  # again and again: what lies in buffers counts as read at first
        return self.held() == 0


@pytest.fixture
def watched() -> Iterator[Watched]:
    made = Watched()
    yield made
    made.server.stop(0)


def healthy(address: str) -> bool:
    with grpc.insecure_channel(address) as channel:
        answer = health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(), timeout=30.0)
    return bool(answer.status == health_pb2.HealthCheckResponse.SERVING)


def code_of(stream: object) -> grpc.StatusCode:
    with pytest.raises(grpc.RpcError) as caught:
        for _ in stream:  # type: ignore[attr-defined]
            pass
    code: grpc.StatusCode = caught.value.code()
    return code


def test_readers_that_stop_reading_hold_neither_health_nor_others_for_long(watched: Watched) -> None:
    channels = [grpc.insecure_channel(watched.address) for _ in range(LIMITS.calls)]
    streams = [
        tensors_pb2_grpc.TensorServiceStub(each).GetTensor(tensors_pb2.GetTensorRequest())  # type: ignore[no-untyped-call]
        for each in channels
    ]
    for stream in streams:
        next(stream)
    assert healthy(watched.address)
    with grpc.insecure_channel(watched.address) as channel:
        late = tensors_pb2_grpc.TensorServiceStub(channel).GetTensor(tensors_pb2.GetTensorRequest())  # type: ignore[no-untyped-call]
        assert code_of(late) is grpc.StatusCode.RESOURCE_EXHAUSTED
    eventually(watched.nothing_held_a_while_later)
    with grpc.insecure_channel(watched.address) as channel:
        again = tensors_pb2_grpc.TensorServiceStub(channel).GetTensor(tensors_pb2.GetTensorRequest())  # type: ignore[no-untyped-call]
        assert next(again).chunk
        again.cancel()
    for each in channels:
        each.close()


def test_a_reader_that_reads_slowly_is_ended_too(watched: Watched) -> None:
    with grpc.insecure_channel(watched.address) as channel:
        stream = tensors_pb2_grpc.TensorServiceStub(channel).GetTensor(tensors_pb2.GetTensorRequest())  # type: ignore[no-untyped-call]
        for _ in range(40):
            next(stream)
        watched.now = LIMITS.stream_s + 1
        assert code_of(stream) is grpc.StatusCode.CANCELLED


class Working(tensors_pb2_grpc.TensorServiceServicer):  # type: ignore[misc]
    """Works longer on each part than a caller may take to read a whole answer."""

    def __init__(self, watched: Watched) -> None:
        self.watched = watched

    def GetTensor(self, request: object, context: object) -> Iterator[tensors_pb2.GetTensorResponse]:
        for _ in range(3):
            yield tensors_pb2.GetTensorResponse(chunk=b"part")
            self.watched.now += LIMITS.stream_s + 1
            self.watched.server._limits.expire()


def test_a_server_that_works_between_two_parts_is_not_taken_for_a_slow_reader() -> None:
    made = Watched(Working)
    with grpc.insecure_channel(made.address) as channel:
        stream = tensors_pb2_grpc.TensorServiceStub(channel).GetTensor(tensors_pb2.GetTensorRequest())  # type: ignore[no-untyped-call]
        assert [part.chunk for part in stream] == [b"part"] * 3
    made.server.stop(0)


@pytest.mark.parametrize("method", [METHOD, "/grpc.health.v1.Health/Check"])
def test_requests_that_never_come_hold_nothing_for_long(watched: Watched, method: str) -> None:
    """A call is opened, and its message is not sent."""
    channels = [grpc.insecure_channel(watched.address) for _ in range(2)]
    done = threading.Event()
    calls = [each.stream_unary(method).future(_nothing_until(done)) for each in channels]
    eventually(lambda: watched.held() >= 2)
    assert healthy(watched.address)
    eventually(watched.nothing_held_a_while_later)
    for call in calls:
        call.cancel()
    for each in channels:
        each.close()
    done.set()


def _nothing_until(done: threading.Event) -> Iterator[bytes]:
    done.wait(120)
    yield b""


class Caller:
    """A call's context, as far as limits look at it."""

    def __init__(self, host: str) -> None:
        self.host = host

    def peer(self) -> str:
        return f"ipv4:{self.host}:50000"

    def abort(self, code: grpc.StatusCode, details: str) -> None:
        raise PermissionError(f"{code.name}: {details}")


def test_bytes_on_their_way_are_bounded_for_each_host() -> None:
    sending = PeerBytes(100)
    first, second = Caller("10.0.0.1"), Caller("10.0.0.2")
    with sending.share(400, first):  # one answer alone may exceed the limit
        refused = pytest.raises(PermissionError, match="RESOURCE_EXHAUSTED: more than 100 bytes")
        with refused, sending.share(1, first):
            pass
        with sending.share(60, second), sending.share(40, second):
            pass
    with pytest.raises(KeyError), sending.share(80, first):
        raise KeyError
    with sending.share(60, first), sending.share(40, first):
        pass
