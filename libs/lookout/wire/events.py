"""CloudEvents 1.0, Kafka binary mode: attributes in `ce_` headers, the data as protobuf JSON."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Final, TypeVar

from google.protobuf import json_format
from google.protobuf.message import Message

from lookout.wire import headers as names
from lookout.wire.headers import Headers

VERDICT_TYPE: Final = "lookout.verdict.v1"
ALERT_TYPE: Final = "lookout.alert.v1"

M = TypeVar("M", bound=Message)


class WireError(ValueError):
    """Bytes that are not what their topic promises."""


def event_headers(kind: str, source: str, subject: str, identity: str, time: str) -> Headers:
    """CloudEvents attributes: type, source (the stage), subject (the camera), id and RFC 3339 time."""
    return names.encode(
        {
            "ce_specversion": "1.0",
            "ce_type": kind,
            "ce_source": source,
            "ce_subject": subject,
            "ce_id": identity,
            "ce_time": time,
            names.CONTENT_TYPE: names.JSON,
        }
    )


def event_type(headers: Iterable[tuple[str, bytes | str | None]] | None) -> str | None:
    """The `ce_type` of a record."""
    return names.text(headers, "ce_type")


def to_json(message: Message) -> bytes:
    """Protobuf JSON, field names as in the .proto files, compact, stable order."""
    text: str = json_format.MessageToJson(
        message, preserving_proto_field_name=True, indent=None, sort_keys=True, ensure_ascii=False
    )
    return text.encode()


def from_json(data: bytes, kind: type[M]) -> M:
    """Parse protobuf JSON; unknown fields are ignored. Raises WireError."""
    name = kind.DESCRIPTOR.full_name
    try:
        fields = json.loads(data)
        if not isinstance(fields, dict):
            raise WireError(f"not a {name} in JSON: an object is expected, not {type(fields).__name__}")
        return json_format.ParseDict(fields, kind(), ignore_unknown_fields=True)
    except (json_format.ParseError, json.JSONDecodeError, UnicodeDecodeError) as error:
        raise WireError(f"not a {name} in JSON: {error}") from error


def from_bytes(data: bytes, kind: type[M]) -> M:
    """Parse binary protobuf. Raises WireError."""
    message = kind()
    try:
        message.ParseFromString(data)
    except Exception as error:  # the exception class differs between protobuf back ends
        raise WireError(f"not a {kind.DESCRIPTOR.full_name}: {error}") from error
    return message
