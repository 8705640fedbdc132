"""Reads events, and commits states, dead letters and offsets in transactions."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, TypeVar

from confluent_kafka import OFFSET_BEGINNING, KafkaError, KafkaException, Message, TopicPartition

from lookout.errors import FencedError, LookoutRuntimeError
from lookout.runtime.kafka_clients import Consumer, Producer
from lookout.runtime.observe import logs
from lookout.runtime.observe.health import Health
from lookout.runtime.worker import DeadLetter, own_checkpoint
from lookout.runtime.worker.record_reader import record_of
from lookout.runtime.worker.records import Record
from lookout.runtime.worker.refusals import dead_letter
from lookout.runtime.worker.topic_reader import read_topic
from lookout.services.notify.brokers import Brokers, is_key, key_of
from lookout.services.notify.dispatch import Dispatcher, Outcome
from lookout.services.notify.engine import Delivery, Dropped, Ending, Engine, Happened, now_ms
from lookout.services.notify.opinions import INTERRUPTED, Asker
from lookout.services.notify.settings import NotifySettings
from lookout.v1.actions_pb2 import IncidentAction
from lookout.v1.alerts_pb2 import Alert
from lookout.v1.notifications_pb2 import Notification, NotifyState
from lookout.v1.state_pb2 import Checkpoint
from lookout.wire import (
    ACTIONS,
    ALERT_TYPE,
    ALERTS,
    NOTIFICATIONS,
    NOTIFY,
    WireError,
    event_headers,
    from_bytes,
    key_text,
    prefixed,
    received,
    to_json,
)

_SOURCES: Final = (ALERTS.name, ACTIONS.name)
_BATCH: Final = 500
_WAIT_S: Final = 0.1
_STEP_S: Final = 30.0
#: seconds without a turn after which the Kafka client counts as hung. After a broker is killed, a call
#: sometimes never returns, whatever its timeout, and only a restart of the process helps
_HANGS_S: Final = 120.0
_PAUSE_S: Final = 1.0
#: seconds between checks for new partitions and for states to forget
_LOOK_S: Final = 30.0
#: seconds after which unchanged offsets are committed again, because Kafka forgets the offsets of an idle
#: group after a week
_COMMIT_S: Final = 3600.0
_FENCED: Final = frozenset(
    {KafkaError._FENCED, KafkaError.INVALID_PRODUCER_EPOCH, KafkaError.PRODUCER_FENCED}
)

Place = tuple[str, int]
M = TypeVar("M", Notification, NotifyState)
#: counts a message by how its delivery ended
Counted = Callable[[Ending], object]


@dataclass(slots=True)
class _Clients:
    """The Kafka clients of one session."""

    consumer: Consumer
    producer: Producer


class Feed:
    """The main loop of notify. Only one process per installation delivers: the newest process fences all
    older ones.

    Args:
        settings: How to reach Kafka.
        engine: Decides who is told.
        dispatcher: Delivers.
        health: Set to ready while Kafka answers.
        counted: Counts messages by how their deliveries ended.
        put_aside: Counts committed dead letters by their reason.
        lasting: Returns the notifications that stay connected, by id.
        asker: Asks second models; None: there are none.
        ends: Returns whether a notification is removed once its target will never accept a message again.
        forget: Called with a removed notification's id after its target was cleaned up or given up.
        brokers: The places where notifications leave retained messages.
    """

    def __init__(
        self,
        settings: NotifySettings,
        engine: Engine,
        dispatcher: Dispatcher,
        health: Health,
        *,
        counted: Counted = lambda _: None,
        put_aside: Callable[[str], object] = lambda _: None,
        lasting: Callable[[], Mapping[str, Notification]] = dict,
        asker: Asker | None = None,
        ends: Callable[[str], bool] = lambda _: False,
        forget: Callable[[str], object] = lambda _: None,
        brokers: Brokers | None = None,
    ) -> None:
        self._asker = asker
        self._settings, self._engine, self._dispatcher = settings, engine, dispatcher
        self._health, self._counted, self._lasting, self._ends = health, counted, lasting, ends
        self._forget, self._put_aside = forget, put_aside
        self._log = logs.get("notify")
        self._stopped = threading.Event()
        self._next: dict[Place, int] = {}
        self._letters: list[tuple[Record, DeadLetter]] = []
        self._brokers = brokers or Brokers(0.0)
        self._places: dict[str, Notification | None] = {}  # state records of places at brokers, to commit
        self._ended: set[str] = set()  # notifications to remove
        self._committed_at = 0.0
        self._turned_at = time.monotonic()

    def run(self) -> None:
        """Work until `stop`. After any Kafka error, start again from the committed state.

        Raises:
            FencedError: Another process delivers now, so this process must end.
        """
        while not self._stopped.is_set():
            self._turned_at = time.monotonic()
            try:
                self._work()
            except KafkaException as error:
                if error.args[0].code() in _FENCED:
                    raise FencedError(
                        f"another {NOTIFY.name} process delivers notifications now, so this process ends"
                    ) from error
                self._health.block("kafka", error.args[0].str())
                self._log.warning("notifications are waiting for Kafka", error=error.args[0].str())
                self._stopped.wait(_PAUSE_S)
        self._dispatcher.stop()

    def watch(self) -> None:
        """End the process if the feed hangs; the next process continues from the committed state.

        Raises:
            LookoutRuntimeError: The feed hangs.
        """
        while not self._stopped.wait(1.0):
            if time.monotonic() - self._turned_at > _HANGS_S:
                raise LookoutRuntimeError(f"a call to the Kafka client has not returned for {_HANGS_S:g} s")

    def stop(self) -> None:
        """End after the current transaction."""
        self._stopped.set()

    def _work(self) -> None:
        clients = self._open()
        try:
            # Initialising the transactional producer ends a transaction that its predecessor left open. Only
            # then are state and offsets final.
            clients.producer.init_transactions(_STEP_S)
            self._restore(clients)
            self._health.clear("kafka")
            look_at = 0.0
            while not self._stopped.is_set():
                if time.monotonic() >= look_at:
                    self._assign(clients.consumer)
                    self._engine.sweep(now_ms())
                    look_at = time.monotonic() + _LOOK_S
                self._turn(clients)
                self._dispatcher.keep(self._lasting())  # `_turn` has committed their places
        finally:
            self._dispatcher.clear()
            clients.consumer.close()

    def _open(self) -> _Clients:
        consumer = Consumer(
            self._settings.kafka(
                **{
                    "group.id": NOTIFY.group,
                    "enable.auto.commit": False,
                    "isolation.level": "read_committed",
                    "auto.offset.reset": "earliest",  # used if retention removed unread records
                    "fetch.wait.max.ms": 100,
                }
            ),
            logger=logs.client_logger("notify"),
        )
        producer = Producer(
            self._settings.kafka(
                **{
                    "transactional.id": prefixed(f"{NOTIFY.name}.deliveries"),
                    "transaction.timeout.ms": int(self._settings.transaction_timeout_s * 1000),
                    "linger.ms": 0,
                }
            ),
            logger=logs.client_logger("producer"),
        )
        return _Clients(consumer, producer)

    def _restore(self, clients: _Clients) -> None:
        """Restore the committed states, and submit the deliveries that are waiting."""
        self._engine.clear()
        self._brokers.clear()
        self._letters.clear()
        self._ended.clear()
        self._places.clear()
        for message in read_topic(self._settings, "notify-state", NOTIFY.state.name):
            key = key_text(message.key())
            if is_key(key):
                self._brokers.restore(key, _own(message.value(), Notification))
            else:
                self._engine.restore(key, _own(message.value(), NotifyState))
        for delivery in list(self._engine.waiting()):
            self._dispatcher.submit(delivery)
        self._next = self._begin(clients.consumer)
        # The previous process may have asked a second model and died before the answer came. The question is
        # not repeated.
        asking = set() if self._asker is None else self._asker.asking()
        late = [incident for incident in self._engine.pending() if incident not in asking]
        deliveries = [delivery for incident in late for delivery in self._engine.opine(incident, INTERRUPTED)]
        self._commit(clients)
        for delivery in deliveries:
            self._dispatcher.submit(delivery)

    def _begin(self, consumer: Consumer) -> dict[Place, int]:
        """Return the offsets at which to start reading: the committed offsets, or the topics' ends at an
        installation's first start.
        """
        places = _places(consumer)
        answers = consumer.committed(places, timeout=_STEP_S)
        for answer in answers:
            if answer.error:
                raise KafkaException(answer.error)
        committed = {
            (answer.topic, answer.partition): answer.offset for answer in answers if answer.offset >= 0
        }
        if committed:
            return committed
        return {
            (place.topic, place.partition): consumer.get_watermark_offsets(place, timeout=_STEP_S)[1]
            for place in places
        }

    def _assign(self, consumer: Consumer) -> None:
        """Assign all partitions to the consumer; a newly added one is read from its beginning."""
        places = _places(consumer)
        assigned = {(place.topic, place.partition) for place in consumer.assignment()}
        if assigned != {(place.topic, place.partition) for place in places}:
            for place in places:
                place.offset = self._next.get((place.topic, place.partition), OFFSET_BEGINNING)
            consumer.assign(places)

    def _turn(self, clients: _Clients) -> None:
        """Process new events and outcomes, commit the states, and then submit deliveries."""
        self._turned_at = time.monotonic()
        deliveries = []
        moved = False
        for message in clients.consumer.consume(_BATCH, _WAIT_S):
            if (error := message.error()) is not None:
                if not error.retriable():
                    raise KafkaException(error)
                continue
            fresh, dropped = self._take(message)
            deliveries += fresh
            for rejected in dropped:
                self._give_up(rejected)
            self._next[str(message.topic()), message.partition() or 0] = (message.offset() or 0) + 1
            moved = True
        outcomes = self._dispatcher.outcomes()
        for outcome in outcomes:
            self._end(outcome)
        opinions = {} if self._asker is None else self._asker.opinions()
        for incident, opinion in opinions.items():
            deliveries += self._engine.opine(incident, opinion)
        deliveries += self._engine.due(now_ms())
        self._look_after_brokers()
        if (
            self._places
            or moved
            or outcomes
            or opinions
            or deliveries
            or time.monotonic() > self._committed_at + _COMMIT_S
        ):
            self._commit(clients)
        questions = self._engine.questions()
        if self._asker is not None:
            self._asker.forget(opinions)
            for alert in questions:
                self._asker.ask(alert)
        for delivery in deliveries:
            self._dispatcher.submit(delivery)

    def _look_after_brokers(self) -> None:
        """Record where notifications will connect before they connect, and clean up after removed
        notifications.
        """
        current = self._lasting()
        self._places |= self._brokers.added(current)
        due, given_up = self._brokers.due(current)
        for key, notification in due.items():
            self._dispatcher.retire(key, notification)
        for notification in given_up:
            self._log.warning(
                "giving up removing what a removed notification left at its target",
                notification=notification.id,
            )
        for key in [*self._dispatcher.retired(), *map(key_of, given_up)]:
            notification_before = self._brokers.forget(key)
            if notification_before is not None:
                self._places[key] = None
                if notification_before.id not in current:
                    self._forget(notification_before.id)

    def _take(self, message: Message) -> tuple[list[Delivery], list[Dropped]]:
        record = record_of(message)
        kind: type[Happened] = Alert if record.topic == ALERTS.name else IncidentAction
        try:
            happened = received(kind, record)
        except WireError as error:
            self._letters.append((record, DeadLetter("bad-event", str(error))))
            return [], []
        return self._engine.take(happened, record.timestamp_ms, record.partition)

    def _end(self, outcome: Outcome) -> None:
        name = outcome.delivery.notification
        if outcome.ending is Ending.REJECTED and self._ends(name):
            self._ended.add(name)
            self._counted(Ending.REMOVED)
        elif outcome.ending in (Ending.DELIVERED, Ending.REMOVED):
            self._counted(outcome.ending)
        else:
            self._give_up(Dropped(outcome.delivery, outcome.ending, outcome.detail))
        self._engine.done(outcome.delivery)

    def _give_up(self, dropped: Dropped) -> None:
        delivery = dropped.delivery
        self._counted(dropped.ending)
        self._log.error(
            "giving up a message",
            notification=delivery.notification,
            incident=delivery.incident,
            reason=dropped.ending.value,
            error=dropped.detail,
        )
        topic = ALERTS.name if isinstance(delivery.happened, Alert) else ACTIONS.name
        record = Record(topic, 0, -1, delivery.happened.camera, to_json(delivery.happened))
        why = DeadLetter(dropped.ending, f"notification {delivery.notification}: {dropped.detail}")
        self._letters.append((record, why))

    def _commit(self, clients: _Clients) -> None:
        """Commit states, second opinions, dead letters, offsets and removed notifications in one
        transaction.

        Raises:
            KafkaException: The commit may have failed; the caller restarts from the committed state.
        """
        producer = clients.producer
        producer.begin_transaction()
        for key, state in (*self._engine.changes().items(), *self._places.items()):
            value = None if state is None else own_checkpoint(state).SerializeToString(deterministic=True)
            producer.produce(NOTIFY.state.name, value=value, key=key.encode())
        for partition, alert in self._engine.opinions():
            producer.produce(
                ALERTS.name,
                value=to_json(alert),
                key=alert.camera.encode(),
                partition=partition,
                headers=list(
                    event_headers(ALERT_TYPE, NOTIFY.name, alert.camera, alert.id, alert.end.ToJsonString())
                ),
            )
        for name in self._ended:
            producer.produce(NOTIFICATIONS.name, value=None, key=name.encode())
        letters = NOTIFY.dead_letters
        for record, why in self._letters:
            letter, _ = dead_letter(
                record, why, stage=NOTIFY.name, topic=letters.name, limit=letters.max_message_bytes
            )
            if letter is not None:
                headers = list(letter.headers)
                producer.produce(letter.topic, value=letter.value, key=letter.key.encode(), headers=headers)
        offsets = [TopicPartition(*place, offset) for place, offset in self._next.items()]
        if offsets:
            metadata = clients.consumer.consumer_group_metadata()
            producer.send_offsets_to_transaction(offsets, metadata, _STEP_S)
        producer.commit_transaction(_STEP_S)
        for _, why in self._letters:
            self._put_aside(why.reason)
        self._letters.clear()
        self._ended.clear()
        self._places.clear()
        self._committed_at = time.monotonic()


def _places(consumer: Consumer) -> list[TopicPartition]:
    """Return all partitions of the source topics."""
    topics = consumer.list_topics(timeout=_STEP_S).topics
    return [
        TopicPartition(name, number)
        for name in _SOURCES
        if name in topics and topics[name].error is None
        for number in topics[name].partitions
    ]


def _own(value: bytes | None, kind: type[M]) -> M | None:
    """Return the message of a type in a state record; None if the record was deleted or has another type."""
    if value is None:
        return None
    try:
        checkpoint = from_bytes(value, Checkpoint)
    except WireError:
        return None
    state = kind()
    return state if checkpoint.own.Unpack(state) else None
