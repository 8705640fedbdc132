"""Converts messages to JSON and back.

The form is protobuf JSON with four differences, so that a consumer needs no protobuf library: field names are
those in the .proto files; 64-bit integers are numbers; enumeration values are lower case without their type's
prefix ("answered", "opened"); numbers and booleans are always present, even if they are zero. Empty texts,
lists and messages are omitted. Times are RFC 3339, durations are seconds, bytes are base64.
"""

from __future__ import annotations

import base64
import json
from typing import Any, Final, TypeVar

from google.protobuf import json_format
from google.protobuf.message import Message

from lookout.errors import LookoutError
from lookout.text import clean
from lookout.wire.ranges import RangeError, check_ranges

TIMESTAMP: Final = "google.protobuf.Timestamp"

#: most characters that a reason quotes from a parser's message
_QUOTED: Final = 300
M = TypeVar("M", bound=Message)
#: a message or field descriptor; its class differs between protobuf back ends
Descriptor = Any


class WireError(LookoutError, ValueError):
    """The bytes are not a valid record of their topic."""


def to_json(message: Message) -> bytes:
    """Return the message as JSON: compact, keys sorted, UTF-8."""
    return json.dumps(
        # Sorted and without NaN, so that a replay writes the same bytes for a message and every JSON reader
        # accepts them.
        _fields(message),
        sort_keys=True,
        ensure_ascii=False,
        separators=(",", ":"),
        allow_nan=False,
    ).encode()


def from_json(data: bytes, kind: type[M], *, closed: bool = False) -> M:
    """Parse JSON in the form of `to_json`, or standard protobuf JSON, and check the ranges.

    Unknown fields and unknown names of enumeration values are ignored, because a later release may have
    written them.

    Args:
        data: The JSON.
        kind: Type of the message.
        closed: Whether to reject unknown names of enumeration values; set it for requests, where they are
            mistakes.

    Raises:
        WireError: The bytes are not JSON, or a value does not fit its field or is outside its range. No other
            exception is raised, whatever the bytes are.
    """
    message = from_own_json(data, kind, closed=closed)
    try:
        check_ranges(message)
    except RangeError as error:
        raise WireError(str(error)) from error
    return message


def from_own_json(data: bytes, kind: type[M], *, closed: bool = False) -> M:
    """Parse a message that this process wrote: like `from_json`, but without checking ranges.

    Raises:
        WireError: The bytes are not JSON, or a value does not fit its field.
    """
    name = kind.DESCRIPTOR.full_name
    try:
        fields = json.loads(data)
        if not isinstance(fields, dict):
            raise WireError(f"not a {name} in JSON: it must be an object, not {type(fields).__name__}")
        message = json_format.ParseDict(
            _standard(fields, kind.DESCRIPTOR, closed), kind(), ignore_unknown_fields=True
        )
    except WireError:
        raise
    except Exception as error:
        # Any exception: the parsers raise ValueError for a number with 5 000 digits, UnicodeEncodeError for a
        # lone surrogate, AttributeError and TypeError for values of the wrong kind, and perhaps others in
        # future releases.
        raise WireError(f"not a {name} in JSON: {_first_words(error)}") from error
    return message


def _first_words(error: Exception) -> str:
    """Return the beginning of a parser's error as printable text. json_format's errors quote the whole
    record, even lone surrogates.
    """
    return clean(error, _QUOTED)


def enum_prefix(enum: str) -> str:
    """Return the prefix of an enumeration's values: "OUTCOME_" for "Outcome"."""
    words = "".join(f"_{letter}" if letter.isupper() else letter for letter in enum)
    return words.lstrip("_").upper() + "_"


def enum_name(enum: str, value: str) -> str:
    """Return a value's name in JSON: "answered" for OUTCOME_ANSWERED of "Outcome"."""
    return value.removeprefix(enum_prefix(enum)).lower().replace("_", "-")


def _fields(message: Message) -> dict[str, Any]:
    fields: dict[str, Any] = {}
    for field in message.DESCRIPTOR.fields:
        value = getattr(message, field.name)
        if field.is_repeated:
            if value:
                fields[field.name] = [_value(field, item) for item in value]
        elif field.has_presence:
            if message.HasField(field.name):
                fields[field.name] = _value(field, value)
        # Numbers and booleans are written even if zero, for consumers that do not know protobuf's defaults.
        elif value or not isinstance(value, str | bytes):
            fields[field.name] = _value(field, value)
    return fields


def _value(field: Descriptor, value: Any) -> Any:
    if field.message_type is not None:
        return value.ToJsonString() if field.message_type.full_name == TIMESTAMP else _fields(value)
    if field.enum_type is not None:
        entry = field.enum_type.values_by_number.get(value)
        return value if entry is None else enum_name(field.enum_type.name, entry.name)
    return base64.b64encode(value).decode() if isinstance(value, bytes) else value


def _standard(fields: dict[str, Any], kind: Descriptor, closed: bool) -> dict[str, Any]:
    """Return the fields with enumeration values renamed for protobuf's parser; reject unknown ones if
    `closed`."""
    standard = dict(fields)
    for name, value in fields.items():
        field = kind.fields_by_name.get(name)
        if field is None:
            continue
        if field.is_repeated and isinstance(value, list):
            standard[name] = [_standard_value(field, item, closed) for item in value]
        else:
            standard[name] = _standard_value(field, value, closed)
    return standard


def _standard_value(field: Descriptor, value: Any, closed: bool) -> Any:
    if field.message_type is not None and isinstance(value, dict):
        return _standard(value, field.message_type, closed)
    enum = field.enum_type
    if enum is not None and isinstance(value, str) and value not in enum.values_by_name:
        name = enum_prefix(enum.name) + value.upper().replace("-", "_")
        if closed and name not in enum.values_by_name:
            known = ", ".join(enum_name(enum.name, entry) for entry in [*enum.values_by_name][1:])
            raise WireError(f"{field.name}: {clean(value, 40)!r} is unknown; it is one of {known}")
        return name
    return value
