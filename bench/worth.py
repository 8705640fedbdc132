"""Compare the default's FLOPs and F1 with those of the simplest ways of reading a stream: `make bench-worth`.

Windows have 80 frames and slide by 16 (40 s and 8 s). The cameras are rendered and in no training set; the
model is the bundled one.

- `full`: every token, every window computed whole. `default`: the product's masks, in windows that reuse KV.
- `last N`: only the last N frames of the window, whole, in a separate prompt (SimpleStream). `even N`: N
  evenly spaced frames, including the window's first and last.
- `masks, whole`, `paper's refresh`, `faithful`, `front 8`, `cacheblend 8`, `vlcache 8`, `random 8`: the
  default's masks, in windows that are computed whole or that reuse KV and compute other rows again; a number
  is the budget in frames.
- `strides`: each stride of 16 frames in a separate prompt, with the product's masks and without any KV of the
  previous stride; a window's p(yes) is the largest of its five strides. `strides, mean`: their mean.
  `strides, every token`: the largest, without masks.

F1 is computed over windows, at p(yes) of 0.5. Intervals are 95 % over cameras (bootstrap); differences are
paired by camera. `flops`: FLOPs of the language model, without questions, as a share of `full`, including one
key window per period. `tower`: what the tower encodes, as a share of all frames. `accuracy`: over all answers
to all questions. `families`: F1 by family of questions, and `strides` minus `default`. `per camera`: the data
of the intervals, which are hits, misses, false alarms and true negatives of every question. `dp`: mean
|difference of p(yes)| from `masks, whole`, over all questions, weighted over a period.

With `--model`, another checkpoint answers (`watchbench smol --checkpoint` writes one), and recordings are
also prefilled with half of the KV (`bench.recordings_answers`). Answers are stored under --keep, and an
interrupted run continues; `--jobs` distributes the cameras. `--quick`: eight cameras. The last line is JSON.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cache
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from tqdm import tqdm

from bench import record
from bench.answered import QUESTIONS, Cut, Setting, default, interval, over_period, prefill
from bench.codecsight.policies import EQUAL, WAYS, WHOLE, front
from bench.codecsight.scores import Counts, by_window
from bench.codecsight.streams import (
    CANDIDATES,
    GRADE,
    WISHES,
    Workplace,
    encoded_share,
    judged,
    outcome,
    window_times,
)
from bench.codecsight.table import CONTEXT_ROWS, PRODUCT_ROWS
from bench.jobs import in_parallel
from bench.recordings_answers import SIZE, Setting as HalfKept, measure
from bench.results import Results
from bench.workplace import Clip, blocks_of, print_tables, workplace
from lookout.models.engines import Engine, Question, WindowRequest
from lookout.models.windows import Planner, Policy, StrideBlock, WindowSettings
from lookout.pruning import PrunePolicy
from lookout.recordings import PrefillSettings, Score
from lookout.streams import read_clip
from watchbench import cameras, encode, footage, model as vlm, scenes, sight
from watchbench.clips import CANDIDATES as FEW, chosen
from watchbench.evaluation.intervals import Drawn, Table, edges, mean_f1
from watchbench.films import HELD_BACK
from watchbench.questions import QUESTIONS as KNOWN, answers
from watchbench.training import STEP_S

FIRST: Final = HELD_BACK + 95_000  # seed of the first camera
SECONDS: Final = 80.5  # six windows
FPS: Final = Fraction(2)  # pictures a second: those that are sampled, as drawing is what takes long
CUT: Final = Cut(16, 100, 6)
FRAMES: Final = CUT.frames * CUT.blocks
RIVALS: Final = ("default", "last 4", "last 8", "last 16", "even 8", "even 16", "strides")
DENSE: Final = PrunePolicy(everything=True)
FAMILIES: Final = tuple(dict.fromkeys(question.family for question in KNOWN))
HALF: Final = tuple(HalfKept(PrefillSettings(SIZE, 0.5, score)) for score in Score)
ROWS: Final = {"product": PRODUCT_ROWS, "contextual": CONTEXT_ROWS}
MASKS: Final = "masks, whole"
KINDS: Final = {
    f"{family}": [row for row, question in enumerate(KNOWN) if question.family == family]
    for family in FAMILIES
}


@dataclass(frozen=True, slots=True)
class Found:
    """One way to look at one camera.

    Attributes:
        p: p(yes) [windows, questions].
        flops: Of the language model for a window, questions apart, key windows weighed as in a long stream.
        tower: Of what the tower would encode, the share that it does.
        key: Which windows are key windows, where there are any.
    """

    p: NDArray[np.float64]
    flops: float
    tower: float
    key: NDArray[np.bool_] | None = None


@dataclass(frozen=True, slots=True)
class Camera:
    """A camera that may have no film yet."""

    name: str
    seed: int
    scene: scenes.Scene

    def clip(self, place: Workplace) -> Clip:
        """Its samples; its film is rendered on first use."""
        path = place.folder / f"{self.name}.mp4"
        if not path.is_file():
            how = replace(encode.varied(self.seed), loss=0.0, crf=28, bitrate=None)
            encode.write(cameras.frames(self.scene, SECONDS, fps=FPS), path, FPS, how)
        return Clip(self.name, read_clip(path, place.tower.grid), self.scene)


def camera(number: int) -> Camera:
    """Camera `number`. It shows for sure what its wish says."""
    seed, wish = FIRST + number, WISHES[number % len(WISHES)]
    scene = chosen((wish,), SECONDS, round(SECONDS / STEP_S), seed, GRADE, CANDIDATES.get(wish, FEW))
    return Camera(f"{seed}-{cameras.LOOK}-{GRADE:g}-{SECONDS:g}s", seed, scene)


def alone(
    engine: Engine, windows: Sequence[Sequence[StrideBlock]], questions: Sequence[Question] = QUESTIONS
) -> tuple[list[list[float]], list[int]]:
    """Windows that know nothing of one another: p(yes) of every question, and FLOPs without questions."""
    settings = WindowSettings(CUT.blocks, Policy.PRUNE_ONLY, samples=CUT.frames, stride_s=CUT.frames * STEP_S)
    planner = Planner(engine.layout, settings)
    p, flops = [], []
    for blocks in windows:
        request = WindowRequest(planner.plan(blocks), blocks, tuple(questions), keep=False)
        answer = engine.run([request])[0].unwrap()
        p.append([one.p_yes for one in answer.answers])
        flops.append(prefill(answer.cost))
    return p, flops


def windows_of(blocks: Sequence[StrideBlock]) -> list[Sequence[StrideBlock]]:
    """Every whole window of a camera."""
    return [blocks[last - CUT.blocks : last] for last in range(CUT.blocks, len(blocks) + 1)]


def shown(window: Sequence[StrideBlock], places: Sequence[int]) -> list[StrideBlock]:
    """A window with the frames at some places alone, from its first block with such a frame on."""
    wanted, place, out = set(places), 0, list[StrideBlock]()
    for block in window:
        kept = tuple(frame for n, frame in enumerate(block.frames, place) if n in wanted)
        place += len(block.frames)
        if kept or out:
            out.append(replace(block, frames=kept))
    return out


def last(count: int) -> list[int]:
    """The places of the last frames of a window."""
    return list(range(FRAMES - count, FRAMES))


def even(count: int) -> list[int]:
    """The places of so many frames of a window at even distances, its first and its last among them."""
    return [round(place) for place in np.linspace(0, FRAMES - 1, count).tolist()]


def newly(places: Sequence[int]) -> float:
    """Frames of a window at these places that no window before it showed, as a share of a stride's: what the
    tower encodes for a window, where it keeps its tokens."""
    before = {place - CUT.frames * stride for place in places for stride in range(1, CUT.blocks)}
    return len(set(places) - before) / CUT.frames


SELECTED: Final[Mapping[str, Sequence[int]]] = {
    **{f"last {count}": last(count) for count in (4, 8, 16)},
    **{f"even {count}": even(count) for count in (8, 16)},
}


def by_stride(p: NDArray[np.float64], of: Callable[..., NDArray[np.float64]]) -> NDArray[np.float64]:
    """p(yes) of every window [windows, questions] of those of its strides [strides, questions]."""
    spans = np.lib.stride_tricks.sliding_window_view(p, CUT.blocks, axis=0)
    return of(spans, axis=-1)


SETTINGS: Final[Mapping[str, tuple[str, Setting]]] = {
    "full": ("dense", WHOLE),
    "default": ("pruned", default()),
    MASKS: ("pruned", WHOLE),
    "paper's refresh": ("pruned", WAYS["refresh only"][1]),
    "faithful": ("pruned", default("faithful")),
    f"front {EQUAL}": ("pruned", front(EQUAL)),
    f"cacheblend {EQUAL}": ("pruned", WAYS[f"cacheblend {EQUAL}"][1]),
    f"vlcache {EQUAL}": ("pruned", WAYS[f"vlcache {EQUAL}"][1]),
    f"random {EQUAL}": ("pruned", WAYS[f"random-k {EQUAL}"][1]),
}
"""By name: the masks, and how windows are computed."""


def found_of(camera: Camera, place: Workplace) -> dict[str, Found]:
    """Every way to look at a camera."""
    clip = cache(lambda: camera.clip(place))

    @cache
    def blocks(name: str) -> list[StrideBlock]:
        return blocks_of(clip(), DENSE if name == "dense" else PrunePolicy(), place)

    def kept(
        name: str, make: Callable[[], tuple[list[list[float]], list[int]]]
    ) -> tuple[NDArray[np.float64], float]:
        key = f"{camera.name}, {name}"
        if key not in place.results:
            p, flops = make()
            place.results.add(key, {"p": np.round(p, 6).tolist(), "flops": float(np.mean(flops))})
        told = place.results.found[key]
        return np.array(told["p"]), float(told["flops"])

    out: dict[str, Found] = {}
    for name, (kind, setting) in SETTINGS.items():
        key = f"{camera.name}, {name}"
        own = () if key in place.results else blocks(kind)
        answered = outcome(key, own, setting, place).answered
        if f"{key}, tower" not in place.results:
            place.results.add(f"{key}, tower", encoded_share(blocks(kind)))
        flops = over_period(answered.flops, answered.key)
        out[name] = Found(answered.p, flops, float(place.results.found[f"{key}, tower"]), answered.key)
    for name, places in SELECTED.items():
        p, flops = kept(
            name,
            lambda places=places: alone(
                place.engine, [shown(w, places) for w in windows_of(blocks("dense"))]
            ),  # type: ignore[misc]
        )
        out[name] = Found(p, flops, newly(places))
    for name, kind, like in (("strides", "pruned", "default"), ("strides, every token", "dense", "full")):
        p, flops = kept(name, lambda kind=kind: alone(place.engine, [[block] for block in blocks(kind)]))  # type: ignore[misc]
        out[name] = Found(by_stride(p, np.max), flops, out[like].tower)
        if name == "strides":
            out["strides, mean"] = Found(by_stride(p, np.mean), flops, out[like].tower)
    return out


def truth_of(camera: Camera, place: Workplace) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """What is true of every window, and where that is known: bool [windows, questions]."""
    key = f"{camera.name}, times"
    if key not in place.results:
        times = window_times(blocks_of(camera.clip(place), PrunePolicy(), place), CUT)
        place.results.add(key, [window.tolist() for window in times])
    pairs = [
        answers(scenes.observe(camera.scene, torch.tensor(times)).truth) for times in place.results.found[key]
    ]
    yes, known = (torch.stack([pair[part][0, -1] for pair in pairs]).numpy() for part in (0, 1))
    return yes, known


def counted(found: Sequence[Found], truths: Sequence[Any]) -> Table:
    """One way on all cameras."""
    cameras = [judged(one.p, truth) for one, truth in zip(found, truths, strict=True)]
    return np.array([[_four(by_window(answers)) for answers in camera] for camera in cameras])


def _four(counts: Counts) -> tuple[int, int, int, int]:
    return counts.hit, counts.miss, counts.false, counts.quiet


def rivals(ways: Mapping[str, Table], found: Mapping[str, Sequence[Found]]) -> dict[str, dict[str, Any]]:
    """By way: cost, mean F1 of the product's and of the contextual questions with intervals, accuracy."""
    drawn = Drawn.of(len(next(iter(ways.values()))))
    full = np.array([one.flops for one in found["full"]])
    out: dict[str, dict[str, Any]] = {}
    for name, table in ways.items():
        flops = np.array([one.flops for one in found[name]])
        row: dict[str, Any] = {
            "flops": round(float((flops / full).mean()), 4),
            "tower": round(float(np.mean([one.tower for one in found[name]])), 4),
        }
        for kind, rows in ROWS.items():
            row[kind] = round(float(mean_f1(table.sum(0), rows)), 4)
            row[f"{kind} 95 %"] = edges(drawn.f1(table, rows))
        total = table.sum((0, 1))
        row["accuracy"] = round(float((total[0] + total[3]) / total.sum()), 4)
        out[name] = row
    return out


def less_others(ways: Mapping[str, Table], own: str) -> dict[str, dict[str, Any]]:
    """By other way: what `own` has more, with 95 % over the same cameras."""
    drawn, out = Drawn.of(len(ways[own])), dict[str, dict[str, Any]]()
    for name, table in ways.items():
        if name == own:
            continue
        row: dict[str, Any] = {}
        for kind, rows in ROWS.items():
            row[kind] = round(float(mean_f1(ways[own].sum(0), rows) - mean_f1(table.sum(0), rows)), 4)
            row[f"{kind} 95 %"] = edges(drawn.f1(ways[own], rows) - drawn.f1(table, rows))
        out[name] = row
    return out


def families(ways: Mapping[str, Table]) -> dict[str, dict[str, Any]]:
    """F1 by family and way; what single strides have more than the default; windows where it is true."""
    drawn, out = Drawn.of(len(ways["strides"])), dict[str, dict[str, Any]]()
    for family, rows in KINDS.items():
        true = int(ways["full"][:, rows, :2].sum())
        row: dict[str, Any] = {"true windows": true}
        for name, table in ways.items():
            value = float(mean_f1(table.sum(0), rows))
            row[name] = None if np.isnan(value) else round(value, 3)
        less = drawn.f1(ways["strides"], rows) - drawn.f1(ways["default"], rows)
        row["strides less default 95 %"] = None if np.isnan(less).all() else edges(less)
        out[family] = row
    return out


def apart(found: Mapping[str, Sequence[Found]]) -> dict[str, dict[str, Any]]:
    """By way of computing windows: mean |difference of p(yes)| from windows that are computed whole under the
    same masks, with 95 % over cameras."""
    out = {}
    for name, (kind, _) in SETTINGS.items():
        if kind == "pruned" and name != MASKS:
            pairs = zip(found[name], found[MASKS], strict=True)
            dp = np.array([over_period(np.abs(a.p - b.p).mean(1), a.key) for a, b in pairs])  # type: ignore[arg-type]
            out[name] = {"dp": round(float(dp.mean()), 5), "dp 95 %": interval(dp)}
    return out


def half_kept(results: Results, seeds: Sequence[int]) -> dict[str, dict[str, Any]]:
    """By score: right answers about recordings from half of the KV, as a share of those from all of it, with
    95 % over clips."""
    clips = [results.found[f"clip {seed}"] for seed in seeds]
    whole, drawn = np.array([clip["right"] for clip in clips]), Drawn.of(len(clips)).rows
    out = {}
    for setting in HALF:
        own = np.array([clip["cells"][setting.name][2] for clip in clips])
        kept = own[drawn].mean(1) / whole[drawn].mean(1)
        out[setting.how.score.value] = {
            "kept": round(float(own.mean() / whole.mean()), 4),
            "kept 95 %": edges(kept),
            "dp": round(float(np.mean([clip["cells"][setting.name][0] for clip in clips])), 4),
        }
    return out


def per_camera(names: Sequence[str], ways: Mapping[str, Table]) -> dict[str, dict[str, str]]:
    """By way and camera: hits/misses/false/quiet of every question."""
    return {
        way: {
            name: " ".join("/".join(map(str, question)) for question in camera)
            for name, camera in zip(names, table.tolist(), strict=True)
        }
        for way, table in ways.items()
    }


def real() -> dict[str, float | None]:
    """F1 of the bundled model on real clips, by question; empty if none were measured."""
    where = footage.folder()
    if where is None:
        return {}
    f1 = sight.real(vlm.load(vlm.weights()), where)[0].f1()
    return {name: f1.get(name) for name in ("person", "vehicle", "lying")}


def options_of() -> argparse.Namespace:
    """What was asked for."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--cameras", type=int, default=44, help="rendered ones")
    parser.add_argument("--quick", action="store_true", help="eight cameras")
    parser.add_argument("--keep", type=Path, default=Path("out/worth"), help="folder for films and answers")
    parser.add_argument("--model", type=Path, help="folder of a checkpoint; the bundled model by default")
    parser.add_argument("--device", default="cpu", help="where it runs")
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    options = parser.parse_args()
    if options.quick:
        options.cameras = 8
    return options


def share(options: argparse.Namespace, part: int) -> None:
    """Answer every camera of one process of `--jobs`."""
    numbers = range(part, options.cameras, options.jobs)
    with workplace(options.keep, CUT, options.model, options.device) as place:
        answered_on(place.results, options.device)
        for number in tqdm(numbers, desc="cameras", disable=None):
            found_of(camera(number), place)
            truth_of(camera(number), place)
        if options.model is not None:
            seeds = recorded(options.cameras)[part :: options.jobs]
            measure(place.results, seeds, HALF, options.model, options.device)


def recorded(count: int) -> range:
    """Seeds of the recordings."""
    return range(HELD_BACK, HELD_BACK + count)


def answered_on(results: Results, device: str) -> None:
    """Add the name of the device that computes to those that computed before."""
    name = torch.cuda.get_device_name(device) if device.startswith("cuda") else record.device()
    before = results.found.get("device", "")
    if name not in before:
        results.add("device", f"{before}; {name}" if before else name)


def main() -> None:
    """Measure and print."""
    options = options_of()
    in_parallel(share, options, options.jobs)
    with workplace(options.keep, CUT, options.model) as place:
        names, looks, truths = [], list[dict[str, Found]](), []
        for one in map(camera, range(options.cameras)):
            names.append(one.name.partition("-")[0])
            looks.append(found_of(one, place))
            truths.append(truth_of(one, place))
        results = place.results
    found = {way: [look[way] for look in looks] for way in looks[0]}
    ways = {way: counted(looks_of, truths) for way, looks_of in found.items()}
    tables = {
        "rivals": rivals(ways, found),
        "default less others": less_others(ways, "default"),
        "strides less others": less_others(ways, "strides"),
        "families": families(ways),
        "apart": apart(found),
    }
    real_model = options.model is not None
    if real_model:
        tables["half of the KV"] = half_kept(results, recorded(options.cameras))
    print_tables(tables)
    told = {
        name: {key: tables["rivals"][name][key] for key in ("flops", "product", "contextual")}
        for name in RIVALS
    }
    windows = sum(len(truth[0]) for truth in truths)
    line = {
        "cameras": len(names),
        "windows": windows,
        "answered on": results.found["device"],
        "rivals": told,
        "smol": smol_row(tables) if real_model else {},
        "real": {} if real_model else real(),
    }
    print(json.dumps(line | {"tables": tables, "per camera": per_camera(names, ways)}))


def smol_row(tables: Mapping[str, Mapping[str, Mapping[str, Any]]]) -> dict[str, float]:
    """The figures of a real language model in one line."""
    half = tables["half of the KV"]
    return {
        "dense": tables["rivals"]["full"]["product"],
        "dense contextual": tables["rivals"]["full"]["contextual"],
        "default": tables["rivals"]["default"]["product"],
        "dp80": tables["apart"]["default"]["dp"],
        "key_norm_rho50": half[Score.KEY_NORM.value]["kept"],
        "random_rho50": half[Score.RANDOM.value]["kept"],
    }


if __name__ == "__main__":
    main()
