"""`python -m bench.codecsight.bits`: answers under masks by the bits that a codec spent on each block.

LLaVA-OneVision-2 prunes by bits. On the rendered cameras of `bench.codecsight`, in H.264 and HEVC, every way
keeps the default's anchors and behind them as many tokens of each sample as the default keeps; a signal says
which. A group's score is what the signal has added up since the group was last encoded.

- `bits`: of macroblocks or CTUs. Those of keyframes are left out, as they tell of texture alone.
- `vectors`: displacements. HEVC exports none, so its groups are drawn. `random`: all groups are drawn.
- `default`: luma. `full`: every token, computed whole. The others reuse KV as the default does.

`python -m bench.codecsight.bits --films` renders the films and prints their paths, `bench/bits_dump.py`
writes the bits of them into a folder, and `--bits FOLDER` compares. The last line is JSON, with every camera.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from tqdm import tqdm

from bench.answered import chains_of, default
from bench.bits import spread, timed
from bench.codecsight.policies import PAPER, WHOLE, of_groups
from bench.codecsight.streams import Camera, Outcome, Workplace, camera, outcome, truth_of
from bench.workplace import print_tables
from bench.worth import Found, counted, less_others, per_camera, rivals
from lookout.pruning import Carry, MaskPolicy, PrunePolicy, Sample, TemporalMask
from lookout.streams import ClipFrames, read_clip
from lookout.video.motion.grids import GroupedPatches, spread as over_patches

SIGNALS: Final = ("bits", "vectors", "random")
RULE: Final = PrunePolicy()
P = NDArray[np.float32]


@dataclass(frozen=True, eq=False)
class AsMany(MaskPolicy):
    """Keeps the default's anchors and, in every other sample, as many groups as the default keeps.

    The groups with the largest scores are kept. A group's score is the sum since it was last encoded; among
    equal scores, groups are drawn.

    Attributes:
        clip: Whose samples are masked.
        scores: Of every sample of the clip, float32 [samples, group rows, group columns].
    """

    clip: ClipFrames
    scores: P
    _totals: dict[int, P] = field(default_factory=dict)  # by the sample that a block begins with

    def masks(
        self, samples: Sequence[Sample], grid: GroupedPatches, carry: Carry | None = None
    ) -> tuple[list[TemporalMask], Carry | None]:
        """See `MaskPolicy.masks`."""
        masks, carry = RULE.masks(samples, grid, carry)
        places = {id(frame.sample): place for place, frame in enumerate(self.clip.frames)}
        first = places[id(samples[0])]
        draw = np.random.default_rng(first)
        total = self._totals.get(first, np.zeros(self.scores.shape[1:], np.float32))
        out = []
        for mask in masks:
            total = total + self.scores[places[id(samples[mask.frames[0]])]]
            keep = mask.keep
            if not mask.anchor:
                order = np.lexsort((draw.random(total.size), -total.ravel()))
                keep = np.isin(np.arange(total.size), order[: mask.keep.sum()]).reshape(total.shape)
            total = np.where(keep, np.float32(0), total)
            out.append(replace(mask, keep=keep, dynamic=over_patches(keep, grid)))
        self._totals[places[id(samples[-1])] + 1] = total
        return out, carry


def scores_of(
    shown: Camera, clip: ClipFrames, grid: GroupedPatches, found: Mapping[str, Any]
) -> dict[str, P]:
    """The score of every sample of a film by signal: float32 [samples, group rows, group columns]."""
    at, film = np.array([frame.time_us for frame in clip.frames]) / 1e6, timed(shown.path)
    counts = len(found["blocks"])
    groups = RULE.masks([clip.frames[0].sample], grid)[0][0].keep.shape
    out = {name: np.zeros((len(at), *groups), np.float32) for name in SIGNALS}
    for place, (before, now) in enumerate(pairwise(at), start=1):
        inside = (film.seconds[:counts] > before + 1e-6) & (film.seconds[:counts] <= now + 1e-6)
        inside &= ~film.key[:counts]
        out["bits"][place] = spread(found["blocks"][inside].sum(0)[None], groups[0])[0]
        vectors = clip.frames[place].sample.v
        if vectors is not None:
            known = np.nan_to_num(vectors.astype(np.float32), posinf=1e4)
            out["vectors"][place] = of_groups(known, grid)
    return out


def looked_at(shown: Camera, file: Path, place: Workplace) -> dict[str, Outcome]:
    """The answers of one camera by every way."""
    clip = read_clip(shown.path, place.tower.grid, vectors=PAPER.gathers)
    scores = scores_of(shown, clip, place.tower.grid, np.load(file))
    whole = PrunePolicy(everything=True)
    ways: dict[str, MaskPolicy] = {"full": whole, "default": RULE}
    ways |= {name: AsMany(clip, score) for name, score in scores.items()}
    out = {}
    for name, masks in ways.items():
        key = f"{shown.name}, equal tokens, {name}"
        (blocks,) = (
            ((),) if key in place.results else chains_of(shown.name, clip, place.tower, masks, place.cut)
        )
        out[name] = outcome(key, blocks, WHOLE if name == "full" else default(), place)
    return out


def compared(shown: Sequence[Camera], bits: Path, place: Workplace) -> dict[str, Any]:
    """The tables of the cameras whose bits are there."""
    found: dict[str, list[Found]] = {}
    truths, names = [], []
    for one in tqdm(shown, desc="cameras", disable=None):
        file = bits / f"{one.path.name}.npz"
        if not file.is_file():
            continue
        for name, got in looked_at(one, file, place).items():
            cost = float(got.answered.flops.mean())
            found.setdefault(name, []).append(Found(got.answered.p, cost, got.kept))
        truths.append(truth_of(one, place))
        names.append(one.name)
    if not names:
        raise SystemExit(f"{bits} has no bits of these films: bench/bits_dump.py reads those of --films")
    tables = {name: counted(some, truths) for name, some in found.items()}
    hevc = [place for place, name in enumerate(names) if "-hevc-" in name]
    out: dict[str, Any] = {
        "ways": rivals(tables, found),
        "default less others": less_others(tables, "default"),
    }
    out["bits less others"] = less_others(tables, "bits")
    for told, rows in (("HEVC", hevc), ("H.264", [n for n in range(len(names)) if n not in hevc])):
        if rows:
            out[f"{told}: default less others"] = less_others(
                {name: table[rows] for name, table in tables.items()}, "default"
            )
    return {"cameras": len(names), "hevc": len(hevc), "tables": out, "per camera": per_camera(names, tables)}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--cameras", type=int, default=24, help="rendered cameras")
    parser.add_argument("--films", action="store_true", help="render the films, print their paths and end")
    parser.add_argument(
        "--bits", type=Path, default=Path("out/codecsight/bits"), help="files of bits_dump.py"
    )
    parser.add_argument("--keep", type=Path, default=Path("out/codecsight"), help="films and answers")
    options = parser.parse_args()
    torch.set_num_threads(1)
    place = Workplace.at(options.keep)
    shown = [camera(number, place) for number in range(options.cameras)]
    if options.films:
        print(*(one.path for one in shown), sep="\n")
        return
    line = compared(shown, options.bits, place)
    place.engine.close()
    print_tables(line["tables"])
    print(json.dumps(line))


if __name__ == "__main__":
    main()
