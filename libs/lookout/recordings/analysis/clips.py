"""Clips of an analysis: the ranges with the answer yes, cut at keyframes without re-encoding."""

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
"""Longest clip in seconds; the clip of a longer range shows the part around its strongest moment."""
_STEM_BYTES: Final = 150  # of the recording's name, in a clip's name of at most 255 bytes


@dataclass(frozen=True, slots=True)
class ClipRange:
    """A range for which a clip is made.

    Attributes:
        start_s: Begin in seconds.
        end_s: End in seconds.
        questions: Questions whose answer is yes there.
        p_yes: The largest probability in the range.
        strongest_s: The time to which that answer attends most.
    """

    start_s: float
    end_s: float
    questions: tuple[str, ...]
    p_yes: float
    strongest_s: float


@dataclass(frozen=True, slots=True)
class ClipFile:
    """A clip on disk, or why it could not be made.

    Attributes:
        path: The file; None: it could not be cut.
        moment: The range that the clip shows; the clip begins with the last keyframe before it.
        start_s: Time of the clip's first picture in the recording.
        end_s: Time at which its last picture ends.
        reason: Why the clip could not be cut.
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
    """Return the ranges with the answer yes, in time order; questions with the same range share one entry.

    Args:
        found: The answers.
    """
    ranges: dict[tuple[float, float], ClipRange] = {}
    for place, answer in enumerate(found.answers):
        for start_s, end_s in answer.yes_s:
            own = _range(found, place, start_s, end_s)
            key = (own.start_s, own.end_s)
            if (shared := ranges.get(key)) is not None:
                best = max(shared, own, key=lambda clip_range: clip_range.p_yes)
                own = replace(best, questions=(*shared.questions, *own.questions))
            ranges[key] = own
    return [ranges[key] for key in sorted(ranges)]


def _range(found: Analysis, place: int, start_s: float, end_s: float) -> ClipRange:
    answered = [
        (result.answers[place], result.part)
        for result in found.parts
        if result.answers and start_s <= result.part.start_s and result.part.end_s <= end_s
    ]
    best, part = max(answered, key=lambda pair: pair[0].p_yes)
    middle = best.seen_s[0][0] if best.seen_s else (part.start_s + part.end_s) / 2
    return shortened(ClipRange(start_s, end_s, (best.question,), best.p_yes, middle), CLIP_S)


def shortened(own: ClipRange, seconds: float) -> ClipRange:
    """Return the range, limited to this many seconds around its strongest moment."""
    if own.end_s - own.start_s <= seconds:
        return own
    start_s = max(own.start_s, min(own.strongest_s - seconds / 2, own.end_s - seconds))
    return replace(own, start_s=start_s, end_s=start_s + seconds)


def cut_clips(
    reader: RecordingReader, ranges: Sequence[ClipRange]
) -> Iterator[tuple[ClipRange, RecordingClip | str]]:
    """Yield each range with its clip, or with the reason why it cannot be cut.

    Args:
        reader: The recording.
        ranges: The ranges to cut.
    """
    for own in ranges:
        try:
            yield own, reader.clip(round(own.start_s * 1e6), round(own.end_s * 1e6))
        except CodecError as error:
            yield own, str(error)


def write_clips(
    found: Analysis,
    folder: Path | str,
    *,
    source: str | Path | Source | RecordingReader | None = None,
    sandbox: bool = False,
    name: str | None = None,
) -> list[ClipFile]:
    """Write a clip of every range with the answer yes, without re-encoding and without sound.

    Example:
        >>> found = lookout.analyze("garden.mp4", ["Is a person in view?"])
        >>> for clip in lookout.recordings.analysis.write_clips(found, "clips"):
        ...     print(clip.path, clip.moment.questions)

    If a range is longer than a minute, its clip shows the minute around its strongest moment. A file's name
    consists of the recording's name, the begin and the end, so that names sort by time. A second call
    replaces the files.

    Args:
        found: The answers.
        folder: Where to write the clips; created if it is missing.
        source: Where to read the recording; None: the source in the answers.
        sandbox: Whether to cut in sandboxed processes, for files from unknown sources.
        name: Prefix of the clips' names; None: the name of the recording's file.

    Returns:
        The clips in time order, including those that could not be cut, with the reason.

    Raises:
        AnalysisError: The folder cannot be written.
        CodecError: The recording can no longer be read.
    """
    ranges = clip_ranges(found)
    name = name or recording_stem(found.source)
    try:
        place = private_folder(folder)
        with ExitStack() as opened:
            if not ranges:
                return []
            recording = found.source if source is None else source
            reader = opened.enter_context(open_recording(recording, sandbox=sandbox, workers=1))
            return [_written(place, name, own, clip) for own, clip in cut_clips(reader, ranges)]
    except OSError as error:
        raise AnalysisError(
            f"clips cannot be written to {clean(str(folder))} ({error.strerror or error})"
        ) from error


def _written(folder: Path, name: str, own: ClipRange, clip: RecordingClip | str) -> ClipFile:
    if isinstance(clip, str):
        return ClipFile(None, own, own.start_s, own.end_s, clip)
    start_s, end_s = clip.start_us / 1e6, clip.end_us / 1e6
    path = folder / f"{name}_{_clock(own.start_s)}_{_clock(own.end_s)}.{clip.container}"
    replace_file(path, clip.data)
    return ClipFile(path, own, start_s, end_s)


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
