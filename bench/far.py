"""Compare the default with the simplest ways of reading a stream, on films whose answers lie in no single
stride.

The films are those of `watchbench.far`, drawn with other seeds than the films that the weights were trained
on. They are processed as in the product: encoded (224 x 224), decoded, sampled, masked. Five strides precede
the window, so that the default reuses KV as in a long stream; in every second unit, a person came in the last
of these strides and has left. The ways are those of `bench.worth`. The checkpoint is `bench/across`, which
`watchbench across` trained, or another one (`--model`).

- `accuracy`: share of right answers at p(yes) of 0.5; every second film is a Yes, so chance is 0.5. `auc`:
  share of pairs of a Yes and a No in which the Yes has the larger p(yes). Intervals are 95 % over units of
  films (bootstrap).
- `strides, ...`: the largest and the mean p(yes) of the five strides, and logistic regressions on all five,
  either sorted by size (`fitted`) or in order of time (`fitted in time`), fitted on the other units. `kept,
  ...`: the same regressions on the number of tokens that each stride keeps.
- `flops`: FLOPs of the language model, without questions, as a share of `full`. `apart`: mean |difference of
  p(yes)| from windows that are computed whole under the same masks.

Answers are stored under --keep, and an interrupted run continues; `--jobs` distributes the films. The last
line is JSON.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from tqdm import tqdm

from bench.answered import answered, interval, over_period
from bench.codecsight.streams import Workplace
from bench.jobs import in_parallel
from bench.workplace import Clip, blocks_of, print_tables, workplace
from bench.worth import CUT, DENSE, FPS, MASKS, SELECTED, SETTINGS, alone, shown
from lookout.models.engines import Question
from lookout.models.windows import StrideBlock
from lookout.pruning import PrunePolicy
from lookout.streams import ClipFrames, read_clip
from watchbench import cameras, encode, far, scenes
from watchbench.evaluation.intervals import Drawn, edges
from watchbench.films import HELD_BACK
from watchbench.training import STEP_S

FIRST: Final = HELD_BACK + 130_000
SIZE: Final = 224  # of pictures; the model reads 112
BEFORE: Final = 5  # strides before the window
SECONDS: Final = (BEFORE + far.STRIDES) * far.STRIDE * STEP_S + STEP_S
OTHERS: Final = ("faithful", "paper's refresh")
WAYS: Final = ("full", MASKS, "default", *SELECTED, "strides, max", "strides, mean")
FITTED: Final = ("strides, fitted", "strides, fitted in time", "kept, fitted", "kept, fitted in time")
P = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Film:
    """One film: its kind, its number among those of the kind, its scene, and its answer."""

    kind: str
    number: int
    visitor: bool
    scene: scenes.Scene
    yes: bool

    @property
    def name(self) -> str:
        """Its name."""
        return f"{self.kind} {self.number}"

    def clip(self, place: Workplace) -> ClipFrames:
        """Its samples; it is rendered on first use."""
        path = place.folder / f"far-{self.kind}-{FIRST}-{self.number:03d}.mp4"
        if not path.is_file():
            how = replace(encode.varied(self.scene.seed), loss=0.0, crf=28, bitrate=None)
            encode.write(cameras.frames(self.scene, SECONDS, SIZE, FPS), path, FPS, how)
        return read_clip(path, place.tower.grid)


def films(kind: str, count: int) -> list[Film]:
    """Draw films of a kind; those of one unit follow each other."""
    each, out = far.UNIT.get(kind, 2), list[Film]()
    for unit in range(count // each):
        seed = FIRST + 1000 * far.KINDS.index(kind) + unit
        visitor = unit % 2 == 1
        drawn = far.films(kind, 1, seed, before=BEFORE, visitor=visitor)
        for row in range(each):
            scene = scenes.some_of(drawn.scene, torch.tensor([row]))
            out.append(Film(kind, len(out), visitor, scene, bool(drawn.yes[row])))
    return out


def answers_of(film: Film, place: Workplace, others: bool) -> dict[str, Any]:
    """By way: p(yes) and FLOPs of a film's window; of `strides`, p(yes) of all five; tokens that they keep.
    `others`: with :data:`OTHERS`.
    """
    key = f"{film.name}, {'all' if others else 'most'}"
    if key in place.results:
        found: dict[str, Any] = place.results.found[key]
        return found
    asked = [Question(film.kind, far.FAR[far.KINDS.index(film.kind)].text)]
    clip = film.clip(place)
    last = replace(clip, frames=clip.frames[BEFORE * far.STRIDE :])
    dense = blocks_of(Clip(film.name, last), DENSE, place)
    pruned = blocks_of(Clip(film.name, clip), PrunePolicy(), place)
    window = {"dense": dense[-CUT.blocks :], "pruned": pruned[-CUT.blocks :]}
    out: dict[str, Any] = {}

    def put(name: str, windows: Sequence[Sequence[StrideBlock]]) -> None:
        p, flops = alone(place.engine, windows, asked)
        out[name] = {"p": [round(one[0], 5) for one in p], "flops": float(np.mean(flops))}

    put("full", [window["dense"]])
    put(MASKS, [window["pruned"]])
    put("strides", [[block] for block in window["pruned"]])
    for name, places in SELECTED.items():
        put(name, [shown(window["dense"], places)])
    for name in ("default", *(OTHERS if others else ())):
        chain = answered(place.engine, [pruned], SETTINGS[name][1], CUT, asked)
        p, flops = round(float(chain.p[-1, 0]), 5), over_period(chain.flops, chain.key)
        out[name] = {"p": [p], "flops": flops}
    out["kept"] = [sum(len(frame.kept) for frame in block.frames) for block in window["pruned"]]
    place.results.add(key, out)
    return out


def fitted(values: P, yes: NDArray[np.bool_], unit: NDArray[np.int64]) -> P:
    """p(yes) of films by logistic regressions on values [films, features], each fitted on the other units."""
    out = np.zeros(len(yes))
    for one in np.unique(unit):
        rest = unit != one
        mean, spread = values[rest].mean(0), values[rest].std(0) + 1e-9
        x = np.column_stack([(values - mean) / spread, np.ones(len(values))])
        w = np.zeros(x.shape[1])
        for _ in range(20):  # Newton's steps, with a small penalty so that they end
            p = 1 / (1 + np.exp(-(x[rest] @ w)))
            slope = x[rest].T @ (p - yes[rest]) + 0.1 * w
            curve = (x[rest].T * (p * (1 - p))) @ x[rest] + 0.1 * np.eye(len(w))
            w -= np.linalg.solve(curve, slope)
        out[~rest] = 1 / (1 + np.exp(-(x[~rest] @ w)))
    return out


def ways_of(
    found: Sequence[Mapping[str, Any]], yes: NDArray[np.bool_], unit: NDArray[np.int64]
) -> dict[str, P]:
    """p(yes) of the films of a kind, by way."""
    strides = np.array([one["strides"]["p"] for one in found])
    kept = np.array([one["kept"] for one in found], dtype=float)
    out = {
        way: np.array([one[way]["p"][0] for one in found]) for way in WAYS if not way.startswith("strides")
    }
    out["strides, max"], out["strides, mean"] = strides.max(1), strides.mean(1)
    for name, values in (("strides", strides), ("kept", kept)):
        out[f"{name}, fitted"] = fitted(np.sort(values, 1), yes, unit)
        out[f"{name}, fitted in time"] = fitted(values, yes, unit)
    return out


def row_of(p: P, yes: NDArray[np.bool_], unit: NDArray[np.int64]) -> dict[str, Any]:
    """Accuracy and AUC of one way, with 95 % over units."""
    right = ((p > 0.5) == yes).astype(float)
    by_unit = np.array([right[unit == one].mean() for one in np.unique(unit)])
    apart = p[yes][:, None] - p[~yes][None]
    return {
        "accuracy": round(float(right.mean()), 4),
        "accuracy 95 %": edges(Drawn.of(len(by_unit)).mean(by_unit)),
        "auc": round(float(((apart > 0) + 0.5 * (apart == 0)).mean()), 4),
    }


def less(
    p: Mapping[str, P], own: str, yes: NDArray[np.bool_], unit: NDArray[np.int64]
) -> dict[str, list[float]]:
    """By other way: what `own` has more, accuracy, 95 % over the same units."""
    out = {}
    for name, other in p.items():
        more = ((p[own] > 0.5) == yes).astype(float) - ((other > 0.5) == yes)
        by_unit = np.array([more[unit == one].mean() for one in np.unique(unit)])
        if name != own:
            out[name] = edges(Drawn.of(len(by_unit)).mean(by_unit))
    return out


def options_of() -> argparse.Namespace:
    """What was asked for."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--films", type=int, default=40, help="of each kind")
    parser.add_argument("--others", type=int, default=16, help="films of each kind that the presets answer")
    parser.add_argument("--keep", type=Path, default=Path("out/far"), help="folder for films and answers")
    across = Path(__file__).parent / "across"
    parser.add_argument("--model", type=Path, default=across, help="folder of a checkpoint")
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    return parser.parse_args()


def share(options: argparse.Namespace, part: int) -> None:
    """Answer every film of one process of `--jobs`."""
    with workplace(options.keep, CUT, options.model) as place:
        some = [film for kind in far.KINDS for film in films(kind, options.films)]
        some.sort(key=lambda film: film.number // 8)  # of every kind some, so that a part of a run tells
        for film in tqdm(some[part :: options.jobs], desc="films", disable=None):
            answers_of(film, place, film.number < options.others)


def main() -> None:
    """Measure and print."""
    options = options_of()
    in_parallel(share, options, options.jobs)
    tables: dict[str, dict[str, Any]] = {}
    more, visits = dict[str, dict[str, list[float]]](), dict[str, dict[str, float]]()
    per_film: dict[str, dict[str, Any]] = {}
    with workplace(options.keep, CUT, options.model) as place:
        for kind in far.KINDS:
            some = films(kind, options.films)
            found = [answers_of(film, place, film.number < options.others) for film in some]
            yes, visitor = (np.array([getattr(film, name) for film in some]) for name in ("yes", "visitor"))
            unit = np.arange(len(some)) // far.UNIT.get(kind, 2)
            p = ways_of(found, yes, unit)
            tables[kind] = {way: row_of(p[way], yes, unit) for way in p}
            less_than = slice(options.others)
            for way in OTHERS:
                few = np.array([one[way]["p"][0] for one in found[less_than]])
                tables[kind][f"{way}, {len(few)} films"] = row_of(few, yes[less_than], unit[less_than])
            more[kind] = less(p, "default", yes, unit)
            visits[kind] = {
                f"{way}, {which}": round(float(((p[way] > 0.5) == yes)[rows].mean()), 4)
                for way in (MASKS, "default")
                for which, rows in (("nobody came before", ~visitor), ("somebody came before", visitor))
            }
            per_film |= {
                film.name: {"yes": film.yes, "visitor": film.visitor} | one
                for film, one in zip(some, found, strict=True)
            }
    tables |= {"default less others": more, "visits before the window": visits}
    told = list(per_film.values())
    tables["flops"] = {
        way: {"share": share_of(told, way)} for way in (*told[0].keys() - {"yes", "visitor", "kept"},)
    }
    tables["apart"] = {way: apart(told, way) for way in ("default", *OTHERS)}
    print_tables(tables)
    print(json.dumps({"films": options.films, "tables": tables, "per camera": per_film}))


def share_of(found: Sequence[Mapping[str, Any]], way: str) -> float:
    """FLOPs of a way, as a share of those of whole windows."""
    return round(float(np.mean([one[way]["flops"] / one["full"]["flops"] for one in found if way in one])), 4)


def apart(found: Sequence[Mapping[str, Any]], way: str) -> dict[str, Any]:
    """Mean |difference of p(yes)| from windows that are computed whole under the same masks."""
    dp = np.array([abs(one[way]["p"][0] - one[MASKS]["p"][0]) for one in found if way in one])
    return {"dp": round(float(dp.mean()), 4), "dp 95 %": interval(dp), "films": len(dp)}


if __name__ == "__main__":
    main()
