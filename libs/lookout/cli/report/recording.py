"""The page of analysed recordings: a timeline for each recording, a line for each question, and a player.

A click plays that moment. The player uses the footage's file if the page can reach it, otherwise clips
embedded in the page (for example if the page was sent by mail).
"""

from __future__ import annotations

import base64
import io
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from importlib.resources import files
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote, unquote, urlsplit

from lookout.cli.formats import clock
from lookout.cli.recording_text import (
    EARLIER,
    begin_text,
    clock_time,
    cost_line,
    damage_lines,
    span_text,
)
from lookout.disk import replace_file
from lookout.text import visible

if TYPE_CHECKING:
    from lookout.recordings.analysis import Analysis
    from lookout.recordings.analysis.clips import ClipRange
    from lookout.video.files import RecordingClip, RecordingReader, Source

WIDTH, HEIGHT = 1000, 64
PICTURES = 6
PICTURE = (144, 256)
PAGE_CLIPS: Final = 12 << 20
"""Limit of all clips of a page in bytes. With base64 and pictures, the page then fits into a mail of 25
MB."""
CLIP: Final = 4 << 20
"""Limit of a clip in bytes. If a range needs more, only its strongest seconds are cut."""
STRONGEST_S: Final = 8.0


@dataclass(slots=True)
class _Footage:
    """The pictures and clips of a recording on the page.

    Attributes:
        room: Bytes that further clips may take.
        codec: Name of the codec.
        pictures: Pictures as data URLs, by time in seconds.
        clips: Clips for the script.
        ranges: Number of ranges whose answer is yes.
        covered: Number of these ranges that a clip shows.
    """

    room: int
    codec: str = ""
    pictures: dict[float, str] = field(default_factory=dict)
    clips: list[dict[str, Any]] = field(default_factory=list)
    ranges: int = 0
    covered: int = 0


def write_recording_page(
    path: Path,
    found: Sequence[Analysis],
    opened: Mapping[str, str | Source | RecordingReader] | None = None,
    *,
    refused: Sequence[tuple[str, str]] = (),
    sandbox: bool = True,
    answered: str = EARLIER,
) -> Path:
    """Write the page as a single file with a relative link to the footage.

    Args:
        path: File to write.
        found: The recordings, in order.
        opened: The source of each recording's pictures and clips, by the recording's name. Recordings
            that are not in it are opened by name.
        refused: The recordings that could not be read, each with the reason.
        sandbox: Decode in sandboxed processes.
        answered: Who answered, if this run did not.
    """
    folder = files("lookout.cli.report")
    style = folder.joinpath("page.css").read_text(encoding="utf-8")
    style += folder.joinpath("recording.css").read_text(encoding="utf-8")
    script = folder.joinpath("recording.js").read_text(encoding="utf-8")
    sections, clips, room = [], "", PAGE_CLIPS
    for analysis in found:
        footage = _footage(analysis, (opened or {}).get(analysis.source, analysis.source), sandbox, room)
        room = footage.room
        data = json.dumps(footage.clips, separators=(",", ":"))  # numbers and base64: no untrusted text
        clips += f'<script type="application/json" class="clips">{data}</script>'
        sections.append(_recording(analysis, footage, _link(analysis.source, path), answered))
    sections += [
        f"{_heading(name)}<p class=cost>not analysed: {escape(reason)}</p>" for name, reason in refused
    ]
    body = visible("\n".join(sections))  # names, answers and reasons are untrusted
    path.parent.mkdir(parents=True, exist_ok=True)
    page = (
        '<!doctype html><html lang="en"><head><meta charset="utf-8"><title>Recordings</title>'
        f'<meta name="viewport" content="width=device-width"><style>{style}</style></head>'
        f"<body><main><h1>Recordings</h1>{_HOW}{body}</main>{clips}<script>{script}</script></body></html>"
        "\n"
    )
    replace_file(path, page.encode())
    return path


_HOW = (
    '<p class="how">Bars: p(yes) of each part, red above one half (the line). The number is the highest. '
    "Pictures: those with most of the answer's attention. A click on a bar, a range or a picture plays that "
    "moment.</p>"
)


def _heading(source: str) -> str:
    """Render a file's name as a heading, with the whole path as its tooltip."""
    name = PurePath(unquote(urlsplit(source).path) if "://" in source else source).name or source
    return f'<h2 title="{escape(source, quote=True)}">{escape(name)}</h2>'


def _link(source: str, page: Path) -> str:
    """Return the footage's address relative to the page; empty if it is not a file on this machine."""
    if "://" in source or not os.path.isfile(source):
        return ""
    return quote(os.path.relpath(source, page.parent))


def _recording(found: Analysis, footage: _Footage, link: str, answered: str) -> str:
    lines = "".join(_question(found, place, footage.pictures) for place in range(len(found.questions)))
    gaps = "".join(f'<p class="cost">{escape(line)}</p>' for line in damage_lines(found))
    return (
        f'<section class="recording">{_heading(found.source)}'
        f"<p class=cost>{clock(found.seconds)}, {found.frames} frames{escape(begin_text(found))}</p>"
        f'<div class="beside">{_player(footage, link)}<div class="lines">{lines}{gaps}'
        f"<p class=cost>{escape(cost_line(found, answered))}</p></div></div></section>"
    )


def _player(footage: _Footage, link: str) -> str:
    """Render the player and a note on its source."""
    codec = escape(footage.codec or "this video", quote=True)
    beside = "The footage is linked by its path relative to this page" if link else ""
    inside = f"clips in this page show {footage.covered} of {footage.ranges} ranges that say yes"
    text = "; ".join(filter(None, [beside, inside if footage.ranges else ""]))
    return (
        f'<div class="player"><video controls muted playsinline preload="metadata" '
        f'data-film="{escape(link, quote=True)}" data-codec="{codec}"></video>'
        f'<p class="note" aria-live="polite"></p><p class="cost">{text}{"." if text else ""}</p></div>'
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
        title = f"{span_text(found, result.part.start_s, result.part.end_s)}: {p:.3f}"
        bars.append(
            f'<rect x="{x:.2f}" y="{HEIGHT * (1 - p):.2f}" width="{max(0.6, width - 0.4):.2f}" '
            f'height="{max(0.8, HEIGHT * p):.2f}" fill="{colour}"><title>{title}</title></rect>'
        )
    ticks = "".join(_tick(found, first + length * i / 4) for i in range(5))
    marks = f'<line x1="0" x2="{WIDTH}" y1="{HEIGHT / 2}" y2="{HEIGHT / 2}" stroke="var(--line)"/>'
    text = f"<p>{escape(answer.text)}</p>" if answer.text else ""
    box = f'viewBox="0 0 {WIDTH} {HEIGHT}" preserveAspectRatio="none"'
    ranges = "".join(
        f'<button data-at="{begin:.3f}">{span_text(found, begin, end)}</button>'
        for begin, end in answer.yes_s
    )
    return (
        f'<section class="line"><h3>{escape(answer.question)}<span class="p">{answer.p_yes:.3f}</span></h3>'
        f'<div class="chart" data-first="{first:.3f}" data-length="{length:.3f}">'
        f'<svg {box}>{marks}{"".join(bars)}</svg><i class="cursor" hidden></i></div>'
        f'<div class="axis">{ticks}</div><div class="ranges">{ranges}</div>'
        f"{text}{_seen(found, place, pictures)}</section>"
    )


def _tick(found: Analysis, at_s: float) -> str:
    """Render a tick of the axis, with the time of day below it if known."""
    time = clock_time(found, at_s)
    return f"<span>{clock(at_s)}{f'<br>{time}' if time else ''}</span>"


def _caption(found: Analysis, at_s: float) -> str:
    return ", ".join(filter(None, [clock(at_s), clock_time(found, at_s)]))


def _seen(found: Analysis, place: int, pictures: dict[float, str]) -> str:
    """Render the pictures that an answer is based on."""
    times = [at for at, _ in found.answers[place].seen_s][:PICTURES]
    out = [
        f'<figure data-at="{at:.3f}"><img src="{pictures[at]}" alt="the picture at {clock(at)}">'
        f"<figcaption>{_caption(found, at)}</figcaption></figure>"
        for at in times
        if at in pictures
    ]
    return f'<div class="seen">{"".join(out)}</div>'


def _footage(found: Analysis, source: str | Source | RecordingReader, sandbox: bool, room: int) -> _Footage:
    """Read pictures and clips from the recording; empty if it can no longer be read.

    Args:
        found: The answers.
        source: The recording.
        sandbox: Read it in a sandboxed process.
        room: Bytes that its clips may take.
    """
    from lookout.video.sandbox import open_recording
    from lookout.video.segments import CodecError

    footage = _Footage(room)
    try:
        with open_recording(source, sandbox=sandbox) as reader:
            footage.codec = reader.facts.codec
            footage.pictures = _pictures(found, reader)
            _take_clips(found, reader, footage)
    except CodecError:
        pass  # the page then shows the answers without pictures
    return footage


def _take_clips(found: Analysis, reader: RecordingReader, footage: _Footage) -> None:
    """Add as many clips of ranges whose answer is yes as fit into the page, highest p(yes) first."""
    from lookout.recordings.analysis.clips import clip_ranges, shortened

    ranges = clip_ranges(found)
    footage.ranges = len(ranges)
    for own in sorted(ranges, key=lambda clip_range: -clip_range.p_yes):
        if any(clip["start"] <= own.start_s and own.end_s <= clip["end"] for clip in footage.clips):
            footage.covered += 1
            continue
        for tried in dict.fromkeys((own, shortened(own, STRONGEST_S))):
            clip = _small_clip(reader, tried, min(CLIP, footage.room))
            if clip is None:
                continue
            footage.room -= len(clip.data)
            footage.covered += 1
            footage.clips.append(
                {
                    "from": tried.start_s,
                    "start": clip.start_us / 1e6,
                    "end": clip.end_us / 1e6,
                    "type": f"video/{'quicktime' if clip.container == 'mov' else clip.container}",
                    "data": base64.b64encode(clip.data).decode(),
                }
            )
            break


def _small_clip(reader: RecordingReader, own: ClipRange, limit: int) -> RecordingClip | None:
    """Return a clip of at most `limit` bytes; None if it would have more bytes, or cannot be cut."""
    from lookout.video.segments import CodecError

    try:
        clip = reader.clip(round(own.start_s * 1e6), round(own.end_s * 1e6), max_bytes=max(1, limit))
    except CodecError:
        return None
    return clip if len(clip.data) <= limit else None


def _pictures(found: Analysis, reader: RecordingReader) -> dict[float, str]:
    """Return the evidence's pictures as data URLs, by time in seconds."""
    from lookout.video.motion import Fit

    times = sorted({at for answer in found.answers for at, _ in answer.seen_s[:PICTURES]})
    samples = reader.read(times_us=[round(at * 1e6) for at in times], size=PICTURE, fit=Fit.CONTAIN)
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
