"""Who is told of which event, in which order, and what is left after a restart."""

from __future__ import annotations

from lookout.past.erasures import Fence
from lookout.rules.notifications import asked_for
from lookout.services.notify.composing import Composer
from lookout.services.notify.engine import Delivery, Engine
from lookout.services.notify.settings import NotifySettings
from lookout.v1.actions_pb2 import IncidentAction
from lookout.v1.alerts_pb2 import Alert
from lookout.v1.erasures_pb2 import Erasure
from lookout.v1.notifications_pb2 import Notification, NotificationEvent, Webhook
from lookout.v1.watches_pb2 import SEVERITY_CRITICAL, SEVERITY_UNSPECIFIED
from lookout.wire import CAMERA_HEALTH, CAMERA_OFFLINE
from lookout.wire.limits import WAITING_EVENTS
from tests.fleet.notify_case import act, alert, webhook

DAY_MS = 86_400_000
OPENED, UPDATED, CLOSED = Alert.KIND_OPENED, Alert.KIND_UPDATED, Alert.KIND_CLOSED
CLAIM, NOTE = IncidentAction.KIND_CLAIM, IncidentAction.KIND_NOTE
RELEASE = IncidentAction.KIND_RELEASE


def engine(*notifications: Notification, fence: Fence | None = None) -> Engine:
    by_id = {each.id: each for each in notifications}
    critical = {"fire": SEVERITY_CRITICAL}
    return Engine(lambda: by_id, lambda watch: critical.get(watch, SEVERITY_UNSPECIFIED), fence)


def restarted(before: Engine, *notifications: Notification) -> Engine:
    after = engine(*notifications)
    for incident, state in before.changes().items():
        after.restore(incident, state)
    return after


def names(deliveries: list[Delivery]) -> list[str]:
    return [delivery.notification for delivery in deliveries]


def test_ids_are_stable_and_of_one_notification() -> None:
    two = webhook("a", "http://a"), webhook("b", "http://b")
    first, second = engine(*two).take(alert(1, OPENED), 1)[0]
    assert first.id != second.id
    assert [first.id, second.id] == [d.id for d in engine(*two).take(alert(1, OPENED), 99)[0]]


def test_what_is_not_done_is_there_after_a_restart() -> None:
    one = webhook("a", "http://a")
    book = engine(one)
    (opened,), _ = book.take(alert(1, OPENED), 1)
    (updated,), _ = book.take(alert(1, UPDATED, 1), 2)
    book.done(opened)
    assert [d.id for d in restarted(book, one).waiting()] == [updated.id]


def test_order_within_an_incident_survives() -> None:
    one = webhook("a", "http://a")
    book = engine(one)
    events = [alert(1, OPENED), alert(1, UPDATED, 1), alert(1, CLOSED, 2)]
    ids = [book.take(event, n)[0][0].id for n, event in enumerate(events)]
    assert [d.id for d in restarted(book, one).waiting()] == ids


def test_who_is_told_is_decided_when_it_opens() -> None:
    told = {"a": webhook("a", "http://a")}
    book = Engine(lambda: told, lambda _: SEVERITY_UNSPECIFIED)
    book.take(alert(1, OPENED), 1)
    told["b"] = webhook("b", "http://b")
    assert names(book.take(alert(1, UPDATED, 1), 2)[0]) == ["a"]
    del told["a"]
    assert book.take(alert(1, CLOSED, 2), 3)[0] == []


def test_events_that_are_not_wanted() -> None:
    book = engine(webhook("a", "http://a", events=[Notification.EVENT_CLOSED]))
    assert book.take(alert(1, OPENED), 1)[0] == []
    assert names(book.take(alert(1, CLOSED, 1), 2)[0]) == ["a"]


def test_escalation_unless_somebody_takes_it_up() -> None:
    late = webhook("late", "http://a", unclaimed_s=60)
    book = engine(late)
    assert book.take(alert(1, OPENED), 0)[0] == []
    assert book.take(alert(2, OPENED), 0)[0] == []
    book.take(act(2, CLAIM), 30_000)
    assert book.due(59_999) == []
    book = restarted(book, late)
    book.take(alert(1, UPDATED, 1), 59_999)
    (told,) = book.due(60_000)
    assert (told.notification, told.incident) == ("late", "incident-1")
    assert book.due(120_000) == []
    assert names(book.take(alert(1, CLOSED, 2), 61_000)[0]) == ["late"]


def test_a_claim_that_is_read_before_the_alert_prevents_the_escalation() -> None:
    book = engine(webhook("late", "http://a", unclaimed_s=60))
    book.take(act(1, CLAIM), 1)
    book.take(alert(1, OPENED), 0)
    assert book.due(DAY_MS) == []


def test_of_a_claim_that_is_taken_back_the_escalation_comes_later() -> None:
    late, told = webhook("late", "http://a", unclaimed_s=60), webhook("now", "http://b")
    book = engine(late, told)
    book.take(alert(1, OPENED), 0)
    book.take(act(1, CLAIM), 30_000)
    book = restarted(book, late, told)
    book.take(act(1, RELEASE), 50_000)
    book.take(act(1, RELEASE), 55_000)  # it changes nothing
    assert book.due(109_999) == []
    assert names(book.due(110_000)) == ["late"]
    book.take(act(1, CLAIM), 120_000)
    book.take(act(1, RELEASE), 130_000)
    assert book.due(DAY_MS) == [], "it was told once"


def test_a_note_is_no_claim() -> None:
    book = engine(webhook("late", "http://a", unclaimed_s=60))
    book.take(alert(1, OPENED), 0)
    book.take(act(1, NOTE), 1)
    assert names(book.due(60_000)) == ["late"]


def test_an_escalation_of_an_event_that_another_waits_for() -> None:
    both = webhook("now", "http://a"), webhook("late", "http://b", unclaimed_s=60)
    book = engine(*both)
    book.take(alert(1, OPENED), 0)
    assert names(book.due(60_000)) == ["late"]
    assert sorted(names(list(restarted(book, *both).waiting()))) == ["late", "now"]


def test_acts_after_the_end_are_told_for_a_day() -> None:
    one = webhook("a", "http://a")
    book = engine(one)
    for event in (alert(1, OPENED), alert(1, CLOSED, 1)):
        for delivery in book.take(event, 1)[0]:
            book.done(delivery)
    book.sweep(DAY_MS)
    assert names(book.take(act(1, NOTE), 2)[0]) == ["a"]
    book.done(next(book.waiting()))
    book.changes()
    book.sweep(2 + DAY_MS)
    assert book.changes() == {}
    book.sweep(3 + DAY_MS)
    assert book.changes() == {"incident-1": None}


def test_too_many_events_of_one_incident() -> None:
    book = engine(webhook("a", "http://a"))
    (first,), _ = book.take(alert(1, OPENED), 0)
    for number in range(1, WAITING_EVENTS):
        assert book.take(alert(1, UPDATED, number), 0)[1] == []
    (dropped,) = book.take(alert(1, UPDATED, WAITING_EVENTS), 0)[1]
    assert (dropped.delivery.id, dropped.ending) == (first.id, "too-many")


def test_what_was_erased_is_not_told() -> None:
    erasure = Erasure(camera="gate", begin_us=0, end_us=2**62)
    book = engine(webhook("a", "http://a"), fence=Fence([erasure]))
    assert book.take(alert(1, OPENED), 1) == ([], [])
    (elsewhere,), _ = book.take(alert(1, OPENED, camera="yard"), 1)
    assert book.may_be_told(elsewhere)


def test_erased_while_it_waits() -> None:
    one = webhook("a", "http://a")
    before = engine(one)
    (delivery,), _ = before.take(alert(1, OPENED), 1)
    after = engine(one, fence=Fence([Erasure(camera="gate", begin_us=0, end_us=2**62)]))
    for incident, state in before.changes().items():
        after.restore(incident, state)
    assert not after.may_be_told(delivery)
    after.sweep(2)
    assert after.changes() == {"incident-1": None}


def test_a_test_alert_is_told_to_whoever_is_on_and_leaves_nothing_behind() -> None:
    test = alert(1, Alert.KIND_TEST)
    others = Notification(id="others", tenant="south", webhook=Webhook(url="http://b"))
    off = Notification(id="off", disabled=True, webhook=Webhook(url="http://c"))
    narrow = webhook("narrow", "http://a")
    narrow.cameras.append("no such camera")
    narrow.events.append(Notification.EVENT_CLOSED)
    narrow.unclaimed_s = 60
    book = engine(narrow, others, off)
    deliveries, dropped = book.take(test, 1)
    assert (names(deliveries), dropped) == (["narrow"], [])
    settings = {"mode": "local", "bootstrap": "x:1", "public_url": "https://lookout.example"}
    event = Composer(NotifySettings.model_validate(settings)).message(deliveries[0]).event
    assert (event.test, event.console_url) == (True, "https://lookout.example")
    assert event.text.startswith("Test alert: ")
    book.done(deliveries[0])
    assert not list(book.waiting())
    assert not book.due(DAY_MS), "nobody takes a test up"


def test_who_shows_states_is_told_of_outages_whatever_its_filters() -> None:
    """An answer from before an outage would look as if it still held."""
    shows = Notification(
        id="home",
        mqtt={"host": "broker"},
        watches=["fall"],
        severity=SEVERITY_CRITICAL,
        events=[Notification.EVENT_OPENED],
    )
    elsewhere = Notification(id="elsewhere", mqtt={"host": "broker"}, watches=["fall"], cameras=["yard"])
    off = Notification(id="off", mqtt={"host": "broker"}, disabled=True)
    chat = webhook("chat", "http://a", watches=["fall"])
    book = engine(shows, elsewhere, off, chat)
    for number, watch in enumerate((CAMERA_HEALTH, CAMERA_OFFLINE)):
        for kind in (OPENED, CLOSED):
            event = alert(number, kind)
            event.watch = watch
            deliveries = book.take(event, number)[0]
            assert names(deliveries) == ["home"]
            told = NotificationEvent(alert=event)
            assert not asked_for(shows, told)
            assert asked_for(Notification(id="all", mqtt={"host": "broker"}), told)
    assert names(book.take(alert(9, OPENED), 9)[0]) == ["chat"]
