"""Maps the coded picture to the model's input (rotation, mirror, crop, scale), for pixels and blocks
alike.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

import numpy as np
import numpy.typing as npt

F32 = npt.NDArray[np.float32]


class Fit(StrEnum):
    """How an upright picture is fitted into a model input of another shape."""

    STRETCH = "stretch"
    COVER = "cover"  # keep the shape and crop the excess, centred
    CONTAIN = "contain"  # keep the shape and pad with black, centred


@dataclass(frozen=True, slots=True)
class Geometry:
    """Maps a coded picture to the model's input: mirror, rotation (clockwise), then scale and crop.

    width, height: of the coded picture; rotation: 0, 90, 180 or 270 degrees clockwise; mirror: whether left
    and right are exchanged before the rotation; place: (x, y, w, h) of the whole upright picture in pixels of
    the model input, where the part outside is cropped, and the rest of the input stays black; out_width,
    out_height: of the model input.
    """

    width: int
    height: int
    rotation: int
    mirror: bool
    place: tuple[int, int, int, int]
    out_width: int
    out_height: int

    def __post_init__(self) -> None:
        if self.rotation not in (0, 90, 180, 270):
            raise ValueError(f"rotation must be 0, 90, 180 or 270 degrees, not {self.rotation}")
        if min(self.width, self.height, self.out_width, self.out_height, *self.place[2:]) < 1:
            raise ValueError(f"sizes must be positive: {self}")

    @classmethod
    def fitted(
        cls,
        size: tuple[int, int],
        out: tuple[int, int],
        fit: Fit = Fit.STRETCH,
        *,
        rotation: int = 0,
        mirror: bool = False,
    ) -> Geometry:
        """Return the geometry for a coded (width, height), a model input (width, height) and a `Fit`."""
        (width, height), (out_width, out_height) = size, out
        w, h = (height, width) if rotation in (90, 270) else (width, height)
        pw, ph = out
        if fit is not Fit.STRETCH:
            choose = max if fit is Fit.COVER else min
            scale = choose(out_width / w, out_height / h)
            pw, ph = max(1, round(w * scale)), max(1, round(h * scale))
        place = ((out_width - pw) // 2, (out_height - ph) // 2, pw, ph)
        return cls(width, height, rotation, mirror, place, out_width, out_height)

    @property
    def upright(self) -> tuple[int, int]:
        """(width, height) of the picture after rotation."""
        return (self.height, self.width) if self.rotation in (90, 270) else (self.width, self.height)

    @property
    def scale(self) -> tuple[float, float]:
        """Model-input pixels per upright pixel, horizontally and vertically."""
        w, h = self.upright
        return self.place[2] / w, self.place[3] / h

    def _matrix(self) -> tuple[tuple[int, int], tuple[int, int]]:
        turn = {0: ((1, 0), (0, 1)), 90: ((0, -1), (1, 0)), 180: ((-1, 0), (0, -1)), 270: ((0, 1), (-1, 0))}
        (a, b), (c, d) = turn[self.rotation]
        return ((-a, b), (-c, d)) if self.mirror else ((a, b), (c, d))

    def points(self, x: npt.ArrayLike, y: npt.ArrayLike) -> tuple[F32, F32]:
        """Return the positions on the model input's plane for positions on the coded picture's plane (pixel
        edges, not centres).
        """
        px, py = np.asarray(x, np.float32), np.asarray(y, np.float32)
        (a, b), (c, d) = self._matrix()
        # A rotated or mirrored axis runs backwards from the far edge of the upright picture.
        w, h = self.upright
        ux = a * px + b * py + (w if a + b < 0 else 0)
        uy = c * px + d * py + (h if c + d < 0 else 0)
        sx, sy = self.scale
        return (
            (ux * sx + self.place[0]).astype(np.float32),
            (uy * sy + self.place[1]).astype(np.float32),
        )

    def vectors(self, dx: npt.ArrayLike, dy: npt.ArrayLike) -> tuple[F32, F32]:
        """Return displacements in model-input pixels for displacements in coded pixels."""
        vx, vy = np.asarray(dx, np.float32), np.asarray(dy, np.float32)
        (a, b), (c, d) = self._matrix()
        sx, sy = self.scale
        return ((a * vx + b * vy) * sx).astype(np.float32), ((c * vx + d * vy) * sy).astype(np.float32)

    def boxes(
        self, x: npt.ArrayLike, y: npt.ArrayLike, w: npt.ArrayLike, h: npt.ArrayLike
    ) -> tuple[F32, F32, F32, F32]:
        """Return (x0, y0, x1, y1) on the model input for boxes of the coded picture; x0 <= x1, y0 <= y1, not
        clipped.
        """
        left, top = np.asarray(x, np.float32), np.asarray(y, np.float32)
        xa, ya = self.points(left, top)
        xb, yb = self.points(left + np.asarray(w, np.float32), top + np.asarray(h, np.float32))
        return np.minimum(xa, xb), np.minimum(ya, yb), np.maximum(xa, xb), np.maximum(ya, yb)
