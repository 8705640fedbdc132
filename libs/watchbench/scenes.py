"""Rendered camera scenes with ground truth, drawn for a whole batch at once.

A :class:`Scene` holds what happens, as functions of time. :func:`observe` evaluates it at given times and
gives the truth of every frame; :mod:`watchbench.drawing` draws those frames at any size. Training at 112 x
112 and the rendered cameras at 448 x 448 use the same code, so that the model meets nothing in a camera that
it could not meet in training.

Coordinates: unit picture (x right, y down). The ground is seen in perspective: a metre standing at ground
line y is ``metre(y)`` picture heights tall, growing linearly below the horizon (pinhole over flat ground,
level camera).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import torch
from torch import Tensor

PEOPLE, VEHICLES, OBJECTS, FURNITURE = 8, 2, 3, 7
KINDS = ("room", "carpark", "doorway", "shelf", "pole")
FOREVER = 1e6
PERSON_HEIGHT = 1.7
BODY, HULL = 0.8, 0.95  # the share of their boxes that a person and a vehicle fill


@dataclass(slots=True)
class Scene:
    """A batch of B scenes; every tensor's first dimension is B. Times are seconds from the window's first
    frame."""

    kind: Tensor
    horizon: Tensor
    tall: Tensor
    squash: Tensor
    people: dict[str, Tensor]
    vehicles: dict[str, Tensor]
    objects: dict[str, Tensor]
    furniture: dict[str, Tensor]
    look: dict[str, Tensor]
    seed: int
    slow: dict[str, Tensor] = field(default_factory=dict)

    @property
    def size(self) -> int:
        return len(self.kind)


class Dice:
    """Uniform draws from one generator."""

    def __init__(self, seed: int) -> None:
        self.generator = torch.Generator().manual_seed(seed)

    def __call__(self, *shape: int, low: float = 0.0, high: float = 1.0) -> Tensor:
        return torch.rand(*shape, generator=self.generator) * (high - low) + low

    def chance(self, p: float, *shape: int) -> Tensor:
        return torch.rand(*shape, generator=self.generator) < p

    def whole(self, low: int, high: int, *shape: int) -> Tensor:
        return torch.randint(low, high, shape, generator=self.generator)

    def between(self, low: Tensor, high: Tensor) -> Tensor:
        return low + (high - low) * torch.rand(low.shape, generator=self.generator)


def metre(scene: Scene, y: Tensor) -> Tensor:
    """Picture heights per metre standing at ground line y [B, ...]."""
    lift = y.dim() - 1
    horizon = scene.horizon.view(-1, *[1] * lift)
    tall = scene.tall.view(-1, *[1] * lift)
    return (tall / PERSON_HEIGHT * (y - horizon) / (0.9 - horizon)).clamp(min=0.01)


def sample(batch: int, seconds: float, seed: int, grade: float = 0.75) -> Scene:
    """Draw ``batch`` scenes whose events fall into [0, seconds).

    ``grade`` scales the disturbances (0: a clean studio).
    """
    d = Dice(seed)
    kind = d.whole(0, len(KINDS), batch)
    with_vehicle = d.chance(0.5, batch)
    wide = with_vehicle | d.chance(0.35, batch)
    tall = torch.where(wide, d(batch, low=0.24, high=0.45), d(batch, low=0.32, high=0.8))
    horizon = d(batch, low=-1.2, high=0.35)
    mode = d(batch)
    crowd = (mode > 0.8) & (tall < 0.5)
    number = torch.where(mode < 0.45, 0, d.whole(1, 4, batch))
    number = torch.where(crowd, d.whole(5, PEOPLE + 1, batch), number)
    number = torch.where(~crowd & (mode > 0.95), 4, number)
    aspect = torch.tensor([1.0, 0.75, 0.5625])[d.whole(0, 3, batch)]
    scene = Scene(
        kind, horizon, tall, torch.where(d.chance(0.35, batch), 1.0, aspect), {}, {}, {}, {}, {}, seed
    )
    scene.people = _people(d, scene, number, seconds)
    scene.vehicles = _vehicles(d, scene, with_vehicle, seconds)
    scene.objects = _objects(d, scene, seconds)
    scene.furniture = _furniture(d, scene)
    scene.slow = _slow(d, batch, seconds)
    scene.look = _look(d, batch, seconds, grade)
    return scene


def harmless(batch: int, seconds: float, seed: int) -> Scene:
    """Draw scenes that resemble a fall, though nobody lies on the ground.

    A person gets into bed, lies there, rolls to the edge and may get up, or bends down for a moment.
    """
    scene = sample(batch, seconds, seed)
    d, p = Dice(seed + 1), scene.people
    p["there"][:, 0] = True
    p["fall"][:, 0], p["rise"][:, 0] = FOREVER, FOREVER
    first = torch.arange(PEOPLE) == 0
    bed = d.chance(0.5, batch)
    begin = torch.where(bed & d.chance(0.4, batch), -FOREVER, d(batch, low=0.1, high=0.75) * seconds)
    end = torch.where(bed, begin + d(batch, low=3.0, high=1.5 * seconds), begin + d(batch, low=0.8, high=2.5))
    y, arrive, start, walk = p["y"], p["arrive"], p["begin"], p["walk"]
    _lie(
        scene,
        torch.ones(batch, dtype=torch.bool),
        begin,
        p["x"],
        y,
        arrive,
        start,
        walk,
        p["depart"],
        p["vanish"],
    )
    p["fall"][:, 0] = begin
    p["rise"][:, 0] = torch.where(bed & (begin < 0), d(batch, low=2.0, high=2 * seconds), end)
    p["depth"] = torch.where(first & ~bed[:, None], d(batch, 1, low=0.3, high=0.5), torch.ones(batch, 1))
    p["harmless"] = first.expand(batch, -1)
    p["sits"][:, 0] = False
    _make_beds(d, scene, bed)
    _roll(d, scene, bed, seconds)
    return scene


def _roll(d: Dice, scene: Scene, bed: Tensor, seconds: float) -> None:
    """Let half of the people in bed roll once to its near or far edge. This is drawn last, so that a seed
    still gives the scenes that it gave before rolling was added.
    """
    p = scene.people
    lies, gets_up = p["fall"][:, 0].clamp(min=0.0) + 1.0, p["rise"][:, 0] - 1.5
    at = d.between(lies, torch.minimum(gets_up, torch.tensor(0.9 * seconds)))
    rolls = bed & d.chance(0.5, scene.size) & (at > lies)
    far = torch.where(d.chance(0.5, scene.size), -1.0, 1.0) * d(scene.size, low=0.15, high=0.25)
    p["bed"] = bed[:, None] & (torch.arange(PEOPLE) == 0)
    p["roll"] = torch.full_like(p["fall"], FOREVER)
    p["roll_by"] = torch.zeros_like(p["fall"])
    p["roll"][:, 0] = torch.where(rolls, at, FOREVER)
    p["roll_by"][:, 0] = torch.where(rolls, far, 0.0) * metre(scene, p["y"])[:, 0]


def _make_beds(d: Dice, scene: Scene, bed: Tensor) -> None:
    """Put a bed with a pillow below the first person, instead of two loose pieces of furniture."""
    p, f = scene.people, scene.furniture
    unit = metre(scene, p["y"])[:, 0] * p["height"][:, 0] / PERSON_HEIGHT
    wide = (
        (p["lean"][:, 0].cos().abs() * 0.85 + 0.35) * unit * scene.squash * d(scene.size, low=1.0, high=1.2)
    )
    high = (
        (p["lean"][:, 0].sin() * p["flat"][:, 0]).abs() * 0.85 + d(scene.size, low=0.25, high=0.45)
    ) * unit
    side = p["lean"][:, 0].cos().sign()
    x, y = p["x"][:, 0], p["y"][:, 0] - 0.1 * unit
    sheet = d(scene.size, 3) * 0.5 + d(scene.size, 1, low=0.2, high=0.5)
    pieces = (
        (-2, x, y, wide, high, sheet),
        (-1, x + side * 0.8 * wide, y, 0.15 * wide, 0.7 * high, sheet * 0.5 + 0.5),
    )
    for i, at_x, at_y, half_width, half_height, colour in pieces:
        f["there"][:, i] = torch.where(bed, True, f["there"][:, i])
        values = {"x": at_x, "y": at_y, "half_width": half_width, "half_height": half_height}
        values |= {"alpha": torch.ones(scene.size), "angle": torch.zeros(scene.size)}
        for name, value in values.items():
            f[name][:, i] = torch.where(bed, value, f[name][:, i])
        f["colour"][:, i] = torch.where(bed[:, None], colour, f["colour"][:, i])


def some_of(scene: Scene, rows: Tensor) -> Scene:
    """Select the scenes at ``rows``, in their order; they are drawn as in the whole batch."""

    def table(values: dict[str, Tensor]) -> dict[str, Tensor]:
        return {name: value[rows] for name, value in values.items()}

    tables = {
        name: table(getattr(scene, name))
        for name in ("people", "vehicles", "objects", "furniture", "look", "slow")
    }
    return Scene(
        scene.kind[rows], scene.horizon[rows], scene.tall[rows], scene.squash[rows], seed=scene.seed, **tables
    )


def _ground(d: Dice, scene: Scene, *more: int, low: float = 0.2) -> Tensor:
    """Draw ground lines at which a person is at least ``low`` picture heights tall."""
    nearest = scene.horizon + (0.9 - scene.horizon) * low / scene.tall
    lowest = nearest.clamp(0.3, 0.8).view(-1, *[1] * len(more)).expand(scene.size, *more)
    return d.between(lowest, torch.full_like(lowest, 0.97))


def _lie(  # noqa: PLR0917
    scene: Scene,
    lies: Tensor,
    fall: Tensor,
    x: Tensor,
    y: Tensor,
    arrive: Tensor,
    begin: Tensor,
    walk: Tensor,
    depart: Tensor,
    vanish: Tensor,
) -> None:
    """Change the story of the first person of every scene in which they lie."""
    # People who lie are near enough to be recognised at 112 pixels.
    near_line = scene.horizon + (0.9 - scene.horizon) * 0.3 / scene.tall
    y[:, 0] = torch.where(lies, torch.maximum(y[:, 0], near_line.clamp(max=0.93)), y[:, 0])
    # People who fall are there before, and do not walk while they lie.
    before = fall < 1.5
    arrived = torch.where(before, -FOREVER, torch.minimum(arrive[:, 0], fall - 1.5))
    arrive[:, 0] = torch.where(lies, arrived, arrive[:, 0])
    began = torch.where(before, fall - 3.0, torch.minimum(begin[:, 0], fall - 1.5))
    begin[:, 0] = torch.where(lies, began, begin[:, 0])
    walk[:, 0] = torch.where(lies, walk[:, 0].clamp(max=1.4), walk[:, 0])
    depart[:, 0] = torch.where(lies, FOREVER, depart[:, 0])
    vanish[:, 0] = torch.where(lies, FOREVER, vanish[:, 0])
    x[:, 0] = torch.where(lies, x[:, 0].clamp(0.2, 0.8), x[:, 0])


def _looks(d: Dice, n: tuple[int, int]) -> dict[str, Tensor]:
    """Draw how people look, after their stories and in this order, so that a seed gives the same scenes."""
    direction = d(*n, low=-0.75, high=0.75)
    lean = torch.where(d.chance(0.5, *n), 0.0, math.pi) + direction
    shirt, trousers = _cloth(d, *n), _cloth(d, *n)
    tone = d(*n, 1, low=0.25, high=1.0)
    skin = torch.tensor([0.92, 0.72, 0.6]) * tone
    hair = d(*n, 1, low=0.05, high=0.5) * torch.tensor([1.0, 0.85, 0.7])
    return {
        "lean": lean,
        "flat": d(*n, low=0.3, high=0.75),
        "height": d(*n, low=0.88, high=1.08) * PERSON_HEIGHT,
        "stout": d(*n, low=0.85, high=1.3),
        "sits": d.chance(0.12, *n),
        "phase": d(*n, low=0, high=6.28),
        "arms": torch.where(d.chance(0.2, *n), d(*n, low=0.3, high=1.0), 0.0),
        "shirt": shirt,
        "trousers": trousers,
        "skin": skin,
        "hair": hair,
    }


def _people(d: Dice, scene: Scene, number: Tensor, seconds: float) -> dict[str, Tensor]:
    n, s = (scene.size, PEOPLE), seconds
    there = torch.arange(PEOPLE) < number[:, None]
    y = _ground(d, scene, PEOPLE)
    x = d(*n, low=0.06, high=0.94)
    size = metre(scene, y) * PERSON_HEIGHT
    side = torch.where(d.chance(0.5, *n), -1.0, 1.0)
    outside = 0.5 + side * (0.5 + size * 0.3 + 0.02)
    reach = 1.2 * metre(scene, y) / scene.squash[:, None]
    near = (x + (d(*n) - 0.5) * 4 * reach).clamp(0.08, 0.92)
    story = d(*n)  # stays | enters and stays | leaves | enters and leaves
    enters = ((story > 0.4) & (story < 0.7)) | (story > 0.8)
    leaves = story > 0.7
    pop = d.chance(0.3, *n)
    arrive = torch.where(enters, d(*n, low=0.0, high=s * 0.75), -FOREVER)
    start_x = torch.where(enters & ~pop, outside, near)
    walk = (x - start_x).abs() / (reach * d(*n, low=0.8, high=1.5)) + 0.3
    walk = walk.clamp(max=0.35 * s)
    begin = torch.where(enters, arrive, d(*n, low=-s, high=s))
    depart = torch.where(leaves, torch.maximum(begin + walk, d(*n, low=0.0, high=s)) + 0.5, FOREVER)
    end_x = 0.5 + torch.where(d.chance(0.5, *n), -1.0, 1.0) * (0.5 + size * 0.3 + 0.02)
    walk_out = ((x - end_x).abs() / (reach * d(*n, low=0.8, high=1.5)) + 0.3).clamp(max=0.35 * s)
    vanish = torch.where(leaves & pop, depart, FOREVER)
    falls = d.chance(0.4, scene.size)
    fall = torch.where(d.chance(0.2, scene.size), -FOREVER, d(scene.size, low=0.0, high=s * 0.8))
    rises = d.chance(0.15, scene.size)
    nobody = torch.full((scene.size, PEOPLE), FOREVER)
    falling = nobody.clone()
    rising = nobody.clone()
    lies = falls & (number > 0) | (falls & d.chance(0.5, scene.size))
    there[:, 0] |= lies
    falling[:, 0] = torch.where(lies, fall, FOREVER)
    rising[:, 0] = torch.where(lies & rises, fall.clamp(min=0) + d(scene.size, low=2.5, high=6.0), FOREVER)
    _lie(scene, lies, fall, x, y, arrive, begin, walk, depart, vanish)
    return {
        "there": there,
        "x": x,
        "y": y,
        "start_x": start_x,
        "end_x": end_x,
        "begin": begin,
        "walk": walk,
        "arrive": arrive,
        "depart": depart,
        "walk_out": walk_out,
        "vanish": vanish,
        "fall": falling,
        "rise": rising,
        **_looks(d, n),
    }


def _cloth(d: Dice, *shape: int) -> Tensor:
    """Colours of clothes: mostly muted, sometimes bright."""
    bright = d(*shape, 3)
    grey = d(*shape, 1, low=0.05, high=0.9)
    mix = torch.where(d.chance(0.4, *shape, 1), 0.9, 0.35)
    return (bright * mix + grey * (1 - mix)).clamp(0.02, 1.0)


def _vivid(d: Dice, *shape: int) -> Tensor:
    """Colours of carried things: mostly strong."""
    hue = d(*shape, 1) * 6 + torch.tensor([0.0, 4.0, 2.0])
    pure = ((hue % 6 - 3).abs() - 1).clamp(0, 1) * 0.8 + 0.1
    return torch.where(d.chance(0.7, *shape, 1), pure, _cloth(d, *shape))


def _vehicles(d: Dice, scene: Scene, present: Tensor, seconds: float) -> dict[str, Tensor]:
    n, s = (scene.size, VEHICLES), seconds
    there = present[:, None] & torch.stack([torch.ones_like(present), d.chance(0.4, scene.size)], 1)
    y = _ground(d, scene, VEHICLES, low=0.17)
    view = d(*n)  # side | three-quarter | front | from above
    above = view > 0.9
    stretch = torch.where(view < 0.5, 1.0, torch.where(view < 0.7, d(*n, low=0.6, high=0.95), 0.42))
    stretch = torch.where(above, 1.0, stretch)
    m = metre(scene, y)
    half = 2.2 * stretch * m / scene.squash[:, None].reciprocal().reciprocal() * scene.squash[:, None]
    side = torch.where(d.chance(0.5, *n), -1.0, 1.0)
    story = d(*n)  # parked | drives in and stays | drives off | passes
    x = d(*n, low=0.15, high=0.85)
    enters = ((story > 0.25) & (story < 0.55)) | (story > 0.7)
    leaves = story > 0.55
    outside = 0.5 + side * (0.5 + half + 0.03)
    speed = d(*n, low=0.12, high=0.5)
    begin = torch.where(enters, d(*n, low=0.0, high=s * 0.75), -FOREVER)
    walk = (x - outside).abs() / speed + 0.2
    depart = torch.where(leaves, torch.maximum(begin + walk, d(*n, low=0.0, high=s * 0.9)), FOREVER)
    depart = torch.where(story > 0.7, begin + walk, depart)
    end_x = 0.5 - side * (0.5 + half + 0.03)
    end_x = torch.where(d.chance(0.25, *n), outside, end_x)
    pop = d.chance(0.2, *n)
    colour = torch.where(d.chance(0.5, *n, 1), d(*n, 1, low=0.1, high=0.95).expand(*n, 3), _cloth(d, *n))
    out = {
        "there": there,
        "x": x,
        "y": y,
        "start_x": torch.where(enters & ~pop, outside, x),
        "end_x": end_x,
        "begin": begin,
        "walk": torch.where(pop, 0.2, walk),
        "arrive": torch.where(enters, begin, -FOREVER),
        "depart": depart,
        "walk_out": (x - end_x).abs() / speed + 0.2,
        "vanish": torch.where(leaves & pop, depart, FOREVER),
        "stretch": stretch,
        "above": above,
        "facing": -side,
        "colour": colour,
        "length": d(*n, low=3.7, high=4.8),
        "van": d.chance(0.25, *n),
        "tilt": torch.where(d.chance(0.5, *n), 0.0, math.pi / 2) + d(*n, low=-0.4, high=0.4),
    }
    # The same vehicle comes back: slot 1 is slot 0's twin, a few seconds later.
    twin = d.chance(0.25, scene.size) & there.all(1)
    for name in ("y", "stretch", "above", "colour", "length", "van", "tilt"):
        value = out[name]
        mask = twin.view(-1, *[1] * (value.dim() - 2))
        value[:, 1] = torch.where(mask, value[:, 0], value[:, 1])
    out["twin"] = twin
    return out


def _objects(d: Dice, scene: Scene, seconds: float) -> dict[str, Tensor]:
    """Draw the objects. Slot 0 may be set down by person 1 (or just appear); slot 1 was there before; slot 2
    is carried, or taken away."""
    n, p = (scene.size, OBJECTS), scene.people
    roomy = scene.tall > 0.28
    left = d.chance(0.45, scene.size) & roomy
    carried = left & p["there"][:, 1] & d.chance(0.75, scene.size)
    y, x = _ground(d, scene, OBJECTS, low=0.26), d(*n, low=0.08, high=0.92)
    arrival = p["begin"][:, 1] + p["walk"][:, 1]
    appear = d(scene.size, low=0.5, high=seconds * 0.9)
    carried &= (arrival > 0.5) & (arrival < seconds * 0.9)
    carried &= metre(scene, p["y"])[:, 1] * PERSON_HEIGHT > 0.25
    gap = 0.45 * metre(scene, p["y"])[:, 1] * scene.squash
    side = torch.where(d.chance(0.5, scene.size), -1.0, 1.0)
    x[:, 0] = torch.where(carried, p["x"][:, 1] + side * gap, x[:, 0]).clamp(0.06, 0.94)
    y[:, 0] = torch.where(carried, p["y"][:, 1] + 0.01, y[:, 0])
    before = d.chance(0.5, scene.size) & roomy
    taken = d.chance(0.12, scene.size) & roomy
    set_down = torch.stack(
        [torch.where(carried, arrival, appear)] + [torch.full((scene.size,), -FOREVER)] * 2, 1
    )
    removed = torch.full(n, FOREVER)
    removed[:, 2] = d(scene.size, low=0.0, high=seconds)
    return {
        "there": torch.stack([left, before, taken], 1),
        "x": x,
        "y": y,
        "from": set_down,
        "until": removed,
        "carried": carried,
        "holds": d.chance(0.12, scene.size) & ~left,
        "size": d(*n, low=0.5, high=0.9),
        "wide": d(*n, low=0.7, high=1.5),
        "colour": _vivid(d, *n),
        "bag": d.chance(0.5, *n),
    }


# Set pieces of each kind of scene: (kind, x, y, half width, half height, shade, corner), around an anchor,
# scaled.
_PIECES: tuple[tuple[int, float, float, float, float, float, float], ...] = (
    (0, -0.3, -0.35, 0.11, 0.11, 1.5, 0.1),
    (0, -0.3, -0.35, 0.008, 0.11, 0.6, 0.1),
    (0, 0.0, 0.02, 0.16, 0.02, 0.7, 0.3),
    (0, -0.13, 0.12, 0.012, 0.1, 0.5, 0.2),
    (0, 0.13, 0.12, 0.012, 0.1, 0.5, 0.2),
    (0, 0.36, 0.05, 0.14, 0.09, 0.8, 0.5),
    (0, 0.36, -0.04, 0.15, 0.07, 0.9, 0.6),
    (1, -0.4, 0.25, 0.008, 0.13, 1.7, 0.1),
    (1, -0.13, 0.25, 0.008, 0.13, 1.7, 0.1),
    (1, 0.13, 0.25, 0.008, 0.13, 1.7, 0.1),
    (1, 0.4, 0.25, 0.008, 0.13, 1.7, 0.1),
    (1, 0.0, -0.12, 0.6, 0.015, 1.3, 0.1),
    (1, 0.3, -0.3, 0.2, 0.13, 0.6, 0.1),
    (2, 0.0, -0.12, 0.12, 0.28, 0.6, 0.05),
    (2, 0.0, -0.11, 0.1, 0.26, 1.25, 0.05),
    (2, 0.075, -0.08, 0.012, 0.012, 0.4, 1.0),
    (2, 0.3, -0.2, 0.06, 0.08, 1.4, 0.1),
    (3, 0.0, -0.3, 0.35, 0.012, 0.5, 0.1),
    (3, 0.0, -0.14, 0.35, 0.012, 0.5, 0.1),
    (3, -0.25, -0.36, 0.03, 0.05, 1.5, 0.3),
    (3, -0.1, -0.36, 0.05, 0.05, 0.8, 0.2),
    (3, 0.15, -0.35, 0.025, 0.045, 1.3, 0.6),
    (3, 0.2, -0.2, 0.06, 0.045, 0.7, 0.2),
    (3, -0.2, -0.2, 0.04, 0.05, 1.4, 0.2),
    (4, 0.0, -0.1, 0.014, 0.5, 0.5, 0.2),
    (4, 0.05, -0.5, 0.06, 0.02, 0.6, 0.5),
    (4, -0.35, -0.25, 0.13, 0.16, 0.6, 1.0),
    (4, -0.35, 0.0, 0.02, 0.14, 0.4, 0.2),
)


def furnish(scene: Scene, seed: int) -> dict[str, Tensor]:
    """Draw furniture by seed, with the set pieces of each scene's kind."""
    return _furniture(Dice(seed), scene, 1.0)


def _furniture(d: Dice, scene: Scene, often: float = 0.6) -> dict[str, Tensor]:
    """Draw random boxes and posts and, for most scenes, the set pieces of their kind."""
    n = (scene.size, FURNITURE)
    number = d.whole(0, FURNITURE + 1, scene.size)
    thin = d.chance(0.35, *n)
    width = torch.where(thin, d(*n, low=0.008, high=0.03), d(*n, low=0.04, high=0.25))
    height = torch.where(thin, d(*n, low=0.1, high=0.6), d(*n, low=0.03, high=0.2))
    lying = d.chance(0.25, *n)
    loose = {
        "there": (torch.arange(FURNITURE) < number[:, None]) & d.chance(0.5, scene.size, 1),
        "x": d(*n, low=-0.05, high=1.05),
        "y": d(*n),
        "half_width": torch.where(lying & thin, height, width),
        "half_height": torch.where(lying & thin, width, height),
        "colour": _cloth(d, *n) * 0.5 + d(scene.size, 1, 1, low=0.05, high=0.4),
        "alpha": d(*n, low=0.5, high=1.0),
        "angle": torch.where(d.chance(0.8, *n), 0.0, d(*n, low=-0.5, high=0.5)),
    }
    table = torch.tensor(_PIECES)
    m = (scene.size, len(table))
    dressed = d.chance(often, scene.size, 1)
    ax, ay = d(scene.size, 1, low=0.3, high=0.7), d(scene.size, 1, low=0.4, high=0.6)
    scale = d(scene.size, 1, low=0.8, high=1.4)
    base = _cloth(d, *m) * 0.3 + _cloth(d, scene.size, 1) * 0.5 + 0.1
    pieces = {
        "there": dressed & (table[:, 0] == scene.kind[:, None]),
        "x": ax + table[:, 1] * scale,
        "y": ay + table[:, 2] * scale,
        "half_width": (table[:, 3] * scale).expand(m),
        "half_height": (table[:, 4] * scale).expand(m),
        "colour": (base * table[:, 5, None]).clamp(0.03, 1),
        "alpha": torch.ones(m),
        "angle": torch.zeros(m),
    }
    return {name: torch.cat([pieces[name], loose[name]], 1) for name in loose}


def _slow(d: Dice, batch: int, seconds: float) -> dict[str, Tensor]:
    """Draw a panel that rises or brightens over eight seconds, or stays as it is."""
    there = d.chance(0.2, batch)
    return {
        "there": there,
        "moves": there & d.chance(0.5, batch),
        "brightens": d.chance(0.5, batch),
        "x": d(batch, low=0.15, high=0.85),
        "y": d(batch, low=0.1, high=0.45),
        "width": d(batch, low=0.06, high=0.14),
        "height": d(batch, low=0.08, high=0.18),
        "colour": _cloth(d, batch),
        "start": d(batch, low=-4.0, high=max(0.5, seconds - 5.0)),
    }


def _look(d: Dice, batch: int, seconds: float, grade: float) -> dict[str, Tensor]:
    b = batch

    def some(p: float, value: Tensor) -> Tensor:
        return torch.where(d.chance(p, *value.shape), value * grade, torch.zeros_like(value))

    return {
        "gain": 1 + some(0.7, d(b, low=-0.35, high=0.25)),
        "lift": some(0.4, d(b, low=0.0, high=0.15)),
        "grey": d.chance(0.15 * grade, b),
        "noise": some(0.7, d(b, low=0.0, high=0.045)),
        "grain": d(b).gt(0.5),
        "blur": some(0.35, d(b, low=0.3, high=1.2)),
        "step": some(0.15, d(b, low=-0.3, high=0.3)),
        "step_at": d(b, low=0.0, high=seconds),
        "flicker": some(0.2, d(b, low=0.0, high=0.06)),
        "shadow": some(0.15, d(b, low=0.15, high=0.45)),
        "shadow_x": d(b, low=-0.3, high=1.0),
        "shadow_v": d(b, low=-0.1, high=0.1),
        "shadow_w": d(b, low=0.05, high=0.25),
        "shake": torch.where(d.chance(0.12 * grade, b), d(b, low=0.002, high=0.012), 0.0),
        "vignette": some(0.4, d(b, low=0.0, high=0.5)),
        "clock": d.chance(0.4, b),
        "clock_top": d.chance(0.6, b),
        "clock_x": d(b, low=0.02, high=0.5),
        "clock_size": d(b, low=0.018, high=0.032),
        "wall": _cloth(d, b) * 0.6 + 0.2,
        "floor": _cloth(d, b) * 0.6 + 0.15,
        "edge": d(b, low=0.0, high=0.55),
        "texture": d(b, low=0.0, high=0.16),
        "patches": some(0.5, d(b, low=0.0, high=0.25)),
        "lines": d.chance(0.4, b),
    }


@dataclass(slots=True)
class Truth:
    """What is actually in view; tensors are [B, T, n] unless said otherwise, boxes are (x0, y0, x1, y1) in
    unit coordinates.

    A share is the part of a thing that can be seen: inside the picture, and not hidden by somebody nearer.
    """

    times: Tensor
    person_share: Tensor
    person_box: Tensor
    lying: Tensor
    falling: Tensor
    vehicle_share: Tensor
    vehicle_box: Tensor
    object_there: Tensor
    object_share: Tensor
    object_box: Tensor
    placed_at: Tensor
    twin: Tensor
    slow_moves: Tensor
    slow_from: Tensor


@dataclass(slots=True)
class Moment:
    """Poses of everything at T times, ready to draw."""

    truth: Truth
    foot_x: Tensor
    foot_y: Tensor
    unit: Tensor
    drop: Tensor
    swing: Tensor
    car_x: Tensor
    holds: Tensor


def _along(t: Tensor, begin: Tensor, lasts: Tensor) -> Tensor:
    return ((t - begin[..., None]) / lasts[..., None].clamp(min=1e-3)).clamp(0, 1)


def _share(box: Tensor) -> Tensor:
    """The share of a box [.., 4] inside the picture."""
    clipped = box.clamp(0, 1)
    area = (box[..., 2] - box[..., 0]) * (box[..., 3] - box[..., 1])
    seen = (clipped[..., 2] - clipped[..., 0]) * (clipped[..., 3] - clipped[..., 1])
    return seen / area.clamp(min=1e-6)


def _uncovered(box: Tensor, by: Tensor, nearer: Tensor, solid: float) -> Tensor:
    """The share [B, n, T] of boxes [B, n, T, 4] that other boxes [B, m, T, 4] leave visible.

    ``nearer`` [B, n, m, T] says which of the others are nearer; ``solid``: how much of its own box a body
    fills.
    """
    low = torch.maximum(box[:, :, None, :, :2], by[:, None, :, :, :2])
    high = torch.minimum(box[:, :, None, :, 2:], by[:, None, :, :, 2:])
    shared = (high - low).clamp(min=0).prod(-1)
    area = (box[..., 2:] - box[..., :2]).prod(-1).clamp(min=1e-6)[:, :, None]
    return (1 - solid * (shared / area).clamp(max=1) * nearer).prod(2)


def _hide(people: Tensor, box: Tensor, y: Tensor, cars: Tensor, car_box: Tensor) -> tuple[Tensor, Tensor]:
    """Reduce the shares [B, n, T] of people (who stand at y) and vehicles by what somebody nearer hides.

    The order is that of drawing: people are in front of the first vehicle, or behind them all.
    """
    on_foot, driving, ground = people > 0, cars > 0, car_box[..., 3]
    line = torch.where(driving, ground, torch.full_like(ground, 9.0)).amin(1, keepdim=True)
    ahead = (y[:, None] > y[:, :, None]) & on_foot[:, None]
    behind = (y < line)[:, :, None] & driving[:, None]
    before = (ground[:, None] > ground[:, :, None]) & driving[:, None]
    people = people * _uncovered(box, box, ahead, BODY) * _uncovered(box, car_box, behind, HULL)
    return people, cars * _uncovered(car_box, car_box, before, HULL)


def _drive(scene: Scene, t: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Vehicles at times [B, 1, T]: middle [B, n, T], box [B, n, T, 4], share inside the picture [B, n, T]."""
    v, sq = scene.vehicles, scene.squash[:, None, None]
    go, out = _along(t, v["begin"], v["walk"]), _along(t, v["depart"], v["walk_out"])
    car_x = v["start_x"][..., None] + (v["x"] - v["start_x"])[..., None] * go
    car_x = car_x + (v["end_x"] - v["x"])[..., None] * out
    m = metre(scene, v["y"])[..., None]
    length = (v["length"] * v["stretch"])[..., None]
    turned = v["tilt"][..., None].sin().abs()
    half = torch.where(v["above"][..., None], length / 2 * (1 - 0.6 * turned), length / 2) * m * sq
    car_h = torch.where(v["van"], 2.2, 1.45)[..., None]
    car_h = torch.where(v["above"][..., None], 1.9 + 2.2 * turned, car_h) * m
    cy = v["y"][..., None].expand_as(car_x)
    car_box = torch.stack([car_x - half, cy - car_h, car_x + half, cy], -1)
    car_seen = v["there"][..., None] & (t >= v["arrive"][..., None]) & (t < v["vanish"][..., None])
    return car_x, car_box, _share(car_box) * car_seen


def _drop(scene: Scene, t: Tensor) -> tuple[Tensor, Tensor]:
    """How far people have gone down at times [B, 1, T], 0 to 1, as [B, n, T].

    The second tensor, [B, n, 1], says whether that is a fall or lying on the ground.
    """
    p = scene.people
    drop = _along(t, p["fall"], torch.full_like(p["fall"], 0.8))
    drop = drop * (1 - _along(t, p["rise"], torch.full_like(p["rise"], 1.2)))
    drop = drop * p.get("depth", torch.ones(1, 1))[..., None]
    return drop, ~p.get("harmless", torch.zeros_like(p["there"]))[..., None]


def _object_boxes(scene: Scene) -> Tensor:
    """Boxes of the objects in unit coordinates: [B, objects, 4]."""
    o = scene.objects
    high = metre(scene, o["y"]) * o["size"]
    half = high * o["wide"] / 2 * scene.squash[:, None]
    return torch.stack([o["x"] - half, o["y"] - high, o["x"] + half, o["y"]], -1)


def observe(scene: Scene, times: Tensor) -> Moment:
    """Evaluate the scenes at ``times`` [T] or [B, T] (seconds)."""
    t = times.expand(scene.size, -1)[:, None, :].float()
    p, sq = scene.people, scene.squash[:, None, None]
    go, out = _along(t, p["begin"], p["walk"]), _along(t, p["depart"], p["walk_out"])
    x = p["start_x"][..., None] + (p["x"] - p["start_x"])[..., None] * go
    x = x + (p["end_x"] - p["x"])[..., None] * out
    y = p["y"][..., None].expand_as(x)
    if "roll" in p:
        y = y + p["roll_by"][..., None] * _along(t, p["roll"], torch.full_like(p["roll"], 1.0))
    unit = metre(scene, p["y"])[..., None] * (p["height"] / PERSON_HEIGHT)[..., None]
    moving = ((go > 0) & (go < 1)) | ((out > 0) & (out < 1))
    swing = torch.where(
        moving, (2 * math.pi * 0.9 * t + p["phase"][..., None]).sin(), torch.zeros_like(t) + 0.15
    )
    drop, ground = _drop(scene, t)
    seen = p["there"][..., None] & (t >= p["arrive"][..., None]) & (t < p["vanish"][..., None])
    tall, half = PERSON_HEIGHT * unit, 0.3 * unit * sq
    upright = torch.stack(
        [x - half, y - torch.where(p["sits"][..., None], 0.8 * tall, tall), x + half, y], -1
    )
    ax = p["lean"].cos()[..., None] * tall * sq
    ay = (p["lean"].sin() * p["flat"])[..., None] * tall
    wide, high = ax.abs() / 2 + half * 0.7, ay.abs() / 2 + 0.17 * unit
    flat = torch.stack([x - wide, y - high - 0.1 * unit, x + wide, y + high - 0.1 * unit], -1)
    box = torch.where((drop > 0.5)[..., None], flat, upright)
    share = _share(box) * seen
    car_x, car_box, car_share = _drive(scene, t)
    o = scene.objects
    there = o["there"][..., None] & (t >= o["from"][..., None]) & (t < o["until"][..., None])
    object_box = _object_boxes(scene)
    placed = torch.where(o["there"], o["from"], FOREVER)
    s = scene.slow
    things = object_box[:, :, None]
    clear = _uncovered(things, box, share[:, None] > 0, BODY) * _uncovered(
        things, car_box, car_share[:, None] > 0, HULL
    )
    share, car_share = _hide(share, box, y, car_share, car_box)
    person_share, person_box = _time_major(share, box)
    lying, falling = _time_major((drop > 0.8) & ground, (drop > 0.05) & (drop <= 0.8) & ground)
    vehicle_share, vehicle_box = _time_major(car_share, car_box)
    truth = Truth(
        times=times.expand(scene.size, -1),
        person_share=person_share,
        person_box=person_box,
        lying=lying,
        falling=falling,
        vehicle_share=vehicle_share,
        vehicle_box=vehicle_box,
        object_there=there.transpose(1, 2),
        object_share=(clear * there).transpose(1, 2),
        object_box=object_box[:, None].expand(-1, t.shape[-1], -1, -1),
        placed_at=placed,
        twin=scene.vehicles["twin"],
        slow_moves=s["moves"],
        slow_from=s["start"],
    )
    lead = (t < o["from"][:, :1, None]) & o["carried"][:, None, None]
    holds = (lead | o["holds"][:, None, None])[:, 0]
    return Moment(truth, x, y, unit.expand_as(x), drop, swing, car_x, holds)


def _time_major(*values: Tensor) -> tuple[Tensor, ...]:
    return tuple(value.transpose(1, 2) for value in values)


def dense_labels(truth: Truth, cells: int = 4) -> Tensor:
    """What is in each token's cell, float [B, T, cells*cells, 8].

    The classes: upright, lying, vehicle, object, person centre, 2+ centres, 3+ centres, partial fall.
    """
    b, t = truth.person_share.shape[:2]
    up = truth.person_share.ge(0.35) & ~truth.lying
    lying = truth.person_share.ge(0.35) & truth.lying
    out = torch.zeros(b, t, cells * cells, 8)
    out[..., 0] = _covered(truth.person_box, up, cells)
    out[..., 1] = _covered(truth.person_box, lying, cells)
    out[..., 2] = _covered(truth.vehicle_box, truth.vehicle_share.ge(0.25), cells)
    out[..., 3] = _covered(truth.object_box, truth.object_share.ge(0.4), cells)
    centre = (truth.person_box[..., :2] + truth.person_box[..., 2:]) / 2
    cell = (centre * cells).long().clamp(0, cells - 1)
    count = torch.zeros(b, t, cells * cells)
    count.scatter_add_(2, cell[..., 1] * cells + cell[..., 0], truth.person_share.ge(0.35).float())
    out[..., 4], out[..., 5], out[..., 6] = (count > 0).float(), (count > 1).float(), (count > 2).float()
    out[..., 7] = _covered(truth.person_box, truth.person_share.ge(0.35) & truth.falling, cells)
    return out


def _covered(box: Tensor, mask: Tensor, cells: int) -> Tensor:
    """Cells that are covered to 30 % by a box, or that hold 24 % of it: float [B, T, cells*cells]."""
    low = torch.arange(cells) / cells
    x = (torch.minimum(box[..., 2, None], low + 1 / cells) - torch.maximum(box[..., 0, None], low)).clamp(
        min=0
    )
    y = (torch.minimum(box[..., 3, None], low + 1 / cells) - torch.maximum(box[..., 1, None], low)).clamp(
        min=0
    )
    area = y[..., :, None] * x[..., None, :]
    whole = ((box[..., 2] - box[..., 0]) * (box[..., 3] - box[..., 1])).clamp(min=1e-6)[..., None, None]
    hit = (area * cells * cells > 0.3) | (area / whole > 0.24)
    return (hit & mask[..., None, None]).any(2).flatten(2).float()
