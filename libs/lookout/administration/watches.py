"""Reads the topic of watches, chooses the version of a changed watch, and resolves concurrent changes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from lookout.errors import LookoutError
from lookout.rules import RuleError, asked_question, check_watch, next_version, read_watch
from lookout.text import clean
from lookout.v1.watches_pb2 import Watch
from lookout.wire import CAMERA_OFFLINE, key_text, to_json
from lookout.wire.limits import ALL_WATCHES, CAMERA_WATCHES

#: maximum number of attempts to write a change under an unused version
_RACES: Final = 5


class WatchError(LookoutError):
    """The watch cannot be written; the text says which one, why and what to do."""


@dataclass(frozen=True, slots=True)
class Standing:
    """The current content of the topic of watches.

    Attributes:
        watches: The newest valid record of each id.
        unusable: Why the newest record of a key cannot be used, by key as text.
        keys: Every key that has a record: the key's bytes in Kafka, by its text.
        written: The valid records that the topic still has, oldest first, by id; including those from before
            a removal.
    """

    watches: dict[str, Watch] = field(default_factory=dict)
    unusable: dict[str, str] = field(default_factory=dict)
    keys: dict[str, bytes] = field(default_factory=dict)
    written: dict[str, list[Watch]] = field(default_factory=dict)

    def version_after(self, identity: str) -> int:
        """Return the next version of a watch: one that no record with its id has.

        After a removal, versions continue from the old ones, because otherwise an incident of an old version
        would continue under the new question.

        Raises:
            WatchError: There is no further version.
        """
        newest = max(self.written.get(identity, ()), key=lambda watch: watch.version, default=None)
        try:
            return 1 if newest is None else next_version(newest)
        except RuleError as error:
            raise WatchError(f"watch {clean(identity, 60)}: {error}") from None

    def take(self, key: bytes, value: bytes | None) -> None:
        """Apply one record."""
        identity = key_text(key)
        self.unusable.pop(identity, None)
        if value is None:  # only a null value removes a watch; an empty value does not
            self.watches.pop(identity, None)
            self.keys.pop(identity, None)
            return
        self.keys[identity] = key
        try:
            watch, _ = read_watch(identity, value)
        except RuleError as error:
            self.unusable[identity] = str(error)
            return
        self.watches[identity] = watch
        self.written.setdefault(identity, []).append(watch)


def standing_of(rows: Iterable[tuple[bytes, bytes | None]]) -> Standing:
    """Build the content of the topic from its records. An invalid record leaves the previous one in force."""
    standing = Standing()
    for key, value in rows:
        standing.take(key, value)
    return standing


def checked(watch: Watch) -> bytes:
    """Return a watch as the value of its record, with its question on one line, as readers expect.

    Raises:
        WatchError: The watch is invalid.
    """
    try:
        check_watch(watch)
        watch.question = asked_question(watch)
    except RuleError as error:
        raise WatchError(f"watch {clean(watch.id, 60)}: {error}") from None
    return to_json(watch)


def check_crowd(watch: Watch, standing: Mapping[str, Watch]) -> None:
    """Check that a new watch does not exceed the limits of all watches, or of one camera's.

    Raises:
        WatchError: A limit is exceeded; the text says which one.
    """
    if watch.id not in standing and len(standing) >= ALL_WATCHES:
        raise WatchError(f"there are {len(standing)} watches; the limit is {ALL_WATCHES}: remove some first")
    for camera in watch.cameras or ["*"]:
        names_alike = [
            name
            for name, standing_watch in standing.items()
            if name not in (watch.id, CAMERA_OFFLINE)
            and not standing_watch.disabled
            and (not standing_watch.cameras or camera in standing_watch.cameras)
        ]
        if len(names_alike) >= CAMERA_WATCHES:
            where = "all cameras have" if camera == "*" else f"{clean(camera, 60)} has"
            raise WatchError(
                f"{where} {len(names_alike)} watches; the limit is {CAMERA_WATCHES}: remove some first"
            )


def check_gate(watch: Watch, standing: Mapping[str, Watch]) -> None:
    """Check that the gate of a watch exists and does not depend on the watch itself.

    Args:
        watch: The watch.
        standing: The watches in the topic, by id.

    Raises:
        WatchError: The gate does not exist, or is part of a cycle.
    """
    path = [watch.id]
    gate = watch.gate.watch
    while gate:
        if gate == watch.id:
            circle = " waits for ".join(clean(name, 60) for name in (*path, gate))
            raise WatchError(
                f"gate: these watches would wait for each other and never be asked ({circle}); "
                "choose another gate"
            )
        path.append(gate)
        gate_watch = standing.get(gate)
        if gate_watch is None:
            if len(path) == 2:
                raise WatchError(
                    f"gate: watch {clean(gate, 60)} does not exist: add it first, or choose another gate"
                )
            return
        if len(path) > len(standing) + 2:  # a cycle without this watch
            return
        gate = gate_watch.gate.watch


def change_watch(
    watch: Watch, read: Callable[[], Standing], write: Callable[[Mapping[str, bytes | None]], object]
) -> None:
    """Write a watch under a version that no other record has, even if somebody changes the watch at the same
    time. If two writers use the same version, the first one gets an error and the last one writes again with
    the next version, so that incidents of the first writer's version close.

    Args:
        watch: The watch; its version is raised if another record already has that version.
        read: Reads the topic.
        write: Writes records by key and waits until Kafka has them.

    Raises:
        WatchError: The watch is invalid, or somebody else changed it at the same time.
    """
    for _ in range(_RACES):
        write({watch.id: checked(watch)})
        standing = read()
        newest = standing.watches.get(watch.id)
        if newest is None or to_json(newest) != to_json(watch):
            difference = "removed" if newest is None else f"changed (it now asks “{clean(newest.question)}”)"
            raise WatchError(
                f"watch {clean(watch.id, 60)} was {difference} by somebody else at the same time: see "
                "`lookout watch list`, then run the same command again to change it"
            )
        twins = [record for record in standing.written[watch.id] if record.version == watch.version]
        if len(twins) == 1:
            return
        watch.version = standing.version_after(watch.id)
        watch.active_from.GetCurrentTime()
    raise WatchError(f"watch {clean(watch.id, 60)} is being changed repeatedly by somebody else: try again")
