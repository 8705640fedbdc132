"""What refresh, its budget and labels do to answers: the sweep that earns the default.

Run with `make bench-windows_fidelity` or `python -m bench.windows_fidelity`. The trained tiny model
answers all of its questions (five strides of four samples, 2 FPS; with `--stride-frames 16` windows of 80
samples, as published checkpoints have) on two kinds of cameras: rendered ones that
it never saw (the demo's and random ones), and real clips of at least ten strides. Chains are at most 15
windows long: a key window, then 14 windows that each continue the one before. All settings answer the same
windows.

- `dp`: mean |difference of p(yes)| against the same windows computed in full, under the same masks and with a
  label for every frame. Key windows are counted in: they differ by nothing, and one window in 30 is one.
- `front 2 +0.1`: two frames of rows from the front; after a burst of movement all blocks that saw it leave,
  from a surplus of 0.1 on (`WindowSettings.refresh_surplus`).
- `dense`: the same against windows in which every patch is kept.
- `saved`: share of a window's FLOPs (questions apart) saved against dense windows, key windows counted in, of
  this model; its labels weigh more than a large model's (see bench-windows).

Intervals are 95 % over cameras (bootstrap). The cheapest setting with `dp` of at most --bound is named
for every kind of mask; `chosen elsewhere` lets every other camera choose it and reports it on the rest, then
the other way round, so that no camera chose what is reported of it. `random-k` computes as many rows as
`front`, anywhere: the floor. Under vectors fewer settings are compared. For the default, `sources` says where
`dp` comes from: by camera, by strides since the key window, and how much of it falls on answers that are
undecided in full windows (p(yes) from .05 to .95).
20 cameras take about 12 minutes of a core, of which 3 are rendering. Answers are kept under --results by
camera, mask and setting and are not computed again, so that the command can be stopped and continues, and a
setting can be added. The last line is JSON.
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

from bench.motion import MOVING, clips_of, footage
from lookout.models import find_model
from lookout.models.digest import folder_digest
from lookout.models.engines import Cost, Engine, Question, load_engine
from lookout.models.families import load_tower
from lookout.models.vision import Tower
from lookout.models.windows import (
    DEFAULT_PRESET,
    PRESETS,
    LabelPolicy,
    Planner,
    Policy,
    StrideBlock,
    WindowSettings,
)
from lookout.pruning import Accumulation, Change, MaskPolicy, PrunePolicy
from lookout.streams import ClipFrames, ClipWindow, StreamBlock, answered_windows, read_clip, stream_blocks
from lookout.video.segments import CodecError
from watchbench import cameras, encode, scenes
from watchbench.films import HELD_BACK
from watchbench.questions import PRODUCT, QUESTIONS as KNOWN

BLOCKS = 5  # strides of a window
PERIOD = WindowSettings().key_every  # weighs key windows against the others
QUESTIONS = [Question(one.name, one.text) for one in KNOWN]
BUDGETS = (0, 1, 2, 3, 4, 6, 8)
SURPLUSES = ((1, 0.1), (2, 0.05), (2, 0.1), (2, 0.2), (3, 0.1))  # frames of budget and surplus
LONG_BUDGETS = (0, 2, 4, 8, 16, 24, 32)
LONG_SURPLUSES = ((2, 0.05), (2, 0.1), (4, 0.05), (4, 0.1), (8, 0.05), (16, 0.05))
RANDOM = (1, 2, 4, 8)  # budgets that are compared with as many rows anywhere
UNDECIDED = (0.05, 0.95)
LIMITS = (0.01, 0.02, 0.05, 0.1)  # of an audit
VECTORS, LUMA, DENSE = "vectors since the anchor", "pixels since encoded", "dense"
POLICIES = {
    DENSE: PrunePolicy(everything=True),
    VECTORS: PrunePolicy(
        Change.VECTORS, luma_tau=6.0, anchor_samples=None, accumulation=Accumulation.SINCE_ANCHOR
    ),
    LUMA: PrunePolicy(),
}
RESULTS = 2  # raise when answers are made in another way, so that cameras are answered again
P = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Cut:
    """How a stream is cut: samples of a stride, windows of a chain, strides of the shortest real clip,
    strides of a window."""

    frames: int = 4
    chain: int = 15
    shortest: int = 10
    blocks: int = BLOCKS

    @property
    def strides(self) -> int:
        """Strides of a chain."""
        return self.blocks - 1 + self.chain

    @property
    def seconds(self) -> float:
        """Length of a rendered camera: one chain and a sample more."""
        return self.strides * self.frames * 0.5 + 0.5


@dataclass(frozen=True, slots=True)
class Setting:
    """How windows are computed."""

    labels: LabelPolicy
    policy: Policy
    budget: int | None = None
    surplus: float | None = None
    share: float | None = None

    @property
    def name(self) -> str:
        """For people: labels, policy, frames of budget, surplus, share of the window."""
        parts = [self.labels.value, self.policy.value]
        parts += [] if self.budget is None else [str(self.budget)]
        parts += [] if self.surplus is None else [f"+{self.surplus:g}"]
        parts += [] if self.share is None else [f"{self.share:g} of the window"]
        return " ".join(parts)


@dataclass(frozen=True, slots=True)
class Answered:
    """One camera, one setting: p(yes) [windows, questions], FLOPs [windows], and the windows since the key
    window of its chain [windows]."""

    p: P
    flops: P
    since: NDArray[np.int64]

    @property
    def key(self) -> NDArray[np.bool_]:
        """Which windows are key windows, [windows]."""
        return self.since == 0


FULL = Setting(LabelPolicy.FRAME, Policy.PRUNE_ONLY)
"""The reference: every row of every window is computed."""


def default(preset: str = DEFAULT_PRESET) -> Setting:
    """What the product does, by default or with another preset."""
    windows = PRESETS[preset]
    return Setting(
        windows.labels,
        windows.policy,
        windows.refresh_frames,
        windows.refresh_surplus,
        windows.refresh_share,
    )


def settings(kind: str, cut: Cut) -> list[Setting]:
    """What is compared under one kind of mask; the first is the reference. Long windows take four times as
    long to answer: fewer settings are compared there."""
    if kind == DENSE:
        return [FULL]
    anchors = Setting(LabelPolicy.FRAME, Policy.REFRESH)

    def fronts(*budgets: int) -> list[Setting]:
        return [Setting(LabelPolicy.FRAME, Policy.FRONT, budget) for budget in budgets]

    if kind == VECTORS:
        return [FULL, *fronts(0, 2, 4), default(), anchors]
    if cut.frames > 4:
        out = [FULL, *fronts(*LONG_BUDGETS), Setting(LabelPolicy.FRAME, Policy.RANDOM_K, 8)]
        out += [Setting(LabelPolicy.FRAME, Policy.FRONT, *pair) for pair in LONG_SURPLUSES]
        return out if default() in out else [*out, default()]
    out = [FULL, *fronts(*BUDGETS)]
    out += [Setting(LabelPolicy.FRAME, Policy.RANDOM_K, budget) for budget in RANDOM]
    out += [Setting(LabelPolicy.FRAME, Policy.FRONT, *one) for one in SURPLUSES]
    out += [anchors]
    for labels in (LabelPolicy.KEPT, LabelPolicy.BLOCK):
        out += [Setting(labels, Policy.PRUNE_ONLY)]
        out += [Setting(labels, Policy.FRONT, budget) for budget in (2, 4, 8)]
    return out if default() in out else [*out, default()]


def rendered(count: int, folder: Path, cut: Cut) -> list[Path]:
    """The demo's cameras (too short for long strides), and `count` random ones, kept in `folder`."""
    demo = cameras.demo_cameras(folder) if cut.frames == 4 else []
    out = [camera.path for camera in demo]
    for number in tqdm(range(count), desc="render", unit="camera"):
        seed = HELD_BACK + 50_000 + number
        path = folder / f"{seed}-{cameras.LOOK}-{cut.seconds:g}s.mp4"
        if not path.is_file():
            scene = scenes.sample(1, cut.seconds, seed)
            encode.write(cameras.frames(scene, cut.seconds), path, cameras.FPS, encode.varied(seed))
        out.append(path)
    return out


def chains(path: Path, tower: Tower, masks: MaskPolicy, cut: Cut) -> list[list[StrideBlock]]:
    """A camera's blocks under a rule of masks, in chains of at most one key period."""
    return chains_of(path.stem, read_clip(path, tower.grid, vectors=masks.gathers), tower, masks, cut)


def chains_of(
    name: str, clip: ClipFrames, tower: Tower, masks: MaskPolicy, cut: Cut
) -> list[list[StrideBlock]]:
    """The same of a camera whose samples are decoded already."""
    encoded = stream_blocks(
        f"{name}/0",
        clip.frames,
        tower,
        masks,
        samples=cut.frames,
        step_us=clip.step_us,
        window_blocks=cut.blocks,
    )
    blocks = [member.block for member in encoded]
    if clip.frames and clip.frames[-1].slot < len(blocks) * cut.frames - 1:
        blocks.pop()  # no whole one
    parts = [blocks[first : first + cut.strides] for first in range(0, len(blocks), cut.strides)]
    return [part for part in parts if len(part) >= cut.shortest]


def answered(
    engine: Engine,
    made: Sequence[Sequence[StrideBlock]],
    setting: Setting,
    cut: Cut,
    questions: Sequence[Question] = QUESTIONS,
) -> Answered:
    """All chains of a camera with one setting."""
    planner = _Whole(
        engine.layout,
        WindowSettings(
            cut.blocks, setting.policy, cut.chain, refresh_frames=setting.budget, labels=setting.labels,
            refresh_surplus=setting.surplus, refresh_share=setting.share,
            samples=cut.frames, stride_s=cut.frames * 0.5,
        ),
    )  # fmt: skip
    out: list[ClipWindow] = []
    since: list[int] = []
    for blocks in made:
        # The key window is the first whole one: the chain starts with its oldest block.
        streams = {blocks[0].stream: [StreamBlock.of(block, cut.frames) for block in blocks]}
        (windows,) = answered_windows(engine, planner, streams, questions, key=False).values()
        out += windows[cut.blocks - 1 :]
        since += range(len(windows) - cut.blocks + 1)
    p = [[one.p_yes for one in window.answer.answers] for window in out]
    return Answered(
        np.array(p), np.array([prefill(w.answer.cost) for w in out], dtype=float), np.array(since)
    )


def prefill(cost: Cost) -> int:
    """FLOPs of the window without its questions."""
    return sum(count for stage, count in cost.flops.items() if stage not in {"questions", "describe"})


class _Whole(Planner):
    """Shorter windows at the start of a camera are key windows: the chain begins with the first whole one."""

    def plan(self, blocks: Sequence[StrideBlock], previous: object = None, **extra: object) -> object:  # type: ignore[override]
        """As `Planner.plan`."""
        size = self.settings.blocks
        begins = previous is None or len(blocks) < size or len(previous.blocks) < size  # type: ignore[attr-defined]
        return super().plan(blocks, None if begins else previous, key=begins)  # type: ignore[arg-type]


@dataclass(frozen=True, slots=True)
class Camera:
    """One camera under one kind of mask: the share of tokens kept, and what each setting answered."""

    kept: float
    answers: dict[str, Answered]


class Results:
    """Answers of cameras on disk, by what made them; each setting of a camera is kept when it is there."""

    def __init__(self, folder: Path, model: Path, cut: Cut) -> None:
        self.cut = cut
        told = (RESULTS, cameras.LOOK, POLICIES, folder_digest(model), cut)
        self.folder = folder / hashlib.sha256(repr(told).encode()).hexdigest()[:12]
        self.folder.mkdir(parents=True, exist_ok=True)

    def read(self, name: str) -> Camera | None:
        """What is known of a camera under a kind of mask; None where nothing is."""
        path = self.folder / f"{name}.npz"
        if not path.is_file():
            return None
        with np.load(path) as found:
            names = json.loads(str(found["names"]))
            answers = {
                one: Answered(found[f"p{n}"], found[f"flops{n}"], found["since"])
                for n, one in enumerate(names)
            }
            return Camera(float(found["kept"]), answers)

    def write(self, name: str, camera: Camera) -> None:
        """Keep what is known of a camera."""
        arrays: dict[str, Any] = {f"p{n}": one.p for n, one in enumerate(camera.answers.values())}
        arrays |= {f"flops{n}": one.flops for n, one in enumerate(camera.answers.values())}
        since = next(iter(camera.answers.values())).since
        part = self.folder / f".{name}.npz"
        names = json.dumps(list(camera.answers))
        np.savez(part, allow_pickle=False, names=names, since=since, kept=camera.kept, **arrays)
        part.replace(self.folder / f"{name}.npz")


def camera_answers(path: Path, kind: str, tower: Tower, engine: Engine, results: Results) -> Camera:
    """A camera's answers under one kind of mask, with every setting of that kind."""
    name = f"{path.stem}-{kind.replace(' ', '-')}"
    found = results.read(name)
    missing = [one for one in settings(kind, results.cut) if found is None or one.name not in found.answers]
    if not missing and found is not None:
        return found
    made = chains(path, tower, POLICIES[kind], results.cut)
    if found is None:
        kept = sum(block.tokens for part in made for block in part)
        whole = sum(len(block.frames) * tower.grid.tokens for part in made for block in part)
        found = Camera(kept / whole, {})
    for one in missing:
        found.answers[one.name] = answered(engine, made, one, results.cut)
        results.write(name, found)
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
    for budget in RANDOM:
        names = [
            Setting(LabelPolicy.FRAME, policy, budget).name for policy in (Policy.FRONT, Policy.RANDOM_K)
        ]
        if any(name not in answers for answers in found for name in names):
            continue
        front, anywhere = (
            apart_of([answers[name] for answers in found], [answers[FULL.name] for answers in found])
            for name in names
        )
        less = front - anywhere
        out[str(budget)] = {"dp": round(float(less.mean()), 5), "interval": interval(less)}
    return out


def less_front(found: Sequence[Mapping[str, Answered]], dense: Sequence[Answered]) -> dict[str, Any]:
    """By frames of budget: `dp` and `saved` of the default less those of that budget alone, over cameras."""
    full = [answers[FULL.name] for answers in found]
    product = [answers[default().name] for answers in found]
    out: dict[str, Any] = {}
    for budget in BUDGETS:
        name = Setting(LabelPolicy.FRAME, Policy.FRONT, budget).name
        if any(name not in answers for answers in found):
            continue
        alone = [answers[name] for answers in found]
        apart = apart_of(product, full) - apart_of(alone, full)
        saved = shares(alone, dense) - shares(product, dense)
        out[str(budget)] = {
            "dp": round(float(apart.mean()), 5),
            "interval": interval(apart),
            "saved": round(float(saved.mean()), 4),
            "saved_interval": interval(saved),
        }
    return out


def shares(one: Sequence[Answered], dense: Sequence[Answered]) -> P:
    """FLOPs of a setting, as shares of dense windows: [cameras]."""
    return np.array([over_period(a.flops, a.key) / c.flops.mean() for a, c in zip(one, dense, strict=True)])


def compared(one: Sequence[Answered], full: Sequence[Answered], dense: Sequence[Answered]) -> dict[str, Any]:
    """A setting against full windows under the same masks, and against dense ones; one entry a camera."""
    sets = list(zip(one, full, dense, strict=True))
    apart = apart_of(one, full)
    lost = np.array([over_period(np.abs(a.p - c.p).mean(1), a.key) for a, _, c in sets])
    sides = [over_period(((a.p > 0.5) != (b.p > 0.5)).mean(1), a.key) for a, b, _ in sets]
    return {
        "dp": round(float(apart.mean()), 5),
        "interval": interval(apart),
        "largest": round(max(float(np.abs(a.p - b.p).max()) for a, b, _ in sets), 3),
        "other_side": round(float(np.mean(sides)), 5),
        "dense": round(float(lost.mean()), 5),
        "dense_interval": interval(lost),
        "saved": round(1 - float(shares(one, dense).mean()), 4),
    }


def cheapest(rows: Mapping[str, Mapping[str, object]], bound: float) -> str | None:
    """The setting that saves most with `dp` of at most `bound`."""
    fit = {name: float(str(row["saved"])) for name, row in rows.items() if float(str(row["dp"])) <= bound}
    return max(fit, key=lambda name: fit[name], default=None)


def chosen_elsewhere(
    found: Sequence[Mapping[str, Answered]],
    dense: Sequence[Answered],
    names: Sequence[str],
    bound: float,
) -> dict[str, Any]:
    """`dp` and `saved` of the cheapest setting under a bound where the other half of the cameras chose it.

    Args:
        found: Of each camera its answers by setting.
        dense: Of each camera its answers when every patch is kept.
        names: The settings to choose from.
        bound: Largest `dp` on the choosing half.
    """
    halves = [list(range(first, len(found), 2)) for first in (0, 1)]
    if not all(halves):
        return {}
    apart, saved, chosen = [], [], []
    for chooses, reports in (halves, halves[::-1]):
        rows = {
            name: compared(
                [found[n][name] for n in chooses],
                [found[n][FULL.name] for n in chooses],
                [dense[n] for n in chooses],
            )
            for name in names
        }
        best = cheapest(rows, bound) or FULL.name
        chosen.append(best)
        own = [found[n][best] for n in reports]
        apart += apart_of(own, [found[n][FULL.name] for n in reports]).tolist()
        saved += (1 - shares(own, [dense[n] for n in reports])).tolist()
    return {
        "settings": chosen,
        "dp": round(float(np.mean(apart)), 5),
        "interval": interval(np.array(apart)),
        "saved": round(float(np.mean(saved)), 4),
        "saved_interval": interval(np.array(saved)),
    }


def real(where: Path, tower: Tower, cut: Cut) -> Iterator[Path]:
    """Clips of fixed cameras with at least one chain."""
    for path in clips_of(where):
        if path.stem in MOVING:
            continue
        try:
            long_enough = len(read_clip(path, tower.grid).frames) >= cut.shortest * cut.frames
        except CodecError:
            continue
        if long_enough:
            yield path


def report(  # noqa: PLR0917
    kind: str, title: str, found: Mapping[str, Camera], dense: Sequence[Answered], bound: float, cut: Cut
) -> dict[str, object]:
    """Print the table of some cameras and return what the last line says."""
    every = list(found.values())
    kept = float(np.mean([one.kept for one in every]))
    windows = sum(len(one.since) for one in dense)
    print(f"\n{kind}, {title}: {len(found)} cameras, {windows} windows, {kept:.1%} of the tokens kept")
    print(f"{'labels, policy, frames':22} {'dp':>8} {'95 %':>16} {'dense':>9} {'sides':>8} {'saved':>7}")
    rows: dict[str, dict[str, Any]] = {}
    full = [one.answers[FULL.name] for one in every]
    for one in settings(kind, cut):
        rows[one.name] = row = compared([camera.answers[one.name] for camera in every], full, dense)
        low, high = row["interval"]
        print(
            f"{one.name:22} {row['dp']:8.5f}  {low:.4f} - {high:.4f} {row['dense']:9.5f} "
            f"{row['other_side']:8.3%} {row['saved']:7.1%}"
        )
    audits, where = audited(every), sources(found)
    print(
        "largest |dp| of the product's questions in a continued window, by default: "
        + ", ".join(f"{name} {value:.3f}" for name, value in audits.items())
    )
    floor = less_random([one.answers for one in every])
    print(
        "front less random-k: "
        + ", ".join(
            f"{budget} frames {one['dp']:.4f} ({one['interval'][0]:.4f} - {one['interval'][1]:.4f})"
            for budget, one in floor.items()
        )
    )
    less = less_front([one.answers for one in every], dense)
    print(
        "default less front alone: "
        + ", ".join(
            f"{budget} frames dp {one['dp']:+.4f} ({one['interval'][0]:+.4f} - {one['interval'][1]:+.4f}), "
            f"saved {one['saved']:+.1%}"
            for budget, one in less.items()
        )
    )
    print(f"where dp of the default comes from: {json.dumps(where)}")
    best = cheapest(rows, bound)
    print(f"cheapest with dp of at most {bound}: {best}")
    elsewhere = chosen_elsewhere([one.answers for one in every], dense, list(rows), bound)
    print(f"chosen by the other half of the cameras: {json.dumps(elsewhere)}", flush=True)
    return {
        "cameras": len(found),
        "windows": windows,
        "kept": round(kept, 4),
        "cheapest": best,
        "chosen elsewhere": elsewhere,
        "audits": audits,
        "sources": where,
        "front_less_random": floor,
        "default_less_front": less,
        "settings": rows,
    }


def audited(found: Sequence[Camera]) -> dict[str, float]:
    """What audits would say of every continued window, by default: quantiles of the largest |dp| over the
    product's questions, and the shares above some limits."""
    product = [n for n, one in enumerate(KNOWN) if one.name in PRODUCT]
    apart = np.concatenate([moved(one)[~one.answers[FULL.name].key][:, product].max(1) for one in found])
    told = {f"q{q:g}": round(float(np.quantile(apart, q)), 4) for q in (0.5, 0.9, 0.95, 0.99, 1.0)}
    return told | {f"above {limit:g}": round(float((apart > limit).mean()), 4) for limit in LIMITS}


def moved(camera: Camera) -> P:
    """|p(yes) by default - p(yes) in full|, [windows, questions]."""
    return np.abs(camera.answers[default().name].p - camera.answers[FULL.name].p)


def sources(found: Mapping[str, Camera]) -> dict[str, Any]:
    """Where `dp` of the default comes from: cameras, the strides since the key window (mean over the windows
    of all cameras), the share on answers that full windows leave undecided, and the share of such answers."""
    apart = {name: moved(one) for name, one in found.items()}
    full = {name: one.answers[FULL.name] for name, one in found.items()}
    by_camera = {
        name: round(over_period(values.mean(1), full[name].key), 4) for name, values in apart.items()
    }
    every = np.concatenate(list(apart.values()))
    since = np.concatenate([one.since for one in full.values()])
    p = np.concatenate([one.p for one in full.values()])
    undecided = (p > UNDECIDED[0]) & (p < UNDECIDED[1])
    strides = {
        f"{first}-{last}": round(float(every[(since >= first) & (since <= last)].mean()), 4)
        for first, last in ((1, 4), (5, 9), (10, PERIOD - 1))
        if ((since >= first) & (since <= last)).any()
    }
    return {
        "cameras": dict(sorted(by_camera.items(), key=lambda one: -one[1])),
        "windows": {name: len(one.since) for name, one in full.items()},
        "strides": strides,
        "undecided": round(float(undecided.mean()), 3),
        "dp_undecided": round(float(every[undecided].sum() / max(every.sum(), 1e-12)), 3),
    }


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
    parser.add_argument("--stride-frames", type=int, default=4, help="samples of a stride (five a window)")
    parser.add_argument("--chain", type=int, default=15, help="windows of a chain")
    parser.add_argument("--shortest", type=int, default=10, help="strides of the shortest real clip")
    parser.add_argument("--model", type=Path, default=None, help="another checkpoint folder")
    parser.add_argument("--bound", type=float, default=0.003, help="largest |dp| of the default")
    options = parser.parse_args()
    torch.set_num_threads(1)
    model = options.model or find_model()
    cut = Cut(options.stride_frames, options.chain, options.shortest)
    tower, engine, results = load_tower(model), load_engine(model), Results(options.results, model, cut)
    where = footage()
    groups = {"rendered": rendered(options.clips, options.folder, cut)}
    if where is None:
        print("real clips: left out, there is no footage (set LOOKOUT_FOOTAGE)")
    else:
        groups["real"] = list(real(where, tower, cut))
    groups["all"] = [path for paths in groups.values() for path in paths]
    line: dict[str, object] = {
        "bench": "windows_fidelity",
        "questions": len(QUESTIONS),
        "window": cut.blocks * cut.frames,
    }
    for kind in options.masks or [LUMA, VECTORS]:
        bar = tqdm(groups["all"], desc=f"answer ({kind})", unit="camera")
        found = {path: camera_answers(path, kind, tower, engine, results) for path in bar}
        dense = {path: camera_answers(path, DENSE, tower, engine, results) for path in groups["all"]}
        line[kind] = {
            name: report(
                kind,
                name,
                {path.stem: found[path] for path in paths},
                [dense[path].answers[FULL.name] for path in paths],
                options.bound,
                cut,
            )
            for name, paths in groups.items()
            if paths
        }
    print(json.dumps(line))


if __name__ == "__main__":
    main()
