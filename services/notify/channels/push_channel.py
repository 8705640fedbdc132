"""Web Push (RFC 8030): messages to browsers, encrypted for the browser (RFC 8291) and signed for its push
service (RFC 8292).
"""

from __future__ import annotations

import json
from typing import Final

from webpush import WebPush as Encrypter, WebPushSubscription
from webpush.types import WebPushKeys

from lookout.runtime.net.fetch import UriFetcher
from lookout.services.notify.channels.posting import post
from lookout.services.notify.composing import report_place
from lookout.services.notify.messages import DeliveryError, GroupingChannel, Message, summary
from lookout.v1.alerts_pb2 import Alert
from lookout.v1.notifications_pb2 import NotificationEvent, WebPush
from lookout.v1.watches_pb2 import SEVERITY_CRITICAL
from lookout.wire import stable_id

#: seconds that a push service keeps a message for a browser that is not running
_KEPT_S: Final = 86_400
#: maximum number of characters of a text, because push services reject messages of more than 4096 bytes
_TEXT: Final = 800
#: statuses that mean that the browser no longer accepts messages
_GONE: Final = frozenset({404, 410})


class PushChannel(GroupingChannel):
    """Shows messages in a browser. A newer message about an incident replaces the earlier one.

    Args:
        target: The browser's subscription.
        keys: This installation's private and public keys, as PEM.
        contact: E-mail address that operators of push services may write to.
        allowed: Where messages may be sent.
    """

    def __init__(self, target: WebPush, keys: tuple[bytes, bytes], contact: str, allowed: UriFetcher) -> None:
        self._allowed = allowed
        self._subscription = WebPushSubscription(
            endpoint=target.endpoint,  # type: ignore[arg-type]  # a text, which pydantic reads
            keys=WebPushKeys(auth=target.auth, p256dh=target.p256dh),
        )
        self._address = target.endpoint
        self._encrypter = Encrypter(*keys, subscriber=contact, ttl=_KEPT_S)

    def send(self, message: Message) -> None:
        event = message.event
        self._post(event, event.text, event.alert.incident or event.action.incident or "test")

    def send_group(self, messages: list[Message]) -> None:
        newest = max(messages, key=lambda message: message.time_ms).event
        events = [message.event for message in messages]
        self._post(max(events, key=lambda event: event.severity), summary(events, newest), "group")

    def _post(self, event: NotificationEvent, text: str, topic: str) -> None:
        is_closed = event.alert.kind == Alert.KIND_CLOSED
        is_urgent = event.severity == SEVERITY_CRITICAL and not is_closed
        shown = {
            "text": text[:_TEXT],
            "topic": topic,
            "incident": event.alert.incident or event.action.incident,
            "place": report_place(event.alert) if event.alert.kind == Alert.KIND_REPORT else "",
            "critical": is_urgent,
            "silent": is_closed,
        }
        sealed = self._encrypter.get(json.dumps(shown, ensure_ascii=False), self._subscription)
        headers = {
            **{name: str(value) for name, value in sealed.headers.items()},
            "content-type": "application/octet-stream",
            "urgency": "high" if is_urgent else "normal",
            "topic": stable_id("push", topic)[:32],
        }
        host, status = post(self._allowed, self._address, headers, sealed.encrypted)
        if status in _GONE:
            raise DeliveryError(f"{host}: the browser no longer accepts messages ({status})", final=True)
        if not 200 <= status < 300:
            raise DeliveryError(f"{host} answers with status {status}")
