"""Backgrounds that are invented or real, and real people cut from footage, mixed into training scenes.

What is real is mixed in only if footage is available. Clips used for scoring (:data:`watchbench.sight.CLIPS`)
are never opened here.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from watchbench import clutter
from watchbench.scenes import Dice, Moment, Scene

# Clips of the training side. People are cut by their difference to the empty scene.
PEOPLE_CLIPS = {
    "fixed/intel_one_by_one_person.mp4": 0.04
}  # the share of the clip, from its start, that is empty
BACKDROP_CLIPS = (
    *PEOPLE_CLIPS,
    "fixed/axis_cable_hevc.mp4",
    "fixed/axis_fisheye_static_h264.mp4",
    "fixed/zamba_ir_tree_1fps.avi",
    "fixed/zamba_ir_exposure_1fps.avi",
    "fixed/zamba_baboons_1fps.avi",
)
# Moving cameras: each picture is a separate backdrop, taken after the part of the clip (a share) that shows
# vehicles.
MOVING_CLIPS = {
    "moving/openh264_flower_handheld_720p.264": 0.0,
    "moving/androidx_rooftop_320x240_60fps.mp4": 0.45,
}
SPRITE = 96


@dataclass(frozen=True, slots=True)
class Footage:
    """``backdrops``: float [n, 3, 160, 160]; ``people``: for each person a sequence of sprites [4, 96, w],
    RGB and alpha in 0..1."""

    backdrops: Tensor
    people: tuple[tuple[Tensor, ...], ...]


def folder() -> Path | None:
    """The folder of footage: ``LOOKOUT_FOOTAGE``, else ``../shared/video`` next to the project, else None."""
    named = os.environ.get("LOOKOUT_FOOTAGE")
    path = Path(named) if named else Path(__file__).parents[3] / "shared" / "video"
    return path if path.is_dir() else None


def load(where: Path) -> Footage | None:
    """Cut backdrops and people from the training clips of the footage; None if there are none."""
    people: list[tuple[Tensor, ...]] = []
    backdrops: list[Tensor] = []
    for name in BACKDROP_CLIPS:
        path = where / name
        if not path.is_file():
            continue
        pictures = _pictures(path, 160 if name in PEOPLE_CLIPS else 12)
        if len(pictures) < 3:
            continue
        start = max(1, round(PEOPLE_CLIPS.get(name, 1.0) * len(pictures)))
        empty = np.median(pictures[:start], axis=0).astype(np.uint8)
        backdrops.append(_shrink(empty, 160))
        if name in PEOPLE_CLIPS:
            people += _cut(pictures, empty)
    for name, begin in MOVING_CLIPS.items():
        if (where / name).is_file():
            pictures = _pictures(where / name, 12)
            backdrops += [_shrink(picture, 160) for picture in pictures[round(begin * len(pictures)) :]]
    if not backdrops:
        return None
    return Footage(torch.stack(backdrops), tuple(people))


def _pictures(path: Path, count: int) -> NDArray[np.uint8]:
    """About ``count`` evenly spread pictures of a clip, uint8 [n, 270, 480, 3]."""
    import av

    with av.open(str(path)) as container:
        stream = container.streams.video[0]
        stream.thread_type = "SLICE"
        frames = stream.frames or 300
        step = max(1, frames // count)
        kept = [
            frame.reformat(480, 270, format="rgb24").to_ndarray()
            for i, frame in enumerate(container.decode(stream))
            if i % step == 0
        ]
    return np.stack(kept[: 2 * count])


def _shrink(picture: NDArray[np.uint8], size: int) -> Tensor:
    image = torch.from_numpy(picture.copy()).permute(2, 0, 1)[None].float() / 255
    return functional.interpolate(image, (size, size), mode="bilinear", antialias=True)[0]


def _cut(pictures: NDArray[np.uint8], empty: NDArray[np.uint8]) -> list[tuple[Tensor, ...]]:
    """Cut people from pictures: one sequence per unbroken appearance of the largest foreground."""
    from scipy import ndimage

    runs: list[list[Tensor]] = [[]]
    for picture in pictures:
        away = np.abs(picture.astype(np.int16) - empty).max(2) > 34
        mask = ndimage.binary_closing(ndimage.binary_opening(away, iterations=1), iterations=4)
        mask = ndimage.binary_fill_holes(mask)
        regions, count = ndimage.label(mask)
        sprite = None
        if count:
            sizes = np.bincount(regions.ravel())[1:]
            best = int(sizes.argmax())
            rows, cols = ndimage.find_objects(regions)[best]
            height, width = rows.stop - rows.start, cols.stop - cols.start
            whole = height > 90 and 0.15 < width / height < 0.75 and cols.start > 2 and cols.stop < 478
            if whole and sizes[best] > 0.35 * height * width:
                soft = ndimage.gaussian_filter((regions[rows, cols] == best + 1).astype(np.float32), 0.8)
                rgb = torch.from_numpy(picture[rows, cols].copy()).permute(2, 0, 1).float() / 255
                rgba = torch.cat([rgb, torch.from_numpy(soft)[None]])[None]
                shape = (SPRITE, max(8, round(SPRITE * width / height)))
                sprite = functional.interpolate(rgba, shape, mode="bilinear", antialias=True)[0]
        if sprite is not None:
            runs[-1].append(sprite)
        elif runs[-1]:
            runs.append([])
    return [tuple(run[2:-2]) for run in runs if len(run) >= 8]


@lru_cache(maxsize=1)
def _invented() -> Tensor:
    return clutter.pictures(256)


class Composite:
    """Replaces parts of a batch: some scenes get invented or real backgrounds, some get people cut from
    footage.

    A few of the replaced backgrounds are seen by a camera that pans.
    """

    def __init__(
        self, footage: Footage | None, scene: Scene, share: float = 0.3, invented: float = 0.2
    ) -> None:
        d = Dice(scene.seed ^ 0xF007)
        self.scene, self.dice = scene, d
        self.people = footage.people if footage else ()
        self.pictures = (footage.backdrops if footage else None, _invented())
        draw = d(scene.size)
        self.source = torch.full((scene.size,), -1)
        self.source[draw < invented + share] = 0 if footage else -1
        self.source[draw < invented] = 1
        self.real_people = d.chance(share, scene.size) & torch.tensor(bool(self.people))
        shape = scene.people["x"].shape
        self.which = d.whole(0, max(1, len(self.people)), *shape)
        self.first = d.whole(0, 1000, *shape)
        self.flip = d.chance(0.5, *shape)
        self.tint = d(*shape, 3, low=0.6, high=1.3) * d(*shape, 1, low=0.7, high=1.2)
        self.lift = d(*shape, 1, low=0.0, high=0.35)

    def ground(self, drawn: Tensor, frames: int) -> Tensor:
        """Replace some of the backgrounds [B, S, S, 3], for every frame: [B, frames, S, S, 3]."""
        out = drawn[:, None].expand(-1, frames, -1, -1, -1).contiguous()
        for i in (self.source >= 0).nonzero()[:, 0].tolist():
            out[i] = self._backdrop(int(self.source[i]), drawn.shape[1], frames)
        return out

    def _backdrop(self, source: int, size: int, frames: int) -> Tensor:
        """A crop of one picture [frames, S, S, 3]; one crop in four drifts over the picture."""
        d, stock = self.dice, self.pictures[source]
        assert stock is not None
        picture = stock[int(d.whole(0, len(stock), 1))]
        if d.chance(0.5, 1):
            picture = picture.flip(2)
        picture = (picture * d(3, 1, 1, low=0.75, high=1.2)).clamp(0, 1)
        pans = bool(d.chance(0.25, 1)) and frames > 1
        side = int(d.whole(70, 120 if pans else picture.shape[1] + 1, 1))
        free = picture.shape[1] - side
        begin, end = d.whole(0, free + 1, 2), d.whole(0, free + 1, 2)
        stops = torch.linspace(0, 1, frames if pans else 1)[:, None] * (end - begin) + begin
        crops = torch.stack(
            [picture[:, y : y + side, x : x + side] for y, x in stops.round().long().tolist()]
        )
        image = functional.interpolate(crops, (size, size), mode="bilinear", antialias=side > size)
        return image.permute(0, 2, 3, 1).expand(frames, -1, -1, -1)

    def draw(self, canvas: Tensor, now: Moment) -> None:
        """Paste people into canvas [B, T, S, S, 3], in place, the far ones first."""
        share, box = now.truth.person_share, now.truth.person_box
        lying = now.drop.transpose(1, 2) > 0.5
        for i in self.real_people.nonzero()[:, 0].tolist():
            order = self.scene.people["y"][i].argsort().tolist()
            for k in range(canvas.shape[1]):
                for who in order:
                    if share[i, k, who] > 0:
                        self._paste(canvas[i, k], i, k, who, box[i, k, who], bool(lying[i, k, who]))

    def _paste(self, picture: Tensor, i: int, k: int, who: int, box: Tensor, lying: bool) -> None:  # noqa: PLR0917
        run = self.people[int(self.which[i, who])]
        sprite = run[(int(self.first[i, who]) + k) % len(run)]
        size = picture.shape[0]
        x0, y0, x1, y1 = (round(float(v) * size) for v in box)
        height, width = y1 - y0, x1 - x0
        if height < 4 or width < 4:
            return
        if lying:
            sprite = torch.rot90(sprite, 1, (1, 2))
            sprite = sprite.flip(2) if float(self.scene.people["lean"][i, who]) < 1.57 else sprite
            sprite = sprite.flip(1) if bool(self.flip[i, who]) else sprite
        else:
            width = max(4, round(height * sprite.shape[2] / sprite.shape[1] * float(self.scene.squash[i])))
            x0 = round((x0 + x1) / 2 - width / 2)
            sprite = sprite.flip(2) if bool(self.flip[i, who]) else sprite
        small = functional.interpolate(sprite[None], (height, width), mode="bilinear", antialias=True)[0]
        top, left = max(0, y0), max(0, x0)
        part = small[:, top - y0 : max(0, size - y0), left - x0 : max(0, size - x0)]
        if part.shape[1] == 0 or part.shape[2] == 0:
            return
        colour = (part[:3].permute(1, 2, 0) * self.tint[i, who] + self.lift[i, who]).clamp(0, 1)
        alpha = part[3, :, :, None]
        area = picture[top : top + part.shape[1], left : left + part.shape[2]]
        area.mul_(1 - alpha).add_(colour * alpha)
