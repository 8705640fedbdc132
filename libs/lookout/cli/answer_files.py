"""Writes a recording's answers to a file: a page, a table or subtitles, by the file's name."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lookout.cli.formats import spreadsheet_cell
from lookout.cli.options import page_kind
from lookout.disk import replace_file
from lookout.recordings.analysis.results import COLUMNS
from lookout.text import clean

if TYPE_CHECKING:
    from lookout.recordings.analysis import Analysis

_ROUND = str.maketrans("{}", "()")


def write_answers(
    path: Path, analyses: Sequence[Analysis], opened: Mapping[str, Any], **how: Any
) -> list[Path]:
    """Write the answers as a table of all parts (.csv), the ranges that say yes (.srt), or a page.

    Args:
        path: The file to write. Subtitles are one file per recording: from the second on, the recording's
            number is appended to the stem.
        analyses: The recordings, in order.
        opened: The source of a page's pictures, by the recording's name.
        how: Further arguments for `write_recording_page`.

    Returns:
        The files written.
    """
    kind = page_kind(path)
    if kind == ".csv":
        text = io.StringIO(newline="")
        table = csv.writer(text)
        table.writerow(COLUMNS)
        table.writerows(_row(row) for analysis in analyses for row in analysis.rows())
        replace_file(path, text.getvalue().encode())
        return [path]
    if kind == ".srt":
        paths = [
            path if number == 1 else path.with_stem(f"{path.stem}-{number}")
            for number in range(1, len(analyses) + 1)
        ]
        for place, analysis in zip(paths, analyses, strict=True):
            replace_file(place, "\n".join(_cues(analysis)).encode())
        return paths
    from lookout.cli.report.recording import write_recording_page

    return [write_recording_page(path, analyses, opened, **how)]


def _row(row: Mapping[str, Any]) -> tuple[object, ...]:
    """Return the cells of a table's row."""
    cells: dict[str, Any] = {name: "" if value is None else value for name, value in row.items()}
    for name in ("recording", "question", "text", "gap"):
        cells[name] = spreadsheet_cell(cells[name])
    for name in ("start_s", "end_s"):
        cells[name] = f"{cells[name]:.3f}"
    for name in ("start_time", "end_time"):
        cells[name] = cells[name].isoformat(timespec="milliseconds") if cells[name] else ""
    cells["moments_s"] = " ".join(f"{time_s:.3f}" for time_s in cells["moments_s"])
    return tuple(cells[name] for name in COLUMNS)


def _cues(analysis: Analysis) -> Iterator[str]:
    """Yield SubRip cues in order of time, one for each range in which a question's answer is yes."""
    ranges = sorted(
        (start_s, end_s, answer.question) for answer in analysis.answers for start_s, end_s in answer.yes_s
    )
    for number, (start_s, end_s, question) in enumerate(ranges, start=1):
        text = _subtitle(question) + _clock(analysis, start_s)
        yield f"{number}\n{_time(start_s)} --> {_time(end_s)}\n{text}\n"


def _clock(analysis: Analysis, start_s: float) -> str:
    """Return a line with the date and time at which a cue begins; empty if the time is unknown."""
    time = analysis.time_at(start_s)
    return "" if time is None else f"\n{time:%Y-%m-%d %H:%M:%S}"


def _subtitle(text: str) -> str:
    """Return untrusted text as a line of a subtitle without markup, which the format cannot escape. An
    invisible word joiner after `<` keeps players from reading `<b>` as a tag. Braces become parentheses,
    because players read text in braces as a style.
    """
    return clean(text).replace("<", "<\u2060").translate(_ROUND)


def _time(at_s: float) -> str:
    seconds, milliseconds = divmod(round(at_s * 1000), 1000)
    minutes, seconds = divmod(seconds, 60)
    return f"{minutes // 60:02d}:{minutes % 60:02d}:{seconds:02d},{milliseconds:03d}"
