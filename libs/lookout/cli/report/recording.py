"""The page of analysed recordings: one timeline a recording, a line a question."""

from __future__ import annotations

import base64
import io
from collections.abc import Mapping, Sequence
from html import escape
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING

from lookout.cli.recording_text import EARLIER, clock, cost_line, damage_lines
from lookout.outside_text import visible

if TYPE_CHECKING:
    from lookout.analysis import Analysis
    from lookout.files import RecordingReader, Source

WIDTH, HEIGHT = 1000, 64
PICTURES = 6
PICTURE = (144, 256)


def write_recording_page(
    path: Path,
    found: Sequence[Analysis],
    opened: Mapping[str, str | Source | RecordingReader] | None = None,
    *,
    refused: Sequence[tuple[str, str]] = (),
    sandbox: bool = True,
    answered: str = EARLIER,
) -> Path:
    """Write the page, whole in one file.

    Args:
        path: Where.
        found: The recordings, in order.
        opened: Where to read a recording's pictures, by its name; those it does not hold are opened by name.
        refused: The recordings that could not be read, each with the reason.
        sandbox: Read the pictures in confined processes.
        answered: Who answered, where this run did not.
    """
    style = files("lookout.cli.report").joinpath("page.css").read_text(encoding="utf-8")
    body = "\n".join(
        _recording(analysis, (opened or {}).get(analysis.source, analysis.source), sandbox, answered)
        for analysis in found
    )
    body += "".join(
        f"<h2>{escape(name)}</h2><p class=cost>not analysed: {escape(reason)}</p>" for name, reason in refused
    )
    body = visible(body)  # names, answers and reasons are from outside
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(
        '<!doctype html><html lang="en"><head><meta charset="utf-8"><title>Recordings</title>'
        f'<meta name="viewport" content="width=device-width"><style>{style}{_STYLE}</style></head>'
        f"<body><main><h1>Recordings</h1>{_HOW}{body}</main></body></html>\n",
        encoding="utf-8",
    )
    return path


_STYLE = """
main { padding-top: 28px; padding-bottom: 40px; }
h2 { overflow-wrap: anywhere; }
.line svg { width: 100%; height: 64px; display: block; }
.axis { display: flex; justify-content: space-between; }
.axis, .how { color: var(--soft); font-size: 13px; font-variant-numeric: tabular-nums; }
.line { margin: 14px 0 22px; } .p { float: right; font-variant-numeric: tabular-nums; font-weight: 650; }
.seen { display: flex; flex-wrap: wrap; gap: 10px; margin-top: 10px; }
.seen figure { margin: 0; flex: 1 1 150px; max-width: 256px; }
.seen img { border-radius: 8px; display: block; width: 100%; height: auto; }
figcaption { color: var(--soft); font-size: 13px; }
.cost { color: var(--soft); font-size: 13.5px; }
"""


_HOW = (
    '<p class="how">Bars: p(yes) of each part, red above one half (the line). The number is the highest. '
    "Pictures: those on which the answer rests most.</p>"
)


def _recording(found: Analysis, source: str | Source | RecordingReader, sandbox: bool, answered: str) -> str:
    pictures = _pictures(found, source, sandbox)
    lines = "".join(_question(found, place, pictures) for place in range(len(found.questions)))
    gaps = "".join(f'<p class="cost">{escape(line)}</p>' for line in damage_lines(found))
    return (
        f"<h2>{escape(found.source)}</h2><p class=cost>{clock(found.seconds)}, {found.frames} frames</p>"
        f"{lines}{gaps}<p class=cost>{escape(cost_line(found, answered))}</p>"
    )


def _question(found: Analysis, place: int, pictures: dict[float, str]) -> str:
    answer = found.answers[place]
    first = found.parts[0].part.start_s
    length = max(1e-9, found.parts[-1].part.end_s - first)
    scale = WIDTH / length
    bars = []
    for result in found.parts:
        if not result.answers:
            continue
        p = result.answers[place].p_yes
        x, width = (result.part.start_s - first) * scale, (result.part.end_s - result.part.start_s) * scale
        colour = "var(--alarm)" if p > 0.5 else "var(--c0)"
        title = f"{clock(result.part.start_s)} to {clock(result.part.end_s)}: {p:.3f}"
        bars.append(
            f'<rect x="{x:.2f}" y="{HEIGHT * (1 - p):.2f}" width="{max(0.6, width - 0.4):.2f}" '
            f'height="{max(0.8, HEIGHT * p):.2f}" fill="{colour}"><title>{title}</title></rect>'
        )
    ticks = "".join(f"<span>{clock(first + length * i / 4)}</span>" for i in range(5))
    marks = f'<line x1="0" x2="{WIDTH}" y1="{HEIGHT / 2}" y2="{HEIGHT / 2}" stroke="var(--line)"/>'
    text = f"<p>{escape(answer.text)}</p>" if answer.text else ""
    box = f'viewBox="0 0 {WIDTH} {HEIGHT}" preserveAspectRatio="none"'
    return (
        f'<section class="line"><h3>{escape(answer.question)}<span class="p">{answer.p_yes:.3f}</span></h3>'
        f'<svg {box}>{marks}{"".join(bars)}</svg><div class="axis">{ticks}</div>'
        f"{text}{_seen(found, place, pictures)}</section>"
    )


def _seen(found: Analysis, place: int, pictures: dict[float, str]) -> str:
    """The pictures that an answer is based on."""
    times = [at for at, _ in found.answers[place].seen_s][:PICTURES]
    out = [
        f'<figure><img src="{pictures[at]}" alt="the picture at {clock(at)}">'
        f"<figcaption>{clock(at)}</figcaption></figure>"
        for at in times
        if at in pictures
    ]
    return f'<div class="seen">{"".join(out)}</div>'


def _pictures(found: Analysis, source: str | Source | RecordingReader, sandbox: bool) -> dict[float, str]:
    """Pictures by time, read from the recording again where it can be read."""
    from lookout.motion import Fit
    from lookout.sandbox import open_recording
    from lookout.segments import CodecError

    times = sorted({at for answer in found.answers for at, _ in answer.seen_s[:PICTURES]})
    try:
        with open_recording(source, sandbox=sandbox) as reader:
            samples = reader.read(times_us=[round(at * 1e6) for at in times], size=PICTURE, fit=Fit.CONTAIN)
    except CodecError:
        return {}
    shown = {
        round(at / 1e6, 6): _jpeg(pixels)
        for at, pixels in zip(samples.times_us.tolist(), samples.pixels, strict=True)
    }
    return {at: shown[round(at, 6)] for at in times if round(at, 6) in shown}


def _jpeg(pixels: object) -> str:
    from PIL import Image

    out = io.BytesIO()
    Image.fromarray(pixels).save(out, "JPEG", quality=82)  # type: ignore[arg-type]
    return "data:image/jpeg;base64," + base64.b64encode(out.getvalue()).decode()
