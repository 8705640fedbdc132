"""Training on real clips: windows cut from footage whose boxes were labelled, mixed with rendered films.

`real.json` names every clip, its camera and its licence, and what is in view each half second. The clips
themselves are not part of the project: they lie in the folder of footage, and in clones of the repositories
that their paths begin with. No camera on which :mod:`watchbench.sight` scores is among them. Every window is
another crop, mirror image, light, moment (a sixth of a second apart) and encoding of its clip.
"""

from __future__ import annotations

import json
import random
import tempfile
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any, Final

import av
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from watchbench import encode, model as vlm, training
from watchbench.clips import SHORT, joined, product_masks
from watchbench.costs import summed
from watchbench.finetune import FinetunePlan, Finetuner, Group
from watchbench.questions import BY_NAME, NAMES
from watchbench.scenes import FOREVER, Truth
from watchbench.stage import LABELS as LAST_LABEL, Lesson
from watchbench.training import CPU, STEP_S

LABELS: Final = Path(__file__).parent / "real.json"
SIDE, RATE = 192, 6  # side in pixels, and pictures a second, of the clips that windows are cut from
EVERY: Final = round(RATE * STEP_S)
PEOPLE, VEHICLES = 12, 4  # most of each in a window
UNSURE: Final = 0.2  # share in view of an uncertain box, which is neither yes nor no
KINDS: Final = (("empty",), ("fall",), ("upright",), ("vehicle", "crowd"), ("empty", "upright"), ("fall",))
"""What the clips of a group show: one of these each."""


@dataclass(frozen=True, slots=True)
class RealPlan(FinetunePlan):
    """Hyperparameters of the stage.

    Attributes:
        hold: Weight of how far the tokens of rendered frames move.
        held: Rendered frames of a step.
    """

    seed: int = 301
    steps: int = 300
    rate_vision: float = 3e-4
    drop: float = 0.5
    warm: int = 16
    groups: int = 40
    stock: int = 8
    dense: float = 0.3
    hold: float = 4.0
    held: int = 48
    prefixes: int = 3
    questions: int = 5


@dataclass(frozen=True, slots=True)
class Labelled:
    """A clip.

    Attributes:
        kind: One of those in :data:`KINDS`.
        pictures: uint8 [n, SIDE, SIDE, 3], RATE a second.
        boxes: For each half second, rows (thing, place among its kind, x0, y0, x1, y1, share in view). Things
            are `person`, `lying`, `falling` and `vehicle`.
    """

    kind: str
    pictures: NDArray[np.uint8]
    boxes: tuple[tuple[tuple[Any, ...], ...], ...]


def load(folders: tuple[Path, ...]) -> list[Labelled]:
    """Return the labelled clips found in the folders."""
    clips = []
    for entry in json.loads(LABELS.read_text())["clips"]:
        path = next(
            (folder / entry["path"] for folder in folders if (folder / entry["path"]).is_file()), None
        )
        if path is not None:
            boxes = tuple(tuple(tuple(row) for row in rows) for rows in entry["boxes"])
            clips.append(Labelled(entry["kind"], pictures(path), boxes))
    return clips


def pictures(path: Path) -> NDArray[np.uint8]:
    """A clip's or photograph's pictures, RATE a second, uint8 [n, SIDE, SIDE, 3]."""
    kept: list[NDArray[np.uint8]] = []
    with av.open(str(path)) as container:
        first: float | None = None
        for number, frame in enumerate(container.decode(video=0)):
            at = number / 25 if frame.time is None else frame.time
            first = at if first is None else first
            while at - first >= len(kept) / RATE - 1e-6:
                kept.append(frame.reformat(SIDE, SIDE, format="rgb24").to_ndarray())
    return np.stack(kept)


class RealWindows:
    """Windows of 20 frames, cut from clips.

    Raises:
        ValueError: There is no clip of some kind.
    """

    def __init__(self, clips: list[Labelled]) -> None:
        kinds = sorted({kind for some in KINDS for kind in some})
        self.by_kind = {kind: [clip for clip in clips if clip.kind == kind] for kind in kinds}
        missing = [kind for kind, some in self.by_kind.items() if not some]
        if missing:
            raise ValueError(
                f"no clip that shows {', '.join(missing)}; {LABELS.name} names those that are known"
            )

    def group(self, dice: random.Random, masked: bool) -> Group:
        """A window of a clip of each of :data:`KINDS`; without ``masked``, masks drop nothing."""
        clips = [dice.choice(self.by_kind[dice.choice(kinds)]) for kinds in KINDS]
        pixels, truths = zip(*(self._window(clip, dice) for clip in clips), strict=True)
        keep = torch.ones(len(clips), SHORT, vlm.TOKENS, dtype=torch.bool)
        if masked:
            keep = torch.stack([product_masks(clip.float() / 255, SHORT // 5) for clip in pixels])
        return Group(torch.stack(pixels), keep, joined(list(truths)))

    def _window(self, clip: Labelled, dice: random.Random) -> tuple[Tensor, Truth]:
        """Pixels uint8 [20, 3, 112, 112], and what they show."""
        count = len(clip.pictures)
        start = dice.randrange(max(1, count - EVERY * (SHORT - 1)))
        # A clip that is too short runs back and forth.
        places = [_to_and_fro(start + EVERY * k, count) for k in range(SHORT)]
        shown = changed(clip.pictures[places], dice)
        x0, y0, side = crop_of(dice)
        image = torch.from_numpy(shown).permute(0, 3, 1, 2).float()
        top, left, size = (round(share * SIDE) for share in (y0, x0, side))
        cut = image[:, :, top : top + size, left : left + size]
        pixels = functional.interpolate(cut, (vlm.SIZE, vlm.SIZE), mode="bilinear", antialias=True)
        rows = [clip.boxes[min(place // EVERY, len(clip.boxes) - 1)] for place in places]
        return pixels.clamp(0, 255).round().byte(), truth_of(rows, (x0, y0, side))


def _to_and_fro(place: int, count: int) -> int:
    around = place % max(1, 2 * (count - 1))
    return min(around, 2 * (count - 1) - around) if count > 1 else 0


def crop_of(dice: random.Random) -> tuple[float, float, float]:
    """Left, top and side of a crop; most of the picture, and one in four the whole of it."""
    side = 1.0 if dice.random() < 0.25 else dice.uniform(0.6, 1.0)
    return dice.uniform(0, 1 - side), dice.uniform(0, 1 - side), side


def changed(shown: NDArray[np.uint8], dice: random.Random) -> NDArray[np.uint8]:
    """Return the pictures in other light and, four times in ten, encoded again."""
    tint = np.array([dice.uniform(0.85, 1.15) for _ in range(3)]) * dice.uniform(0.6, 1.35)
    light = (shown / 255.0) ** dice.uniform(0.75, 1.35) * tint
    if dice.random() < 0.15:  # infrared
        light = np.repeat(light.mean(3, keepdims=True), 3, 3)
    grain = np.random.default_rng(dice.randrange(2**31)).normal(
        0, dice.choice((0, 0, 0.01, 0.03)), light.shape
    )
    out = ((light + grain).clip(0, 1) * 255).round().astype(np.uint8)
    if dice.random() < 0.6:
        return out
    how = encode.Encoding(
        gop_s=dice.choice(encode.GOPS), phase=dice.random(), crf=dice.choice((24, 28, 32, 36))
    )
    with tempfile.TemporaryDirectory() as folder:
        path = encode.write(list(out), Path(folder) / "window.mp4", Fraction(2), how)
        with av.open(str(path)) as container:
            return np.stack([frame.to_ndarray(format="rgb24") for frame in container.decode(video=0)])


def truth_of(rows: list[tuple[tuple[Any, ...], ...]], crop: tuple[float, float, float]) -> Truth:
    """Return the truth of boxes in a crop, as a batch of one."""
    left, top, side = crop
    frames = len(rows)
    share = {"person": torch.zeros(1, frames, PEOPLE), "vehicle": torch.zeros(1, frames, VEHICLES)}
    box = {name: torch.zeros(1, frames, part.shape[2], 4) for name, part in share.items()}
    state = {name: torch.zeros(1, frames, PEOPLE, dtype=torch.bool) for name in ("lying", "falling")}
    for k, row in enumerate(rows):
        for thing, place, x0, y0, x1, y1, part in row:
            kind = "vehicle" if thing == "vehicle" else "person"
            if place >= share[kind].shape[2]:
                continue
            where = [(x0 - left) / side, (y0 - top) / side, (x1 - left) / side, (y1 - top) / side]
            cut = [min(1.0, max(0.0, value)) for value in where]
            whole = max(1e-6, (where[2] - where[0]) * (where[3] - where[1]))
            share[kind][0, k, place] = part * (cut[2] - cut[0]) * (cut[3] - cut[1]) / whole
            box[kind][0, k, place] = torch.tensor(where)
            if thing in state:
                state[thing][0, k, place] = True
    # It is only known that no object was left behind, so the truth has one object that was there from the
    # start, hardly visible.
    one = torch.ones(1, frames, 1)
    return Truth(
        times=torch.arange(frames)[None] * STEP_S,
        person_share=share["person"],
        person_box=box["person"],
        lying=state["lying"],
        falling=state["falling"],
        vehicle_share=share["vehicle"],
        vehicle_box=box["vehicle"],
        object_there=one.bool(),
        object_share=UNSURE * one,
        object_box=torch.zeros(1, frames, 1, 4),
        placed_at=torch.full((1, 1), -FOREVER),
        twin=torch.zeros(1, dtype=torch.bool),
        slow_moves=torch.zeros(1),
        slow_from=torch.full((1,), FOREVER),
    )


ODDS: Final = {"person": 4, "lying": 5, "vehicle": 4, "many": 3, "left": 1, "now_person": 2, "now_vehicle": 1}
"""How often questions are asked about real windows."""


def asked_of(plan: RealPlan, dice: random.Random) -> tuple[list[vlm.Asked], Tensor]:
    """The questions of a step, after the whole window and after shorter ones."""
    asked, which = [], []
    for end in (SHORT - 1, *dice.sample(range(1, SHORT - 1), plan.prefixes - 1)):
        for name in dice.choices(list(ODDS), list(ODDS.values()), k=plan.questions):
            asked.append(vlm.Asked(dice.choice(BY_NAME[name].wordings), end))
            which.append(NAMES.index(name))
    return asked, torch.tensor(which)


class RealTrainer(Finetuner):
    """The stage in which tower and projector learn from real windows.

    The language model stays as it is, and so do, nearly, the tokens of rendered films.
    """

    key = "real"

    plan: RealPlan

    def __init__(
        self, plan: RealPlan, folder: Path, initial: Path, windows: RealWindows, device: torch.device = CPU
    ) -> None:
        self.windows = windows
        super().__init__(plan, folder, initial, device)
        self.before = vlm.load(initial).to(device).requires_grad_(False)

    def _groups(self) -> list[tuple[list[nn.Parameter], float]]:
        self.model.model.language_model.requires_grad_(False)
        eye = [parameter for part in vlm.eye(self.model) for parameter in part.parameters()]
        dense = [*self.heads.tokens.parameters(), *self.heads.patches.parameters()]
        return [(dense, self.plan.rate_heads), (eye, self.plan.rate_vision)]

    def _lesson(self, step: int) -> tuple[Lesson, Tensor | float]:
        plan, dice = self.plan, random.Random(f"{self.plan.seed}-{step}")
        for part in vlm.eye(self.model):
            part.requires_grad_(step >= plan.warm)
        masked = dice.random() < plan.drop
        group = self.windows.group(dice, masked).on(self.device)
        keep = group.keep if masked else None
        with self.device:
            kept = None if keep is None else keep.flatten(0, 1)
            states = vlm.patches(self.model, group.pixels.flatten(0, 1).float() / 255, kept)
            tokens = vlm.gather(self.model, states)
            coarse, fine = training.cell_labels(group.truth)
            dense = self.heads.loss(tokens, states, (coarse.flatten(0, 1), fine.flatten(0, 1)), kept)
        more = plan.dense * dense + (plan.hold * self._moved(step, dice) if step >= plan.warm else 0.0)
        asked, which = asked_of(plan, dice)
        shaped = tokens.view(*group.keep.shape, -1)
        return Lesson(shaped, keep, group.truth, (), dice.randrange(1, LAST_LABEL), asked, which), more

    def _moved(self, step: int, dice: random.Random) -> Tensor:
        """Return the distance of the tokens of rendered frames from those before training, relative to their
        spread.
        """
        known = min(self.plan.groups, self.plan.stock + step // 4)
        group = self.store.group(SHORT, dice.randrange(known)).on(self.device)
        frames = torch.randperm(group.pixels.shape[0] * SHORT)[: self.plan.held]
        pixels, keep = group.pixels.flatten(0, 1)[frames].float() / 255, group.keep.flatten(0, 1)[frames]
        kept = keep if dice.random() < self.plan.drop else None
        with torch.no_grad():
            old = vlm.see(self.before, pixels, kept)
        new = vlm.see(self.model, pixels, kept)
        rows = torch.ones_like(keep) if kept is None else kept
        return (new - old)[rows].square().mean() / old[rows].var()

    def estimate(self) -> dict[str, float]:
        """See :meth:`Stage.estimate`; draws the first group of rendered clips."""
        plan = self.plan
        groups = min(plan.groups, plan.stock + plan.steps // 4)
        return summed(plan.steps, [(plan.steps, self.cost(plan.warm))]) | {"groups": groups}
