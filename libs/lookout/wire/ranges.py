"""Checks every field of a record against its bounds, wherever a record is read.

The bounds are options of the fields in `protos/lookout/v1` (`bounds.proto`). protovalidate would evaluate an
expression (CEL) per bound; here the bounds are compiled once per message type into plain comparisons.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, Final

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

from lookout.errors import LookoutError
from lookout.v1.bounds_pb2 import Bounds, Range, bounds

LARGEST: Final = 2**53
"""Largest integer that every JSON reader handles exactly (RFC 8259, section 6). As microseconds it is 285
years, so the sum of two times is still a valid date."""

_TIMESTAMP: Final = "google.protobuf.Timestamp"
_PACKAGE: Final = "lookout.v1."
#: a message or field descriptor; its class differs between protobuf back ends
_Descriptor = Any
_Check = Callable[[Message], None]

#: the smallest and the largest value, both included
_RANGES: Final[dict[int, tuple[float, float]]] = {
    Range.RANGE_INDEX: (0, LARGEST),
    Range.RANGE_TIME: (-LARGEST, LARGEST),
    Range.RANGE_INT32: (0, 2**31 - 1),
    Range.RANGE_UINT32: (0, 2**32 - 1),
    Range.RANGE_UINT64: (0, 2**64 - 1),
    Range.RANGE_SHARE: (0.0, 1.0),
    Range.RANGE_SECONDS: (-1e11, 1e11),
    Range.RANGE_LENGTH_S: (0.0, 1e11),
    Range.RANGE_OFFSET_MIN: (-1439, 1439),
    Range.RANGE_SIDE: (0, 65_536),
    Range.RANGE_GRID: (0, 1024),
}
#: limits of a checkpoint's message: what fits in a record of a state topic
_ANY: Final = {"google.protobuf.Any.type_url": 200, "google.protobuf.Any.value": 1 << 20}


class RangeError(LookoutError, ValueError):
    """A field is outside its range."""


def number_range(field: _Descriptor) -> tuple[float, float]:
    """Return the smallest and the largest value of a numeric field, both included."""
    own = _bounds(field)
    return _RANGES.get(own.range, (own.least, own.most))


def size_limit(field: _Descriptor) -> int:
    """Return the maximum length of a field: characters of a text, or bytes of a bytes field."""
    return _ANY.get(field.full_name) or int(_bounds(field).size)


def count_limit(field: _Descriptor) -> int:
    """Return the maximum number of entries of a repeated field."""
    return int(_bounds(field).count)


def _bounds(field: _Descriptor) -> Bounds:
    own: Bounds = field.GetOptions().Extensions[bounds]
    return own


def check_ranges(message: Message) -> None:
    """Check every field of a message, nested messages included.

    Raises:
        RangeError: A field is outside its range; the text names the field, the value and the range.
    """
    for check in _checks(message.DESCRIPTOR):
        check(message)


@cache
def _checks(kind: _Descriptor) -> tuple[_Check, ...]:
    """Return the checks for a message type and its nested messages. No message type is recursive."""
    return tuple(check for field in kind.fields for check in _field_checks(kind, field))


def _field_checks(kind: _Descriptor, field: _Descriptor) -> list[_Check]:
    path = f"{kind.full_name.removeprefix(_PACKAGE)}.{field.name}"
    checks = [_count(path, field)] if field.is_repeated else []
    if field.message_type is not None:
        if field.message_type.full_name == _TIMESTAMP:
            checks.append(_timestamps(path, field))
        elif _checks(field.message_type):
            checks.append(_inner(field))
    elif field.type in (FieldDescriptor.TYPE_STRING, FieldDescriptor.TYPE_BYTES):
        checks.append(_size(path, field))
    elif field.type not in (FieldDescriptor.TYPE_BOOL, FieldDescriptor.TYPE_ENUM):
        checks.append(_number(path, field))
    return checks


def _number(path: str, field: _Descriptor) -> _Check:
    (low, high), name = number_range(field), field.name

    def check_one(message: Message) -> None:
        if not low <= getattr(message, name) <= high:  # in this form it also rejects NaN
            _refuse(path, getattr(message, name), low, high)

    def check_all(message: Message) -> None:
        for value in getattr(message, name):
            if not low <= value <= high:
                _refuse(path, value, low, high)

    return check_all if field.is_repeated else check_one


def _refuse(path: str, value: float, low: float, high: float) -> None:
    raise RangeError(f"{_PACKAGE}{path}: {value} is outside the range {_written(low)} to {_written(high)}")


def _written(value: float) -> str:
    return f"{'-' if value < 0 else ''}2^53" if abs(value) == LARGEST else f"{value:.12g}"


def _size(path: str, field: _Descriptor) -> _Check:
    limit, name, repeated = size_limit(field), field.name, field.is_repeated
    unit = "bytes" if field.type == FieldDescriptor.TYPE_BYTES else "characters"

    def check(message: Message) -> None:
        values = getattr(message, name)
        for value in values if repeated else (values,):
            if len(value) > limit:
                raise RangeError(f"{_PACKAGE}{path}: {len(value)} {unit}; the limit is {limit}")

    return check


def _count(path: str, field: _Descriptor) -> _Check:
    limit, name = count_limit(field), field.name

    def check(message: Message) -> None:
        if len(getattr(message, name)) > limit:
            raise RangeError(f"{_PACKAGE}{path}: {len(getattr(message, name))} entries; the limit is {limit}")

    return check


def _inner(field: _Descriptor) -> _Check:
    name, checks = field.name, _checks(field.message_type)

    def check_one(message: Message) -> None:
        if message.HasField(name):
            inner = getattr(message, name)
            for check in checks:
                check(inner)

    def check_all(message: Message) -> None:
        for inner in getattr(message, name):
            for check in checks:
                check(inner)

    return check_all if field.is_repeated else check_one


def _timestamps(path: str, field: _Descriptor) -> _Check:
    """Return a check that a Timestamp is in the years 1 to 9999. Other times are invalid and cannot be
    converted.
    """
    name = field.name

    def check(message: Message) -> None:
        if message.HasField(name):
            time = getattr(message, name)
            if not (-62_135_596_800 <= time.seconds <= 253_402_300_799 and 0 <= time.nanos < 10**9):
                raise RangeError(f"{_PACKAGE}{path}: {time.seconds} s is not a time in the years 1 to 9999")

    return check
