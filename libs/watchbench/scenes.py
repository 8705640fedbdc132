"""Rendered camera scenes with ground truth, drawn for a whole batch at once.

A :class:`Scene` holds what happens, as functions of time; :func:`observe` evaluates it at given times and gives the
truth of every frame; :func:`render` draws those frames at any size. Training at 112 x 112 and the rendered cameras at
448 x 448 use the same code, so that the model meets nothing in a camera it could not meet in training.

Coordinates: unit picture (x right, y down). The ground is seen in perspective: a metre standing at ground line y is
``metre(y)`` picture heights tall, growing linearly below the horizon (pinhole over flat ground, level camera).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Protocol

import torch
from torch import Tensor
from torch.nn import functional

from watchbench.paint import Shapes, stamp

PEOPLE, VEHICLES, OBJECTS, FURNITURE = 8, 2, 3, 7
KINDS = ("room", "carpark", "doorway", "shelf", "pole")
FOREVER = 1e6
PERSON_HEIGHT = 1.7


@dataclass(slots=True)
class Scene:
    """A batch of B scenes; every tensor's first dimension is B. Times in seconds from the first frame of the window."""

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
    """Draw ``batch`` scenes whose events fall into [0, seconds). ``grade`` scales the disturbances (0: a clean studio)."""
    d = Dice(seed)
    kind = d.whole(0, len(KINDS), batch)
    with_vehicle = d.chance(0.5, batch)
    wide = with_vehicle | d.chance(0.35, batch)
    tall = torch.where(wide, d(batch, low=0.24, high=0.45), d(batch, low=0.32, high=0.8))
    horizon = d(batch, low=-1.2, high=0.35)
    mode = d(batch)
    crowd = (mode > 0.8) & (tall < 0.5)
    number = torch.where(mode < 0.36, 0, d.whole(1, 4, batch))
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


def scripted_empty(seed: int = 0) -> Scene:
    """One clean scene in which nothing happens, to be filled by hand."""
    scene = sample(1, 10, seed, grade=0.0)
    for table in (scene.people, scene.vehicles, scene.objects, scene.slow):
        table["there"][:] = False
    scene.tall[:], scene.horizon[:], scene.squash[:] = 0.4, 0.0, 1.0
    scene.objects["carried"][:], scene.objects["holds"][:], scene.objects["until"][:] = False, False, FOREVER
    scene.people["sits"][:], scene.vehicles["twin"][:] = False, False
    return scene


def _ground(d: Dice, scene: Scene, *more: int, low: float = 0.2) -> Tensor:
    """Ground lines at which a person is at least ``low`` picture heights tall."""
    nearest = scene.horizon + (0.9 - scene.horizon) * low / scene.tall
    lowest = nearest.clamp(0.3, 0.8).view(-1, *[1] * len(more)).expand(scene.size, *more)
    return d.between(lowest, torch.full_like(lowest, 0.97))


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
    # Who falls is there to fall, and does not walk while lying.
    arrive[:, 0] = torch.where(
        lies, torch.where(fall < 1.5, -FOREVER, torch.minimum(arrive[:, 0], fall - 1.5)), arrive[:, 0]
    )
    begin[:, 0] = torch.where(
        lies, torch.where(fall < 1.5, fall - 3.0, torch.minimum(begin[:, 0], fall - 1.5)), begin[:, 0]
    )
    walk[:, 0] = torch.where(lies, walk[:, 0].clamp(max=1.4), walk[:, 0])
    depart[:, 0] = torch.where(lies, FOREVER, depart[:, 0])
    vanish[:, 0] = torch.where(lies, FOREVER, vanish[:, 0])
    x[:, 0] = torch.where(lies, x[:, 0].clamp(0.2, 0.8), x[:, 0])
    direction = d(scene.size, PEOPLE, low=-0.75, high=0.75)
    lean = torch.where(d.chance(0.5, *n), 0.0, math.pi) + direction
    shirt, trousers = _cloth(d, *n), _cloth(d, *n)
    tone = d(*n, 1, low=0.25, high=1.0)
    skin = torch.tensor([0.92, 0.72, 0.6]) * tone
    hair = d(*n, 1, low=0.05, high=0.5) * torch.tensor([1.0, 0.85, 0.7])
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


def _cloth(d: Dice, *shape: int) -> Tensor:
    """Clothes: mostly muted, sometimes bright."""
    bright = d(*shape, 3)
    grey = d(*shape, 1, low=0.05, high=0.9)
    mix = torch.where(d.chance(0.4, *shape, 1), 0.9, 0.35)
    return (bright * mix + grey * (1 - mix)).clamp(0.02, 1.0)


def _vivid(d: Dice, *shape: int) -> Tensor:
    """What people carry: mostly a strong colour."""
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
    # The same vehicle comes back: slot 1 is slot 0's twin, some seconds later.
    twin = d.chance(0.25, scene.size) & there.all(1)
    for name in ("y", "stretch", "above", "colour", "length", "van", "tilt"):
        value = out[name]
        mask = twin.view(-1, *[1] * (value.dim() - 2))
        value[:, 1] = torch.where(mask, value[:, 0], value[:, 1])
    out["twin"] = twin
    return out


def _objects(d: Dice, scene: Scene, seconds: float) -> dict[str, Tensor]:
    """Slot 0 may be set down by person 1 (or just appear); slot 1 stood there before; slot 2 is carried, or taken away."""
    n, p = (scene.size, OBJECTS), scene.people
    roomy = scene.tall > 0.28
    left = d.chance(0.45, scene.size) & roomy
    carried = left & p["there"][:, 1] & d.chance(0.75, scene.size)
    y, x = _ground(d, scene, OBJECTS, low=0.22), d(*n, low=0.08, high=0.92)
    arrival = p["begin"][:, 1] + p["walk"][:, 1]
    appear = d(scene.size, low=0.5, high=seconds * 0.9)
    carried &= (arrival > 0.5) & (arrival < seconds * 0.9)
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
        "size": d(*n, low=0.42, high=0.75),
        "wide": d(*n, low=0.7, high=1.5),
        "colour": _vivid(d, *n),
        "bag": d.chance(0.5, *n),
    }


# Set pieces of each kind of scene: (kind, x, y, half width, half height, shade, corner), around an anchor, scaled.
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
    """Furniture with the set pieces of each scene's kind, by seed."""
    return _furniture(Dice(seed), scene, 1.0)


def _furniture(d: Dice, scene: Scene, often: float = 0.6) -> dict[str, Tensor]:
    """Random boxes and posts, and for most scenes the set pieces of their kind."""
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
    """A panel that rises or brightens over eight seconds, or a still one."""
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


# --- what is where at a time -------------------------------------------------------------------------------------


@dataclass(slots=True)
class Truth:
    """What is really in view, [B, T, n] unless said otherwise; boxes are (x0, y0, x1, y1) in unit coordinates."""

    times: Tensor
    person_share: Tensor
    person_box: Tensor
    lying: Tensor
    falling: Tensor
    vehicle_share: Tensor
    vehicle_box: Tensor
    object_there: Tensor
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


def observe(scene: Scene, times: Tensor) -> Moment:
    """Evaluate the scenes at ``times`` [T] or [B, T] (seconds)."""
    t = times.expand(scene.size, -1)[:, None, :].float()
    p, sq = scene.people, scene.squash[:, None, None]
    go, out = _along(t, p["begin"], p["walk"]), _along(t, p["depart"], p["walk_out"])
    x = p["start_x"][..., None] + (p["x"] - p["start_x"])[..., None] * go
    x = x + (p["end_x"] - p["x"])[..., None] * out
    y = p["y"][..., None].expand_as(x)
    unit = metre(scene, p["y"])[..., None] * (p["height"] / PERSON_HEIGHT)[..., None]
    moving = ((go > 0) & (go < 1)) | ((out > 0) & (out < 1))
    swing = torch.where(
        moving, (2 * math.pi * 0.9 * t + p["phase"][..., None]).sin(), torch.zeros_like(t) + 0.15
    )
    drop = _along(t, p["fall"], torch.full_like(p["fall"], 0.8))
    drop = drop * (1 - _along(t, p["rise"], torch.full_like(p["rise"], 1.2)))
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
    v = scene.vehicles
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
    o = scene.objects
    there = o["there"][..., None] & (t >= o["from"][..., None]) & (t < o["until"][..., None])
    om = metre(scene, o["y"]) * o["size"]
    oh, ow = om, om * o["wide"] / 2 * scene.squash[:, None]
    object_box = torch.stack([o["x"] - ow, o["y"] - oh, o["x"] + ow, o["y"]], -1)
    placed = torch.where(o["there"], o["from"], FOREVER)
    s = scene.slow
    person_share, person_box = _time_major(share, box)
    lying, falling = _time_major(drop > 0.8, (drop > 0.05) & (drop <= 0.8))
    vehicle_share, vehicle_box = _time_major(_share(car_box) * car_seen, car_box)
    truth = Truth(
        times=times.expand(scene.size, -1),
        person_share=person_share,
        person_box=person_box,
        lying=lying,
        falling=falling,
        vehicle_share=vehicle_share,
        vehicle_box=vehicle_box,
        object_there=there.transpose(1, 2),
        object_box=object_box[:, None].expand(-1, t.shape[-1], -1, -1),
        placed_at=placed,
        twin=v["twin"],
        slow_moves=s["moves"],
        slow_from=s["start"],
    )
    lead = (t < o["from"][:, :1, None]) & o["carried"][:, None, None]
    holds = (lead | o["holds"][:, None, None])[:, 0]
    return Moment(truth, x, y, unit.expand_as(x), drop, swing, car_x, holds)


def _time_major(*values: Tensor) -> tuple[Tensor, ...]:
    return tuple(value.transpose(1, 2) for value in values)


# --- drawing -----------------------------------------------------------------------------------------------------


class _Pen:
    """Stamps shapes given as [B, T] tensors where a [B, T] mask holds."""

    def __init__(self, canvas: Tensor, scene: Scene, frames: int) -> None:
        self.canvas, self.frames = canvas, frames
        self.squash = scene.squash[:, None].expand(-1, frames).reshape(-1)

    def __call__(
        self,
        mask: Tensor,
        x: Tensor,
        y: Tensor,
        hw: Tensor,
        hh: Tensor,
        colour: Tensor,
        *,
        angle: Tensor | None = None,
        alpha: Tensor | float = 1.0,
        ellipse: bool = False,
        corner: float = 1.0,
        soft: float = 0.0,
        shade: float = 0.12,
    ) -> None:
        frame = mask.reshape(-1).nonzero()[:, 0]
        if not len(frame):
            return
        shape = mask.shape

        def pick(value: Tensor | float) -> Tensor:
            if not isinstance(value, Tensor):
                return torch.full((len(frame),), float(value))
            return value.expand(shape).reshape(-1)[frame]

        rgb = colour.expand(*shape, 3).reshape(-1, 3)[frame]
        turn = pick(angle) if angle is not None else torch.zeros(len(frame))
        stamp(
            self.canvas,
            Shapes(
                frame,
                pick(x),
                pick(y),
                pick(hw),
                pick(hh),
                turn,
                rgb,
                pick(alpha),
                self.squash[frame],
                ellipse,
                corner,
                soft,
                shade,
            ),
        )


def _limb(
    pen: _Pen,
    mask: Tensor,
    a: tuple[Tensor, Tensor],
    b: tuple[Tensor, Tensor],
    radius: Tensor,
    colour: Tensor,
    squash: Tensor,
) -> None:
    """A capsule between two points of the picture."""
    dx, dy = (b[0] - a[0]) / squash, b[1] - a[1]
    length = torch.hypot(dx, dy)
    pen(
        mask,
        (a[0] + b[0]) / 2,
        (a[1] + b[1]) / 2,
        radius,
        length / 2 + radius,
        colour,
        angle=torch.atan2(-dx, dy),
    )


def _draw_person(pen: _Pen, scene: Scene, now: Moment, who: Tensor, mask: Tensor) -> None:
    """Person ``who`` [B, T] (index per frame) where mask [B, T]."""
    rows = torch.arange(scene.size)[:, None]
    cols = torch.arange(mask.shape[1])[None]
    p, sq = scene.people, scene.squash[:, None]
    x, y, u = now.foot_x[rows, who, cols], now.foot_y[rows, who, cols], now.unit[rows, who, cols]
    drop, swing = now.drop[rows, who, cols], now.swing[rows, who, cols]

    def of(name: str) -> Tensor:
        return p[name][rows, who]

    lean, flat, stout, sits = of("lean"), of("flat"), of("stout"), of("sits") & (drop < 0.3)
    shirt, trousers, skin, hair = of("shirt"), of("trousers"), of("skin"), of("hair")
    # The body's axis turns from upright to lying; its base slides so that the lying body is centred on the foot point.
    gx, gy = drop * lean.cos(), drop * lean.sin() * flat
    ux, uy = gx, -(1 - drop) + gy
    norm = torch.hypot(ux, uy).clamp(min=0.25)
    length = (1 - drop) + drop * torch.hypot(lean.cos(), lean.sin() * flat)
    ux, uy = ux / norm * length, uy / norm * length
    wx, wy = -uy / length.clamp(min=0.2), ux / length.clamp(min=0.2)
    wy = wy * (1 - drop * (1 - flat))
    bx, by = x - drop * ux * 0.85 * u * sq, y - drop * (uy * 0.85 + 0.08) * u
    lowered = torch.where(sits, 0.33, 0.0)

    def at(side: Tensor | float, up: Tensor | float, limb: bool = False) -> tuple[Tensor, Tensor]:
        up = torch.as_tensor(up).expand_as(u)
        up = up if limb else up - lowered
        return bx + (ux * up + wx * side * stout) * u * sq, by + (uy * up + wy * side * stout) * u

    grounded = 1 - 0.5 * drop
    pen(
        mask,
        x,
        y - 0.02 * u,
        (0.32 + 0.5 * drop) * u,
        (0.09 + 0.05 * drop) * u,
        torch.zeros(3),
        alpha=0.35 * grounded,
        ellipse=True,
        soft=0.02,
    )
    stride = swing * 0.2
    hip = 0.82
    for sign in (-1.0, 1.0):
        knee_out = torch.where(sits, sign * 0.22, sign * 0.08 + sign * stride * 0.5)
        foot = at(
            torch.where(sits, sign * 0.2, sign * 0.09 + sign * stride), torch.where(sits, 0.04, 0.04), True
        )
        knee = at(knee_out, torch.where(sits, 0.42, 0.44), True)
        _limb(pen, mask, at(sign * 0.08, hip), knee, 0.085 * u * stout, trousers, sq)
        _limb(pen, mask, knee, foot, 0.065 * u, trousers * 0.85, sq)
    _limb(pen, mask, at(0.0, hip + 0.1), at(0.0, 1.28), 0.17 * u * stout, shirt, sq)
    raised = of("arms")
    for sign in (-1.0, 1.0):
        hand = at(sign * (0.25 - stride * 0.6 + raised * 0.25), 0.85 + raised * 0.5)
        elbow = at(sign * (0.27 + raised * 0.1), 1.08 + raised * 0.1)
        _limb(pen, mask, at(sign * 0.2, 1.34), elbow, 0.055 * u, shirt * 0.8, sq)
        _limb(
            pen, mask, elbow, hand, 0.045 * u, torch.where((raised > 0.6)[..., None], skin, shirt * 0.8), sq
        )
    top, face = at(0.0, 1.62), at(0.0, 1.57)
    pen(mask, *top, 0.115 * u, 0.13 * u, hair, ellipse=True)
    pen(mask, face[0] + 0.015 * u * sq, face[1] + 0.01 * u, 0.095 * u, 0.11 * u, skin, ellipse=True)


def _draw_bag(
    pen: _Pen, x: Tensor, y: Tensor, size: Tensor, wide: Tensor, colour: Tensor, bag: Tensor, mask: Tensor
) -> None:
    """A box or a bag standing at (x, y)."""
    pen(
        mask,
        x,
        y - 0.03 * size,
        size * wide * 0.6,
        size * 0.1,
        torch.zeros(3),
        alpha=0.3,
        ellipse=True,
        soft=0.01,
    )
    pen(mask & bag, x, y - size * 0.85, size * wide * 0.22, size * 0.22, colour * 0.5, ellipse=True)
    pen(mask, x, y - size * 0.42, size * wide / 2, size * 0.42, colour, corner=0.3)
    pen(mask & ~bag, x, y - size * 0.5, size * wide / 2, size * 0.05, colour * 0.55)
    pen(mask & bag, x, y - size * 0.3, size * wide * 0.3, size * 0.14, colour * 0.75, corner=0.4)


def _draw_vehicle(pen: _Pen, scene: Scene, now: Moment, i: int, mask: Tensor) -> None:
    v = scene.vehicles
    x, y = now.car_x[:, i], v["y"][:, i, None]
    m, c = metre(scene, v["y"])[:, i, None], v["stretch"][:, i, None]
    half, colour = v["length"][:, i, None] / 2 * c * m, v["colour"][:, i, None]
    sq, facing = scene.squash[:, None], v["facing"][:, i, None]
    above, van = v["above"][:, i, None], v["van"][:, i, None]
    side, front, lid = mask & ~above & (c > 0.5), mask & ~above & (c <= 0.5), mask & above
    ground, roofless = mask & ~above, side & ~van
    glass, dark = (
        torch.tensor([0.22, 0.28, 0.33]) + 0.25 * colour.mean(-1, keepdim=True),
        torch.tensor([0.06, 0.06, 0.07]),
    )
    pen(ground, x, y - 0.05 * m, half * 1.08, 0.2 * m, torch.zeros(3), alpha=0.45, ellipse=True, soft=0.02)
    pen(
        roofless, x - facing * 0.1 * half * sq, y - 1.05 * m, half * 0.58, 0.42 * m, colour * 0.95, corner=0.6
    )
    pen(
        roofless,
        x - facing * 0.1 * half * sq,
        y - 1.1 * m,
        half * 0.5,
        0.27 * m,
        glass,
        corner=0.6,
        shade=0.3,
    )
    pen(roofless, x - facing * 0.1 * half * sq, y - 1.1 * m, half * 0.03, 0.3 * m, colour * 0.8)
    pen(side & van, x, y - 1.35 * m, half * 0.97, 0.85 * m, colour, corner=0.2)
    pen(side & van, x + facing * 0.62 * half * sq, y - 1.6 * m, half * 0.28, 0.3 * m, glass, corner=0.3)
    pen(side, x, y - 0.6 * m, half, 0.34 * m, colour, corner=0.5)
    for end in (-1.0, 1.0):
        pen(
            side,
            x + end * 0.62 * half * sq,
            y - 0.32 * m,
            0.33 * m * (0.6 + 0.4 * c),
            0.33 * m,
            dark,
            ellipse=True,
        )
        pen(
            side,
            x + end * 0.62 * half * sq,
            y - 0.32 * m,
            0.15 * m,
            0.16 * m,
            torch.full((3,), 0.5),
            ellipse=True,
        )
    pen(
        side,
        x + facing * 0.95 * half * sq,
        y - 0.68 * m,
        half * 0.05,
        0.08 * m,
        torch.tensor([1.0, 0.95, 0.75]),
    )
    tall = torch.where(van, 0.7, 0.4) * m
    pen(front, x, y - 0.2 * m, half * 0.95, 0.2 * m, dark, corner=0.3)
    pen(front, x, y - 0.8 * m - tall, half * 0.82, tall, colour * 0.95, corner=0.4)
    pen(front, x, y - 0.85 * m - tall, half * 0.7, tall * 0.6, glass, corner=0.4)
    pen(front, x, y - 0.62 * m, half, 0.34 * m, colour, corner=0.4)
    for end in (-1.0, 1.0):
        pen(
            front,
            x + end * 0.75 * half * sq,
            y - 0.66 * m,
            half * 0.16,
            0.1 * m,
            torch.tensor([1.0, 0.95, 0.8]),
            ellipse=True,
        )
    a = v["tilt"][:, i, None].expand_as(mask)
    middle, ca, sa = y - 0.9 * m, a.cos(), a.sin()
    pen(
        lid,
        x + 0.1 * m,
        middle + 0.1 * m,
        half * 1.02,
        0.95 * m,
        torch.zeros(3),
        angle=a,
        alpha=0.4,
        corner=0.3,
        soft=0.02,
    )
    pen(lid, x, middle, half, 0.88 * m, colour, angle=a, corner=0.5)
    for off, long in ((0.4, 0.13), (-0.55, 0.1)):
        pen(
            lid,
            x + off * half * ca * sq,
            middle + off * half * sa,
            half * long,
            0.7 * m,
            glass,
            angle=a,
            corner=0.4,
        )
    pen(
        lid,
        x - 0.1 * half * ca * sq,
        middle - 0.1 * half * sa,
        half * 0.3,
        0.68 * m,
        colour * 1.08,
        angle=a,
        corner=0.4,
    )


def background(scene: Scene, size: int) -> Tensor:
    """The empty scenes [B, size, size, 3]."""
    look, b = scene.look, scene.size
    g = torch.Generator().manual_seed(scene.seed ^ 0x5EED)
    rows = (torch.arange(size) + 0.5) / size
    cols = rows
    edge = torch.maximum(scene.horizon.clamp(min=0), look["edge"])[:, None]
    floor = (rows[None] - edge).mul(size).clamp(0, 1)[..., None]
    depth = (0.75 + 0.35 * rows)[None, :, None]
    strip = look["wall"][:, None] * (1 - floor) + look["floor"][:, None] * floor * depth
    out = strip[:, :, None].expand(-1, -1, size, -1).clone()
    for cells, name, mode in (
        (7, "patches", "nearest"),
        (13, "texture", "bicubic"),
        (40, "texture", "bilinear"),
    ):
        tone = torch.randn(b, 1, cells, cells, generator=g) * 0.5
        tint = torch.randn(b, 3, cells, cells, generator=g) * 0.15
        up = functional.interpolate(tone + tint, size=(size, size), mode=mode).permute(0, 2, 3, 1)
        out += up * (look[name][:, None, None, None] * 0.6)
    wave = torch.rand(b, 3, generator=g)
    tilt = (wave[:, 0] * 3.1416)[:, None, None]
    along = cols[None, None] * tilt.cos() + rows[None, :, None] * tilt.sin()
    ripple = ((along * (4 + 20 * wave[:, 1, None, None]) + wave[:, 2, None, None]) % 1 < 0.12).float()
    under = floor[:, :, None, 0] if floor.dim() == 3 else floor
    out += (ripple * under * look["lines"][:, None, None] * 0.2)[..., None]
    f, pen = scene.furniture, _Pen(out, scene, 1)
    for i in range(f["x"].shape[1]):
        q = {name: value[:, i, None] for name, value in f.items()}
        pen(
            q["there"],
            q["x"],
            q["y"],
            q["half_width"],
            q["half_height"],
            q["colour"],
            angle=q["angle"],
            alpha=q["alpha"],
            corner=0.4,
        )
    return out.clamp_(0, 1)


class Pasted(Protocol):
    """Real backgrounds and people in place of drawn ones (see :mod:`watchbench.footage`)."""

    real_people: Tensor

    def ground(self, drawn: Tensor) -> Tensor:
        """Backgrounds [B, S, S, 3], some replaced."""

    def draw(self, canvas: Tensor, now: Moment) -> None:
        """Paste people into canvas [B, T, S, S, 3]."""


def render(
    scene: Scene,
    times: Tensor,
    size: int,
    now: Moment | None = None,
    backdrop: Tensor | None = None,
    pasted: Pasted | None = None,
) -> Tensor:
    """Draw the scenes at ``times`` [T] (or [B, T]): float32 [B, T, size, size, 3], 0..1, disturbances included."""
    now = now or observe(scene, times)
    b, frames = scene.size, now.foot_x.shape[-1]
    back = background(scene, size) if backdrop is None else backdrop
    if pasted is not None:
        back = pasted.ground(back)
    canvas = back[:, None].expand(-1, frames, -1, -1, -1).contiguous().view(b * frames, size, size, 3)
    pen = _Pen(canvas, scene, frames)
    seconds = times.expand(b, -1).float()
    _draw_slow(pen, scene, seconds)
    o = scene.objects
    truth = now.truth
    for i in range(OBJECTS):
        s = (metre(scene, o["y"]) * o["size"])[:, i, None]
        _draw_bag(
            pen,
            o["x"][:, i, None],
            o["y"][:, i, None],
            s,
            o["wide"][:, i, None],
            o["colour"][:, i, None],
            o["bag"][:, i, None],
            truth.object_there[:, :, i],
        )
    shown = (truth.person_share > 0).transpose(1, 2)
    if pasted is not None:
        shown = shown & ~pasted.real_people[:, None, None]
    cars = (truth.vehicle_share > 0).transpose(1, 2)
    car_line = torch.where(cars, scene.vehicles["y"][..., None], torch.full_like(now.car_x, 9.0)).amin(1)
    order = torch.where(shown, now.foot_y, torch.full_like(now.foot_y, 9.0)).argsort(dim=1)
    ranks = int(shown.sum(1).max())
    line = now.foot_y.gather(1, order)
    drawn = shown.gather(1, order)
    _draw_people(pen, scene, now, order, drawn & (line < car_line[:, None]), ranks)
    far_first = scene.vehicles["y"].argsort(dim=1)
    for i in range(VEHICLES):
        for rank in range(VEHICLES):
            _draw_vehicle(pen, scene, now, i, cars[:, i] & (far_first[:, rank] == i)[:, None])
    _draw_people(pen, scene, now, order, drawn & (line >= car_line[:, None]), ranks)
    if pasted is not None:
        pasted.draw(canvas.view(b, frames, size, size, 3), now)
    return disturb(scene, canvas.view(b, frames, size, size, 3), seconds)


def _draw_people(pen: _Pen, scene: Scene, now: Moment, order: Tensor, mask: Tensor, ranks: int) -> None:
    rows, cols = torch.arange(scene.size)[:, None], torch.arange(mask.shape[-1])[None]
    o = scene.objects
    for rank in range(ranks):
        who, shown = order[:, rank], mask[:, rank]
        if not bool(shown.any()):
            continue
        _draw_person(pen, scene, now, who, shown)
        carries = shown & (who == 1) & now.holds
        u = now.unit[rows, who, cols]
        x = now.foot_x[rows, who, cols] + 0.33 * u * scene.squash[:, None]
        size = u * o["size"][:, 0, None]
        _draw_bag(
            pen,
            x,
            now.foot_y[rows, who, cols] - 0.3 * u,
            size,
            o["wide"][:, 0, None],
            o["colour"][:, 0, None],
            o["bag"][:, 0, None],
            carries,
        )


def _draw_slow(pen: _Pen, scene: Scene, seconds: Tensor) -> None:
    s = scene.slow
    done = ((seconds - s["start"][:, None]) / 8).clamp(0, 1) * s["moves"][:, None]
    mask = s["there"][:, None].expand_as(seconds)
    y = s["y"][:, None] - done * (~s["brightens"][:, None]) * s["height"][:, None]
    colour = (
        s["colour"][:, None]
        * (0.5 + 0.5 * torch.where(s["brightens"][:, None], done, torch.ones_like(done)))[..., None]
    )
    pen(mask, s["x"][:, None], y, s["width"][:, None], s["height"][:, None], colour, corner=0.1)


_pool: dict[tuple[int, int], Tensor] = {}


def _add_noise(frames: Tensor, sigma: Tensor, g: torch.Generator) -> None:
    """Sensor noise, in place: rows cut at random from one pool (drawing it afresh costs more than the scene).

    Large pictures also get the coarse grain that is left of it after a camera's own noise filter, which is what
    survives shrinking.
    """
    b, t, h, w, _ = frames.shape
    if (h, w) not in _pool:
        source = torch.Generator().manual_seed(7)
        pool = torch.randn(3 * h, w, 3, generator=source)
        if h >= 224:
            k = h // 112
            coarse = torch.randn(3 * h // k, w // k, 3, generator=source)
            pool = pool * 0.8 + coarse.repeat_interleave(k, 0)[: 3 * h].repeat_interleave(k, 1)[:, :w]
        _pool[h, w] = pool
    pool = _pool[h, w]
    starts = torch.randint(0, 2 * h, (b, t), generator=g)
    for i in range(b):
        if sigma[i] > 0:
            for k in range(t):
                first = int(starts[i, k])
                frames[i, k].add_(pool[first : first + h], alpha=float(sigma[i]))


def disturb(scene: Scene, frames: Tensor, seconds: Tensor) -> Tensor:
    """Shadows, light, blur, shake, sensor noise and the burnt-in clock, [B, T, H, W, 3]."""
    look, (b, t, h, w, _) = scene.look, frames.shape
    g = torch.Generator().manual_seed(scene.seed ^ 0xD157)

    def every(name: str) -> Tensor:
        return look[name].float().view(b, 1, 1, 1, 1)

    cols = (torch.arange(w) + 0.5) / w
    rows = (torch.arange(h) + 0.5) / h
    if bool((look["shadow"] > 0).any()):
        centre = look["shadow_x"][:, None] + look["shadow_v"][:, None] * seconds
        band = ((cols[None, None] - centre[..., None]).abs() / look["shadow_w"][:, None, None]).clamp(
            0.8, 1.2
        )
        dim = (1.2 - band) / 0.4 * look["shadow"][:, None, None]
        frames.mul_((1 - dim)[:, :, None, :, None])
    light = every("gain") * (
        1 + every("step") * (seconds >= look["step_at"][:, None]).float().view(b, t, 1, 1, 1)
    )
    light = light * (1 + every("flicker") * (2 * 3.1416 * 3.7 * seconds).sin().view(b, t, 1, 1, 1))
    if bool((look["vignette"] > 0).any()):
        r2 = (rows[:, None] - 0.5) ** 2 + (cols[None] - 0.5) ** 2
        light = light * (1 - every("vignette") * r2[None, None, ..., None])
    if bool((light != 1).any()):
        frames.mul_(light)
    if bool((look["lift"] > 0).any()):
        frames.add_(every("lift"))
    if bool((look["shake"] > 0).any()):
        frames = _shake(frames, look["shake"], seconds)
    if bool((look["blur"] > 0).any()):
        frames = _blur(frames, look["blur"])
    grey = look["grey"]
    if bool(grey.any()):
        mono = frames @ torch.tensor([0.3, 0.59, 0.11])
        frames = torch.where(every("grey") > 0, mono[..., None], frames)
    if bool((look["noise"] > 0).any()):
        _add_noise(frames, look["noise"], g)
    if bool(look["clock"].any()):
        frames = _clock(frames, look, seconds)
    return frames.clamp_(0, 1)


def _shake(frames: Tensor, amplitude: Tensor, seconds: Tensor) -> Tensor:
    b, t, h, w, _ = frames.shape
    out = frames.clone()
    for i in (amplitude > 0).nonzero()[:, 0].tolist():
        a = float(amplitude[i])
        for k in range(t):
            s = float(seconds[i, k])
            dx, dy = a * math.sin(2.3 * s + i) * w, a * math.sin(3.1 * s + 2 * i) * h
            out[i, k] = torch.roll(frames[i, k], (round(dy), round(dx)), (0, 1))
    return out


def _blur(frames: Tensor, strength: Tensor) -> Tensor:
    """A small box blur mixed in by strength (a soft lens; in units of a 112 px picture)."""
    b, t, h, w, _ = frames.shape
    which = (strength > 0).nonzero()[:, 0]
    part = frames[which].reshape(-1, h, w, 3).permute(0, 3, 1, 2)
    k = max(3, 2 * round(h / 112) + 1)
    soft = (
        functional.avg_pool2d(functional.pad(part, [k // 2] * 4, mode="replicate"), k, 1)
        .permute(0, 2, 3, 1)
        .view(len(which), t, h, w, 3)
    )
    mix = strength[which].clamp(max=1).view(-1, 1, 1, 1, 1)
    out = frames.clone()
    out[which] = frames[which] * (1 - mix) + soft * mix
    return out


_GLYPHS = {
    "0": "757557",
    "1": "262227",
    "2": "717447",
    "3": "717117",
    "4": "557111",
    "5": "747117",
    "6": "747557",
    "7": "711222",
    "8": "757557",
    "9": "757117",
    ":": "020020",
    "-": "007000",
    " ": "000000",
}


def _text(text: str) -> Tensor:
    """A 6-row bitmap of digits, 4 columns a glyph."""
    rows = [[int(c) for glyph in text for c in f"{int(_GLYPHS[glyph][row]):03b}0"] for row in range(6)]
    return torch.tensor(rows, dtype=torch.float32)


def _clock(frames: Tensor, look: dict[str, Tensor], seconds: Tensor) -> Tensor:
    b, t, h, w, _ = frames.shape
    for i in look["clock"].nonzero()[:, 0].tolist():
        height = max(3, round(float(look["clock_size"][i]) * h))
        base = int(look["clock_x"][i] * 1e6)
        for k in range(t):
            now = base % 86400 + float(seconds[i, k])
            text = f"2026-{base % 12 + 1:02d}-{base % 28 + 1:02d} {int(now // 3600) % 24:02d}:{int(now // 60) % 60:02d}:{int(now) % 60:02d}"
            bits = functional.interpolate(
                _text(text)[None, None], size=(height, int(height * 76 / 6 * 0.75)), mode="area"
            )[0, 0]
            top = 2 if bool(look["clock_top"][i]) else h - height - 3
            left = int(look["clock_x"][i] * (w - min(w, bits.shape[1])))
            bits = bits[:, : w - left, None]
            area = frames[i, k, top : top + height, left : left + bits.shape[1]]
            area.mul_(1 - 0.9 * bits).add_(0.9 * bits)
    return frames


def dense_labels(truth: Truth, cells: int = 4) -> Tensor:
    """What is in each token's cell, float [B, T, cells*cells, 8]: upright, lying, vehicle, object, person centre, 2+, 3+ centres, partial fall."""
    b, t = truth.person_share.shape[:2]
    up = truth.person_share.ge(0.35) & ~truth.lying
    lying = truth.person_share.ge(0.35) & truth.lying
    out = torch.zeros(b, t, cells * cells, 8)
    out[..., 0] = _covered(truth.person_box, up, cells)
    out[..., 1] = _covered(truth.person_box, lying, cells)
    out[..., 2] = _covered(truth.vehicle_box, truth.vehicle_share.ge(0.25), cells)
    out[..., 3] = _covered(truth.object_box, truth.object_there, cells)
    centre = (truth.person_box[..., :2] + truth.person_box[..., 2:]) / 2
    cell = (centre * cells).long().clamp(0, cells - 1)
    count = torch.zeros(b, t, cells * cells)
    count.scatter_add_(2, cell[..., 1] * cells + cell[..., 0], truth.person_share.ge(0.35).float())
    out[..., 4], out[..., 5], out[..., 6] = (count > 0).float(), (count > 1).float(), (count > 2).float()
    out[..., 7] = _covered(truth.person_box, truth.person_share.ge(0.35) & truth.falling, cells)
    return out


def _covered(box: Tensor, mask: Tensor, cells: int) -> Tensor:
    """Cells covered to 30 % by a box, or holding 24 % of it: float [B, T, cells*cells]."""
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
