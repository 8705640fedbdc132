"""Errors of the tensor store."""

from lookout.errors import LookoutError


class StoreError(LookoutError):
    """Base of the tensor store's errors."""


class StoreFullError(StoreError):
    """The store is full of tensors that nobody has read yet: pause the partition and put again
    (transient)."""


class CameraQuotaError(StoreFullError):
    """One camera's unread tensors fill its share of the store.

    A `Keeper` raises it once the camera has waited long enough; its outcome must then say so.
    """


class TensorCorruptError(StoreError):
    """A tensor's bytes do not match its length, dtype, shape or checksum."""


class DirectoryDownError(StoreError):
    """Redis did not answer; tensors are made again by their lineage instead (transient)."""


class LineageBrokenError(StoreError):
    """The record that a tensor would be made from is gone or no longer yields it, so it cannot be made again
    (permanent)."""


class TensorUnavailableError(StoreError):
    """Nobody holds the tensor, and no replica of its stage could make it just now (transient)."""


class TensorNotMadeError(TensorUnavailableError):
    """A replica of its stage answered but could not make this tensor.

    Either the tensor itself is at fault, or its camera's host does not answer (transient, within the camera's
    budget: `WaitBudget`).
    """
