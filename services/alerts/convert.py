"""Converts between messages and the plain data of the rules."""

from __future__ import annotations

from lookout.rules import (
    Coverage,
    EventKind,
    Incident,
    IncidentEvent,
    WatchState,
    best_frames,
)
from lookout.v1 import alerts_pb2, state_pb2, verdicts_pb2
from lookout.wire import ids

_KINDS = {
    EventKind.OPENED: alerts_pb2.Alert.KIND_OPENED,
    EventKind.UPDATED: alerts_pb2.Alert.KIND_UPDATED,
    EventKind.CLOSED: alerts_pb2.Alert.KIND_CLOSED,
}


def alert(
    camera: str,
    watch: str,
    question: str,
    event: IncidentEvent,
    tenant: str = "",
    *,
    untrained: bool = False,
) -> alerts_pb2.Alert:
    """Convert an incident event to the published message.

    Args:
        camera: The camera.
        watch: The watch's id.
        question: The watch's question.
        event: What happened.
        tenant: The camera's tenant when the incident opened; empty: the tenant `default`.
        untrained: Whether the model was not trained for the question.
    """
    incident = event.incident
    message = alerts_pb2.Alert(
        # Derived from the event, never from the clock: a replay publishes the same ids, and readers drop
        # those that they have seen.
        id=ids.stable_id("alert", incident.id, event.kind, event.end_ms, event.reason),
        incident=incident.id,
        kind=_KINDS[event.kind],
        camera=camera,
        epoch=event.epoch,
        watch=watch,
        watch_version=event.version,
        question=question,
        score=incident.score,
        peak=incident.peak,
        windows=incident.windows,
        reason=event.reason,
        evidence=[verdicts_pb2.Evidence.FromString(frame) for frame in best_frames(incident)],
        coverage=_coverage(incident.coverage),
        tenant=tenant,
        untrained=untrained,
    )
    message.start.FromMilliseconds(incident.opened_ms)
    message.end.FromMilliseconds(event.end_ms)
    if incident.raised_ms:
        message.raised.FromMilliseconds(incident.raised_ms)
    return message


def _coverage(coverage: Coverage) -> alerts_pb2.Coverage:
    return alerts_pb2.Coverage(
        answered_s=coverage.answered / 1000,
        idle_s=coverage.idle / 1000,
        gap_s=coverage.gap / 1000,
        skipped_s=coverage.skipped / 1000,
        degraded_s=coverage.degraded / 1000,
        gated_s=coverage.gated / 1000,
    )


def pack(watch: str, state: WatchState, tenant: str = "") -> state_pb2.WatchState:
    """Convert a watch's state to its checkpoint message.

    The question is omitted, so that 256 states fit into one record. `tenant` is the tenant of the open
    incident.
    """
    message = state_pb2.WatchState(
        watch=watch,
        version=state.version,
        epoch=state.epoch,
        window=state.window,
        # The recent answers as bits: 1 means yes, the newest answer is the lowest bit.
        recent=sum(yes << place for place, yes in enumerate(reversed(state.recent))),
        seen=len(state.recent),
        newest_ms=state.newest_ms,
        cooldown_until_ms=state.cooldown_until_ms,
        held_since_ms=state.held_since_ms,
    )
    if state.incident is not None:
        message.incident.CopyFrom(_pack_incident(state.incident))
        message.incident.tenant = tenant
    return message


def _pack_incident(incident: Incident) -> state_pb2.OpenIncident:
    return state_pb2.OpenIncident(
        id=incident.id,
        opened_ms=incident.opened_ms,
        raised_ms=incident.raised_ms,
        peak=incident.peak,
        score=incident.score,
        windows=incident.windows,
        reported_peak=incident.reported_peak,
        evidence=[
            state_pb2.WindowEvidence(
                p_yes=p, frames=[verdicts_pb2.Evidence.FromString(frame) for frame in frames]
            )
            for p, frames in incident.evidence
        ],
        coverage=_coverage(incident.coverage),
    )


def unpack(message: state_pb2.WatchState) -> WatchState:
    """The inverse of `pack`."""
    return WatchState(
        version=message.version,
        epoch=message.epoch,
        window=message.window,
        recent=tuple(bool(message.recent >> place & 1) for place in reversed(range(message.seen))),
        newest_ms=message.newest_ms,
        cooldown_until_ms=message.cooldown_until_ms,
        incident=_unpack_incident(message.incident) if message.HasField("incident") else None,
        held_since_ms=message.held_since_ms,
    )


def _unpack_incident(message: state_pb2.OpenIncident) -> Incident:
    return Incident(
        id=message.id,
        opened_ms=message.opened_ms,
        raised_ms=message.raised_ms,
        peak=message.peak,
        score=message.score,
        windows=message.windows,
        reported_peak=message.reported_peak,
        evidence=tuple(
            (
                window.p_yes,
                tuple(frame.SerializeToString(deterministic=True) for frame in window.frames),
            )
            for window in message.evidence
        ),
        coverage=_unpack_coverage(message.coverage),
    )


def _unpack_coverage(message: alerts_pb2.Coverage) -> Coverage:
    return Coverage(
        answered=round(message.answered_s * 1000),
        idle=round(message.idle_s * 1000),
        gap=round(message.gap_s * 1000),
        skipped=round(message.skipped_s * 1000),
        degraded=round(message.degraded_s * 1000),
        gated=round(message.gated_s * 1000),
    )
