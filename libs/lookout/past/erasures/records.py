"""Records of `erasures.v1`: what their keys say, and what stands in the topic."""

from __future__ import annotations

import secrets
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from lookout.v1.erasures_pb2 import Erasure, ErasureConfirmation, ErasureMember
from lookout.wire import WireError, from_json, is_camera_id, key_text

if TYPE_CHECKING:  # it imports gRPC, and commands that print verdicts need none
    from lookout.past.erasures.signing import ConfirmationSigner


@dataclass(slots=True)
class ErasureLog:
    """What stands in the topic.

    Attributes:
        erasures: By id, in their order.
        confirmations: Of each erasure, by instance.
        members: Processes that hold what cameras showed, by instance.
    """

    erasures: dict[str, Erasure] = field(default_factory=dict)
    confirmations: dict[str, dict[str, ErasureConfirmation]] = field(default_factory=dict)
    members: dict[str, ErasureMember] = field(default_factory=dict)

    def open_at(self, erasure: str) -> list[ErasureMember]:
        """Members that have not confirmed an erasure."""
        done = self.confirmations.get(erasure, {})
        return [member for name, member in sorted(self.members.items()) if name not in done]


def new_erasure(camera: str, begin_us: int | None, end_us: int | None, now_us: int, by: str) -> Erasure:
    """An erasure under a new id.

    Args:
        camera: Whose.
        begin_us: Wall time, Unix microseconds; None: from the beginning.
        end_us: Wall time; None, or later than now: up to now. What comes later was not there to be erased. A
            range that begins later than now is meant so: the camera's clock was ahead.
        now_us: Now.
        by: Who asks.
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
    """The key of a confirmation."""
    return f"{erasure}@{instance}"


def member_key(instance: str) -> str:
    """The key of a member."""
    return f"@{instance}"


def erasure_fault(key: str, value: bytes) -> str | None:
    """Why a record cannot be used; None where it can."""
    try:
        _read(key, value)
    except WireError as error:
        return str(error)
    return None


def read_log(
    rows: Iterable[tuple[str | bytes, bytes | None]], signer: ConfirmationSigner | None = None
) -> ErasureLog:
    """The topic from its records, oldest first; those that cannot be used are left out.

    Args:
        rows: Keys and values.
        signer: Leaves out confirmations that the fleet did not sign; None: all count.
    """
    log = ErasureLog()
    for raw_key, value in rows:
        key = raw_key if isinstance(raw_key, str) else key_text(raw_key)
        if value is None:
            _delete(log, key)
            continue
        try:
            message = _read(key, value)
        except WireError:
            continue
        if isinstance(message, Erasure):
            # The first record of an id stands: nobody narrows an erasure afterwards.
            log.erasures.setdefault(key, message)
        elif isinstance(message, ErasureConfirmation):
            if signer is not None and not signer.check(message):
                continue  # a forged one ends no erasure
            log.confirmations.setdefault(message.erasure, {})[message.instance] = message
        else:
            log.members[message.instance] = message
    return log


def _delete(log: ErasureLog, key: str) -> None:
    """A deleted erasure stands: what was erased stays fenced."""
    erasure, separator, instance = key.partition("@")
    if separator and not erasure:
        log.members.pop(instance, None)


def _read(key: str, value: bytes) -> Erasure | ErasureConfirmation | ErasureMember:
    """The message of a record.

    Raises:
        WireError: It is none, another one than its key says, or asks for what cannot be erased.
    """
    erasure, separator, instance = key.partition("@")
    if not separator:
        request = from_json(value, Erasure)
        if request.id != key:
            raise WireError(f"an erasure {request.id!r} under the key {key!r}")
        if not is_camera_id(request.camera):
            raise WireError(f"{request.camera!r} is no camera's id")
        if request.begin_us >= request.end_us:
            raise WireError(f"the range from {request.begin_us} to {request.end_us} is empty")
        return request
    if erasure:
        confirmation = from_json(value, ErasureConfirmation)
        if (confirmation.erasure, confirmation.instance) != (erasure, instance):
            raise WireError(f"a confirmation of {confirmation.erasure!r} under the key {key!r}")
        return confirmation
    member = from_json(value, ErasureMember)
    if member.instance != instance:
        raise WireError(f"a member {member.instance!r} under the key {key!r}")
    return member
