"""Errors of the tensor store."""

from lookout.errors import LookoutError


class StoreError(LookoutError):
    """Base of the tensor store's errors."""


class StoreFullError(StoreError):
    """The store is full of tensors that nobody has read yet. Pause the partition and put the tensor again
    (transient).
    """


class CameraQuotaError(StoreFullError):
    """One camera's unread tensors fill its share of the store.

    A `Keeper` raises it once the camera has waited for `camera_wait_s`; the record's outcome must then give
    it as the reason.
    """


class TensorCorruptError(StoreError):
    """A tensor's bytes do not match its length, dtype, shape or checksum."""


class DirectoryDownError(StoreError):
    """Redis did not answer, so tensors are recomputed by lineage instead (transient)."""


class LineageBrokenError(StoreError):
    """A tensor cannot be recomputed, because its record is gone or no longer yields it (permanent)."""


class TensorUnavailableError(StoreError):
    """Nobody holds the tensor, and no replica of its stage could compute it now (transient)."""


class TensorNotMadeError(TensorUnavailableError):
    """A replica of the tensor's stage answered but could not compute it.

    Either the tensor's input is at fault, or its camera's host does not answer. Retry within the camera's
    budget (`WaitBudget`).
    """
