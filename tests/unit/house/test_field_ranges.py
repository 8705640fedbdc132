"""Every field of every message has its range in the tables of `lookout.wire.ranges`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from google.protobuf.any_pb2 import Any as Any_

from lookout.v1 import (
    access_pb2,
    actions_pb2,
    alerts_pb2,
    cameras_pb2,
    erasures_pb2,
    frames_pb2,
    labels_pb2,
    lineage_pb2,
    media_pb2,
    recordings_pb2,
    state_pb2,
    tensors_pb2,
    tokens_pb2,
    verdicts_pb2,
    watches_pb2,
)
from lookout.wire.ranges import COUNTS, NUMBERS, SIZES

MODULES = (
    access_pb2,
    actions_pb2,
    alerts_pb2,
    cameras_pb2,
    erasures_pb2,
    frames_pb2,
    labels_pb2,
    lineage_pb2,
    media_pb2,
    recordings_pb2,
    state_pb2,
    tensors_pb2,
    tokens_pb2,
    verdicts_pb2,
    watches_pb2,
)


def fields() -> Iterator[tuple[str, Any]]:
    """Every field of every message of the wire, with its path in the tables."""
    for module in MODULES:
        for kind in module.DESCRIPTOR.message_types_by_name.values():
            for field in kind.fields:
                yield f"{kind.name}.{field.name}", field
    # Checkpoints hold one: the state of a service of one's own.
    yield from ((field.full_name, field) for field in Any_.DESCRIPTOR.fields)


def test_every_field_is_in_the_tables_and_nothing_else() -> None:
    numbers, sizes, counts = set(), set(), set()
    for path, field in fields():
        if field.type in (field.TYPE_STRING, field.TYPE_BYTES):
            sizes.add(path)
        elif field.message_type is None and field.type not in (field.TYPE_BOOL, field.TYPE_ENUM):
            numbers.add(path)
        if field.is_repeated:
            counts.add(path)
    assert set(NUMBERS) == numbers
    assert set(SIZES) == sizes
    assert set(COUNTS) == counts
