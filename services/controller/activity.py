"""Recent verdicts and alerts per watch, for the status of Watch resources."""

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

_ANSWERED = "answered"  # the outcome's name in verdicts
#: outcomes that count as covered; `gated` does, because the gate was checked
_COVERED = (_ANSWERED, "gated")
_RECENT = 500  # windows over which coverage is counted


@dataclass(slots=True)
class WatchActivity:
    """A watch's last verdict, its open incidents, and which of its last windows were answered.

    A watch that was deleted and created again has its predecessor's id. Its versions are above the
    predecessor's (`convert.versioned`), so verdicts below version `first` are the predecessor's.
    """

    first: int = 0
    last: Mapping[str, Any] | None = None  # a verdict's JSON
    incidents: dict[str, Alert] = field(default_factory=dict)  # by incident: newest alert; oldest first
    answered: list[tuple[int, bool]] = field(default_factory=list)  # version; whether a window was covered
    answered_at: float = field(default_factory=time.monotonic)  # initially the start of following

    def begin(self, first: int) -> None:
        """Drop the activity of versions below `first`, and ignore such activity from now on."""
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
        """Count a verdict, given as JSON; the one whose window ends last becomes the last verdict.

        Thousands of verdicts may arrive each second. Parsing one in full costs ten times as much as this, so
        only the verdict that is shown is parsed in full.
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
        """Add, update or remove an open incident."""
        if alert.watch_version < self.first or alert.kind in _NO_CHANGE:
            return
        if alert.kind == Alert.KIND_CLOSED:
            self.incidents.pop(alert.incident, None)
        else:
            self.incidents[alert.incident] = alert

    def status(self) -> dict[str, Any]:
        """Return the fields of a Watch's status that depend on its activity."""
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
    """Return the end of a verdict's window (RFC 3339 in UTC, with any number of decimals) in a form that
    sorts by time.
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
    """Follows verdicts.v1 from now on and alerts.v1 from its beginning, on a separate thread.

    Args:
        settings: How to reach Kafka.
        changed: Called on that thread with a watch's id whenever its activity changes.
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
            first: The watch's first version. Activity of lower versions belongs to a deleted watch, and is
                dropped.
        """
        with self._lock:
            self._watches[watch].begin(first)
            return self._watches[watch].status()

    def unanswered_s(self, watch: str) -> float:
        """Return the seconds since a window of a watch was last answered, or since this process began to lead
        if that is later.
        """
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
