"""Training on real clips and photographs whose boxes were labelled, mixed with rendered films.

`real.json` names every clip, its camera and its licence, what is in view each half second, and outlines of
people. The files themselves are not part of the project: they lie in the folder of footage, and in clones of
the repositories that their paths begin with. No camera on which :mod:`watchbench.sight` scores is among them.
Every window is another crop, mirror image, light, moment (a sixth of a second apart) and encoding of its
clip. In some windows, people who were cut out along their outlines walk, fall or lie in an empty picture.
"""

from __future__ import annotations

import base64
import json
import math
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
from watchbench.footage import SPRITE, load as load_footage
from watchbench.questions import BY_NAME, NAMES
from watchbench.scenes import FOREVER, Truth
from watchbench.stage import LABELS as LAST_LABEL, Lesson, StagePlan
from watchbench.training import CPU, STEP_S

LABELS: Final = Path(__file__).parent / "real.json"
SIDE, RATE = 192, 6  # side in pixels, and pictures a second, of the clips that windows are cut from
EVERY: Final = round(RATE * STEP_S)
FRAMES: Final = 4  # of a window: the eye sees each alone, so many short windows teach it more than a few long
PEOPLE, VEHICLES = 12, 4  # most of each in a window
MASK: Final = (64, 32)  # rows and columns of an outline
WHOLE: Final = (0.0, 0.0, 1.0, 1.0)
UNSURE: Final = 0.2  # share in view of an uncertain box, which is neither yes nor no
KINDS: Final = (
    *((("empty",),) * 2),
    ("upright",),
    *((("vehicle",),) * 3),
    ("crowd",),
    *((("fall",),) * 3),
)
"""What the clips of a group show: one of these each."""
AWAY: Final = 2  # windows of a group that show a part of a picture in which nobody of it is
POSED: Final = ("lying", "lying", "lying", "falling", "falling", "upright")
"""What people do who are pasted into an empty clip of a group."""


@dataclass(frozen=True, slots=True)
class RealPlan(FinetunePlan):
    """Hyperparameters of the stage.

    Attributes:
        hold: Weight of how far the tokens of rendered frames move.
        held: Rendered frames of a step.
    """

    seed: int = 301
    steps: int = 1200
    rate_vision: float = 4e-4
    drop: float = 0.3
    warm: int = 40
    groups: int = 24
    stock: int = 3
    dense: float = 0.3
    hold: float = 4.0
    held: int = 32
    prefixes: int = 2
    questions: int = 6


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


@dataclass(frozen=True, slots=True)
class Person:
    """Somebody who was cut out.

    Attributes:
        picture: float [4, SPRITE, w], RGB and alpha in 0..1.
        whole: Whether head and feet are seen.
    """

    picture: Tensor
    whole: bool


def load(folders: tuple[Path, ...], held: bool = False) -> tuple[list[Labelled], list[Person]]:
    """Return the labelled clips found in the folders, and the people who are cut out of them.

    ``held``: instead, those that are held back from training.
    """
    footage = [load_footage(folder) for folder in folders]
    people = [Person(one, True) for part in footage if part for run in part.people for one in run[::3]]
    clips = []
    for entry in json.loads(LABELS.read_text())["clips"]:
        path = next(
            (folder / entry["path"] for folder in folders if (folder / entry["path"]).is_file()), None
        )
        if path is None or entry.get("held", False) != held:
            continue
        boxes = tuple(tuple(tuple(row) for row in rows) for rows in entry["boxes"])
        shown = pictures(path, tuple(entry.get("crop", WHOLE)))
        clips.append(Labelled(entry["kind"], shown, boxes))
        if "outline" in entry:
            people.append(cut_out(shown[0], entry["boxes"][0][0][2:6], entry["outline"], entry["aspect"]))
    return clips, people


def cut_out(picture: NDArray[np.uint8], box: list[float], outline: str, aspect: float) -> Person:
    """Cut the person in a box out of a picture [SIDE, SIDE, 3], whose width was ``aspect`` of its height.

    ``outline``: MASK bits, base64.
    """
    x0, y0, x1, y1 = (round(value * SIDE) for value in box)
    bits = np.unpackbits(np.frombuffer(base64.b64decode(outline), np.uint8)).reshape(MASK)
    size = (y1 - y0, x1 - x0)
    mask = torch.from_numpy(bits.astype(np.float32))[None, None]
    alpha = functional.interpolate(mask, size, mode="bilinear", antialias=True)
    rgb = torch.from_numpy(picture[y0:y1, x0:x1].copy()).permute(2, 0, 1)[None].float() / 255
    shape = (SPRITE, max(8, round(SPRITE * aspect * size[1] / size[0])))
    drawn = functional.interpolate(torch.cat([rgb, alpha], 1), shape, mode="bilinear", antialias=True)[0]
    return Person(drawn.clamp(0, 1), shape[0] > 1.9 * shape[1])


def pictures(path: Path, crop: tuple[float, ...] = WHOLE) -> NDArray[np.uint8]:
    """A clip's or photograph's pictures, RATE a second, uint8 [n, SIDE, SIDE, 3]; ``crop``: the part that is
    used, in shares of width and height.
    """
    kept: list[NDArray[np.uint8]] = []
    with av.open(str(path)) as container:
        first: float | None = None
        for number, frame in enumerate(container.decode(video=0)):
            at = number / 25 if frame.time is None else frame.time
            first = at if first is None else first
            while at - first >= len(kept) / RATE - 1e-6:
                if crop == WHOLE:
                    kept.append(frame.reformat(SIDE, SIDE, format="rgb24").to_ndarray())
                    continue
                x0, x1 = (round(share * frame.width) for share in crop[::2])
                y0, y1 = (round(share * frame.height) for share in crop[1::2])
                part = np.ascontiguousarray(frame.to_ndarray(format="rgb24")[y0:y1, x0:x1])
                smaller = av.VideoFrame.from_ndarray(part, format="rgb24").reformat(SIDE, SIDE)
                kept.append(smaller.to_ndarray(format="rgb24"))
    return np.stack(kept)


class RealWindows:
    """Windows of :data:`FRAMES` frames, cut from clips.

    Raises:
        ValueError: There is no clip of some kind, or nobody to paste.
    """

    def __init__(self, clips: list[Labelled], people: list[Person]) -> None:
        kinds = sorted({kind for some in KINDS for kind in some})
        self.by_kind = {kind: [clip for clip in clips if clip.kind == kind] for kind in kinds}
        missing = [kind for kind, some in self.by_kind.items() if not some]
        if not any(person.whole for person in people):
            missing.append("somebody from head to foot")
        if missing:
            raise ValueError(
                f"no clip that shows {', '.join(missing)}; {LABELS.name} names those that are known"
            )
        self.people, self.whole = people, [person for person in people if person.whole]

    def group(self, dice: random.Random, masked: bool) -> Group:
        """A window of a clip of each of :data:`KINDS` and of each of :data:`POSED`; without ``masked``, masks
        drop nothing.
        """
        clips = [dice.choice(self.by_kind[dice.choice(kinds)]) for kinds in KINDS]
        windows = [self.window(clip, dice) for clip in clips]
        windows += [self.window(dice.choice(self.by_kind["upright"]), dice, "away") for _ in range(AWAY)]
        windows += [self.window(dice.choice(self.by_kind["empty"]), dice, pose) for pose in POSED]
        pixels, truths = zip(*windows, strict=True)
        keep = torch.ones(len(windows), FRAMES, vlm.TOKENS, dtype=torch.bool)
        if masked:
            keep = torch.stack([product_masks(clip.float() / 255, FRAMES) for clip in pixels])
        return Group(torch.stack(pixels), keep, joined(list(truths)))

    def window(self, clip: Labelled, dice: random.Random, pose: str | None = None) -> tuple[Tensor, Truth]:
        """Pixels uint8 [FRAMES, 3, 112, 112], and what they show.

        ``pose``: what people do who are pasted; or `away`, for a part that shows nobody, if there is one.
        """
        count = len(clip.pictures)
        start = dice.randrange(max(1, count - EVERY * (FRAMES - 1)))
        # A clip that is too short runs back and forth.
        places = [_to_and_fro(start + EVERY * k, count) for k in range(FRAMES)]
        rows = [clip.boxes[min(place // EVERY, len(clip.boxes) - 1)] for place in places]
        shown = clip.pictures[places]
        if pose not in {None, "away"}:
            people = self.people if pose == "upright" else self.whole
            shown, rows = pasted(shown, rows, pose, people, dice)
        crop = nobody(rows, dice) if pose == "away" else crop_of(dice)
        pixels = cut(changed(shown, dice), crop)
        if dice.random() < 0.5:
            pixels, rows, crop = pixels.flip(3), mirrored(rows), (1 - crop[0] - crop[2], *crop[1:])
        return pixels, truth_of(rows, crop)


def cut(shown: NDArray[np.uint8], crop: tuple[float, float, float]) -> Tensor:
    """Pixels uint8 [n, 3, 112, 112] of a crop of pictures [n, SIDE, SIDE, 3]."""
    image = torch.from_numpy(shown).permute(0, 3, 1, 2).float()
    left, top, size = (round(share * SIDE) for share in crop)
    part = image[:, :, top : top + size, left : left + size]
    pixels = functional.interpolate(part, (vlm.SIZE, vlm.SIZE), mode="bilinear", antialias=True)
    return pixels.clamp(0, 255).round().byte()


Rows = list[tuple[tuple[Any, ...], ...]]


def mirrored(rows: Rows) -> Rows:
    """Return the boxes of a mirrored picture."""
    return [tuple((*r[:2], 1 - r[4], r[3], 1 - r[2], r[5], r[6]) for r in row) for row in rows]


def pasted(
    shown: NDArray[np.uint8], rows: Rows, pose: str | None, people: list[Person], dice: random.Random
) -> tuple[NDArray[np.uint8], Rows]:
    """Return the pictures with people who walk, lie, or fall during the window, and their boxes."""
    out, told = shown.copy(), [list(row) for row in rows]
    count = dice.choices((1, 2, 5, 7), (6, 2, 1, 1))[0]
    for who in range(count):
        person, acts = dice.choice(people), pose if who == 0 else "upright"
        height = dice.uniform(0.16, 0.85 if count < 3 else 0.4)
        if acts != "upright":
            height = dice.uniform(0.25, 0.8)
        squash = dice.uniform(0.5, 1.0)  # a wide picture is shown as a square
        x, y = dice.uniform(0.05, 0.95), dice.uniform(0.3, 0.85)
        step, down = dice.choice((0.0, dice.uniform(-0.08, 0.08))), dice.randrange(1, FRAMES)
        turn = dice.choice((-1, 1)) * dice.uniform(60, 115)
        flat = dice.uniform(0.45, 1.0)  # seen along the ground
        flip, tint = dice.random() < 0.5, [dice.uniform(0.7, 1.2) * dice.uniform(0.85, 1.1) for _ in range(3)]
        for k in range(FRAMES):
            lies = acts == "lying" or (acts == "falling" and k >= down)
            falls = acts == "falling" and k == down and dice.random() < 0.5
            angle = 0.5 * turn if falls else turn if lies else dice.uniform(-4, 4)
            sprite = turned(person.picture, angle, height, squash, flat if lies else 1.0)
            sprite = sprite.flip(2) if flip else sprite
            centre = (x, y) if lies else (x + step * k, y)
            box = _paste(out[k], sprite, centre, tint)
            state = "falling" if falls else "lying" if lies else "person"
            if box is not None:
                told[k].append((state, who, *box, 1.0))
    return out, [tuple(row) for row in told]


def turned(picture: Tensor, degrees: float, height: float, squash: float, flat: float) -> Tensor:
    """Somebody at a height (a share of SIDE), turned, then pressed to ``flat`` of the height and ``squash``
    of the width: float [4, h, w], tight around what is seen.
    """
    tall = max(6, round(height * SIDE))
    wide = max(3, round(tall * picture.shape[2] / picture.shape[1]))
    around = 2 * (int(math.hypot(tall, wide)) // 2 + 1)
    small = functional.interpolate(picture[None], (tall, wide), mode="bilinear", antialias=True)
    page = torch.zeros(1, 4, around, around)
    top, left = (around - tall) // 2, (around - wide) // 2
    page[:, :, top : top + tall, left : left + wide] = small
    if abs(degrees) > 1:
        c, s = math.cos(math.radians(degrees)), math.sin(math.radians(degrees))
        turn = torch.tensor([[[c, -s, 0.0], [s, c, 0.0]]])
        grid = functional.affine_grid(turn, [1, 4, around, around], align_corners=False)
        page = functional.grid_sample(page, grid, align_corners=False)
    size = (max(3, round(around * flat)), max(3, round(around * squash)))
    out = functional.interpolate(page, size, mode="bilinear", antialias=True)[0]
    seen = out[3] > 0.3
    high, across = seen.any(1).nonzero(), seen.any(0).nonzero()
    if len(high) == 0:
        return out
    return out[:, int(high[0]) : int(high[-1]) + 1, int(across[0]) : int(across[-1]) + 1]


def _paste(
    picture: NDArray[np.uint8], sprite: Tensor, centre: tuple[float, float], tint: list[float]
) -> tuple[float, float, float, float] | None:
    """Paste in place; return the box (x0, y0, x1, y1 in 0..1).

    None, and nothing is pasted: less than 0.6 of the box lies in the picture.
    """
    high, wide = sprite.shape[1:]
    x0, y0 = round(centre[0] * SIDE - wide / 2), round(centre[1] * SIDE - high / 2)
    left, top, right, bottom = max(0, x0), max(0, y0), min(SIDE, x0 + wide), min(SIDE, y0 + high)
    if (right - left) * (bottom - top) < 0.6 * wide * high or right <= left or bottom <= top:
        return None
    part = sprite[:, top - y0 : bottom - y0, left - x0 : right - x0].permute(1, 2, 0).numpy()
    alpha = part[..., 3:]
    area = picture[top:bottom, left:right]
    mixed = area * (1 - alpha) + (255 * part[..., :3] * np.array(tint)).clip(0, 255) * alpha
    area[:] = mixed.round().astype(np.uint8)
    return left / SIDE, top / SIDE, right / SIDE, bottom / SIDE


def _to_and_fro(place: int, count: int) -> int:
    around = place % max(1, 2 * (count - 1))
    return min(around, 2 * (count - 1) - around) if count > 1 else 0


def crop_of(dice: random.Random) -> tuple[float, float, float]:
    """Left, top and side of a crop; most of the picture, and one in four the whole of it."""
    side = 1.0 if dice.random() < 0.25 else dice.uniform(0.5, 1.0)
    return dice.uniform(0, 1 - side), dice.uniform(0, 1 - side), side


def nobody(rows: Rows, dice: random.Random) -> tuple[float, float, float]:
    """Left, top and side of a crop that touches no box, if one is found."""
    for _ in range(20):
        side = dice.uniform(0.35, 0.7)
        left, top = dice.uniform(0, 1 - side), dice.uniform(0, 1 - side)
        boxes = [box[2:6] for row in rows for box in row]
        if all(x0 >= left + side or x1 <= left or y0 >= top + side or y1 <= top for x0, y0, x1, y1 in boxes):
            return left, top, side
    return crop_of(dice)


def changed(shown: NDArray[np.uint8], dice: random.Random) -> NDArray[np.uint8]:
    """Return the pictures in other light and, four times in ten, encoded again."""
    tint = np.array([dice.uniform(0.85, 1.15) for _ in range(3)]) * dice.uniform(0.6, 1.35)
    light = (shown.astype(np.float32) / 255) ** dice.uniform(0.75, 1.35) * tint.astype(np.float32)
    if dice.random() < 0.15:  # infrared
        light = np.repeat(light.mean(3, keepdims=True), 3, 3)
    grain = np.random.default_rng(dice.randrange(2**31)).normal(
        0, dice.choice((0, 0, 0.01, 0.03)), light.shape
    )
    out = ((light + grain).clip(0, 1) * 255).round().astype(np.uint8)
    if dice.random() < 0.7:
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


def asked_of(plan: StagePlan, dice: random.Random) -> tuple[list[vlm.Asked], Tensor]:
    """The questions of a step, after the whole window and after shorter ones."""
    asked, which = [], []
    shorter = range(1, FRAMES - 1)
    for end in (FRAMES - 1, *dice.sample(shorter, min(plan.prefixes - 1, len(shorter)))):
        for name in dice.choices(list(ODDS), list(ODDS.values()), k=plan.questions):
            asked.append(vlm.Asked(dice.choice(BY_NAME[name].wordings), end))
            which.append(NAMES.index(name))
    return asked, torch.tensor(which)


def lesson(
    model: Any, group: Group, masked: bool, plan: StagePlan, dice: random.Random
) -> tuple[Lesson, Tensor]:
    """The lesson of a group of real windows, and the patches of all its frames [B * FRAMES, 16, hidden].

    ``masked``: whether tokens are dropped by the group's masks.
    """
    keep = group.keep if masked else None
    kept = None if keep is None else keep.flatten(0, 1)
    states = vlm.patches(model, group.pixels.flatten(0, 1).float() / 255, kept)
    asked, which = asked_of(plan, dice)
    shaped = vlm.gather(model, states).view(*group.keep.shape, -1)
    return Lesson(shaped, keep, group.truth, (), dice.randrange(1, LAST_LABEL), asked, which), states


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
        moved = plan.hold * self._moved(step, dice) if step >= plan.warm else 0.0
        with self.device:
            told, states = lesson(self.model, group, masked, plan, dice)
            coarse, fine = training.cell_labels(group.truth)
            kept = None if told.keep is None else told.keep.flatten(0, 1)
            tokens = told.tokens.flatten(0, 1)
            dense = self.heads.loss(tokens, states, (coarse.flatten(0, 1), fine.flatten(0, 1)), kept)
        return told, plan.dense * dense + moved

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
