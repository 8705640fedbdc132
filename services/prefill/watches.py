"""The standing questions, with their versions."""

import fnmatch
import math
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import structlog

from lookout.rules import RuleError
from lookout.rules.messages import rule_of
from lookout.runtime import View
from lookout.v1.watches_pb2 import Watch
from lookout.wire import CAMERA_OFFLINE, MAX_QUESTION, WireError, from_json

__all__ = ["Active", "Watches"]

_log = structlog.get_logger(__name__)


#: most cameras whose watches are remembered; beyond, all are resolved again
CAMERAS = 16384


@dataclass(frozen=True, slots=True)
class Active:
    """The watches of one window, by id, and how far their topic was read for that."""

    watches: tuple[Watch, ...]
    offset: int


@dataclass(frozen=True, slots=True)
class _Resolved:
    """The watches of one camera for windows that start in [since_ms, until_ms)."""

    since_ms: float
    until_ms: float
    watches: tuple[Watch, ...]


class Watches:
    """Versions of every watch, from the table of watches.v1. Thread-safe.

    The topic keeps a replaced version for a week at least: a version that begins within a week of being
    written finds the one before it in force until then, whoever restarts meanwhile.
    """

    def __init__(self, view: Callable[[], View]) -> None:
        self._view = view
        self._lock = threading.Lock()
        self._history: Mapping[str, tuple[bytes, ...]] = {}
        self._versions: dict[str, list[Watch]] = {}
        self._resolved: dict[str, _Resolved] = {}

    def active(self, camera: str, start_wall_ms: int) -> Active:
        """The watches of `camera` for a window that starts then: of each the
        highest version active by then."""
        view = self._view()
        with self._lock:
            if view.history is not self._history:
                self._take(view.history)
            known = self._resolved.get(camera)
            if known is None or not known.since_ms <= start_wall_ms < known.until_ms:
                known = self._resolve(camera, start_wall_ms)
                if len(self._resolved) >= CAMERAS:
                    self._resolved.clear()
                self._resolved[camera] = known
        return Active(known.watches, view.offset)

    def _resolve(self, camera: str, start_wall_ms: int) -> "_Resolved":
        """The watches of a camera, and the span of starts for which they are the same."""
        chosen: list[Watch] = []
        since, until = -math.inf, math.inf
        for versions in self._versions.values():
            begins = [each.active_from.ToMilliseconds() for each in versions]
            since = max(since, *(at for at in begins if at <= start_wall_ms), -math.inf)
            until = min(until, *(at for at in begins if at > start_wall_ms), math.inf)
            found = _in_force(versions, start_wall_ms)
            if found is not None and not found.disabled and _covers(found, camera):
                chosen.append(found)
        return _Resolved(since, until, tuple(sorted(chosen, key=lambda watch: watch.id)))

    def _take(self, history: Mapping[str, tuple[bytes, ...]]) -> None:
        for gone in self._versions.keys() - history.keys():
            del self._versions[gone]
        for name, values in history.items():
            if self._history.get(name) != values:
                read = [_read(name, value) for value in values]
                self._versions[name] = [watch for watch in read if watch is not None]
        self._history = history
        self._resolved.clear()


def _read(name: str, value: bytes) -> Watch | None:
    """A watch, or nothing where a record is none."""
    try:
        watch = from_json(value, Watch)
    except WireError as error:
        _log.error("a watch cannot be read and is left out", watch=name, error=str(error))
        return None
    if name == CAMERA_OFFLINE:
        return None  # no question to the model: the alerts service decides it
    if not watch.id:
        watch.id = name
    if watch.id != name or not watch.question.strip():
        _log.error("a watch is left out: its key must be its id, and it needs a question", watch=name)
        return None
    if len(watch.question) > MAX_QUESTION:
        _log.error(
            "a watch is left out: its question is too long",
            watch=name,
            characters=len(watch.question),
            limit=MAX_QUESTION,
        )
        return None
    try:
        rule_of(watch.rule)
    except RuleError as error:
        _log.error("a watch is left out: its rule cannot be followed", watch=name, error=str(error))
        return None
    return watch


def _in_force(versions: Sequence[Watch], start_wall_ms: int) -> Watch | None:
    """The highest version that has begun; of one written twice the later record."""
    begun = [watch for watch in reversed(versions) if watch.active_from.ToMilliseconds() <= start_wall_ms]
    return max(begun, key=lambda watch: watch.version, default=None)


def _covers(watch: Watch, camera: str) -> bool:
    return not watch.cameras or any(fnmatch.fnmatchcase(camera, glob) for glob in watch.cameras)
