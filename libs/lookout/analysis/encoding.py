"""Sampled frames to the language model's tokens, all patches or only those that changed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from lookout.analysis.settings import AnalysisSettings
from lookout.files import FileFrame
from lookout.motion import Basis
from lookout.pruning import Carry, PrunePolicy, Sample
from lookout.streams import StrideFrame, encode_strides
from lookout.vision import Tower
from lookout.windows import EncodedFrame


@dataclass(frozen=True, slots=True, eq=False)
class Encoded:
    """Encoded frames, what the next stride must know, and the tower's FLOPs."""

    frames: list[EncodedFrame]
    carry: Carry | None
    flops: int


def encode(
    tower: Tower, frames: Sequence[FileFrame], settings: AnalysisSettings, carry: Carry | None
) -> Encoded:
    """Sampled frames as the language model's tokens, stride by stride; see `AnalysisSettings.prune`."""
    members = [
        StrideFrame(
            Sample(each.pixels, Basis.LUMA, intra=each.picture.intra, corrupt=each.corrupt),
            each.time_us,
            each.slot,
        )
        for each in frames
    ]
    size = settings.stride_frames
    strides = [members[begin : begin + size] for begin in range(0, len(members), size)]
    policy, step_us = PrunePolicy(everything=not settings.prune), max(1, round(1e6 / settings.fps))
    found = encode_strides(strides, tower, policy, step_us, carry)
    encoded = [frame for stride in found.strides for frame in stride]
    return Encoded(encoded, found.carry, tower.flops(found.inputs))
