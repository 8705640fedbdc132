"""A second architecture learnt from the first: Qwen2.5-VL's tower learns to see what InternVL's eye sees.

The language model, its words and those parts of the eye that have a counterpart are copied
(:func:`watchbench.qwen.transplant`). Then the tower alone learns by regression. Its target for a pair of
frames is the mean of the eye's tokens of both, whole and under the product's masks. That needs no labels:
every drawn frame has 16 tokens of 192 numbers to learn from. The language model learns afterwards, with
``watchbench lengthen``.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from watchbench import model as vlm, qwen
from watchbench.clips import SHORT
from watchbench.costs import summed
from watchbench.finetune import Group, GroupStore
from watchbench.stage import Stage, StagePlan
from watchbench.training import CPU


@dataclass(frozen=True, slots=True)
class DistilPlan(StagePlan):
    """Hyperparameters of the distillation; a step shows 160 frames.

    Attributes:
        rate_vision: Learning rate of the tower.
        groups: Groups of clips drawn in all; every third step draws one beyond ``stock``.
        stock: Groups drawn before the first step.
        light: Largest relative change of the brightness of pictures.
    """

    seed: int = 121
    steps: int = 1000
    drop: float = 0.5
    rate_vision: float = 1e-3
    groups: int = 400
    stock: int = 4
    muon: bool = False
    light: float = 0.25


@torch.no_grad()
def taught(teacher: Any, pixels: Tensor, keep: Tensor | None) -> Tensor:
    """The tower's target for frames [T, 3, 112, 112]: the mean of the eye's tokens of every pair, [T / 2, 16,
    hidden].

    ``keep`` bool [T / 2, 16] as in :func:`watchbench.model.see`.
    """
    kept = None if keep is None else keep.repeat_interleave(qwen.PAIR, 0)
    tokens = vlm.see(teacher, pixels, kept)
    return tokens.view(-1, qwen.PAIR, *tokens.shape[1:]).mean(1)


class Distiller(Stage[DistilPlan]):
    """The stage in which only the tower learns; ``initial`` is the checkpoint folder of the first
    architecture."""

    key = "distil"

    def __init__(self, plan: DistilPlan, folder: Path, initial: Path, device: torch.device = CPU) -> None:
        self.teacher = vlm.load(initial).to(device)
        super().__init__(plan, folder, initial, device)
        self.store = GroupStore(folder.parent / f"pairs-{plan.seed}", plan.seed, qwen.PAIR)

    def _begun(self, initial: Path) -> Any:
        model = vlm.build(vlm.shape_of(vlm.load(initial)), vlm.QWEN)
        first = vlm.build(vlm.shape_of(model))
        first.load_state_dict(vlm.inherited(initial))
        qwen.transplant(first, model)
        return model

    @staticmethod
    def _learnt(model: Any) -> nn.Module:
        return model.model.visual  # type: ignore[no-any-return]

    def _groups(self) -> list[tuple[list[nn.Parameter], float]]:
        self.model.model.language_model.requires_grad_(False)
        return [(list(self._learnt(self.model).parameters()), self.plan.rate_vision)]

    def _shown(self, step: int) -> tuple[Group, bool]:
        """Return the clips of a step, and whether they are pruned."""
        plan, dice = self.plan, random.Random(f"{self.plan.seed}-{step}")
        group = self.store.group(SHORT, dice.randrange(min(plan.groups, plan.stock + step // 3)))
        if dice.random() < 0.5:
            group = group.mirrored()
        light = torch.tensor(
            [dice.uniform(1 - plan.light, 1 + plan.light) for _ in range(len(group.pixels) * 3)]
        )
        lit = group.pixels.float() * light.view(-1, 1, 3, 1, 1)
        group = replace(group, pixels=lit.clamp(0, 255).round().byte())
        return group.on(self.device), dice.random() < plan.drop

    def _loss(self, step: int) -> tuple[Tensor, float, str]:
        group, pruned = self._shown(step)
        with self.device:
            pixels, keep = group.pixels.flatten(0, 1).float() / 255, group.keep.flatten(0, 1)
            loss = self.unexplained(pixels, keep if pruned else None)
        return loss, loss.item(), "pruned" if pruned else "whole"

    def unexplained(self, pixels: Tensor, keep: Tensor | None) -> Tensor:
        """Return the share of the variance of the eye's tokens that the tower does not explain."""
        wanted = taught(self.teacher, pixels, keep)
        got = vlm.see(self.model, pixels, keep)
        rows = torch.ones(wanted.shape[:2], dtype=torch.bool) if keep is None else keep
        spread = (wanted[rows] - wanted[rows].mean(0)).square().mean()
        return (got[rows] - wanted[rows]).square().mean() / spread

    def estimate(self) -> dict[str, float]:
        """See :meth:`Stage.estimate`; draws the first groups."""
        plan = self.plan
        drawn = min(plan.groups, plan.stock + plan.steps // 3)
        return summed(plan.steps, [(plan.steps, self.cost(0))]) | {"groups": drawn}
