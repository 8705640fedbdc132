"""Computes past windows of a stream again, as they were originally computed, with any questions."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator, Sequence
from dataclasses import dataclass

from lookout.errors import LookoutError
from lookout.models.engines import DeviceError, Engine, EngineError, Question
from lookout.models.windows import Planner, StrideBlock, WindowError
from lookout.streams.blocks import StreamBlock
from lookout.streams.chain import AnsweredWindow, ChainRule, ChainRunner, EngineAnswers
from lookout.streams.window import NoAnswer, WindowRule


class BlockGoneError(LookoutError):
    """A block no longer exists, and its tokens cannot be recomputed."""


class ReplayError(LookoutError):
    """A window cannot be computed as it was originally."""


@dataclass(frozen=True, slots=True)
class ChainWindow:
    """A window to replay.

    Attributes:
        index: Index of the window's newest block.
        questions: Questions to ask at the window's end.
        first: Index of the window's oldest block; None: the rule decides how many blocks it has.
        since_key: Strides from the key window of its chain to this window, as originally computed; 0: this is
            the key window. None: the planner decides.
    """

    index: int
    questions: Sequence[Question] = ()
    first: int | None = None
    since_key: int | None = None


@dataclass(frozen=True, slots=True)
class ReplayedWindow:
    """The outcome of a replayed window: an answer, the reason why it is not asked, or an error.

    Attributes:
        window: The window that was requested.
        blocks: Blocks of the window, oldest first; empty if `error` is set.
        coverage: Share of the window's samples that were seen undamaged, 0 to 1.
        answered: The window's plan and answers; None if there are none. The engine keeps the window's KV
            until the next window is taken from the iterator.
        flops: FLOPs of the language model for the window and for earlier windows of its chain that had to be
            computed first.
        refusal: Why the window is not asked; None if it is.
        error: Why the window cannot be recomputed; None if it can.
    """

    window: ChainWindow
    blocks: Sequence[StrideBlock] = ()
    coverage: float = 0.0
    answered: AnsweredWindow | None = None
    flops: int = 0
    refusal: NoAnswer | None = None
    error: LookoutError | None = None


def replay_chain(
    engine: Engine,
    planner: Planner,
    blocks: Callable[[int], StreamBlock],
    windows: Sequence[ChainWindow],
    *,
    rule: WindowRule | None = None,
    left_out: Container[int] = (),
) -> Iterator[ReplayedWindow]:
    """Replay windows of one stream.

    A window whose `since_key` is known is computed as part of its original chain. If the engine does not have
    the KV of the previous window, the chain's windows from its key window on are computed first, without
    questions.

    Args:
        engine: Computes the windows; the stream's KV is freed at the end.
        planner: Plans the windows with the original settings.
        blocks: Returns the block with an index. Raises BlockGoneError if it is not available.
        windows: In ascending order.
        rule: Decides which windows are asked; None: all are.
        left_out: Indices of windows to skip. It may grow during the replay, because it is read just before
            each window.

    Yields:
        The outcome of every window that is not skipped, in order.

    Raises:
        DeviceError: The device failed permanently.
    """
    replay = _Replay(engine, planner, blocks, windows, rule)
    try:
        for window in windows:
            if window.index not in left_out:
                yield replay.outcome(window)
    finally:
        replay.close()


class _Replay:
    def __init__(
        self,
        engine: Engine,
        planner: Planner,
        source: Callable[[int], StreamBlock],
        windows: Sequence[ChainWindow],
        rule: WindowRule | None,
    ) -> None:
        self._runner = ChainRunner(ChainRule(planner), EngineAnswers(engine))
        self._chain = self._runner.rule.begin()
        self._source, self._rule = source, rule
        self._size = planner.settings.blocks
        self._windows = {window.index: window for window in windows}
        self._blocks: dict[int, StreamBlock] = {}
        self._stream, self._flops = "", 0

    def outcome(self, window: ChainWindow) -> ReplayedWindow:
        """Return the outcome of one window."""
        self._flops = 0
        try:
            members = self._members(window)
            facts = [member.facts for member in members]
            blocks = [member.seen for member in members]
            coverage = (self._rule or WindowRule(self._size)).coverage(facts)
            refusal = self._rule.refusal(facts) if self._rule is not None else None
            if refusal is not None:
                return ReplayedWindow(window, blocks, coverage, refusal=refusal)
            self._catch_up(window)
            answered = self._computed(blocks, window)
        except DeviceError:
            raise
        except (BlockGoneError, ReplayError, EngineError, WindowError) as error:
            return ReplayedWindow(window, flops=self._flops, error=error)
        return ReplayedWindow(window, blocks, coverage, answered, self._flops)

    def close(self) -> None:
        """Free the stream's KV."""
        if self._stream:
            self._runner.forget(self._stream)

    def _catch_up(self, window: ChainWindow) -> None:
        """Compute the earlier windows of the window's chain, unless the engine has the KV of the previous
        window."""
        # 0: a key window, which needs nothing before it; None: the planner decides about the chain.
        since, plan = window.since_key, self._chain.plan
        if not since or (plan and plan.window == window.index - 1 and plan.since_key == since - 1):
            return
        for step in range(since):
            index = window.index - since + step
            record = self._windows.get(index)
            # If this earlier window is not in the list, it is assumed to have the usual number of blocks.
            first = record.first if record is not None else max(0, index - self._size + 1)
            member = ChainWindow(index, first=first, since_key=step)
            self._computed([block.seen for block in self._members(member)], member)

    def _computed(self, blocks: Sequence[StrideBlock], window: ChainWindow) -> AnsweredWindow:
        self._stream, since = blocks[0].stream, window.since_key
        key = None if since is None else since == 0
        answered = self._runner.ask(self._chain, blocks, window.questions, key=key)
        self._flops += answered.answer.cost.total_flops
        if since is not None and answered.plan.since_key != since:
            raise ReplayError(
                f"window {window.index} cannot be computed as part of its original chain: it was {since} "
                f"strides after its key window, but is now {answered.plan.since_key}"
            )
        return answered

    def _members(self, window: ChainWindow) -> list[StreamBlock]:
        """Return the blocks of a window, oldest first."""
        last = window.index
        oldest = max(0, last - self._size + 1)
        # Drop blocks that neither this window nor the earlier windows of its chain need.
        since = window.since_key or 0
        self._blocks = {i: block for i, block in self._blocks.items() if i >= oldest - since}
        if window.first is not None:
            return [self._block(index) for index in range(window.first, last + 1)]
        members = [self._block(last)]
        for index in range(last - 1, oldest - 1, -1):
            try:
                members.insert(0, self._block(index))
            except BlockGoneError:  # the stream, or the part of it that still exists, begins later
                break
        return members

    def _block(self, index: int) -> StreamBlock:
        if index not in self._blocks:
            self._blocks[index] = self._source(index)
        return self._blocks[index]
