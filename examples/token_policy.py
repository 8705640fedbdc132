"""Drop tokens after the vision tower with a policy of your own: python examples/token_policy.py clip.mp4"""

import sys
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

import lookout
from lookout.pruning import (
    Carry,
    EncodedGroups,
    GroupedPatches,
    Mask,
    Sample,
    TemporalMask,
    TokenPolicy,
    policy_of,
)


@dataclass(frozen=True)
class LongTokens(TokenPolicy):
    """Encodes what the default policy does, then keeps the longest token vectors of every frame."""

    share: float = 0.5

    def masks(
        self, samples: Sequence[Sample], grid: GroupedPatches, carry: Carry | None
    ) -> tuple[list[TemporalMask], Carry | None]:
        return policy_of("default").masks(samples, grid, carry)

    def tokens(self, frames: Sequence[EncodedGroups]) -> list[Mask]:
        return [frame.keep if frame.anchor else self._longest(frame) for frame in frames]

    def _longest(self, frame: EncodedGroups) -> Mask:
        lengths = np.linalg.norm(frame.tokens, axis=1)
        order = np.argsort(-lengths, kind="stable")
        keep = frame.keep.copy()
        keep.flat[np.flatnonzero(keep)[order[round(self.share * len(order)) :]]] = False
        return keep


def main(path: str) -> None:
    question = "Is anyone lying on the ground?"
    with lookout.Pipeline(questions=[question], policy=LongTokens()) as pipeline:
        for verdict in pipeline.watch(path):
            share = verdict.tokens_kept / verdict.tokens_total
            print(f"{verdict.time:7.1f} s  p(yes) {verdict.p_yes:.2f}  tokens kept {share:.2f}")


if __name__ == "__main__":
    main(sys.argv[1])
