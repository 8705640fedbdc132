"""Learns a camera's noise: how much its picture differs between samples where nothing happens.

The threshold of the luma comparison follows this noise. It is low if the picture is clean, so that slow
movement of low contrast counts; it is high if sensor noise or a poor encoder would otherwise keep patches
that show nothing new.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

F32 = npt.NDArray[np.float32]

#: share of the patches that is assumed to be still: noise is measured on the least changed quarter
STILL_SHARE: Final = 0.25
#: how fast the estimate falls and rises, as a share of the difference per frame
FALL, RISE = 0.5, 0.1


@dataclass(frozen=True, slots=True)
class NoiseThreshold:
    """Grey levels by which a patch must differ, derived from the camera's noise: offset + scale * noise,
    limited to [least, limit]. The values were measured, see docs/pruning.md."""

    scale: float = 2.0
    offset: float = 2.0
    least: float = 3.0
    limit: float = 6.0

    def __call__(self, noise: float) -> float:
        """Return the threshold for a given noise, both in grey levels."""
        return float(np.clip(self.offset + self.scale * noise, self.least, self.limit))


def noise_of(difference: F32) -> float:
    """Return the noise of one frame, in grey levels.

    Args:
        difference: `patch_difference` to the previous sample, float32 [rows, cols].

    Returns:
        The quantile `STILL_SHARE` over the patches, which ignores movement in less than three quarters of the
        picture.
    """
    return float(np.quantile(difference, STILL_SHARE))


def learnt(before: float | None, now: float) -> float:
    """Return the estimate updated with one more frame. It falls quickly and rises slowly, so that a person
    who fills the picture for a moment does not count as noise. It is rounded to float16, because checkpoints
    keep it in that format."""
    if before is None:
        return float(np.float16(now))
    return float(np.float16(before + (now - before) * (FALL if now < before else RISE)))
