"""Turns one camera's verdicts into incident events; the checkpoint holds the states of its watches."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import structlog

from lookout import rules
from lookout.past.erasures import Fence
from lookout.rules import IncidentEvent, RuleError, WatchState, WatchVerdict
from lookout.rules.messages import verdict_of
from lookout.runtime.worker.records import DeadLetter, Handler, Output, Record, Result, StoredCheckpoint
from lookout.runtime.worker.settings import digest
from lookout.services.alerts import convert
from lookout.services.alerts.offline import offline_answer
from lookout.services.alerts.watch_rules import WatchRules
from lookout.v1 import state_pb2, verdicts_pb2
from lookout.v1.watches_pb2 import Watch
from lookout.wire import (
    ALERT_TYPE,
    ALERTS,
    Stage,
    WireError,
    event_headers,
    incident_id,
    received,
    tenant_of,
    to_json,
)

#: raise this when the rules or the state change in a way that makes old checkpoints unusable
RULES_VERSION = 2
#: events counted in `lookout_events_total`
EVENTS = {
    "opened": "incidents opened",
    "updated": "incidents reported again because their peak rose or they are still open",
    "closed": "incidents closed",
    "stale": "verdicts ignored because a newer window of the camera was already judged",
}
#: why a record becomes a dead letter, counted in `lookout_dead_letters_total`
REASONS = {"bad-verdict": "a verdict that cannot be read"}
OFFLINE_QUESTION = "Is the camera offline?"

_log = structlog.get_logger(__name__)


@dataclass(slots=True)
class Watched:
    """One watch on one camera."""

    question: str
    state: WatchState
    tenant: str = ""  # the camera's tenant when the open incident opened
    newest_at_tick_ms: int = -1  # `newest_ms` at the last tick; still equal if no verdict came since
    untrained: bool = False  # from the newest verdict


@dataclass(frozen=True, slots=True)
class _IncidentEntry:
    """An event of a watch's incident, and the incident's tenant."""

    watch: str
    question: str
    event: IncidentEvent
    tenant: str


@dataclass(slots=True)
class CameraState:
    """The newest window of one camera, and its watches by id.

    Attributes:
        watches: Watches whose state differs from the initial state. A watch that returns to the initial state
            is dropped at once, because a restart would drop it too.
        packed: The same states as checkpoint messages. A verdict repacks only its own watch, so its cost does
            not depend on the number of watches.
    """

    camera: str
    epoch: int = 0
    window: int = -1
    watches: dict[str, Watched] = field(default_factory=dict)
    packed: dict[str, state_pb2.WatchState] = field(default_factory=dict)

    def put(self, watch: str, watched: Watched) -> None:
        """Store a watch's new state."""
        if watched.state.quiet:
            self.watches.pop(watch, None)
            self.packed.pop(watch, None)
        else:
            self.watches[watch] = watched
            self.packed[watch] = convert.pack(watch, watched.state, watched.tenant)

    def drop(self, watch: str) -> None:
        """Drop a watch."""
        self.watches.pop(watch, None)
        self.packed.pop(watch, None)


class AlertsHandler(Handler[CameraState]):
    """Applies the watches' rules to verdicts. When a watch is removed or no longer covers a camera, its
    incident is closed.
    """

    config_digest = digest("alerts", RULES_VERSION)
    events = EVENTS
    reasons = REASONS

    def __init__(
        self,
        is_watched: Callable[[str, str, str | None], bool],
        tick_every: float = 2.0,
        offline: Callable[[], Watch | None] = lambda: None,
        watch_rules: WatchRules | None = None,
        fence: Fence | None = None,
    ) -> None:
        """Make the handler.

        Args:
            is_watched: Given a watch's id, a camera and the camera's tenant (None if unknown), returns
                whether the watch covers the camera.
            tick_every: Seconds between checks for removed watches.
            offline: Returns the watch `camera-offline`; None if there is none.
            watch_rules: Finds a verdict's rule by its watch and the watch's version. None: each verdict
                carries its own rule.
            fence: The erasures in force, which hide records of erased times.
        """
        self._is_watched = is_watched
        self._offline = offline
        self._rules = watch_rules
        self._fence = fence or Fence()
        self.tick_every = tick_every

    def ends(self, camera: str, active_ms: float) -> bool:
        """Return whether to forget a camera, because it was erased completely and is silent now."""
        return self._fence.ends(camera, active_ms)

    def load(self, camera: str, stored: StoredCheckpoint | None) -> CameraState:
        """Rebuild a camera's state from its checkpoint; None: the camera is new."""
        if stored is None:
            return CameraState(camera)
        alerts = stored.checkpoint.alerts
        state = CameraState(camera, alerts.epoch, alerts.window)
        for packed in alerts.watches:
            incident = packed.incident
            state.put(packed.watch, Watched(incident.question, convert.unpack(packed), incident.tenant))
        return state

    def handle(self, state: CameraState, record: Record) -> Result:
        """Apply a verdict to its watch, and the first verdict of each window to `camera-offline` too."""
        try:
            verdict = received(verdicts_pb2.Verdict, record)
            answer = verdict_of(verdict, self._rules.rule_of(verdict) if self._rules is not None else None)
        except (WireError, RuleError) as error:
            return Result(dead_letter=DeadLetter("bad-verdict", str(error)))
        if (answer.epoch, answer.window) < (state.epoch, state.window):
            return Result(counts={"stale": 1})
        is_first = (answer.epoch, answer.window) > (state.epoch, state.window)
        state.epoch, state.window = answer.epoch, answer.window
        events = _stepped(state, answer, verdict.question, verdict.tenant, _identity(answer))
        if answer.watch in state.watches:
            state.watches[answer.watch].untrained = verdict.untrained
        if is_first:
            events += self._offline_events(state, verdict, answer)
        return self._result(state, events)

    def _offline_events(
        self, state: CameraState, verdict: verdicts_pb2.Verdict, answer: WatchVerdict
    ) -> list[_IncidentEntry]:
        watch = self._offline()
        if watch is None:
            return []
        try:
            watched = state.watches.get(watch.id)
            reply = offline_answer(verdict, answer, watch, watched.state.window if watched else -1)
        except RuleError as error:
            _log.error("the rule of a watch is invalid", watch=watch.id, error=str(error))
            return []
        if reply is None:
            return []
        # The id is derived from the verdict's window, because the numbering of answers restarts when the
        # watch's state is dropped.
        identity = _identity(replace(reply, epoch=answer.epoch, window=answer.window))
        return _stepped(state, reply, watch.question or OFFLINE_QUESTION, verdict.tenant, identity)

    def forget(self, state: CameraState) -> Result | None:
        """Close the incidents of a camera that has been silent for a long time or was erased completely.

        Nothing else would close them. The closing events reference no frames.
        """
        closed = [
            _IncidentEntry(watch, watched.question, replace(event, incident=bare), watched.tenant)
            for watch, watched in state.watches.items()
            for event in rules.remove(watched.state, rules.FORGOTTEN)[1]
            for bare in [replace(event.incident, evidence=())]
        ]
        return self._result(state, closed) if closed else None

    def tick(self, state: CameraState, now: float) -> Result | None:
        """Close the incidents of watches that no longer cover the camera and had no verdict since the
        previous tick.
        """
        closed: list[_IncidentEntry] = []
        for watch, watched in list(state.watches.items()):
            # Verdicts from before the watch was removed may still arrive, so the incident is closed only
            # after a tick without any.
            ended = watched.newest_at_tick_ms == watched.state.newest_ms
            watched.newest_at_tick_ms = watched.state.newest_ms
            # The camera's tenant is known only from an open incident.
            tenant = None if watched.state.incident is None else tenant_of(watched.tenant)
            if not ended or self._is_watched(watch, state.camera, tenant):
                continue
            watched.state, events = rules.remove(watched.state)
            state.put(watch, watched)
            closed += [_IncidentEntry(watch, watched.question, event, watched.tenant) for event in events]
            if not events:
                state.drop(watch)
        return self._result(state, closed) if closed else None

    def _result(self, state: CameraState, events: list[_IncidentEntry]) -> Result:
        outputs = [self._output(state, entry) for entry in events]
        checkpoint = state_pb2.Checkpoint()
        checkpoint.alerts.epoch, checkpoint.alerts.window = state.epoch, state.window
        checkpoint.alerts.watches.extend(
            state.packed.values()
        )  # extended in place: a constructor would copy the states twice
        counts = Counter(entry.event.kind.name.lower() for entry in events)
        return Result(outputs=outputs, counts=counts, checkpoint=checkpoint)

    def _output(self, state: CameraState, entry: _IncidentEntry) -> Output:
        question = entry.question
        if not question and self._rules is not None:  # checkpoints hold no questions
            question = self._rules.question_of(entry.watch)
        watched = state.watches.get(entry.watch)
        untrained = watched is not None and watched.untrained
        alert = convert.alert(
            state.camera, entry.watch, question, entry.event, entry.tenant, untrained=untrained
        )
        headers = event_headers(ALERT_TYPE, Stage.ALERTS, state.camera, alert.id, alert.end.ToJsonString())
        return Output(ALERTS.name, state.camera, to_json(alert), headers)


def _identity(answer: WatchVerdict) -> str:
    """Return the id for an incident that this answer opens."""
    return incident_id(answer.camera, answer.epoch, answer.watch, answer.version, answer.window)


def _stepped(
    state: CameraState, answer: WatchVerdict, question: str, tenant: str, identity: str
) -> list[_IncidentEntry]:
    """Apply an answer to its watch's rule; return the resulting incident events.

    An open incident keeps the tenant for which it opened, even if the camera has moved to another tenant
    since.
    """
    before = state.watches.get(answer.watch)
    after, events = rules.step(before.state if before else None, answer, identity)
    opened: dict[str, str] = {}
    if before is not None and before.state.incident is not None:
        opened[before.state.incident.id] = before.tenant
    owner = opened.get(after.incident.id, tenant) if after.incident is not None else ""
    state.put(answer.watch, Watched(question, after, owner))
    return [
        _IncidentEntry(answer.watch, question, event, opened.get(event.incident.id, tenant))
        for event in events
    ]
