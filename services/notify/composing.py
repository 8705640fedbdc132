"""Composes messages, each with a sentence for people and links."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Final

from google.protobuf.timestamp_pb2 import Timestamp

from lookout.rules.notifications import event_name, is_test, severity_of
from lookout.runtime.net.links import read_link_key, signed_link
from lookout.services.notify.engine import Delivery, Happened, now_ms
from lookout.services.notify.messages import Message
from lookout.services.notify.settings import NotifySettings
from lookout.text import clean
from lookout.v1.alerts_pb2 import Alert, SecondOpinion
from lookout.v1.notifications_pb2 import NotificationEvent
from lookout.wire import stable_id

#: seconds for which signed links to pictures and clips are valid: longer than Kafka usually keeps the footage
LINK_S: Final = 7 * 86_400.0
_ACTS: Final = {
    "claim": "claimed",
    "acknowledge": "acknowledged",
    "resolve": "resolved",
    "false-positive": "marked as a false alarm",
    "reopen": "reopened",
    "release": "released",
    "note": "noted",
}


class Composer:
    """Composes messages from deliveries.

    Args:
        settings: The gateway's addresses, and the key for links.

    Attributes:
        gateway_url: Address at which this service reaches the gateway; None: no gateway.

    Raises:
        StartupError: The key cannot be read.
    """

    def __init__(self, settings: NotifySettings) -> None:
        self._url = settings.public_url
        self.gateway_url = settings.gateway_url or settings.public_url
        file = settings.link_key_file
        self._key = None if file is None else read_link_key(file, "LOOKOUT_LINK_KEY_FILE")

    def message(self, delivery: Delivery) -> Message:
        """Compose the message for a delivery."""
        happened = delivery.happened
        if is_test(happened):
            return self._test(delivery.id, delivery.notification, sentence(happened), delivery.since_ms)
        event = NotificationEvent(
            notification=delivery.notification,
            severity=severity_of(delivery.severity),
            text=sentence(happened),
        )
        if isinstance(happened, Alert):
            event.alert.CopyFrom(happened)
        else:
            event.action.CopyFrom(happened)
            if delivery.newest is not None:
                event.alert.CopyFrom(delivery.newest)
        self._link(event, delivery)
        return Message(delivery.id, event, delivery.since_ms)

    def test(self, notification: str) -> Message:
        """Compose a test message for a notification."""
        time_ms = now_ms()
        text = f"This is a test of the notification {clean(notification, 100)}: messages arrive."
        return self._test(stable_id("test", notification, time_ms), notification, text, time_ms)

    def _test(self, identity: str, notification: str, text: str, time_ms: int) -> Message:
        event = NotificationEvent(notification=notification, test=True, text=text)
        if self._url is not None:
            event.console_url = self._url
        return Message(identity, event, time_ms)

    def picture_url(self, event: NotificationEvent) -> str | None:
        """Return the signed URL of an incident's picture; None if there is no picture, no gateway or no key
        for links.
        """
        if self._key is None or self.gateway_url is None or not event.picture_url:
            return None
        incident = event.alert.incident or event.action.incident
        return signed_link(self._key, self.gateway_url, shared_path(incident, "picture.jpg"), 300.0)

    def frame_urls(self, alert: Alert, count: int) -> list[str]:
        """Return signed URLs of `count` pictures of an incident, spread evenly over its time, the oldest
        first. The list is empty if there is no gateway or no key for links.
        """
        if self._key is None or self.gateway_url is None:
            return []
        begin_ms, end_ms = alert.start.ToMilliseconds(), alert.end.ToMilliseconds()
        urls = []
        for number in range(count):
            moment = Timestamp()
            moment.FromMilliseconds(begin_ms + (end_ms - begin_ms) * (2 * number + 1) // (2 * count))
            path = shared_path(alert.incident, f"frames/{moment.ToJsonString()}.jpg")
            urls.append(signed_link(self._key, self.gateway_url, path, 300.0))
        return urls

    def _link(self, event: NotificationEvent, delivery: Delivery) -> None:
        if self._url is None:
            return
        happened, incident = delivery.happened, delivery.incident
        if isinstance(happened, Alert) and happened.kind == Alert.KIND_REPORT:
            event.console_url = f"{self._url.rstrip('/')}/#/{report_place(happened)}"
            return
        event.console_url = f"{self._url.rstrip('/')}/#/incidents/{incident}"
        if self._key is not None:
            event.picture_url = signed_link(
                self._key, self._url, shared_path(incident, "picture.jpg"), LINK_S
            )
            event.clip_url = signed_link(self._key, self._url, shared_path(incident, "clip.mp4"), LINK_S)


def report_place(report: Alert) -> str:
    """Return the path of the console page for a report's time."""
    return f"report?since={report.start.ToJsonString()}&until={report.end.ToJsonString()}"


def shared_path(incident: str, part: str) -> str:
    """Return the gateway's path for a signed link to an incident's picture or clip."""
    return f"/v1/shared/incidents/{incident}/{part}"


def sentence(happened: Happened) -> str:
    """Describe an event in a sentence."""
    where, question = clean(happened.camera, 100), clean(happened.question or happened.watch, 300)
    if not isinstance(happened, Alert):
        act = _ACTS.get(event_name(happened), event_name(happened))
        note = f": {clean(happened.note, 500)}" if happened.note else ""
        return f"{where}: {question} was {act} by {clean(happened.actor, 100)}{note}"
    return f"{_alert_sentence(happened, where, question)}{opinion_sentence(happened.opinion)}"


def opinion_sentence(opinion: SecondOpinion) -> str:
    """Return a sentence about the second model's answer, with a leading space; empty if no second model was
    asked.
    """
    match opinion.answer:
        case SecondOpinion.ANSWER_YES:
            return f" A second model agrees ({clean(opinion.model, 100)}, {opinion.seconds:.1f} s)."
        case SecondOpinion.ANSWER_NO:
            return f" A second model says no ({clean(opinion.model, 100)}, {opinion.seconds:.1f} s)."
        case SecondOpinion.ANSWER_NONE:
            return f" No second opinion: {clean(opinion.reason, 300)}."
        case _:
            return ""


def _alert_sentence(happened: Alert, where: str, question: str) -> str:
    # `raised` is preferred, because the window that says yes begins before anything is visible.
    began = happened.raised if happened.HasField("raised") else happened.start
    moment = datetime.fromtimestamp(began.ToMilliseconds() / 1000, UTC)
    if happened.cause and happened.kind != Alert.KIND_CLOSED:
        return f"{where}: {question} Since {moment:%H:%M:%S} UTC."  # a camera's fault has no p(yes)
    if happened.kind == Alert.KIND_REPORT:
        until = datetime.fromtimestamp(happened.end.ToMilliseconds() / 1000, UTC)
        words = " ".join(clean(line, 1000) for line in happened.text)
        return f"Report of {moment:%Y-%m-%d %H:%M} to {until:%m-%d %H:%M} UTC: {words}"[:4000]
    if happened.kind == Alert.KIND_TEST:
        return f"Test alert: {' '.join(clean(line, 300) for line in happened.text)}"
    certainty = f"p(yes) {happened.peak:.2f}"
    match happened.kind:
        case Alert.KIND_CLOSED:
            until = datetime.fromtimestamp(happened.end.ToMilliseconds() / 1000, UTC)
            return f"{where}: {question} No longer, after {(until - moment).total_seconds():.0f} s."
        case Alert.KIND_UPDATED:
            return f"{where}: {question} Still yes, {certainty}, since {moment:%H:%M:%S} UTC."
        case _:
            return f"{where}: {question} Yes, {certainty}, at {moment:%H:%M:%S} UTC."
