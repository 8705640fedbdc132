"""What a policy does to answers: the trained tiny model over the rendered cameras, against dense windows.

`make bench-windows_fidelity` or `python -m tests.bench.windows_fidelity`. Every setting answers the product's
questions on the same windows (five strides of four samples); each p(yes) is compared with that of the window
with every patch kept and every row computed. The last line is JSON: per setting the mean and largest
difference, and the share of answers that change sides.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

import watchbench
from lookout.codec import DecodeRequest, Limits
from lookout.codec.decoder import decode_segment
from lookout.engines import Engine, Question, WindowRequest, load_engine
from lookout.pruning import DEFAULT_GATHER_METHOD, Accumulation, Change, PrunePolicy, Sample, prune_block
from lookout.vision import FrameInput, Tower, load_tower
from lookout.windows import EncodedFrame, Planner, Policy, StrideBlock, WindowPlan, WindowSettings
from tests.bench.motion import Both
from watchbench.questions import BY_NAME, PRODUCT

HOME = Path(next(iter(watchbench.__path__)))
FRAMES, BLOCKS = 4, 5
QUESTIONS = [Question(name, BY_NAME[name].text) for name in PRODUCT]
PRUNING = {
    "dense": PrunePolicy(everything=True),
    "since-anchor": PrunePolicy(change=Change.VECTORS, accumulation=Accumulation.SINCE_ANCHOR),
    "since-encoded": PrunePolicy(change=Change.VECTORS),
    "luma": PrunePolicy(),
}


@dataclass(frozen=True, slots=True)
class Setting:
    """How blocks are pruned and windows computed."""

    pruning: str
    policy: Policy
    anchors: int | None = None

    @property
    def name(self) -> str:
        """For people."""
        return f"{self.pruning} {self.policy.value}" + ("" if self.anchors is None else f" {self.anchors}")


SETTINGS = [
    Setting("dense", Policy.PRUNE_ONLY),
    *(
        Setting(pruning, policy, anchors)
        for pruning in ("since-anchor", "since-encoded")
        for policy, anchors in (
            (Policy.PRUNE_ONLY, None),
            (Policy.REFRESH, None),
            (Policy.REFRESH, 1),
            (Policy.REUSE_ALL, None),
        )
    ),
]


def samples(film: Path, tower: Tower) -> list[Sample]:
    """A film as the pruning room sees it."""
    grid = tower.grid
    both = Both(grid.rows, grid.cols, grid.patch)
    request = DecodeRequest(grid.width, grid.height, gather=both, limits=Limits(seconds=900))
    decoded = decode_segment(film.read_bytes(), request)
    return [
        Sample(pixels, motion.basis, motion.v, intra=frame.info.picture.intra, corrupt=frame.info.corrupt)
        for pixels, motion, frame in zip(
            decoded.pixels, both.motions[DEFAULT_GATHER_METHOD], decoded.frames, strict=True
        )
    ]


def blocks(stream: str, seen: list[Sample], tower: Tower, policy: PrunePolicy) -> list[StrideBlock]:
    """Its stride blocks."""
    out, carry = [], None
    for index in range(len(seen) // FRAMES):
        mine = seen[index * FRAMES : (index + 1) * FRAMES]
        masks, carry = prune_block(mine, tower.grid, policy, carry)
        told = tower.encode(
            [FrameInput(np.stack([mine[i].pixels for i in mask.frames]), mask.keep) for mask in masks]
        )
        frames = (
            EncodedFrame((index * FRAMES + mask.frames[0]) * 500_000, mask.anchor, mask.keep, one.tokens)
            for mask, one in zip(masks, told, strict=True)
        )
        out.append(StrideBlock(stream, index, tuple(frames)))
    return out


def answers(engine: Engine, mine: list[StrideBlock], setting: Setting) -> list[list[float]]:
    """p(yes) of every question on every whole window."""
    planner = Planner(engine.layout, WindowSettings(BLOCKS, setting.policy, anchors=setting.anchors))
    plan: WindowPlan | None = None
    found = []
    for last in range(1, len(mine) + 1):
        window = mine[max(0, last - BLOCKS) : last]
        plan = planner.plan(window, plan)
        answer = engine.run([WindowRequest(plan, window, QUESTIONS)])[0].unwrap()
        if len(window) == BLOCKS:
            found.append([one.p_yes for one in answer.answers])
    engine.close_stream(mine[0].stream)
    return found


def compared(told: Iterable[list[list[float]]], dense: np.ndarray) -> dict[str, float]:
    """A setting against dense windows."""
    mine = np.concatenate([np.array(each) for each in told])
    apart = np.abs(mine - dense)
    return {
        "mean": round(float(apart.mean()), 4),
        "largest": round(float(apart.max()), 3),
        "other_side": round(float(((mine > 0.5) != (dense > 0.5)).mean()), 4),
    }


def main() -> None:
    """Measure and print."""
    torch.set_num_threads(1)
    weights = HOME / "weights" / "tolerant"
    tower, engine = load_tower(weights), load_engine(weights)
    told: dict[str, list[list[list[float]]]] = {setting.name: [] for setting in SETTINGS}
    kept: dict[str, list[int]] = {name: [] for name in PRUNING}
    for film in sorted((HOME / "films").glob("*.mp4")):
        seen = samples(film, tower)
        made = {
            name: blocks(f"{film.stem}-{name}/0", seen, tower, policy) for name, policy in PRUNING.items()
        }
        for name, mine in made.items():
            kept[name] += [block.tokens for block in mine]
        for setting in SETTINGS:
            told[setting.name].append(answers(engine, made[setting.pruning], setting))
    whole = FRAMES * tower.grid.tokens
    print("tokens kept:", {name: round(float(np.mean(counts)) / whole, 3) for name, counts in kept.items()})
    dense = np.concatenate([np.array(each) for each in told[SETTINGS[0].name]])
    out = {setting.name: compared(told[setting.name], dense) for setting in SETTINGS[1:]}
    for name, row in out.items():
        print(f"{name:28} {row}")
    print(json.dumps({"bench": "windows_fidelity", "windows": len(dense), **out}))


if __name__ == "__main__":
    main()
