"""Builds the events of a stream, and the fields that events and results of a stage have in common."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final, TypeVar

from lookout.v1 import lineage_pb2
from lookout.v1.cameras_pb2 import CameraLabels
from lookout.v1.frames_pb2 import FramesRecord
from lookout.v1.lineage_pb2 import Cause, RecordRef, Sampling, StreamEvent
from lookout.v1.tokens_pb2 import TokensRecord

M = TypeVar("M", FramesRecord, TokensRecord)

CAUSES: Final[Mapping[str, Cause]] = MappingProxyType(
    {
        "silence": lineage_pb2.CAUSE_SILENCE,
        "ended": lineage_pb2.CAUSE_ENDED,
        "clock-jump": lineage_pb2.CAUSE_CLOCK_JUMP,
        "clock-reset": lineage_pb2.CAUSE_CLOCK_RESET,
        "configuration": lineage_pb2.CAUSE_CONFIGURATION,
        "two-cameras": lineage_pb2.CAUSE_TWO_CAMERAS,
        "retention": lineage_pb2.CAUSE_RETENTION,
        "moved": lineage_pb2.CAUSE_MOVED,
        "tenant": lineage_pb2.CAUSE_CONFIGURATION,
        "masks": lineage_pb2.CAUSE_CONFIGURATION,
    }
)
"""The cause of an epoch's end, by the reason in its event."""


def envelope(  # noqa: PLR0917
    kind: type[M], camera: str, epoch: int, wall_us: int, sampling: Sampling, labels: CameraLabels | None
) -> M:
    """Return a record of an epoch without its body (the event or the result).

    Args:
        kind: The stage's message type.
        camera: The camera's id.
        epoch: Number of the epoch.
        wall_us: Unix time minus stream time, microseconds.
        sampling: Sampling of the epoch.
        labels: Labels of the camera, from its newest segment; None: the defaults.
    """
    return kind(camera=camera, epoch=epoch, wall_offset_us=wall_us, sampling=sampling, labels=labels)


def forwarded(message: FramesRecord) -> TokensRecord:
    """Return prune-encode's record for an event from decode, which it passes on unchanged."""
    labels = message.labels if message.HasField("labels") else None
    record = envelope(
        TokensRecord, message.camera, message.epoch, message.wall_offset_us, message.sampling, labels
    )
    record.event.CopyFrom(message.event)
    return record


def gap(at_us: int, reason: str, until_us: int = 0) -> StreamEvent:
    """Return the event that ends an epoch with a gap.

    Args:
        at_us: Stream time at which the epoch ends and the gap begins, microseconds.
        reason: A key of `CAUSES`.
        until_us: Stream time at which the gap ends, microseconds; 0: unknown.
    """
    return StreamEvent(
        kind=StreamEvent.KIND_GAP,
        start_us=at_us,
        end_us=max(at_us, until_us),
        reason=reason,
        cause=CAUSES[reason],
    )


def late(segment: RecordRef, start_us: int, end_us: int) -> StreamEvent:
    """Return the event for a segment that came too late, because its whole time was already decoded. The
    event changes no outcome. Times are stream times in microseconds."""
    return StreamEvent(
        kind=StreamEvent.KIND_LATE,
        start_us=max(0, start_us),
        end_us=max(0, end_us),
        reason="late",
        cause=lineage_pb2.CAUSE_LATE,
        segment=segment,
    )


def skipped(segment: RecordRef, at_us: int, reason: str, cause: Cause) -> StreamEvent:
    """Return the event for a segment that was skipped at stream time `at_us` (microseconds). The blocks of
    that time will lack its frames."""
    return StreamEvent(
        kind=StreamEvent.KIND_SKIPPED,
        start_us=at_us,
        end_us=at_us,
        reason=reason,
        cause=cause,
        segment=segment,
    )
