"""Every field of every message of the wire has bounds: the limits that entries are checked with."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import pytest
from google.protobuf.any_pb2 import Any as Any_

from lookout.text import MAX_QUESTION
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
    notifications_pb2,
    recordings_pb2,
    state_pb2,
    tensors_pb2,
    tokens_pb2,
    verdicts_pb2,
    watches_pb2,
)
from lookout.v1.access_pb2 import ApiToken, AuditEntry
from lookout.v1.actions_pb2 import IncidentAction
from lookout.v1.bounds_pb2 import bounds
from lookout.v1.cameras_pb2 import Camera
from lookout.v1.frames_pb2 import Picture
from lookout.v1.lineage_pb2 import Sampling
from lookout.v1.notifications_pb2 import NotifyState
from lookout.v1.recordings_pb2 import (
    BacktestAnswer,
    BacktestJob,
    PartOutcome,
    RecordingJob,
    RecordingPlan,
    RecordingSettings,
)
from lookout.v1.state_pb2 import AlertsState
from lookout.v1.tokens_pb2 import TemporalPatch
from lookout.v1.watches_pb2 import Rule, ScheduleEntry, Watch, Zone
from lookout.wire import limits
from lookout.wire.ranges import number_range, size_limit

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
    notifications_pb2,
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


def test_every_field_has_the_bounds_of_its_type_and_no_others() -> None:
    for path, field in fields():
        own = field.GetOptions().Extensions[bounds]
        text = field.type in (field.TYPE_STRING, field.TYPE_BYTES)
        number = field.message_type is None and not text and field.enum_type is None
        number = number and field.type != field.TYPE_BOOL
        low, high = number_range(field)
        assert (low < high) == number, f"{path}: give it a range, or least and most"
        assert (size_limit(field) > 0) == text, f"{path}: give it a size"
        assert (own.count > 0) == field.is_repeated, f"{path}: give it a count"
        assert not (own.range and (own.least or own.most)), f"{path}: a range, or least and most"


#: what is also checked where people or resources enter it: limit, message, field, kind of bound
LIMITS: Final = (
    (limits.WATCH_CAMERAS, Watch, "cameras", "count"),
    (limits.ZONES, Rule, "zones", "count"),
    (limits.ZONE_POINTS, Zone, "points", "count"),
    (limits.ZONE_NAME, Zone, "name", "size"),
    (limits.SCHEDULE_ENTRIES, Rule, "schedule", "count"),
    (limits.TIME_ZONE, ScheduleEntry, "time_zone", "size"),
    (limits.TIME_ZONE, Camera, "time_zone", "size"),
    (limits.LAST_ANSWERS, Rule, "n", "most"),
    (limits.COOLDOWN_S, Rule, "cooldown_s", "most"),
    (limits.CAMERA_WATCHES + 1, AlertsState, "watches", "count"),
    (limits.BLOCK_SAMPLES, Sampling, "block_samples", "most"),
    (limits.WINDOW_BLOCKS, Sampling, "window_blocks", "most"),
    (limits.GRID_CELLS // 8, TemporalPatch, "keep", "size"),
    (limits.JOB_BYTES, RecordingJob, "id", "size"),
    (limits.JOB_URIS, RecordingJob, "uris", "count"),
    (limits.URI_CHARS, RecordingJob, "uris", "size"),
    (limits.JOB_QUESTIONS, RecordingJob, "questions", "count"),
    (limits.JOB_S, RecordingJob, "expires_s", "most"),
    (limits.JOB_PARTS, RecordingPlan, "parts", "most"),
    (limits.JOB_RECORDINGS, RecordingPlan, "recordings", "count"),
    (limits.PART_SAMPLES, RecordingSettings, "part_frames", "most"),
    (limits.DESCRIPTION_TOKENS, RecordingSettings, "describe", "most"),
    (limits.RECORDING_GAPS, PartOutcome, "gaps", "count"),
    (limits.JOB_INCIDENTS, BacktestAnswer, "incidents", "count"),
    (limits.JOB_LABELS, BacktestJob, "labels", "count"),
    (limits.ACTOR_CHARS, AuditEntry, "actor", "size"),
    (limits.NOTE_CHARS, IncidentAction, "note", "size"),
    (limits.REQUEST_KEY, AuditEntry, "request", "size"),
    (limits.TOKEN_SCOPES, ApiToken, "cameras", "count"),
    (limits.WAITING_EVENTS, NotifyState, "waiting", "count"),
    (limits.NOTIFICATIONS, NotifyState, "told", "count"),
)


@pytest.mark.parametrize(("limit", "message", "name", "kind"), LIMITS)
def test_limits_are_the_bounds_of_their_fields(limit: int, message: Any, name: str, kind: str) -> None:
    own = message.DESCRIPTOR.fields_by_name[name].GetOptions().Extensions[bounds]
    assert getattr(own, kind) == limit


def test_fields_of_one_name_have_one_size() -> None:
    sizes = {
        "camera": limits.ID_BYTES,
        "watch": limits.ID_BYTES,
        "tenant": limits.TENANT_CHARS,
        "question": MAX_QUESTION,
        "uri": limits.URI_CHARS,
    }
    for path, field in fields():
        if field.name in sizes and field.type == field.TYPE_STRING:
            assert size_limit(field) == sizes[field.name], path


def test_a_grid_has_as_many_rows_as_the_limit() -> None:
    assert number_range(Picture.DESCRIPTOR.fields_by_name["rows"]) == (0, limits.GRID_SIDE)
