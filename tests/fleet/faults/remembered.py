"""What a disturbed fleet remembers: chapters that can be read whole, every frame once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch

from lookout.past.memory import HistoryError, Past, RangeCache, RetrievalSettings
from lookout.past.memory.chapters import read_sealed
from lookout.past.memory.past import fetch_from


@dataclass(frozen=True, slots=True)
class Remembered:
    """Chapters of a folder. `faults`: a line for each chapter that cannot be read, whose rows are no KV, or
    that has a frame of another one; and one where there is no frame at all."""

    chapters: int
    frames: int
    faults: list[str]


def remembered(folder: Path) -> Remembered:
    """Read every chapter of a fleet that has ended."""
    faults: list[str] = []
    frames: Counter[tuple[str, int]] = Counter()
    paths = [path for path in sorted(folder.glob("*/*")) if path.is_dir()]
    for path in paths:
        try:
            times, wrong = _read(path)
        except HistoryError as error:
            faults.append(f"{path.name}: {error}")
            continue
        faults += [f"{path.name}: {fault}" for fault in wrong]
        frames.update((path.parent.name, time) for time in times)
    faults += [
        f"{camera}: the frame at {time} us is there {count} times"
        for (camera, time), count in frames.items()
        if count > 1
    ]
    if not frames:
        faults.append("nothing is remembered")
    return Remembered(len(paths), len(frames), faults)


def _read(path: Path) -> tuple[list[int], list[str]]:
    """The times of a chapter's frames, and what is wrong with its rows."""
    chapter, files = read_sealed(path)
    cache = RangeCache(fetch_from({chapter.name: files}), 1 << 30)
    past = Past([chapter], cache, RetrievalSettings(frames=10**6))
    return past.times_us.tolist(), list(_wrong_rows(past))


def _wrong_rows(past: Past) -> Iterator[str]:
    """Rows that no engine computes: of zeros, as lost KV leaves them, or without numbers."""
    for layer in range(past.shape.layers):
        choice = past.choose(layer, torch.ones(past.shape.width))
        for slab in past.read(choice, layer):
            if not slab.isfinite().all() or (slab.flatten(1) == 0).all(1).any():
                yield f"layer {layer} has rows that are no KV"
                break
