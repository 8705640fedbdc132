"""Attempts: order within an incident, a target that hangs, what is given up, floods of messages to people."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence

import pytest

from lookout.runtime.worker import Supervisor
from lookout.services.notify.dispatch import Dispatcher, Outcome, Parts
from lookout.services.notify.engine import Delivery, now_ms
from lookout.services.notify.messages import (
    Channel,
    ConnectedChannel,
    DeliveryError,
    GroupingChannel,
    Message,
)
from lookout.v1.alerts_pb2 import Alert
from lookout.v1.notifications_pb2 import Notification, NotificationEvent
from lookout.v1.watches_pb2 import SEVERITY_WARNING
from tests.eventually import eventually
from tests.fleet.notify_case import alert, webhook


class FakeChannel(Channel):
    """A fake: remembers what it was given, and fails as told."""

    def __init__(self) -> None:
        self.tried: list[str] = []
        self.never: set[str] = set()
        self.sent: list[str] = []
        self.groups: list[list[str]] = []
        self.failures: list[DeliveryError] = []
        self.hold = threading.Event()
        self.hold.set()

    def send(self, message: Message) -> None:
        self.hold.wait(20)
        self.tried.append(message.id)
        if self.failures:
            raise self.failures.pop(0)
        if message.id in self.never:
            raise DeliveryError("no")
        self.sent.append(message.id)

    def send_group(self, messages: list[Message]) -> None:
        self.groups.append([message.id for message in messages])


class FakePeople(FakeChannel, GroupingChannel):
    """A fake whose messages people read."""


class FakeConnected(FakeChannel, ConnectedChannel):
    """A fake that stays connected, and is given work by its target."""

    def __init__(self) -> None:
        super().__init__()
        self.work = threading.Event()
        self.kept = self.retired = 0
        self.others: list[str] = []

    def keep(self) -> None:
        self.kept += 1
        self.work.clear()

    def has_work(self) -> bool:
        return self.work.is_set()

    def retire(self, others: Sequence[Notification] = ()) -> None:
        if self.failures:
            raise self.failures.pop(0)
        self.retired += 1
        self.others = [other.id for other in others]


class World:
    """A dispatcher over fake channels."""

    def __init__(self, give_up_s: float = 3600.0) -> None:
        self.channels: dict[str, FakeChannel] = {}
        self.notifications: dict[str, Notification] = {}
        self.erased: set[str] = set()
        self.secrets: dict[str, bytes] = {}
        self.opened: list[str] = []
        parts = Parts(
            notifications=lambda: self.notifications,
            channel=self.open,
            identity=lambda notification: self.secrets.get(notification.id, b""),
            compose=lambda delivery: Message(delivery.id, NotificationEvent(), delivery.since_ms),
            may_be_told=lambda delivery: delivery.id not in self.erased,
            give_up_s=give_up_s,
            retry_max_s=0.02,
        )
        self.dispatcher = Dispatcher(parts, Supervisor())
        self.ended: list[Outcome] = []

    def open(self, notification: Notification) -> Channel:
        self.opened.append(notification.id)
        return self.channels[notification.id]

    def add(self, name: str, channel: FakeChannel) -> FakeChannel:
        self.channels[name], self.notifications[name] = channel, webhook(name, "http://a")
        return channel

    def submit(self, name: str, identity: str, incident: str = "i", age_s: float = 0.0) -> None:
        since_ms = now_ms() - round(age_s * 1000)
        happened = alert(1, Alert.KIND_OPENED)
        self.dispatcher.submit(Delivery(identity, name, incident, happened, None, SEVERITY_WARNING, since_ms))

    def wait(self, number: int) -> list[tuple[str, str]]:
        def collected() -> bool:
            self.ended += self.dispatcher.outcomes()
            return len(self.ended) >= number

        eventually(collected, 20)
        return [(outcome.delivery.id, outcome.ending) for outcome in self.ended]


@pytest.fixture
def world() -> Iterator[World]:
    world = World()
    yield world
    world.dispatcher.stop()


def test_a_failure_holds_back_its_incident_alone(world: World) -> None:
    channel = world.add("a", FakeChannel())
    channel.failures = [DeliveryError("no") for _ in range(3)]
    channel.hold.clear()
    for identity, incident in (("1", "x"), ("2", "x"), ("3", "y")):
        world.submit("a", identity, incident)
    channel.hold.set()
    assert sorted(world.wait(3)) == [("1", "delivered"), ("2", "delivered"), ("3", "delivered")]
    assert channel.sent.index("1") < channel.sent.index("2")


def test_a_target_that_hangs_delays_no_other(world: World) -> None:
    hanging, sound = world.add("hanging", FakeChannel()), world.add("sound", FakeChannel())
    hanging.hold.clear()
    world.submit("hanging", "1")
    world.submit("sound", "2")
    assert world.wait(1) == [("2", "delivered")]
    hanging.hold.set()
    assert ("1", "delivered") in world.wait(2)
    assert sound.sent == ["2"]


def test_given_up_after_the_limit_and_the_next_goes_on() -> None:
    world = World(give_up_s=0.5)
    channel = world.add("a", FakeChannel())
    channel.never.add("1")
    world.submit("a", "1", age_s=11.0)
    world.submit("a", "2")
    assert world.wait(2) == [("1", "undelivered"), ("2", "delivered")]
    world.dispatcher.stop()


def test_what_waited_for_the_service_itself_is_tried_for_the_whole_limit(world: World) -> None:
    """One failure does not give up an event that is old because of an outage or a clock that was set."""
    channel = world.add("a", FakeChannel())
    channel.failures = [DeliveryError("no") for _ in range(3)]
    world.submit("a", "1", age_s=86_400.0)
    assert world.wait(1) == [("1", "delivered")]
    assert channel.tried == ["1"] * 4


def test_a_secret_that_changes_in_its_file_opens_the_channel_again(world: World) -> None:
    before = world.add("a", FakeChannel())
    world.submit("a", "1")
    world.submit("a", "2")
    world.wait(2)
    after = world.add("a", FakeChannel())  # the notification itself stays the same
    world.secrets["a"] = b"another"
    world.submit("a", "3")
    world.wait(3)
    assert (before.sent, after.sent, world.opened) == (["1", "2"], ["3"], ["a", "a"])


def test_given_up_at_once_where_no_attempt_can_succeed(world: World) -> None:
    channel = world.add("a", FakeChannel())
    channel.failures = [DeliveryError("gone", final=True)]
    world.submit("a", "1")
    assert world.wait(1) == [("1", "rejected")]


def test_of_a_notification_that_was_removed(world: World) -> None:
    world.submit("nobody", "1")
    assert world.wait(1) == [("1", "removed")]


def test_the_thread_of_a_notification_that_was_removed_ends(world: World) -> None:
    """Browsers come and go: each has a notification of its own."""
    for name in ("removed", "staying"):
        world.add(name, FakeChannel())
        world.submit(name, f"to-{name}", name)
    world.wait(2)
    del world.notifications["removed"]
    world.dispatcher.keep([])
    assert [state.notification for state in world.dispatcher.states()] == ["staying"]
    eventually(lambda: "notify-removed" not in {thread.name for thread in threading.enumerate()}, 20)


def test_what_was_erased_meanwhile_is_not_sent(world: World) -> None:
    channel = world.add("a", FakeChannel())
    world.erased.add("1")
    world.submit("a", "1")
    assert world.wait(1) == [("1", "delivered")]
    assert channel.sent == []


def test_after_clear_an_attempt_in_work_has_no_outcome(world: World) -> None:
    channel = world.add("a", FakeChannel())
    channel.hold.clear()
    world.submit("a", "1")
    world.dispatcher.clear()
    world.submit("a", "2")
    channel.hold.set()
    assert world.wait(1) == [("2", "delivered")]


def test_a_flood_is_one_message_that_counts(world: World) -> None:
    people = world.add("a", FakePeople())
    people.hold.clear()
    world.submit("a", "first", "first")
    for number in range(40):
        world.submit("a", str(number), f"incident-{number}")
    people.hold.set()
    assert len(world.wait(41)) == 41
    assert len(people.sent) + len(people.groups) <= 8
    assert sum(map(len, people.groups)) + len(people.sent) == 41


def test_programs_get_each_message(world: World) -> None:
    channel = world.add("a", FakeChannel())
    for number in range(40):
        world.submit("a", str(number), f"incident-{number}")
    world.wait(40)
    assert len(channel.sent) == 40


def test_a_channel_that_has_work_is_not_left_waiting(world: World) -> None:
    channel = FakeConnected()
    world.add("a", channel)
    world.dispatcher.keep(["a"])
    eventually(lambda: channel.kept == 1, 8)  # the next look by itself is 10 s later
    channel.work.set()
    eventually(lambda: channel.kept == 2, 8)


def test_what_lasts_is_taken_back_once_and_said_so_only_then(world: World) -> None:
    channel = FakeConnected()
    world.add("a", channel)
    world.add("b", FakeChannel())
    world.dispatcher.keep(["a"])
    eventually(lambda: channel.kept == 1, 8)
    left = world.notifications.pop("a")
    channel.failures.append(DeliveryError("away"))
    world.dispatcher.retire("place", left)
    eventually(lambda: not channel.failures, 8)
    assert world.dispatcher.retired() == []
    world.dispatcher.retire("place", left)
    eventually(lambda: world.dispatcher.retired() == ["place"], 8)
    assert (channel.retired, channel.others) == (1, ["b"])
