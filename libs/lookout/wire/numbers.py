"""The range of 64-bit integers on the wire: what a JSON number holds exactly."""

from __future__ import annotations

from functools import cache
from typing import Any, Final

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

from lookout.errors import LookoutError

__all__ = ["LARGEST", "NumberError", "check_numbers"]

LARGEST: Final = 2**53
"""Largest absolute value (RFC 8259, section 6). As microseconds 285 years: the sum of two times is a date."""

_LONG: Final = frozenset(
    {
        FieldDescriptor.TYPE_INT64,
        FieldDescriptor.TYPE_UINT64,
        FieldDescriptor.TYPE_SINT64,
        FieldDescriptor.TYPE_FIXED64,
        FieldDescriptor.TYPE_SFIXED64,
    }
)
_TIMESTAMP: Final = "google.protobuf.Timestamp"
#: a message or field descriptor; its class differs between protobuf back ends
_Descriptor = Any


class NumberError(LookoutError, ValueError):
    """An integer outside the range of the wire."""


def check_numbers(message: Message) -> None:
    """Check the 64-bit integers of a message and of those in it.

    FLOPs (`flops_...`) are left out: nothing is computed from them.

    Raises:
        NumberError: One is beyond `LARGEST`; the text names the field.
    """
    numbers, messages = _fields(message.DESCRIPTOR)
    for name, repeated in numbers:
        value = getattr(message, name)
        for number in value if repeated else (value,):
            if not -LARGEST <= number <= LARGEST:
                raise NumberError(f"{message.DESCRIPTOR.full_name}.{name}: {number} is beyond 2^53")
    for name, repeated in messages:
        if repeated:
            for each in getattr(message, name):
                check_numbers(each)
        elif message.HasField(name):
            check_numbers(getattr(message, name))


@cache
def _fields(kind: _Descriptor) -> tuple[tuple[tuple[str, bool], ...], tuple[tuple[str, bool], ...]]:
    """Names of the 64-bit fields and of the fields that hold messages with such; whether each is repeated."""
    numbers = [f for f in kind.fields if f.type in _LONG and not f.name.startswith("flops_")]
    messages = [f for f in kind.fields if f.message_type is not None and _has_long(f.message_type)]
    return tuple((f.name, f.is_repeated) for f in numbers), tuple((f.name, f.is_repeated) for f in messages)


def _has_long(kind: _Descriptor) -> bool:
    """Whether a message has anything to check. Messages of the wire do not contain themselves."""
    return kind.full_name != _TIMESTAMP and any(_fields(kind))
