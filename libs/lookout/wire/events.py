"""CloudEvents 1.0, Kafka binary mode: attributes in `ce_` headers, the data as JSON (`message_json`)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, TypeVar

from google.protobuf.message import Message

from lookout.wire import headers as names
from lookout.wire.headers import Headers
from lookout.wire.message_json import WireError
from lookout.wire.ranges import RangeError, check_ranges

VERDICT_TYPE: Final = "lookout.verdict.v1"
ALERT_TYPE: Final = "lookout.alert.v1"

M = TypeVar("M", bound=Message)


def event_headers(kind: str, source: str, subject: str, identity: str, time: str) -> Headers:
    """Return the CloudEvents attributes: type, source (the stage), subject (the camera), id and RFC 3339
    time."""
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
    """Return the `ce_type` in a record's headers; None if it is missing."""
    return names.text(headers, "ce_type")


def from_bytes(data: bytes, kind: type[M]) -> M:
    """Parse binary protobuf, and check its ranges.

    Raises:
        WireError: The bytes are not a message of this type, or a field is outside its range.
    """
    message = kind()
    try:
        message.ParseFromString(data)
    except Exception as error:  # the exception class differs between protobuf back ends
        raise WireError(f"not a {kind.DESCRIPTOR.full_name}: {error}") from error
    try:
        check_ranges(message)
    except RangeError as error:
        raise WireError(str(error)) from error
    return message
