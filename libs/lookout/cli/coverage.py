"""`lookout coverage`: how much time was analysed, and why the rest was not."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from itertools import groupby
from typing import Annotated, Any

import typer
from rich.table import Table

from lookout import rules
from lookout.cli.alerts import CameraPattern, WatchPattern
from lookout.cli.connect import check_reachable, find_bootstrap, reading
from lookout.cli.options import BootstrapOption
from lookout.cli.output import TerminalConsole, echo, escaped
from lookout.cli.times import PAST, parse_since
from lookout.rules import CoverageInterval, Outcome
from lookout.rules.messages import verdict_of
from lookout.text import clean
from lookout.v1.lineage_pb2 import Cause
from lookout.v1.verdicts_pb2 import Verdict
from lookout.wire import VERDICTS, WireError, from_json, names_id
from lookout.wire.message_json import enum_name

UNSEEN = "unseen"
_COLUMNS = (*(outcome.value for outcome in Outcome), UNSEEN)


def coverage(
    camera: CameraPattern = None,
    watch: WatchPattern = None,
    since: Annotated[str, typer.Option(help=f"{PAST}.")] = "start",
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object per line, one for each interval.")
    ] = False,
    bootstrap: BootstrapOption = None,
) -> None:
    """Show how much of each watch's time was analysed, and why the rest was not.

    "Nothing happened" is not the same as "nobody looked". Time that no verdict covers is `unseen`.
    """
    address = find_bootstrap(bootstrap)
    check_reachable(address, VERDICTS.name)
    with reading(address, [VERDICTS.name], parse_since(since)) as reader:
        values = (message.value() or b"" for message in reader.until_now())
        messages = [message for message in _read(values) if _wanted(message, camera, watch)]
    intervals = with_unseen(rules.coverage_intervals(_verdicts(messages)))
    if as_json:
        for interval in intervals:
            echo(json.dumps(interval, ensure_ascii=False))
        return
    if not intervals:
        TerminalConsole().print(escaped(_nothing(camera, watch, since)))
        return
    console = TerminalConsole()
    console.print(coverage_table(intervals))
    for line in remarks(messages):
        console.print(line, markup=False, highlight=False)


def _nothing(camera: str | None, watch: str | None, since: str) -> str:
    """Return a message that explains why there may be no verdict."""
    if not camera and not watch and since == "start":
        return "No verdict yet: publish segments and add a watch."
    asked = [
        f"camera {clean(camera)}" if camera else "any camera",
        f"watch {clean(watch)}" if watch else "any watch",
        f"since {since}",
    ]
    return (
        f"No verdict for {', '.join(asked)}. A camera has none until it sends segments, and a watch has "
        "none for cameras that it does not ask. `lookout coverage` and `lookout watch list` show all."
    )


def remarks(verdicts: Iterable[Verdict]) -> list[str]:
    """Return one line per camera with unanswered or damaged windows, which says how many and why."""
    causes: dict[str, dict[str, set[tuple[int, int]]]] = defaultdict(lambda: defaultdict(set))
    for verdict in verdicts:
        window = verdict.epoch, verdict.window
        if verdict.HasField("cause"):
            name = (
                enum_name("Cause", Cause.Name(verdict.cause)) if verdict.cause in Cause.values() else "other"
            )
            causes[verdict.camera][f"without an answer ({name})"].add(window)
        elif verdict.damaged:
            causes[verdict.camera]["answered with damaged frames"].add(window)
    return [
        f"{camera}: "
        + ", ".join(
            f"{len(windows)} window{'s'[: len(windows) > 1]} {name}"
            for name, windows in sorted(counts.items())
        )
        for camera, counts in sorted(causes.items())
    ]


def with_unseen(intervals: Iterable[CoverageInterval]) -> list[dict[str, Any]]:
    """Return intervals as plain data, with `unseen` intervals in the gaps between them.

    Args:
        intervals: Disjoint, in time order per camera and watch (`lookout.rules.coverage_intervals`).

    Returns:
        Objects with `camera`, `watch`, `outcome`, `start` and `end` (RFC 3339) and `seconds`.
    """
    lines = []
    for (camera, watch), group in groupby(intervals, lambda interval: (interval.camera, interval.watch)):
        end = None
        for interval in group:
            if end is not None and interval.start_ms > end:
                lines.append(_interval(camera, watch, UNSEEN, end, interval.start_ms))
            lines.append(_interval(camera, watch, interval.outcome.value, interval.start_ms, interval.end_ms))
            end = interval.end_ms
    return lines


def _interval(camera: str, watch: str, outcome: str, start_ms: int, end_ms: int) -> dict[str, Any]:
    times = (
        datetime.fromtimestamp(at / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        for at in (start_ms, end_ms)
    )
    body = dict(zip(("start", "end"), times, strict=True))
    return {
        "camera": camera,
        "watch": watch,
        "outcome": outcome,
        **body,
        "seconds": (end_ms - start_ms) / 1000,
    }


def _read(values: Iterable[bytes]) -> Iterator[Verdict]:
    for value in values:
        try:
            yield from_json(value, Verdict)
        except WireError:
            continue


def _verdicts(messages: Iterable[Verdict]) -> Iterator[rules.WatchVerdict]:
    for message in messages:
        try:
            yield verdict_of(message, rules.Rule())
        except rules.RuleError:
            continue


def _wanted(verdict: Verdict, camera: str | None, watch: str | None) -> bool:
    return names_id(camera or "*", verdict.camera) and names_id(watch or "*", verdict.watch)


def coverage_table(intervals: list[dict[str, Any]]) -> Table:
    """Return a table of each camera's and watch's seconds by outcome, without outcomes that never occur."""
    seconds: dict[tuple[str, str], dict[str, float]] = defaultdict(lambda: dict.fromkeys(_COLUMNS, 0.0))
    for interval in intervals:
        seconds[interval["camera"], interval["watch"]][interval["outcome"]] += interval["seconds"]
    table = Table(
        box=None, header_style="bold", pad_edge=False, title="seconds by outcome", title_justify="left"
    )
    columns = [name for name in _COLUMNS if any(row[name] for row in seconds.values())]
    for column in ("camera", "watch", *columns, "seen"):
        if column in ("camera", "watch"):
            table.add_column(column, overflow="fold")
        else:
            table.add_column(column, justify="right", no_wrap=True)
    for (camera, watch), row in sorted(seconds.items()):
        total = sum(row.values())
        watched = sum(row[outcome.value] for outcome in Outcome if outcome.watched) / total if total else 0.0
        cells = [f"{row[name]:.0f}" if row[name] else "-" for name in columns]
        table.add_row(escaped(camera), escaped(watch), *cells, f"{watched:.1%}")
    return table
