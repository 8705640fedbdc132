"""Applies rotary embeddings. The engines keep keys un-rotated and rotate them only when they place them in a
window."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

Angles = tuple[torch.Tensor, torch.Tensor]

WIDENED = 512
"""Number of rows that are converted at a time on a CPU, so that they fit in its cache."""


@dataclass(frozen=True, slots=True, eq=False)
class Rotary:
    """A model's rotation: `inv_freq` float64 [head_dim / 2], the position axis of each frequency, and the
    scaling of cosine and sine (YaRN's attention factor; otherwise 1).

    K_placed = R(p) K, which equals CodecSight's Eq. 5 without its chain of rotations.
    """

    inv_freq: torch.Tensor
    axis: torch.Tensor
    scaling: float = 1.0

    @classmethod
    def of(
        cls,
        inv_freq: torch.Tensor,
        sections: Sequence[int] | None = None,
        interleaved: bool = False,
        scaling: float = 1.0,
    ) -> Rotary:
        """Build the rotation from the model's `inv_freq`. `sections` are M-RoPE's (t, h, w) counts:
        chunked in Qwen2.5-VL (i < s0 is t, then h, then w), interleaved in Qwen3-VL (i % 3 = 1 is h below 3
        s1, 2 is w below 3 s2, else t)."""
        half = inv_freq.shape[0]
        axis = torch.zeros(half, dtype=torch.long)
        if sections is not None and interleaved:
            axis[1 : sections[1] * 3 : 3] = 1
            axis[2 : sections[2] * 3 : 3] = 2
        elif sections is not None:
            axis = torch.repeat_interleave(torch.arange(len(sections)), torch.tensor(sections)) % 3
        if axis.shape[0] != half:
            raise ValueError(f"M-RoPE sections {list(sections or ())} do not cover {half} frequencies")
        device = inv_freq.device
        return cls(inv_freq.double(), axis.to(device), scaling)

    def angles(self, positions: torch.Tensor, dtype: torch.dtype = torch.float32) -> Angles:
        """Return cosine and sine [rows, head_dim / 2] of int64 positions [axes, rows], for keys of `dtype`;
        at least in float32, computed from float64 angles."""
        # float64, because a long recording's positions times a frequency need more digits than float32 has.
        places = positions.double() if positions.shape[0] == 1 else positions.double()[self.axis]
        angle = places.T * self.inv_freq
        wide = torch.promote_types(dtype, torch.float32)
        return (angle.cos() * self.scaling).to(wide), (angle.sin() * self.scaling).to(wide)

    @staticmethod
    def rotate(x: torch.Tensor, angles: Angles, out: torch.Tensor | None = None) -> torch.Tensor:
        """Rotate x [..., rows, head_dim] (`rotate_half` convention) in the angles' dtype.

        Args:
            x: Queries or keys.
            angles: Cosine and sine [rows, head_dim / 2].
            out: Where to write the result, of x's shape and dtype and not overlapping x; None: a new tensor.

        Returns:
            `out`.
        """
        cos, sin = angles
        if out is None:
            out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
        if out.dtype == cos.dtype:
            # In place and without copies: this takes a third of the time.
            left, right = x.chunk(2, dim=-1)
            first, second = out.chunk(2, dim=-1)
            torch.mul(left, cos, out=first).addcmul_(right, sin, value=-1)
            torch.mul(right, cos, out=second).addcmul_(left, sin)
            return out
        rows = WIDENED if x.device.type == "cpu" else max(1, x.shape[-2])
        for start in range(0, x.shape[-2], rows):
            part = slice(start, start + rows)
            wide = x[..., part, :].to(cos.dtype, memory_format=torch.contiguous_format)
            left, right = wide.chunk(2, dim=-1)
            first, second = out[..., part, :].chunk(2, dim=-1)
            first.copy_(torch.addcmul(left * cos[part], right, sin[part], value=-1))
            second.copy_(torch.addcmul(right * cos[part], left, sin[part]))
        return out
