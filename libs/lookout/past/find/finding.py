"""Find: rank spans by landmarks, ask the memory about the best, verify moments by their exact windows.

Memory proposes, windows decide: a hit has the p(yes) that a live watch would have had. What no memory covers
is walked: the key window of each chain first, then the rest of those chains in which p(yes) rises or the
codec saw motion.
"""

from __future__ import annotations

import heapq
from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from typing import Final, Protocol

import torch

from lookout.errors import LookoutError
from lookout.past.backtests.windows import PastVerdict, PastWindows
from lookout.past.find.spans import PastSpan, ranked_spans
from lookout.past.find.types import (
    FindCost,
    FindEvent,
    FindProgress,
    FindQuestion,
    FindSummary,
    Hit,
    NotSearched,
)
from lookout.past.memory.ranking import CameraPast
from lookout.streams.chains import EpochRecords, PastScope, chain_keys, is_repeated
from lookout.v1.lineage_pb2 import RecordRef
from lookout.v1.verdicts_pb2 import Verdict
from lookout.v1.watches_pb2 import Rule, Watch

TOGETHER: Final = 8
"""Spans that the memory is asked about at a time: less work than one window."""
LEAST_SPANS: Final = 64
"""Spans that are asked at least; beyond, a share (`ASKED`) of all."""
ASKED: Final = 0.25
"""Share of the ranked spans that the memory is asked about."""
LEAST_WINDOWS: Final = 60
"""Windows that may be computed whatever their share: two chains."""
PATIENCE: Final = 12
"""Proposals without a hit, one after the other, after which the weaker ones are left out."""
RISES: Final = 0.1
"""p(yes) of a chain's first window from which on the rest of the chain is walked before others."""
_LATEST_MS: Final = 1 << 62


@dataclass(frozen=True, slots=True)
class SpanAnswer:
    """What the memory says about a span: p(yes), FLOPs and bytes; or why nothing of it was read."""

    p_yes: float = 0.0
    flops: int = 0
    fetched_bytes: int = 0
    missing: str = ""


class Memory(Protocol):
    """The memory of cameras (`services/recall`)."""

    def pasts(self, cameras: Sequence[str]) -> tuple[Mapping[str, CameraPast], Sequence[str]]:
        """The cameras that match ids and patterns, with landmarks; and what could not be read, in words."""
        ...

    def queries(self, question: str) -> torch.Tensor:
        """The question's query in each layer [layers, width]."""
        ...

    def ask(self, spans: Sequence[PastSpan], question: str) -> Sequence[SpanAnswer]:
        """The answer over each span alone."""
        ...


class Records(Protocol):
    """What Kafka holds of cameras: blocks and verdicts, without what was erased."""

    def near(self, camera: str, begin_ms: int, end_ms: int) -> Sequence[EpochRecords]:
        """A camera's epochs with all that the windows ending in [begin, end) need.

        Raises:
            LookoutError: They cannot be read.
        """
        ...

    def all(self, cameras: Sequence[str], since_ms: int, until_ms: int) -> Sequence[EpochRecords] | str:
        """The epochs of cameras in a time; or why there are too many to read."""
        ...


@dataclass(frozen=True, slots=True)
class Finder:
    """Searches the past of cameras.

    Attributes:
        memory: Proposes spans.
        records: What windows are computed from.
        windows: Computes them.
        hidden: Whether a camera's time (Unix microseconds) is erased now.
    """

    memory: Memory
    records: Records
    windows: PastWindows
    hidden: Callable[[str, int, int], bool] = lambda camera, begin_us, end_us: False

    def find(
        self, question: FindQuestion, cancelled: Callable[[], bool] = lambda: False
    ) -> Iterator[FindEvent]:
        """Search.

        Args:
            question: What is asked.
            cancelled: Asked before every window and every few spans; True ends the search.

        Yields:
            Progress; hits as they are verified, a hit that grew under its number again; a summary at the end.

        Raises:
            LookoutError: The question cannot be asked of the model.
        """
        return _Search(self, question, cancelled).run()


class _CancelledError(Exception):
    """The caller no longer waits."""


_Proposal = tuple[float, PastSpan]
"""Minus p(yes) and the span: the smallest is verified first."""


@dataclass(slots=True)
class _Search:
    """One search: what it has seen so far."""

    finder: Finder
    question: FindQuestion
    cancelled: Callable[[], bool]
    pasts: Mapping[str, CameraPast] = field(default_factory=dict)
    ranked: int = 0
    asked_spans: int = 0
    not_searched: list[NotSearched] = field(default_factory=list)
    verdicts: dict[str, dict[int, Verdict]] = field(default_factory=lambda: defaultdict(dict))
    members: dict[str, dict[int, set[int]]] = field(default_factory=lambda: defaultdict(dict))
    scores: dict[PastSpan, float] = field(default_factory=dict)
    hits: dict[int, Hit] = field(default_factory=dict)
    last_number: int = 0
    fruitless: int = 0
    windows: int = 0
    total: int = 0
    flops: int = 0
    fetched: int = 0
    prices: dict[bool, list[int]] = field(default_factory=lambda: defaultdict(list))
    ended: str = "done"

    def run(self) -> Iterator[FindEvent]:
        """Everything that `Finder.find` gives."""
        try:
            yield from self._proposed()
            if self.ended != "limit":
                yield from self._walked()
        except _CancelledError:
            self.ended = "cancelled"
        yield self._summary()

    # What memory proposes.

    def _proposed(self) -> Iterator[FindEvent]:
        question, sampling = self.question, self.finder.windows.settings
        self.pasts, missing = self.finder.memory.pasts(question.cameras)
        self.not_searched += [NotSearched("", None, None, reason) for reason in missing]
        queries = self.finder.memory.queries(question.text)
        times = question.since_us, question.until_us
        spans = ranked_spans(self.pasts, queries, sampling.window_us, *times)
        self.ranked, self.total = len(spans), len(spans) * sampling.window_blocks
        count = min(len(spans), max(LEAST_SPANS, round(ASKED * len(spans))))
        note = f"{len(spans)} spans of {len(self.pasts)} cameras; the memory is asked about {count} of them"
        yield FindProgress("rank", done=len(spans), total=len(spans), note=note)
        proposals: list[_Proposal] = []
        waiting = deque(spans.part(0, count))
        while waiting:
            self._check()
            batch = [waiting.popleft() for _ in range(min(TOGETHER, len(waiting)))]
            self._ask(batch, proposals)
            # A moment is longer than a span: its other spans are asked next.
            beside = {near for span in batch if self._says_yes(span) for near in (span.before, span.after)}
            beside = set(filter(self._is_inside, beside)) if self.asked_spans < 2 * count else set()
            waiting = deque([*sorted(beside), *(span for span in waiting if span not in beside)])
            waiting = deque(span for span in waiting if span not in self.scores)
            yield FindProgress("ask", done=len(self.scores), total=len(self.scores) + len(waiting))
            # A clear one is verified at once: the first hit need not wait for the rest.
            while proposals and -proposals[0][0] >= question.threshold and not self._is_enough():
                yield from self._verified(heapq.heappop(proposals))
        while proposals and not self._is_enough():
            yield from self._verified(heapq.heappop(proposals))
        left_out = [span for span in spans.part(count) if span not in self.scores]
        self._leave_out(left_out, "ranked below the spans that the memory was asked about")
        self._leave_out([span for _, span in proposals], "proposed below the spans that were verified")

    def _ask(self, spans: Sequence[PastSpan], proposals: list[_Proposal]) -> None:
        for span, answer in zip(spans, self.finder.memory.ask(spans, self.question.text), strict=True):
            self.flops += answer.flops
            self.fetched += answer.fetched_bytes
            self.scores[span] = answer.p_yes
            if answer.missing:
                # Nothing was read of it: it has no score, and is named instead.
                self._leave_out([span], answer.missing)
            else:
                self.asked_spans += 1
                heapq.heappush(proposals, (-answer.p_yes, span))

    def _is_inside(self, span: PastSpan) -> bool:
        """Whether a span is of the time that was asked for, and a chapter reaches into it."""
        since_us, until_us = self.question.since_us, self.question.until_us
        if (since_us is not None and span.end_us <= since_us) or (
            until_us is not None and span.begin_us >= until_us
        ):
            return False
        return self.pasts[span.camera].covers(span.begin_us, span.end_us)

    def _says_yes(self, span: PastSpan) -> bool:
        return self.scores.get(span, 0.0) >= self.question.threshold

    def _moment_of(self, span: PastSpan) -> list[PastSpan]:
        """The span and those before and after it of which the memory says yes without a break."""
        moment = [span]
        while self._says_yes(moment[0].before):
            moment.insert(0, moment[0].before)
        while self._says_yes(moment[-1].after):
            moment.append(moment[-1].after)
        return moment

    def _is_enough(self) -> bool:
        """Whether no further proposal is verified."""
        if len(self.hits) >= self.question.limit:
            self.ended = "limit"
        elif self.windows >= self._budget(self.total):
            self.ended = "budget"
        return self.ended != "done" or self.fruitless >= PATIENCE

    def _budget(self, windows: int) -> int:
        return min(windows, max(LEAST_WINDOWS, round(self.question.share * windows)))

    def _verified(self, proposal: _Proposal) -> Iterator[FindEvent]:
        """Compute the windows that end in a span, unless its moment is a hit already."""
        score, span = proposal
        moment = self._moment_of(span)
        begin_us, end_us = moment[0].begin_us, moment[-1].end_us
        if any(
            hit.camera == span.camera and hit.begin_us < end_us and hit.end_us > begin_us
            for hit in self.hits.values()
        ):
            return
        yield FindProgress("verify", span.camera, self.windows, self._budget(self.total))
        hits, windows, has_records = self.last_number, self.windows, False
        try:
            for epoch in self.finder.records.near(span.camera, span.begin_us // 1000, span.end_us // 1000):
                ends = [i for i in epoch.blocks if span.begin_us < epoch.end_ms(i) * 1000 <= span.end_us]
                has_records |= bool(ends)
                if any(index not in self.verdicts[epoch.stream] for index in ends):
                    yield from self._computed(epoch, min(ends), max(ends), -score)
        except LookoutError as error:
            self._leave_out([span], str(error))
            return
        if not has_records:
            self._leave_out([span], "tokens.v1 has no records of it: is it longer ago than Kafka keeps them?")
        if self.last_number > hits:
            self.fruitless = 0
        elif self.windows > windows:
            self.fruitless += 1

    # Exact windows.

    def _computed(
        self, epoch: EpochRecords, first: int, last: int, proposed: float | None
    ) -> Iterator[FindEvent]:
        """Compute windows of a chain, from its key window on, and give the hits that they make or extend."""
        windows = self.finder.windows
        key = chain_keys(epoch, windows.planner).get(first, first)
        chain = frozenset(i for i in epoch.blocks.keys() | epoch.verdicts.keys() if key <= i <= last)
        verdicts = self.verdicts[epoch.stream]
        scope = PastScope(cameras=(epoch.camera,))
        with closing(windows.verdicts(epoch, self._watch, scope, chain)) as replayed:
            while not (cancelled := self.cancelled()) and (past := next(replayed, None)) is not None:
                self._count(past)
                verdicts[past.verdict.window] = past.verdict
        yield from self._grown(epoch, proposed)
        if cancelled:
            raise _CancelledError

    def _count(self, past: PastVerdict) -> None:
        self.windows += bool(past.computed_flops)
        self.flops += past.computed_flops
        cost = past.verdict.cost
        if past.computed_flops and past.verdict.HasField("p_yes"):
            self.prices[past.verdict.basis == "key"].append(cost.flops_prefill + cost.flops_question)

    def _grown(self, epoch: EpochRecords, proposed: float | None) -> Iterator[Hit]:
        """The hits of an epoch that are new, or have grown."""
        verdicts, members = self.verdicts[epoch.stream], self.members[epoch.stream]
        for run in self._moments(verdicts):
            touched = sorted(number for number, own in members.items() if own & set(run))
            if touched and members[touched[0]] == set(run):
                continue
            begin_us = verdicts[run[0]].start.ToMicroseconds()
            end_us = verdicts[run[-1]].end.ToMicroseconds()
            if self.finder.hidden(epoch.camera, begin_us, end_us):
                self.not_searched.append(NotSearched(epoch.camera, begin_us, end_us, "erased"))
                continue
            number, *merged = touched or [self.last_number + 1]
            self.last_number = max(self.last_number, number)
            for part in touched:
                proposed = max(proposed or 0.0, self.hits[part].proposed or 0.0) or None
                del members[part], self.hits[part]
            members[number] = set(run)
            best = max((verdicts[index] for index in run), key=lambda own: own.p_yes)
            shown = _segments(epoch, best.window, self.finder.windows.settings.window_blocks)
            self.hits[number] = Hit(number, best, begin_us, end_us, len(run), proposed, shown, tuple(merged))
            yield self.hits[number]

    def _moments(self, known: Mapping[int, Verdict]) -> list[list[int]]:
        """Windows with p(yes) at the threshold or above, those of one moment together: they share pictures,
        or the memory says yes to everything between them."""
        moments: list[list[int]] = []
        for index, verdict in sorted(known.items()):
            if verdict.p_yes < self.question.threshold:
                continue
            if moments and self._is_one(known[moments[-1][-1]], verdict):
                moments[-1].append(index)
            else:
                moments.append([index])
        return moments

    def _is_one(self, earlier: Verdict, later: Verdict) -> bool:
        """Whether two windows are of one moment."""
        length_us = self.finder.windows.settings.window_us
        end_us, begin_us = earlier.end.ToMicroseconds(), later.start.ToMicroseconds()
        if begin_us <= end_us:
            return True
        between = range(end_us // length_us * length_us, begin_us, length_us)
        return all(self._says_yes(PastSpan(later.camera, us, us + length_us)) for us in between)

    # What no memory covers.

    def _walked(self) -> Iterator[FindEvent]:
        question = self.question
        since_ms = (question.since_us or 0) // 1000
        until_ms = _LATEST_MS if question.until_us is None else question.until_us // 1000
        try:
            epochs = self.finder.records.all(question.cameras, since_ms, until_ms)
        except LookoutError as error:
            epochs = str(error)
        if isinstance(epochs, str):
            self.not_searched.append(NotSearched("", question.since_us, question.until_us, epochs))
            return
        chains: list[_Chain] = []
        self.total = 0
        for epoch in epochs:
            inside = [index for index in epoch.blocks if since_ms <= epoch.end_ms(index) < until_ms]
            self.total += len(inside)
            chains += self._uncovered(epoch, inside)
        if chains:
            yield from self._walk(chains)

    def _uncovered(self, epoch: EpochRecords, inside: Sequence[int]) -> list[_Chain]:
        """The chains of windows that no memory covers; a repeated answer is that of the window before it."""
        past, verdicts = self.pasts.get(epoch.camera, CameraPast()), self.verdicts[epoch.stream]
        keys = chain_keys(epoch, self.finder.windows.planner)
        chains: dict[int, _Chain] = {}
        for index in sorted(inside):
            record = epoch.blocks[index]
            begin_us, end_us = (
                record.wall_offset_us + time_us for time_us in (record.block.start_us, record.block.end_us)
            )
            if index in verdicts or is_repeated(epoch, index) or past.covers(begin_us, end_us):
                continue
            chain = chains.setdefault(keys[index], _Chain(epoch))
            chain.windows.append(index)
            moved = sum(patch.kept for patch in record.block.patches if not patch.anchor)
            chain.motion = max(chain.motion, moved)
        return list(chains.values())

    def _walk(self, chains: list[_Chain]) -> Iterator[FindEvent]:
        """The first window of every chain, those with most motion first; then the most promising chains."""
        count = sum(len(chain.windows) for chain in chains)
        begun, budget = self.windows, self._budget(count)
        note = f"no memory covers {count} windows; {min(count, budget)} of them are computed at most"
        yield FindProgress("walk", done=0, total=min(count, budget), note=note)
        chains.sort(key=lambda chain: -chain.motion)
        probed: list[tuple[float, _Chain]] = []
        for chain in chains:
            if self._is_walked(begun + budget // 2):
                break
            yield from self._step(chain, chain.windows[0], begun, budget)
            probe = self.verdicts[chain.epoch.stream].get(chain.windows[0])
            probed.append((-probe.p_yes if probe is not None and probe.p_yes >= RISES else 0.0, chain))
        for _, chain in sorted(probed, key=lambda entry: (entry[0], -entry[1].motion)):
            if self._is_walked(begun + budget):
                break
            yield from self._step(chain, chain.windows[-1], begun, budget)
        self._name_unwalked(chains)

    def _step(self, chain: _Chain, last: int, begun: int, budget: int) -> Iterator[FindEvent]:
        if any(index <= last for index in chain.windows if index not in self.verdicts[chain.epoch.stream]):
            yield FindProgress("walk", chain.epoch.camera, self.windows - begun, budget)
            try:
                yield from self._computed(chain.epoch, chain.windows[0], last, None)
            except LookoutError as error:
                self.not_searched.append(NotSearched(chain.epoch.camera, None, None, str(error)))

    def _is_walked(self, windows: int) -> bool:
        """Whether the walk ends, with so many windows computed or at the limit of hits."""
        if len(self.hits) >= self.question.limit:
            self.ended = "limit"
        return self.ended == "limit" or self.windows >= windows

    def _name_unwalked(self, chains: Sequence[_Chain]) -> None:
        """Say for each camera how much of what no memory covers was left out."""
        cameras: dict[str, list[_Chain]] = defaultdict(list)
        for chain in chains:
            cameras[chain.epoch.camera].append(chain)
        for camera, own in sorted(cameras.items()):
            ends_ms = [chain.epoch.end_ms(index) for chain in own for index in chain.windows]
            computed = sum(
                index in self.verdicts[chain.epoch.stream] for chain in own for index in chain.windows
            )
            if computed < len(ends_ms):
                reason = f"no memory covers it; {computed} of its {len(ends_ms)} windows were computed"
                begin_us = min(ends_ms) * 1000 - self.finder.windows.settings.stride_us
                self.not_searched.append(NotSearched(camera, begin_us, max(ends_ms) * 1000, reason))

    # Accounts.

    def _check(self) -> None:
        if self.cancelled():
            raise _CancelledError

    def _leave_out(self, spans: Sequence[PastSpan], reason: str) -> None:
        """Name spans that were not searched: of each camera as ranges."""
        cameras: dict[str, list[PastSpan]] = defaultdict(list)
        for span in sorted(spans, key=lambda span: (span.camera, span.begin_us)):
            own = cameras[span.camera]
            if own and own[-1].end_us == span.begin_us:
                own[-1] = PastSpan(span.camera, own[-1].begin_us, span.end_us)
            else:
                own.append(span)
        self.not_searched += [
            NotSearched(span.camera, span.begin_us, span.end_us, reason)
            for own in cameras.values()
            for span in own
        ]

    @property
    def _watch(self) -> Watch:
        """The question as a watch that is not enabled."""
        rule = Rule(threshold=self.question.threshold)
        return Watch(id="find", version=1, question=self.question.text, rule=rule)

    def _summary(self) -> FindSummary:
        key_flops, usual_flops = (
            sum(own) / len(own) if (own := self.prices[is_key] or self.prices[not is_key]) else 0.0
            for is_key in (True, False)
        )
        interval = self.finder.windows.planner.settings.key_every
        cost = FindCost(
            self.windows,
            self.total,
            self.flops,
            round(self.total * (usual_flops + (key_flops - usual_flops) / interval)),
            self.fetched,
        )
        return FindSummary(
            tuple(sorted(self.hits, key=lambda number: (-self.hits[number].p_yes, number))),
            len(self.pasts.keys() | {stream.rpartition("/")[0] for stream in self.verdicts}),
            self.ranked,
            self.asked_spans,
            tuple(self.not_searched),
            cost,
            self.ended,
        )


@dataclass(slots=True, eq=False)
class _Chain:
    """Windows of one chain that no memory covers, ascending; `motion`: most tokens that one block kept."""

    epoch: EpochRecords
    windows: list[int] = field(default_factory=list)
    motion: int = 0


def _segments(epoch: EpochRecords, window: int, blocks: int) -> tuple[RecordRef, ...]:
    """The segments that show a window, in their order."""
    refs: dict[tuple[str, int, int], RecordRef] = {}
    for index in range(max(0, window - blocks + 1), window + 1):
        if (record := epoch.blocks.get(index)) is not None:
            refs |= {(ref.topic, ref.partition, ref.offset): ref for ref in record.block.embeddings.segments}
    return tuple(refs[place] for place in sorted(refs))
