"""Fetches tensors from other pods."""

import math
import threading
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import google_crc32c
import grpc
import numpy as np
from google.protobuf.message import Message

from lookout.runtime.net import Channels, GrpcSecurity, without_security
from lookout.runtime.store.errors import (
    LineageBrokenError,
    StoreError,
    TensorCorruptError,
    TensorNotMadeError,
    TensorUnavailableError,
)
from lookout.runtime.store.settings import CHUNK_BYTES, StoreSettings
from lookout.runtime.store.tensors import Array, Rows, numpy_dtype, shape_of_rows, tensor
from lookout.runtime.store.turns import Turns
from lookout.v1 import tensors_pb2_grpc
from lookout.v1.frames_pb2 import FramesRecord
from lookout.v1.lineage_pb2 import TensorRef
from lookout.v1.recordings_pb2 import RecordingPart
from lookout.v1.tensors_pb2 import GetTensorRequest, MaterializeTensorRequest, RowRange, TensorHeader
from lookout.v1.tokens_pb2 import TokensRecord

Traced = Callable[[grpc.Channel], grpc.Channel]


class Peers:
    """Fetches tensors over gRPC, with one channel per address. Thread-safe.

    `traced` adds trace context to a channel; `security` says how to reach peers. At most `peer_bytes` bytes
    are in transfer from one peer; further requests wait.
    """

    def __init__(
        self, settings: StoreSettings, traced: Traced | None = None, security: GrpcSecurity | None = None
    ) -> None:
        self._settings = settings
        self._traced = traced or (lambda channel: channel)
        self._opener = Channels(security or without_security())
        self._version = self._opener.version
        self._channels: dict[str, tuple[grpc.Channel, Any]] = {}
        self._on_the_way: dict[str, int] = {}
        self._turns: dict[str, Turns] = {}  # for making tensors, by address
        self._room = threading.Condition()

    def get(self, address: str, ref: TensorRef, rows: Rows | None = None) -> Array:
        """Fetch the tensor from a pod that holds it.

        Raises:
            TensorUnavailableError: The pod does not hold the tensor, or does not answer.
            TensorCorruptError: The bytes do not match the reference.
        """
        request = GetTensorRequest(ref=ref, rows=_ranges(rows))
        return self._receive(address, "GetTensor", request, self._settings.fetch_s)

    def materialize(self, address: str, ref: TensorRef, record: Message, rows: Rows | None = None) -> Array:
        """Fetch the tensor from a pod of its stage, which recomputes it if it does not hold it.

        At most twice as many requests are sent to a pod as it computes at a time. Further requests wait here,
        because the pod would reject them.

        Raises:
            LineageBrokenError: The tensor can never be recomputed.
            TensorNotMadeError: The pod answers but cannot compute the tensor.
            TensorUnavailableError: The pod does not answer, or no slot becomes free in time.
            TensorCorruptError: The bytes do not match the reference.
        """
        request = MaterializeTensorRequest(ref=ref, rows=_ranges(rows))
        if isinstance(record, FramesRecord):
            request.frames.CopyFrom(record)
        elif isinstance(record, TokensRecord):
            request.tokens.CopyFrom(record)
        elif isinstance(record, RecordingPart):
            request.part.CopyFrom(record)
        else:
            raise StoreError(f"no tensor is made from a {type(record).__name__}")
        patience_s = self._settings.materialize_s
        with self._room:
            turns = self._turns.setdefault(address, Turns(2 * self._settings.reserve_workers))
        try:
            with turns.turn(ref, patience_s):
                return self._receive(address, "MaterializeTensor", request, patience_s)
        except TimeoutError as error:
            raise TensorUnavailableError(f"{address}: {error}") from error

    def close(self) -> None:
        with self._room:
            channels, self._channels = self._channels, {}
        for channel, _ in channels.values():
            channel.close()

    def _receive(
        self, address: str, method: str, request: GetTensorRequest | MaterializeTensorRequest, deadline: float
    ) -> Array:
        ref, rows = request.ref, [(span.start, span.stop) for span in request.rows] or None
        with self._share(address, _expected(ref, rows), deadline):
            stream = getattr(self._stub(address), method)(request, timeout=deadline)
            try:
                return _assemble(stream, ref, rows, self._settings.tensor_bytes)
            except grpc.RpcError as error:
                raise _translated(error, address, ref) from error
            finally:
                # Without this, the peer would continue to send after an error interrupted the stream.
                stream.cancel()

    def _stub(self, address: str) -> Any:
        with self._room:
            if (version := self._opener.version) != self._version:
                # Running calls keep their channel, which is closed with the last of them.
                self._version, self._channels = version, {}
            if address not in self._channels:
                channel = self._opener.open(
                    address,
                    [
                        # A peer sends chunks; twice their size leaves room for the header, and larger
                        # messages are rejected unread.
                        ("grpc.max_receive_message_length", 2 * CHUNK_BYTES),
                        ("grpc.enable_retries", 0),  # instead, another holder or the tensor's stage is asked
                        # A pod that comes back at the same address is retried soon, not after minutes of
                        # back-off.
                        ("grpc.initial_reconnect_backoff_ms", 100),
                        ("grpc.max_reconnect_backoff_ms", 2000),
                    ],
                )
                traced = self._traced(channel)
                stub = tensors_pb2_grpc.TensorServiceStub(traced)  # type: ignore[no-untyped-call]
                self._channels[address] = channel, stub
            return self._channels[address][1]

    @contextmanager
    def _share(self, address: str, length: int, deadline: float) -> Iterator[None]:
        limit = self._settings.peer_bytes

        def fits() -> bool:
            used = self._on_the_way.get(address, 0)
            # A tensor larger than the limit is sent alone; otherwise it would wait for ever.
            return used == 0 or used + length <= limit

        with self._room:
            if not self._room.wait_for(fits, deadline):
                raise TensorUnavailableError(
                    f"{address}: {limit} bytes are already in transfer from it, "
                    f"which is the limit; retry later"
                )
            self._on_the_way[address] = self._on_the_way.get(address, 0) + length
        try:
            yield
        finally:
            with self._room:
                # The entry of an empty tensor may already be gone, removed after another transfer from this
                # holder.
                remaining = self._on_the_way.pop(address, 0) - length
                if remaining > 0:
                    self._on_the_way[address] = remaining
                self._room.notify_all()


def _ranges(rows: Rows | None) -> list[RowRange]:
    return [RowRange(start=start, stop=stop) for start, stop in rows or ()]


def _expected(ref: TensorRef, rows: Rows | None) -> int:
    """Return the size in bytes of these rows of a tensor, according to its reference."""
    if not ref.shape:
        return int(ref.length)
    return math.prod(shape_of_rows(ref.shape, rows)) * numpy_dtype(ref.dtype).itemsize


def _assemble(stream: Any, ref: TensorRef, rows: Rows | None, limit: int) -> Array:
    """Return the tensor in a stream: read its header, read the chunks into one buffer, and check both."""
    parts = iter(stream)
    first = next(parts, None)
    if first is None or first.WhichOneof("part") != "header":
        raise TensorCorruptError(f"{ref.id}: the peer sent no header")
    header: TensorHeader = first.header
    _check_header(header, ref, rows, limit)
    # Allocated only after the header is checked against the reference, because a peer may announce any
    # length.
    buffer = np.empty(header.length, np.uint8)
    filled = crc = 0
    for part in parts:
        chunk = part.chunk
        if filled + len(chunk) > header.length:
            raise TensorCorruptError(f"{ref.id}: the peer sent more than the announced {header.length} bytes")
        buffer[filled : filled + len(chunk)] = np.frombuffer(chunk, np.uint8)
        crc = google_crc32c.extend(crc, chunk)
        filled += len(chunk)
    if filled != header.length:
        raise TensorCorruptError(f"{ref.id}: {filled} of {header.length} bytes arrived")
    if crc != header.crc32c:
        raise TensorCorruptError(
            f"{ref.id}: the bytes have checksum {crc:08x}, but the header says {header.crc32c:08x}"
        )
    return tensor(buffer, header.dtype, header.shape)


def _check_header(header: TensorHeader, ref: TensorRef, rows: Rows | None, limit: int) -> None:
    kind = numpy_dtype(header.dtype)
    if header.length > limit:
        raise TensorCorruptError(
            f"{ref.id}: the peer announced {header.length} bytes; the limit is {limit} (tensor_bytes)"
        )
    if any(n < 0 for n in header.shape) or math.prod(header.shape) * kind.itemsize != header.length:
        raise TensorCorruptError(
            f"{ref.id}: {header.length} bytes do not match {header.dtype} of shape {list(header.shape)}"
        )
    if ref.shape and tuple(header.shape) != shape_of_rows(ref.shape, rows):
        raise TensorCorruptError(
            f"{ref.id}: the peer sent shape {list(header.shape)}, which is not rows of {list(ref.shape)}"
        )
    if ref.dtype and kind != numpy_dtype(ref.dtype):
        raise TensorCorruptError(f"{ref.id}: the peer sent {header.dtype}, not {ref.dtype}")


def _translated(error: grpc.RpcError, address: str, ref: TensorRef) -> StoreError:
    code, detail = error.code(), error.details()
    text = f"{ref.id} from {address}: {code.name} {detail}"
    if code in (grpc.StatusCode.FAILED_PRECONDITION, grpc.StatusCode.INVALID_ARGUMENT):
        return LineageBrokenError(text)  # no replica will ever compute it
    if code in (grpc.StatusCode.DATA_LOSS, grpc.StatusCode.OUT_OF_RANGE):
        return TensorCorruptError(text)
    if code is grpc.StatusCode.ABORTED:
        return TensorNotMadeError(text)
    return TensorUnavailableError(text)


def rank(address: str, key: str) -> int:
    """Return a replica's rendezvous rank for a key, so that all requests for a tensor go to the same replica
    first.
    """
    # Not `hash`, because every process of the fleet must get the same order.
    return zlib.crc32(f"{address}|{key}".encode())
