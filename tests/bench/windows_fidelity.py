"""What refresh, its budget and labels do to answers: the sweep that earns the default.

Run with `make bench-windows_fidelity` or `python -m tests.bench.windows_fidelity`. The trained tiny
model answers all of its questions on rendered cameras it never saw, each one key period long: a key
window, then 14 windows that each continue the one before (five strides of four samples, 2 FPS). All
settings answer the same windows.

- `dp`: mean |difference of p(yes)| against the same windows computed in full, under the same masks and with a
  label for every frame. Key windows are counted in: 14 of 15 windows differ.
- `dense`: the same against windows in which every patch is kept.
- `saved`: share of a window's FLOPs (questions apart) saved against dense windows, key windows counted in, of
  this model; its labels weigh more than a large model's (see bench-windows).

Intervals are 95 % over cameras (bootstrap). The cheapest setting with `dp` of at most --bound
is named for every kind of mask. `random-k` computes as many rows as `refresh` and is the floor
for it. The last line is JSON.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from tqdm import tqdm

from lookout.engines import Cost, Engine, Question, load_engine
from lookout.evaluation.chain import ClipFrames, Window, read_clip, slide, stride_blocks
from lookout.models import find_model
from lookout.pruning import Accumulation, Change, PrunePolicy
from lookout.vision import Tower, load_tower
from lookout.windows import LabelPolicy, Planner, Policy, StrideBlock, WindowSettings
from watchbench import cameras, encode, scenes
from watchbench.questions import QUESTIONS as KNOWN
from watchbench.sight import HELD_BACK

FRAMES, BLOCKS, PERIOD = 4, 5, 15
STRIDES = BLOCKS - 1 + PERIOD
SECONDS = STRIDES * FRAMES * 0.5 + 0.5
QUESTIONS = [Question(one.name, one.text) for one in KNOWN]
BUDGETS = (2, 1, 4, 0, 8)
VECTORS, LUMA, DENSE = "vectors since the anchor", "pixels since encoded", "dense"
POLICIES = {
    DENSE: PrunePolicy(everything=True),
    VECTORS: PrunePolicy(Change.VECTORS, accumulation=Accumulation.SINCE_ANCHOR),
    LUMA: PrunePolicy(),
}
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
class Measured:
    """One setting under one kind of mask: p(yes) [cameras, windows, questions], FLOPs [cameras, windows]."""

    p: P
    flops: P


def settings() -> list[Setting]:
    """Everything that is compared; the first one is the reference."""
    out = [Setting(LabelPolicy.FRAME, Policy.PRUNE_ONLY)]
    out += [Setting(LabelPolicy.FRAME, Policy.FRONT, budget) for budget in BUDGETS]
    out += [Setting(LabelPolicy.FRAME, policy) for policy in (Policy.REFRESH, Policy.RANDOM_K)]
    for labels in (LabelPolicy.KEPT, LabelPolicy.BLOCK):
        out.append(Setting(labels, Policy.PRUNE_ONLY))
        out += [Setting(labels, Policy.FRONT, budget) for budget in BUDGETS]
    return out


def clips(count: int, folder: Path) -> list[Path]:
    """Rendered cameras, kept in `folder`."""
    out = []
    for number in tqdm(range(count), desc="render", unit="camera"):
        seed = HELD_BACK + 50_000 + number
        path = folder / f"{seed}-{cameras.LOOK}-{STRIDES}.mp4"
        if not path.is_file():
            scene = scenes.sample(1, SECONDS, seed)
            encode.write(cameras.frames(scene, SECONDS), path, cameras.FPS, encode.varied(seed))
        out.append(path)
    return out


def masked(tower: Tower, seen: Mapping[str, ClipFrames], kind: str) -> dict[str, list[StrideBlock]]:
    """Every camera's blocks under one kind of mask."""
    return {
        name: stride_blocks(name, clip, tower, POLICIES[kind], FRAMES)
        for name, clip in tqdm(seen.items(), desc=f"encode ({kind})", unit="camera")
    }


def measured(engine: Engine, blocks: Mapping[str, list[StrideBlock]], setting: Setting) -> Measured:
    """All cameras with one setting."""
    planner = Planner(
        engine.layout,
        WindowSettings(
            BLOCKS, setting.policy, PERIOD, refresh_frames=setting.budget, labels=setting.labels,
            samples=FRAMES, stride_s=FRAMES * 0.5,
        ),
    )  # fmt: skip
    out: list[list[Window]] = []
    for name, mine in blocks.items():
        # The key window is the first whole one: the chain starts with its oldest block.
        whole = {name: mine}
        windows = slide(engine, _Whole(planner.layout, planner.settings), whole, QUESTIONS, key=False)[name]
        out.append(windows[BLOCKS - 1 :])
    p = [[[one.p_yes for one in window.answer.answers] for window in windows] for windows in out]
    flops = [[prefill(window.answer.cost) for window in windows] for windows in out]
    return Measured(np.array(p), np.array(flops, dtype=float))


def prefill(cost: Cost) -> int:
    """FLOPs of the window without its questions."""
    return sum(count for stage, count in cost.flops.items() if stage not in {"questions", "describe"})


class _Whole(Planner):
    """Shorter windows at the start of a camera are key windows: the chain begins with the first whole one."""

    def plan(self, blocks: Sequence[StrideBlock], previous: object = None, **extra: object) -> object:  # type: ignore[override]
        """As `Planner.plan`."""
        begins = previous is None or len(blocks) < BLOCKS or len(previous.blocks) < BLOCKS  # type: ignore[attr-defined]
        return super().plan(blocks, None if begins else previous, key=begins)  # type: ignore[arg-type]


def interval(values: P, rounds: int = 2000) -> list[float]:
    """95 % of the mean over cameras, [cameras] -> [low, high]."""
    draw = np.random.default_rng(0)
    means = values[draw.integers(0, len(values), (rounds, len(values)))].mean(1)
    return [round(float(edge), 4) for edge in np.quantile(means, (0.025, 0.975))]


def compared(one: Measured, full: Measured, dense: Measured) -> dict[str, object]:
    """A setting against full windows under the same masks, and against dense ones."""
    apart, lost = np.abs(one.p - full.p).mean((1, 2)), np.abs(one.p - dense.p).mean((1, 2))
    sides = ((one.p > 0.5) != (full.p > 0.5)).mean()
    return {
        "dp": round(float(apart.mean()), 5),
        "interval": interval(apart),
        "largest": round(float(np.abs(one.p - full.p).max()), 3),
        "other_side": round(float(sides), 5),
        "dense": round(float(lost.mean()), 5),
        "dense_interval": interval(lost),
        "saved": round(1 - float(one.flops.sum() / dense.flops.sum()), 4),
    }


def cheapest(rows: Mapping[str, Mapping[str, object]], bound: float) -> str | None:
    """The setting that saves most with `dp` of at most `bound`."""
    fit = {name: float(str(row["saved"])) for name, row in rows.items() if float(str(row["dp"])) <= bound}
    return max(fit, key=lambda name: fit[name], default=None)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--clips", type=int, default=24, help="rendered cameras")
    parser.add_argument("--folder", type=Path, default=Path("out/fidelity"), help="keeps rendered cameras")
    parser.add_argument("--masks", choices=(VECTORS, LUMA), action="append", help="default: both")
    parser.add_argument("--bound", type=float, default=0.003, help="largest |dp| of the default")
    options = parser.parse_args()
    torch.set_num_threads(1)
    tower, engine = load_tower(find_model()), load_engine(find_model())
    paths = clips(options.clips, options.folder)
    frames = {f"{path.stem}/0": path for path in paths}
    kinds = options.masks or [VECTORS, LUMA]
    seen: dict[str, dict[str, ClipFrames]] = {
        kind: {
            name: read_clip(path, tower.grid, vectors=POLICIES[kind].needs_vectors)
            for name, path in tqdm(frames.items(), desc=f"decode ({kind})", unit="camera")
        }
        for kind in {LUMA, *kinds}
    }
    needed = STRIDES * FRAMES
    whole = {name for name in frames if all(len(one[name].frames) >= needed for one in seen.values())}
    made = {
        kind: masked(tower, {name: seen[source][name] for name in sorted(whole)}, kind)
        for kind, source in ((DENSE, LUMA), *((kind, kind) for kind in kinds))
    }
    made = {kind: {name: mine[:STRIDES] for name, mine in each.items()} for kind, each in made.items()}
    reference = settings()[0]
    dense = measured(engine, made[DENSE], reference)
    out: dict[str, object] = {}
    print(f"{len(whole)} cameras, {dense.p.shape[1]} windows each, {len(QUESTIONS)} questions")
    for kind in kinds:
        kept = sum(block.tokens for mine in made[kind].values() for block in mine)
        share = kept / (len(whole) * STRIDES * FRAMES * tower.grid.tokens)
        print(f"\n{kind}: {share:.1%} of the tokens kept")
        print(f"{'labels, policy, frames':24} {'dp':>8} {'95 %':>18} {'dense':>8} {'sides':>8} {'saved':>7}")
        rows: dict[str, dict[str, object]] = {}
        full = measured(engine, made[kind], reference)
        for one in tqdm(settings(), desc=f"answer ({kind})", unit="setting"):
            mine = full if one == reference else measured(engine, made[kind], one)
            rows[one.name] = row = compared(mine, full, dense)
            low, high = row["interval"]  # type: ignore[misc]
            print(
                f"{one.name:24} {row['dp']:8.5f} {low:8.4f} - {high:.4f}  {row['dense']:8.5f} "
                f"{row['other_side']:8.3%} {row['saved']:7.1%}",
                flush=True,
            )
        best = cheapest(rows, options.bound)
        print(f"cheapest with dp of at most {options.bound}: {best}")
        out[kind] = {"kept": round(share, 4), "cheapest": best, "settings": rows}
    print(
        json.dumps({"bench": "windows_fidelity", "cameras": len(whole), "windows": dense.p.shape[1], **out})
    )


if __name__ == "__main__":
    main()
