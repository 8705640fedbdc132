"""Cuts clips of the ranges in which an analysis answers yes, at keyframes and without re-encoding."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import Any, Final
from urllib.parse import unquote, urlsplit

from lookout.disk import private_folder, replace_file
from lookout.recordings.analysis.results import Analysis
from lookout.recordings.analysis.settings import AnalysisError
from lookout.text import clean
from lookout.video.files import RecordingClip, RecordingReader, Source
from lookout.video.sandbox import open_recording
from lookout.video.segments import CodecError

CLIP_S: Final = 60.0
"""Maximum length of a clip in seconds. For a longer range, the clip shows the time around its strongest
moment."""
#: maximum bytes of the recording's name in a clip's file name, which may have 255 bytes
_STEM_BYTES: Final = 150


@dataclass(frozen=True, slots=True)
class ClipRange:
    """A range of a recording for which a clip is cut.

    Attributes:
        start_s: Begin, in seconds since the recording's first frame.
        end_s: End, in seconds since the recording's first frame.
        questions: Questions whose answer is yes in the range.
        p_yes: The largest p(yes) in the range.
        strongest_s: The time in seconds that the answer with this p(yes) attended to most.
    """

    start_s: float
    end_s: float
    questions: tuple[str, ...]
    p_yes: float
    strongest_s: float


@dataclass(frozen=True, slots=True)
class ClipFile:
    """A clip on disk, or why it could not be cut.

    Attributes:
        path: The clip's file; None: the clip could not be cut.
        moment: The range that the clip shows. The clip begins with the last keyframe before the range.
        start_s: Time in the recording, in seconds, of the clip's first picture.
        end_s: Time in the recording, in seconds, at which the clip's last picture ends.
        reason: Why the clip could not be cut; empty if it was.
    """

    path: Path | None
    moment: ClipRange
    start_s: float
    end_s: float
    reason: str = ""

    def to_dict(self) -> dict[str, Any]:
        """Return the clip as JSON-compatible data."""
        return {
            "path": None if self.path is None else str(self.path),
            "questions": list(self.moment.questions),
            "p_yes": self.moment.p_yes,
            "start_s": self.start_s,
            "end_s": self.end_s,
            "reason": self.reason,
        }


def clip_ranges(found: Analysis) -> list[ClipRange]:
    """Return the ranges in which an answer is yes, in time order, each at most `CLIP_S` long. Questions with
    the same range share one entry.

    Args:
        found: The analysis.
    """
    ranges: dict[tuple[float, float], ClipRange] = {}
    for number, answer in enumerate(found.answers):
        for start_s, end_s in answer.yes_s:
            clip_range = _range(found, number, start_s, end_s)
            key = (clip_range.start_s, clip_range.end_s)
            if (shared := ranges.get(key)) is not None:
                best = max(shared, clip_range, key=lambda either: either.p_yes)
                clip_range = replace(best, questions=(*shared.questions, *clip_range.questions))
            ranges[key] = clip_range
    return [ranges[key] for key in sorted(ranges)]


def _range(found: Analysis, number: int, start_s: float, end_s: float) -> ClipRange:
    """Return the clip's range for a range in which the question with this number has the answer yes."""
    answered = [
        (result.answers[number], result.part)
        for result in found.parts
        if result.answers and start_s <= result.part.start_s and result.part.end_s <= end_s
    ]
    best, part = max(answered, key=lambda pair: pair[0].p_yes)
    middle = best.seen_s[0][0] if best.seen_s else (part.start_s + part.end_s) / 2
    return shortened(ClipRange(start_s, end_s, (best.question,), best.p_yes, middle), CLIP_S)


def shortened(clip_range: ClipRange, seconds: float) -> ClipRange:
    """Return a range, limited to `seconds` around its strongest moment."""
    if clip_range.end_s - clip_range.start_s <= seconds:
        return clip_range
    start_s = max(clip_range.start_s, min(clip_range.strongest_s - seconds / 2, clip_range.end_s - seconds))
    return replace(clip_range, start_s=start_s, end_s=start_s + seconds)


def cut_clips(
    reader: RecordingReader, ranges: Sequence[ClipRange]
) -> Iterator[tuple[ClipRange, RecordingClip | str]]:
    """Yield each range with its clip or, if the clip cannot be cut, with the reason.

    Args:
        reader: The recording.
        ranges: The ranges to cut.
    """
    for clip_range in ranges:
        try:
            yield clip_range, reader.clip(round(clip_range.start_s * 1e6), round(clip_range.end_s * 1e6))
        except CodecError as error:
            yield clip_range, str(error)


def write_clips(
    found: Analysis,
    folder: Path | str,
    *,
    source: str | Path | Source | RecordingReader | None = None,
    sandbox: bool = False,
    name: str | None = None,
) -> list[ClipFile]:
    """Write a clip of every range in which an answer is yes, without re-encoding and without sound.

    Example:
        >>> found = lookout.analyze("garden.mp4", ["Is a person in view?"])
        >>> for clip in lookout.recordings.analysis.write_clips(found, "clips"):
        ...     print(clip.path, clip.moment.questions)

    If a range is longer than a minute, its clip shows the minute around its strongest moment. A clip's file
    name consists of the recording's name and the range's begin and end, so that names sort by time. A second
    call replaces the files.

    Args:
        found: The analysis.
        folder: Where to write the clips; created if it is missing.
        source: Where to read the recording; None: `found.source`.
        sandbox: Whether to cut in sandboxed processes, which is safer for files from unknown sources.
        name: Prefix of the clips' names; None: the name of the recording's file.

    Returns:
        The clips in time order. A clip that could not be cut is included, with the reason.

    Raises:
        AnalysisError: The folder cannot be written.
        CodecError: The recording can no longer be read.
    """
    ranges = clip_ranges(found)
    name = name or recording_stem(found.source)
    try:
        clip_folder = private_folder(folder)
        with ExitStack() as opened:
            if not ranges:
                return []
            recording = found.source if source is None else source
            reader = opened.enter_context(open_recording(recording, sandbox=sandbox, workers=1))
            clips = cut_clips(reader, ranges)
            return [_written(clip_folder, name, clip_range, clip) for clip_range, clip in clips]
    except OSError as error:
        raise AnalysisError(
            f"clips cannot be written to {clean(str(folder))} ({error.strerror or error})"
        ) from error


def _written(folder: Path, name: str, clip_range: ClipRange, clip: RecordingClip | str) -> ClipFile:
    if isinstance(clip, str):
        return ClipFile(None, clip_range, clip_range.start_s, clip_range.end_s, clip)
    start_s, end_s = clip.start_us / 1e6, clip.end_us / 1e6
    path = folder / f"{name}_{_clock(clip_range.start_s)}_{_clock(clip_range.end_s)}.{clip.container}"
    replace_file(path, clip.data)
    return ClipFile(path, clip_range, start_s, end_s)


def recording_stem(source: str) -> str:
    """Return a recording's name as the prefix of its clips' names.

    Args:
        source: The recording's path or URL.
    """
    name = unquote(urlsplit(source).path) if "://" in source else source
    stem = PurePosixPath(name).stem.replace("/", "_") or "recording"
    return clean(stem).encode("utf-8", "replace")[:_STEM_BYTES].decode("utf-8", "ignore")


def _clock(at_s: float) -> str:
    """Format seconds as hh-mm-ss.mmm, which is valid in file names and sorts by time."""
    seconds, milliseconds = divmod(round(at_s * 1000), 1000)
    minutes, seconds = divmod(seconds, 60)
    return f"{minutes // 60:02d}-{minutes % 60:02d}-{seconds:02d}.{milliseconds:03d}"
