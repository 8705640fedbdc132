"""Finds the watches that apply to a window, among all versions of all watches."""

import math
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import structlog

from lookout.rules import RuleError, covers, read_watch
from lookout.runtime.worker import View
from lookout.text import clean
from lookout.v1.watches_pb2 import Watch
from lookout.wire import CAMERA_OFFLINE, DEFAULT_TENANT
from lookout.wire.limits import CAMERA_WATCHES

_log = structlog.get_logger(__name__)


#: maximum number of cameras whose watches are cached; when it is exceeded, the cache is cleared
CAMERAS = 16384


@dataclass(frozen=True, slots=True)
class Active:
    """A window's watches, sorted by id, and the offset up to which watches.v1 was read to find them."""

    watches: tuple[Watch, ...]
    offset: int


@dataclass(frozen=True, slots=True)
class _Resolved:
    """A camera's watches, valid for one tenant and for windows that start in [since_ms, until_ms)."""

    since_ms: float
    until_ms: float
    tenant: str
    watches: tuple[Watch, ...]

    def holds(self, start_wall_ms: int, tenant: str) -> bool:
        """Return whether these watches are valid for a window with this start and tenant."""
        return tenant == self.tenant and self.since_ms <= start_wall_ms < self.until_ms


class Watches:
    """All versions of every watch, from the table of watches.v1. Thread-safe.

    The topic keeps a replaced version for at least a week. So the previous version stays in force until the
    new one takes effect, even across restarts, if the new one takes effect within a week.
    """

    def __init__(self, view: Callable[[], View]) -> None:
        self._view = view
        self._lock = threading.Lock()
        self._history: Mapping[str, tuple[bytes, ...]] = {}
        self._versions: dict[str, list[Watch]] = {}
        self._resolved: dict[str, _Resolved] = {}
        self._crowded: dict[str, str] = {}

    def active(self, camera: str, start_wall_ms: int, tenant: str = DEFAULT_TENANT) -> Active:
        """Return a camera's watches for a window that starts at `start_wall_ms` (Unix milliseconds).

        These are the watches that cover the camera and belong to its tenant or to no tenant, each in its
        highest version that is active at that time.
        """
        view = self._view()
        with self._lock:
            if view.history is not self._history:
                self._take(view.history)
            resolved = self._resolved.get(camera)
            if resolved is None or not resolved.holds(start_wall_ms, tenant):
                resolved = self._resolve(camera, start_wall_ms, tenant)
                if len(self._resolved) >= CAMERAS:
                    self._resolved.clear()
                    self._crowded.clear()
                self._resolved[camera] = resolved
        return Active(resolved.watches, view.offset)

    def _resolve(self, camera: str, start_wall_ms: int, tenant: str) -> "_Resolved":
        """Find a camera's watches, and the span of start times for which they are the same."""
        active: list[Watch] = []
        # Nothing changes between the starts of two versions, so one result applies to many windows.
        since, until = -math.inf, math.inf
        for versions in self._versions.values():
            begins = [version.active_from.ToMilliseconds() for version in versions]
            since = max(since, *(at for at in begins if at <= start_wall_ms), -math.inf)
            until = min(until, *(at for at in begins if at > start_wall_ms), math.inf)
            watch = _in_force(versions, start_wall_ms)
            if watch is not None and not watch.disabled and covers(watch, camera, tenant):
                active.append(watch)
        # Sorted by id, so that every instance drops the same watches if there are too many.
        active.sort(key=lambda watch: watch.id)
        self._note_crowd(camera, len(active))
        return _Resolved(since, until, tenant, tuple(active[:CAMERA_WATCHES]))

    def crowded(self) -> dict[str, str]:
        """Return the cameras with too many watches, each with a text for /readyz that says how many are
        asked.
        """
        with self._lock:
            return {clean(camera): why for camera, why in self._crowded.items()}

    def _note_crowd(self, camera: str, watches: int) -> None:
        before = self._crowded.pop(camera, None)
        if watches <= CAMERA_WATCHES:
            return
        self._crowded[camera] = f"{watches} watches, of which only the first {CAMERA_WATCHES} by id are asked"
        if before != self._crowded[camera]:
            _log.error("a camera has too many watches", camera=camera, watches=watches, asked=CAMERA_WATCHES)

    def _take(self, history: Mapping[str, tuple[bytes, ...]]) -> None:
        for watch_id in self._versions.keys() - history.keys():
            del self._versions[watch_id]
        for name, values in history.items():
            if self._history.get(name) != values:
                watches = [_read(name, value) for value in values]
                self._versions[name] = [watch for watch in watches if watch is not None]
        self._history = history
        self._resolved.clear()


def _read(name: str, value: bytes) -> Watch | None:
    """Parse a watch; None if the record is invalid, or is the watch that alerts decides."""
    try:
        watch, _ = read_watch(name, value)
    except RuleError as error:
        _log.error("a watch is invalid and ignored", watch=clean(name), error=clean(error))
        return None
    return None if name == CAMERA_OFFLINE else watch  # decided by the alerts service


def _in_force(versions: Sequence[Watch], start_wall_ms: int) -> Watch | None:
    """Return the highest version that has begun, from its later record if it was written twice; None: none
    has.
    """
    begun = [watch for watch in reversed(versions) if watch.active_from.ToMilliseconds() <= start_wall_ms]
    return max(begun, key=lambda watch: watch.version, default=None)
