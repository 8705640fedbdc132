"""Cameras with their decoded samples, and a checkpoint that answers questions about them."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from bench.answered import Cut, chains_of
from bench.codecsight.streams import Workplace
from bench.results import Results
from lookout.models import find_model
from lookout.models.digest import folder_digest
from lookout.models.engines import load_engine
from lookout.models.families import load_tower
from lookout.models.windows import StrideBlock
from lookout.pruning import MaskPolicy
from lookout.streams import ClipFrames
from watchbench import scenes


@dataclass(frozen=True, slots=True)
class Clip:
    """A camera with its decoded samples; a scene where it is rendered."""

    name: str
    frames: ClipFrames
    scene: scenes.Scene | None = None


def blocks_of(clip: Clip, masks: MaskPolicy, place: Workplace) -> list[StrideBlock]:
    """The first chain of a camera's blocks."""
    return chains_of(clip.name, clip.frames, place.tower, masks, place.cut)[0]


@contextmanager
def workplace(keep: Path, cut: Cut, folder: Path | None = None, device: str = "cpu") -> Iterator[Workplace]:
    """A checkpoint (None: the tiny model that ships) in float32, on one thread of the host, and what it
    answered before, kept in the folder `keep`."""
    torch.set_num_threads(1)
    model = find_model(folder)
    results = Results(keep / f"answers-{folder_digest(model)[:12]}.jsonl")
    engine = load_engine(model, device, "float32")
    tower = load_tower(model, device=device, dtype="float32")
    try:
        yield Workplace(tower, engine, results, keep / "films", cut, 0.0, time.monotonic())
    finally:
        engine.close()


def print_tables(tables: Mapping[str, Mapping[str, Mapping[str, Any]]]) -> None:
    """Every table with its title, a rule a line."""
    for title, rows in tables.items():
        print(f"\n{title}")
        for name, row in rows.items():
            print(f"  {name:20}" + "  ".join(f"{key} {value}" for key, value in row.items()), flush=True)
