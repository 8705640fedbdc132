"""Local times in the nights in which clocks are set: refused where they come twice or never."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from lookout.cli.times import parse_moment, parse_since
from lookout.errors import LookoutError
from lookout.past.backtests.clips import _begin_ms
from lookout.recordings.analysis.begin import given_begin
from lookout.values import moment_of

#: zone, a time that comes twice, both moments
TWICE = [
    ("Europe/Berlin", "2026-10-25T02:30:00", ("2026-10-25T02:30:00+02:00", "2026-10-25T02:30:00+01:00")),
    ("Europe/Berlin", "2026-10-25T02:00:00", ("2026-10-25T02:00:00+02:00", "2026-10-25T02:00:00+01:00")),
    ("America/New_York", "2026-11-01T01:59:59", ("2026-11-01T01:59:59-04:00", "2026-11-01T01:59:59-05:00")),
    (
        "Australia/Lord_Howe",
        "2026-04-05T01:45:00",
        ("2026-04-05T01:45:00+11:00", "2026-04-05T01:45:00+10:30"),
    ),
]
#: zone, a time that never comes, when clocks are set from and to
NEVER = [
    ("Europe/Berlin", "2026-03-29T02:30:00", ("2026-03-29T02:00:00+01:00", "2026-03-29T03:00:00+02:00")),
    ("Europe/Berlin", "2026-03-29T02:00:00", ("2026-03-29T02:00:00+01:00", "2026-03-29T03:00:00+02:00")),
    ("America/New_York", "2026-03-08T02:59:59", ("2026-03-08T02:00:00-05:00", "2026-03-08T03:00:00-04:00")),
    (
        "Australia/Lord_Howe",
        "2026-10-04T02:15:00",
        ("2026-10-04T02:00:00+10:30", "2026-10-04T02:30:00+11:00"),
    ),
]
#: zone, a time beside such an hour, its moment
ONCE = [
    ("Europe/Berlin", "2026-10-25T01:59:59", "2026-10-25T01:59:59+02:00"),
    ("Europe/Berlin", "2026-10-25T03:00:00", "2026-10-25T03:00:00+01:00"),
    ("Europe/Berlin", "2026-03-29T01:59:59", "2026-03-29T01:59:59+01:00"),
    ("Europe/Berlin", "2026-03-29T03:00:00", "2026-03-29T03:00:00+02:00"),
    ("America/New_York", "2026-11-01T02:00:00", "2026-11-01T02:00:00-05:00"),
    ("Australia/Lord_Howe", "2026-04-05T01:29:59", "2026-04-05T01:29:59+11:00"),
    ("Australia/Lord_Howe", "2026-04-05T02:00:00", "2026-04-05T02:00:00+10:30"),
    ("Australia/Lord_Howe", "2026-10-04T02:30:00", "2026-10-04T02:30:00+11:00"),
]
#: wherever a caller gives a time: Unix seconds of it
TAKERS: dict[str, Callable[[str], float]] = {
    "captured-at": lambda text: parse_moment(text, "--captured-at"),
    "since": lambda text: (parse_since(text).at_ms or 0) / 1000,
    "begins": lambda text: given_begin(text).timestamp(),
    "datetime": lambda text: given_begin(datetime.fromisoformat(text)).timestamp(),
    "backtest": lambda text: _begin_ms(Path("clip.mp4"), lambda _: datetime.fromisoformat(text)) / 1000,
}


@pytest.fixture
def set_zone(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], None]]:
    """Puts the local clock into a zone."""

    def put(name: str) -> None:
        monkeypatch.setenv("TZ", name)
        time.tzset()

    yield put
    monkeypatch.undo()
    time.tzset()


@pytest.mark.parametrize("taker", TAKERS)
@pytest.mark.parametrize(("zone", "text", "moments"), TWICE)
def test_a_time_that_comes_twice_is_refused_with_both_moments(
    set_zone: Callable[[str], None], taker: str, zone: str, text: str, moments: tuple[str, str]
) -> None:
    set_zone(zone)
    with pytest.raises(LookoutError, match="occurs twice") as refused:
        TAKERS[taker](text)
    first, second = moments
    assert str(refused.value).endswith(f"write {first} or {second}")
    # What the message says to write is taken, and an hour or half an hour lies between them.
    assert TAKERS[taker](second) - TAKERS[taker](first) == (1800 if "Lord" in zone else 3600)


@pytest.mark.parametrize("taker", TAKERS)
@pytest.mark.parametrize(("zone", "text", "change"), NEVER)
def test_a_time_that_never_comes_is_refused_with_the_change(
    set_zone: Callable[[str], None], taker: str, zone: str, text: str, change: tuple[str, str]
) -> None:
    set_zone(zone)
    with pytest.raises(LookoutError, match="does not exist") as refused:
        TAKERS[taker](text)
    assert "set forward from {} to {}; write a time with an offset".format(*change) in str(refused.value)
    assert TAKERS[taker](change[0]) == TAKERS[taker](change[1])


@pytest.mark.parametrize("taker", TAKERS)
@pytest.mark.parametrize(("zone", "text", "moment"), ONCE)
def test_a_time_beside_such_an_hour_is_local(
    set_zone: Callable[[str], None], taker: str, zone: str, text: str, moment: str
) -> None:
    set_zone(zone)
    assert TAKERS[taker](text) == datetime.fromisoformat(moment).timestamp()


@pytest.mark.parametrize(("zone", "text", "moments"), TWICE)
def test_a_time_of_a_named_zone_is_held_to_the_same(zone: str, text: str, moments: tuple[str, str]) -> None:
    local = datetime.fromisoformat(text).replace(tzinfo=ZoneInfo(zone), microsecond=5)
    with pytest.raises(LookoutError, match=r"^begins occurs twice.*") as refused:
        moment_of("begins", local, LookoutError)
    assert all(f"{moment[:19]}.000005{moment[19:]}" in str(refused.value) for moment in moments)
    # `fold=1` says which of the two.
    second = moment_of("begins", local.replace(fold=1, microsecond=0), LookoutError)
    assert second is not None
    assert second.isoformat() == moments[1]


@pytest.mark.parametrize(("zone", "text", "change"), NEVER)
@pytest.mark.parametrize("fold", [0, 1])
def test_no_fold_makes_a_skipped_time_exist(zone: str, text: str, change: tuple[str, str], fold: int) -> None:
    local = datetime.fromisoformat(text).replace(tzinfo=ZoneInfo(zone), fold=fold)
    with pytest.raises(LookoutError, match="does not exist") as refused:
        moment_of("begins", local, LookoutError)
    assert all(moment in str(refused.value) for moment in change)


@pytest.mark.parametrize(
    "value", ["", "soon", "13:30", "0001-01-01T00:00", "9999-12-31", "2026-13-01", 5, None]
)
def test_what_is_no_time_is_none(set_zone: Callable[[str], None], value: Any) -> None:
    set_zone("Europe/Berlin" if value == "0001-01-01T00:00" else "America/New_York")
    assert moment_of("begins", value, LookoutError) is None


@pytest.mark.parametrize("month", [3, 4, 10, 11])
@pytest.mark.parametrize("zone", ["Europe/Berlin", "America/New_York", "Australia/Lord_Howe"])
def test_a_time_is_taken_where_the_clock_shows_it_once(
    set_zone: Callable[[str], None], zone: str, month: int
) -> None:
    """The clock is played through a month, a quarter of an hour at a time; every local time is counted."""
    set_zone(zone)
    start = datetime(2026, month, 1, tzinfo=ZoneInfo(zone)).timestamp()
    shown = Counter(
        datetime.fromtimestamp(start + 900 * step).replace(fold=0) for step in range(-100, 31 * 96 + 100)
    )
    words = {0: "does not exist", 1: "is taken", 2: "occurs twice"}
    for quarter in range(30 * 96):
        local = datetime(2026, month, 1) + timedelta(minutes=15 * quarter)
        try:
            moment = moment_of("It", local, LookoutError)
            outcome = (
                "It is taken" if moment and moment.replace(tzinfo=None) == local else f"read as {moment}"
            )
        except LookoutError as error:
            outcome = str(error)
        assert outcome.startswith(f"It {words[shown[local]]}"), local
