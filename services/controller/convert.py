"""Between Kubernetes resources and the wire's messages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from lookout.rules import RuleError, ScheduleEntry, Zone
from lookout.v1.cameras_pb2 import Camera
from lookout.v1.watches_pb2 import Point, Rule, Watch
from lookout.v1.watches_pb2 import ScheduleEntry as WireScheduleEntry
from lookout.v1.watches_pb2 import Zone as WireZone

_TRANSPORTS = {"tcp": Camera.TRANSPORT_TCP, "udp": Camera.TRANSPORT_UDP}


class ResourceError(ValueError):
    """A resource that cannot be followed although its schema allows it; the message names the field."""


@dataclass(frozen=True, slots=True)
class Condition:
    """One status condition."""

    type: str
    status: bool
    reason: str
    message: str = ""


def camera(resource: Mapping[str, Any]) -> Camera:
    """Return the wire's camera of a Camera resource."""
    spec = resource["spec"]
    return Camera(
        id=resource["metadata"]["name"],
        url=spec["url"],
        transport=_TRANSPORTS[spec.get("transport", "tcp")],
        segment_s=float(spec.get("segmentSeconds", 4)),
        credentials=spec.get("credentialsSecret", ""),
        paused=bool(spec.get("paused", False)),
    )


def watch(resource: Mapping[str, Any]) -> Watch:
    """Return the wire's watch of a Watch resource, without version and beginning.

    Raises:
        ResourceError: The schedule or a zone cannot be followed.
    """
    spec = resource["spec"]
    threshold = float(spec.get("threshold", 0.5))
    rule = Rule(
        threshold=threshold,
        clear_threshold=float(spec.get("clearThreshold", threshold)),
        k=int(spec.get("minYes", 1)),
        n=int(spec.get("ofLast", 1)),
        cooldown_s=float(spec.get("cooldownSeconds", 0)),
        schedule=[_schedule(each) for each in spec.get("schedule", ())],
        zones=[_zone(each) for each in spec.get("zones", ())],
    )
    return Watch(
        id=resource["metadata"]["name"],
        question=spec["question"].strip(),
        cameras=spec.get("cameras", ()),
        rule=rule,
        describe=bool(spec.get("describe", False)),
        disabled=bool(spec.get("disabled", False)),
    )


def versioned(desired: Watch, existing: Watch | None, created: datetime, now_ms: int) -> Watch | None:
    """Return the record to write for a watch, or None if the topic has it already.

    A first version counts from the creation of its resource in seconds, so that a watch that was deleted and
    made again never has a number twice; it holds for all footage. A change holds from now.
    """
    record = Watch()
    record.CopyFrom(desired)
    if existing is None:
        record.version = int(created.timestamp())
        return record
    same = Watch()
    same.CopyFrom(existing)
    same.ClearField("version")
    same.ClearField("active_from")
    if same == desired:
        return None
    record.version = existing.version + 1
    record.active_from.FromMilliseconds(now_ms)
    return record


def conditions(
    before: Sequence[Mapping[str, Any]], wanted: Sequence[Condition], generation: int, now: str
) -> list[dict[str, Any]]:
    """Return status conditions; the time of one that stays the same stays too."""
    old = {each["type"]: each for each in before}
    made = []
    for each in wanted:
        status = "True" if each.status else "False"
        last = old.get(each.type)
        changed = last is None or last["status"] != status
        made.append(
            {
                "type": each.type,
                "status": status,
                "reason": each.reason,
                "message": each.message,
                "observedGeneration": generation,
                "lastTransitionTime": now if last is None or changed else last["lastTransitionTime"],
            }
        )
    return made


def _schedule(entry: Mapping[str, Any]) -> WireScheduleEntry:
    zone = entry.get("timeZone", "UTC")
    try:
        start, end = (datetime.strptime(entry[name], "%H:%M").time() for name in ("start", "end"))
        ScheduleEntry(start, end, frozenset(entry.get("weekdays") or range(1, 8)), zone)
    except (RuleError, ValueError) as error:
        raise ResourceError(f"spec.schedule: {error}") from error
    return WireScheduleEntry(
        weekdays=entry.get("weekdays", ()), start=entry["start"], end=entry["end"], time_zone=zone
    )


def _zone(zone: Mapping[str, Any]) -> WireZone:
    points = [(float(x), float(y)) for x, y in zone["points"]]
    try:
        Zone(tuple(points), zone.get("name", ""))
    except RuleError as error:
        raise ResourceError(f"spec.zones: {error}") from error
    return WireZone(name=zone.get("name", ""), points=[Point(x=x, y=y) for x, y in points])
