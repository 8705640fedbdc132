"""Converts Kubernetes resources to the messages of topics."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from lookout.administration.cameras import time_zone_fault
from lookout.rules import ASKED, RuleError, check_watch, next_version
from lookout.rules.notifications import check_notification
from lookout.text import clean, question_text
from lookout.v1.cameras_pb2 import Camera
from lookout.v1.notifications_pb2 import Apprise, Mqtt, Notification, Webhook
from lookout.v1.watches_pb2 import Gate, Point, Rule, ScheduleEntry, Watch, Zone
from lookout.video.sandbox.places import url_fault
from lookout.wire import PRIORITIES, check_tenant
from lookout.wire.ranges import check_ranges

_TRANSPORTS = {"tcp": Camera.TRANSPORT_TCP, "udp": Camera.TRANSPORT_UDP}


class ResourceError(ValueError):
    """A resource is invalid although its schema allows it; the message names the field."""


@dataclass(frozen=True, slots=True)
class Condition:
    """One status condition."""

    type: str
    status: bool
    reason: str
    message: str = ""


NO_AGENT = Condition("Streaming", False, "NoAgent", "no agent has the camera")
NO_ROOM = Condition(
    "Streaming",
    False,
    "NoRoom",
    "every agent has as many cameras as fit into its memory: raise cameraAgent.replicas or the memory",
)


def camera(resource: Mapping[str, Any]) -> Camera:
    """Return the message for a Camera resource.

    Raises:
        ResourceError: A field is missing or outside its range, or the URL contains a password, which is
            possible in resources from before the schema checked this.
    """
    spec = resource["spec"]
    try:
        camera = Camera(
            id=resource["metadata"]["name"],
            url=spec["url"],
            transport=_TRANSPORTS[spec.get("transport", "tcp")],
            segment_s=float(spec.get("segmentSeconds", 4)),
            credentials=spec.get("credentialsSecret", ""),
            paused=bool(spec.get("paused", False)),
            tenant=check_tenant(spec.get("tenant", "")),
            priority=PRIORITIES[spec.get("priority", "normal")],
            mask_before_publishing=bool(spec.get("maskBeforePublishing", False)),
            time_zone=spec.get("timeZone", ""),
        )
        check_ranges(camera)
    except (KeyError, TypeError, ValueError) as error:  # RangeError is a ValueError
        raise ResourceError(f"spec: {error}") from error
    if fault := url_fault(camera.url):
        raise ResourceError(f"spec.url: {fault}")
    if fault := time_zone_fault(camera.time_zone):
        raise ResourceError(f"spec.timeZone: {fault}")
    return camera


def watch(resource: Mapping[str, Any]) -> Watch:
    """Return the message for a Watch resource, without `version` and `active_from`.

    Raises:
        ResourceError: The resource does not pass the checks of prefill and alerts.
    """
    spec = resource["spec"]
    threshold = _positive(spec, "threshold", 0.5)
    try:
        rule = Rule(
            threshold=threshold,
            clear_threshold=_positive(spec, "clearThreshold", threshold),
            k=_positive_count(spec, "minYes"),
            n=_positive_count(spec, "ofLast"),
            cooldown_s=float(spec.get("cooldownSeconds", 0)),
            schedule=[_schedule(entry) for entry in spec.get("schedule", ())],
            zones=[_zone(zone) for zone in spec.get("zones", ())],
        )
        watch = Watch(
            id=resource["metadata"]["name"],
            question=question_text(spec["question"], RuleError),
            cameras=spec.get("cameras", ()),
            rule=rule,
            describe=bool(spec.get("describe", False)),
            keep=bool(spec.get("keep", False)),
            disabled=bool(spec.get("disabled", False)),
            priority=PRIORITIES[spec.get("priority", "normal")],
            tenant=spec.get("tenant", ""),
            verify=bool(spec.get("verify", False) or spec.get("verifyWith")),
            verify_with=spec.get("verifyWith", ""),
            gate=_gate(spec.get("gate", {})),
            asked=_asked(spec.get("asked", "windows")),
        )
        check_watch(watch)
    except (AttributeError, KeyError, TypeError, ValueError) as error:  # RuleError is a ValueError
        raise ResourceError(f"spec: {error}") from error
    return watch


def _asked(name: str) -> Watch.Asked:
    if name not in ASKED:
        raise ResourceError(f"asked: {clean(name, 40)!r} is unknown; it is one of {', '.join(ASKED)}")
    return ASKED[name]


def _gate(gate: Mapping[str, Any]) -> Gate | None:
    watch_id, motion = str(gate.get("watch", "")), bool(gate.get("motion", False))
    return Gate(watch=watch_id, motion=motion) if watch_id or motion else None


def notification(resource: Mapping[str, Any]) -> Notification:
    """Return the message for a Notification resource.

    Raises:
        ResourceError: The resource is invalid.
    """
    spec = resource["spec"]
    try:
        notification = Notification(
            id=resource["metadata"]["name"],
            watches=spec.get("watches", ()),
            cameras=spec.get("cameras", ()),
            tenant=spec.get("tenant", ""),
            severity=f"SEVERITY_{spec.get('severity', 'info').upper()}",
            hours=[_schedule(entry) for entry in spec.get("hours", ())],
            quiet_hours=[_schedule(entry) for entry in spec.get("quietHours", ())],
            events=[f"EVENT_{event.upper()}" for event in spec.get("events", ())],
            unclaimed_s=float(spec.get("unclaimedSeconds", 0)),
            disabled=bool(spec.get("disabled", False)),
        )
        if until := spec.get("snoozedUntil"):
            notification.snoozed_until.FromDatetime(datetime.fromisoformat(until))
        _set_channel(notification, spec)
        check_notification(notification)
    except (AttributeError, KeyError, TypeError, ValueError) as error:  # RuleError is a ValueError
        raise ResourceError(f"spec: {error}") from error
    return notification


def _set_channel(notification: Notification, spec: Mapping[str, Any]) -> None:
    if webhook := spec.get("webhook"):
        notification.webhook.CopyFrom(Webhook(url=webhook["url"], secrets=webhook["secrets"]))
    elif apprise := spec.get("apprise"):
        notification.apprise.CopyFrom(
            Apprise(url_file=apprise["urlFile"], picture=bool(apprise.get("picture", False)))
        )
    elif mqtt := spec.get("mqtt"):
        notification.mqtt.CopyFrom(
            Mqtt(
                host=mqtt["host"],
                port=int(mqtt.get("port", 0)),
                tls=bool(mqtt.get("tls", False)),
                username=mqtt.get("username", ""),
                password_file=mqtt.get("passwordFile", ""),
                token_file=mqtt.get("tokenFile", ""),
                ca_file=mqtt.get("caFile", ""),
                topic=mqtt.get("topic", ""),
                discovery=mqtt.get("discovery", ""),
            )
        )


def _positive(spec: Mapping[str, Any], name: str, default: float) -> float:
    """Return a number, checked to be above 0, since 0 stands for the default in messages."""
    value = float(spec.get(name, default))
    if not value > 0:
        raise ResourceError(f"spec.{name}: {value:g} must be above 0")
    return value


def _positive_count(spec: Mapping[str, Any], name: str) -> int:
    value = int(spec.get(name, 1))
    if value < 1:
        raise ResourceError(f"spec.{name}: {value} must be at least 1")
    return value


def versioned(desired: Watch, existing: Watch | None, created: datetime, now_ms: int) -> Watch | None:
    """Return the record to write for a watch; None if the topic already has it.

    The first version is the resource's creation time in seconds, so that a watch that is deleted and created
    again never repeats a version. The first version applies to all footage, later versions to footage from
    now on.
    """
    record = Watch()
    record.CopyFrom(desired)
    if existing is None:
        record.version = int(created.timestamp())
        return record
    unversioned = Watch()
    unversioned.CopyFrom(existing)
    unversioned.ClearField("version")
    unversioned.ClearField("active_from")
    if unversioned == desired:
        return None
    record.version = next_version(existing)
    record.active_from.FromMilliseconds(now_ms)
    return record


def conditions(
    before: Sequence[Mapping[str, Any]], wanted: Sequence[Condition], generation: int, now: str
) -> list[dict[str, Any]]:
    """Return status conditions; a condition whose status is unchanged keeps its `lastTransitionTime`."""
    old = {condition["type"]: condition for condition in before}
    written = []
    for condition in wanted:
        status = "True" if condition.status else "False"
        last = old.get(condition.type)
        changed = last is None or last["status"] != status
        written.append(
            {
                "type": condition.type,
                "status": status,
                "reason": condition.reason,
                "message": clean(condition.message),
                "observedGeneration": generation,
                "lastTransitionTime": now if last is None or changed else last["lastTransitionTime"],
            }
        )
    return written


def _schedule(entry: Mapping[str, Any]) -> ScheduleEntry:
    return ScheduleEntry(
        weekdays=entry.get("weekdays", ()),
        start=entry["start"],
        end=entry["end"],
        time_zone=entry.get("timeZone", "UTC"),
    )


def _zone(zone: Mapping[str, Any]) -> Zone:
    return Zone(name=zone.get("name", ""), points=[Point(x=float(x), y=float(y)) for x, y in zone["points"]])
