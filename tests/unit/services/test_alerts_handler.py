"""The alerts handler: verdict records in, alert records and a checkpoint out."""

from __future__ import annotations

import cProfile
import gc
import subprocess
import sys
from pathlib import Path

import pytest

from lookout.rules import is_watched
from lookout.runtime.worker.records import Record, Result, StoredCheckpoint
from lookout.services.alerts.handler import AlertsHandler, CameraState
from lookout.v1 import alerts_pb2, verdicts_pb2
from lookout.v1.watches_pb2 import Watch
from lookout.wire import ALERTS, CAMERA_OFFLINE, event_type, from_json, to_json
from lookout.wire.limits import CAMERA_WATCHES
from tests.clock import at

Verdict = verdicts_pb2.Verdict
ROOT = Path(__file__).parents[3]


def record(window: int, p: float, watch: str = "fall", **fields: object) -> Record:
    verdict = Verdict(
        camera="ward-1",
        epoch=1,
        window=window,
        watch=watch,
        watch_version=1,
        question="Is anyone lying on the ground?",
        outcome=Verdict.OUTCOME_ANSWERED,
        p_yes=p,
        start=at(1000 + window * 2000),
        end=at(3000 + window * 2000),
        evidence=[verdicts_pb2.Evidence(row=window)],
    )
    for name, value in fields.items():
        setattr(verdict, name, value)
    return Record("verdicts.v1", 0, window, "ward-1", to_json(verdict))


def alerts(result: Result) -> list[alerts_pb2.Alert]:
    return [from_json(output.value or b"", alerts_pb2.Alert) for output in result.outputs]


def handler(watched: bool = True) -> AlertsHandler:
    return AlertsHandler(lambda *_: watched)


def restarted(maker: AlertsHandler, result: Result) -> CameraState:
    assert result.checkpoint is not None
    checkpoint = result.checkpoint.FromString(result.checkpoint.SerializeToString())
    return maker.load("ward-1", StoredCheckpoint(checkpoint, 0))


def test_an_incident_survives_a_takeover_at_every_record() -> None:
    maker = handler()
    state, events = maker.load("ward-1", None), []
    for window, p in enumerate([0.1, 0.9, 0.95, 0.2, 0.1]):
        result = maker.handle(state, record(window, p))
        events += alerts(result)
        assert all(output.topic == ALERTS.name for output in result.outputs)
        assert all(event_type(output.headers) == "lookout.alert.v1" for output in result.outputs)
        state = restarted(maker, result)
    assert [event.kind for event in events] == [
        alerts_pb2.Alert.KIND_OPENED,
        alerts_pb2.Alert.KIND_UPDATED,
        alerts_pb2.Alert.KIND_CLOSED,
    ]
    assert len({event.incident for event in events}) == 1
    assert len({event.id for event in events}) == 3
    assert events[-1].evidence[0].row == 2


def test_an_incident_is_of_the_tenant_that_it_opened_for() -> None:
    """The camera changes hands while it is open: its last event is the first tenant's, through takeovers."""
    maker = handler()
    state, events = maker.load("ward-1", None), []
    owners = [(1, "acme", 0.9), (1, "acme", 0.97), (2, "bolt", 0.9), (2, "bolt", 0.1)]
    for window, (epoch, tenant, p) in enumerate(owners):
        result = maker.handle(state, record(window, p, epoch=epoch, tenant=tenant))
        events += [(alert.kind, alert.tenant) for alert in alerts(result)]
        state = restarted(maker, result)
    assert events == [
        (alerts_pb2.Alert.KIND_OPENED, "acme"),
        (alerts_pb2.Alert.KIND_UPDATED, "acme"),
        (alerts_pb2.Alert.KIND_CLOSED, "acme"),
        (alerts_pb2.Alert.KIND_OPENED, "bolt"),
        (alerts_pb2.Alert.KIND_CLOSED, "bolt"),
    ]


def test_a_removed_watch_loses_its_incident_once_it_is_quiet() -> None:
    maker = handler(watched=False)
    state = maker.load("ward-1", None)
    maker.handle(state, record(0, 0.9))
    assert maker.tick(state, 0.0) is None
    result = maker.tick(state, 2.0)
    assert result is not None
    assert [event.reason for event in alerts(result)] == ["removed"]
    assert maker.tick(state, 4.0) is None


def test_a_watch_that_asks_a_camera_no_longer_loses_its_incident_there() -> None:
    """It stayed open for ever: the watch was there, and no verdict of it came any more."""
    asked: list[tuple[str, str, str | None]] = []

    def asks(*words: str | None) -> bool:
        asked.append(words)  # type: ignore[arg-type]
        row = Watch(id="fall", version=2, question="?", cameras=["yard"])
        return is_watched(to_json(row), 0.0, *words[1:])  # type: ignore[arg-type]

    maker = AlertsHandler(asks)
    state = maker.load("ward-1", None)
    maker.handle(state, record(0, 0.1))
    assert [maker.tick(state, at) for at in (0.0, 2.0)] == [None, None]  # nothing is remembered of it
    maker.handle(state, record(1, 0.9))
    assert maker.tick(state, 4.0) is None
    result = maker.tick(state, 6.0)
    assert result is not None
    assert [event.reason for event in alerts(result)] == ["removed"]
    assert asked == [("fall", "ward-1", "default")]


def test_a_watch_stands_until_it_is_gone_or_its_end_has_come() -> None:
    ending = to_json(Watch(id="fall", question="?", disabled=True, active_from=at(5000)))
    assert [is_watched(ending, at) for at in (4999.0, 5000.0)] == [True, False]
    assert is_watched(to_json(Watch(id="fall", question="?")), 0.0)
    assert is_watched(b"{", 0.0)
    moving = to_json(Watch(id="fall", question="?", cameras=["yard"], tenant="acme", active_from=at(5000)))
    assert is_watched(moving, 4999.0, "gate", "default")
    assert [
        is_watched(moving, 5000.0, *of) for of in (("yard", "acme"), ("yard", "bolt"), ("gate", "acme"))
    ] == [
        True,
        False,
        False,
    ]
    assert not is_watched(None, 0.0)


def test_bad_verdicts_become_dead_letters_and_change_nothing() -> None:
    maker = handler()
    state = maker.load("ward-1", None)
    maker.handle(state, record(0, 0.9))
    before = dict(state.watches)
    bad = Record("verdicts.v1", 0, 1, "ward-1", b"\x00\x01")
    for each in (bad, record(1, 0.1, outcome=0)):
        result = maker.handle(state, each)
        assert result.dead_letter is not None
        assert not result.outputs
    assert state.watches == before


def test_a_camera_that_is_offline_is_an_incident_of_its_own() -> None:
    watch = Watch(id=CAMERA_OFFLINE, version=1)
    maker = AlertsHandler(lambda *_: True, offline=lambda: watch)
    state, events = maker.load("ward-1", None), []
    gap = {"outcome": Verdict.OUTCOME_GAP, "reason": "silence"}
    for each in (record(0, 0.1), record(1, 0.0, **gap), record(2, 0.1, epoch=2), record(3, 0.1, epoch=2)):
        result = maker.handle(state, each)
        events += alerts(result)
        state = restarted(maker, result)
    assert [(event.watch, event.kind, event.reason) for event in events] == [
        (CAMERA_OFFLINE, alerts_pb2.Alert.KIND_OPENED, ""),
        (CAMERA_OFFLINE, alerts_pb2.Alert.KIND_CLOSED, "cleared"),
    ]
    assert events[0].incident == events[1].incident
    assert events[0].question == "Is the camera offline?"


def test_a_silence_that_begins_within_the_last_stride_is_offline() -> None:
    maker = AlertsHandler(lambda *_: True, offline=lambda: Watch(id=CAMERA_OFFLINE, version=1))
    state = maker.load("ward-1", None)
    broken_off = at(2900)  # the window ends at 3000, as if its stride were whole
    gap = {"outcome": Verdict.OUTCOME_GAP, "reason": "silence", "start": broken_off, "end": broken_off}
    events: list[alerts_pb2.Alert] = []
    for verdict in (
        record(0, 0.1),
        record(1, 0.0, **gap),
        record(1, 0.0, watch="vehicle", **gap),
        record(2, 0.1, epoch=2),
    ):
        result = maker.handle(state, verdict)
        events += [event for event in alerts(result) if event.watch == CAMERA_OFFLINE]
        state = restarted(maker, result)
    assert [event.kind for event in events] == [alerts_pb2.Alert.KIND_OPENED, alerts_pb2.Alert.KIND_CLOSED]


@pytest.mark.parametrize("back_ms", [0, 3_600_000])
@pytest.mark.parametrize("restarts", [False, True])
def test_a_camera_that_returns_with_its_clock_set_back_is_online(back_ms: int, restarts: bool) -> None:
    """And its next outage is another incident, whether alerts was restarted or not."""
    maker = AlertsHandler(lambda *_: True, offline=lambda: Watch(id=CAMERA_OFFLINE, version=1))
    state, events = maker.load("ward-1", None), []
    now = 7_200_000
    for number in range(3):
        for window, outcome, reason in (
            (0, Verdict.OUTCOME_ANSWERED, ""),
            (1, Verdict.OUTCOME_ANSWERED, ""),
            (2, Verdict.OUTCOME_GAP, "silence"),
        ):
            for watch in ("fall", "vehicle"):
                begun = now + 2000 * window
                times = {"start": at(begun), "end": at(begun + (2000 if not reason else 0))}
                fields = {"epoch": 1 + number, "outcome": outcome, "reason": reason, "watch": watch, **times}
                result = maker.handle(state, record(window, 0.1, **fields))  # type: ignore[arg-type]
                events += alerts(result)
                state = restarted(maker, result) if restarts else state
        now -= back_ms
    opened, closed = alerts_pb2.Alert.KIND_OPENED, alerts_pb2.Alert.KIND_CLOSED
    assert [event.kind for event in events] == [opened, closed, opened, closed, opened]
    assert [event.incident for event in events[::2]] == list(dict.fromkeys(e.incident for e in events))


@pytest.mark.parametrize("watch", ["fall", CAMERA_OFFLINE])
def test_a_camera_that_is_forgotten_leaves_no_open_incident(watch: str) -> None:
    maker = AlertsHandler(lambda *_: True, offline=lambda: Watch(id=CAMERA_OFFLINE, version=1))
    state = maker.load("ward-1", None)
    gap = {"outcome": Verdict.OUTCOME_GAP, "reason": "silence"}
    maker.handle(state, record(0, 0.1))
    maker.handle(state, record(1, 0.0, **gap) if watch == CAMERA_OFFLINE else record(1, 0.9))
    result = maker.forget(state)
    assert result is not None
    (alert,) = alerts(result)
    assert (alert.watch, alert.kind, alert.reason) == (watch, alerts_pb2.Alert.KIND_CLOSED, "forgotten")
    assert not alert.evidence
    assert maker.forget(maker.load("ward-1", None)) is None


def test_the_end_of_a_recording_is_not_offline() -> None:
    maker = AlertsHandler(lambda *_: True, offline=lambda: Watch(id=CAMERA_OFFLINE, version=1))
    state = maker.load("ward-1", None)
    maker.handle(state, record(0, 0.1))
    assert alerts(maker.handle(state, record(1, 0.0, outcome=Verdict.OUTCOME_GAP, reason="ended"))) == []


def test_a_gap_that_is_no_silence_is_not_offline() -> None:
    maker = AlertsHandler(lambda *_: True, offline=lambda: Watch(id=CAMERA_OFFLINE, version=1))
    state = maker.load("ward-1", None)
    maker.handle(state, record(0, 0.1))
    gap = record(1, 0.0, outcome=Verdict.OUTCOME_GAP, reason="clock-jump")
    assert alerts(maker.handle(state, gap)) == []


def test_a_camera_that_moved_leaves_no_open_incident() -> None:
    """Nothing comes in this partition any more that could close one."""
    maker = AlertsHandler(lambda *_: True, offline=lambda: Watch(id=CAMERA_OFFLINE, version=1))
    silence = {"outcome": Verdict.OUTCOME_GAP, "reason": "silence"}
    moved = {"outcome": Verdict.OUTCOME_GAP, "reason": "moved", "start": at(5000), "end": at(5000)}
    for before, opened in ((record(1, 0.9), "fall"), (record(1, 0.0, **silence), CAMERA_OFFLINE)):
        state, events = maker.load("ward-1", None), []
        for each in (record(0, 0.1), before, record(2, 0.0, **moved)):
            result = maker.handle(state, each)
            events += alerts(result)
            state = restarted(maker, result)
        assert [(event.watch, event.kind, event.reason) for event in events] == [
            (opened, alerts_pb2.Alert.KIND_OPENED, ""),
            (opened, alerts_pb2.Alert.KIND_CLOSED, "gap"),
        ]


def test_offline_follows_the_cameras_of_its_watch() -> None:
    watch = Watch(id=CAMERA_OFFLINE, version=1, cameras=["yard-*"])
    maker = AlertsHandler(lambda *_: True, offline=lambda: watch)
    state = maker.load("ward-1", None)
    gap = record(1, 0.0, outcome=Verdict.OUTCOME_GAP, reason="silence")
    assert alerts(maker.handle(state, gap)) == []


def test_two_hundred_quiet_watches_need_less_than_a_kilobyte() -> None:
    maker = handler()
    state = maker.load("ward-1", None)
    for window in range(3):
        for number in range(200):
            result = maker.handle(state, record(window, 0.1, watch=f"a-watch-with-a-long-name-{number}"))
    assert result.checkpoint is not None
    assert len(result.checkpoint.SerializeToString()) < 1024


def verdict_calls(watches: int) -> int:
    """How many functions one more verdict calls beside open incidents of ``watches``, those in C included."""
    maker = handler()
    state = maker.load("ward-1", None)
    for window in range(2):
        for number in range(watches):
            maker.handle(state, record(window, 0.9, watch=f"watch-{number}"))
    third = record(2, 0.9, watch="watch-0")
    profile = cProfile.Profile()
    gc.disable()  # what is collected would be counted, at any moment
    try:
        profile.runcall(maker.handle, state, third)
    finally:
        gc.enable()
    return sum(entry.callcount for entry in profile.getstats())


@pytest.mark.slow
def test_a_verdict_costs_as_many_calls_beside_255_open_incidents_as_alone() -> None:
    # In a process of its own: CPython 3.11 can loop for ever in a profiled function while another thread asks
    # for the interpreter, and a worker has threads of other tests' libraries.
    script = f"from {__name__} import verdict_calls; print(verdict_calls(1), verdict_calls({CAMERA_WATCHES}))"
    run = subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, timeout=60, check=True
    )
    alone, beside = map(int, run.stdout.split())
    assert alone > 10
    assert beside == alone
