"""Opens notifications' channels, and fetches the pictures that they send."""

from __future__ import annotations

import time
from functools import partial
from typing import Final
from urllib.parse import urlsplit

from lookout.errors import BadRecordError, TransientError
from lookout.rules.notifications import asked_for, secret_files
from lookout.runtime.net.fetch import UriFetcher
from lookout.runtime.net.guarded_resolving import unguarded
from lookout.runtime.net.push_keys import push_key_pair
from lookout.services.notify.channels.snooze_switches import WatchSwitches
from lookout.services.notify.channels.webhook import WebhookChannel
from lookout.services.notify.composing import Composer
from lookout.services.notify.messages import Channel, DeliveryError
from lookout.services.notify.secrets import Secrets
from lookout.services.notify.settings import MESSAGE_S, NotifySettings
from lookout.v1.alerts_pb2 import Alert
from lookout.v1.notifications_pb2 import Notification, NotificationEvent

#: maximum bytes of a picture
_PICTURE: Final = 8 << 20
#: time limit in seconds for fetching the pictures for a second opinion; pause before the gateway is asked
#: again
_FRAMES_S: Final = 10.0
_AGAIN_S: Final = 1.0


class Channels:
    """Opens channels and fetches pictures.

    Args:
        settings: The folder of secrets, and where messages may be sent.
        composer: Gives the URLs of pictures.

    Raises:
        StartupError: The Web Push key cannot be read.
    """

    def __init__(self, settings: NotifySettings, composer: Composer) -> None:
        self._composer = composer
        self._secrets, self._allowed = Secrets(settings.notify_secrets), settings.allowed()
        file = settings.push_key_file
        self._push_key = None if file is None else push_key_pair(file, "LOOKOUT_PUSH_KEY_FILE")
        self._contact = f"lookout@{urlsplit(settings.public_url or '').hostname or 'localhost'}"

    def identity(self, notification: Notification) -> bytes:
        """Return a fingerprint of everything that a notification's channel depends on; if it changes, the
        channel must be reopened. The fingerprint includes the secrets, because a file's content may change
        under the same name (`lookout notify add`, Kubernetes).
        """
        configuration = notification.SerializeToString(deterministic=True)
        files = secret_files(notification)
        return b"".join([configuration, *(self._secrets.fingerprint(name) for name in files)])

    def open(self, notification: Notification, *, trial: bool = False) -> Channel:
        """Open the channel of a notification.

        Args:
            notification: The notification.
            trial: Whether the channel is for one test message, in addition to the notification's open
                channel.

        Raises:
            DeliveryError: A secret is missing or wrong.
        """
        match notification.WhichOneof("channel"):
            case "webhook":
                return WebhookChannel(notification.webhook, self._secrets, self._allowed)
            case "apprise":
                # Imported late, because importing Apprise takes as long as the rest of the service's start.
                from lookout.services.notify.channels.apprise_channel import apprise_channel

                return apprise_channel(notification.apprise, self._secrets, self._allowed, self.picture)
            case "push":
                if self._push_key is None:
                    raise DeliveryError("this service cannot send to browsers: set LOOKOUT_PUSH_KEY_FILE")
                from lookout.services.notify.channels.push_channel import PushChannel

                return PushChannel(notification.push, self._push_key, self._contact, self._allowed)
            case "mqtt":
                from lookout.services.notify.channels.mqtt_channel import MqttChannel

                return MqttChannel(
                    notification.mqtt,
                    self._secrets,
                    self._allowed,
                    self.picture,
                    notification.id,
                    watches=None if trial else self._switches(notification),
                    wanted=partial(asked_for, notification),
                    trial=trial,
                )
            case _:
                raise DeliveryError(
                    "this release does not know the notification's channel: update the notify service",
                    final=True,
                )

    def _switches(self, notification: Notification) -> WatchSwitches | None:
        """Return the watches that Home Assistant may snooze through a notification; None if the notification
        has no token.
        """
        file = notification.mqtt.token_file
        if not file:
            return None
        if self._composer.gateway_url is None:
            raise DeliveryError("mqtt.token_file: snoozing needs the gateway; set LOOKOUT_GATEWAY_URL")
        return WatchSwitches(self._composer.gateway_url, self._secrets.read(file), notification.watches)

    def picture(self, event: NotificationEvent) -> bytes | None:
        """Fetch an incident's picture from the gateway; None if it is not available, so that the message is
        sent without it.
        """
        url = self._composer.picture_url(event)
        return None if url is None else self._fetched(url)

    def frames(self, alert: Alert, count: int) -> list[bytes]:
        """Fetch distinct pictures of an incident (JPEG), spread evenly over its time, the oldest first.

        If the gateway has no picture of that time, return only the incident's best picture; if that is
        missing too, return nothing. The gateway may read a new incident's alert a little later than this
        service, so the gateway is asked repeatedly for some seconds.

        Args:
            alert: The incident.
            count: Maximum number of pictures; 1: only the best one.
        """
        until = time.monotonic() + _FRAMES_S
        event = NotificationEvent(alert=alert, picture_url="wanted")
        urls = self._composer.frame_urls(alert, count) if count > 1 else []
        while True:
            pictures: dict[bytes, None] = {}
            for url in urls:
                if time.monotonic() < until and (picture := self._fetched(url)) is not None:
                    pictures[picture] = None
            if not pictures and (best := self.picture(event)) is not None:
                pictures[best] = None
            if pictures or time.monotonic() > until or self._composer.picture_url(event) is None:
                return list(pictures)
            time.sleep(_AGAIN_S)

    def _fetched(self, url: str) -> bytes | None:
        """Fetch a picture from the gateway; None if it is not available."""
        # Any address is allowed, because it comes from the operator's settings and not from a notification.
        gateway = UriFetcher(
            ("http", "https"),
            (urlsplit(url).hostname or "",),
            ("0.0.0.0/0", "::/0"),
            limit=_PICTURE,
            timeout_s=MESSAGE_S,
        )
        try:
            with unguarded():
                return gateway.fetch(url)
        except (BadRecordError, TransientError):
            return None
