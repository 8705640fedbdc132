"""What can go wrong between a reference and its tensor."""

from lookout.errors import LookoutError


class StoreError(LookoutError):
    """Any failure of the tensor store."""


class StoreFullError(StoreError):
    """Every byte is held by tensors nobody has read yet: pause the partition and put again (transient)."""


class CameraQuotaError(StoreFullError):
    """One camera's unread tensors fill its share of the store. A `Keeper` raises it once the camera has
    waited long enough: its outcome must say so."""


class TensorCorruptError(StoreError):
    """Bytes do not match their length, shape or checksum."""


class DirectoryDownError(StoreError):
    """Redis did not answer; tensors are fetched by their lineage (transient)."""


class LineageBrokenError(StoreError):
    """The record a tensor would be made from is gone or no longer gives it: it cannot be made again
    (permanent)."""


class TensorUnavailableError(StoreError):
    """Nobody holds the tensor and no replica of its stage could make it just now (transient)."""


class TensorNotMadeError(TensorUnavailableError):
    """A replica of its stage answered and could not make this tensor: the fault is the tensor's, or its
    camera's host is away (transient, within the camera's budget: `WaitBudget`)."""
