"""Classifies the exceptions of a forward pass: out of memory, broken device, or faulty work."""

from __future__ import annotations

from enum import Enum

import torch


class Fault(Enum):
    """Kinds of failure. They differ in what must happen next."""

    MEMORY = "memory"
    """The work does not fit in the device's memory. Run less work at once."""
    DEVICE = "device"
    """The device is broken. This process cannot use it again."""
    WORK = "work"
    """Any other failure. The work itself is the likely cause."""


FAILURES = (RuntimeError, ValueError, IndexError, TypeError, KeyError, AssertionError, MemoryError)
"""Exception types that a forward pass may raise."""

_MEMORY = (
    "out of memory",
    "can't allocate memory",
    "cannot allocate memory",
    "not enough memory",
    "cublas_status_alloc_failed",
    "cudnn_status_alloc_failed",
)
_DEVICE = (
    "cuda error",
    "hip error",
    "cublas_status",
    "cudnn_status",
    "cusolver_status",
    "nccl error",
    "device-side assert",
    "enginecore encountered an issue",
)
_DEVICE_TYPES = ("AcceleratorError", "EngineDeadError", "DistBackendError", "StuckEngineError")


def fault_of(error: BaseException) -> Fault:
    """Return the kind of failure of an exception that a forward pass raised. The exception's causes count
    too.

    `Fault.DEVICE` is final, because a CUDA context rejects all work after an error. Messages are compared as
    text, because vLLM's workers pass errors on as text.
    """
    kinds = [_kind(cause) for cause in _chain(error)]
    if Fault.MEMORY in kinds:
        return Fault.MEMORY
    return Fault.DEVICE if Fault.DEVICE in kinds else Fault.WORK


def _chain(error: BaseException) -> list[BaseException]:
    chain: list[BaseException] = []
    step: BaseException | None = error
    while step is not None and step not in chain:
        chain.append(step)
        step = step.__cause__ or step.__context__
    return chain


def _kind(error: BaseException) -> Fault:
    text = str(error).lower()
    if isinstance(error, (MemoryError, torch.OutOfMemoryError)) or any(word in text for word in _MEMORY):
        return Fault.MEMORY
    if type(error).__name__ in _DEVICE_TYPES or any(word in text for word in _DEVICE):
        return Fault.DEVICE
    return Fault.WORK
