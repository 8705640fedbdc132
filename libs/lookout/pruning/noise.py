"""Learns a camera's noise: how much its picture differs between samples where nothing happens.

The threshold of the luma comparison follows it: low where the picture is clean, so that slow movement of low
contrast counts; high where sensor noise or a poor encoder would keep patches that show nothing new.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

F32 = npt.NDArray[np.float32]

#: share of the patches that are assumed to be still: noise is measured on the least changed quarter
STILL_SHARE: Final = 0.25
#: how fast the estimate falls and rises: share of the difference per frame
FALL, RISE = 0.5, 0.1


@dataclass(frozen=True, slots=True)
class NoiseThreshold:
    """Grey levels by which a patch must differ, from the camera's noise: offset + scale * noise, within
    [least, limit]. The values were measured, see docs/pruning.md."""

    scale: float = 2.0
    offset: float = 2.0
    least: float = 3.0
    limit: float = 6.0

    def __call__(self, noise: float) -> float:
        """Return the threshold for a noise, both in grey levels."""
        return float(np.clip(self.offset + self.scale * noise, self.least, self.limit))


def noise_of(difference: F32) -> float:
    """Return the noise of one frame, in grey levels.

    Args:
        difference: `patch_difference` to the sample before, float32 [rows, cols].

    Returns:
        The quantile `STILL_SHARE` over the patches, which ignores movement in less than three quarters of the
        picture.
    """
    return float(np.quantile(difference, STILL_SHARE))


def learnt(before: float | None, now: float) -> float:
    """Update the estimate with one more frame. It falls quickly and rises slowly, so that a person who
    fills the picture for a moment does not count as noise. It is rounded to float16, as a checkpoint keeps
    it."""
    if before is None:
        return float(np.float16(now))
    return float(np.float16(before + (now - before) * (FALL if now < before else RISE)))
