"""`python -m bench.saving`: the share of a dense run's arithmetic that fixed cameras save.

Real clips of fixed cameras, each at least ten strides long, go through masks, tower and the bundled model
with the fleet's defaults, in windows of 10 s that slide by 2 s. A dense run computes every window on its own,
with every patch and every token.

- `saved`: one minus the FLOPs of tower and language model over those of the dense run, without questions,
  added up over all clips. `by_clip`: the same per clip.
- `rows`: what the rest consists of, as shares of the dense run's rows: rows of key windows, rows of whole
  windows within a chain, and in continued windows the rows of the new block and the rows computed again.

Windows that the fleet could leave out because nothing moved (`LOOKOUT_IDLE_AGE_S`, off by default) are
computed. The last line is JSON.
"""

from __future__ import annotations

import argparse
import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from bench.motion import MOVING, clips_of, footage
from lookout.models import WindowDefaults, find_model, window_defaults
from lookout.models.engines import Cost, Engine, Question, load_engine
from lookout.models.families import load_tower
from lookout.models.presets import DEFAULT, preset_of
from lookout.models.vision import FrameInput, FrameTokens, Tower
from lookout.models.windows import Planner, WindowPlan
from lookout.streams import Player, basis_of, read_clip, stream_blocks
from lookout.video.segments import CodecError

QUESTION = Question("person", "Is a person in view?")
STRIDES = 10
TARGET = 0.8


class CountingTower:
    """A tower that adds up what it computes; everything else is the real one's."""

    def __init__(self, tower: Tower) -> None:
        self._tower, self.flops_spent = tower, 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._tower, name)

    def encode(self, frames: Sequence[FrameInput]) -> list[FrameTokens]:
        """The real tokens."""
        self.flops_spent += self._tower.flops(frames)
        return self._tower.encode(frames)

    def dense(self) -> int:
        """FLOPs of a frame with every patch."""
        grid = self._tower.grid
        pixels = np.zeros((grid.temporal, grid.height, grid.width, 3), np.uint8)
        return self._tower.flops([FrameInput(pixels, np.ones((grid.group_rows, grid.group_cols), bool))])


@dataclass(slots=True)
class Spent:
    """What a clip cost beside a dense run: FLOPs of both, rows by kind and in all."""

    flops: int = 0
    dense: int = 0
    dense_rows: int = 0
    windows: int = 0
    rows: Counter[str] = field(default_factory=Counter)

    @property
    def saved(self) -> float:
        """Share of the dense run's FLOPs."""
        return 1 - self.flops / self.dense

    def add(self, cost: Cost, plan: WindowPlan, basis: str, pruned: int, vision: int) -> None:
        """Count one window; `pruned`: its tokens that only a dense run computes, `vision`: FLOPs of its dense
        tower."""
        rows = plan.rows + pruned
        asked = cost.flops.get("questions", 0) + cost.flops.get("describe", 0)
        self.flops += cost.total_flops - asked
        self.dense += vision + cost.full_flops(rows)
        self.dense_rows += rows
        self.windows += 1
        if basis == "incremental":
            self.rows["again"] += cost.tokens_refreshed
            self.rows["new"] += cost.tokens_new
        else:
            self.rows[basis] += cost.tokens_kept

    def joined(self, other: Spent) -> Spent:
        """Both together."""
        return Spent(
            self.flops + other.flops,
            self.dense + other.dense,
            self.dense_rows + other.dense_rows,
            self.windows + other.windows,
            self.rows + other.rows,
        )


def play(path: Path, tower: Tower, engine: Engine, planner: Planner, sampling: WindowDefaults) -> Spent:
    """Answer every window of a clip.

    Raises:
        CodecError: The clip cannot be decoded.
    """
    policy, counting, spent = preset_of(DEFAULT).masks, CountingTower(tower), Spent()
    clip = read_clip(path, tower.grid, 1e6 / sampling.step_us)
    player = Player(engine, planner)
    dense = counting.dense()
    blocks = stream_blocks(
        path.stem, clip.frames, counting, policy, samples=sampling.block_samples, step_us=clip.step_us,
        window_blocks=planner.settings.blocks,
    )  # fmt: skip
    for block in blocks:
        (played,) = player.step([block], [QUESTION])
        if played.plan is None or played.answer is None:
            continue
        frames = [frame for member in played.blocks for frame in member.frames]
        pruned = sum(frame.keep.size for frame in frames) - sum(block.tokens for block in played.blocks)
        basis = basis_of(played.plan, played.answer)
        spent.add(played.answer.cost, played.plan, basis, pruned, len(frames) * dense // tower.grid.temporal)
    player.close()
    spent.flops += counting.flops_spent
    return spent


def measure(paths: Sequence[Path]) -> dict[str, Any]:
    """The figures of the last line."""
    folder = find_model(None)
    sampling = window_defaults(folder)
    tower, engine = load_tower(folder), load_engine(folder)
    planner = Planner(engine.layout, preset_of(DEFAULT).windows.sampled(sampling))
    clips: dict[str, Spent] = {}
    for path in paths:
        try:
            spent = play(path, tower, engine, planner, sampling)
        except CodecError:
            continue
        if spent.windows >= STRIDES:
            clips[path.name] = spent
            print(f"{path.name:40} {spent.windows:4} windows  {spent.saved:6.1%} saved", flush=True)
    if not clips:
        raise SystemExit("no real clips of fixed cameras here: set LOOKOUT_FOOTAGE")
    everything = Spent()
    for spent in clips.values():
        everything = everything.joined(spent)
    return {
        "bench": "saving",
        "saved": round(everything.saved, 4),
        "target": TARGET,
        "met": everything.saved >= TARGET,
        "windows": everything.windows,
        "by_clip": {name: round(spent.saved, 4) for name, spent in clips.items()},
        "rows": {
            kind: round(count / everything.dense_rows, 4) for kind, count in sorted(everything.rows.items())
        },
    }


def main() -> None:
    """Run the bench."""
    argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "").parse_args()
    root = footage()
    if root is None:
        raise SystemExit("no real clips here: set LOOKOUT_FOOTAGE")
    paths = [path for path in clips_of(root) if path.parent.name == "fixed" and path.stem not in MOVING]
    print(json.dumps(measure(paths)))


if __name__ == "__main__":
    main()
