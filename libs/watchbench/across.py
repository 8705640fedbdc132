"""Training of the language model's layers on windows whose answers lie in no stride (:mod:`watchbench.far`).

The strides of a scene are drawn once: empty ones, visits of people and of vehicles of two colours, a long
stay with and without gaps. Windows of three to five strides are composed of them in any order, so that every
scene is shown with every answer. A composed window is masked and encoded as if it had been drawn so; whole
frames are encoded once for all windows.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor, nn
from torch.nn import functional

from watchbench import drawing, far, model as vlm, scenes, training
from watchbench.clips import keep as keep_file, product_masks
from watchbench.costs import summed
from watchbench.stage import LABELS, Stage, StagePlan
from watchbench.training import CPU, STEP_S

SCENES, WINDOWS = 2, 24  # scenes of a set, windows composed of each
GAP, STAY = "gap", "stay"
DRAWN: Final = (
    "none",
    "person",
    "vehicle",
    "none",
    "person",
    "vehicle",
    "person",
    GAP,
    STAY,
    GAP,
    "none",
) * 2
"""What the strides of a scene show, in the order in which they are drawn: first with vehicles of one colour,
then again with vehicles of another."""
HALF: Final = len(DRAWN) // 2
NONE, PERSON, VEHICLE = (0, 3, 10), (1, 4, 6), (2, 5)
STAYS: Final = ((7, 8, 9), (9, 8, 7), (8, 7, 9), (7, 9, 8), (9, 7, 8), (8, 9, 7))
"""Long stays; the first two have the gaps far apart and are long enough for a Yes."""
VISITS: Final = {"PV": 4, "PPV": 4, "VVP": 4, "PPP": 3, "PP": 3, "VV": 4, "PPVV": 1, "PPPV": 1}
"""People and vehicles that come to a window without a long stay, and how often."""
FACTS: Final = 16
LOOKS: Final = 6  # numbers that tell how a vehicle looks
LEARNT_FROM: Final = 12  # sets from which these numbers are chosen


@dataclass(frozen=True, slots=True)
class Window:
    """Strides of one scene in some order.

    Attributes:
        scene: The scene, of its set.
        strides: Places in :data:`DRAWN`.
        tokens: Tokens that the product's masks keep, bf16 [kept, hidden].
        keep: Those masks, bool [T, 16].
    """

    scene: int
    strides: tuple[int, ...]
    tokens: Tensor
    keep: Tensor


@dataclass(frozen=True, slots=True)
class Strides:
    """What is drawn at once.

    Attributes:
        dense: Tokens of whole frames, bf16 [scenes, strides, 16 frames, 16, hidden].
        windows: Windows under the product's masks.
    """

    dense: Tensor
    windows: tuple[Window, ...]


def staged(count: int, seed: int, other: bool, grade: float = 0.75) -> scenes.Scene:
    """Scenes that show one half of :data:`DRAWN`; ``other``: the second, with vehicles of another colour."""
    scene = scenes.sample(count, HALF * far.STRIDE * STEP_S, seed, grade)
    far.empty(scene)
    colour, n, hidden = scene.vehicles["colour"], far.STRIDE, far.HIDDEN
    stay = (
        range(hidden.start),
        range(hidden.stop, 2 * n + hidden.start),
        range(2 * n + hidden.stop, 3 * n),
    )
    visits = [(stride, hidden) for stride in PERSON] + [(STAYS[0][0], part) for part in stay]
    for row in range(count):
        if other:
            colour[row] = far.another(colour[row, 0])
        for slot, (stride, frames) in enumerate(visits):
            far.visit(scene.people, row, slot, stride, frames)
        for slot, stride in enumerate(VEHICLE):
            far.visit(scene.vehicles, row, slot, stride)
    return scene


def composed(dice: random.Random, size: int) -> tuple[int, ...]:
    """Draw the strides of a window of `size`; none but an empty one comes twice. In every second window
    with two vehicles, these have the same colour."""

    def either(strides: Sequence[int]) -> list[int]:
        return [stride + HALF * dice.randrange(2) for stride in strides]

    none = either(dice.sample(NONE, len(NONE)))
    if dice.random() < 0.28:
        stay = either(dice.choices(STAYS, (3, 3, 1, 1, 2, 2))[0])
        begin = dice.randrange(size - 2)
        return (*none[:begin], *stay, *none[begin : size - 3])
    fit = {kind: weight for kind, weight in VISITS.items() if len(kind) <= size}
    kind = dice.choices(list(fit), list(fit.values()))[0]
    people, vehicles = (either(dice.sample(some, len(some))) for some in (PERSON, VEHICLE))
    shown = [people.pop() if letter == "P" else vehicles.pop() for letter in kind]
    dice.shuffle(shown)
    places = sorted(dice.sample(range(size), len(shown)))
    out = [none[place % len(none)] for place in range(size)]
    for place, stride in zip(places, shown, strict=True):
        out[place] = stride
    return tuple(out)


def sort(strides: tuple[int, ...]) -> int:
    """0: a window with at most one vehicle; 1: with a long stay; 2: with two vehicles."""
    if any(DRAWN[stride] in {GAP, STAY} for stride in strides):
        return 1
    return 2 if sum(DRAWN[stride] == "vehicle" for stride in strides) == 2 else 0


def appearance(dense: Tensor) -> Tensor:
    """How vehicles of both colours look to the eye [scenes, 2, hidden]: the mean of their tokens.

    ``dense`` as in :class:`Strides`.
    """
    frames = dense[:, :, far.HIDDEN.start : far.HIDDEN.stop].float()
    halves = frames.mean(2).view(len(dense), 2, HALF, *dense.shape[3:])
    seen, empty = (halves[:, :, list(strides)].mean(2) for strides in (VEHICLE, NONE))
    size = (seen - empty).norm(dim=-1)
    weight = (size > size.amax(-1, keepdim=True) / 2).float()[..., None]
    mean: Tensor = (seen * weight).sum(2) / weight.sum(2)
    return mean


class StrideStore:
    """Sets of strides by number; each depends only on the seed, the eye and its number."""

    def __init__(self, model: Any, folder: Path, seed: int) -> None:
        self.model, self.seed, self.folder = model, seed, folder
        folder.mkdir(parents=True, exist_ok=True)
        self.known: dict[int, Strides] = {}

    def strides(self, number: int) -> Strides:
        """Read a set, or draw, encode and keep it."""
        if number not in self.known:
            path = self.folder / f"{number:05d}.pt"
            if not path.is_file():
                keep_file(path, self._draw(number))
            stored = torch.load(path, weights_only=True)
            windows = tuple(Window(*one) for one in stored["windows"])
            self.known[number] = Strides(stored["dense"], windows)
        return self.known[number]

    @torch.no_grad()
    def _draw(self, number: int) -> dict[str, Any]:
        seed = self.seed * 10**7 + 8 * 10**6 + number
        dice, pixels = random.Random(seed), self._pixels(seed)
        windows = []
        for row in range(SCENES):
            for _ in range(WINDOWS):
                strides = composed(dice, dice.choice((3, 3, 4, 5, 5, 5)))
                shown = pixels[row, list(strides)].flatten(0, 1)
                keep = product_masks(shown, far.STRIDE)
                windows.append((row, strides, self._tokens(shown, keep)[keep].bfloat16(), keep))
        dense = self._tokens(pixels.flatten(0, 2), None).bfloat16()
        return {
            "dense": dense.view(*pixels.shape[:3], vlm.TOKENS, -1),
            "windows": windows,
        }

    @staticmethod
    def _pixels(seed: int) -> Tensor:
        """Frames of all strides of some scenes, [scenes, strides, 16, 3, 112, 112]."""
        times, halves = torch.arange(HALF * far.STRIDE) * STEP_S, []
        for other in (False, True):  # backgrounds depend on the seed alone
            scene = staged(SCENES, seed, other)
            pasted = training.composite(scene)
            drawn = drawing.render(scene, times, vlm.SIZE, scenes.observe(scene, times), pasted=pasted)
            drawn = drawn.permute(0, 1, 4, 2, 3).contiguous()
            halves.append(drawn.view(SCENES, HALF, far.STRIDE, *drawn.shape[2:]))
        return torch.cat(halves, 1)

    def _tokens(self, pixels: Tensor, keep: Tensor | None) -> Tensor:
        parts = [
            vlm.see(self.model, pixels[i : i + 40], None if keep is None else keep[i : i + 40])
            for i in range(0, len(pixels), 40)
        ]
        return torch.cat(parts)


@dataclass(frozen=True, slots=True)
class Told:
    """What is true of a window's frames 0..t, for every t.

    Attributes:
        yes: Answers to :data:`watchbench.far.FAR`, bool [T, 5].
        known: Where they are defined.
        facts: What has come so far, bool [T, FACTS]; the first two are in view now: person, vehicle.
        sure: Where they are defined.
        looks: Of the vehicle in view, of the first one, of the newest one, and the difference of these
            two, [T, 4 * LOOKS]; NaN where there is none.
    """

    yes: Tensor
    known: Tensor
    facts: Tensor
    sure: Tensor
    looks: Tensor


def told(strides: tuple[int, ...], looks: Tensor) -> Told:
    """What is true of a window of those strides; ``looks`` [2, LOOKS] of vehicles of either colour."""
    n, t = far.STRIDE, len(strides) * far.STRIDE
    person, cars = torch.zeros(t, dtype=torch.bool), torch.zeros(t, 2, dtype=torch.bool)
    for place, stride in enumerate(strides):
        shown = DRAWN[stride]
        visit = slice(place * n + far.HIDDEN.start, place * n + far.HIDDEN.stop)
        if shown in {GAP, STAY}:
            person[place * n : place * n + n] = True
        if shown in {"person", GAP}:
            person[visit] = shown == "person"
        if shown == "vehicle":
            cars[visit, stride // HALF] = True
    vehicle, stays = cars.any(1), sort(strides) == 1
    comes_person, comes_vehicle = (far.begins(seen[None])[0] for seen in (person, vehicle))
    people, vehicles = comes_person.cumsum(0), comes_vehicle.cumsum(0)
    came = people + vehicles
    run, longest, first, newest, third = _so_far(person, comes_vehicle, came)
    both, two, three = (people > 0) & (vehicles > 0), vehicles >= 2, came >= 3
    always = torch.ones(t, dtype=torch.bool)
    long, back = longest * STEP_S >= far.LONG_S, two & (cars.any(0).sum() == 1)
    yes = torch.stack([first, third, long, back, people >= 3], 1)
    known = torch.stack([both, three, always & stays, two, always & (not stays)], 1)
    facts = [
        person,
        vehicle,
        *(people >= count for count in (1, 2, 3)),
        vehicles >= 1,
        two,
        first,
        newest,
        third,
    ]
    facts += [*(run >= count for count in (6, 12, 19, 25)), long, back]
    sure = [always] * 7 + [came >= 1, came >= 1, three] + [always] * 5 + [two]
    return Told(yes, known, torch.stack(facts, 1), torch.stack(sure, 1), _looks(cars, two, looks))


def _so_far(person: Tensor, comes_vehicle: Tensor, came: Tensor) -> tuple[Tensor, ...]:
    """Frames of the stay now and of the longest; whether the first to come was a person, the newest and
    the third a vehicle."""
    run, longest = torch.zeros(len(person)), torch.zeros(len(person))
    first, newest, third = (torch.zeros(len(person), dtype=torch.bool) for _ in range(3))
    for k in range(len(person)):
        run[k] = run[k - 1] + 1 if person[k] else 0
        longest[k] = longest[: k + 1].max() if run[k] < longest.max() else run[k]
        comes = bool(came[k] > (came[k - 1] if k else 0))
        newest[k] = comes_vehicle[k] if comes else newest[k - 1]
        first[k] = not newest[k] if comes and came[k] == 1 else first[k - 1]
        third[k] = newest[k] if comes and came[k] == 3 else third[k - 1]
    return run, longest, first & (came > 0), newest, third


def _looks(cars: Tensor, two: Tensor, looks: Tensor) -> Tensor:
    """See :class:`Told`; ``cars`` bool [T, 2]: whether a vehicle of that colour is in view; ``two`` bool [T]:
    whether two vehicles have come."""
    now, first, newest = (torch.full((len(cars), looks.shape[1]), torch.nan) for _ in range(3))
    for k, car in enumerate(cars):
        if car.any():
            now[k] = looks[int(car[1])]
        newest[k] = now[k] if car.any() or k == 0 else newest[k - 1]
        first[k] = newest[k] if k == 0 or first[k - 1].isnan().any() else first[k - 1]
    return torch.cat([now, first, newest, torch.where(two[:, None], newest - first, torch.nan)], 1)


@dataclass(frozen=True, slots=True)
class AcrossPlan(StagePlan):
    """Hyperparameters of the stage.

    Attributes:
        rows: Strides of a step under masks.
        dense: The share of steps with whole frames.
        dense_rows: Strides of such a step.
        sets: Sets of strides in all; ``stock`` before the first step, then one more every ``every`` steps.
        shares: How often windows of each :func:`sort` are shown.
        grown: The step from which most windows have five strides; most have three before.
    """

    seed: int = 301
    steps: int = 800
    rate_text: float = 8e-4
    rate_heads: float = 2e-3
    mean: float = 0.99
    rows: int = 40
    dense: float = 0.12
    dense_rows: int = 12
    sets: int = 400
    stock: int = 12
    every: int = 10
    shares: tuple[float, float, float] = (0.25, 0.35, 0.4)
    grown: int = 500


class FarHeads(nn.Module):
    """Heads that only training reads from the token that closes a frame.

    After a third of the layers: what is in view and how it looks; after two thirds: what has come so far.
    """

    def __init__(self, width: int, layers: int) -> None:
        super().__init__()
        self.layers = (max(1, layers // 3), max(1, 2 * layers // 3))
        self.now = nn.Linear(width, 2 + LOOKS)
        self.so_far = nn.Linear(width, FACTS + 3 * LOOKS)

    def loss(self, frames: tuple[Tensor, ...], facts: Tensor, sure: Tensor, looks: Tensor) -> Tensor:
        """The loss on states [B, T, hidden] after both layers; the rest is :class:`Told`, [B, T, ...]."""
        now, so_far = self.now(frames[0]), self.so_far(frames[1])
        bce = functional.binary_cross_entropy_with_logits
        each = bce(so_far[..., :FACTS], facts.float(), reduction="none")
        seen = ~looks.isnan()
        wrong = torch.cat([now[..., 2:], so_far[..., FACTS:]], -1) - looks.nan_to_num()
        return (
            bce(now[..., :2], facts[..., :2].float())
            + 2 * (each * sure).sum() / sure.sum()
            + (wrong.square() * seen).sum() / seen.sum().clamp(min=1)
        )


class AcrossTrainer(Stage[AcrossPlan]):
    """The stage in which only the layers of the language model learn."""

    key = "across"
    heads: FarHeads  # type: ignore[assignment]

    def __init__(self, plan: AcrossPlan, folder: Path, initial: Path) -> None:
        super().__init__(plan, folder, initial, CPU)
        self.store = StrideStore(vlm.load(initial), folder.parent / f"strides-{plan.seed}", plan.seed)
        self.basis: tuple[Tensor, Tensor] | None = None

    def _heads(self) -> Any:
        shape = vlm.shape_of(self.model)
        return FarHeads(shape.text, shape.text_layers)

    @staticmethod
    def _learnt(model: Any) -> nn.Module:
        return model.model.language_model.layers  # type: ignore[no-any-return]

    def _groups(self) -> list[tuple[list[nn.Parameter], float]]:
        self.model.requires_grad_(False)
        layers = self._learnt(self.model).requires_grad_(True)
        return [
            (list(self.heads.parameters()), self.plan.rate_heads),
            (list(layers.parameters()), self.plan.rate_text),
        ]

    def _looks(self, drawn: Strides) -> Tensor:
        """How the vehicles of a set look, [scenes, 2, LOOKS]: along the directions in which the colours of a
        scene differ most."""
        if self.basis is None:
            known = range(min(LEARNT_FROM, self.plan.stock))
            seen = torch.cat([appearance(self.store.strides(number).dense) for number in known])
            axes = torch.linalg.svd(seen[:, 0] - seen[:, 1], full_matrices=False)[2][:LOOKS].T
            scale = (seen.flatten(0, 1) @ axes).std(0)
            self.basis = axes / scale, (seen.flatten(0, 1) @ axes / scale).mean(0)
        axes, mean = self.basis
        return appearance(drawn.dense) @ axes - mean

    def _chosen(self, dice: random.Random, step: int) -> tuple[Tensor, Tensor | None, list[Told]]:
        """Tokens [B, T, 16, hidden] and masks of a step's windows, which have equally many strides."""
        plan = self.plan
        late = min(1.0, max(0.0, (step - plan.grown + 200) / 200))
        size = dice.choices((3, 4, 5), (0.6 - 0.45 * late, 0.15, 0.25 + 0.45 * late))[0]
        whole = dice.random() < plan.dense
        tokens, keeps, labels = [], list[Tensor](), list[Told]()
        while len(labels) < max(1, (plan.dense_rows if whole else plan.rows) // size):
            drawn = self.store.strides(dice.randrange(min(plan.sets, plan.stock + step // plan.every)))
            wanted = dice.choices((0, 1, 2), plan.shares)[0]
            if whole:
                scene, strides = dice.randrange(len(drawn.dense)), composed(dice, size)
                if sort(strides) != wanted:
                    continue
                tokens.append(drawn.dense[scene, list(strides)].flatten(0, 1).float())
            else:
                fit = [
                    one for one in drawn.windows if len(one.strides) == size and sort(one.strides) == wanted
                ]
                if not fit:
                    continue
                window = dice.choice(fit)
                scene, strides = window.scene, window.strides
                placed = torch.zeros(*window.keep.shape, window.tokens.shape[-1])
                placed[window.keep] = window.tokens.float()
                tokens.append(placed)
                keeps.append(window.keep)
            labels.append(told(strides, self._looks(drawn)[scene]))
        return torch.stack(tokens), torch.stack(keeps) if keeps else None, labels

    def _loss(self, step: int) -> tuple[Tensor, float, str]:
        dice = random.Random(f"across-{self.plan.seed}-{step}")
        tokens, keep, labels = self._chosen(dice, step)
        last = tokens.shape[1] - 1
        ends = [(which, last) for which in range(len(far.FAR))]
        ends += [(dice.randrange(len(far.FAR)), dice.randrange(far.STRIDE, last)) for _ in range(3)]
        asked = [vlm.Asked(far.FAR[which].text, after) for which, after in ends]
        with torch.autocast("cpu", torch.bfloat16):
            first, layers = dice.randrange(1, LABELS), self.heads.layers
            reading = vlm.answer(self.model, tokens, asked, keep, first, layers)
        which, after = torch.tensor(ends).T
        yes = torch.stack([one.yes[after, which] for one in labels])
        weight = torch.stack([one.known[after, which] for one in labels]).float().flatten()
        words = vlm.words_of(self.model)
        said = torch.where(yes, words.yes, words.no).flatten()
        entropy = functional.cross_entropy
        two = entropy(reading.answers.float().flatten(0, 1), (~yes).long().flatten(), reduction="none")
        full = entropy(reading.words.float().flatten(0, 1), said, reduction="none")
        loss = ((two + 0.1 * full) * weight).sum() / weight.sum().clamp(min=1)
        facts, sure, looks = (
            torch.stack([getattr(one, name) for one in labels]) for name in ("facts", "sure", "looks")
        )
        heads = self.heads.loss(reading.frames, facts, sure, looks)
        return loss + self.plan.frame * heads, loss.item(), "whole" if keep is None else f"{last + 1}"

    def estimate(self) -> dict[str, float]:
        """See :meth:`Stage.estimate`; draws the sets of the first step."""
        plan = self.plan
        drawn = min(plan.sets, plan.stock + plan.steps // plan.every)
        return summed(plan.steps, [(plan.steps, self.cost(0))]) | {"sets": drawn}
