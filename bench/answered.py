"""Answers of a model about the windows of cameras: how windows are cut, computed and compared.

A camera's blocks form chains of at most one key period: a key window, then windows that each continue the
previous one. `|dp|` is the mean absolute difference of p(yes) from the same windows computed in full under
the same masks; a key window gets the weight of one in `PERIOD` windows.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from tqdm import tqdm

from bench.motion import MOVING, clips_of
from lookout.models.engines import Cost, Engine, Question
from lookout.models.vision import Tower
from lookout.models.windows import (
    DEFAULT_PRESET,
    PRESETS,
    Planner,
    Policy,
    RowPolicy,
    StrideBlock,
    WindowSettings,
)
from lookout.pruning import MaskPolicy
from lookout.streams import ClipFrames, ClipWindow, StreamBlock, answered_windows, read_clip, stream_blocks
from lookout.video.segments import CodecError
from watchbench import cameras, encode, scenes
from watchbench.films import HELD_BACK
from watchbench.questions import QUESTIONS as KNOWN

BLOCKS = 5  # strides of a window
PERIOD = WindowSettings().key_every  # weighs key windows against the others
QUESTIONS = [Question(one.name, one.text) for one in KNOWN]
VECTORS, LUMA, DENSE = "vectors since the anchor", "pixels since encoded", "dense"
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

    policy: Policy | RowPolicy
    budget: int | None = None
    surplus: float | None = None
    share: float | None = None

    @property
    def name(self) -> str:
        """For people: policy, frames of budget, surplus, share of the window."""
        parts = [self.policy.value]
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


FULL = Setting(Policy.PRUNE_ONLY)
"""The reference: every row of every window is computed."""


def default(preset: str = DEFAULT_PRESET) -> Setting:
    """What the product does, by default or with another preset."""
    windows = PRESETS[preset]
    return Setting(
        windows.policy,
        windows.refresh_frames,
        windows.refresh_surplus,
        windows.refresh_share,
    )


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
            cut.blocks, setting.policy, cut.chain, refresh_frames=setting.budget,
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


def shares(one: Sequence[Answered], dense: Sequence[Answered]) -> P:
    """FLOPs of a setting, as shares of dense windows: [cameras]."""
    return np.array([over_period(a.flops, a.key) / c.flops.mean() for a, c in zip(one, dense, strict=True)])


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
