"""Turns the blocks of streams into one outcome per window: an answer, or why there is none."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from lookout.models.engines import Engine, Question, WindowAnswer
from lookout.models.windows import Planner, StrideBlock, WindowPlan
from lookout.streams.blocks import StreamBlock
from lookout.streams.chain import ChainRule, WindowChain, run_batch
from lookout.streams.window import NoAnswer, WindowRule


@dataclass(frozen=True, slots=True)
class PlayedWindow:
    """The outcome of a window: a plan and its answer, or why it was not asked.

    Attributes:
        blocks: Blocks of the window, oldest first.
        coverage: Share of the window's samples that were seen undamaged, 0 to 1.
        plan: The window's plan; None if it was not asked.
        answer: The engine's answer; None if the window was not asked.
        refusal: Why the window was not asked; None if it was.
    """

    blocks: Sequence[StrideBlock]
    coverage: float
    plan: WindowPlan | None = None
    answer: WindowAnswer | None = None
    refusal: NoAnswer | None = None


@dataclass(slots=True)
class _Stream:
    chain: WindowChain
    window: list[StreamBlock] = field(default_factory=list)


@dataclass(frozen=True, slots=True, eq=False)
class PlayerState:
    """Saved state of a player, for `Player.restore`: each stream's chain and the blocks of its newest
    window."""

    streams: Mapping[str, tuple[WindowChain, tuple[StreamBlock, ...]]]


class Player:
    """Plays any number of streams on one engine; windows of different streams form one batch.

    As in the fleet, `WindowRule` decides which blocks form a window and whether the window is asked.

    Args:
        engine: Computes the windows.
        planner: Plans the windows.
        rule: Decides about windows; None: the default for windows of the planner's length.
        key: True: compute every window in full. False: every window continues the previous one. None: the
            planner decides.
    """

    def __init__(
        self, engine: Engine, planner: Planner, rule: WindowRule | None = None, *, key: bool | None = None
    ) -> None:
        self._engine, self._chains, self._key = engine, ChainRule(planner), key
        self._rule = rule or WindowRule(planner.settings.blocks)
        self._streams: dict[str, _Stream] = {}

    def step(self, blocks: Sequence[StreamBlock], questions: Sequence[Question]) -> list[PlayedWindow]:
        """Return the outcomes of the windows that these blocks close, one per stream.

        Args:
            blocks: The next block of each stream.
            questions: Asked at the end of every window.

        Returns:
            The outcomes, in the order of the blocks.

        Raises:
            EngineError: A window cannot be computed.
        """
        outcomes = [self._closed_window(block) for block in blocks]
        to_ask = [index for index, outcome in enumerate(outcomes) if outcome.refusal is None]
        asked = self._ask([outcomes[index] for index in to_ask], questions)
        for index, outcome in zip(to_ask, asked, strict=True):
            outcomes[index] = outcome
        return outcomes

    @property
    def streams(self) -> Collection[str]:
        """The streams being played."""
        return self._streams.keys()

    def state(self) -> PlayerState:
        """Return the state for `restore`."""
        return PlayerState(
            # Chains are copied because they change. Plans never change.
            {name: (replace(stream.chain), tuple(stream.window)) for name, stream in self._streams.items()}
        )

    def restore(self, state: PlayerState) -> None:
        """Return to a saved state. If the engine's KV of a stream has changed since, the stream's next window
        is computed in full."""
        self._streams = {
            name: _Stream(replace(chain), list(window)) for name, (chain, window) in state.streams.items()
        }

    def close(self) -> None:
        """Free the KV of all streams."""
        for stream in self._streams:
            self._engine.close_stream(stream)
        self._streams.clear()

    def _closed_window(self, block: StreamBlock) -> PlayedWindow:
        """Return the window that a block closes, before it is asked."""
        state = self._streams.setdefault(block.block.stream, _Stream(self._chains.begin()))
        window = [*state.window, block]
        # The blocks are kept even if this window is not asked, because they are part of later windows.
        state.window = window[-self._rule.length([member.block.index for member in window]) :]
        facts = [member.facts for member in state.window]
        return PlayedWindow(
            [member.seen for member in state.window],
            self._rule.coverage(facts),
            refusal=self._rule.refusal(facts),
        )

    def _ask(self, windows: Sequence[PlayedWindow], questions: Sequence[Question]) -> list[PlayedWindow]:
        steps = [
            self._chains.steps(self._chain_of(window), window.blocks, questions, key=self._key)
            for window in windows
        ]
        return [
            replace(window, plan=answered.plan, answer=answered.answer)
            for window, answered in zip(windows, run_batch(self._engine, steps), strict=True)
        ]

    def _chain_of(self, window: PlayedWindow) -> WindowChain:
        return self._streams[window.blocks[0].stream].chain


@dataclass(frozen=True, slots=True)
class ClipWindow:
    """An answered window of a whole stream, and the stream times of its first and last frame in seconds."""

    plan: WindowPlan
    answer: WindowAnswer
    start_s: float
    end_s: float


def answered_windows(
    engine: Engine,
    planner: Planner,
    streams: Mapping[str, Iterable[StreamBlock]],
    questions: Sequence[Question],
    *,
    batch: int = 8,
    key: bool | None = None,
) -> dict[str, list[ClipWindow]]:
    """Return the answered windows of each stream, in time order. Up to `batch` streams are computed together.

    Args:
        engine: Computes the windows.
        planner: Plans the windows.
        streams: Blocks of each stream, in ascending order.
        questions: Asked at the end of every window.
        batch: Maximum number of streams in one call of the engine.
        key: As for `Player`.

    Raises:
        EngineError: A window cannot be computed.
    """
    windows: dict[str, list[ClipWindow]] = {name: [] for name in streams}
    names = list(streams)
    for first in range(0, len(names), batch):
        player = Player(engine, planner, key=key)
        sources = [iter(streams[name]) for name in names[first : first + batch]]
        while blocks := [block for source in sources if (block := next(source, None)) is not None]:
            for played in player.step(blocks, questions):
                if played.plan is not None and played.answer is not None:
                    times = [frame.time_us / 1e6 for block in played.blocks for frame in block.frames]
                    answered = ClipWindow(played.plan, played.answer, times[0], times[-1])
                    windows[played.plan.stream].append(answered)
        player.close()
    return windows
