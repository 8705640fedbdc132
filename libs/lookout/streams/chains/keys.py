"""Finds the chain of every window of an epoch, from the available records only."""

from __future__ import annotations

from lookout.models.windows import Planner
from lookout.streams.chains.epochs import EpochRecords
from lookout.streams.chains.replay import chain_verdict, computed_verdict, is_repeated


def chain_keys(epoch: EpochRecords, planner: Planner) -> dict[int, int]:
    """Return the key window of each window's chain.

    Two readers that both have the records of a chain find the same key window, whatever other records they
    have. So chains can be distributed over workers.

    A computed verdict states its key window. A repeated answer belongs to the chain of the previous answer,
    and a window without a record to the chain of the previous window. A window without an answer is a chain
    by itself. If no watch asked, or strides were asked alone, the stream's key strides decide.

    Args:
        epoch: The epoch's records.
        planner: Determines the key strides of a stream.
    """
    keys: dict[int, int] = {}
    before: int | None = None  # the key window of the previous window
    for index in sorted(epoch.blocks.keys() | epoch.verdicts.keys()):
        verdicts = epoch.verdicts.get(index, ())
        computed = chain_verdict(verdicts)
        if computed is not None:
            before = index - computed.since_key
        elif index not in epoch.blocks or is_repeated(epoch, index):
            before = -1 if before is None else before  # the chain began before the records that were read
        elif verdicts and computed_verdict(verdicts) is None:
            keys[index] = index
            continue
        else:
            before = max(_key_stride(epoch.stream, index, planner), -1 if before is None else before)
        keys[index] = before
    return keys


def _key_stride(stream: str, index: int, planner: Planner) -> int:
    """Return a stream's newest key stride up to a window; 0 if there is none."""
    return next((number for number in range(index, 0, -1) if planner.is_key(stream, number)), 0)
