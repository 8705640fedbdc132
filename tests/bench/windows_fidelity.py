"""What refresh, its budget and labels do to answers: the sweep that earns the default.

Run with `make bench-windows_fidelity` or `python -m tests.bench.windows_fidelity`. The trained tiny model
answers all of its questions (five strides of four samples, 2 FPS) on two kinds of cameras: rendered ones that
it never saw (the demo's and random ones), and real clips of at least ten strides. Chains are at most one key
period long: a key window, then 14 windows that each continue the one before. All settings answer the same
windows.

- `dp`: mean |difference of p(yes)| against the same windows computed in full, under the same masks and with a
  label for every frame. Key windows are counted in: they differ by nothing, and 14 of 15 windows are others.
- `dense`: the same against windows in which every patch is kept.
- `saved`: share of a window's FLOPs (questions apart) saved against dense windows, key windows counted in, of
  this model; its labels weigh more than a large model's (see bench-windows).

Intervals are 95 % over cameras (bootstrap). The cheapest setting with `dp` of at most --bound is named
for every kind of mask. `random-k` computes as many rows as `front`, anywhere: the floor. 20 cameras take
about 8 minutes of a core, of which 4 are rendering, and 4 more for another kind of mask. Every camera's
answers are kept under --results and are not computed again, so that the command can be stopped and goes on.
The last line is JSON.
"""

from __future__ import annotations

import argparse
import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from tqdm import tqdm

from lookout.codec import CodecError
from lookout.engines import Cost, Engine, Question, load_engine
from lookout.evaluation.chain import Window, read_clip, slide, stride_blocks
from lookout.models import find_model
from lookout.pruning import Accumulation, Change, PrunePolicy
from lookout.runtime import folder_digest
from lookout.vision import Tower, load_tower
from lookout.windows import LabelPolicy, Planner, Policy, StrideBlock, WindowSettings
from tests.bench.motion import MOVING, clips_of, footage
from watchbench import cameras, encode, scenes
from watchbench.questions import PRODUCT
from watchbench.questions import QUESTIONS as KNOWN
from watchbench.sight import HELD_BACK

FRAMES, BLOCKS, PERIOD = 4, 5, 15
STRIDES = BLOCKS - 1 + PERIOD
SHORTEST = 10  # strides of a real clip
SECONDS = STRIDES * FRAMES * 0.5 + 0.5
QUESTIONS = [Question(one.name, one.text) for one in KNOWN]
BUDGETS = (0, 1, 2, 4, 8)
LIMITS = (0.01, 0.02, 0.05, 0.1)  # of an audit
VECTORS, LUMA, DENSE = "vectors since the anchor", "pixels since encoded", "dense"
POLICIES = {
    DENSE: PrunePolicy(everything=True),
    VECTORS: PrunePolicy(Change.VECTORS, luma_tau=6.0, accumulation=Accumulation.SINCE_ANCHOR),
    LUMA: PrunePolicy(),
}
RESULTS = 1  # raise when answers are made in another way, so that cameras are answered again
P = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Setting:
    """How windows are computed."""

    labels: LabelPolicy
    policy: Policy
    budget: int | None = None

    @property
    def name(self) -> str:
        """For people: labels, policy, frames of budget."""
        return f"{self.labels.value} {self.policy.value}" + ("" if self.budget is None else f" {self.budget}")


@dataclass(frozen=True, slots=True)
class Answered:
    """One camera, one setting: p(yes) [windows, questions], FLOPs [windows], and whether each window is the
    key window of its chain [windows]."""

    p: P
    flops: P
    key: NDArray[np.bool_]


def settings() -> list[Setting]:
    """Everything that is compared; the first one is the reference."""
    out = [Setting(LabelPolicy.FRAME, Policy.PRUNE_ONLY)]
    out += [Setting(LabelPolicy.FRAME, Policy.FRONT, budget) for budget in BUDGETS]
    out += [Setting(LabelPolicy.FRAME, Policy.RANDOM_K, budget) for budget in BUDGETS if budget]
    out += [Setting(LabelPolicy.FRAME, Policy.REFRESH)]
    for labels in (LabelPolicy.KEPT, LabelPolicy.BLOCK):
        out += [Setting(labels, Policy.PRUNE_ONLY), Setting(labels, Policy.FRONT, 2)]
    return out


def rendered(count: int, folder: Path) -> list[Path]:
    """The demo's cameras, and `count` random ones, kept in `folder`."""
    out = [camera.path for camera in cameras.demo_cameras(folder)]
    for number in tqdm(range(count), desc="render", unit="camera"):
        seed = HELD_BACK + 50_000 + number
        path = folder / f"{seed}-{cameras.LOOK}-{STRIDES}.mp4"
        if not path.is_file():
            scene = scenes.sample(1, SECONDS, seed)
            encode.write(cameras.frames(scene, SECONDS), path, cameras.FPS, encode.varied(seed))
        out.append(path)
    return out


def chains(path: Path, tower: Tower, kind: str) -> list[list[StrideBlock]]:
    """A camera's blocks under one kind of mask, in chains of at most one key period."""
    clip = read_clip(path, tower.grid, vectors=POLICIES[kind].needs_vectors)
    blocks = stride_blocks(f"{path.stem}/0", clip, tower, POLICIES[kind], FRAMES)
    parts = [blocks[first : first + STRIDES] for first in range(0, len(blocks), STRIDES)]
    return [part for part in parts if len(part) >= SHORTEST]


def answered(engine: Engine, made: Sequence[Sequence[StrideBlock]], setting: Setting) -> Answered:
    """All chains of a camera with one setting."""
    planner = _Whole(
        engine.layout,
        WindowSettings(
            BLOCKS, setting.policy, PERIOD, refresh_frames=setting.budget, labels=setting.labels,
            samples=FRAMES, stride_s=FRAMES * 0.5,
        ),
    )  # fmt: skip
    out: list[Window] = []
    key: list[bool] = []
    for blocks in made:
        # The key window is the first whole one: the chain starts with its oldest block.
        (windows,) = slide(engine, planner, {blocks[0].stream: blocks}, QUESTIONS, key=False).values()
        out += windows[BLOCKS - 1 :]
        key += [n == 0 for n in range(len(windows) - BLOCKS + 1)]
    p = [[one.p_yes for one in window.answer.answers] for window in out]
    return Answered(np.array(p), np.array([prefill(w.answer.cost) for w in out], dtype=float), np.array(key))


def prefill(cost: Cost) -> int:
    """FLOPs of the window without its questions."""
    return sum(count for stage, count in cost.flops.items() if stage not in {"questions", "describe"})


class _Whole(Planner):
    """Shorter windows at the start of a camera are key windows: the chain begins with the first whole one."""

    def plan(self, blocks: Sequence[StrideBlock], previous: object = None, **extra: object) -> object:  # type: ignore[override]
        """As `Planner.plan`."""
        begins = previous is None or len(blocks) < BLOCKS or len(previous.blocks) < BLOCKS  # type: ignore[attr-defined]
        return super().plan(blocks, None if begins else previous, key=begins)  # type: ignore[arg-type]


class Results:
    """Answers of cameras on disk, by what made them."""

    def __init__(self, folder: Path) -> None:
        told = (RESULTS, cameras.LOOK, POLICIES, settings(), folder_digest(find_model()))
        self.folder = folder / hashlib.sha256(repr(told).encode()).hexdigest()[:12]
        self.folder.mkdir(parents=True, exist_ok=True)

    def read(self, name: str) -> tuple[dict[str, Answered], float] | None:
        """Answers by setting and the share of tokens kept; None for a camera not yet answered."""
        path = self.folder / f"{name}.npz"
        if not path.is_file():
            return None
        with np.load(path) as found:
            names = json.loads(str(found["names"]))
            out = {
                one: Answered(found[f"p{n}"], found[f"flops{n}"], found["key"]) for n, one in enumerate(names)
            }
            return out, float(found["kept"])

    def write(self, name: str, answers: Mapping[str, Answered], kept: float) -> None:
        """Keep the answers of a camera."""
        arrays: dict[str, Any] = {f"p{n}": one.p for n, one in enumerate(answers.values())}
        arrays |= {f"flops{n}": one.flops for n, one in enumerate(answers.values())}
        key = next(iter(answers.values())).key
        part = self.folder / f".{name}.npz"
        np.savez(part, allow_pickle=False, names=json.dumps(list(answers)), key=key, kept=kept, **arrays)
        part.replace(self.folder / f"{name}.npz")


def camera_answers(
    path: Path, kind: str, tower: Tower, engine: Engine, results: Results
) -> tuple[dict[str, Answered], float]:
    """A camera's answers under one kind of mask, with every setting (dense: the reference alone)."""
    name = f"{path.stem}-{kind.replace(' ', '-')}"
    found = results.read(name)
    if found is None:
        made = chains(path, tower, kind)
        kept = sum(block.tokens for part in made for block in part)
        whole = sum(len(block.frames) * tower.grid.tokens for part in made for block in part)
        wanted = settings()[:1] if kind == DENSE else settings()
        found = {one.name: answered(engine, made, one) for one in wanted}, kept / whole
        results.write(name, *found)
    return found


def interval(values: P, rounds: int = 2000) -> list[float]:
    """95 % of the mean over cameras, [cameras] -> [low, high]."""
    draw = np.random.default_rng(0)
    means = values[draw.integers(0, len(values), (rounds, len(values)))].mean(1)
    return [round(float(edge), 4) for edge in np.quantile(means, (0.025, 0.975))]


def over_period(values: P, key: NDArray[np.bool_]) -> float:
    """Mean over a key period: one key window, `PERIOD` - 1 others. [windows] -> number."""
    return float(values[key].mean() + (PERIOD - 1) * values[~key].mean()) / PERIOD


def apart_of(one: Sequence[Answered], full: Sequence[Answered]) -> P:
    """`dp` of each camera, [cameras]."""
    return np.array([over_period(np.abs(a.p - b.p).mean(1), a.key) for a, b in zip(one, full, strict=True)])


def less_random(found: Sequence[Mapping[str, Answered]]) -> dict[str, dict[str, Any]]:
    """By frames of budget: `dp` of rows from the front less that of as many rows anywhere, over cameras."""
    out: dict[str, dict[str, Any]] = {}
    for budget in BUDGETS[1:]:
        front, anywhere = (
            apart_of(
                [answers[Setting(LabelPolicy.FRAME, policy, budget).name] for answers in found],
                [answers[settings()[0].name] for answers in found],
            )
            for policy in (Policy.FRONT, Policy.RANDOM_K)
        )
        less = front - anywhere
        out[str(budget)] = {"dp": round(float(less.mean()), 5), "interval": interval(less)}
    return out


def compared(one: Sequence[Answered], full: Sequence[Answered], dense: Sequence[Answered]) -> dict[str, Any]:
    """A setting against full windows under the same masks, and against dense ones; one entry a camera."""
    sets = list(zip(one, full, dense, strict=True))
    apart = apart_of(one, full)
    lost = np.array([over_period(np.abs(a.p - c.p).mean(1), a.key) for a, _, c in sets])
    sides = [over_period(((a.p > 0.5) != (b.p > 0.5)).mean(1), a.key) for a, b, _ in sets]
    cost = [over_period(a.flops, a.key) / c.flops.mean() for a, _, c in sets]
    return {
        "dp": round(float(apart.mean()), 5),
        "interval": interval(apart),
        "largest": round(max(float(np.abs(a.p - b.p).max()) for a, b, _ in sets), 3),
        "other_side": round(float(np.mean(sides)), 5),
        "dense": round(float(lost.mean()), 5),
        "dense_interval": interval(lost),
        "saved": round(1 - float(np.mean(cost)), 4),
    }


def cheapest(rows: Mapping[str, Mapping[str, object]], bound: float) -> str | None:
    """The setting that saves most with `dp` of at most `bound`."""
    fit = {name: float(str(row["saved"])) for name, row in rows.items() if float(str(row["dp"])) <= bound}
    return max(fit, key=lambda name: fit[name], default=None)


def real(where: Path, tower: Tower) -> Iterator[Path]:
    """Clips of fixed cameras with at least one chain."""
    for path in clips_of(where):
        if path.stem in MOVING:
            continue
        try:
            long_enough = len(read_clip(path, tower.grid).frames) >= SHORTEST * FRAMES
        except CodecError:
            continue
        if long_enough:
            yield path


def report(title: str, found: Sequence[tuple[dict[str, Answered], float]], dense: Sequence[Answered],
           bound: float) -> dict[str, object]:  # fmt: skip
    """Print the table of some cameras and return what the last line says."""
    kept = float(np.mean([share for _, share in found]))
    windows = sum(len(one.key) for one in dense)
    print(f"\n{title}: {len(found)} cameras, {windows} windows, {kept:.1%} of the tokens kept")
    print(f"{'labels, policy, frames':22} {'dp':>8} {'95 %':>16} {'dense':>9} {'sides':>8} {'saved':>7}")
    rows: dict[str, dict[str, Any]] = {}
    full = [answers[settings()[0].name] for answers, _ in found]
    for one in settings():
        rows[one.name] = row = compared([answers[one.name] for answers, _ in found], full, dense)
        low, high = row["interval"]
        print(
            f"{one.name:22} {row['dp']:8.5f}  {low:.4f} - {high:.4f} {row['dense']:9.5f} "
            f"{row['other_side']:8.3%} {row['saved']:7.1%}"
        )
    audits = audited(found)
    print(
        "largest |dp| of the product's questions in a continued window, by default: "
        + ", ".join(f"{name} {value:.3f}" for name, value in audits.items())
    )
    floor = less_random([answers for answers, _ in found])
    print(
        "front less random-k: "
        + ", ".join(
            f"{budget} frames {one['dp']:.4f} ({one['interval'][0]:.4f} - {one['interval'][1]:.4f})"
            for budget, one in floor.items()
        )
    )
    best = cheapest(rows, bound)
    print(f"cheapest with dp of at most {bound}: {best}", flush=True)
    return {
        "cameras": len(found),
        "windows": windows,
        "kept": round(kept, 4),
        "cheapest": best,
        "audits": audits,
        "front_less_random": floor,
        "settings": rows,
    }


def audited(found: Sequence[tuple[dict[str, Answered], float]]) -> dict[str, float]:
    """What audits would say of every continued window, by default: quantiles of the largest |dp| over the
    product's questions, and the shares above some limits."""
    product = [n for n, one in enumerate(KNOWN) if one.name in PRODUCT]
    reference, default = settings()[0].name, Setting(LabelPolicy.FRAME, Policy.FRONT, 2).name
    apart = np.concatenate(
        [
            np.abs(answers[default].p - answers[reference].p)[~answers[default].key][:, product].max(1)
            for answers, _ in found
        ]
    )
    told = {f"q{q:g}": round(float(np.quantile(apart, q)), 4) for q in (0.5, 0.9, 0.95, 0.99, 1.0)}
    return told | {f"above {limit:g}": round(float((apart > limit).mean()), 4) for limit in LIMITS}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--clips", type=int, default=9, help="rendered cameras beside the demo's")
    parser.add_argument("--folder", type=Path, default=Path("out/fidelity"), help="keeps rendered cameras")
    parser.add_argument(
        "--results", type=Path, default=Path("out/fidelity/results"), help="keeps each camera's answers"
    )
    parser.add_argument("--masks", choices=(VECTORS, LUMA), action="append", help="default: both")
    parser.add_argument("--bound", type=float, default=0.003, help="largest |dp| of the default")
    options = parser.parse_args()
    torch.set_num_threads(1)
    tower, engine, results = load_tower(find_model()), load_engine(find_model()), Results(options.results)
    where = footage()
    groups = {"rendered": rendered(options.clips, options.folder)}
    if where is None:
        print("real clips: left out, there is no footage (set LOOKOUT_FOOTAGE)")
    else:
        groups["real"] = list(real(where, tower))
    groups["all"] = [path for paths in groups.values() for path in paths]
    line: dict[str, object] = {"bench": "windows_fidelity", "questions": len(QUESTIONS)}
    for kind in options.masks or [LUMA, VECTORS]:
        found = {
            path: (
                camera_answers(path, kind, tower, engine, results),
                camera_answers(path, DENSE, tower, engine, results)[0][settings()[0].name],
            )
            for path in tqdm(groups["all"], desc=f"answer ({kind})", unit="camera")
        }
        line[kind] = {
            name: report(
                f"{kind}, {name}", [found[p][0] for p in paths], [found[p][1] for p in paths], options.bound
            )
            for name, paths in groups.items()
            if paths
        }
    print(json.dumps(line))


if __name__ == "__main__":
    main()
