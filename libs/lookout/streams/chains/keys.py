"""Finds the key window of every window's chain, from the epoch's available records."""

from __future__ import annotations

from lookout.models.windows import Planner
from lookout.streams.chains.epochs import EpochRecords
from lookout.streams.chains.replay import chain_verdict, computed_verdict, is_repeated


def chain_keys(epoch: EpochRecords, planner: Planner) -> dict[int, int]:
    """Return the index of the key window of each window's chain, by window. -1: the key window is older than
    the records that were read.

    Two readers that both have the records of a chain find the same key window, whatever other records they
    have. Therefore, chains can be distributed over workers.

    A computed verdict states its key window. A repeated answer belongs to the chain of the previous answer. A
    window without a block record belongs to the chain of the previous window. A window that was asked but has
    no answer is a chain by itself. If no watch asked, or only strides were asked, the planner's key strides
    of the stream decide.

    Args:
        epoch: The epoch's records.
        planner: Determines the key strides of a stream.
    """
    keys: dict[int, int] = {}
    newest_key: int | None = None  # the key window of the previous window's chain; None: no window yet
    for index in sorted(epoch.blocks.keys() | epoch.verdicts.keys()):
        verdicts = epoch.verdicts.get(index, ())
        computed = chain_verdict(verdicts)
        if computed is not None:
            newest_key = index - computed.since_key
        elif index not in epoch.blocks or is_repeated(epoch, index):
            newest_key = -1 if newest_key is None else newest_key
        elif verdicts and computed_verdict(verdicts) is None:
            keys[index] = index
            continue
        else:
            newest_key = max(
                _key_stride(epoch.stream, index, planner), -1 if newest_key is None else newest_key
            )
        keys[index] = newest_key
    return keys


def _key_stride(stream: str, index: int, planner: Planner) -> int:
    """Return the stream's newest key stride at or before a window; 0 if there is none."""
    return next((number for number in range(index, 0, -1) if planner.is_key(stream, number)), 0)
