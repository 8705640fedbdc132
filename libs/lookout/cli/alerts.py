"""`lookout alerts`: follow incidents as they open, grow and close."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated

import typer
from rich.console import Console
from rich.text import Text

from lookout.cli.connect import check_reachable, find_bootstrap, reading
from lookout.cli.formats import local_time
from lookout.cli.options import BootstrapOption
from lookout.cli.output import TerminalConsole, echo
from lookout.cli.times import parse_since
from lookout.models.questions import UNTRAINED
from lookout.text import clean
from lookout.v1.alerts_pb2 import Alert, SecondOpinion
from lookout.wire import ALERTS, WireError, from_json, names_id, to_json

_MARKS = {
    Alert.KIND_OPENED: ("▲ opened", "bold red"),
    Alert.KIND_UPDATED: ("· update", "yellow"),
    Alert.KIND_CLOSED: ("▽ closed", "green"),
    Alert.KIND_OPINION: ("≈ second", "magenta"),
    Alert.KIND_REPORT: ("≡ report", "cyan"),
    Alert.KIND_TEST: ("○ test", "cyan"),
}


CameraPattern = Annotated[
    str | None, typer.Option("--camera", "-c", help="Only cameras that match ('yard-*').", show_default=False)
]
WatchPattern = Annotated[
    str | None, typer.Option("--watch", "-w", help="Only watches that match.", show_default=False)
]


def alerts(
    camera: CameraPattern = None,
    watch: WatchPattern = None,
    since: Annotated[
        str,
        typer.Option(
            help="Show alerts from this time on: now, start, how long ago (90s, 15m, 6h, 2d), or a time "
            "(2026-05-01T13:30)."
        ),
    ] = "now",
    count: Annotated[
        int | None,
        typer.Option("--count", "-n", min=1, help="Stop after this many alerts.", show_default=False),
    ] = None,
    follow: Annotated[
        bool,
        typer.Option("--follow/--no-follow", help="Wait for new alerts, or stop after existing ones."),
    ] = True,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object per line, as in Kafka.")
    ] = False,
    bootstrap: BootstrapOption = None,
) -> None:
    """Follow alerts until Ctrl-C.

    An incident keeps its id from its first alert to its last. The score is the p(yes) of its newest window;
    the peak is its highest p(yes).
    """
    address = find_bootstrap(bootstrap)
    check_reachable(address, ALERTS.name)
    show = print_json if as_json else LinePrinter(TerminalConsole())
    shown = 0
    with reading(address, [ALERTS.name], parse_since(since)) as reader:
        until_now = None if follow else reader.until_now()
        while count is None or shown < count:
            message = reader.poll(0.5) if until_now is None else next(until_now, None)
            if message is None:
                if until_now is not None:
                    break
                continue
            if not message.value():
                continue
            try:
                alert = from_json(message.value(), Alert)
            except WireError:
                continue
            if _wanted(alert, camera, watch):
                show(alert)
                shown += 1
    if not shown and not as_json:
        TerminalConsole(stderr=True).print(
            "no matching alert; without --no-follow, the command waits for new ones"
        )


def print_json(alert: Alert) -> None:
    echo(to_json(alert).decode())


class LinePrinter:
    """Prints an alert as one aligned line: when, what, where, p(yes), and the question."""

    def __init__(self, console: Console, clock: Callable[[Alert], str] | None = None) -> None:
        self._console = console
        self._clock = clock or wall_clock

    def __call__(self, alert: Alert) -> None:
        mark, style = _MARKS.get(alert.kind, ("? unknown", "dim"))
        line = Text(no_wrap=True, overflow="ellipsis")
        line.append(self._clock(alert), "dim")
        line.append("  ")
        line.append(mark, style)
        line.append(f"  {alert.camera:<16}", "cyan")
        if alert.kind in {Alert.KIND_REPORT, Alert.KIND_TEST}:
            line.append(f"  {' '.join(alert.text)}")
            self._console.print(line, soft_wrap=True)
            return
        line.append(f"  {alert.score:4.2f}", "bold")
        line.append(f" (peak {alert.peak:4.2f}, {_length(alert)})  ", "dim")
        line.append(alert.question)
        if alert.untrained:
            line.append(f"  [{UNTRAINED}]", "yellow")
        if alert.kind == Alert.KIND_CLOSED and alert.reason:
            line.append(f"  [{alert.reason}]", "dim")
        if alert.kind == Alert.KIND_OPINION:
            line.append(f"  [{opinion_text(alert.opinion)}]", "magenta")
        line.append(f"  {alert.incident[:8]}", "dim")
        self._console.print(line, soft_wrap=True)


def opinion_text(opinion: SecondOpinion) -> str:
    """Return the second model's answer in a few words."""
    of_model = f" of {clean(opinion.model, 60)}" if opinion.model else ""
    cost = f"{opinion.seconds:.1f} s, {opinion.tokens} tokens"
    match opinion.answer:
        case SecondOpinion.ANSWER_YES:
            return f"second opinion{of_model}: yes, {cost}"
        case SecondOpinion.ANSWER_NO:
            return f"second opinion{of_model}: no, {cost}"
        case _:
            return f"no second opinion{of_model}: {clean(opinion.reason, 200)}"


def wall_clock(alert: Alert) -> str:
    """Return when an alert's newest window ended, in this machine's local time."""
    return local_time(alert.end.ToMicroseconds())


def _length(alert: Alert) -> str:
    return f"{max(0, alert.end.ToMilliseconds() - alert.start.ToMilliseconds()) / 1e3:.0f} s"


def _wanted(alert: Alert, camera: str | None, watch: str | None) -> bool:
    return names_id(camera or "*", alert.camera) and names_id(watch or "*", alert.watch)
