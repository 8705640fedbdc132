"""Loads a window's blocks with their tokens. Each block is fetched once; one deadline applies to the whole
window.
"""

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import structlog

from lookout.errors import TransientError
from lookout.models.windows import StrideBlock
from lookout.runtime.store import LineageBrokenError, StoreError, TensorClient, WaitBudget
from lookout.streams import BlockFacts, NoAnswer
from lookout.streams.chains import block_facts, empty_block, load_block, stream_name
from lookout.v1.tokens_pb2 import TokensRecord

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class WindowRecord:
    """One record of the open window.

    Attributes:
        offset: The record's offset in `tokens.v1`.
        record: The record of the block.
        lost: Whether the block's tokens are permanently lost or from another model.
        degraded: Whether some of the block's tokens were recomputed or are lost.
        foreign: Why the block may not be part of a window; None: it may.
    """

    offset: int
    record: TokensRecord
    lost: bool = False
    degraded: bool = False
    foreign: NoAnswer | None = None

    def facts(self, samples: int) -> BlockFacts:
        """Return the facts about this block that decide whether its window is asked; `samples` is the number
        of grid points per block.
        """
        return block_facts(self.record, samples, foreign=self.foreign, lost=self.lost)


@dataclass(frozen=True, slots=True)
class LoadedWindow:
    """The tokens of a window.

    Attributes:
        records: The window's records, oldest first; records without tokens are marked as lost.
        blocks: Each record's block; a lost block has no frames.
        newest_lost: Why the newest block has no tokens; empty: it has them.
    """

    records: tuple[WindowRecord, ...]
    blocks: tuple[StrideBlock, ...]
    newest_lost: str = ""


class BlockCache:
    """Caches loaded blocks of all cameras up to a number of bytes, evicting the least recently used first.
    Thread-safe.
    """

    def __init__(self, budget_bytes: int) -> None:
        self._budget = budget_bytes
        self._lock = threading.Lock()
        self._blocks: OrderedDict[tuple[str, int, str], StrideBlock] = OrderedDict()
        self.bytes = 0

    def get(self, record: TokensRecord) -> StrideBlock | None:
        """Return a record's block; None if it is not cached."""
        with self._lock:
            block = self._blocks.get(_key(record))
            if block is not None:
                self._blocks.move_to_end(_key(record))
            return block

    def put(self, record: TokensRecord, block: StrideBlock) -> None:
        """Add a block."""
        with self._lock:
            self._remove(_key(record))
            self._blocks[_key(record)] = block
            self.bytes += _size(block)
            while self.bytes > self._budget:
                self._remove(next(iter(self._blocks)))

    def leave(self, stream: str, before: int | None = None) -> None:
        """Drop a stream's blocks; with `before`, only blocks below that index."""
        with self._lock:
            for key in [key for key in self._blocks if key[0] == stream]:
                if before is None or key[1] < before:
                    self._remove(key)

    def forget_camera(self, camera: str) -> int:
        """Drop all blocks of a camera; return the number of its streams that had any."""
        with self._lock:
            streams = {key[0] for key in self._blocks if camera_of(key[0]) == camera}
        for stream in streams:
            self.leave(stream)
        return len(streams)

    def _remove(self, key: tuple[str, int, str]) -> None:
        block = self._blocks.pop(key, None)
        if block is not None:
            self.bytes -= _size(block)


class BlockLoader:
    """Loads the blocks of windows through a cache.

    Args:
        client: Fetches tokens.
        cache: The cache of loaded blocks.
        step_us: Microseconds of stream time between two samples.
        give_up_s: Seconds after which unavailable tokens count as lost.
        clock: Monotonic seconds.
    """

    def __init__(
        self,
        client: TensorClient,
        cache: BlockCache,
        step_us: int,
        give_up_s: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._client, self._cache, self._step_us = client, cache, step_us
        self._waits = WaitBudget(give_up_s, clock)

    def load(self, window: Sequence[WindowRecord]) -> LoadedWindow:
        """Load the blocks of a window's records.

        Raises:
            TransientError: Tokens are not available now, and the window's deadline has not passed.
        """
        newest = window[-1].record
        key = (stream_name(newest), newest.block.index)
        records: list[WindowRecord] = []
        blocks: list[StrideBlock] = []
        reason = ""
        for member in window:
            why = ""
            if not member.lost:
                try:
                    block, degraded = self._block(member)
                    records.append(replace(member, degraded=member.degraded or degraded))
                    blocks.append(block)
                    continue
                except LineageBrokenError as error:
                    why = str(error)
                except StoreError as error:
                    if not (over := self._waits.over(newest.camera, key, error)):
                        raise TransientError(str(error)) from error
                    why = f"tokens {over}"
                index = member.record.block.index
                _log.warning("a block's tokens are lost", stream=key[0], block=index, why=why)
            reason = why or reason
            records.append(member if member.lost else replace(member, lost=True, degraded=True))
            blocks.append(empty_block(member.record))
        self._waits.done(newest.camera)
        return LoadedWindow(tuple(records), tuple(blocks), reason if records[-1].lost else "")

    def leave(self, stream: str, before: int | None = None) -> None:
        """Drop a stream's blocks; with `before`, only blocks below that index."""
        self._cache.leave(stream, before)

    def _block(self, member: WindowRecord) -> tuple[StrideBlock, bool]:
        """Return a block with its tokens, and whether some of the tokens were recomputed."""
        cached = self._cache.get(member.record)
        if cached is not None:
            return cached, False
        loaded = load_block(member.record, self._client, self._step_us)
        self._cache.put(member.record, loaded.block)
        return loaded.block, loaded.degraded


def camera_of(stream: str) -> str:
    """Return the camera of a stream (`stream_name`), whose id may contain slashes; the epoch contains
    none.
    """
    return stream.rpartition("/")[0]


def _key(record: TokensRecord) -> tuple[str, int, str]:
    return stream_name(record), record.block.index, record.block.embeddings.id


def _size(block: StrideBlock) -> int:
    """Return the bytes of a block's tokens."""
    total = 0
    for frame in block.frames:
        total += frame.tokens.nbytes + (0 if frame.deepstack is None else frame.deepstack.nbytes)
    return total
