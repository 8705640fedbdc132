"""Parses the records of `erasures.v1`, and derives the topic's current content from them."""

from __future__ import annotations

import secrets
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from lookout.v1.erasures_pb2 import Erasure, ErasureConfirmation, ErasureMember
from lookout.wire import WireError, from_json, is_camera_id, key_text, limits

if TYPE_CHECKING:  # the module imports gRPC, which commands that only print verdicts do not need
    from lookout.past.erasures.signing import ErasureMessage, ErasureSigner


@dataclass(slots=True)
class ErasureLog:
    """The current content of the topic.

    Attributes:
        erasures: The erasures by id, in the order of their records.
        confirmations: The confirmations by the erasure's id, then by instance.
        members: The processes that store footage or data derived from it, by instance.
    """

    erasures: dict[str, Erasure] = field(default_factory=dict)
    confirmations: dict[str, dict[str, ErasureConfirmation]] = field(default_factory=dict)
    members: dict[str, ErasureMember] = field(default_factory=dict)

    def copy(self) -> ErasureLog:
        """Return a copy that does not change with this log."""
        copies = {identity: dict(members) for identity, members in self.confirmations.items()}
        return ErasureLog(dict(self.erasures), copies, dict(self.members))

    def confirmed(self, identity: str) -> dict[str, ErasureConfirmation]:
        """Return an erasure's confirmations by instance, only those that state its camera and range."""
        erasure = self.erasures.get(identity)
        if erasure is None:
            return {}
        span = erasure.camera, erasure.begin_us, erasure.end_us
        return {
            name: entry
            for name, entry in self.confirmations.get(identity, {}).items()
            if (entry.camera, entry.begin_us, entry.end_us) == span
        }

    def open_at(self, identity: str) -> list[ErasureMember]:
        """Return the members that have not confirmed an erasure."""
        confirmed = self.confirmed(identity)
        return [member for name, member in sorted(self.members.items()) if name not in confirmed]


def new_erasure(camera: str, begin_us: int | None, end_us: int | None, now_us: int, by: str) -> Erasure:
    """Return a request to erase a range of a camera's wall time, with a new id.

    Args:
        camera: Id of the camera.
        begin_us: Begin of the range, Unix microseconds; None: from the beginning.
        end_us: End of the range, Unix microseconds; None: now. An end later than now becomes now, because
            later frames do not exist yet. If the range begins later than now, the end is not changed, because
            the camera's clock must have been ahead.
        now_us: The current time, Unix microseconds.
        by: Who requests the erasure.
    """
    whole = begin_us is None and end_us is None
    if end_us is None or (begin_us or 0) <= now_us:
        end_us = now_us if end_us is None else min(end_us, now_us)
    return Erasure(
        id=f"e-{secrets.token_hex(6)}",
        camera=camera,
        begin_us=0 if begin_us is None else begin_us,
        end_us=end_us,
        whole=whole,
        requested_us=now_us,
        requested_by=by,
    )


def confirmation_key(erasure: str, instance: str) -> str:
    """Return the Kafka key of an instance's confirmation of an erasure."""
    return f"{erasure}@{instance}"


def member_key(instance: str) -> str:
    """Return the Kafka key of a member's announcement."""
    return f"@{instance}"


def erasure_fault(key: str, value: bytes, signer: ErasureSigner | None = None) -> str | None:
    """Return why a record is invalid; None if it is valid.

    Args:
        key: The record's key.
        value: The record's value.
        signer: Checks that the fleet signed the record; None: signatures are not checked.
    """
    try:
        message = read_erasure_record(key, value)
    except WireError as error:
        return str(error)
    if signer is not None and not signer.check(message):
        return "it is not signed with the fleet's token"
    return None


def read_log(
    rows: Iterable[tuple[str | bytes, bytes | None]], signer: ErasureSigner | None = None
) -> ErasureLog:
    """Return the topic's current content. Invalid records are ignored.

    Args:
        rows: Keys and values of the topic's records, oldest first; a value of None deletes the key.
        signer: Checks signatures; records that the fleet did not sign are ignored. None: signatures are not
            checked.
    """
    history = ErasureHistory(signer)
    for raw_key, value in rows:
        history.take(raw_key if isinstance(raw_key, str) else key_text(raw_key), value)
    return history.log


class ErasureHistory:
    """Collects the topic's records. An accepted erasure remains, whatever is written or deleted later.

    Args:
        signer: Checks signatures; records that the fleet did not sign are ignored. None: signatures are not
            checked.
        known: Erasures that this process knew before it read the topic.
    """

    def __init__(self, signer: ErasureSigner | None = None, known: Iterable[Erasure] = ()) -> None:
        self._signer = signer
        self.log = ErasureLog(erasures={erasure.id: erasure for erasure in known})
        #: messages that should be in the topic, by key; announcements of members that left are not among them
        self.standing: dict[str, ErasureMessage] = dict(self.log.erasures)
        self._left: dict[str, ErasureMember] = {}
        self.version = 0
        """Increases with every new erasure."""

    def take(self, key: str, value: bytes | None) -> None:
        """Apply a record of the topic; a value of None deletes the key. Invalid records are ignored."""
        if value is None:
            self._delete(key)
            return
        try:
            message = read_erasure_record(key, value)
        except WireError:
            return
        if self._signer is not None and not self._signer.check(message):
            return
        if isinstance(message, Erasure):
            # Only the first record with an id counts, so that nobody can narrow an erasure later.
            if key not in self.log.erasures and len(self.log.erasures) < limits.ERASURES:
                self.log.erasures[key] = self.standing[key] = message
                self.version += 1
        elif isinstance(message, ErasureConfirmation):
            self.log.confirmations.setdefault(message.erasure, {})[message.instance] = message
            self.standing[key] = message
        else:
            self._announced(key, message)

    def sign_again(self, signer: ErasureSigner) -> None:
        """Sign all records that should be in the topic with the current token."""
        for message in self.standing.values():
            signer.sign(message)

    def _announced(self, key: str, member: ErasureMember) -> None:
        """Apply a member's announcement, unless a newer one is known: old announcements may be written
        again."""
        name = member.instance
        before = self.log.members.get(name) or self._left.get(name)
        if before is not None and before.announced_us > member.announced_us:
            return
        if member.left:
            self._left[name] = member
            self.log.members.pop(name, None)
            self.standing.pop(key, None)
        else:
            self._left.pop(name, None)
            self.log.members[name] = self.standing[key] = member

    def _delete(self, key: str) -> None:
        """Apply a deletion, which only ends a membership. Deletions cannot be signed, so a fleet with a token
        ignores them."""
        erasure, separator, instance = key.partition("@")
        if separator and not erasure and (self._signer is None or not self._signer.signs):
            self.log.members.pop(instance, None)
            self.standing.pop(key, None)


def read_erasure_record(key: str, value: bytes) -> Erasure | ErasureConfirmation | ErasureMember:
    """Parse and validate a record.

    Raises:
        WireError: The record is not a valid message, does not match its key, or requests a range that cannot
            be erased.
    """
    erasure, separator, instance = key.partition("@")
    if not separator:
        request = from_json(value, Erasure)
        if request.id != key:
            raise WireError(f"erasure {request.id!r} is stored under the key {key!r}")
        if not is_camera_id(request.camera):
            raise WireError(f"{request.camera!r} is not a camera id")
        if request.begin_us >= request.end_us:
            raise WireError(f"the range from {request.begin_us} to {request.end_us} is empty")
        ahead_us = request.end_us - max(request.begin_us, request.requested_us)
        if ahead_us > limits.ERASED_AHEAD_US:
            raise WireError(f"the range ends {ahead_us} us in the future, at {request.end_us}")
        return request
    if erasure:
        confirmation = from_json(value, ErasureConfirmation)
        if (confirmation.erasure, confirmation.instance) != (erasure, instance):
            raise WireError(f"a confirmation of {confirmation.erasure!r} is stored under the key {key!r}")
        return confirmation
    member = from_json(value, ErasureMember)
    if member.instance != instance:
        raise WireError(f"member {member.instance!r} is stored under the key {key!r}")
    return member
