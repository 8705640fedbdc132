"""Films whose answers cannot be found in any single stride: the reason for windows.

A film is one window of five strides of 16 frames. Visits are short, or stays have a short gap, and both lie
where 16 frames at even distances do not show them. A Yes film and a No film are made of the same strides in
another order. So any score of strides alone, and its largest or its mean, is the same for both:

- `order`: a person comes in one stride, a vehicle in another. - `third`: two visits of a person and one of a
vehicle, or the other way round; who came third? - `dwell`: a person stays for three strides; two of these
have a gap of two seconds. The longest stay has 14 s or 11 s.

For two kinds this holds in a weaker form:

- `return`: a vehicle comes twice, or two vehicles do. Two Yes films and two No films are made of the same
strides; the largest of five scores is right in half of them at most, their mean in three quarters. -
`thrice`: a person comes in three strides, or in two. The strides are of the same kinds; their mean may tell.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor

from watchbench import scenes
from watchbench.questions import BY_NAME, Question
from watchbench.scenes import FOREVER, Scene
from watchbench.training import STEP_S

STRIDE, STRIDES = 16, 5
FRAMES: Final = STRIDE * STRIDES
HIDDEN: Final = range(6, 10)  # frames of a stride that are never among 16 evenly spaced frames of a window
LONG_S: Final = 12.5  # "more than twelve seconds", to half a sample
FAR: Final[tuple[Question, ...]] = (
    BY_NAME["order"],
    Question("third", "third", ("Was the third to come a vehicle?",)),
    Question("dwell far", "dwell", ("Was a person in view for more than twelve seconds?",)),
    BY_NAME["return"],
    Question("thrice", "thrice", ("Did a person come three times?",)),
)
"""The question of each kind of films, in the order of :data:`KINDS`."""
KINDS: Final = ("order", "third", "dwell", "return", "thrice")
UNIT: Final = {"return": 4}  # films per unit by kind; 2 for other kinds


@dataclass(frozen=True, slots=True)
class Films:
    """Scenes of one kind, and the answer to its question at the end of each, bool [films].

    Every second film is a Yes; films of a unit follow each other.
    """

    scene: Scene
    yes: Tensor
    question: Question


def films(  # noqa: PLR0917
    kind: str, units: int, seed: int, grade: float = 0.75, before: int = 0, visitor: bool = False
) -> Films:
    """Draw films of a kind; ``grade`` as in :func:`watchbench.scenes.sample`.

    Args:
        kind: One of :data:`KINDS`.
        units: Units of :data:`UNIT` films.
        seed: Another seed gives other films.
        grade: Of disturbances.
        before: Strides before the window, so that a stream's window may reuse their KV.
        visitor: Whether a person comes in the stride before the window; nobody does in the others.

    Raises:
        ValueError: There is no such kind.
    """
    if kind not in KINDS:
        raise ValueError(f"no films called {kind!r}; there are: {', '.join(KINDS)}")
    each = UNIT.get(kind, 2)
    past = before * STRIDE * STEP_S
    drawn = scenes.sample(units, FRAMES * STEP_S + past, seed, grade)
    scene = scenes.some_of(drawn, torch.arange(units).repeat_interleave(each))
    empty(scene)
    dice = scenes.Dice(seed + 1)
    for unit in range(units):
        rows = range(unit * each, (unit + 1) * each)
        _STAGED[kind](scene, rows, dice)
        if visitor:
            for row in rows:
                visit(scene.people, row, scenes.PEOPLE - 1, -1)
    for table in (scene.people, scene.vehicles):
        table["arrive"] += past
        table["vanish"] += past
    yes = torch.arange(len(scene.kind)) % 2 == 0
    return Films(scene, yes, FAR[KINDS.index(kind)])


def answer(kind: str, truth: scenes.Truth) -> Tensor:
    """The answer to a kind's question at the end of a window, bool [B], computed from what is in view."""
    person = (truth.person_share >= 0.4).any(2)
    vehicle = (truth.vehicle_share >= 0.35).any(2)
    if kind == "order":
        return _first(person) < _first(vehicle)
    if kind == "dwell":
        return _longest(person) * STEP_S >= LONG_S
    if kind == "thrice":
        return begins(person).sum(1) >= 3
    if kind == "third":
        came = begins(person) | begins(vehicle)
        third = (came.cumsum(1) == 3).float().argmax(1)
        return vehicle.gather(1, third[:, None])[:, 0]
    twice = (truth.vehicle_share >= 0.35).any(1).sum(1) >= 2
    return twice & truth.twin


def _first(seen: Tensor) -> Tensor:
    return torch.where(seen.any(1), seen.float().argmax(1), seen.shape[1])


def begins(seen: Tensor) -> Tensor:
    before = torch.cat([torch.zeros_like(seen[:, :1]), seen[:, :-1]], 1)
    return seen & ~before


def _longest(seen: Tensor) -> Tensor:
    run = torch.zeros(len(seen), dtype=torch.long)
    longest = run
    for frame in seen.unbind(1):
        run = torch.where(frame, run + 1, 0)
        longest = torch.maximum(longest, run)
    return longest


def empty(scene: Scene) -> None:
    """Clear the scenes. Whoever comes later stands in the open, where the first one would have stood."""
    people, vehicles = scene.people, scene.vehicles
    people["there"][:] = False
    vehicles["there"][:] = False
    scene.objects["there"][:] = False
    scene.objects["holds"][:] = False
    scene.objects["carried"][:] = False
    scene.slow["there"][:], scene.slow["moves"][:] = False, False
    vehicles["twin"][:] = False
    for table in (people, vehicles):
        for name, value in table.items():
            if name != "twin":  # everybody looks alike and stands in the same place
                value[:] = value[:, :1]
        table["x"][:] = table["x"].clamp(0.35, 0.65)
        table["start_x"][:], table["end_x"][:] = table["x"], table["x"]
        table["begin"][:], table["depart"][:] = -FOREVER, FOREVER
    people["fall"][:], people["rise"][:] = FOREVER, FOREVER


def visit(table: dict[str, Tensor], row: int, slot: int, stride: int, frames: range = HIDDEN) -> None:
    """Put what is in a slot into view in some frames of a stride, and in no others."""
    begin = stride * STRIDE + frames.start
    table["there"][row, slot] = True
    table["arrive"][row, slot] = (begin - 0.5) * STEP_S
    table["vanish"][row, slot] = (begin + len(frames) - 0.5) * STEP_S


def _order(scene: Scene, rows: range, dice: scenes.Dice) -> None:
    one, other = _strides(dice, 2)
    for row, (person, vehicle) in zip(rows, ((one, other), (other, one)), strict=True):
        visit(scene.people, row, 0, person)
        visit(scene.vehicles, row, 0, vehicle)


def _third(scene: Scene, rows: range, dice: scenes.Dice) -> None:
    first, second, third = _strides(dice, 3)
    plans: tuple[tuple[tuple[int, ...], tuple[int, ...]], ...]
    if dice.chance(0.5, 1).item():  # one vehicle among people comes last, or earlier
        plans = (((first, second), (third,)), ((first, third), (second,)))
    else:  # one person among vehicles comes earlier, or last
        plans = (((second,), (first, third)), ((third,), (first, second)))
    for row, (people, vehicles) in zip(rows, plans, strict=True):
        for table, visits in ((scene.people, people), (scene.vehicles, vehicles)):
            for slot, stride in enumerate(visits):
                visit(table, row, slot, stride)


def _dwell(scene: Scene, rows: range, dice: scenes.Dice) -> None:
    start = int(dice.whole(0, STRIDES - 2, 1))
    late = dice.chance(
        0.5, 1
    ).item()  # whether the stride without a gap is last or first, if not in the middle
    for row, whole in zip(rows, (1, 2 if late else 0), strict=True):
        gaps = [start + n for n in range(3) if n != whole]
        edges = [start * STRIDE]
        for gap in gaps:
            edges += [gap * STRIDE + HIDDEN.start, gap * STRIDE + HIDDEN.stop]
        edges.append((start + 3) * STRIDE)
        for slot, (begin, end) in enumerate(zip(edges[::2], edges[1::2], strict=True)):
            visit(scene.people, row, slot, 0, range(begin, end))


def _return(scene: Scene, rows: range, dice: scenes.Dice) -> None:
    strides = _strides(dice, 2)
    vehicles = scene.vehicles
    colours = vehicles["colour"][rows[0], 0], another(vehicles["colour"][rows[0], 0])
    # Yes and No alternate: a vehicle twice, it and another, the other twice, the other and the first.
    for row, looks in zip(rows, ((0, 0), (0, 1), (1, 1), (1, 0)), strict=True):
        for slot, (stride, look) in enumerate(zip(strides, looks, strict=True)):
            visit(vehicles, row, slot, stride)
            vehicles["colour"][row, slot] = colours[look]
        vehicles["twin"][row] = looks[0] == looks[1]


def another(colour: Tensor) -> Tensor:
    """A colour that clearly differs from the given one."""
    return torch.where(colour > 0.5, colour - 0.45, colour + 0.45).roll(1)


def _thrice(scene: Scene, rows: range, dice: scenes.Dice) -> None:
    strides = _strides(dice, 3)
    for row, count in zip(rows, (3, 2), strict=True):
        for slot, stride in enumerate(strides[:count]):
            visit(scene.people, row, slot, stride)


def _strides(dice: scenes.Dice, count: int) -> list[int]:
    """Draw ``count`` different strides, in ascending order."""
    drawn = torch.randperm(STRIDES, generator=dice.generator)[:count]
    return sorted(drawn.tolist())


_STAGED: Final = {
    "order": _order,
    "third": _third,
    "dwell": _dwell,
    "return": _return,
    "thrice": _thrice,
}
