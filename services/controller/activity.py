"""Recent verdicts and alerts by watch, for the status of Watch resources."""

from __future__ import annotations

import json
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC
from typing import Any, Final

from confluent_kafka import Message

from lookout.runtime.worker import ServiceSettings
from lookout.runtime.worker.topic_reader import BEGINNING, END
from lookout.services.controller.following import Follower
from lookout.v1.alerts_pb2 import Alert
from lookout.v1.verdicts_pb2 import Verdict
from lookout.wire import ALERTS, VERDICTS, WireError, from_json

#: kinds of alerts that neither open nor close an incident
_NO_CHANGE: Final = frozenset({Alert.KIND_OPINION, Alert.KIND_REPORT, Alert.KIND_TEST})

_ANSWERED = "answered"  # an outcome on the wire
#: outcomes that count as covered: if a gate does not hold, at least the gate was checked
_COVERED = (_ANSWERED, "gated")
_RECENT = 500  # windows over which coverage is counted


@dataclass(slots=True)
class WatchActivity:
    """The last verdict of a watch, its open incidents, and which of the last windows were answered.

    A watch that was deleted and made again has its predecessor's id. Its versions begin above the
    predecessor's (`convert.versioned`), so `first` tells whose verdicts these are.
    """

    first: int = 0
    last: Mapping[str, Any] | None = None  # a verdict's JSON
    incidents: dict[str, Alert] = field(default_factory=dict)  # the newest alert of each, oldest first
    answered: list[tuple[int, bool]] = field(default_factory=list)  # version, and whether it was answered
    answered_at: float = field(default_factory=time.monotonic)  # at first: when following began

    def begin(self, first: int) -> None:
        """Drop the activity of versions below `first`, including what arrives later."""
        if first <= self.first:
            return
        self.first = first
        if self.last is not None and self.last["watch_version"] < first:
            self.last = None
        self.incidents = {
            incident: alert for incident, alert in self.incidents.items() if alert.watch_version >= first
        }
        self.answered = [entry for entry in self.answered if entry[0] >= first]

    def take_verdict(self, verdict: Mapping[str, Any]) -> None:
        """Count a verdict, given as JSON; the last one is the newest by the end of its window.

        Verdicts arrive by the thousand each second, so only the one that is shown is parsed in full, which
        costs ten times as much.
        """
        version = verdict["watch_version"]
        if version < self.first:
            return
        if self.last is None or _end(verdict) >= _end(self.last):
            self.last = verdict
        self.answered.append((version, verdict["outcome"] in _COVERED))
        if verdict["outcome"] == _ANSWERED:
            self.answered_at = time.monotonic()
        del self.answered[:-_RECENT]

    def take_alert(self, alert: Alert) -> None:
        """Follow an incident from opening to closing."""
        if alert.watch_version < self.first or alert.kind in _NO_CHANGE:
            return
        if alert.kind == Alert.KIND_CLOSED:
            self.incidents.pop(alert.incident, None)
        else:
            self.incidents[alert.incident] = alert

    def status(self) -> dict[str, Any]:
        """Return the fields of a Watch's status that come from its activity."""
        status: dict[str, Any] = {"openIncidents": len(self.incidents)}
        newest = next(reversed(self.incidents.values()), None)
        status["incident"] = f"{newest.incident} ({newest.camera})" if newest else ""
        if self.answered:
            answered = sum(yes for _, yes in self.answered)
            status["coverage"] = f"{100 * answered / len(self.answered):.0f} %"
        if self.last is not None:
            with suppress(WireError):
                status["lastVerdict"] = _verdict(from_json(json.dumps(self.last).encode(), Verdict))
        return status


def _end(verdict: Mapping[str, Any]) -> str:
    """Return the end of a verdict's window (RFC 3339 in UTC, any number of decimals) in a form that sorts by
    time.
    """
    return str(verdict["end"]).removesuffix("Z")


def _verdict(verdict: Verdict) -> dict[str, Any]:
    outcome = Verdict.Outcome.Name(verdict.outcome).removeprefix("OUTCOME_").lower()
    answered = verdict.outcome == Verdict.OUTCOME_ANSWERED
    threshold = verdict.rule.threshold or 0.5
    word = ("yes" if verdict.p_yes >= threshold else "no") if answered else outcome
    summary = f"{word} {verdict.p_yes:.2f} {verdict.camera}" if answered else f"{word} {verdict.camera}"
    ended = verdict.end.ToDatetime(UTC)
    return {
        "summary": summary,
        "camera": verdict.camera,
        "outcome": outcome,
        "pYes": round(verdict.p_yes, 4),
        "time": ended.isoformat(timespec="seconds").replace("+00:00", "Z"),
    }


class ActivityFollower(Follower):
    """Follows verdicts.v1 from now on and alerts.v1 from its beginning, on a thread of its own.

    Args:
        settings: How Kafka is reached.
        changed: Called on that thread with a watch's id whenever there is news of it.
    """

    def __init__(self, settings: ServiceSettings, changed: Callable[[str], object]) -> None:
        begins = {ALERTS.name: BEGINNING, VERDICTS.name: END}
        super().__init__(settings, "activity", begins, self._take_message)
        self._changed = changed
        self._lock = threading.Lock()
        self._watches: defaultdict[str, WatchActivity] = defaultdict(WatchActivity)

    def status(self, watch: str, first: int) -> dict[str, Any]:
        """Return a watch's activity for its status.

        Args:
            watch: The watch's id.
            first: Its first version. Activity of lower versions belongs to another watch, and is dropped.
        """
        with self._lock:
            self._watches[watch].begin(first)
            return self._watches[watch].status()

    def unanswered_s(self, watch: str) -> float:
        """Seconds since a window of a watch was last answered, or since this process leads if that is
        shorter."""
        with self._lock:
            return time.monotonic() - self._watches[watch].answered_at

    def _take_message(self, message: Message) -> None:
        value = message.value()
        if not value:
            return
        try:
            if message.topic() == VERDICTS.name:
                verdict = json.loads(value)
                watch = verdict["watch"]
                with self._lock:
                    self._watches[watch].take_verdict(verdict)
            else:
                alert = from_json(value, Alert)
                watch = alert.watch
                with self._lock:
                    self._watches[watch].take_alert(alert)
        except (KeyError, RecursionError, TypeError, ValueError):  # a WireError is a ValueError
            return
        self._changed(watch)
