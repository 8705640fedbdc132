"""Apprise: Slack, Teams, Telegram, e-mail, ntfy, Matrix, PagerDuty and what else it knows."""

from __future__ import annotations

import logging
import tempfile
from collections.abc import Callable
from typing import Final

import apprise

from lookout.runtime.net.fetch import UriFetcher
from lookout.runtime.net.guarded_resolving import guarded
from lookout.services.notify.messages import DeliveryError, GroupingChannel, Message, summary
from lookout.services.notify.secrets import Secrets
from lookout.text import clean
from lookout.v1.alerts_pb2 import Alert
from lookout.v1.notifications_pb2 import Apprise, NotificationEvent
from lookout.v1.watches_pb2 import SEVERITY_CRITICAL

_TITLE: Final = "Lookout"


class AppriseChannel(GroupingChannel):
    """Sends text and, if wanted, the picture of an incident.

    Args:
        target: Names the file with the URL.
        secrets: Where the file is.
        allowed: Where messages may go.
        picture: Returns the bytes of an incident's picture, or None if it is not available.
    """

    def __init__(
        self,
        target: Apprise,
        secrets: Secrets,
        allowed: UriFetcher,
        picture: Callable[[NotificationEvent], bytes | None],
    ) -> None:
        self._picture = picture if target.picture else lambda _: None
        self._allowed = allowed
        asset = apprise.AppriseAsset(app_id=_TITLE, app_desc=_TITLE, async_mode=False, plugin_paths=[])
        self._apprise = apprise.Apprise(asset=asset)
        if not self._apprise.add(secrets.read(target.url_file)):
            raise DeliveryError(
                f"{target.url_file}: Apprise does not know such a URL; its documentation has them"
            )

    def send(self, message: Message) -> None:
        event = message.event
        lines = [event.text, *filter(None, [event.console_url])]
        data = None if event.test else self._picture(event)
        if data is None:
            self._notify(event, "\n".join(lines))
            return
        with tempfile.NamedTemporaryFile(suffix=".jpg", prefix="incident-") as file:
            file.write(data)
            file.flush()
            self._notify(event, "\n".join(lines), file.name)

    def send_group(self, messages: list[Message]) -> None:
        events = [message.event for message in messages]
        newest = max(messages, key=lambda message: message.time_ms).event
        self._notify(max(events, key=lambda event: event.severity), summary(events, newest))

    def _notify(self, event: NotificationEvent, body: str, picture: str | None = None) -> None:
        is_critical = event.severity == SEVERITY_CRITICAL and event.alert.kind != Alert.KIND_CLOSED
        kind = apprise.NotifyType.FAILURE if is_critical else apprise.NotifyType.INFO
        failure = _FailureText()
        logger = logging.getLogger("apprise")
        logger.addHandler(failure)
        try:
            with guarded(self._allowed):
                arrived = self._apprise.notify(body, title=_TITLE, notify_type=kind, attach=picture)
        finally:
            logger.removeHandler(failure)
        if not arrived:
            raise DeliveryError(f"Apprise: {failure.text or 'the service did not take the message'}")


class _FailureText(logging.Handler):
    """The first warning that Apprise logs during a delivery, of any notification."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.text = ""

    def emit(self, record: logging.LogRecord) -> None:
        if not self.text:
            self.text = clean(record.getMessage(), 200)
