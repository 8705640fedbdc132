"""Incidents: opening, updating, closing, and what must never happen on any stream of answers."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, time
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

from lookout.rules import (
    Activity,
    Coverage,
    EventKind,
    IncidentEvent,
    Outcome,
    Rule,
    RuleError,
    ScheduleEntry,
    WatchState,
    WatchVerdict,
    Zone,
    coverage_intervals,
    remove,
    step,
)

STRIDE_MS = 2_000
WINDOW_MS = 10_000


def answer(window: int, p: float, rule: Rule | None = None, **changes: object) -> WatchVerdict:
    base = WatchVerdict(
        camera="door",
        epoch=1,
        window=window,
        watch="person",
        version=1,
        outcome=Outcome.ANSWERED,
        p_yes=p,
        start_ms=max(0, (window + 1) * STRIDE_MS - WINDOW_MS),
        end_ms=(window + 1) * STRIDE_MS,
        rule=rule or Rule(),
        evidence=(f"frame-{window}".encode(),),
    )
    return replace(base, **changes)  # type: ignore[arg-type]


def play(answers: list[WatchVerdict]) -> tuple[WatchState, list[IncidentEvent]]:
    state: WatchState | None = None
    events: list[IncidentEvent] = []
    for item in answers:
        state, more = step(state, item, f"incident-{item.epoch}-{item.window}")
        events += more
    assert state is not None
    return state, events


@pytest.mark.parametrize("epoch", [1, 2], ids=["within an epoch", "with a new epoch"])
@pytest.mark.parametrize("restart", [False, True])
def test_a_clock_set_back_suppresses_no_incident(epoch: int, restart: bool) -> None:
    """An hour back: what is left of the cooldown counts from there, and the time is covered."""
    rule, hour = Rule(cooldown_ms=6_000), 3_600_000
    before = [answer(window, p, rule) for window, p in ((1800, 0.9), (1801, 0.1))]
    after = [
        answer(window, 0.9, rule, epoch=epoch, start_ms=at - WINDOW_MS, end_ms=at)
        for window, at in ((1802 + n, (1803 + n) * STRIDE_MS - hour) for n in range(6))
    ]
    state: WatchState | None = None
    events: list[tuple[str, int]] = []
    for item in [*before, *after]:
        state, more = step(state, item, f"incident-{item.epoch}-{item.window}")
        events += [(event.kind.value, item.window) for event in more if event.kind is not EventKind.UPDATED]
        if restart and state.quiet:
            state = None
    # The cooldown began at the end of window 1801 and has 6 s to go: window 1802 lasts 10 s.
    assert events == [("opened", 1800), ("closed", 1801), ("opened", 1802)]
    assert state is not None
    assert state.incident is not None
    assert state.incident.coverage.answered == WINDOW_MS + 5 * STRIDE_MS


def test_an_incident_over_a_clock_set_back_does_not_end_before_it_began() -> None:
    hour = 3_600_000
    answers = [answer(1800, 0.9), answer(1801, 0.9), answer(1802, 0.1)]
    answers[1:] = [replace(a, start_ms=a.start_ms - hour, end_ms=a.end_ms - hour) for a in answers[1:]]
    _, events = play(answers)
    assert [event.kind for event in events] == [EventKind.OPENED, EventKind.UPDATED, EventKind.CLOSED]
    assert all(event.incident.opened_ms < event.end_ms for event in events)
    assert all(event.incident.opened_ms <= event.incident.raised_ms <= event.end_ms for event in events)


def test_an_incident_says_when_its_answer_became_yes_for_as_long_as_it_lasts() -> None:
    rule = Rule(k=2, n=3)
    _, events = play([answer(window, p, rule) for window, p in enumerate((0.1, 0.9, 0.9, 0.9, 0.1, 0.1))])
    assert [event.kind for event in events] == [EventKind.OPENED, EventKind.UPDATED, EventKind.CLOSED]
    opened = answer(2, 0.9, rule)  # the second of two that say yes
    times = {(event.incident.opened_ms, event.incident.raised_ms) for event in events}
    assert times == {(opened.start_ms, opened.end_ms)}


def kinds(events: list[IncidentEvent]) -> list[str]:
    return [event.kind.value for event in events]


def test_one_id_from_opening_to_closing() -> None:
    _, events = play([answer(k, p) for k, p in enumerate([0.1, 0.6, 0.9, 0.9, 0.2])])
    assert kinds(events) == ["opened", "updated", "closed"]
    assert {event.incident.id for event in events} == {"incident-1-1"}
    assert events[-1].reason == "cleared"
    assert events[-1].incident.peak == 0.9


@pytest.mark.parametrize(
    ("rule", "reason"),
    [
        (Rule(), "cleared"),
        (Rule(schedule=(ScheduleEntry(time(0, 0), time(0, 0, 4)),)), "schedule"),
    ],
)
def test_an_event_s_score_is_that_of_the_window_it_ends_with(rule: Rule, reason: str) -> None:
    _, events = play([answer(k, p, rule) for k, p in enumerate([0.9, 0.2])])
    assert [(event.kind.value, event.reason, event.incident.score) for event in events] == [
        ("opened", "", 0.9),
        ("closed", reason, 0.2),
    ]


def test_k_of_n_opens_late_and_closes_late() -> None:
    rule = Rule(k=2, n=3)
    _, events = play([answer(k, p, rule) for k, p in enumerate([0.9, 0.1, 0.9, 0.1, 0.1])])
    assert [(event.kind, event.end_ms // STRIDE_MS - 1) for event in events] == [
        (EventKind.OPENED, 2),
        (EventKind.CLOSED, 3),
    ]


def test_hysteresis_holds_between_the_thresholds() -> None:
    rule = Rule(threshold=0.7, clear_threshold=0.3)
    _, events = play([answer(k, p, rule) for k, p in enumerate([0.5, 0.8, 0.5, 0.4, 0.2])])
    assert [event.kind for event in events if event.kind is not EventKind.UPDATED] == [
        EventKind.OPENED,
        EventKind.CLOSED,
    ]
    assert events[0].end_ms == 2 * STRIDE_MS
    assert events[-1].end_ms == 5 * STRIDE_MS


def test_an_answer_between_the_thresholds_opens_nothing() -> None:
    rule = Rule(threshold=0.5, clear_threshold=0.4, k=2, n=3)
    _, events = play([answer(k, p, rule) for k, p in enumerate([0.55, 0.42, 0.45])])
    assert events == []


def test_cooldown_counts_from_closing() -> None:
    rule = Rule(cooldown_ms=3 * STRIDE_MS)
    pattern = [0.9, 0.1, 0.9, 0.9, 0.9, 0.9]
    _, events = play([answer(k, p, rule) for k, p in enumerate(pattern)])
    opened = [event.end_ms for event in events if event.kind is EventKind.OPENED]
    assert opened == [STRIDE_MS, 5 * STRIDE_MS]


def test_a_new_version_closes_with_the_reason() -> None:
    _, events = play([answer(0, 0.9), answer(1, 0.9, version=2)])
    assert [(event.kind, event.reason, event.version) for event in events] == [
        (EventKind.OPENED, "", 1),
        (EventKind.CLOSED, "new-version", 1),
        (EventKind.OPENED, "", 2),
    ]


@pytest.mark.parametrize("changes", [{"outcome": Outcome.GAP}, {"epoch": 2, "p_yes": 0.1}])
def test_a_gap_or_a_new_epoch_closes(changes: dict[str, object]) -> None:
    _, events = play([answer(0, 0.9), answer(1, 0.9, **changes)])
    assert [(event.kind, event.reason) for event in events] == [
        (EventKind.OPENED, ""),
        (EventKind.CLOSED, "gap"),
    ]


def test_a_gap_that_covers_no_time_still_closes() -> None:
    end = STRIDE_MS
    _, events = play([answer(0, 0.9), answer(1, 0.0, outcome=Outcome.GAP, start_ms=end, end_ms=end)])
    assert [(event.kind, event.reason) for event in events] == [
        (EventKind.OPENED, ""),
        (EventKind.CLOSED, "gap"),
    ]


@pytest.mark.parametrize("outcome", [Outcome.SKIPPED, Outcome.GATED])
def test_blind_windows_change_coverage_only(outcome: Outcome) -> None:
    state, events = play([answer(0, 0.9), answer(1, 0.0, outcome=outcome), answer(2, 0.9)])
    assert "closed" not in kinds(events)
    assert state.incident is not None
    expected = replace(Coverage(answered=2 * STRIDE_MS), **{outcome.value: STRIDE_MS})
    assert state.incident.coverage == expected


def test_a_watch_that_was_removed_and_added_again_opens_incidents() -> None:
    _, events = play([answer(0, 0.9, version=3), answer(1, 0.1, version=3), answer(2, 0.9, version=1)])
    assert [(event.kind, event.version) for event in events] == [
        (EventKind.OPENED, 3),
        (EventKind.CLOSED, 3),
        (EventKind.OPENED, 1),
    ]


@settings(max_examples=60, deadline=None)
@given(st.lists(st.floats(0, 1), min_size=1, max_size=30), st.integers(1, 3), st.integers(0, 4))
def test_a_quiet_state_may_be_forgotten(chances: list[float], k: int, cooldown: int) -> None:
    rule = Rule(k=k, n=4, cooldown_ms=cooldown * STRIDE_MS)
    answers = [answer(window, p, rule) for window, p in enumerate(chances)]
    state: WatchState | None = None
    events: list[IncidentEvent] = []
    for item in answers:
        state, more = step(state, item, f"incident-{item.epoch}-{item.window}")
        events += more
        state = None if state.quiet else state
    assert events == play(answers)[1]


def test_removing_a_watch_closes_its_incident() -> None:
    state, _ = play([answer(0, 0.9)])
    state, events = remove(state)
    assert [(event.kind, event.reason) for event in events] == [(EventKind.CLOSED, "removed")]
    assert remove(state)[1] == []


def test_schedule_past_midnight_belongs_to_the_day_it_began() -> None:
    monday_night = ScheduleEntry(time(22), time(6), frozenset({1}))
    rule = Rule(schedule=(monday_night,))
    inside = int(datetime(2026, 11, 24, 5, tzinfo=UTC).timestamp() * 1000)  # Tuesday morning
    outside = int(datetime(2026, 11, 24, 23, tzinfo=UTC).timestamp() * 1000)  # Tuesday night
    _, events = play(
        [
            answer(0, 0.9, rule, start_ms=inside - 1000, end_ms=inside),
            answer(1, 0.9, rule, start_ms=outside - 1000, end_ms=outside),
        ]
    )
    assert [(event.kind, event.reason) for event in events] == [
        (EventKind.OPENED, ""),
        (EventKind.CLOSED, "schedule"),
    ]


def test_a_zone_gates_the_opening_only() -> None:
    left = Zone(((0, 0), (0.5, 0), (0.5, 1), (0, 1)))
    rule = Rule(zones=(left,))
    at_right = Activity(4, 4, frozenset({3}))
    at_left = Activity(4, 4, frozenset({0}))
    still = Activity(4, 4, frozenset())
    _, events = play([answer(0, 0.9, rule, activity=at_right)])
    assert events == []
    _, events = play(
        [answer(0, 0.9, rule, activity=at_left), answer(1, 0.9, rule, activity=still)],
    )
    assert kinds(events) == ["opened", "updated"]


def test_evidence_keeps_the_strongest_windows() -> None:
    state, _ = play([answer(k, p) for k, p in enumerate([0.6, 0.7, 0.95, 0.65, 0.8])])
    assert state.incident is not None
    assert [p for p, _ in state.incident.evidence] == [0.95, 0.8, 0.7]
    assert state.incident.evidence[0][1] == (b"frame-2",)


@pytest.mark.parametrize(
    "bad",
    [
        {"threshold": 0.0},
        {"threshold": 0.4, "clear_threshold": 0.5},
        {"k": 3, "n": 2},
        {"n": 65},
        {"cooldown_ms": -1},
        {"threshold": "x"},
        {"threshold": True},
        {"clear_threshold": "x"},
        {"k": 1.5, "n": 2},
        {"k": True},
    ],
)
def test_rules_that_cannot_be_followed_are_refused(bad: dict[str, Any]) -> None:
    with pytest.raises(RuleError):
        Rule(**bad)


streams = st.lists(
    st.tuples(
        st.floats(0, 1),
        st.sampled_from(list(Outcome)),
        st.integers(0, 1),  # epoch rises
        st.integers(0, 1),  # version rises
    ),
    max_size=40,
)


def _stream(steps: list[tuple[float, Outcome, int, int]], rule: Rule) -> list[WatchVerdict]:
    answers, epoch, version = [], 1, 1
    for window, (p, outcome, new_epoch, new_version) in enumerate(steps):
        epoch += new_epoch
        version += new_version
        answers.append(answer(window, p, rule, outcome=outcome, epoch=epoch, version=version))
    return answers


@settings(max_examples=60, deadline=None)
@given(streams, st.integers(1, 3), st.integers(0, 2), st.integers(0, 5))
def test_incidents_hold_their_laws_on_any_stream(
    steps: list[tuple[float, Outcome, int, int]], k: int, slack: int, cooldown: int
) -> None:
    """Incidents nest, a replay repeats, duplicates change nothing, coverage sums to the time since then."""
    answers = _stream(steps, Rule(k=k, n=k + slack, cooldown_ms=cooldown * STRIDE_MS))
    if not answers:
        return
    state, events = play(answers)
    open_id = None
    for event in events:
        if event.kind is EventKind.OPENED:
            assert open_id is None
            open_id = event.incident.id
        else:
            assert event.incident.id == open_id
            open_id = None if event.kind is EventKind.CLOSED else open_id
    assert (state.incident.id if state.incident else None) == open_id
    assert play(answers) == (state, events)
    assert play([item for item in answers for _ in range(2)]) == (state, events)
    if state.incident is not None:
        spent = state.incident.coverage
        total = spent.answered + spent.idle + spent.gap + spent.skipped + spent.degraded + spent.gated
        assert total == answers[-1].end_ms - state.incident.opened_ms
    assert sum(i.end_ms - i.start_ms for i in coverage_intervals(answers)) == answers[-1].end_ms


HELD = Rule(hold_ms=6_000)


@pytest.mark.parametrize(
    ("scores", "opens"),
    [
        ([0.9, 0.9, 0.9], None),
        ([0.9, 0.9, 0.9, 0.9], 3),
        ([0.9, 0.9, 0.1, 0.9, 0.9, 0.9, 0.9], 6),
        ([0.9, 0.9, Outcome.DEGRADED, 0.9, 0.9, 0.9], None),
        ([0.9, 0.9, Outcome.GAP, 0.9, 0.9, 0.9, 0.9], 6),
        ([0.9, 0.9, 0.9, Outcome.SKIPPED, 0.9, 0.9, 0.9, 0.9], 7),
    ],
)
def test_an_incident_opens_once_every_answer_was_yes_for_the_time(
    scores: list[float | Outcome], opens: int | None
) -> None:
    answers = [
        answer(window, 0.0, HELD, outcome=score)
        if isinstance(score, Outcome)
        else answer(window, score, HELD)
        for window, score in enumerate(scores)
    ]
    _, events = play(answers)
    opened = [event.incident.id for event in events if event.kind is EventKind.OPENED]
    assert opened == ([] if opens is None else [f"incident-1-{opens}"])


def test_the_time_counts_for_opening_alone_and_begins_again_after_a_change() -> None:
    opened = [answer(window, 0.9, HELD) for window in range(5)]
    state, events = play([*opened, answer(5, 0.1, HELD)])
    assert [event.kind for event in events if event.kind is not EventKind.UPDATED] == [
        EventKind.OPENED,
        EventKind.CLOSED,
    ]
    assert state.held_since_ms == 0
    for changed in ({"version": 2}, {"epoch": 2}):
        more = [answer(window, 0.9, HELD, **changed) for window in range(3, 6)]
        assert not [event for event in play([*opened[:3], *more])[1] if event.kind is EventKind.OPENED]


def test_a_clock_that_is_set_back_begins_the_time_again() -> None:
    first = [answer(window, 0.9, HELD, start_ms=90_000, end_ms=100_000 + 2_000 * window) for window in (0, 1)]
    back = [
        answer(window, 0.9, HELD, start_ms=50_000 + 2_000 * window, end_ms=60_000 + 2_000 * window)
        for window in range(2, 9)
    ]
    _, events = play([*first, *back])
    assert events[0].incident.id == "incident-1-5"
