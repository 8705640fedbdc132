"""Idle gating: while nothing changes, windows repeat the last answers instead of being computed."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Self

import numpy as np

from lookout.models.windows import BlockChange, IdleState
from lookout.streams.chains.verdicts import WindowTime, repeated_verdict
from lookout.v1 import tokens_pb2, verdicts_pb2
from lookout.v1.watches_pb2 import Watch

Verdict = verdicts_pb2.Verdict


def change_of(block: tokens_pb2.StrideBlock, samples: int) -> BlockChange:
    """Return what changed in a block of `samples` samples."""
    intact = len(block.frames) == samples and not any(frame.corrupt for frame in block.frames)
    moved = any(patch.kept for patch in block.patches if not patch.anchor)
    return BlockChange(block.index, intact and not moved, np.frombuffer(block.anchor_luma, np.uint8))


@dataclass(frozen=True, slots=True, eq=False)
class Answered:
    """The last answered window, and the idle state since its first block."""

    end_us: int
    idle: IdleState
    verdicts: Mapping[tuple[str, int], Verdict]

    @classmethod
    def of(
        cls,
        blocks: Sequence[tokens_pb2.StrideBlock],
        verdicts: Sequence[Verdict],
        samples: int,
        tolerance: int,
    ) -> Self | None:
        """Build this from a window that was just answered; None if something changed within the window or a
        verdict is incomplete.
        """
        idle = IdleState.of([change_of(block, samples) for block in blocks], tolerance)
        if idle is None or any(verdict.degraded or verdict.reason for verdict in verdicts):
            return None
        verdicts_by_watch = {(verdict.watch, verdict.watch_version): verdict for verdict in verdicts}
        # Verdicts hold float seconds; ages are compared in whole microseconds.
        return cls(round(verdicts[0].stream_end_s * 1e6), idle, verdicts_by_watch)

    def after(self, block: tokens_pb2.StrideBlock, samples: int) -> Self | None:
        """Return the state after one more block; None if that block ends the idle state."""
        idle = self.idle.after(change_of(block, samples))
        return None if idle is None else replace(self, idle=idle)

    def again(
        self, span: WindowTime, watches: Sequence[Watch], newest: tokens_pb2.StrideBlock, age_s: float
    ) -> list[Verdict] | None:
        """Return the last answers as verdicts of another window; None if one is missing or they are older
        than `age_s`.
        """
        if span.end_us - self.end_us > age_s * 1_000_000:
            return None
        newest_verdicts = [self.verdicts.get((watch.id, watch.version)) for watch in watches]
        pairs = [
            (watch, verdict)
            for watch, verdict in zip(watches, newest_verdicts, strict=True)
            if verdict is not None
        ]
        if len(pairs) < len(watches):
            return None
        return [repeated_verdict(span, watch, verdict, newest) for watch, verdict in pairs]
