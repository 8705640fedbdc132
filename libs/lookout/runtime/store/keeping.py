"""How a producing stage puts its tensors into its store, and how long it waits for room."""

import time
from collections.abc import Callable

from lookout.errors import TransientError
from lookout.runtime.store.errors import CameraQuotaError, StoreFullError
from lookout.runtime.store.store import TensorStore
from lookout.runtime.store.tensors import Array
from lookout.runtime.store.unread import Unread
from lookout.v1.lineage_pb2 import TensorRef


class Keeper:
    """Puts tensors into a store; a camera over its quota waits once, then its tensors are refused by name.

    A camera is over its quota because its consumer is slower than the camera is. While it waits, the commits
    of its partition wait too. After `camera_wait_s` its segments or blocks are left out, with an outcome that
    says so, until there is room again.

    Args:
        store: Where tensors are put.
        clock: Monotonic seconds.
    """

    def __init__(self, store: TensorStore, clock: Callable[[], float] = time.monotonic) -> None:
        self._store = store
        self._clock = clock
        self._since: dict[str, float] = {}  # cameras over their quota, and since when

    def check(self, camera: str) -> None:
        """Whether anything of a camera can be kept; asked before work is done for it.

        Raises:
            TransientError: Nothing, for now.
            CameraQuotaError: Nothing, and it has waited long enough.
        """
        try:
            self._store.check_quota(camera)
        except CameraQuotaError as error:
            raise self._refusal(camera, error) from error

    def put(self, ref: TensorRef, array: Array, unread: Unread, dtype: str | None = None) -> TensorRef:
        """`TensorStore.put` of something that the next stage reads.

        Raises:
            TransientError: There is no room, for now.
            CameraQuotaError: The camera's unread tensors leave no room, and it has waited long enough.
        """
        try:
            return self._store.put(ref, array, unread, dtype)
        except CameraQuotaError as error:
            raise self._refusal(ref.camera, error) from error
        except StoreFullError as error:
            raise TransientError(str(error)) from error

    def forget(self, camera: str) -> None:
        """Everything of a record could be kept, or the camera was given away: the next wait begins again."""
        self._since.pop(camera, None)

    def _refusal(self, camera: str, error: CameraQuotaError) -> Exception:
        now = self._clock()
        # `setdefault`: the wait began at the first refusal, and later tries of the record do not begin it
        # again.
        over = now - self._since.setdefault(camera, now) >= self._store.settings.camera_wait_s
        return CameraQuotaError(str(error)) if over else TransientError(str(error))
