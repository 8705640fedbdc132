"""Puts a producing stage's tensors into its store, and makes cameras wait for room."""

import time
from collections.abc import Callable

from lookout.errors import TransientError
from lookout.runtime.store.errors import CameraQuotaError, StoreFullError
from lookout.runtime.store.store import TensorStore
from lookout.runtime.store.tensors import Array
from lookout.runtime.store.unread import Unread
from lookout.v1.lineage_pb2 import TensorRef


class Keeper:
    """Puts tensors into a store; a camera over its quota waits once, then its tensors are rejected.

    A camera gets over its quota if the next stage reads its tensors more slowly than they are made. While the
    camera waits, its partition commits nothing. After `camera_wait_s`, the camera's segments or blocks are
    skipped, with an outcome that gives the reason, until there is room again.

    Args:
        store: Where tensors are put.
        clock: Monotonic seconds.
    """

    def __init__(self, store: TensorStore, clock: Callable[[], float] = time.monotonic) -> None:
        self._store = store
        self._clock = clock
        self._since: dict[str, float] = {}  # cameras over their quota, and since when

    def check(self, camera: str) -> None:
        """Check that a camera has room for more tensors; call it before doing work for the camera.

        Raises:
            TransientError: The camera is over its quota; retry later.
            CameraQuotaError: The camera stayed over its quota longer than `camera_wait_s`.
        """
        try:
            self._store.check_quota(camera)
        except CameraQuotaError as error:
            raise self._refusal(camera, error) from error

    def put(self, ref: TensorRef, array: Array, unread: Unread, dtype: str | None = None) -> TensorRef:
        """Put a tensor for the next stage (`TensorStore.put`); return its completed reference.

        Raises:
            TransientError: The store is full, or the camera is over its quota; retry later.
            CameraQuotaError: The camera stayed over its quota longer than `camera_wait_s`.
        """
        try:
            return self._store.put(ref, array, unread, dtype)
        except CameraQuotaError as error:
            raise self._refusal(ref.camera, error) from error
        except StoreFullError as error:
            raise TransientError(str(error)) from error

    def forget(self, camera: str) -> None:
        """Reset a camera's wait, because all tensors of a record fitted or another worker took the camera
        over.
        """
        self._since.pop(camera, None)

    def _refusal(self, camera: str, error: CameraQuotaError) -> Exception:
        now = self._clock()
        # The wait began at the first rejection; later attempts at the record must not restart it.
        over = now - self._since.setdefault(camera, now) >= self._store.settings.camera_wait_s
        return CameraQuotaError(str(error)) if over else TransientError(str(error))
