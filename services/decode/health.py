"""Camera health: turns what decode observes into incidents of the watch `camera-health`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Final

from lookout.runtime.worker import Output, Record
from lookout.services.decode.epoch import OpenEpoch
from lookout.services.decode.stream import Stream, captured_ms, span_us
from lookout.streams.stages import Draft
from lookout.v1.alerts_pb2 import Alert
from lookout.video.health import (
    NO_LOOKS,
    CameraFault,
    HealthEvent,
    Observation,
    advance,
    end,
    look_at,
    observe,
    unlearned,
)
from lookout.video.segments import DecodedSegment
from lookout.wire import (
    ALERT_TYPE,
    ALERTS,
    CAMERA_HEALTH,
    Stage,
    event_headers,
    incident_id,
    stable_id,
    tenant_of,
    to_json,
)

#: descriptions of the faults, for people
TEXTS: Final = {
    CameraFault.OFFLINE: "The camera sends nothing.",
    CameraFault.DAMAGED: "The camera's pictures arrive damaged.",
    CameraFault.FROZEN: "The camera sends the same picture again and again.",
    CameraFault.LOOPED: "The camera repeats pictures that it showed before.",
    CameraFault.DARK: "The picture is dark at an hour when it is usually bright.",
    CameraFault.COVERED: "The lens is covered.",
    CameraFault.BLURRED: "The picture is blurred.",
    CameraFault.MOVED: "The camera shows a different view than usual.",
    CameraFault.RATE: "The frame rate or bit rate has collapsed.",
    CameraFault.CLOCK: "The camera's clock is wrong.",
}
_KINDS: Final = {
    "opened": Alert.KIND_OPENED,
    "updated": Alert.KIND_UPDATED,
    "closed": Alert.KIND_CLOSED,
}
#: assumed length of an undecodable segment, in seconds
_REFUSED_S: Final = 2.0
_JUMPS: Final = frozenset({"clock-jump", "clock-reset"})


class HealthWriter:
    """Judges cameras' health and writes their incidents into drafts.

    Args:
        asks_for_outages: Given a camera and tenant, returns whether the watch `camera-offline` covers them.
            If so, their outages open no incident here, so that each outage has only one incident.
        on: Whether to judge cameras. If False, open incidents are closed.
    """

    def __init__(self, asks_for_outages: Callable[[str, str], bool], *, on: bool = True) -> None:
        self._asks_for_outages = asks_for_outages
        self._on = on

    def segment(
        self,
        camera: str,
        unit: OpenEpoch,
        record: Record,
        decoded: DecodedSegment,
        draft: Draft,
        *,
        ends: str,
    ) -> OpenEpoch:
        """Judge a segment; return the updated unit.

        Args:
            camera: The camera's id.
            unit: The unit, which already contains the segment.
            record: Its record.
            decoded: The segment.
            draft: Takes the events of the camera's incident.
            ends: Why the segment ended the previous epoch; empty if it continues the epoch.
        """
        if not self._on:
            return self._end(camera, unit, draft, "removed")
        if ends == "masks":  # a changed mask would look like a covered lens
            unit = replace(unit, health=unlearned(unit.health))
        facts, span = decoded.facts, span_us(decoded)
        at_ms = (unit.stream.wall_us + decoded.end_stream_us - span) // 1000
        captured = captured_ms(record)
        ahead_s = 0.0 if captured is None else (captured + span / 1000 - record.timestamp_ms) / 1000
        observation = Observation(
            at_ms=at_ms,
            seconds=span / 1e6,
            planes=look_at(decoded.pixels),
            frames=facts.frames,
            size=facts.bytes,
            damaged=facts.corrupt / facts.decoded if facts.decoded else 0.0,
            ahead_s=ahead_s,
            jumped=ends in _JUMPS,
        )
        return self._observed(camera, unit, observation, draft)

    def refused(self, camera: str, unit: OpenEpoch, record: Record, draft: Draft) -> OpenEpoch:
        """Judge a segment that could not be decoded; return the updated unit."""
        if not (self._on and unit.stream.epoch):
            return unit
        at_ms = record.timestamp_ms - round(1000 * _REFUSED_S)
        return self._observed(camera, unit, Observation(at_ms, _REFUSED_S, NO_LOOKS, refused=True), draft)

    def silent(self, camera: str, unit: OpenEpoch, silence_s: float, draft: Draft) -> OpenEpoch:
        """Judge a camera that sends nothing as offline; return the updated unit.

        A camera whose segments arrive but cannot be decoded is not offline. If the watch `camera-offline`
        covers the camera, the alerts service opens the incident, and an open incident about the camera's
        pictures is closed here, so that nobody is notified twice of the same outage.

        Args:
            camera: The camera's id.
            unit: The camera's unit.
            silence_s: Seconds of silence so far.
            draft: Takes the events of the camera's incident.
        """
        health = unit.health
        if not self._on or not health.live or health.fault_s[tuple(CameraFault).index(CameraFault.DAMAGED)]:
            return unit
        if self._asks_for_outages(camera, tenant_of(unit.stream.labels.tenant)):
            return self._end(camera, unit, draft, "offline")
        until_ms = unit.stream.heard_ms + round(1000 * silence_s)
        return self._advanced(camera, unit, {CameraFault.OFFLINE}, until_ms, silence_s, draft)

    def end(self, camera: str, unit: OpenEpoch, reason: str, draft: Draft) -> OpenEpoch:
        """Close the camera's incident, if one is open; return the updated unit."""
        return self._end(camera, unit, draft, reason)

    def _observed(self, camera: str, unit: OpenEpoch, observation: Observation, draft: Draft) -> OpenEpoch:
        health, faults = observe(unit.health, observation)
        unit = replace(unit, health=health)
        return self._advanced(camera, unit, faults, observation.end_ms, observation.seconds, draft)

    def _advanced(  # noqa: PLR0917
        self,
        camera: str,
        unit: OpenEpoch,
        faults: Iterable[CameraFault],
        end_ms: int,
        seconds: float,
        draft: Draft,
    ) -> OpenEpoch:
        stream = unit.stream
        identity = incident_id(camera, stream.epoch, CAMERA_HEALTH, 1, stream.watermark_us)
        health, events = advance(
            unit.health, faults, end_ms, seconds, identity=identity, tenant=stream.labels.tenant
        )
        _write(camera, stream, events, draft)
        return replace(unit, health=health)

    def _end(self, camera: str, unit: OpenEpoch, draft: Draft, reason: str) -> OpenEpoch:
        if unit.health.incident is None:
            return unit
        health, events = end(unit.health, unit.stream.heard_ms, reason)
        _write(camera, unit.stream, events, draft)
        return replace(unit, health=health)


def _write(camera: str, stream: Stream, events: Sequence[HealthEvent], draft: Draft) -> None:
    for event in events:
        incident = event.incident
        alert = Alert(
            id=stable_id("alert", incident.id, event.kind, event.at_ms, f"{incident.cause} {event.reason}"),
            incident=incident.id,
            kind=_KINDS[event.kind],
            camera=camera,
            epoch=stream.epoch,
            watch=CAMERA_HEALTH,
            watch_version=1,
            question=TEXTS[incident.cause],
            score=float(event.kind != "closed"),
            peak=1.0,
            windows=incident.segments,
            reason=event.reason,
            tenant=incident.tenant,
            cause=incident.cause.value,
        )
        alert.start.FromMilliseconds(incident.opened_ms)
        alert.end.FromMilliseconds(event.at_ms)
        if event.kind == "opened":
            draft.counts[f"camera_{incident.cause}"] += 1
        headers = event_headers(ALERT_TYPE, Stage.DECODE, camera, alert.id, alert.end.ToJsonString())
        draft.outputs.append(Output(ALERTS.name, camera, to_json(alert), headers))
