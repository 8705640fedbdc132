"""`python -m lookout.services.notify`: delivers messages about incidents."""

from __future__ import annotations

from collections.abc import Mapping

import grpc
from prometheus_client import CollectorRegistry, Counter, Gauge

from lookout.past.erasures import live_fence
from lookout.rules import RuleError, read_watch
from lookout.rules.notifications import notification_fault, read_notification
from lookout.runtime.net.guarded_resolving import guard_process
from lookout.runtime.worker import Context, Table, View, serve
from lookout.services.notify.brokers import Brokers
from lookout.services.notify.channels.opening import Channels
from lookout.services.notify.composing import Composer
from lookout.services.notify.dispatch import Dispatcher, Parts
from lookout.services.notify.engine import REASONS, Ending, Engine
from lookout.services.notify.feed import Counted, Feed
from lookout.services.notify.messages import DeliveryError
from lookout.services.notify.opinions import Asker, Endpoints
from lookout.services.notify.secrets import Secrets
from lookout.services.notify.settings import NotifySettings, SecondModel
from lookout.text import clean
from lookout.v1 import notifications_pb2 as messages
from lookout.v1.notifications_pb2 import (
    ListDeliveriesRequest,
    ListDeliveriesResponse,
    ListSecondModelsRequest,
    ListSecondModelsResponse,
    Notification,
    TryNotificationRequest,
    TryNotificationResponse,
)
from lookout.v1.notifications_pb2_grpc import NotifyServiceServicer, add_NotifyServiceServicer_to_server
from lookout.v1.watches_pb2 import SEVERITY_UNSPECIFIED, Severity, Watch
from lookout.wire import NOTIFICATIONS, NOTIFY, WATCHES
from lookout.wire.limits import ALL_WATCHES, NOTIFICATIONS as MOST, REASON


class Configuration:
    """The current notifications, and the settings about notifying in each watch's newest version.

    Args:
        notifications: The table of notifications.
        watches: The table of watches.
    """

    def __init__(self, notifications: Table, watches: Table) -> None:
        self._notifications, self._watches = notifications, watches
        self._read: tuple[View | None, Mapping[str, Notification]] = (None, {})

    def all(self) -> Mapping[str, Notification]:
        """Return every notification by id; records are parsed again only after a change."""
        view, current = self._notifications.view(), self._read
        if current[0] is not view:
            current = view, {name: read_notification(name, rows[-1]) for name, rows in view.history.items()}
            self._read = current
        return current[1]

    def of(self, name: str) -> Notification | None:
        """Return a notification; None if no notification has this id."""
        return self.all().get(name)

    def lasting(self) -> dict[str, Notification]:
        """Return the notifications whose channels stay connected (MQTT), by id."""
        return {
            name: notification for name, notification in self.all().items() if notification.HasField("mqtt")
        }

    def ends(self, name: str) -> bool:
        """Return whether a notification must be removed once its target will never accept a message again
        (browsers).
        """
        notification = self.of(name)
        return notification is not None and notification.HasField("push")

    def severity(self, watch: str) -> Severity:
        """Return the severity of a watch's newest version; unspecified if the watch is unknown."""
        newest = self._newest(watch)
        return SEVERITY_UNSPECIFIED if newest is None else newest.severity

    def verifies(self, watch: str) -> bool:
        """Return whether the newest version of a watch asks for second opinions."""
        newest = self._newest(watch)
        return newest is not None and newest.verify

    def second_model(self, watch: str) -> str:
        """Return the second model that the newest version of a watch names; empty if it names none."""
        newest = self._newest(watch)
        return "" if newest is None else newest.verify_with

    def _newest(self, watch: str) -> Watch | None:
        row = self._watches.newest(watch)
        if row is None:
            return None
        try:
            return read_watch(watch, row)[0]
        except RuleError:
            return None


class Tester(NotifyServiceServicer):
    """Sends test messages, and reports the state of deliveries and the second models.

    Args:
        configuration: The notifications.
        channels: Opens a channel for each test.
        composer: Composes the test messages.
        dispatcher: Knows the state of deliveries.
        models: The second models by name.
    """

    def __init__(
        self,
        configuration: Configuration,
        channels: Channels,
        composer: Composer,
        dispatcher: Dispatcher,
        models: Mapping[str, SecondModel],
    ) -> None:
        self._configuration, self._channels, self._composer = configuration, channels, composer
        self._dispatcher, self._models = dispatcher, models

    def ListSecondModels(  # noqa: N802 - gRPC's name
        self, request: ListSecondModelsRequest, context: grpc.ServicerContext
    ) -> ListSecondModelsResponse:
        """List the second models that a watch may ask."""
        models = [messages.SecondModel(name=name, model=one.model) for name, one in self._models.items()]
        return ListSecondModelsResponse(models=models)

    def ListDeliveries(  # noqa: N802 - gRPC's name
        self, request: ListDeliveriesRequest, context: grpc.ServicerContext
    ) -> ListDeliveriesResponse:
        """Return each notification's delivery state."""
        return ListDeliveriesResponse(states=self._dispatcher.states())

    def TryNotification(  # noqa: N802 - gRPC's name
        self, request: TryNotificationRequest, context: grpc.ServicerContext
    ) -> TryNotificationResponse:
        """Try once to deliver a test message."""
        notification = self._configuration.of(request.notification)
        if notification is None:
            detail = f"there is no notification {clean(request.notification, 60)}: see `lookout notify list`"
            return TryNotificationResponse(detail=detail)
        try:
            channel = self._channels.open(notification, trial=True)
            try:
                channel.send(self._composer.test(notification.id))
            finally:
                channel.close()
        except DeliveryError as error:
            return TryNotificationResponse(detail=str(error)[:REASON])
        return TryNotificationResponse(delivered=True)


def add(context: Context[NotifySettings]) -> None:
    """Start the threads that read events and deliver messages."""
    settings = context.settings
    configuration = Configuration(
        context.table(NOTIFICATIONS.name, check=notification_fault, limit=MOST),
        context.table(WATCHES.name, limit=ALL_WATCHES),
    )
    fence, _ = live_fence(context)
    guard_process(settings.allowed())
    composer = Composer(settings)
    channels = Channels(settings, composer)
    endpoints = Endpoints(settings, channels.frames, configuration.second_model)
    engine = Engine(
        configuration.all,
        configuration.severity,
        fence,
        verifies=configuration.verifies,
        fault=endpoints.fault,
        daily=settings.opinion_daily,
    )
    models = settings.second_models
    asker = Asker(endpoints.opinion, context.supervisor) if models else None
    parts = Parts(
        notifications=configuration.all,
        channel=channels.open,
        identity=channels.identity,
        compose=composer.message,
        may_be_told=engine.may_be_told,
        give_up_s=settings.retry_limit_s,
        retry_max_s=settings.retry_max_s,
    )
    dispatcher = Dispatcher(parts, context.supervisor)
    count = _metrics(context.metrics.registry, dispatcher)
    letters = {reason: context.metrics.dead_letters.labels(NOTIFY.name, reason) for reason in REASONS}
    feed = Feed(
        settings,
        engine,
        dispatcher,
        context.health,
        counted=count,
        put_aside=lambda reason: letters[reason].inc(),
        lasting=configuration.lasting,
        ends=configuration.ends,
        asker=asker,
        forget=Secrets(settings.notify_secrets).remove_own,
        brokers=Brokers(settings.retry_limit_s),
    )
    context.health.block("kafka", "the committed state has not been read yet")
    tester = Tester(configuration, channels, composer, dispatcher, models)
    context.grpc.add(
        lambda server: add_NotifyServiceServicer_to_server(tester, server),  # type: ignore[no-untyped-call]
        "lookout.v1.NotifyService",
    )
    context.supervisor.start("feed", feed.run)
    context.supervisor.start("feed-watch", feed.watch)
    context.on_close(feed.stop)


def _metrics(registry: CollectorRegistry, dispatcher: Dispatcher) -> Counted:
    """Register the metrics; return the function that counts a message by its outcome."""
    messages = Counter(
        "lookout_notifications",
        "messages by outcome: delivered, or the reason why notify gave up",
        ("outcome",),
        registry=registry,
    )
    waiting = Gauge("lookout_notifications_waiting", "messages not delivered yet", registry=registry)
    waiting.set_function(dispatcher.waiting)

    def count(ending: Ending) -> None:
        messages.labels(ending.value).inc()

    return count


if __name__ == "__main__":
    serve(NOTIFY.name, NotifySettings, add)
