"""Classifies a handler's failures: which are transient, and which are failures of the device."""

from __future__ import annotations

from collections.abc import Iterator

from confluent_kafka import KafkaException

from lookout.errors import DeviceFailedError, TransientError

# A peer whose limits are reached answers RESOURCE_EXHAUSTED (`net.call_limits`), and accepts calls again
# soon.
_GRPC_TRANSIENT = frozenset({"UNAVAILABLE", "DEADLINE_EXCEEDED", "RESOURCE_EXHAUSTED", "ABORTED"})
# By name, because the Redis client's classes do not derive from the builtin ones, and not every service
# imports it.
_NETWORK_ERRORS = frozenset({"ConnectionError", "TimeoutError", "BusyLoadingError"})
#: names of torch's exceptions for device failures; older calls raise a RuntimeError that begins with
#: `_DEVICE_WORDS`
_DEVICE_ERRORS = frozenset({"OutOfMemoryError", "AcceleratorError", "CudaError"})
_DEVICE_WORDS = ("CUDA error", "CUDA out of memory", "cuDNN error", "CUBLAS error", "NCCL error")


def is_transient(error: BaseException) -> bool:
    """Whether a retry may succeed: for TransientError, and for errors of networks, stores and peers that
    cannot be reached now."""
    if isinstance(error, (TransientError, ConnectionError, TimeoutError)):
        return True
    if isinstance(error, KafkaException):
        return bool(error.args[0].retriable())
    code = getattr(error, "code", None)
    if type(error).__module__.startswith("grpc") and callable(code):
        return getattr(code(), "name", "") in _GRPC_TRANSIENT
    return any(kind.__name__ in _NETWORK_ERRORS for kind in type(error).__mro__)


def is_device_failure(error: BaseException) -> bool:
    """Whether this error, or one of its causes, is a failure of the device.

    torch's exceptions are recognised by module and name, to avoid importing torch.
    """
    return any(_names_device(cause) for cause in _causes(error))


def _names_device(error: BaseException) -> bool:
    if isinstance(error, DeviceFailedError):
        return True
    for kind in type(error).__mro__:
        if kind.__name__ in _DEVICE_ERRORS and kind.__module__.split(".")[0] in ("torch", "cupy", "vllm"):
            return True
    return isinstance(error, RuntimeError) and str(error).startswith(_DEVICE_WORDS)


def _causes(error: BaseException) -> Iterator[BaseException]:
    visited: set[int] = set()
    following: BaseException | None = error
    while following is not None and id(following) not in visited:
        visited.add(id(following))
        yield following
        following = following.__cause__
