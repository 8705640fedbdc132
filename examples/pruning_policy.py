"""Prune with a policy of your own, here a region of interest: python examples/pruning_policy.py clip.mp4"""

import sys
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

import lookout
from lookout.pruning import Carry, GroupedPatches, MaskPolicy, Sample, TemporalMask, anchored_masks


@dataclass(frozen=True)
class LowerPart(MaskPolicy):
    """Keeps the lower part of every frame, where the floor is, and all of each block's anchor."""

    share: float = 0.5

    def masks(
        self, samples: Sequence[Sample], grid: GroupedPatches, carry: Carry | None
    ) -> tuple[list[TemporalMask], Carry | None]:
        keep = np.zeros((len(grid.row_taps), len(grid.col_taps)), np.bool_)
        keep[round(len(keep) * (1 - self.share)) :] = True
        return anchored_masks(samples, grid, lambda members: keep), None


def main(path: str) -> None:
    question = "Is anyone lying on the ground?"
    with lookout.Pipeline(questions=[question], policy=LowerPart()) as pipeline:
        for verdict in pipeline.watch(path):
            share = verdict.tokens_kept / verdict.tokens_total
            print(f"{verdict.time:7.1f} s  p(yes) {verdict.p_yes:.2f}  tokens kept {share:.2f}")


if __name__ == "__main__":
    main(sys.argv[1])
