"""Names of Kafka headers, and access to their values, which are UTF-8 text."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

# 18 digits fit in 64 bits; `int` would also accept thousands of digits, signs and underscores.
_NUMBER = re.compile(r"[0-9]{1,18}")
Headers = tuple[tuple[str, bytes], ...]

CONTENT_TYPE: Final = "content-type"
TRACEPARENT: Final = "traceparent"
CAPTURED_AT: Final = "captured-at"  # optional on segments: Unix milliseconds of the first frame
#: smallest value of `captured-at`, in the year 2000: no camera's clock shows an earlier time
FIRST_CAPTURED_MS: Final = 946_684_800_000
#: limit of `captured-at`, in the year 2255: epochs stay below 2^53, which every JSON reader handles exactly
LAST_CAPTURED_MS: Final = 9_000_000_000_000
# on a segment without a value: number of the partition for the camera's segments from now on
MOVED: Final = "lookout-moved"
#: on the last segment of a recording, after which silence is not an outage
LAST: Final = "lookout-last"
TENANT: Final = "lookout-tenant"  # optional on segments: the camera's tenant
PRIORITY: Final = "lookout-priority"  # optional on segments: low, normal or high
ARRIVED: Final = "lookout-arrived-ms"  # when the segment of a record reached Kafka, Unix milliseconds

# On records that people write:
ACTOR: Final = "lookout-actor"  # who wrote it
KUBERNETES: Final = "kubernetes"  # the actor of records that mirror a resource: read-only
REQUEST_KEY: Final = "lookout-request-key"  # the same on all copies of a request; only the first copy counts

# On dead letters:
REASON: Final = "lookout-reason"
DETAIL: Final = "lookout-detail"
STAGE: Final = "lookout-stage"
SOURCE_TOPIC: Final = "lookout-source-topic"
SOURCE_PARTITION: Final = "lookout-source-partition"
SOURCE_OFFSET: Final = "lookout-source-offset"
SOURCE_KEY: Final = "lookout-source-key"  # if the key was not UTF-8: the key in hexadecimal
SOURCE_LAST_OFFSET: Final = "lookout-source-last-offset"  # offset of the last record, if several
RECORDS: Final = "lookout-records"  # number of records, if the dead letter stands for several
DROPPED: Final = "lookout-dropped"  # parts of the record that did not fit: headers, value, key

#: reason of a dead letter that stands for all records that were skipped in an interval because of a quota
QUOTA: Final = "quota"
URI_LIST: Final = "text/uri-list"
JSON: Final = "application/json"


def text(headers: Iterable[tuple[str, bytes | str | None]] | None, name: str) -> str | None:
    """Return the last value of header `name` (the newest wins), or None."""
    newest: str | None = None
    for key, value in headers or ():
        if key == name and value is not None:
            newest = value if isinstance(value, str) else value.decode("utf-8", "replace")
    return newest


def number(headers: Iterable[tuple[str, bytes | str | None]] | None, name: str) -> int | None:
    """Return the last value of header `name` as a number of at most 18 plain digits; None if it is anything
    else."""
    digits = text(headers, name) or ""
    return int(digits) if _NUMBER.fullmatch(digits) else None


def encode(values: dict[str, str]) -> Headers:
    """Return headers in the form that the Kafka client takes. Lone surrogates are escaped, because UTF-8
    cannot encode them.
    """
    return tuple((key, value.encode("utf-8", "backslashreplace")) for key, value in values.items())
