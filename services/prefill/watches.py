"""The standing questions, with their versions."""

import fnmatch
import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

import structlog

from lookout.runtime import View
from lookout.v1.watches_pb2 import Watch
from lookout.wire import WireError, from_json

__all__ = ["Active", "Watches"]

_log = structlog.get_logger(__name__)
_VERSIONS = 16  # kept of each watch


@dataclass(frozen=True, slots=True)
class Active:
    """The watches of one window, by id, and how far their topic was read for that."""

    watches: tuple[Watch, ...]
    offset: int


class Watches:
    """Versions of every watch, from the table of watches.v1. Thread-safe.

    Compaction keeps the newest version only; an older one that is still in force lives on here until the
    process ends, so a version that begins in the future should be published shortly before it begins.
    """

    def __init__(self, view: Callable[[], View]) -> None:
        self._view = view
        self._lock = threading.Lock()
        self._rows: Mapping[str, bytes] = {}
        self._versions: dict[str, dict[int, Watch]] = {}

    def active(self, camera: str, start_wall_ms: int) -> Active:
        """The watches of `camera` for a window that starts then: of each the highest version active by
        then."""
        view = self._view()
        with self._lock:
            if view.rows is not self._rows:
                self._take(view.rows)
            found = [_in_force(versions.values(), start_wall_ms) for versions in self._versions.values()]
        chosen = [each for each in found if each is not None and not each.disabled and _covers(each, camera)]
        return Active(tuple(sorted(chosen, key=lambda watch: watch.id)), view.offset)

    def _take(self, rows: Mapping[str, bytes]) -> None:
        for gone in self._versions.keys() - rows.keys():
            del self._versions[gone]
        for name, row in rows.items():
            if self._rows.get(name) == row:
                continue
            try:
                watch = from_json(row, Watch)
            except WireError as error:
                _log.error("a watch cannot be read and is left out", watch=name, error=str(error))
                continue
            if not watch.id:
                watch.id = name
            if watch.id != name or not watch.question.strip():
                _log.error("a watch is left out: its key must be its id, and it needs a question", watch=name)
                continue
            versions = self._versions.setdefault(name, {})
            versions[watch.version] = watch
            for old in sorted(versions)[:-_VERSIONS]:
                del versions[old]
        self._rows = rows


def _in_force(versions: Iterable[Watch], start_wall_ms: int) -> Watch | None:
    begun = [watch for watch in versions if watch.active_from_ms <= start_wall_ms]
    return max(begun, key=lambda watch: watch.version, default=None)


def _covers(watch: Watch, camera: str) -> bool:
    return not watch.cameras or any(fnmatch.fnmatchcase(camera, glob) for glob in watch.cameras)
