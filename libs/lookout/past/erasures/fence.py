"""Tells which time ranges of cameras were erased."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence

from lookout.v1.erasures_pb2 import Erasure


class Fence:
    """The erased time ranges of cameras. Immutable.

    Args:
        erasures: The requested erasures.
    """

    def __init__(self, erasures: Iterable[Erasure] = ()) -> None:
        self._by_camera: dict[str, list[Erasure]] = defaultdict(list)
        for erasure in erasures:
            self._by_camera[erasure.camera].append(erasure)

    def hides(self, camera: str, begin_us: int, end_us: int) -> Erasure | None:
        """Return the first erasure that overlaps a span of a camera's wall time (Unix microseconds); None if
        none does. A span with equal begin and end is a moment.
        """
        for erasure in self._by_camera.get(camera, ()):
            if begin_us < erasure.end_us and max(end_us, begin_us + 1) > erasure.begin_us:
                return erasure
        return None

    def of(self, camera: str) -> Sequence[Erasure]:
        """Return the erasures of a camera."""
        return self._by_camera.get(camera, ())

    def ends(self, camera: str, active_ms: float) -> bool:
        """Whether the whole camera was erased and has sent nothing since.

        Args:
            camera: Id of the camera.
            active_ms: When the camera last sent something, Unix milliseconds.
        """
        erasures = self._by_camera.get(camera, ())
        return any(erasure.whole and active_ms * 1000 < erasure.end_us for erasure in erasures)


class LiveFence(Fence):
    """A fence that is updated when erasures change. Thread-safe.

    Args:
        version: Returns a value that changes whenever the erasures change; called often, so it must be cheap.
        erasures: Returns the current erasures.
    """

    def __init__(self, version: Callable[[], object], erasures: Callable[[], Iterable[Erasure]]) -> None:
        self._read_version, self._read = version, erasures
        self._current: tuple[object, Fence] = (None, Fence())

    def hides(self, camera: str, begin_us: int, end_us: int) -> Erasure | None:
        """As `Fence.hides`, with the current erasures."""
        return self._now().hides(camera, begin_us, end_us)

    def of(self, camera: str) -> Sequence[Erasure]:
        """As `Fence.of`, with the current erasures."""
        return self._now().of(camera)

    def ends(self, camera: str, active_ms: float) -> bool:
        """As `Fence.ends`, with the current erasures."""
        return self._now().ends(camera, active_ms)

    def _now(self) -> Fence:
        version = self._read_version()
        known, fence = self._current
        if known != version:
            fence = Fence(self._read())
            self._current = version, fence
        return fence
