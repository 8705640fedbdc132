"""Where a recording is cut into parts. Without torch: who plans jobs loads no model."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path

from lookout.analysis.results import Part
from lookout.analysis.settings import AnalysisError, AnalysisSettings
from lookout.files import RecordingReader
from lookout.segments.sampling import Pick


def cut_parts(
    reader: RecordingReader, settings: AnalysisSettings, size: int
) -> tuple[list[Pick], list[Part]]:
    """The samples of a recording, and the parts they are cut into.

    Args:
        reader: The recording.
        settings: Its samples, and the time range.
        size: Samples of a part at most.

    Raises:
        AnalysisError: The range holds no sample.
    """
    end = None if settings.end_s is None else round(settings.end_s * 1e6)
    picks = reader.picks(settings.fps, start_us=round(settings.start_s * 1e6), end_us=end)
    if not picks:
        until = "its end" if settings.end_s is None else f"{settings.end_s:g} s"
        raise AnalysisError(
            f"{reader.facts.name} has no frame from {settings.start_s:g} s to {until}; "
            f"it lasts {reader.facts.duration_us / 1e6:g} s"
        )
    parts = []
    for number, (first, stop) in enumerate(pairwise(part_bounds(len(picks), size))):
        last = picks[stop].time_us if stop < len(picks) else min(reader.facts.duration_us, end or 1 << 60)
        parts.append(Part(number, first, stop, picks[first].time_us / 1e6, last / 1e6))
    return picks, parts


def part_bounds(samples: int, size: int) -> list[int]:
    """Where parts of at most `size` samples begin and end. Where the last would have less than half of that,
    the last two share evenly: an answer from two samples would count as much as one from a whole part."""
    bounds = [*range(0, samples, size), samples]
    if len(bounds) > 2 and bounds[-1] - bounds[-2] < size / 2:
        bounds[-2] = bounds[-3] + -(-(samples - bounds[-3]) // 2)
    return bounds


def trained_frames(folder: Path) -> int | None:
    """The frames of the windows that a checkpoint of `watchbench` was trained on; None for other models."""
    path = folder / "watchbench.json"
    if not path.is_file():
        return None
    frames = json.loads(path.read_text()).get("questions", {}).get("frames")
    return int(frames) if frames else None
