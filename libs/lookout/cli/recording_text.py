"""Formats a recording's analysis as text."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.table import Table

from lookout.cli.formats import clock
from lookout.cli.output import TerminalConsole, escaped, say
from lookout.structured import shares_text

if TYPE_CHECKING:
    from lookout.recordings.analysis import Analysis

#: shown instead of times in the cost line if the answers come from an earlier run's journal
EARLIER = "answered by an earlier run (--fresh to repeat)"


def clock_time(found: Analysis, at_s: float) -> str:
    """Return the time of day at a time in the recording, with the date from the second day on; empty if
    unknown.
    """
    time = found.time_at(at_s)
    if time is None or found.begins is None:
        return ""
    return f"{time:%H:%M:%S}" if time.date() == found.begins.date() else f"{time:%Y-%m-%d %H:%M:%S}"


def span_text(found: Analysis, start_s: float, end_s: float) -> str:
    """Format a span of the recording, with the times of day if they are known."""
    span = f"{clock(start_s)} to {clock(end_s)}"
    start_time, end_time = clock_time(found, start_s), clock_time(found, end_s)
    return f"{span} ({start_time} to {end_time})" if start_time else span


def begin_text(found: Analysis) -> str:
    """Return when the recording begins, and the source of that time, as text to follow its length; empty if
    unknown.
    """
    if found.begins is None:
        return ""
    zone = "UTC" if not found.begins.utcoffset() else f"{found.begins:%z}"
    source = "its file" if found.begins_from == "file" else found.begins_from
    return f", begins {found.begins:%Y-%m-%d %H:%M:%S} {zone} ({source})"


def damage_lines(found: Analysis) -> list[str]:
    """Return one line for each effect of damage in the file."""
    lines = [f"gap {clock(gap.start_s)} - {clock(gap.end_s)}: {gap.reason}" for gap in found.gaps]
    damaged, frames = sum(part.damaged for part in found.parts), sum(part.frames for part in found.parts)
    if damaged:
        lines.append(f"{damaged} of {frames} samples show damage in the file")
    return lines


def cost_line(found: Analysis, answered: str = EARLIER) -> str:
    """Format the cost of the answers in one line.

    Args:
        found: The answers.
        answered: Who answered, if this run did not.
    """
    rows, kept_rows = sum(part.rows for part in found.parts), sum(part.kept for part in found.parts)
    flops = sum(sum(part.flops.values()) for part in found.parts)
    memory = max((part.kv_bytes for part in found.parts), default=0)
    rows_line = (
        f"{rows} prompt rows, {kept_rows / max(1, rows):.0%} of the KV kept, "
        f"{memory / 1e6:.1f} MB of KV at most, {flops / 1e9:.0f} GFLOP"
    )
    if found.timings is None:
        return f"{rows_line}; {answered}"
    run = found.timings
    length = found.run_s / max(1e-9, run.total_s + run.answer_s)
    return (
        f"{rows_line}; start {run.start_s:.1f} s, decode {run.t_dec:.1f} s, prefill {run.t_prefill:.1f} s, "
        f"together {run.total_s:.1f} s "
        f"(bound {run.bound:.1f} s, efficiency {run.efficiency:.0%}); {length:.1f} times as fast as it plays"
    )


def show(found: Analysis, answered: str = EARLIER) -> None:
    """Print one recording's answers and their cost.

    Args:
        found: The answers.
        answered: Who answered, if this run did not.
    """
    console = TerminalConsole()
    say(
        console, "[bold]{}[/]  {}, {} frames{}", found.source, clock(found.seconds), found.frames,
        begin_text(found),
    )  # fmt: skip
    table = Table(box=None, header_style="bold", pad_edge=False)
    for name in ("question", "p(yes)", "where", "evidence", "yes from - to"):
        table.add_column(name, justify="right" if name == "p(yes)" else "left", overflow="fold")
    for answer in found.answers:
        ranges = ", ".join(f"{clock(a)} - {clock(b)}" for a, b in answer.yes_s[:4])
        ranges_left = f" and {len(answer.yes_s) - 4} more" if len(answer.yes_s) > 4 else ""
        table.add_row(
            escaped(answer.question),
            f"{answer.p_yes:.3f}",
            f"{clock(answer.start_s)} - {clock(answer.end_s)}",
            ", ".join(f"{clock(at)} ({share:.0%})" for at, share in answer.seen_s),
            ranges + ranges_left,
            style="bold" if answer.p_yes > 0.5 else None,
        )
        if answer.text:
            table.add_row(f"  {escaped(answer.text)}")
        if answer.answers:
            table.add_row(f"  {escaped(shares_text(answer.answers))}")
    console.print(table)
    for line in damage_lines(found):
        console.print(escaped(line), style="yellow", highlight=False)
    console.print(cost_line(found, answered), style="dim", highlight=False)
