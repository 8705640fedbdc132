"""What a window is for: films whose answers lie in no stride of them (`watchbench.far`): `make bench-far`.

Each film is a camera: a quiet stride, then the five of the film, so that the window of the film reuses the KV
of four strides from the key window before it. Films of every kind come in units of Yes and No that are made
of the same strides. A figure is the share of films answered right at p(yes) of .5, its interval 95 % over
units (bootstrap), half of the films being a Yes: .5 is chance.

Ways as in `bench.worth`: `full`, `default`, `masks, whole`, `even 16`, `strides` (largest of five) and
`strides, mean`. A gate holds where the intervals of `full` begin above .5 and those of `strides` do not.

Answers are kept under --keep, and a run continues where it was stopped. The last line is JSON.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from tqdm import tqdm

from bench.answered import Cut, answered, default
from bench.codecsight.streams import Workplace
from bench.crowds.compare import Clip, blocks_of, print_tables, workplace
from bench.jobs import in_parallel
from bench.worth import DENSE, MASKS, Drawn, alone, answered_on, edges, even, shown
from lookout.models.engines import Question
from lookout.models.windows import StrideBlock
from lookout.pruning import PrunePolicy
from lookout.streams import read_clip
from watchbench import cameras, encode, far, scenes
from watchbench.films import HELD_BACK
from watchbench.training import STEP_S

FIRST: Final = HELD_BACK + 120_000
LEAD: Final = 1  # quiet strides before a film
FPS: Final = Fraction(2)
CUT: Final = Cut(far.STRIDE, LEAD + 1, LEAD + far.STRIDES)
SECONDS: Final = CUT.seconds
WAYS: Final = ("full", "default", MASKS, "even 16", "strides", "strides, mean")


def film(kind: str, unit: int, row: int, folder: Path) -> Path:
    """A film of a unit, of which every second one is a Yes; rendered on first use."""
    seed = FIRST + unit
    path = folder / f"{kind}-{seed}-{row}-{cameras.LOOK}.mp4"
    if not path.is_file():
        scene = scenes.some_of(far.films(kind, 1, seed).scene, torch.tensor([row]))
        pictures = cameras.frames(scene, SECONDS, fps=FPS, begin=-LEAD * far.STRIDE * STEP_S)
        encode.write(pictures, path, FPS, replace(encode.varied(seed), loss=0.0, crf=28, bitrate=None))
    return path


def p_of(kind: str, unit: int, row: int, place: Workplace) -> dict[str, float]:
    """p(yes) at the end of a film, by way."""
    name, question = f"{kind}-{FIRST + unit}-{row}", question_of(kind)
    if name not in place.results:
        clip = Clip(name, read_clip(film(kind, unit, row, place.folder), place.tower.grid))
        pruned, dense = (blocks_of(clip, masks, place) for masks in (PrunePolicy(), DENSE))
        window = dense[-far.STRIDES :]
        strides, _ = alone(place.engine, [[block] for block in pruned[-far.STRIDES :]], [question])
        sixteen, _ = alone(place.engine, [shown(window, even(16))], [question])
        whole, _ = alone(place.engine, [window, pruned[-far.STRIDES :]], [question])

        def reused(blocks: list[StrideBlock]) -> float:
            return float(answered(place.engine, [blocks], default(), CUT, [question]).p[-1, 0])

        place.results.add(
            name,
            {
                "full": whole[0][0],
                "default": reused(pruned),
                MASKS: whole[1][0],
                "even 16": sixteen[0][0],
                "strides": float(np.max(strides)),
                "strides, mean": float(np.mean(strides)),
            },
        )
    found: dict[str, float] = place.results.found[name]
    return found


def question_of(kind: str) -> Question:
    """What is asked of films of a kind."""
    asked = far.FAR[far.KINDS.index(kind)]
    return Question(asked.name, asked.text)


def units_right(kind: str, units: int, place: Workplace) -> dict[str, NDArray[np.float64]]:
    """By way: the share answered right of every unit's films."""
    right: dict[str, list[float]] = {way: [] for way in WAYS}
    for unit in range(units):
        told = [p_of(kind, unit, row, place) for row in range(far.UNIT.get(kind, 2))]
        for way, shares in right.items():
            shares.append(float(np.mean([(p[way] > 0.5) == (row % 2 == 0) for row, p in enumerate(told)])))
    return {way: np.array(shares) for way, shares in right.items()}


def table_of(right: dict[str, NDArray[np.float64]]) -> dict[str, Any]:
    """A kind's row: every way with its interval."""
    row: dict[str, Any] = {}
    for way, shares in right.items():
        row[way] = round(float(shares.mean()), 3)
        row[f"{way} 95 %"] = edges(shares[Drawn.of(len(shares)).rows].mean(1))
    less = right["default"] - right["strides"]
    row["default less strides 95 %"] = edges(less[Drawn.of(len(less)).rows].mean(1))
    row["gate"] = row["full 95 %"][0] > 0.5 >= row["strides 95 %"][0]
    return row


def share(options: argparse.Namespace, part: int) -> None:
    """Answer the units of one process of `--jobs`."""
    with workplace(options.keep, CUT, options.model, options.device) as place:
        answered_on(place.results, options.device)
        units = range(part, options.units, options.jobs)
        for unit in tqdm(units, desc="units", disable=None):
            for kind in far.KINDS:
                for row in range(far.UNIT.get(kind, 2)):
                    p_of(kind, unit, row, place)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--units", type=int, default=44, help="of each kind")
    parser.add_argument("--keep", type=Path, default=Path("out/far"), help="folder for films and answers")
    parser.add_argument("--model", type=Path, help="folder of a checkpoint; the bundled model by default")
    parser.add_argument("--device", default="cpu", help="where it runs")
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    options = parser.parse_args()
    in_parallel(share, options, options.jobs)
    with workplace(options.keep, CUT, options.model) as place:
        found = {kind: units_right(kind, options.units, place) for kind in far.KINDS}
        device = place.results.found["device"]
    tables = {kind: table_of(right) for kind, right in found.items()}
    print_tables({"films": tables})
    per_unit = {
        kind: {way: " ".join(f"{value:g}" for value in shares) for way, shares in right.items()}
        for kind, right in found.items()
    }
    print(json.dumps({"units": options.units, "answered on": device, "films": tables, "per unit": per_unit}))


if __name__ == "__main__":
    main()
