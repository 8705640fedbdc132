"""The gRPC service that streams a store's tensors to peers."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import grpc
import numpy as np
import structlog
from google.protobuf.message import Message

from lookout.runtime.net import PeerBytes
from lookout.runtime.observe.limited_log import LimitedLog
from lookout.runtime.store.errors import (
    LineageBrokenError,
    StoreError,
    TensorCorruptError,
    TensorNotMadeError,
)
from lookout.runtime.store.settings import CHUNK_BYTES
from lookout.runtime.store.store import TensorStore
from lookout.runtime.store.tensors import Array, Rows, checksum, payload
from lookout.runtime.worker import is_device_failure, is_transient
from lookout.v1 import tensors_pb2_grpc
from lookout.v1.lineage_pb2 import STAGE_SAMPLES, TensorRef
from lookout.v1.tensors_pb2 import (
    DESCRIPTOR,
    GetTensorRequest,
    GetTensorResponse,
    MaterializeTensorRequest,
    MaterializeTensorResponse,
    TensorHeader,
)
from lookout.wire import WireError, check_message

#: maximum number of recomputations that run or wait for their turn. Each occupies one of the server's threads
#: (`CallLimits.calls`, 24), and plain reads need threads, too. A reader sends only a few at a time
#: (`Peers.materialize`)
WAITING = 16
M = TypeVar("M", bound=Message)
R = TypeVar("R", GetTensorResponse, MaterializeTensorResponse)


class TensorService(tensors_pb2_grpc.TensorServiceServicer):  # type: ignore[misc]
    """Serves one store: `server.add(service.register, service.NAME)`.

    Status codes: NOT_FOUND: the tensor is not held here. RESOURCE_EXHAUSTED: too many bytes are in transfer
    to this peer, or too many tensors are being computed. FAILED_PRECONDITION: the tensor can never be
    recomputed. UNIMPLEMENTED: the tensor belongs to another stage. ABORTED: this tensor could not be
    computed, but others may be. UNAVAILABLE: nothing can be computed now. OUT_OF_RANGE: the tensor does not
    have these rows.
    """

    NAME: str = DESCRIPTOR.services_by_name["TensorService"].full_name

    def __init__(self, store: TensorStore) -> None:
        self._store = store
        self._sending = PeerBytes(store.settings.peer_bytes)
        self._waiting = threading.BoundedSemaphore(WAITING)
        self._failures = LimitedLog(structlog.get_logger(__name__))

    def register(self, server: grpc.Server) -> None:
        tensors_pb2_grpc.add_TensorServiceServicer_to_server(self, server)  # type: ignore[no-untyped-call]

    def GetTensor(  # noqa: N802
        self, request: GetTensorRequest, context: grpc.ServicerContext
    ) -> Iterator[GetTensorResponse]:
        with _rows_checked(context):
            array = self._store.get(request.ref, _rows(request))
        if array is None:
            context.abort(grpc.StatusCode.NOT_FOUND, f"{request.ref.id} is not held here")
        else:
            yield from self._stream(array, GetTensorResponse, context)

    def MaterializeTensor(  # noqa: N802
        self, request: MaterializeTensorRequest, context: grpc.ServicerContext
    ) -> Iterator[MaterializeTensorResponse]:
        which = request.WhichOneof("record")
        if which is None:
            context.abort(
                grpc.StatusCode.INVALID_ARGUMENT, "the request has no record to compute the tensor from"
            )
            return
        if not self._store.can_make(request.ref) and request.ref not in self._store:
            context.abort(
                grpc.StatusCode.UNIMPLEMENTED,
                f"{request.ref.id}: this service does not compute tensors of its stage",
            )
        # Checked before waiting for a turn, so that a rejected request does not delay others.
        try:
            self._check(request)
        except WireError as error:
            context.abort(grpc.StatusCode.INVALID_ARGUMENT, f"{request.ref.id}: {error}")
        if not self._waiting.acquire(blocking=False):
            context.abort(
                grpc.StatusCode.RESOURCE_EXHAUSTED, "too many tensors are being recomputed; retry later"
            )
        try:
            array = self._store.materialize(request.ref, getattr(request, which), _rows(request))
        except Exception as error:
            code = _code(error)
            if code is grpc.StatusCode.ABORTED:
                camera = request.ref.camera
                self._failures.warning(
                    camera, "a tensor could not be computed", camera=camera, error=repr(error)
                )
            context.abort(code, f"{request.ref.id}: {error}")
            return
        finally:
            self._waiting.release()
        yield from self._stream(array, MaterializeTensorResponse, context)

    @staticmethod
    def _check(request: MaterializeTensorRequest) -> None:
        """Check the record from which a tensor would be computed, so that a caller cannot have other records
        read.

        Raises:
            WireError: The record is invalid or does not name this tensor.
        """
        record = getattr(request, str(request.WhichOneof("record")))
        check_message(record)
        if request.ref.stage == STAGE_SAMPLES:  # its id is a digest of the whole part
            return
        if request.ref not in list(_references(record)):
            raise WireError("the record does not name this tensor")

    def _stream(self, array: Array, response: type[R], context: grpc.ServicerContext) -> Iterator[R]:
        with self._sending.share(array.nbytes, context):
            flat = np.ascontiguousarray(array).reshape(array.shape)
            name = "bool" if flat.dtype.kind == "b" else flat.dtype.newbyteorder("=").name
            header = TensorHeader(shape=array.shape, dtype=name, length=flat.nbytes, crc32c=checksum(flat))
            yield response(header=header)
            data = payload(flat)
            for start in range(0, len(data), CHUNK_BYTES):
                if not context.is_active():
                    return
                yield response(chunk=bytes(data[start : start + CHUNK_BYTES]))


def _messages(message: Message, kind: type[M]) -> Iterator[M]:
    """Yield every message of a kind in a message, which may itself be one."""
    if isinstance(message, kind):
        yield message
    for field, value in message.ListFields():
        if field.message_type is not None:
            for inner in value if field.is_repeated else [value]:
                yield from _messages(inner, kind)


def _references(record: Message) -> Iterator[TensorRef]:
    yield from _messages(record, TensorRef)


def _code(error: Exception) -> grpc.StatusCode:
    """Return the gRPC status for a failure to compute a tensor.

    It tells the caller whether another attempt may help, and whether the tensor or this service is at fault.
    """
    if isinstance(error, LineageBrokenError):
        return grpc.StatusCode.FAILED_PRECONDITION
    if isinstance(error, TensorCorruptError):
        return grpc.StatusCode.DATA_LOSS
    if isinstance(error, IndexError):
        return grpc.StatusCode.OUT_OF_RANGE
    if isinstance(error, TensorNotMadeError):
        return grpc.StatusCode.ABORTED
    if isinstance(error, (StoreError, OSError)) or is_transient(error) or is_device_failure(error):
        return grpc.StatusCode.UNAVAILABLE
    return grpc.StatusCode.ABORTED


def _rows(request: Any) -> Rows | None:
    return [(span.start, span.stop) for span in request.rows] or None


@contextmanager
def _rows_checked(context: grpc.ServicerContext) -> Iterator[None]:
    try:
        yield
    except IndexError as error:
        context.abort(grpc.StatusCode.OUT_OF_RANGE, str(error))
    except TensorCorruptError as error:
        context.abort(grpc.StatusCode.DATA_LOSS, str(error))
