"""Checks watches. All code that writes or reads watches uses these checks."""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from lookout.rules.messages import rule_of
from lookout.rules.types import Rule, RuleError
from lookout.structured import NO_TEXT, structure_of
from lookout.text import clean, question_text
from lookout.v1.watches_pb2 import Watch
from lookout.wire import (
    CAMERA_HEALTH,
    CAMERA_OFFLINE,
    SHIFT_REPORT,
    WireError,
    check_tenant,
    from_json,
    is_camera_id,
    names_id,
    to_json,
)
from lookout.wire.limits import ID_BYTES, LEAST_THRESHOLD, WATCH_BYTES
from lookout.wire.ranges import RangeError, check_ranges

#: reserved ids, and what uses them
_TAKEN = {CAMERA_HEALTH: "cameras' own incidents", SHIFT_REPORT: "scheduled reports"}
#: why a watch with `verify` cannot ask a second model
NO_SECOND_MODEL: Final = "no second model is configured: set LOOKOUT_OPINION_URL and LOOKOUT_OPINION_MODEL"
_LAST_VERSION = 2**32 - 1  # uint32
#: what a watch may be asked about, by the name in commands and resources; on the wire, 0 means windows
ASKED: Final[dict[str, Watch.Asked]] = {
    "windows": Watch.ASKED_UNSPECIFIED,
    "strides": Watch.ASKED_STRIDES,
}


def read_watch(key: str, value: bytes) -> tuple[Watch, Rule]:
    """Parse and check the watch in a record of watches.v1. Return the watch and its rule.

    Args:
        key: The record's key, which is the watch's id.
        value: The record's value.

    Raises:
        RuleError: The record is not a valid watch. The error says why.
    """
    if len(value) > WATCH_BYTES:
        raise RuleError(f"the record has {len(value)} bytes; the limit is {WATCH_BYTES}")
    try:
        watch = from_json(value, Watch)
    except WireError as error:
        raise RuleError(str(error)) from error
    if not watch.id:
        # A watch that was written by hand may omit its id.
        watch.id = key
    if watch.id != key:
        raise RuleError(f"the record's key must be the watch's id, {watch.id[:40]!r}")
    rule = check_watch(watch)
    watch.question = asked_question(watch)
    return watch, rule


def watch_fault(key: str, value: bytes) -> str | None:
    """Return why a record of watches.v1 cannot be used; None if it can."""
    try:
        read_watch(key, value)
    except RuleError as error:
        return str(error)
    return None


def check_watch(watch: Watch) -> Rule:
    """Check a watch and return its rule.

    Raises:
        RuleError: The watch is invalid. The error names the field and says why.
    """
    if not is_camera_id(watch.id):
        raise RuleError(f"id {watch.id[:40]!r}: give printable text of 1 to {ID_BYTES} bytes")
    try:
        check_ranges(watch)
    except RangeError as error:
        raise RuleError(str(error)) from error
    asked_question(watch)
    for pattern in watch.cameras:
        if not is_camera_id(pattern):
            raise RuleError(
                f"cameras: {pattern[:40]!r} is not a camera id or a pattern: give 1 to {ID_BYTES} bytes of "
                "printable text"
            )
    try:
        check_tenant(watch.tenant)
    except WireError as error:
        raise RuleError(str(error)) from error
    if 0 < watch.rule.threshold < LEAST_THRESHOLD:
        raise RuleError(f"threshold must be between {LEAST_THRESHOLD:g} and 1, not {watch.rule.threshold:g}")
    _check_gate(watch)
    if watch.asked not in Watch.Asked.values():
        raise RuleError(f"asked: {watch.asked} is unknown; it is one of {', '.join(ASKED)}")
    if watch.verify_with and not watch.verify:
        raise RuleError("verify_with has no effect without verify: set verify too, or remove verify_with")
    if watch.describe and structure_of(asked_question(watch)) is not None:
        raise RuleError(f"describe: {NO_TEXT}")
    rule = rule_of(watch.rule, watch.question)
    size = len(to_json(watch))
    if size > WATCH_BYTES:
        raise RuleError(f"the watch has {size} bytes as JSON; the limit is {WATCH_BYTES}")
    return rule


def _check_gate(watch: Watch) -> None:
    """Check the gate of a watch.

    Raises:
        RuleError: The gate names a watch that cannot be a gate.
    """
    gate = watch.gate.watch
    if not gate:
        return
    if not is_camera_id(gate):
        raise RuleError(
            f"gate: watch {gate[:40]!r} is not a valid id: give printable text of 1 to {ID_BYTES} bytes"
        )
    if gate == watch.id:
        raise RuleError(f"gate: watch {clean(gate, 40)} cannot wait for itself: choose another watch")
    if gate == CAMERA_OFFLINE:
        raise RuleError(f"gate: {CAMERA_OFFLINE} asks the model no question: choose a watch with a question")


def second_model_fault(name: str, names: Collection[str]) -> str | None:
    """Return why a watch cannot ask a second model; None if it can.

    Args:
        name: The watch's `verify_with`.
        names: Names of the second models in LOOKOUT_OPINION_URL; a model without a name counts as "". Empty:
            there is no second model.
    """
    if not names:
        return NO_SECOND_MODEL
    if not name or name in names:
        return None
    choices = ", ".join(sorted(filter(None, names))) or "only a model without a name"
    return f"no second model is called {clean(name, 40)!r}; LOOKOUT_OPINION_URL of notify has: {choices}"


def asked_question(watch: Watch) -> str:
    """Return the question of a watch, on one line. It may be empty only for `camera-offline`, which alerts
    decides without the model.

    Raises:
        RuleError: The question is invalid (`question_text`), or the watch's id is reserved.
    """
    if watch.id in _TAKEN:
        raise RuleError(f"the id {watch.id} belongs to {_TAKEN[watch.id]}: choose another id")
    if watch.id == CAMERA_OFFLINE and not watch.question:
        return ""
    return question_text(watch.question, RuleError)


def asks_strides(watch: Watch) -> bool:
    """Whether a watch asks about each stride separately, not about windows."""
    return watch.asked == Watch.ASKED_STRIDES


def covers(watch: Watch, camera: str, tenant: str) -> bool:
    """Whether a watch asks about a camera.

    Args:
        watch: The watch.
        camera: The camera's id.
        tenant: The camera's tenant (`lookout.wire.tenant_of`).
    """
    if watch.tenant and watch.tenant != tenant:
        return False
    return not watch.cameras or any(names_id(pattern, camera) for pattern in watch.cameras)


def next_version(watch: Watch) -> int:
    """Return the version that follows the watch's version.

    Raises:
        RuleError: The version is the last one possible.
    """
    if watch.version >= _LAST_VERSION:
        raise RuleError(
            f"version {watch.version} is the highest possible: remove the watch, then add it again"
        )
    return watch.version + 1
