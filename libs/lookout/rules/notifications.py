"""Checks notifications, and decides which incidents and events each of them covers."""

from __future__ import annotations

import base64
import re
from collections.abc import Iterable
from typing import Final
from urllib.parse import urlsplit

from lookout.rules.messages import schedule_of
from lookout.rules.schedule import in_schedule
from lookout.rules.types import RuleError
from lookout.v1.actions_pb2 import IncidentAction
from lookout.v1.alerts_pb2 import Alert
from lookout.v1.notifications_pb2 import Notification, NotificationEvent, WebPush
from lookout.v1.watches_pb2 import SEVERITY_CRITICAL, SEVERITY_WARNING, ScheduleEntry, Severity
from lookout.wire import (
    CAMERA_HEALTH,
    CAMERA_OFFLINE,
    WireError,
    check_tenant,
    from_json,
    is_camera_id,
    names_id,
    stable_id,
    tenant_of,
)
from lookout.wire.limits import ID_BYTES
from lookout.wire.message_json import enum_name
from lookout.wire.ranges import RangeError, check_ranges

#: valid names of secret files; they have no path, because all secret files are in one folder
_FILE: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]*")
#: topic prefixes that MQTT accepts
_TOPIC: Final = re.compile(r"[^+#\x00/]+(/[^+#\x00/]+)*")
#: lengths in bytes of the keys in a browser's subscription (RFC 8291)
_PUSH_KEYS: Final = {"p256dh": 65, "auth": 16}
_EVENTS: Final = {
    Alert.KIND_OPENED: Notification.EVENT_OPENED,
    Alert.KIND_UPDATED: Notification.EVENT_UPDATED,
    Alert.KIND_CLOSED: Notification.EVENT_CLOSED,
    Alert.KIND_REPORT: Notification.EVENT_REPORT,
}


def read_notification(key: str, value: bytes) -> Notification:
    """Parse and check the notification in a record of notifications.v1.

    Args:
        key: The record's key, which is the notification's id.
        value: The record's value.

    Raises:
        RuleError: The notification is invalid. The error names the field and says what to write.
    """
    try:
        notification = from_json(value, Notification)
    except WireError as error:
        raise RuleError(str(error)) from error
    if not notification.id:
        notification.id = key
    if notification.id != key:
        raise RuleError(f"the record's key must be the notification's id, {notification.id[:40]!r}")
    check_notification(notification)
    return notification


def notification_fault(key: str, value: bytes) -> str | None:
    """Return why a record of notifications.v1 cannot be used; None if it can."""
    try:
        read_notification(key, value)
    except RuleError as error:
        return str(error)
    return None


def check_notification(notification: Notification) -> None:
    """Check a notification.

    Raises:
        RuleError: The notification is invalid. The error names the field and says what to write.
    """
    if not is_camera_id(notification.id):
        raise RuleError(f"id {notification.id[:40]!r}: give printable text of 1 to {ID_BYTES} bytes")
    try:
        check_ranges(notification)
        check_tenant(notification.tenant)
    except (RangeError, WireError) as error:
        raise RuleError(str(error)) from error
    for name in ("watches", "cameras"):
        for pattern in getattr(notification, name):
            if not is_camera_id(pattern):
                raise RuleError(
                    f"{name}: {pattern[:40]!r} is not an id or a pattern: give 1 to {ID_BYTES} bytes of "
                    "printable text"
                )
    for spans in (notification.hours, notification.quiet_hours):
        schedule_of(spans)
    _check_channel(notification)


def _check_channel(notification: Notification) -> None:
    match notification.WhichOneof("channel"):
        case "push":
            _check_push(notification.push)
        case "webhook":
            _check_url("webhook.url", notification.webhook.url)
            _check_files("webhook.secrets", notification.webhook.secrets)
            if not notification.webhook.secrets:
                raise RuleError(
                    "webhook.secrets: give the name of the file with the signing key, such as hook"
                )
        case "apprise":
            _check_files("apprise.url_file", [notification.apprise.url_file])
        case "mqtt":
            mqtt = notification.mqtt
            if not mqtt.host or not re.fullmatch(r"[A-Za-z0-9.:_-]+", mqtt.host):
                raise RuleError(f"mqtt.host: {mqtt.host[:40]!r}: give a host name or an IP address")
            for name in ("password_file", "ca_file", "token_file"):
                _check_files(f"mqtt.{name}", filter(None, [getattr(mqtt, name)]))
            for name in ("topic", "discovery"):
                text = getattr(mqtt, name)
                if text and not _TOPIC.fullmatch(text):
                    raise RuleError(
                        f"mqtt.{name}: {text[:40]!r} is not a valid topic prefix: separate its levels by /, "
                        "and use no + or #"
                    )
        case _:
            raise RuleError("channel: give one of webhook, apprise, mqtt and push")


def _check_push(push: WebPush) -> None:
    _check_url("push.endpoint", push.endpoint)
    for name, size in _PUSH_KEYS.items():
        if len(_decoded(getattr(push, name))) != size:
            raise RuleError(f"push.{name}: give the {size} bytes of the browser's subscription as base64url")
    # A first byte of 0x04 marks an uncompressed point; in base64, the text then begins with B.
    if push.p256dh[:1] != "B":
        raise RuleError("push.p256dh: give the browser's public key as an uncompressed point of P-256")


def _decoded(text: str) -> bytes:
    """Decode base64url text without padding; return b"" if the text is invalid."""
    try:
        return base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
    except ValueError:
        return b""


def _check_url(field: str, url: str) -> None:
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname, parts.port
    except ValueError as error:
        raise RuleError(f"{field}: {error}") from error
    if parts.scheme not in ("http", "https") or not host or not url.isprintable() or " " in url:
        raise RuleError(f"{field}: give an http(s) URL such as https://hooks.example.org/lookout")
    if parts.username is not None or parts.password is not None:
        raise RuleError(f"{field}: remove the user name and password, which everybody who sees it could read")


def _check_files(field: str, names: Iterable[str]) -> None:
    for name in names:
        if not _FILE.fullmatch(name):
            raise RuleError(
                f"{field}: {name[:40]!r} is not a valid name of a secret file: use letters, digits, '.', "
                "'_' and '-'"
            )


def target_text(notification: Notification) -> str:
    """Return a short text that says where a notification's messages go."""
    match notification.WhichOneof("channel"):
        case "webhook":
            return notification.webhook.url
        case "mqtt":
            return f"mqtt {notification.mqtt.host}"
        case "push":
            return f"browser of {notification.push.person}"
        case _:
            return f"apprise, file {notification.apprise.url_file}"


def severity_of(severity: Severity) -> Severity:
    """Return a severity; unspecified means warning."""
    return severity or SEVERITY_WARNING


def event_of(happened: Alert | IncidentAction) -> Notification.Event:
    """Return the kind of event that an alert or an action is, as in `Notification.events`."""
    if isinstance(happened, IncidentAction):
        return Notification.EVENT_ACTION
    return _EVENTS.get(happened.kind, Notification.EVENT_UNSPECIFIED)


def is_test(happened: Alert | IncidentAction) -> bool:
    """Whether this is a test alert, which every notification of the alert's tenant gets."""
    return isinstance(happened, Alert) and happened.kind == Alert.KIND_TEST


def wants_event(notification: Notification, happened: Alert | IncidentAction) -> bool:
    """Whether a notification's `events` cover this kind of event."""
    return not notification.events or is_test(happened) or event_of(happened) in notification.events


def wants_incident(
    notification: Notification, happened: Alert | IncidentAction, severity: Severity, now_ms: int
) -> bool:
    """Whether a notification covers an incident. Call this when the incident opens.

    Args:
        notification: A valid notification.
        happened: The incident's first event that was received. It has the camera, the watch and the tenant.
        severity: Severity of the incident's watch.
        now_ms: Time of the event, Unix milliseconds.
    """
    if notification.disabled or notification.tenant not in {"", tenant_of(happened.tenant)}:
        return False
    if is_test(happened):
        return True
    if now_ms < notification.snoozed_until.ToMilliseconds():
        return False
    selected = _names(notification.watches, happened.watch) and _names(notification.cameras, happened.camera)
    if not selected or severity_of(severity) < notification.severity:
        return False
    if not in_schedule(schedule_of(notification.hours), now_ms):
        return False
    quiet_hours: list[ScheduleEntry] = list(notification.quiet_hours)
    is_quiet = bool(quiet_hours) and in_schedule(schedule_of(quiet_hours), now_ms)
    return not is_quiet or severity == SEVERITY_CRITICAL


def follows_outages(notification: Notification, happened: Alert | IncidentAction) -> bool:
    """Whether a notification gets a camera's outages even if its filters exclude them, as MQTT does.

    MQTT topics show the current answer of each watch. If outages were not sent, an answer from before an
    outage would look current.
    """
    return (
        notification.HasField("mqtt")
        and not notification.disabled
        and happened.watch in {CAMERA_HEALTH, CAMERA_OFFLINE}
        and notification.tenant in {"", tenant_of(happened.tenant)}
        and _names(notification.cameras, happened.camera)
    )


def asked_for(notification: Notification, event: NotificationEvent) -> bool:
    """Whether a notification's filters (events, watches, severity) cover an event.

    A notification may also get events that its filters do not cover (`follows_outages`).
    """
    happened = event.action if event.HasField("action") else event.alert
    return (
        wants_event(notification, happened)
        and _names(notification.watches, happened.watch)
        and severity_of(event.severity) >= notification.severity
    )


def secret_files(notification: Notification) -> list[str]:
    """Return the names of the files in the folder of secrets that a notification's channel reads."""
    match notification.WhichOneof("channel"):
        case "webhook":
            return list(notification.webhook.secrets)
        case "apprise":
            return [notification.apprise.url_file]
        case "mqtt":
            mqtt = notification.mqtt
            return [name for name in (mqtt.password_file, mqtt.ca_file, mqtt.token_file) if name]
        case _:
            return []


def secret_file(notification: str) -> str:
    """Return the name of the file that `lookout notify` writes to a fleet's folder of secrets for the
    notification with this id."""
    return f"n-{stable_id(notification)[:24]}"


def event_name(happened: Alert | IncidentAction) -> str:
    """Return the event's name in messages, such as opened, updated, closed, claim or acknowledge."""
    kind = type(happened).Kind.Name(happened.kind)
    return enum_name("Kind", kind)


def _names(patterns: Iterable[str], identity: str) -> bool:
    """Whether a pattern matches the id; no patterns match every id."""
    listed = list(patterns)
    return not listed or any(names_id(pattern, identity) for pattern in listed)
