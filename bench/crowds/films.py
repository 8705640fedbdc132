"""Rendered cameras of which every second one shows a crowd, seen by no training and by no other bench."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Final

from bench.codecsight.streams import GRADE, Camera
from watchbench import cameras, encode
from watchbench.clips import chosen
from watchbench.films import HELD_BACK
from watchbench.training import STEP_S

CONFIRMING: Final = HELD_BACK + 87_000  # seed of the first
SECONDS: Final = 48.5  # two windows of 80 samples, twenty of 20
FPS: Final = Fraction(2)  # pictures a second: those that are sampled, as drawing is what takes long
WISHES: Final = ("many", "lying", "many", "left", "many", "count", "many", None)


def films(first: int, count: int, folder: Path) -> Iterator[Camera]:
    """Cameras of the seeds from `first` on, rendered on first use and kept in `folder`."""
    for number in range(count):
        seed = first + number
        wish = WISHES[number % len(WISHES)]
        scene = chosen((wish,), SECONDS, round(SECONDS / STEP_S), seed, GRADE)
        path = folder / f"{seed}-{cameras.LOOK}-{GRADE:g}-{SECONDS:g}s.mp4"
        if not path.is_file():
            how = replace(encode.varied(seed), loss=0.0, crf=28, bitrate=None)
            encode.write(cameras.frames(scene, SECONDS, fps=FPS), path, FPS, how)
        yield Camera(path.stem, path, scene)
