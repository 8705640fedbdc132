"""Decides which events of each incident must still be delivered, to whom, and in which order. Independent of
Kafka and channels.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, TypeVar

from google.protobuf.message import Message

from lookout.past.erasures import Fence
from lookout.rules import NO_SECOND_MODEL
from lookout.rules.notifications import follows_outages, is_test, wants_event, wants_incident
from lookout.v1.actions_pb2 import IncidentAction
from lookout.v1.alerts_pb2 import Alert, SecondOpinion
from lookout.v1.notifications_pb2 import Escalation, Notification, NotifyState, WaitingEvent
from lookout.v1.watches_pb2 import Severity
from lookout.wire import stable_id
from lookout.wire.limits import WAITING_EVENTS

#: why events become dead letters
REASONS: Final = {
    "bad-event": "an alert, or an action on an incident, that cannot be read",
    "undelivered": "a message was not delivered within `LOOKOUT_RETRY_LIMIT_S`",
    "rejected": "a notification's target will never accept a message again (status 410)",
    "too-many": "too many events of one incident were waiting for one notification",
}

#: why a second model was not asked
BUDGET: Final = "the limit of second opinions in 24 hours is reached; raise LOOKOUT_OPINION_DAILY to ask more"
#: milliseconds for which a closed incident is remembered, so that later actions are sent to those who were
#: told of the incident
_REMEMBERED_MS: Final = 86_400_000
#: kinds of alerts that are the last of their incident
_LAST: Final = frozenset({Alert.KIND_CLOSED, Alert.KIND_REPORT, Alert.KIND_TEST})
_TAKES_UP: Final = frozenset(
    {
        IncidentAction.KIND_CLAIM,
        IncidentAction.KIND_ACKNOWLEDGE,
        IncidentAction.KIND_RESOLVE,
        IncidentAction.KIND_FALSE_POSITIVE,
    }
)

Happened = Alert | IncidentAction
M = TypeVar("M", bound=Message)


class Ending(StrEnum):
    """How a delivery ended."""

    DELIVERED = "delivered"
    UNDELIVERED = "undelivered"  # all attempts failed until the time limit
    REJECTED = "rejected"  # the target will never accept a message again
    REMOVED = "removed"  # its notification was removed
    TOO_MANY = "too-many"  # too many events of the incident were waiting


@dataclass(frozen=True, slots=True)
class Delivery:
    """An event to be delivered by one notification.

    Attributes:
        id: An id that stays the same at every attempt and after every restart.
        notification: The notification's id.
        incident: The incident's id. A notification's deliveries for one incident are sent in order.
        happened: The event.
        newest: The incident's newest alert when the event happened; None: unknown.
        severity: Severity of the incident's watch.
        since_ms: Record time of the event, Unix milliseconds.
    """

    id: str
    notification: str
    incident: str
    happened: Happened
    newest: Alert | None
    severity: Severity
    since_ms: int


@dataclass(frozen=True, slots=True)
class Dropped:
    """A delivery that was given up, and why."""

    delivery: Delivery
    ending: Ending
    detail: str


class Engine:
    """Keeps the notification states of incidents and decides what to deliver. For one thread.

    Args:
        notifications: Returns the current notifications, by id.
        severity: Returns a watch's severity.
        fence: The erasures in force. Nothing about erased times is delivered.
        verifies: Returns whether a watch asks for a second opinion before anyone is told.
        fault: Returns why a watch cannot ask its second model; None if it can.
        daily: Maximum number of second opinions within 24 hours.
    """

    def __init__(
        self,
        notifications: Callable[[], Mapping[str, Notification]],
        severity: Callable[[str], Severity],
        fence: Fence | None = None,
        *,
        verifies: Callable[[str], bool] = lambda watch: False,
        fault: Callable[[str], str | None] = lambda watch: NO_SECOND_MODEL,
        daily: int = 0,
    ) -> None:
        self._verifies, self._fault, self._daily = verifies, fault, daily
        self._unasked: list[Alert] = []
        self._opinions: list[tuple[int, Alert]] = []
        self._notifications, self._severity = notifications, severity
        self._fence = fence or Fence()
        self._states: dict[str, NotifyState] = {}
        self._changed: set[str] = set()

    def restore(self, incident: str, state: NotifyState | None) -> None:
        """Restore an incident's state from its record. None: the state was deleted."""
        if state is None:
            self._states.pop(incident, None)
        else:
            self._states[incident] = state

    def clear(self) -> None:
        """Forget everything, before committed records are restored."""
        self._states.clear()
        self._changed.clear()
        self._unasked.clear()
        self._opinions.clear()

    def changes(self) -> dict[str, NotifyState | None]:
        """Return the states that changed since the last call, by incident, which the caller must commit;
        None: delete the record.
        """
        changed = {incident: self._states.get(incident) for incident in self._changed}
        self._changed.clear()
        return changed

    def waiting(self) -> Iterator[Delivery]:
        """Yield every delivery that has not ended, in order within an incident."""
        for incident, state in self._states.items():
            if not _is_pending(state):
                yield from _deliveries(incident, state)

    def pending(self) -> list[str]:
        """Return the incidents about which a second model was asked but has not answered yet."""
        return [incident for incident, state in self._states.items() if _is_pending(state)]

    def questions(self) -> list[Alert]:
        """Return the incidents about which the caller must ask a second model once it has committed their
        states.

        Each incident is returned only once, even across restarts, so a crash never causes a second question.
        """
        unasked, self._unasked = self._unasked, []
        return unasked

    def opinions(self) -> list[tuple[int, Alert]]:
        """Return the events with second models' answers, each with its partition, which the caller must
        commit with the states.
        """
        opinions, self._opinions = self._opinions, []
        return opinions

    def opine(self, incident: str, opinion: SecondOpinion) -> list[Delivery]:
        """Record the second model's answer; return the deliveries that waited for it. If the answer is no,
        they are dropped instead.

        Args:
            incident: The incident's id. An incident that was erased meanwhile is ignored.
            opinion: The answer, or the reason why there is none.
        """
        state = self._states.get(incident)
        if state is None or not _is_pending(state):
            return []
        state.opinion.CopyFrom(opinion)
        self._changed.add(incident)
        self._opinions.append((state.partition, _opinion_event(state.newest, opinion)))
        if opinion.answer == SecondOpinion.ANSWER_NO:
            del state.told[:], state.waiting[:], state.escalations[:]
        return list(_deliveries(incident, state))

    def take(
        self, happened: Happened, now_ms: int, partition: int = 0
    ) -> tuple[list[Delivery], list[Dropped]]:
        """Process an event; return its deliveries and those that are given up.

        Args:
            happened: An alert, or a person's action on an incident.
            now_ms: Record time of the event, Unix milliseconds.
            partition: Partition of its record.

        Returns:
            The event's deliveries, and deliveries that are given up because too many events were waiting.
        """
        if self._is_erased(happened) or (happened.kind == Alert.KIND_OPINION and isinstance(happened, Alert)):
            return [], []
        state = self._states.get(happened.incident)
        if state is None:
            state = self._states[happened.incident] = self._opened(happened, now_ms)
        self._changed.add(happened.incident)
        state.seen_ms = now_ms
        if isinstance(happened, Alert):
            happened = _lean(happened)
            state.newest.CopyFrom(happened)
            is_new = not state.asked_ms and not state.HasField("opinion")
            if happened.kind == Alert.KIND_OPENED and is_new and self._verifies(happened.watch):
                self._ask(state, now_ms, partition)
        elif happened.kind in _TAKES_UP:
            state.taken_up = True
            del state.escalations[:]
        elif happened.kind == IncidentAction.KIND_RELEASE and state.taken_up:
            self._release(state, now_ms)
        notifications = self._notifications()
        names = [
            name
            for name in state.told
            if name in notifications
            and (wants_event(notifications[name], happened) or follows_outages(notifications[name], happened))
        ]
        deliveries, dropped = self._add(happened, state, names, now_ms)
        return [] if _is_pending(state) else deliveries, dropped

    def _release(self, state: NotifyState, now_ms: int) -> None:
        """Restart the escalations of an incident with their full delays, because somebody released the
        incident.
        """
        state.taken_up = False
        if state.HasField("newest") and state.opinion.answer != SecondOpinion.ANSWER_NO:
            again = self._opened(state.newest, now_ms).escalations
            state.escalations.extend(entry for entry in again if entry.notification not in state.told)

    def _ask(self, state: NotifyState, now_ms: int, partition: int) -> None:
        """Schedule a question to the second model, or record why none is asked."""
        fault = self._fault(state.newest.watch)
        if fault is None:
            day_ms = max(0, now_ms - _REMEMBERED_MS)
            asked = sum(entry.asked_ms > day_ms for entry in self._states.values())
            fault = None if asked < self._daily else BUDGET
        if fault is None:
            state.asked_ms, state.partition = now_ms, partition
            self._unasked.append(_copy(state.newest))
            return
        opinion = SecondOpinion(answer=SecondOpinion.ANSWER_NONE, reason=fault)
        state.opinion.CopyFrom(opinion)
        self._opinions.append((partition, _opinion_event(state.newest, opinion)))

    def due(self, now_ms: int) -> list[Delivery]:
        """Return the escalations that are due now, because nobody acknowledged an incident in time."""
        deliveries: list[Delivery] = []
        for incident, state in self._states.items():
            due = [entry for entry in state.escalations if entry.due_ms <= now_ms]
            if not due or _is_pending(state):
                continue
            self._changed.add(incident)
            later = [entry for entry in state.escalations if entry.due_ms > now_ms]
            del state.escalations[:]
            state.escalations.extend(later)
            names = [entry.notification for entry in due if entry.notification in self._notifications()]
            state.told.extend(names)
            if names and state.HasField("newest") and not self._is_erased(state.newest):
                deliveries += self._add(state.newest, state, names, now_ms)[0]
        return deliveries

    def done(self, delivery: Delivery) -> None:
        """Record that a delivery arrived or was given up."""
        state = self._states.get(delivery.incident)
        if state is None:
            return
        for event in state.waiting:
            if _event_id(event) == delivery.happened.id and delivery.notification in event.notifications:
                event.notifications.remove(delivery.notification)
                self._changed.add(delivery.incident)
        open_events = [event for event in state.waiting if event.notifications]
        if len(open_events) < len(state.waiting):
            del state.waiting[:]
            state.waiting.extend(open_events)

    def sweep(self, now_ms: int) -> None:
        """Forget old incidents that have nothing left to deliver, and incidents of erased times."""
        for incident, state in list(self._states.items()):
            is_over = not state.HasField("newest") or state.newest.kind in _LAST
            is_idle = not state.waiting and not state.escalations
            is_old = state.seen_ms < now_ms - _REMEMBERED_MS
            if (is_over and is_idle and is_old) or self._is_erased(state.newest):
                del self._states[incident]
                self._changed.add(incident)

    def may_be_told(self, delivery: Delivery) -> bool:
        """Return whether a delivery may still be sent, that is, whether its time was not erased in the
        meantime.
        """
        return not self._is_erased(delivery.happened)

    def _opened(self, happened: Happened, now_ms: int) -> NotifyState:
        """Return a new incident's state, which fixes the notifications that will be told of the incident."""
        state = NotifyState(severity=self._severity(happened.watch))
        for name, notification in self._notifications().items():
            if follows_outages(notification, happened):
                state.told.append(name)
                continue
            if not wants_incident(notification, happened, state.severity, now_ms):
                continue
            if not notification.unclaimed_s or is_test(happened):
                state.told.append(name)
            elif isinstance(happened, Alert) and happened.kind != Alert.KIND_REPORT:
                due_ms = now_ms + round(notification.unclaimed_s * 1000)
                state.escalations.append(Escalation(notification=name, due_ms=due_ms))
        return state

    def _add(
        self, happened: Happened, state: NotifyState, names: list[str], now_ms: int
    ) -> tuple[list[Delivery], list[Dropped]]:
        if not names:
            return [], []
        for event in state.waiting:
            if _event_id(event) == happened.id:  # already waiting: it escalates, or this is a copy
                added = [name for name in names if name not in event.notifications]
                event.notifications.extend(added)
                return [_delivery(happened.incident, state, event, name) for name in added], []
        dropped: list[Dropped] = []
        if len(state.waiting) >= WAITING_EVENTS:
            oldest = state.waiting[0]
            detail = f"more than {WAITING_EVENTS} events of the incident are waiting"
            dropped = [
                Dropped(_delivery(happened.incident, state, oldest, name), Ending.TOO_MANY, detail)
                for name in oldest.notifications
            ]
            del state.waiting[0]
        event = WaitingEvent(since_ms=now_ms, notifications=names)
        if isinstance(happened, Alert):
            event.alert.CopyFrom(happened)
        else:
            event.action.CopyFrom(happened)
        state.waiting.append(event)
        return [_delivery(happened.incident, state, event, name) for name in names], dropped

    def _is_erased(self, happened: Happened) -> bool:
        begin_us, end_us = happened.start.ToMicroseconds(), happened.end.ToMicroseconds()
        return self._fence.hides(happened.camera, begin_us, end_us) is not None


def now_ms() -> int:
    """Return the time in Unix milliseconds."""
    return round(time.time() * 1000)


def _lean(alert: Alert) -> Alert:
    """Copy an alert with only its best frame, to keep states small."""
    lean = _copy(alert)
    del lean.evidence[1:]
    return lean


def _is_pending(state: NotifyState) -> bool:
    """Return whether a second model was asked and has not answered yet."""
    return state.asked_ms > 0 and not state.HasField("opinion")


def _opinion_event(newest: Alert, opinion: SecondOpinion) -> Alert:
    """Return the event with the second model's answer. Its id is derived from the incident's id, so that
    readers can drop copies.
    """
    event = _copy(newest)
    del event.evidence[:]
    event.id, event.kind, event.reason = stable_id("opinion", newest.incident), Alert.KIND_OPINION, ""
    event.opinion.CopyFrom(opinion)
    return event


def _deliveries(incident: str, state: NotifyState) -> Iterator[Delivery]:
    for event in state.waiting:
        for name in event.notifications:
            yield _delivery(incident, state, event, name)


def _event_id(event: WaitingEvent) -> str:
    return event.alert.id if event.HasField("alert") else event.action.id


def _delivery(incident: str, state: NotifyState, event: WaitingEvent, name: str) -> Delivery:
    happened = _copy(event.alert) if event.HasField("alert") else _copy(event.action)
    newest = _copy(state.newest) if state.HasField("newest") else None
    if state.HasField("opinion"):
        for alert in (happened, newest):
            if isinstance(alert, Alert):
                alert.opinion.CopyFrom(state.opinion)
    return Delivery(
        stable_id("notification", name, happened.id),
        name,
        incident,
        happened,
        newest,
        state.severity,
        event.since_ms,
    )


def _copy(message: M) -> M:
    """Copy a message for another thread, so that later changes of the state do not affect the copy."""
    copy = type(message)()
    copy.CopyFrom(message)
    return copy
