"""Delivers messages: one thread per notification, in order within an incident, with retries."""

from __future__ import annotations

import heapq
import random
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from itertools import count
from queue import Empty, SimpleQueue
from typing import Final

from lookout.runtime.observe import LimitedLog, logs
from lookout.runtime.worker import Supervisor
from lookout.services.notify.engine import Delivery, Ending, now_ms
from lookout.services.notify.messages import (
    Channel,
    ConnectedChannel,
    DeliveryError,
    GroupingChannel,
    Message,
)
from lookout.v1.notifications_pb2 import DeliveryState, Notification
from lookout.wire.limits import REASON

#: maximum number of messages to people in a burst, and seconds until one more may be sent. Beyond that rate,
#: one message summarises many events
_BURST: Final = 5
_REFILL_S: Final = 30.0
#: maximum number of incidents in one summary
_GROUP: Final = 1000
_TURN_S: Final = 0.2
_FIRST_PAUSE_S: Final = 0.25
#: seconds between checks of whether a lasting channel is still connected
_KEEP_S: Final = 10.0


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a delivery ended; `detail` says why the delivery was given up, if it was."""

    delivery: Delivery
    generation: int
    ending: Ending
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Parts:
    """The functions and limits that the dispatcher needs.

    Attributes:
        notifications: The current notifications, by id.
        channel: Opens a notification's channel.
        identity: Returns a fingerprint of what that channel depends on; if it changes, the channel is
            reopened.
        compose: Composes the message for a delivery.
        may_be_told: Returns whether a delivery may still be sent, that is, whether its time was not erased.
        give_up_s: Seconds of failures after which a delivery is given up.
        retry_max_s: Longest pause between two attempts, in seconds.
    """

    notifications: Callable[[], Mapping[str, Notification]]
    channel: Callable[[Notification], Channel]
    identity: Callable[[Notification], bytes]
    compose: Callable[[Delivery], Message]
    may_be_told: Callable[[Delivery], bool]
    give_up_s: float
    retry_max_s: float


@dataclass(slots=True)
class _Line:
    """Deliveries of one incident, oldest first.

    Attributes:
        deliveries: The deliveries.
        failures: Failed attempts since the last success.
        failing_since: Monotonic time of the first of these; None: none has failed.
    """

    deliveries: deque[Delivery] = field(default_factory=deque)
    failures: int = 0
    failing_since: float | None = None


class Dispatcher:
    """Hands deliveries to the threads of their notifications.

    Args:
        parts: What is needed to deliver.
        supervisor: Starts the threads.
    """

    def __init__(self, parts: Parts, supervisor: Supervisor) -> None:
        self._parts, self._supervisor = parts, supervisor
        self._targets: dict[str, Target] = {}
        self._outcomes: SimpleQueue[Outcome] = SimpleQueue()
        self._retired: SimpleQueue[str] = SimpleQueue()
        self._generation = 0

    def submit(self, delivery: Delivery) -> None:
        """Queue a delivery after the earlier ones of its incident."""
        self._target(delivery.notification).submit(delivery, self._generation)

    def keep(self, notifications: Iterable[str]) -> None:
        """Keep these notifications connected, even without deliveries; end the threads of removed
        notifications.
        """
        for name in notifications:
            self._target(name)
        current = self._parts.notifications()
        for name, target in list(self._targets.items()):
            if name not in current and target.is_idle():
                del self._targets[name]
                target.stop()

    def retire(self, key: str, notification: Notification) -> None:
        """Make one attempt to remove what a former notification left at its target.

        Args:
            key: The key that `retired` returns if the attempt succeeds.
            notification: The former notification.
        """
        self._target(notification.id).retire(key, notification)

    def retired(self) -> list[str]:
        """Return the keys of removals that succeeded since the last call."""
        keys = []
        while True:
            try:
                keys.append(self._retired.get_nowait())
            except Empty:
                return keys

    def outcomes(self) -> list[Outcome]:
        """Return the deliveries that ended since the last call."""
        ended: list[Outcome] = []
        while True:
            try:
                outcome = self._outcomes.get_nowait()
            except Empty:
                return ended
            if outcome.generation == self._generation:
                ended.append(outcome)

    def waiting(self) -> int:
        """Return the number of deliveries that have not ended."""
        return sum(target.waiting() for target in list(self._targets.values()))

    def states(self) -> list[DeliveryState]:
        """Return each notification's delivery state."""
        return [target.state() for target in list(self._targets.values())]

    def _target(self, name: str) -> Target:
        if name not in self._targets:
            self._targets[name] = Target(name, self._parts, self._outcomes.put, self._retired.put)
            self._supervisor.start(f"notify-{name[:40]}", self._targets[name].run)
        return self._targets[name]

    def clear(self) -> None:
        """Drop all submitted deliveries. Running attempts end without an outcome."""
        self._generation += 1
        for target in self._targets.values():
            target.clear()

    def stop(self) -> None:
        """Stop after the running attempts."""
        for target in self._targets.values():
            target.stop()


class Target:
    """Delivers one notification's messages, on its own thread.

    Args:
        name: The notification's id.
        parts: What is needed to deliver.
        ended: Called with each outcome.
        retired: Called with the key after a successful `retire`.
    """

    def __init__(
        self,
        name: str,
        parts: Parts,
        ended: Callable[[Outcome], object],
        retired: Callable[[str], object],
    ) -> None:
        self._name, self._parts, self._ended, self._retired = name, parts, ended, retired
        self._log = LimitedLog(logs.get("notify"))
        self._changed = threading.Condition()
        self._lines: dict[str, _Line] = {}
        self._due: list[tuple[float, int, str]] = []
        self._numbers = count()
        self._generation = 0
        self._stopped = False
        self._keep_at = 0.0
        self._state = DeliveryState(notification=name)
        self._channel: tuple[bytes, Channel] | None = None
        self._left: dict[str, Notification] = {}
        self._tokens, self._filled_at = float(_BURST), time.monotonic()

    def submit(self, delivery: Delivery, generation: int) -> None:
        """Add a delivery to the line of its incident."""
        with self._changed:
            self._generation = generation
            line = self._lines.get(delivery.incident)
            if line is None:
                line = self._lines[delivery.incident] = _Line()
                self._schedule(delivery.incident, 0.0)
            line.deliveries.append(delivery)
            self._changed.notify()

    def waiting(self) -> int:
        """Return the number of deliveries that have not ended."""
        with self._changed:
            return sum(len(line.deliveries) for line in self._lines.values())

    def is_idle(self) -> bool:
        """Return whether there is nothing to deliver or to clean up."""
        with self._changed:
            return not self._lines and not self._left

    def state(self) -> DeliveryState:
        """Return the state of this notification's deliveries."""
        with self._changed:
            state = DeliveryState()
            state.CopyFrom(self._state)
        state.waiting = self.waiting()
        return state

    def retire(self, key: str, notification: Notification) -> None:
        """Queue the removal of what a former notification left at its target."""
        with self._changed:
            self._left[key] = notification
            self._changed.notify()

    def clear(self) -> None:
        """Drop all deliveries and removals."""
        with self._changed:
            self._lines.clear()
            self._left.clear()
            self._due.clear()

    def stop(self) -> None:
        """End after the current attempt."""
        with self._changed:
            self._stopped = True
            self._changed.notify()

    def run(self) -> None:
        """Deliver until `stop`."""
        while True:
            with self._changed:
                batch, generation = self._take(), self._generation
                if self._stopped:
                    break
                leftover = self._left.popitem() if self._left else None
            if leftover is not None:
                self._retire(*leftover)
            elif batch:
                self._deliver(batch, generation)
            elif time.monotonic() >= self._keep_at or self._has_work():
                self._keep_at = time.monotonic() + _KEEP_S
                self._keep()
        self._close()

    def _has_work(self) -> bool:
        channel = None if self._channel is None else self._channel[1]
        return isinstance(channel, ConnectedChannel) and channel.has_work()

    def _keep(self) -> None:
        """Reconnect the channel if it is a lasting one; close the channel if its notification was removed."""
        notification = self._parts.notifications().get(self._name)
        if notification is None:
            self._close()
            return
        if self._channel is not None and not isinstance(self._channel[1], ConnectedChannel):
            return
        try:
            channel = self._open(notification)
            if isinstance(channel, ConnectedChannel):
                channel.keep()
        except Exception as error:  # only logged here: deliveries report and retry errors
            self._log.warning(f"keep {self._name}", "a channel is not connected", error=str(error)[:300])

    def _retire(self, key: str, notification: Notification) -> None:
        """Remove what a former notification left at its target."""
        self._close()  # two connections under one client name would disconnect each other
        remaining = [entry for name, entry in self._parts.notifications().items() if name != self._name]
        try:
            channel = self._parts.channel(notification)
            try:
                if isinstance(channel, ConnectedChannel):
                    channel.retire(remaining)
            finally:
                channel.close()
        except Exception as error:  # `Brokers.due` schedules another attempt
            self._log.warning(
                f"retire {self._name}",
                "cannot remove what a removed notification left at its target; retrying later",
                notification=self._name,
                error=str(error)[:300],
            )
        else:
            self._retired(key)

    def _schedule(self, incident: str, after_s: float) -> None:
        heapq.heappush(self._due, (time.monotonic() + after_s, next(self._numbers), incident))

    def _take(self) -> list[Delivery]:
        """Return the deliveries to send now, which stay in their lines until they end. If none is due, wait a
        moment first.
        """
        now = time.monotonic()
        while self._due and self._due[0][2] not in self._lines:
            heapq.heappop(self._due)
        if not self._due or self._due[0][0] > now:
            self._changed.wait(min(_TURN_S, self._due[0][0] - now) if self._due else _TURN_S)
            return []
        if not self._may_send(now):
            self._changed.wait(_TURN_S)
            return []
        # The last token of a burst sends everything that is due, as one message.
        size = _GROUP if self._is_grouped() and self._tokens < 1.0 else 1
        incidents: list[str] = []
        while self._due and self._due[0][0] <= now and len(incidents) < size:
            incident = heapq.heappop(self._due)[2]
            if incident in self._lines:
                incidents.append(incident)
        if size == 1:
            return [self._lines[incident].deliveries[0] for incident in incidents]
        return [delivery for incident in incidents for delivery in self._lines[incident].deliveries]

    def _may_send(self, now: float) -> bool:
        """Return whether a message may be sent now: to programs always, to people within the rate limit."""
        if not self._is_grouped():
            return True
        self._tokens = min(float(_BURST), self._tokens + (now - self._filled_at) / _REFILL_S)
        self._filled_at = now
        if self._tokens < 1.0:
            return False
        self._tokens -= 1.0
        return True

    def _is_grouped(self) -> bool:
        return self._channel is not None and isinstance(self._channel[1], GroupingChannel)

    def _deliver(self, batch: list[Delivery], generation: int) -> None:
        """Make one attempt to deliver a batch."""
        try:
            notification = self._parts.notifications().get(self._name)
            if notification is None:
                self._finish(batch, batch, generation, Ending.REMOVED)
                return
            messages = [self._parts.compose(item) for item in batch if self._parts.may_be_told(item)]
            channel = self._open(notification)
            if len(messages) > 1 and isinstance(channel, GroupingChannel):
                channel.send_group(messages)
            else:
                for message in messages:
                    channel.send(message)
        except DeliveryError as error:
            self._failed(batch, generation, str(error), final=error.final)
        except Exception as error:  # a library's error is retried here and does not stop other targets
            self._failed(batch, generation, f"{type(error).__name__}: {error}"[:300], final=False)
        else:
            with self._changed:
                self._state.delivered.FromMilliseconds(now_ms())
                self._state.error = ""
            self._finish(batch, batch, generation, Ending.DELIVERED)

    def _failed(self, batch: list[Delivery], generation: int, why: str, *, final: bool) -> None:
        with self._changed:
            self._state.failed.FromMilliseconds(now_ms())
            self._state.error = why[:REASON]
            hopeless = {delivery.incident for delivery in batch if self._fails_for_long(delivery.incident)}
        self._log.warning(
            self._name, "a notification was not delivered", notification=self._name, error=why, final=final
        )
        # A delivery is not given up only because its event is old. It may have waited while this service was
        # down, or a clock may have been set.
        oldest_ms = now_ms() - self._parts.give_up_s * 1000
        given_up = [
            delivery
            for delivery in batch
            if final or (delivery.incident in hopeless and delivery.since_ms < oldest_ms)
        ]
        ending = Ending.REJECTED if final else Ending.UNDELIVERED
        self._finish(batch, given_up, generation, ending, why, failed=True)

    def _fails_for_long(self, incident: str) -> bool:
        """Record a failed attempt; return whether attempts have now been failing for `give_up_s`."""
        line = self._lines.get(incident)
        if line is None:
            return False
        if line.failing_since is None:
            line.failing_since = time.monotonic()
        return time.monotonic() - line.failing_since >= self._parts.give_up_s

    def _finish(
        self,
        batch: list[Delivery],
        ended: list[Delivery],
        generation: int,
        ending: Ending,
        detail: str = "",
        *,
        failed: bool = False,
    ) -> None:
        """After an attempt, remove the deliveries that ended from their lines, and schedule each line
        again.
        """
        over = {delivery.id for delivery in ended}
        with self._changed:
            if generation != self._generation:
                return
            for incident in dict.fromkeys(delivery.incident for delivery in batch):
                line = self._lines.get(incident)
                if line is None:
                    continue
                line.deliveries = deque(item for item in line.deliveries if item.id not in over)
                line.failures = line.failures + 1 if failed else 0
                line.failing_since = line.failing_since if failed else None
                if line.deliveries:
                    self._schedule(incident, self._pause_s(line.failures))
                else:
                    del self._lines[incident]
        for delivery in ended:
            self._ended(Outcome(delivery, generation, ending, detail))

    def _pause_s(self, failures: int) -> float:
        """Return the seconds until the next attempt, with exponential back-off and jitter."""
        if not failures:
            return 0.0
        longest = min(self._parts.retry_max_s, _FIRST_PAUSE_S * 2.0 ** min(failures, 20))
        return longest * random.uniform(0.5, 1.0)

    def _open(self, notification: Notification) -> Channel:
        """Return the open channel, reopened if its notification or one of its secrets has changed."""
        identity = self._parts.identity(notification)
        if self._channel is None or self._channel[0] != identity:
            self._close()
            self._channel = identity, self._parts.channel(notification)
        return self._channel[1]

    def _close(self) -> None:
        if self._channel is not None:
            self._channel[1].close()
            self._channel = None
