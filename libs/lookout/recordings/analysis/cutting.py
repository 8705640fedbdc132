"""Cuts a recording into parts. This module must not import torch, because services that plan jobs load no
model."""

from __future__ import annotations

import json
from bisect import bisect_left
from itertools import pairwise
from pathlib import Path

from lookout.recordings.analysis.results import Part
from lookout.recordings.analysis.settings import AnalysisError, AnalysisSettings
from lookout.video.files import Gap, RecordingReader
from lookout.video.files.recording import broken_off
from lookout.video.segments.sampling import Pick


def cut_parts(
    reader: RecordingReader, settings: AnalysisSettings, size: int
) -> tuple[list[Pick], list[Part]]:
    """Return the samples of a recording, and the parts into which they are cut. No part spans a hole.

    Args:
        reader: The recording.
        settings: The sample rate and the time range.
        size: Maximum number of samples of a part.

    Raises:
        AnalysisError: The time range has no sample.
    """
    picks, end = picks_of(reader, settings), _end_us(settings)
    if not picks:
        until = "its end" if settings.end_s is None else f"{settings.end_s:g} s"
        raise AnalysisError(
            f"{reader.facts.name} has no frame from {settings.start_s:g} s to {until}; the recording lasts "
            f"{reader.facts.duration_us / 1e6:g} s"
        )
    holes = reader.holes
    runs = [0, *(bisect_left(picks, hole.index, key=lambda pick: pick.index) for hole in holes), len(picks)]
    parts: list[Part] = []
    for begin, end_of_run in pairwise(sorted(set(runs))):
        for first, stop in pairwise(part_bounds(end_of_run - begin, size)):
            following = picks[begin + stop].time_us if begin + stop < len(picks) else reader.facts.duration_us
            index = picks[begin + stop - 1].index
            hole = next((hole for hole in holes if hole.index > index), None)
            last = min(following, end or following, hole.start_us if hole is not None else following)
            start_s = picks[begin + first].time_us / 1e6
            parts.append(Part(len(parts), begin + first, begin + stop, start_s, last / 1e6))
    return picks, parts


def gaps_in_file(reader: RecordingReader, settings: AnalysisSettings) -> tuple[Gap, ...]:
    """Return the gaps of a recording that decoding does not report: holes in the time range, and a missing
    end.

    Args:
        reader: The recording.
        settings: The time range.
    """
    start_us, end_us = round(settings.start_s * 1e6), _end_us(settings)
    gaps = []
    for hole in reader.holes:
        first = max(hole.start_us, start_us)
        last = min(hole.end_us, hole.end_us if end_us is None else end_us)
        if first < last:
            length_s = (hole.end_us - hole.start_us) / 1e6
            gaps.append(Gap(first, last, 0, f"no footage: the file has no picture for {length_s:.4g} s"))
    return (*gaps, *broken_off(reader.facts))


def picks_of(reader: RecordingReader, settings: AnalysisSettings) -> list[Pick]:
    """Return the samples of a recording in the settings' time range."""
    return reader.picks(settings.fps, start_us=round(settings.start_s * 1e6), end_us=_end_us(settings))


def _end_us(settings: AnalysisSettings) -> int | None:
    return None if settings.end_s is None else round(settings.end_s * 1e6)


def part_bounds(samples: int, size: int) -> list[int]:
    """Return the bounds of parts of at most `size` samples, from 0 to `samples`.

    If the last part would have less than half of `size`, the last two parts get equal lengths. Otherwise an
    answer from two samples could count as much as an answer from a whole part.
    """
    bounds = [*range(0, samples, size), samples]
    if len(bounds) > 2 and bounds[-1] - bounds[-2] < size / 2:
        bounds[-2] = bounds[-3] + -(-(samples - bounds[-3]) // 2)
    return bounds


def trained_frames(folder: Path) -> int | None:
    """Return the number of frames of the windows on which a checkpoint of `watchbench` was trained; None for
    other checkpoints."""
    path = folder / "watchbench.json"
    if not path.is_file():
        return None
    frames = json.loads(path.read_text()).get("questions", {}).get("frames")
    return int(frames) if frames else None
