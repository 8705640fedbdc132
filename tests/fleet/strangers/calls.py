"""Strange calls: at the tensors' gRPC service and at the pages of health and metrics."""

from __future__ import annotations

import random
import socket
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import grpc

from lookout.v1 import tensors_pb2_grpc
from lookout.v1.frames_pb2 import FramesRecord
from lookout.v1.tensors_pb2 import GetTensorRequest, MaterializeTensorRequest
from lookout.v1.tokens_pb2 import TokensRecord
from tests import mutations
from tests.fleet.strangers.tally import Door, Tally

_SERVICE: Final = "/lookout.v1.TensorService/"
_PATIENCE_S: Final = 20.0
_IDLE: Final = 200  # connections that a stranger leaves open
_MANY, _FEW = 40, 4

Chance = random.Random


def grpc_door(address: str, stage: str, token: str, chance: Chance, tally: Tally) -> Door:
    """A stage's tensor service.

    Args:
        address: host:port.
        stage: Its name.
        token: The fleet's token: what a peer that was taken over would show.
        chance: Of every choice.
        tally: Of inputs.
    """
    channel = grpc.insecure_channel(address, options=[("grpc.max_send_message_length", -1)])
    stub = tensors_pb2_grpc.TensorServiceStub(channel)  # type: ignore[no-untyped-call]
    idle: list[socket.socket] = []
    host, port = address.rsplit(":", 1)
    place = (host, int(port))

    def call(kind: str, method: str, request: Any, metadata: Sequence[tuple[str, str | bytes]]) -> None:
        with tally.trying(kind, grpc.RpcError, ValueError):
            for _ in getattr(stub, method)(request, timeout=_PATIENCE_S, metadata=metadata):
                pass

    def raw(kind: str, method: str, body: bytes, shown: str | None = token) -> None:
        metadata = [] if shown is None else [("authorization", f"Bearer {shown}")]
        with tally.trying(kind, grpc.RpcError, ValueError):
            for _ in channel.unary_stream(method)(body, timeout=_PATIENCE_S, metadata=metadata):
                pass

    def fuzzed(request: type[Any], change: str) -> bytes:
        message = mutations.filled(request, f"strange-{chance.randrange(40)}", chance)
        return mutations.BINARY[change](message.SerializeToString(), request, chance)

    def of_record(kind: type[Any]) -> MaterializeTensorRequest:
        request = MaterializeTensorRequest()
        request.ref.CopyFrom(mutations.filled(type(request.ref), "strange-1", chance))
        name = "frames" if kind is FramesRecord else "tokens"
        record = mutations.filled(kind, "strange-1", chance)
        mutations.mutate_message(record, chance)
        getattr(request, name).CopyFrom(record)
        return request

    def connect(kind: str, data: bytes) -> None:
        with tally.trying(kind, OSError):
            connection = socket.create_connection(place, _PATIENCE_S)
            connection.settimeout(1.0)
            if not data:
                idle.append(connection)
                if len(idle) > _IDLE:
                    idle.pop(0).close()
                return
            with connection:
                connection.sendall(data)
                while connection.recv(4096):
                    pass

    name = f"grpc-{stage}"
    bearer = [("authorization", f"Bearer {token}")]
    tokens: tuple[str | None, ...] = (None, "", "wrong", token[:-1], token + "x", "\x7f", "é", "a" * 5000)
    ways: dict[str, tuple[Callable[[str], None], int]] = {
        "without-token": (
            lambda kind: raw(kind, _SERVICE + "GetTensor", b"", chance.choice(tokens[:1])),
            _MANY,
        ),
        "wrong-token": (
            lambda kind: raw(kind, _SERVICE + "GetTensor", b"", chance.choice(tokens[1:])),
            _MANY,
        ),
        "unknown-method": (
            lambda kind: raw(kind, chance.choice(("/x/y", _SERVICE + "No", "//")), b""),
            _MANY,
        ),
        "reflection": (
            lambda kind: raw(
                kind, "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo", b"\x3a\x00"
            ),
            _FEW,
        ),
        "large-request": (lambda kind: raw(kind, _SERVICE + "GetTensor", bytes(9 << 20)), _FEW),
        "strange-metadata": (
            lambda kind: call(
                kind,
                "GetTensor",
                GetTensorRequest(),
                [*bearer, ("traceparent", chance.choice(("00-0-0-0", "x" * 4000))), ("x-bin", b"\xff\0")],
            ),
            _MANY,
        ),
        "frames-made-again": (
            lambda kind: call(kind, "MaterializeTensor", of_record(FramesRecord), bearer),
            _MANY,
        ),
        "tokens-made-again": (
            lambda kind: call(kind, "MaterializeTensor", of_record(TokensRecord), bearer),
            _MANY,
        ),
        "no-grpc": (
            lambda kind: connect(
                kind,
                chance.choice(
                    (b"GET / HTTP/1.1\r\n\r\n", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\xff" * 90)
                ),
            ),
            _FEW,
        ),
        "idle-connection": (lambda kind: connect(kind, b""), _IDLE),
        "noise-on-the-line": (lambda kind: connect(kind, chance.randbytes(300) + b"\r\n\r\n"), _FEW),
    }
    for change in ("noise", "truncated", "flipped", "absurd-number", "long-list", "several-fields", "nested"):
        for request, method in (
            (GetTensorRequest, "GetTensor"),
            (MaterializeTensorRequest, "MaterializeTensor"),
        ):
            ways[f"{method}-{change}"] = (
                lambda kind, request=request, method=method, change=change: raw(  # type: ignore[misc]
                    kind, _SERVICE + method, fuzzed(request, change)
                ),
                _MANY,
            )

    def close() -> None:
        for connection in idle:
            connection.close()
        channel.close()

    return Door(name, _bound(name, ways), close)


def pages_door(ports: Mapping[str, int], chance: Chance, tally: Tally) -> Door:
    """Health and metrics of every service."""
    idle: list[socket.socket] = []

    def ask(kind: str, data: bytes, wait: bool = True) -> None:
        with tally.trying(kind, OSError):
            connection = socket.create_connection(("127.0.0.1", chance.choice(list(ports.values()))), 10.0)
            connection.settimeout(3.0)
            connection.sendall(data)
            if not wait:
                idle.append(connection)
                return
            with connection:
                while connection.recv(65536):
                    pass

    ways: dict[str, tuple[Callable[[str], None], int]] = {
        "unknown-path": (
            lambda kind: ask(kind, b"GET /" + chance.choice(mutations.TEXTS).encode() + b" HTTP/1.0\r\n\r\n"),
            _MANY,
        ),
        "path-upwards": (lambda kind: ask(kind, b"GET /../../etc/passwd HTTP/1.0\r\n\r\n"), _FEW),
        "long-line": (lambda kind: ask(kind, b"GET /" + b"a" * 100_000 + b" HTTP/1.0\r\n\r\n"), _FEW),
        "many-headers": (lambda kind: ask(kind, b"GET / HTTP/1.0\r\n" + b"a: b\r\n" * 5000 + b"\r\n"), _FEW),
        "other-method": (
            lambda kind: ask(
                kind, chance.choice((b"POST", b"PUT", b"\x1b[2J")) + b" /metrics HTTP/1.0\r\n\r\n"
            ),
            _MANY,
        ),
        "noise-on-the-line": (lambda kind: ask(kind, chance.randbytes(200) + b"\r\n\r\n"), _MANY),
        "idle-connection": (lambda kind: ask(kind, b"GET /metrics HTTP/1.1\r\n", wait=False), _IDLE),
    }

    def close() -> None:
        for connection in idle:
            connection.close()

    return Door("pages", _bound("pages", ways), close)


def _bound(
    name: str, ways: Mapping[str, tuple[Callable[[str], None], int]]
) -> dict[str, tuple[Callable[[], None], int]]:
    return {
        way: ((lambda send=send, kind=f"{name} {way}": send(kind)), count)  # type: ignore[misc]
        for way, (send, count) in ways.items()
    }
