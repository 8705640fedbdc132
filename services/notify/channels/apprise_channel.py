"""Delivers through Apprise: Slack, Teams, Telegram, e-mail, ntfy, Matrix, PagerDuty and others.

Chat services get one message per event, or one summary if there are many at once. Paging services get one
page per incident, which is resolved when the incident ends.
"""

from __future__ import annotations

import logging
import tempfile
from collections.abc import Callable
from typing import Final

import apprise

from lookout.runtime.net.fetch import UriFetcher
from lookout.runtime.net.guarded_resolving import guarded
from lookout.services.notify.messages import Channel, DeliveryError, GroupingChannel, Message, summary
from lookout.services.notify.secrets import Secrets
from lookout.text import clean
from lookout.v1.actions_pb2 import IncidentAction
from lookout.v1.alerts_pb2 import Alert
from lookout.v1.notifications_pb2 import Apprise, NotificationEvent
from lookout.v1.watches_pb2 import SEVERITY_CRITICAL

_TITLE: Final = "Lookout"
#: by the URL schema of a paging service: the attribute of Apprise's plugin that holds the page's key, which
#: all messages about one page share
_PAGE_KEYS: Final = {
    **dict.fromkeys(("pagerduty", "squadcast", "goalert", "incidentio", "ilert", "firehydrant"), "dedup"),
    **dict.fromkeys(("opsgenie", "jira"), "alias"),
    "splunk": "entity_id",
    "signl4": "external_id",
    "pagertree": "thirdparty",
}
#: seconds between two requests to a paging service; with Apprise's 5.5 s, eleven incidents would take a
#: minute
_PAGE_S: Final = 0.5
#: actions that end an incident
_ENDS: Final = frozenset({IncidentAction.KIND_RESOLVE, IncidentAction.KIND_FALSE_POSITIVE})

Picture = Callable[[NotificationEvent], bytes | None]
"""Returns the bytes of an incident's picture, or None if it is not available."""


def apprise_channel(target: Apprise, secrets: Secrets, allowed: UriFetcher, picture: Picture) -> Channel:
    """Open the channel for an Apprise URL.

    Args:
        target: Names the file that contains the URL.
        secrets: The folder with that file.
        allowed: Where messages may be sent.
        picture: Fetches an incident's picture.

    Raises:
        DeliveryError: The file cannot be read, or Apprise does not know its URL.
    """
    asset = apprise.AppriseAsset(app_id=_TITLE, app_desc=_TITLE, async_mode=False, plugin_paths=[])
    services = apprise.Apprise(asset=asset)
    if not services.add(secrets.read(target.url_file)):
        raise DeliveryError(
            f"{target.url_file}: Apprise does not know this kind of URL; see its documentation"
        )
    pages = any(_page_key(service) for service in services)
    kind = PagingChannel if pages else ChatChannel
    return kind(services, allowed, picture if target.picture else lambda _: None)


class _AppriseChannel(Channel):
    """Sends text and, if wanted, an incident's picture.

    Args:
        services: Apprise's objects for the URL.
        allowed: Where messages may be sent.
        picture: Fetches an incident's picture.
    """

    def __init__(self, services: apprise.Apprise, allowed: UriFetcher, picture: Picture) -> None:
        self._apprise, self._allowed, self._picture = services, allowed, picture

    def send(self, message: Message) -> None:
        event = message.event
        lines = [event.text, *filter(None, [event.console_url])]
        data = None if event.test else self._picture(event)
        if data is None:
            self._notify(_kind(event), "\n".join(lines))
            return
        with tempfile.NamedTemporaryFile(suffix=".jpg", prefix="incident-") as file:
            file.write(data)
            file.flush()
            self._notify(_kind(event), "\n".join(lines), file.name)

    def _notify(self, kind: apprise.NotifyType, body: str, picture: str | None = None) -> None:
        failure = _FailureText()
        logger = logging.getLogger("apprise")
        logger.addHandler(failure)
        try:
            with guarded(self._allowed):
                arrived = self._apprise.notify(body, title=_TITLE, notify_type=kind, attach=picture)
        finally:
            logger.removeHandler(failure)
        if not arrived:
            raise DeliveryError(f"Apprise: {failure.text or 'the service did not accept the message'}")


class ChatChannel(_AppriseChannel, GroupingChannel):
    """Sends messages to a chat service."""

    def send_group(self, messages: list[Message]) -> None:
        events = [message.event for message in messages]
        newest = max(messages, key=lambda message: message.time_ms).event
        self._notify(_kind(max(events, key=lambda event: event.severity)), summary(events, newest))


class PagingChannel(_AppriseChannel):
    """Sends pages: one per incident, which is resolved when the incident ends.

    Other events are not sent, because they would page somebody again (for example, a note about an ended
    incident).
    """

    def send(self, message: Message) -> None:
        event = message.event
        if not _concerns_a_page(event):
            return
        for service in self._apprise:
            if key := _page_key(service):
                setattr(service, key, event.alert.incident or event.action.incident or message.id)
                # Apprise maps success to resolving the page, any other type to raising it.
                service.action = "map"  # type: ignore[attr-defined]
                service.request_rate_per_sec = _PAGE_S
        super().send(message)


def _page_key(service: apprise.NotifyBase) -> str | None:
    """Return the plugin's attribute for a page's key; None if the service does not page."""
    schemas = service.schemas()  # type: ignore[no-untyped-call]
    return next((_PAGE_KEYS[schema] for schema in schemas if schema in _PAGE_KEYS), None)


def _concerns_a_page(event: NotificationEvent) -> bool:
    """Return whether an event opens, changes or ends an incident, or is a test."""
    if event.HasField("action"):
        return event.action.kind in _ENDS or event.action.kind == IncidentAction.KIND_REOPEN
    return event.alert.kind != Alert.KIND_REPORT


def _kind(event: NotificationEvent) -> apprise.NotifyType:
    """Return Apprise's type for an event. Paging services resolve a page on SUCCESS; some ignore INFO."""
    if event.HasField("action"):
        if event.action.kind in _ENDS:
            return apprise.NotifyType.SUCCESS
        is_raised = event.action.kind == IncidentAction.KIND_REOPEN
    else:
        if event.alert.kind == Alert.KIND_CLOSED:
            return apprise.NotifyType.SUCCESS
        is_raised = event.alert.kind != Alert.KIND_REPORT
    if not is_raised:
        return apprise.NotifyType.INFO
    return apprise.NotifyType.FAILURE if event.severity == SEVERITY_CRITICAL else apprise.NotifyType.WARNING


class _FailureText(logging.Handler):
    """Captures the first warning that Apprise logs during a delivery, possibly one of another
    notification.
    """

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.text = ""

    def emit(self, record: logging.LogRecord) -> None:
        if not self.text:
            self.text = clean(record.getMessage(), 200)
