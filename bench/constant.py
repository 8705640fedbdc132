"""`python -m bench.constant STAGE`: a service whose model is a constant, so that only the fleet's own work
costs anything.

The vision tower returns zeros of the right shape, and the engine answers every question with one half. The
results say nothing about pictures.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import torch

from lookout.models.engines import Answer, WindowAnswer, WindowRequest
from lookout.models.vision import FrameInput, FrameTokens
from lookout.runtime.worker import main
from lookout.wire import Stage


class ConstantTower:
    """Zeros in place of tokens; grids and costs are the real tower's."""

    def __init__(self, tower: Any) -> None:
        self._tower = tower

    def __getattr__(self, name: str) -> Any:
        return getattr(self._tower, name)

    def encode(self, frames: Sequence[FrameInput]) -> list[FrameTokens]:
        """Zeros for the kept groups."""
        return [self._zeros(frame) for frame in frames]

    def _zeros(self, frame: FrameInput) -> FrameTokens:
        grid = self._tower.grid_for(*frame.pixels.shape[1:3])
        kept = int(frame.keep.sum())
        tokens = torch.zeros(kept, grid.hidden)
        return FrameTokens(tokens, torch.zeros(grid.deepstack, kept, grid.hidden) if grid.deepstack else None)


class ConstantEngine:
    """One half for every question; prompt layouts are the real engine's."""

    def __init__(self, engine: Any) -> None:
        self._engine = engine

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    def run(self, requests: Sequence[WindowRequest]) -> list[WindowAnswer]:
        """The same answer for all."""
        return [
            WindowAnswer(
                each.plan.stream,
                each.plan.window,
                tuple(Answer(question.id, 0.5, 0.0, 0.0) for question in each.questions),
            )
            for each in requests
        ]


def run(stage: Stage) -> None:
    """Run the service of `stage` until it is stopped."""
    if stage is Stage.PRUNE_ENCODE:
        from lookout.services.prune_encode import __main__ as prune_encode
        from lookout.services.prune_encode.settings import PruneEncodeSettings

        load_tower = prune_encode.load_tower
        prune_encode.load_tower = lambda *given, **more: ConstantTower(load_tower(*given, **more))
        main(stage, PruneEncodeSettings, prune_encode.make_handler)
    elif stage is Stage.PREFILL:
        from lookout.services.prefill import __main__ as prefill
        from lookout.services.prefill.settings import PrefillSettings

        load_engine = prefill.load_engine
        prefill.load_engine = lambda *given, **more: ConstantEngine(load_engine(*given, **more))
        main(stage, PrefillSettings, prefill.make_handler)
    raise SystemExit(f"{stage} has no model")


if __name__ == "__main__":
    run(Stage(sys.argv[1]))
