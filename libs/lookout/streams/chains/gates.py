"""Gates of watches: decides which questions a window is not asked, because another condition must hold first.

Without evidence, a gate never closes. The question is asked if the gate's watch does not cover the camera,
had no answer in the previous window or has changed since, or if a block was not seen in full.
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
        due: Number of windows in which the watch is still asked even if its gate is closed. Answers close an
            incident that the newest yes opened or keeps open, so as many are still computed as the watch's
            rule counts.
    """

    yes: bool | None = None
    due: int = 0


_NOTHING = GateMemory()


@dataclass(frozen=True, slots=True)
class Gates:
    """The state of one camera's gates between two windows, after the newest verdicts. Immutable.

    Attributes:
        memories: By watch and version; only for watches that have a gate or are one.
    """

    memories: Mapping[tuple[str, int], GateMemory] = field(default_factory=lambda: MappingProxyType({}))

    @classmethod
    def of(cls, states: Sequence[GateState]) -> Self:
        """Return the gates stored in a checkpoint."""
        return cls(
            {
                (state.watch, state.version): GateMemory(
                    state.yes if state.HasField("yes") else None, state.due
                )
                for state in states
            }
        )

    def messages(self) -> list[GateState]:
        """Return the gates for a checkpoint."""
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
        named = {watch.gate.watch for watch in watches if watch.gate.watch}
        kept = [
            ((watch.id, watch.version), self._after(watch, verdict))
            for watch, verdict in zip(watches, verdicts, strict=True)
            if has_gate(watch) or watch.id in named
        ]
        return type(self)({key: memory for key, memory in kept if memory != _NOTHING})

    def _refusal(
        self,
        watch: Watch,
        watches: Mapping[str, Watch],
        blocks: Sequence[tokens_pb2.StrideBlock],
        samples: int,
    ) -> NoAnswer | None:
        if self.memories.get((watch.id, watch.version), _NOTHING).due:
            return None
        gate_watch = watches.get(watch.gate.watch)
        if (
            gate_watch is not None
            and not _in_circle(watch, watches)
            and self.memories.get((gate_watch.id, gate_watch.version), _NOTHING).yes is False
        ):
            return not_yes(gate_watch.id)
        return unmoved(watch, blocks, samples) if watch.gate.motion else None

    def _after(self, watch: Watch, verdict: Verdict) -> GateMemory:
        before = self.memories.get((watch.id, watch.version), _NOTHING)
        rule = rule_of(watch.rule)
        return GateMemory(says(verdict, rule), due_after(before.due, verdict, rule) if has_gate(watch) else 0)


def has_gate(watch: Watch) -> bool:
    """Whether a watch has a gate."""
    return bool(watch.gate.watch) or watch.gate.motion


def says(verdict: Verdict, rule: Rule) -> bool | None:
    """Return whether an outcome counts as yes for the watches that it gates; None if it decides nothing, so
    that those watches are asked.

    A watch that was itself not asked, because of its gate, counts as no, so gates can be chained.
    """
    if verdict.outcome == Verdict.OUTCOME_GATED:
        return False
    if verdict.outcome != Verdict.OUTCOME_ANSWERED:
        return None
    return verdict.p_yes >= rule.threshold


def due_after(due: int, verdict: Verdict, rule: Rule) -> int:
    """Return the number of windows in which a watch is still asked even if its gate is closed, after one of
    its outcomes."""
    if verdict.outcome == Verdict.OUTCOME_GAP:  # a gap closes its incident
        return 0
    if verdict.outcome != Verdict.OUTCOME_ANSWERED:
        return due
    return rule.n if verdict.p_yes >= rule.clear else max(0, due - 1)


def not_yes(watch: str) -> NoAnswer:
    """Return the reason why a question waits for another watch."""
    return NoAnswer(
        Cause.GATE, f"the gate is closed: watch {clean(watch, 200)} did not answer yes in the previous window"
    )


def unmoved(watch: Watch, blocks: Sequence[tokens_pb2.StrideBlock], samples: int) -> NoAnswer | None:
    """Return the reason why a question waits for motion; None if something moved or a block was not seen in
    full.

    Motion means groups that pruning kept in frames other than anchors. In a block with missing or damaged
    frames, something may have moved.

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


def _in_circle(watch: Watch, watches: Mapping[str, Watch]) -> bool:
    """Whether the gates that a watch waits for form a cycle: watches that wait for each other would never be
    asked again."""
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
        epoch: The epoch's records. The answers of another watch are read from its committed verdicts.
        windows: Decides which blocks form a window, and whether it is asked.
        samples: Grid points of a block.
        first: Index of the first window that is asked. If it is not the epoch's first window, an incident may
            be open at that time, so as many windows are asked as the watch's rule counts.
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
        if (
            not blocks or self._windows.refusal(facts) is not None
        ):  # the window is not asked anyway, and the rule's reason says why
            return None
        gate = self._watch.gate
        if gate.watch and self._said(index) is False:
            return not_yes(gate.watch)
        if not gate.motion:
            return None
        return unmoved(self._watch, [record.block for record in blocks], self._samples)

    def take(self, verdict: Verdict) -> None:
        """Record the watch's outcome for the window."""
        self._due = due_after(self._due, verdict, self._rule)

    def _said(self, index: int) -> bool | None:
        """Return whether the gate's watch counts as yes for a window: its outcome for the previous window, if
        that outcome is of the same version."""
        now, before = (
            next((v for v in self._epoch.verdicts.get(at, ()) if v.watch == self._watch.gate.watch), None)
            for at in (index, index - 1)
        )
        if now is None or before is None or now.watch_version != before.watch_version:
            return None
        return says(before, rule_of(before.rule))

    def _blocks(self, index: int) -> list[tokens_pb2.TokensRecord]:
        if index not in self._epoch.blocks:
            return []
        oldest = max(0, index - self._windows.blocks + 1)
        known = [at for at in range(oldest, index + 1) if at in self._epoch.blocks]
        return [self._epoch.blocks[at] for at in known[-self._windows.length(known) :]]
