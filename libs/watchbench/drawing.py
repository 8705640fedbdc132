"""Draws scenes as pictures: backgrounds, people, vehicles, objects, then the effects of light, lens and
sensor."""

from __future__ import annotations

import math
from typing import NamedTuple, Protocol

import torch
from torch import Tensor
from torch.nn import functional

from watchbench.paint import Shapes, stamp
from watchbench.scenes import OBJECTS, VEHICLES, Moment, Scene, metre, observe


class _Pen:
    """Stamps shapes given as [B, T] tensors wherever a [B, T] mask is true."""

    def __init__(self, canvas: Tensor, scene: Scene, frames: int) -> None:
        self.canvas, self.frames = canvas, frames
        self.squash = scene.squash[:, None].expand(-1, frames).reshape(-1)

    def __call__(  # noqa: PLR0917
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


def _limb(  # noqa: PLR0917
    pen: _Pen,
    mask: Tensor,
    a: tuple[Tensor, Tensor],
    b: tuple[Tensor, Tensor],
    radius: Tensor,
    colour: Tensor,
    squash: Tensor,
) -> None:
    """Draw a capsule between two points of the picture."""
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


def _draw_shadow(pen: _Pen, mask: Tensor, foot: tuple[Tensor, Tensor], u: Tensor, drop: Tensor) -> None:
    """Draw a person's shadow: the further they have fallen, the wider and fainter."""
    wide, high = (0.32 + 0.5 * drop) * u, (0.09 + 0.05 * drop) * u
    alpha = 0.35 * (1 - 0.5 * drop)
    pen(mask, foot[0], foot[1] - 0.02 * u, wide, high, torch.zeros(3), alpha=alpha, ellipse=True, soft=0.02)


def _draw_person(pen: _Pen, scene: Scene, now: Moment, who: Tensor, mask: Tensor) -> None:
    """Draw person ``who`` [B, T] (an index per frame) where mask [B, T]."""
    rows = torch.arange(scene.size)[:, None]
    cols = torch.arange(mask.shape[1])[None]
    p, sq = scene.people, scene.squash[:, None]
    x, y, u = now.foot_x[rows, who, cols], now.foot_y[rows, who, cols], now.unit[rows, who, cols]
    drop, swing = now.drop[rows, who, cols], now.swing[rows, who, cols]

    def of(name: str) -> Tensor:
        return p[name][rows, who]

    lean, flat, stout, sits = of("lean"), of("flat"), of("stout"), of("sits") & (drop < 0.3)
    shirt, trousers, skin, hair = of("shirt"), of("trousers"), of("skin"), of("hair")
    # The body's axis turns from upright to lying; its base slides so that the lying body is centred on the
    # foot point.
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

    _draw_shadow(pen, mask, (x, y), u, drop)
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


def _draw_bag(  # noqa: PLR0917
    pen: _Pen, x: Tensor, y: Tensor, size: Tensor, wide: Tensor, colour: Tensor, bag: Tensor, mask: Tensor
) -> None:
    """Draw a box or a bag that stands at (x, y)."""
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


class _Vehicle(NamedTuple):
    """Position and size of one vehicle of every scene, per frame, in picture lengths.

    x, y: its foot point; m: a metre there; c: how much of its side faces the camera; half: half of its
    length; sq: the picture's squash; facing: -1 or 1; glass, dark: its colours besides `colour`.
    """

    x: Tensor
    y: Tensor
    m: Tensor
    c: Tensor
    half: Tensor
    colour: Tensor
    sq: Tensor
    facing: Tensor
    glass: Tensor
    dark: Tensor


def _draw_vehicle(pen: _Pen, scene: Scene, now: Moment, i: int, mask: Tensor) -> None:
    v = scene.vehicles
    x, y = now.car_x[:, i], v["y"][:, i, None]
    m, c = metre(scene, v["y"])[:, i, None], v["stretch"][:, i, None]
    half, colour = v["length"][:, i, None] / 2 * c * m, v["colour"][:, i, None]
    sq, facing = scene.squash[:, None], v["facing"][:, i, None]
    above, van = v["above"][:, i, None], v["van"][:, i, None]
    side, front, lid = mask & ~above & (c > 0.5), mask & ~above & (c <= 0.5), mask & above
    glass, dark = (
        torch.tensor([0.22, 0.28, 0.33]) + 0.25 * colour.mean(-1, keepdim=True),
        torch.tensor([0.06, 0.06, 0.07]),
    )
    car = _Vehicle(x, y, m, c, half, colour, sq, facing, glass, dark)
    # From the ground up, each part over those before it.
    pen(
        mask & ~above,
        x,
        y - 0.05 * m,
        half * 1.08,
        0.2 * m,
        torch.zeros(3),
        alpha=0.45,
        ellipse=True,
        soft=0.02,
    )
    _draw_side(pen, car, side, van)
    _draw_front(pen, car, front, van)
    _draw_lid(pen, car, lid, v["tilt"][:, i, None].expand_as(mask))


def _draw_side(pen: _Pen, car: _Vehicle, side: Tensor, van: Tensor) -> None:
    """Draw the vehicle from its side: cabin, body, wheels, lamp."""
    x, y, m, c, half, colour, sq, facing, glass, dark = car
    roofless = side & ~van
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


def _draw_front(pen: _Pen, car: _Vehicle, front: Tensor, van: Tensor) -> None:
    """Draw the vehicle from its front."""
    x, y, m, _, half, colour, sq, _, glass, dark = car
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


def _draw_lid(pen: _Pen, car: _Vehicle, lid: Tensor, a: Tensor) -> None:
    """Draw the vehicle from above, turned by the angle a."""
    x, y, m, _, half, colour, sq, _, glass, _ = car
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
    """Draw the empty scenes [B, size, size, 3]."""
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
    """Real backgrounds and people instead of drawn ones (see :mod:`watchbench.footage`)."""

    real_people: Tensor

    def ground(self, drawn: Tensor, frames: int) -> Tensor:
        """Replace some of the backgrounds [B, S, S, 3], for every frame: [B, frames, S, S, 3]."""

    def draw(self, canvas: Tensor, now: Moment) -> None:
        """Paste people into canvas [B, T, S, S, 3]."""


def render(  # noqa: PLR0917
    scene: Scene,
    times: Tensor,
    size: int,
    now: Moment | None = None,
    backdrop: Tensor | None = None,
    pasted: Pasted | None = None,
) -> Tensor:
    """Draw the scenes at ``times`` [T] (or [B, T]), with disturbances: float32 [B, T, size, size, 3]
    in 0..1."""
    now = now or observe(scene, times)
    b, frames = scene.size, now.foot_x.shape[-1]
    back = background(scene, size) if backdrop is None else backdrop
    grounds = back[:, None].expand(-1, frames, -1, -1, -1) if pasted is None else pasted.ground(back, frames)
    canvas = grounds.contiguous().view(b * frames, size, size, 3)
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


def _draw_people(pen: _Pen, scene: Scene, now: Moment, order: Tensor, mask: Tensor, ranks: int) -> None:  # noqa: PLR0917
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
    """Add sensor noise in place: rows cut at random from one pool, since drawing noise costs more than the
    scene.

    Large pictures also get the coarse grain that a camera's own noise filter leaves, which survives
    shrinking.
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
    """Add shadows, light changes, blur, shake, sensor noise and the burnt-in clock to [B, T, H, W, 3]."""
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
    _, t, h, w, _ = frames.shape
    out = frames.clone()
    for i in (amplitude > 0).nonzero()[:, 0].tolist():
        a = float(amplitude[i])
        for k in range(t):
            s = float(seconds[i, k])
            dx, dy = a * math.sin(2.3 * s + i) * w, a * math.sin(3.1 * s + 2 * i) * h
            out[i, k] = torch.roll(frames[i, k], (round(dy), round(dx)), (0, 1))
    return out


def _blur(frames: Tensor, strength: Tensor) -> Tensor:
    """Blend in a small box blur by its strength (a soft lens; in units of a 112 px picture)."""
    _, t, h, w, _ = frames.shape
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
    """A bitmap of digits, 6 rows high, 4 columns a glyph."""
    rows = [[int(c) for glyph in text for c in f"{int(_GLYPHS[glyph][row]):03b}0"] for row in range(6)]
    return torch.tensor(rows, dtype=torch.float32)


def _clock(frames: Tensor, look: dict[str, Tensor], seconds: Tensor) -> Tensor:
    _, t, h, w, _ = frames.shape
    for i in look["clock"].nonzero()[:, 0].tolist():
        height = max(3, round(float(look["clock_size"][i]) * h))
        base = int(look["clock_x"][i] * 1e6)
        for k in range(t):
            now = base % 86400 + float(seconds[i, k])
            date = f"2026-{base % 12 + 1:02d}-{base % 28 + 1:02d}"
            hour, minute = int(now // 3600) % 24, int(now // 60) % 60
            text = f"{date} {hour:02d}:{minute:02d}:{int(now) % 60:02d}"
            bits = functional.interpolate(
                _text(text)[None, None], size=(height, int(height * 76 / 6 * 0.75)), mode="area"
            )[0, 0]
            top = 2 if bool(look["clock_top"][i]) else h - height - 3
            left = int(look["clock_x"][i] * (w - min(w, bits.shape[1])))
            bits = bits[:, : w - left, None]
            area = frames[i, k, top : top + height, left : left + bits.shape[1]]
            area.mul_(1 - 0.9 * bits).add_(0.9 * bits)
    return frames
