"""Training of tower, projector and language model together, under the masks that the product computes.

The earlier stages drop tokens by a rule of their own, and :mod:`watchbench.long` leaves the eye as it is.
Here windows of 20 and of 80 frames go through the tower with the product's masks, so that the eye learns
frames whose static patches are missing. Scenes are chosen. Of many that are drawn as truth alone, those with
somebody lying, a crowd, an object left behind or two vehicles are rendered, along with others and with scenes
that resemble a fall.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from watchbench import drawing, model as vlm, scenes, training
from watchbench.clips import SHORT, chosen, joined, product_masks
from watchbench.costs import summed
from watchbench.footage import Composite
from watchbench.stage import LABELS, Lesson, QuestionStage, StagePlan, asked_of
from watchbench.training import CPU, truth_on

LONG = 80
TOGETHER = 8  # short clips of a group, including those that resemble a fall
# What the other clips of a group show, as many as fit; None: anything.
WANTED: dict[int, tuple[str | None, ...]] = {
    SHORT: ("lying", "many", "left", "count", "left", None, "many", "lying"),
    LONG: ("many", "left"),
}


@dataclass(frozen=True, slots=True)
class FinetunePlan(StagePlan):
    """Hyperparameters of the stage; a step asks about 160 frames.

    Attributes:
        rate_vision: Learning rate of tower and projector.
        dense: Weight of the loss on what is in the cells of tokens and patches.
        warm: First steps, in which only the heads learn, so that untrained heads do not mislead the eye.
        long: The share of steps with two windows of 80 frames instead of eight of 20.
        groups: Groups of clips drawn in all, per length; every second step draws one beyond ``stock``.
        stock: Groups drawn before the first step.
        harmless: Clips in a group of short ones that resemble a fall.
    """

    seed: int = 71
    steps: int = 800
    rate_vision: float = 1.5e-4
    rate_text: float = 2e-4
    rate_heads: float = 1e-2
    drop: float = 0.7
    mean: float = 0.99
    dense: float = 0.5
    warm: int = 60
    long: float = 0.25
    groups: int = 400
    stock: int = 4
    harmless: int = 2


@dataclass(frozen=True, slots=True)
class Group:
    """Clips of one length: pixels uint8 [B, T, 3, 112, 112], the product's masks and truth.

    Masks are bool [B, T, 16], or [B, T / 2, 16] if frames are seen in pairs.
    """

    pixels: Tensor
    keep: Tensor
    truth: scenes.Truth

    def on(self, device: torch.device) -> Group:
        """The group on a device."""
        return Group(self.pixels.to(device), self.keep.to(device), truth_on(self.truth, device))

    def mirrored(self) -> Group:
        """The group mirrored: other pictures without the cost of drawing."""

        def flipped(box: Tensor) -> Tensor:
            x0, y0, x1, y1 = box.unbind(-1)
            return torch.stack([1 - x1, y0, 1 - x0, y1], -1)

        boxes = {
            name: flipped(getattr(self.truth, name)) for name in ("person_box", "vehicle_box", "object_box")
        }
        cells = self.keep.view(*self.keep.shape[:2], vlm.CELLS, vlm.CELLS).flip(3).flatten(2)
        return Group(self.pixels.flip(4), cells, replace(self.truth, **boxes))


class GroupStore:
    """Groups by length and number, kept on disk; each depends only on the seed, its length and its number."""

    def __init__(self, folder: Path, seed: int, together: int = 1, harmless: int = 2) -> None:
        """``together``: frames that the model encodes as one, with one mask; ``harmless``: how many clips of
        a group of short ones resemble a fall.
        """
        self.folder, self.seed, self.together, self.harmless = folder, seed, together, harmless
        self.folder.mkdir(parents=True, exist_ok=True)

    def group(self, frames: int, number: int) -> Group:
        """Read a group, or draw and keep it."""
        path = self.folder / f"{frames}-{number:06d}.pt"
        if not path.is_file():
            fresh = path.with_suffix(".new")
            torch.save(self._draw(frames, number), fresh)
            fresh.replace(path)
        stored = torch.load(path, weights_only=True)
        return Group(stored["pixels"], stored["keep"], scenes.Truth(**stored["truth"]))

    @torch.no_grad()
    def _draw(self, frames: int, number: int) -> dict[str, Any]:
        seed = self.seed * 10**7 + frames * 10**5 + 2 * number
        seconds, times = frames * training.STEP_S, torch.arange(frames) * training.STEP_S
        busy = seconds if frames == SHORT else seconds * (number % 4 + 1) / 4
        wanted = WANTED[frames][: TOGETHER - self.harmless]
        scene = chosen(wanted, busy, frames, seed)
        parts: list[tuple[scenes.Scene, Composite | None]] = [(scene, training.composite(scene))]
        if frames == SHORT and self.harmless:  # a real background would hide the bed
            parts.append((scenes.harmless(self.harmless, seconds, seed), None))
        pixels, truths = [], []
        for some, pasted in parts:
            now = scenes.observe(some, times)
            drawn = drawing.render(some, times, vlm.SIZE, now, pasted=pasted)
            pixels.append((drawn.permute(0, 1, 4, 2, 3).clamp(0, 1) * 255).round().byte())
            truths.append(now.truth)
        clips, truth = torch.cat(pixels), joined(truths)
        keep = torch.stack([product_masks(clip.float() / 255, frames // 5, self.together) for clip in clips])
        table = {field.name: getattr(truth, field.name).clone() for field in fields(scenes.Truth)}
        return {"pixels": clips, "keep": keep, "truth": table}


class Finetuner(QuestionStage[FinetunePlan]):
    """The stage in which everything learns together."""

    key = "finetune"

    def __init__(self, plan: FinetunePlan, folder: Path, initial: Path, device: torch.device = CPU) -> None:
        super().__init__(plan, folder, initial, device)
        groups = folder.parent / f"groups-{plan.seed}-{plan.harmless}"
        self.store = GroupStore(groups, plan.seed, harmless=plan.harmless)

    @staticmethod
    def _learnt(model: Any) -> nn.Module:
        return model.model  # type: ignore[no-any-return]

    def _groups(self) -> list[tuple[list[nn.Parameter], float]]:
        inner = self.model.model
        eye = [*inner.vision_tower.parameters(), *inner.multi_modal_projector.parameters()]
        text = list(inner.language_model.parameters())
        plan = self.plan
        heads = list(self.heads.parameters())
        return [(heads, plan.rate_heads), (eye, plan.rate_vision), (text, plan.rate_text)]

    def _lesson(self, step: int) -> tuple[Lesson, Tensor | float]:
        plan, dice = self.plan, random.Random(f"{self.plan.seed}-{step}")
        self._learnt(self.model).requires_grad_(step >= plan.warm)
        frames = LONG if dice.random() < plan.long else SHORT
        share = plan.long if frames == LONG else 1 - plan.long
        group = self.store.group(frames, dice.randrange(min(plan.groups, plan.stock + int(step * share / 2))))
        if dice.random() < 0.5:
            group = group.mirrored()
        group = group.on(self.device)
        keep = group.keep if dice.random() < plan.drop else None
        kept = None if keep is None else keep.flatten(0, 1)
        with self.device:
            states = vlm.patches(self.model, group.pixels.flatten(0, 1).float() / 255, kept)
            tokens = vlm.gather(self.model, states)
            coarse, fine = training.cell_labels(group.truth)
            dense = self.heads.loss(tokens, states, (coarse.flatten(0, 1), fine.flatten(0, 1)), kept)
        asked, which = asked_of(plan, group.keep.shape[1], step)
        shaped = tokens.view(*group.keep.shape, -1)
        first = dice.randrange(1, LABELS)
        return Lesson(shaped, keep, group.truth, (), first, asked, which), plan.dense * dense

    def estimate(self) -> dict[str, float]:
        """See :meth:`Stage.estimate`; draws the first group of each length."""
        plan, costs = self.plan, {}
        for step in range(plan.warm, plan.steps):
            frames = LONG if random.Random(f"{plan.seed}-{step}").random() < plan.long else SHORT
            if frames not in costs:
                costs[frames] = self.cost(step)
            if len(costs) == 1 + (0 < plan.long < 1):
                break
        share = {LONG: plan.long, SHORT: 1 - plan.long}
        drawn = sum(
            min(plan.groups, plan.stock + int(plan.steps * part / 2)) for part in share.values() if part
        )
        parts = [(plan.steps * share[frames], cost) for frames, cost in costs.items()]
        return summed(plan.steps, parts) | {"groups": drawn}
