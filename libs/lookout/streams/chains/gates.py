"""Decides which questions a window is not asked because a watch's gate is closed.

A gate is a condition: another watch must have answered yes, or something must have moved. A gate closes only
on evidence. The question is asked if the gate's watch does not cover the camera, had no answer in the
previous window or has changed since, or if a block was not seen in full.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Self

import numpy as np

from lookout.rules.messages import rule_of
from lookout.rules.types import Activity, Rule
from lookout.rules.zones import inside_any
from lookout.streams.chains.blocks import block_facts, keep_mask
from lookout.streams.chains.epochs import EpochRecords
from lookout.streams.window import Cause, NoAnswer, WindowRule
from lookout.text import clean
from lookout.v1 import tokens_pb2
from lookout.v1.state_pb2 import GateState
from lookout.v1.verdicts_pb2 import Verdict
from lookout.v1.watches_pb2 import Watch


@dataclass(frozen=True, slots=True)
class GateMemory:
    """What gates remember about one version of a watch on one camera.

    Attributes:
        yes: Whether the watch's newest window was answered yes; None: that window had no answer.
        due: Number of windows in which the watch is still asked even if its gate is closed. An incident is
            closed by answers, so after a yes, the watch is asked in as many windows as its rule counts.
    """

    yes: bool | None = None
    due: int = 0


_NO_MEMORY = GateMemory()


@dataclass(frozen=True, slots=True)
class Gates:
    """The state of one camera's gates between two windows, after the newest verdicts. Immutable.

    Attributes:
        memories: What gates remember, by watch id and version; only of watches that have a gate or are
            another watch's gate.
    """

    memories: Mapping[tuple[str, int], GateMemory] = field(default_factory=lambda: MappingProxyType({}))

    @classmethod
    def of(cls, states: Sequence[GateState]) -> Self:
        """Return the gates from a checkpoint's messages."""
        return cls(
            {
                (state.watch, state.version): GateMemory(
                    state.yes if state.HasField("yes") else None, state.due
                )
                for state in states
            }
        )

    def messages(self) -> list[GateState]:
        """Return the gates as messages for a checkpoint."""
        return [
            GateState(watch=watch, version=version, yes=memory.yes, due=memory.due)
            for (watch, version), memory in sorted(self.memories.items())
        ]

    def closed(
        self, watches: Sequence[Watch], blocks: Sequence[tokens_pb2.StrideBlock], samples: int
    ) -> dict[str, NoAnswer]:
        """Return the watches whose gate is closed for a window, by id, with the reasons.

        Args:
            watches: Watches in force on the camera.
            blocks: Blocks of the window, oldest first.
            samples: Grid points of a block.
        """
        by_id = {watch.id: watch for watch in watches}
        refusals = {
            watch.id: self._refusal(watch, by_id, blocks, samples) for watch in watches if has_gate(watch)
        }
        return {name: refusal for name, refusal in refusals.items() if refusal is not None}

    def after(self, watches: Sequence[Watch], verdicts: Sequence[Verdict]) -> Self:
        """Return the gates after a window.

        Args:
            watches: Watches in force.
            verdicts: One verdict per watch, in the same order.
        """
        gate_watches = {watch.gate.watch for watch in watches if watch.gate.watch}
        memories = [
            ((watch.id, watch.version), self._after(watch, verdict))
            for watch, verdict in zip(watches, verdicts, strict=True)
            if has_gate(watch) or watch.id in gate_watches
        ]
        return type(self)({key: memory for key, memory in memories if memory != _NO_MEMORY})

    def _refusal(
        self,
        watch: Watch,
        watches: Mapping[str, Watch],
        blocks: Sequence[tokens_pb2.StrideBlock],
        samples: int,
    ) -> NoAnswer | None:
        if self.memories.get((watch.id, watch.version), _NO_MEMORY).due:
            return None
        gate_watch = watches.get(watch.gate.watch)
        if (
            gate_watch is not None
            and not _in_cycle(watch, watches)
            and self.memories.get((gate_watch.id, gate_watch.version), _NO_MEMORY).yes is False
        ):
            return not_yes(gate_watch.id)
        return unmoved(watch, blocks, samples) if watch.gate.motion else None

    def _after(self, watch: Watch, verdict: Verdict) -> GateMemory:
        before = self.memories.get((watch.id, watch.version), _NO_MEMORY)
        rule = rule_of(watch.rule)
        return GateMemory(says(verdict, rule), due_after(before.due, verdict, rule) if has_gate(watch) else 0)


def has_gate(watch: Watch) -> bool:
    """Whether a watch has a gate."""
    return bool(watch.gate.watch) or watch.gate.motion


def says(verdict: Verdict, rule: Rule) -> bool | None:
    """Return whether a verdict counts as yes for the watches that wait for its watch; None if it decides
    nothing, so that those watches are asked.

    If the verdict's watch was not asked because of its own gate, that counts as no, so gates can be chained.
    """
    if verdict.outcome == Verdict.OUTCOME_GATED:
        return False
    if verdict.outcome != Verdict.OUTCOME_ANSWERED:
        return None
    return verdict.p_yes >= rule.threshold


def due_after(due: int, verdict: Verdict, rule: Rule) -> int:
    """Return the new `GateMemory.due` of a watch after one of its verdicts.

    Args:
        due: The number before the verdict.
        verdict: The watch's verdict.
        rule: The watch's rule.
    """
    if verdict.outcome == Verdict.OUTCOME_GAP:  # a gap closes its incident
        return 0
    if verdict.outcome != Verdict.OUTCOME_ANSWERED:
        return due
    return rule.n if verdict.p_yes >= rule.clear else max(0, due - 1)


def not_yes(watch: str) -> NoAnswer:
    """Return why a question is not asked: its gate's watch did not answer yes."""
    return NoAnswer(
        Cause.GATE, f"the gate is closed: watch {clean(watch, 200)} did not answer yes in the previous window"
    )


def unmoved(watch: Watch, blocks: Sequence[tokens_pb2.StrideBlock], samples: int) -> NoAnswer | None:
    """Return why a question is not asked: nothing moved. None if something moved or may have moved.

    Something moved if pruning kept groups in frames other than anchors. Something may have moved in a block
    with missing or damaged frames.

    Args:
        watch: The watch. Motion counts in its rule's zones or, if there are none, anywhere.
        blocks: Blocks of the window, oldest first.
        samples: Grid points of a block.
    """
    zones = rule_of(watch.rule).zones
    for block in blocks:
        if len(block.frames) != samples or any(frame.corrupt for frame in block.frames):
            return None
        patches = [patch for patch in block.patches if not patch.anchor and patch.kept]
        if patches and (not zones or inside_any(zones, _activity(block, patches))):
            return None
    return NoAnswer(Cause.GATE, f"the gate is closed: nothing moved{' in the zones' if zones else ''}")


def _activity(block: tokens_pb2.StrideBlock, patches: Sequence[tokens_pb2.TemporalPatch]) -> Activity:
    moved = np.logical_or.reduce([keep_mask(block, patch) for patch in patches])
    return Activity(block.group_rows, block.group_cols, frozenset(np.flatnonzero(moved).tolist()))


def _in_cycle(watch: Watch, watches: Mapping[str, Watch]) -> bool:
    """Whether a watch waits for a cycle of gates. Watches that wait for each other would never be asked
    again."""
    seen = {watch.id}
    gate_watch = watches.get(watch.gate.watch)
    while gate_watch is not None:
        if gate_watch.id in seen:
            return True
        seen.add(gate_watch.id)
        gate_watch = watches.get(gate_watch.gate.watch)
    return False


class PastGate:
    """The gate of one watch over past windows of one epoch, in window order.

    Args:
        watch: The watch; if it has no gate, all of its windows are asked.
        epoch: The epoch's records, with the committed verdicts of the gate's watch.
        windows: Decides which blocks form a window, and whether the window is asked.
        samples: Grid points of a block.
        first: Index of the first window. If it is not the epoch's first window, an incident may already be
            open, so the watch is asked in as many windows as its rule counts, even if its gate is closed.
    """

    def __init__(
        self, watch: Watch, epoch: EpochRecords, windows: WindowRule, samples: int, first: int = 0
    ) -> None:
        self._watch, self._epoch, self._windows, self._samples = watch, epoch, windows, samples
        self._rule = rule_of(watch.rule)
        self._due = self._rule.n if first else 0

    def refusal(self, index: int) -> NoAnswer | None:
        """Return why a window is not asked; None if it is asked."""
        if not has_gate(self._watch) or self._due:
            return None
        blocks = self._blocks(index)
        facts = [block_facts(record, self._samples) for record in blocks]
        # If the window's own rule rejects it, the caller reports the rule's reason.
        if not blocks or self._windows.refusal(facts) is not None:
            return None
        gate = self._watch.gate
        if gate.watch and self._gate_answer(index) is False:
            return not_yes(gate.watch)
        if not gate.motion:
            return None
        return unmoved(self._watch, [record.block for record in blocks], self._samples)

    def take(self, verdict: Verdict) -> None:
        """Record the watch's outcome for the window."""
        self._due = due_after(self._due, verdict, self._rule)

    def _gate_answer(self, index: int) -> bool | None:
        """Return whether the gate's watch counts as yes in the window before `index`; None if it had no
        verdict there, or another version."""
        now, before = self._gate_verdict(index), self._gate_verdict(index - 1)
        if now is None or before is None or now.watch_version != before.watch_version:
            return None
        return says(before, rule_of(before.rule))

    def _gate_verdict(self, index: int) -> Verdict | None:
        verdicts = self._epoch.verdicts.get(index, ())
        return next((verdict for verdict in verdicts if verdict.watch == self._watch.gate.watch), None)

    def _blocks(self, index: int) -> list[tokens_pb2.TokensRecord]:
        if index not in self._epoch.blocks:
            return []
        oldest = max(0, index - self._windows.blocks + 1)
        available = [number for number in range(oldest, index + 1) if number in self._epoch.blocks]
        return [self._epoch.blocks[number] for number in available[-self._windows.length(available) :]]
