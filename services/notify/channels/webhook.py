"""Webhooks: CloudEvents 1.0 as JSON, signed as Standard Webhooks require."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Final

from standardwebhooks import Webhook as Signer

from lookout.runtime.net.fetch import UriFetcher
from lookout.services.notify.channels.posting import post
from lookout.services.notify.messages import Channel, DeliveryError, Message
from lookout.services.notify.secrets import Secrets
from lookout.v1.notifications_pb2 import Webhook
from lookout.wire import to_json

EVENT_TYPE: Final = "lookout.notification.v1"
CONTENT_TYPE: Final = "application/cloudevents+json"
_GONE: Final = 410


class WebhookChannel(Channel):
    """Posts each message. The message counts as delivered if the target answers with a status of 200 to
    299.

    Args:
        webhook: The target's address and the names of its keys.
        secrets: The folder with the keys.
        allowed: Where messages may be sent.
    """

    def __init__(self, webhook: Webhook, secrets: Secrets, allowed: UriFetcher) -> None:
        self._url, self._allowed = webhook.url, allowed
        self._signers = [_signer(name, secrets.read(name)) for name in webhook.secrets]

    def send(self, message: Message) -> None:
        body = cloud_event(message)
        now = datetime.now(UTC)
        signatures = [signer.sign(message.id, now, body.decode()) for signer in self._signers]
        headers = {
            "content-type": CONTENT_TYPE,
            "webhook-id": message.id,
            "webhook-timestamp": str(int(now.timestamp())),
            "webhook-signature": " ".join(signatures),
        }
        host, status = post(self._allowed, self._url, headers, body)
        if not 200 <= status < 300:
            raise DeliveryError(f"{host} answers with status {status}", final=status == _GONE)


def cloud_event(message: Message) -> bytes:
    """Return a message as a CloudEvent in structured mode (JSON)."""
    event = message.event
    subject = event.action.camera if event.HasField("action") else event.alert.camera
    return json.dumps(
        {
            "specversion": "1.0",
            "id": message.id,
            "source": "lookout/notify",
            "type": EVENT_TYPE,
            "subject": subject or event.notification,
            "time": datetime.fromtimestamp(message.time_ms / 1000, UTC).isoformat().replace("+00:00", "Z"),
            "datacontenttype": "application/json",
            "data": json.loads(to_json(event)),
        },
        ensure_ascii=False,
        separators=(",", ":"),
    ).encode()


def _signer(name: str, key: str) -> Signer:
    try:
        return Signer(key)
    except (RuntimeError, ValueError) as error:
        raise DeliveryError(f"{name}: not a Standard Webhooks key; give whsec_ followed by base64") from error
