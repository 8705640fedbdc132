"""Replays one epoch of a camera from its records, with any questions."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from dataclasses import dataclass

from lookout.models.engines import Engine
from lookout.models.windows import Planner, StrideBlock
from lookout.runtime.store import LineageBrokenError
from lookout.streams import (
    STRIDES,
    BlockGoneError,
    ChainWindow,
    ReplayedWindow,
    StreamBlock,
    WindowRule,
    replay_chain,
)
from lookout.streams.chains.blocks import block_facts, empty_block, foreign_reason
from lookout.streams.chains.epochs import EpochRecords
from lookout.v1.lineage_pb2 import Sampling
from lookout.v1.tokens_pb2 import TokensRecord
from lookout.v1.verdicts_pb2 import Verdict

#: returns a record's block with its tokens, fetched or recomputed; raises LineageBrokenError if they are gone
LoadTokens = Callable[[TokensRecord], StrideBlock]


@dataclass(frozen=True, slots=True)
class BlockSource:
    """The blocks of one epoch, from its records.

    Attributes:
        records: The records of the blocks, by index.
        load: Returns a record's block with its tokens.
        samples: Grid points of a block.
        model_digest: Digest of the engine's model; a block of another model counts as a block without frames.
        sampling: Sampling of the windows; a block with another sampling counts as a block without frames.
            None: do not compare the sampling.
    """

    records: Mapping[int, TokensRecord]
    load: LoadTokens
    samples: int
    model_digest: str
    sampling: Sampling | None = None

    def __call__(self, index: int) -> StreamBlock:
        """Return the block with an index.

        Raises:
            BlockGoneError: The block has no record, or its tokens cannot be recomputed.
        """
        record = self.records.get(index)
        if record is None:
            raise BlockGoneError(f"block {index} is no longer in tokens.v1")
        foreign = foreign_reason(record, self.model_digest, self.sampling)
        facts = block_facts(record, self.samples, foreign=foreign)
        if foreign is not None:
            return StreamBlock(empty_block(record), facts)
        try:
            return StreamBlock(self.load(record), facts)
        except LineageBrokenError as error:
            raise BlockGoneError(str(error)) from error


def computed_verdict(verdicts: Sequence[Verdict]) -> Verdict | None:
    """Return the first verdict that the engine computed, that is, an answer that is not a repeated one; None
    if there is none."""
    answered = Verdict.OUTCOME_ANSWERED
    return next(
        (verdict for verdict in verdicts if verdict.outcome == answered and verdict.basis != "idle"), None
    )


def chain_verdict(verdicts: Sequence[Verdict]) -> Verdict | None:
    """Return the first verdict that was computed in a chain of windows, not from strides alone; None if there
    is none."""
    return computed_verdict([verdict for verdict in verdicts if verdict.basis != STRIDES])


def is_repeated(epoch: EpochRecords, index: int) -> bool:
    """Whether the fleet repeated the answers of a window, because nothing had changed."""
    verdicts = epoch.verdicts.get(index, ())
    return computed_verdict(verdicts) is None and any(verdict.basis == "idle" for verdict in verdicts)


def chain_windows(epoch: EpochRecords) -> list[ChainWindow]:
    """Return the windows of an epoch, without questions. They are computed as they were originally if their
    verdicts say how.

    The planner decides about windows that no watch asked, because they have no verdict, and about windows of
    which only strides were asked.
    """
    windows = []
    for index in sorted(epoch.blocks.keys() | epoch.verdicts.keys()):
        verdict = computed_verdict(epoch.verdicts.get(index, ()))
        record = epoch.blocks.get(index)
        first = None
        if verdict is not None and record is not None:
            length_us = record.block.end_us - record.block.start_us
            first = round(verdict.stream_start_s * 1e6 / length_us)
        chained = chain_verdict(epoch.verdicts.get(index, ()))
        since = None if chained is None else chained.since_key
        windows.append(ChainWindow(index, first=first, since_key=since))
    return windows


def replay_epoch(
    epoch: EpochRecords,
    windows: Sequence[ChainWindow],
    engine: Engine,
    planner: Planner,
    load: LoadTokens,
    *,
    model_digest: str,
    sampling: Sampling | None = None,
    rule: WindowRule | None = None,
    left_out: Container[int] = (),
) -> Iterator[ReplayedWindow]:
    """Replay windows of one epoch of one camera.

    Verification, back-tests and the rebuilding of a memory use this with different windows and questions.

    Args:
        epoch: The epoch's records.
        windows: All or some of `chain_windows(epoch)`, in ascending order, with questions.
        engine: Computes the windows; the epoch's KV is freed at the end.
        planner: Plans windows with the fleet's settings.
        load: Returns a record's block with its tokens, fetched or recomputed.
        model_digest: Digest of the engine's model.
        sampling: Sampling of the windows; None: do not compare it.
        rule: Decides which windows are asked; None: all are.
        left_out: As for `replay_chain`: indices of windows to skip.

    Yields:
        The outcome of every window that is not skipped. The engine keeps the window's KV until the next
            outcome is requested.

    Raises:
        DeviceError: The device failed permanently.
    """
    source = BlockSource(epoch.blocks, load, planner.settings.samples, model_digest, sampling)
    yield from replay_chain(engine, planner, source, windows, rule=rule, left_out=left_out)
