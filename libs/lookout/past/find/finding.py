"""Searches the past: ranks spans by landmarks, asks the memory about the best ones, and verifies its
proposals.

To verify a proposal, its windows are computed exactly as for a live watch, so a hit has the p(yes) that a
live watch would have had. Time that no memory covers is walked: the search computes the first window of each
chain, then the rest of the chains whose first window has a raised p(yes) or whose blocks show most motion.
"""

from __future__ import annotations

import heapq
from collections import defaultdict, deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from typing import Final, Literal, Protocol

import torch

from lookout.errors import LookoutError
from lookout.models.windows import StrideBlock
from lookout.past.backtests.windows import PastVerdict, PastWindows
from lookout.past.find.moments import Hidden, Moments
from lookout.past.find.similar import RegionError, block_keys, compared_with, region_keys
from lookout.past.find.spans import PastSpan, ranked_spans
from lookout.past.find.types import FindEvent, FindQuestion, Hit, Left, Region
from lookout.past.memory.ranking import CameraPast
from lookout.streams.chains import EpochRecords, PastScope, chain_keys, is_repeated
from lookout.v1.memory_pb2 import FindCost, FindProgress, FindSummary, NotSearched
from lookout.v1.verdicts_pb2 import Verdict
from lookout.v1.watches_pb2 import Rule, Watch
from lookout.wire import names_id, tenant_of

TOGETHER: Final = 8
"""Number of spans per call of the memory. One call costs less than one window."""
LEAST_SPANS: Final = 64
"""Minimum number of spans that the memory is asked about."""
ASKED: Final = 10.0
"""The share of spans that the memory is asked about is this multiple of the share of windows that may be
computed. Asking about all spans costs about 3 % of computing every window (`make bench-find`)."""
LEAST_WINDOWS: Final = 60
"""Number of windows (two chains) that may be computed even if the share allows fewer."""
PATIENCE: Final = 12
"""After this many proposals in a row without a hit, the remaining proposals, which are weaker, are not
verified."""
RISES: Final = 0.1
"""If the first window of a chain has at least this p(yes), the rest of the chain is walked before other
chains."""
LATER_US: Final = 300_000_000
"""Microseconds within which a clause must follow the one before it, because related events are minutes
apart."""
_TAKEN: Final = 512
"""Number of spans taken from the ranking at a time."""
_LATEST_MS: Final = 1 << 62


@dataclass(frozen=True, slots=True)
class SpanAnswer:
    """The memory's answer about a span, and its cost.

    Attributes:
        p_yes: The memory's p(yes).
        flops: FLOPs of the answer.
        fetched_bytes: Bytes of KV fetched for it.
        missing: Why the memory could not read the span; empty if it could.
    """

    p_yes: float = 0.0
    flops: int = 0
    fetched_bytes: int = 0
    missing: str = ""


class Quota(Protocol):
    """Limits how many windows searches compute for each tenant (`lookout.runtime.tenants.TenantUsage`)."""

    def add(self, tenant: str, kind: Literal["searched"], amount: float) -> None:
        """Add `amount` computed windows to what a tenant's searches have used. `kind` is always
        "searched".
        """
        ...

    def refusal(self, tenant: str) -> str | None:
        """Return why no further window of the tenant's cameras may be computed now; None if one may."""
        ...


class Memory(Protocol):
    """The cameras' memories (implemented in `services/recall`)."""

    def pasts(self, cameras: Sequence[str]) -> tuple[Mapping[str, CameraPast], Sequence[str]]:
        """Return the pasts of the cameras that match ids or patterns, and sentences about what is
        unreadable."""
        ...

    def queries(self, question: str) -> torch.Tensor:
        """Return the question's query vectors, float32 [layers, width], to compare with landmarks of
        `pasts`."""
        ...

    def compared(self, keys: torch.Tensor) -> torch.Tensor:
        """Convert the model's keys [layers, width] to the key space of the landmarks of `pasts`."""
        ...

    def ask(self, spans: Sequence[PastSpan], question: str) -> Sequence[SpanAnswer]:
        """Return the memory's answer to the question for each span, each answered on its own."""
        ...


class Records(Protocol):
    """Cameras' blocks and verdicts in Kafka, without erased ones."""

    def near(self, camera: str, begin_ms: int, end_ms: int) -> Sequence[EpochRecords]:
        """Return a camera's epochs, with all records needed to compute the windows that end in [begin, end].
        Times are Unix milliseconds.

        Raises:
            LookoutError: The records cannot be read.
        """
        ...

    def all(self, cameras: Sequence[str], since_ms: int, until_ms: int) -> Sequence[EpochRecords] | str:
        """Return the cameras' epochs in a time range (Unix milliseconds), or a sentence that says that there
        are too many records to read.

        Raises:
            LookoutError: The records cannot be read.
        """
        ...


@dataclass(frozen=True, slots=True)
class Finder:
    """Searches the past of cameras.

    Attributes:
        memory: Proposes spans.
        records: Reads the records from which windows are computed.
        windows: Computes windows.
        hidden: Returns whether any part of a camera's time range (Unix microseconds) is erased now.
        quota: Limits the windows computed per tenant; None: no limits.
        encode: Encodes a caller's own picture (a JPEG); None: searches by own pictures are rejected.
    """

    memory: Memory
    records: Records
    windows: PastWindows
    hidden: Hidden = lambda camera, begin_us, end_us: False
    quota: Quota | None = None
    encode: Callable[[bytes], StrideBlock] | None = None

    def find(
        self, question: FindQuestion, cancelled: Callable[[], bool] = lambda: False
    ) -> Iterator[FindEvent]:
        """Run a search, and yield its events.

        Args:
            question: The search.
            cancelled: Called before every window and between calls of the memory; True ends the search.

        Yields:
            Progress, hits, and a summary at the end. A hit is yielded when it is verified, and again under
            the same number whenever it grows.

        Raises:
            LookoutError: The question or the region to search by is unusable.
        """
        return _Search(self, question, cancelled).run()

    def keys_of(self, region: Region) -> torch.Tensor:
        """Return the mean key of a region's tokens [layers, width], in the key space of the memory's
        landmarks.

        Raises:
            LookoutError: The region's time is erased, or its tokens cannot be computed again.
        """
        if region.picture:
            if self.encode is None:
                raise RegionError(
                    "like: this service cannot search by your own picture; name a camera and a time"
                )
            return self.memory.compared(block_keys(self.windows, self.encode(region.picture), region))
        camera, begin_us, end_us = region.camera, region.time_us, region.time_us + 1
        if self.hidden(camera, begin_us, end_us):
            raise RegionError(f"like: camera {camera} was erased at that time; choose another picture")
        stride_us = self.windows.settings.stride_us
        epochs = self.records.near(camera, begin_us // 1000, (end_us + stride_us) // 1000)
        return self.memory.compared(region_keys(self.windows, epochs, region))


class QuotaError(LookoutError):
    """A tenant's quota allows no further windows of its cameras now."""


class _CancelledError(Exception):
    """The caller cancelled the search."""


_Proposal = tuple[float, PastSpan]
"""The negated p(yes) of a span, and the span. It is negated because a heap yields its smallest element
first."""


@dataclass(slots=True)
class _Search:
    """The state of one search."""

    finder: Finder
    question: FindQuestion
    cancelled: Callable[[], bool]
    pasts: Mapping[str, CameraPast] = field(default_factory=dict)
    ranked: int = 0
    asked_spans: int = 0
    not_searched: list[NotSearched] = field(default_factory=list)
    lost: dict[PastSpan, str] = field(default_factory=dict)
    unanswered: list[NotSearched] = field(default_factory=list)
    refused: dict[str, str] = field(default_factory=dict)
    scores: dict[PastSpan, float] = field(default_factory=dict)
    moments: Moments = field(init=False)
    incomplete_moments: list[_Proposal] = field(default_factory=list)
    fruitless: int = 0
    windows: int = 0
    total: int = 0
    flops: int = 0
    fetched: int = 0
    prices: dict[bool, list[int]] = field(default_factory=lambda: defaultdict(list))
    ended: str = "done"

    def __post_init__(self) -> None:
        sampling = self.finder.windows.settings
        self.moments = Moments(
            self.question.threshold,
            sampling.window_us,
            sampling.window_blocks,
            self._says_yes,
            self.finder.hidden,
        )

    def run(self) -> Iterator[FindEvent]:
        """Yield all events of `Finder.find`."""
        try:
            yield from self._proposed()
            if self.ended != "limit":
                yield from self._walked()
        except _CancelledError:
            self.ended = "cancelled"
        yield self._summary()

    def _verifying(self, camera: str) -> FindProgress:
        return FindProgress(stage="verify", camera=camera, done=self.windows, total=self._budget(self.total))

    # Proposals of the memory.

    def _proposed(self) -> Iterator[FindEvent]:
        question, sampling = self.question, self.finder.windows.settings
        pasts, missing = self.finder.memory.pasts(question.remembered)
        self.pasts = {camera: past for camera, past in pasts.items() if question.names(camera)}
        self.not_searched += [NotSearched(reason=reason) for reason in missing]
        if question.like is not None:
            compared = compared_with(self.finder.keys_of(question.like), self.pasts)
        else:
            compared = self.pasts, self.finder.memory.queries(question.clauses[0])
        spans = ranked_spans(*compared, sampling.window_us, question.since_us, question.until_us)
        self.ranked, self.total = len(spans), len(spans) * sampling.window_blocks
        count = min(len(spans), max(LEAST_SPANS, round(ASKED * question.share * len(spans))))
        note = f"{len(spans)} spans of {len(self.pasts)} cameras; the memory is asked about {count} of them"
        yield FindProgress(stage="rank", done=len(spans), total=len(spans), note=note)
        proposals: list[_Proposal] = []
        waiting, stop = deque[PastSpan](), 0
        while (waiting or stop < count) and self.ended != "limit":
            self._check()
            if len(waiting) < TOGETHER and stop < count:
                begin, stop = stop, min(count, stop + _TAKEN)
                waiting += [span for span in spans.part(begin, stop) if span not in self.scores]
                continue
            batch = self._not_erased([waiting.popleft() for _ in range(min(TOGETHER, len(waiting)))])
            self._ask(batch, proposals)
            # A moment may be longer than a span. After a yes, ask about the two adjacent spans next.
            adjacent = {near for span in batch if self._says_yes(span) for near in (span.before, span.after)}
            adjacent = set(filter(self._is_inside, adjacent)) if self.asked_spans < 2 * count else set()
            waiting = deque([*sorted(adjacent), *(span for span in waiting if span not in adjacent)])
            waiting = deque(span for span in waiting if span not in self.scores)
            total = len(self.scores) + len(waiting) + count - stop
            yield FindProgress(stage="ask", done=len(self.scores), total=total)
            # Verify proposals above the threshold at once, so that the first hit comes early.
            while proposals and -proposals[0][0] >= question.threshold and not self._is_enough():
                yield from self._verified(heapq.heappop(proposals))
        # Complete known moments with up to half of the budget, then verify the weaker proposals, then
        # complete the remaining moments.
        yield from self._complete(self._budget(self.total) // 2)
        while proposals and not self._is_enough():
            yield from self._verified(heapq.heappop(proposals))
        yield from self._complete(self._budget(self.total))
        not_asked = [span for span in [*waiting, *spans.part(stop)] if span not in self.scores]
        self._skip(not_asked, "ranked below the spans that the memory was asked about", kind="ranked")
        unverified = [span for _, span in proposals if not self._is_of_hit(span)]
        likely = self._not_erased([span for span in unverified if self._says_yes(span)])
        self._skip(likely, "the memory says yes, but the windows of this time were not computed", self.scores)
        unlikely = [span for span in unverified if not self._says_yes(span)]
        self._skip(
            unlikely, "the memory gave it a lower p(yes) than the spans that were verified", kind="doubted"
        )

    def _not_erased(self, spans: Sequence[PastSpan]) -> list[PastSpan]:
        """Return the spans that are not erased, and note the erased ones for the summary."""
        erased = {span for span in spans if self.finder.hidden(span.camera, span.begin_us, span.end_us)}
        self.moments.erased |= {(span.camera, span.begin_us, span.end_us) for span in erased}
        self.scores |= dict.fromkeys(erased, 0.0)
        return [span for span in spans if span not in erased]

    def _ask(self, spans: Sequence[PastSpan], proposals: list[_Proposal]) -> None:
        for span, answer in zip(spans, self.finder.memory.ask(spans, self.question.clauses[0]), strict=True):
            self.flops += answer.flops
            self.fetched += answer.fetched_bytes
            self.scores[span] = answer.p_yes
            if answer.missing:
                # The memory could not read the span, so its windows are walked as if no memory covered it.
                self.lost[span] = answer.missing
            else:
                self.asked_spans += 1
                heapq.heappush(proposals, (-answer.p_yes, span))

    def _is_of_hit(self, span: PastSpan) -> bool:
        """Whether a hit overlaps a span, so that the span's moment is known already."""
        return self.moments.touches(span.camera, span.begin_us, span.end_us)

    def _is_inside(self, span: PastSpan) -> bool:
        """Whether a span overlaps the time range of the search and a chapter of its camera."""
        since_us, until_us = self.question.since_us, self.question.until_us
        if (since_us is not None and span.end_us <= since_us) or (
            until_us is not None and span.begin_us >= until_us
        ):
            return False
        return self.pasts[span.camera].covers(span.begin_us, span.end_us)

    def _says_yes(self, span: PastSpan) -> bool:
        return self.scores.get(span, 0.0) >= self.question.threshold

    def _moment_of(self, span: PastSpan) -> list[PastSpan]:
        """Return the span and the adjacent spans before and after it about which the memory says yes."""
        moment = [span]
        while self._says_yes(moment[0].before):
            moment.insert(0, moment[0].before)
        while self._says_yes(moment[-1].after):
            moment.append(moment[-1].after)
        return moment

    def _is_enough(self) -> bool:
        """Whether to stop verifying proposals. Sets `ended` if a limit is reached."""
        if self._is_full():
            self.ended = "limit"
        elif self._is_spent():
            self.ended = "budget"
        return self.ended != "done" or self.fruitless >= PATIENCE

    def _is_spent(self) -> bool:
        """Whether the budget of windows is used up."""
        return self.windows >= self._budget(self.total)

    def _is_full(self) -> bool:
        """Whether there are as many hits as the search asks for."""
        self.moments.withdraw_erased()
        return len(self.moments.standing) >= self.question.limit

    def _budget(self, windows: int) -> int:
        return min(windows, max(LEAST_WINDOWS, round(self.question.share * windows)))

    def _verified(self, proposal: _Proposal) -> Iterator[FindEvent]:
        """Verify a proposal by computing windows, unless a hit already overlaps its moment."""
        score, span = proposal
        moment = self._moment_of(span)
        if self.moments.touches(span.camera, moment[0].begin_us, moment[-1].end_us):
            return
        if not self._not_erased([span]):
            return
        if span.camera in self.refused:
            self._skip([span], self.refused[span.camera])
            return
        hits, windows = self.moments.last_number, self.windows
        yield from self._note_failures(span, self._probe(moment, span, -score))
        if self.moments.last_number > hits:
            self.fruitless = 0
        elif self.windows > windows:
            self.fruitless += 1

    def _note_failures(self, span: PastSpan, steps: Iterator[FindEvent]) -> Iterator[FindEvent]:
        """Yield the events of the steps that verify a span. If a step fails, note the span as not
        searched."""
        yield self._verifying(span.camera)
        try:
            yield from steps
        except QuotaError as error:
            self.refused[span.camera] = str(error)
            self._skip([span], str(error))
        except LookoutError as error:
            self._skip([span], str(error))
            self.fruitless += 1

    def _probe(self, moment: Sequence[PastSpan], span: PastSpan, score: float) -> Iterator[FindEvent]:
        """Compute the moment's cheapest window, the one closest after its key window. If its answer is no, or
        if computing it alone would save little, compute all windows of the moment's best span."""
        places = self._cheapest_windows(moment, span)
        if not places:
            reason = "tokens.v1 has no records of this time; they may be past their retention"
            self._skip([span], reason, kind="gone")
        for epoch, index in places:
            if index is not None:
                yield from self._computed(epoch, index, index, score)
                begin_us, end_us = moment[0].begin_us, moment[-1].end_us
                if self.moments.touches(span.camera, begin_us, end_us, epoch.epoch):
                    self.incomplete_moments.append((-score, span))
                    continue
            yield from self._compute_ends(epoch, span, score)

    def _cheapest_windows(
        self, moment: Sequence[PastSpan], span: PastSpan
    ) -> list[tuple[EpochRecords, int | None]]:
        """Return the epochs of a span, each with the moment's window that needs the fewest other windows.

        There are several epochs if the camera's clock was set back. The window is None if it costs more than
        half as much as the whole span.
        """
        near = [own for own in moment if abs(own.begin_us - span.begin_us) <= self._chain_us]
        stretch = PastSpan(span.camera, near[0].begin_us, near[-1].end_us)
        out: list[tuple[EpochRecords, int | None]] = []
        for epoch in self._near(stretch):
            if not (inside := _ends(epoch, span)):
                continue
            keys = chain_keys(epoch, self.finder.windows.planner)
            cost, index = min((index - keys.get(index, index), index) for index in _ends(epoch, stretch))
            span_cost = max(inside) - keys.get(inside[0], inside[0])
            out.append((epoch, index if 2 * (cost + 1) <= span_cost + 1 else None))
        return out

    @property
    def _chain_us(self) -> int:
        """Length of the longest chain of windows in microseconds, which is the largest distance to a key
        window."""
        windows = self.finder.windows
        return windows.planner.settings.key_every * windows.settings.stride_us

    def _compute_span(self, span: PastSpan, score: float) -> Iterator[FindEvent]:
        """Compute all windows that end in a span."""
        for epoch in self._near(span):
            yield from self._compute_ends(epoch, span, score)

    def _compute_ends(self, epoch: EpochRecords, span: PastSpan, score: float) -> Iterator[FindEvent]:
        """Compute all windows of an epoch that end in a span."""
        ends = _ends(epoch, span)
        if any(index not in self.moments.verdicts[epoch.stream] for index in ends):
            yield from self._computed(epoch, ends[0], ends[-1], score)

    def _complete(self, windows: int) -> Iterator[FindEvent]:
        """Compute the best span of each moment of which only one window was computed, most probable first,
        until the search has computed `windows` windows in total."""
        self.incomplete_moments.sort(reverse=True)
        while self.incomplete_moments and self.windows < windows:
            score, span = self.incomplete_moments.pop()
            if self._not_erased([span]) and span.camera not in self.refused:
                yield from self._note_failures(span, self._compute_span(span, -score))

    # Exact windows.

    def _near(self, span: PastSpan) -> list[EpochRecords]:
        """Return the epochs with records of a span that the search covers."""
        epochs = self.finder.records.near(span.camera, span.begin_us // 1000, span.end_us // 1000)
        return [epoch for epoch in epochs if epoch.camera == span.camera and self._is_open(epoch)]

    def _is_open(self, epoch: EpochRecords) -> bool:
        """Whether the search covers an epoch's camera and tenant."""
        tenants = self.question.tenants
        return self.question.names(epoch.camera) and (not tenants or _tenant(epoch) in tenants)

    def _computed(
        self, epoch: EpochRecords, first: int, last: int, proposed: float | None
    ) -> Iterator[FindEvent]:
        """Compute a chain's windows from its key window to `last`; yield the hits that are new or have grown.

        Raises:
            LookoutError: A window cannot be computed. It is raised after hits in earlier windows were
                yielded.
        """
        failure: LookoutError | _CancelledError | None = None
        try:
            for verdict in self._replayed(epoch, self.question.clauses[0], first, last):
                self.moments.verdicts[epoch.stream][verdict.window] = verdict
        except (LookoutError, _CancelledError) as error:
            failure = error
        for hit in self.moments.grown(epoch, proposed):
            yield from self._followed(hit)
        if failure is not None:
            raise failure

    def _replayed(self, epoch: EpochRecords, clause: str, first: int, last: int) -> Iterator[Verdict]:
        """Yield the verdicts of a chain's windows, from the key window of `first` to `last`."""
        windows = self.finder.windows
        key = chain_keys(epoch, windows.planner).get(first, first)
        chain = frozenset(i for i in epoch.blocks.keys() | epoch.verdicts.keys() if key <= i <= last)
        rule = Rule(threshold=self.question.threshold)
        watch = Watch(id="find", version=1, question=clause, rule=rule)  # used only here, never enabled
        with closing(windows.verdicts(epoch, watch, PastScope(cameras=(epoch.camera,)), chain)) as replayed:
            while True:
                self._check()
                self._check_quota(epoch)
                if (past := next(replayed, None)) is None:
                    return
                self._take(epoch, past)
                yield past.verdict

    # Later clauses.

    def _followed(self, hit: Hit) -> Iterator[FindEvent]:
        """Yield a hit of the first clause if all later clauses also hold.

        Each later clause must hold in a window that begins no earlier than the previous clause's window, and
        less than `LATER_US` after that window ends. For the second clause, the hit counts as the previous
        window.
        """
        then, begin_us, end_us = list(hit.then), hit.begin_us, hit.end_us
        for clause in self.question.clauses[1 + len(then) :]:
            self.moments.partial.add(hit.number)
            yield self._verifying(hit.camera)
            verdict = self._first_yes(clause, hit.camera, begin_us, end_us + LATER_US)
            if verdict is None:
                return
            then.append(verdict)
            begin_us, end_us = verdict.start.ToMicroseconds(), verdict.end.ToMicroseconds()
        others = [own for number, own in self.moments.standing.items() if number != hit.number]
        if any(then and then[-1].id == own.then[-1].id for own in others):
            return  # another hit ends with the same window
        self.moments.partial.discard(hit.number)
        grown = replace(hit, then=tuple(then), end_us=max(hit.end_us, end_us))
        self.moments.hits[hit.number] = grown
        yield grown

    def _first_yes(self, clause: str, camera: str, begin_us: int, until_us: int) -> Verdict | None:
        """Return the verdict of the first window that begins in [begin_us, until_us) and in which a clause
        holds.

        Only the spans about which the memory says yes, or could read nothing, are computed; if there are
        none, only the span with the highest p(yes).

        Returns:
            The window's verdict; None if the clause holds in no computed window, or the budget ended.
        """
        length_us = self.finder.windows.settings.window_us
        if self.question.until_us is not None:
            until_us = min(until_us, self.question.until_us)
        numbers = range(begin_us // length_us, -(-until_us // length_us))
        spans = [PastSpan(camera, number * length_us, (number + 1) * length_us) for number in numbers]
        spans = self._not_erased(spans)
        scores: dict[PastSpan, float] = {}
        for first in range(0, len(spans), TOGETHER):
            self._check()
            batch = spans[first : first + TOGETHER]
            for span, answer in zip(batch, self.finder.memory.ask(batch, clause), strict=True):
                self.flops += answer.flops
                self.fetched += answer.fetched_bytes
                scores[span] = 1.0 if answer.missing else answer.p_yes
        least = min(self.question.threshold, max(scores.values(), default=0.0))
        for span in [span for span in spans if scores[span] >= least]:
            if self._is_spent():
                self._skip([span], f"the budget of windows was used up before {clause!r} was asked")
                return None
            try:
                for epoch in self._near(span):
                    ends = _ends(epoch, span)
                    for verdict in self._replayed(epoch, clause, ends[0], ends[-1]) if ends else ():
                        start_us, end_us = verdict.start.ToMicroseconds(), verdict.end.ToMicroseconds()
                        if (
                            verdict.p_yes >= self.question.threshold
                            and begin_us <= start_us < until_us
                            and not self.finder.hidden(camera, start_us, end_us)
                        ):
                            return verdict
            except LookoutError as error:
                self._skip([span], str(error))
        return None

    def _check_quota(self, epoch: EpochRecords) -> None:
        """Raise QuotaError if the camera's tenant has used up its quota of windows."""
        quota = self.finder.quota
        if quota is not None and (reason := quota.refusal(_tenant(epoch))) is not None:
            raise QuotaError(reason)

    def _take(self, epoch: EpochRecords, past: PastVerdict) -> None:
        """Count a window and its cost; if it has no answer, note why."""
        verdict, cost = past.verdict, past.verdict.cost
        self.windows += bool(past.computed_flops)
        self.flops += past.computed_flops
        if past.computed_flops and self.finder.quota is not None:
            self.finder.quota.add(_tenant(epoch), "searched", 1)
        if not verdict.HasField("p_yes"):
            self._note_unanswered(verdict)
        elif past.computed_flops:
            self.prices[verdict.basis == "key"].append(cost.flops_prefill + cost.flops_question)

    def _note_unanswered(self, verdict: Verdict) -> None:
        """Note a window without an answer. Overlapping windows with the same reason become one entry."""
        begin_us, end_us = verdict.start.ToMicroseconds(), verdict.end.ToMicroseconds()
        before = self.unanswered[-1] if self.unanswered else None
        if (
            before is not None
            and (before.camera, before.reason) == (verdict.camera, verdict.reason)
            and before.begin_us <= begin_us <= before.end_us
        ):
            begin_us = before.begin_us
            self.unanswered.pop()
        self.unanswered.append(
            NotSearched(camera=verdict.camera, begin_us=begin_us, end_us=end_us, reason=verdict.reason)
        )

    # Time that no memory covers.

    def _walked(self) -> Iterator[FindEvent]:
        self._check()
        question = self.question
        since_ms = (question.since_us or 0) // 1000
        until_ms = _LATEST_MS if question.until_us is None else question.until_us // 1000
        try:
            epochs = self.finder.records.all(question.cameras, since_ms, until_ms)
        except LookoutError as error:
            epochs = str(error)
        if isinstance(epochs, str):
            self.not_searched.append(
                NotSearched(begin_us=question.since_us, end_us=question.until_us, reason=epochs)
            )
            return
        epochs = [epoch for epoch in epochs if self._is_open(epoch)]
        self._note_unknown({epoch.camera for epoch in epochs} | self.pasts.keys())
        chains: list[_Chain] = []
        self.total = 0
        for epoch in epochs:
            inside = [index for index in epoch.blocks if since_ms <= epoch.end_ms(index) < until_ms]
            self.total += len(inside)
            chains += self._uncovered(epoch, inside)
        if chains:
            yield from self._walk(chains)

    def _note_unknown(self, known: Collection[str]) -> None:
        """Note the requested cameras and patterns about which nothing is known."""
        for name in self.question.cameras:
            is_id = self.question.exact or "*" not in name
            if name not in known and (is_id or not any(names_id(name, camera) for camera in known)):
                reason = f"neither a memory nor tokens.v1 has data of {name} in this time"
                self.not_searched.append(NotSearched(camera=name if is_id else "", reason=reason))

    def _uncovered(self, epoch: EpochRecords, inside: Sequence[int]) -> list[_Chain]:
        """Return the chains of the windows that no memory covers, or whose memory could not be read. Windows
        with a repeated answer are omitted, because their answer is that of the window before."""
        past, verdicts = self.pasts.get(epoch.camera, CameraPast()), self.moments.verdicts[epoch.stream]
        keys = chain_keys(epoch, self.finder.windows.planner)
        chains: dict[int, _Chain] = {}
        for index in sorted(inside):
            record = epoch.blocks[index]
            begin_us, end_us = (
                record.wall_offset_us + time_us for time_us in (record.block.start_us, record.block.end_us)
            )
            if (
                index in verdicts
                or is_repeated(epoch, index)
                or self.finder.hidden(epoch.camera, begin_us, end_us)
            ):
                continue
            if past.covers(begin_us, end_us) and self._span_of(epoch, index) not in self.lost:
                continue
            chain = chains.setdefault(keys[index], _Chain(epoch))
            chain.windows.append(index)
            moved = sum(patch.kept for patch in record.block.patches if not patch.anchor)
            chain.motion = max(chain.motion, moved)
        return list(chains.values())

    def _span_of(self, epoch: EpochRecords, index: int) -> PastSpan:
        """Return the span that contains a window's end."""
        length_us = self.finder.windows.settings.window_us
        begin_us = (epoch.end_ms(index) * 1000 - 1) // length_us * length_us
        return PastSpan(epoch.camera, begin_us, begin_us + length_us)

    def _walk(self, chains: list[_Chain]) -> Iterator[FindEvent]:
        """Compute the first window of each chain, starting with the chains with most motion, then the rest of
        the most promising chains."""
        count = sum(len(chain.windows) for chain in chains)
        begun, budget = self.windows, self._budget(count)
        note = f"no memory covers {count} windows; at most {min(count, budget)} of them are computed"
        yield FindProgress(stage="walk", done=0, total=min(count, budget), note=note)
        chains.sort(key=lambda chain: -chain.motion)
        probed: list[tuple[float, _Chain]] = []
        for chain in chains:
            if self._is_walked(begun + budget // 2):
                break
            yield from self._step(chain, chain.windows[0], begun, budget)
            probe = self.moments.verdicts[chain.epoch.stream].get(chain.windows[0])
            probed.append((-probe.p_yes if probe is not None and probe.p_yes >= RISES else 0.0, chain))
        for _, chain in sorted(probed, key=lambda entry: (entry[0], -entry[1].motion)):
            if self._is_walked(begun + budget):
                break
            yield from self._step(chain, chain.windows[-1], begun, budget)
        self._note_unwalked(chains)

    def _step(self, chain: _Chain, last: int, begun: int, budget: int) -> Iterator[FindEvent]:
        if any(
            index <= last for index in chain.windows if index not in self.moments.verdicts[chain.epoch.stream]
        ):
            done = self.windows - begun
            yield FindProgress(stage="walk", camera=chain.epoch.camera, done=done, total=budget)
            try:
                yield from self._computed(chain.epoch, chain.windows[0], last, None)
            except LookoutError as error:
                self.not_searched.append(NotSearched(camera=chain.epoch.camera, reason=str(error)))

    def _is_walked(self, windows: int) -> bool:
        """Whether to end the walk, because the search has computed `windows` windows or has enough hits."""
        if self._is_full():
            self.ended = "limit"
        return self.ended == "limit" or self.windows >= windows

    def _note_unwalked(self, chains: Sequence[_Chain]) -> None:
        """Note, for each camera, how many of the windows that no memory covers were computed, if not all
        were."""
        unwalked, walked = set[PastSpan](), set[PastSpan]()
        for chain in chains:
            for index in chain.windows:
                is_done = index in self.moments.verdicts[chain.epoch.stream]
                (walked if is_done else unwalked).add(self._span_of(chain.epoch, index))
        self.lost = {span: why for span, why in self.lost.items() if span not in walked - unwalked}
        cameras: dict[str, list[_Chain]] = defaultdict(list)
        for chain in chains:
            cameras[chain.epoch.camera].append(chain)
        for camera, own in sorted(cameras.items()):
            ends_ms = [chain.epoch.end_ms(index) for chain in own for index in chain.windows]
            computed = sum(
                index in self.moments.verdicts[chain.epoch.stream] for chain in own for index in chain.windows
            )
            if computed < len(ends_ms):
                reason = f"no memory covers this time; {computed} of its {len(ends_ms)} windows were computed"
                begin_us = min(ends_ms) * 1000 - self.finder.windows.settings.stride_us
                end_us = max(ends_ms) * 1000
                self.not_searched.append(
                    NotSearched(camera=camera, begin_us=begin_us, end_us=end_us, reason=reason, kind="walked")
                )

    # Bookkeeping.

    def _check(self) -> None:
        if self.cancelled():
            raise _CancelledError

    def _skip(
        self,
        spans: Sequence[PastSpan],
        reason: str,
        proposed: Mapping[PastSpan, float] | None = None,
        kind: Left = "",
    ) -> None:
        """Note spans that were not searched. Consecutive spans become one range, with their largest
        `proposed`."""
        runs: list[list[PastSpan]] = []
        for span in sorted(spans, key=lambda span: (span.camera, span.begin_us)):
            if runs and runs[-1][-1].after == span:
                runs[-1].append(span)
            else:
                runs.append([span])
        self.not_searched += [
            NotSearched(
                camera=run[0].camera,
                begin_us=run[0].begin_us,
                end_us=run[-1].end_us,
                reason=reason,
                proposed=max(proposed[span] for span in run) if proposed is not None else None,
                kind=kind,
            )
            for run in runs
        ]

    def _summary(self) -> FindSummary:
        self.moments.withdraw_erased()
        hits = self.moments.standing
        for reason in dict.fromkeys(self.lost.values()):
            self._skip([span for span, why in self.lost.items() if why == reason], reason)
        self.not_searched += [*self.unanswered, *self.moments.not_searched()]
        key_flops, usual_flops = (
            sum(own) / len(own) if (own := self.prices[is_key] or self.prices[not is_key]) else 0.0
            for is_key in (True, False)
        )
        interval = self.finder.windows.planner.settings.key_every
        flops_total = round(self.total * (usual_flops + (key_flops - usual_flops) / interval))
        cost = FindCost(
            windows=self.windows,
            windows_total=self.total,
            flops=self.flops,
            flops_total=flops_total,
            fetched_bytes=self.fetched,
            share=self.flops / flops_total if flops_total else None,
        )
        once = {entry.SerializeToString(deterministic=True): entry for entry in self.not_searched}
        return FindSummary(
            hits=sorted(hits, key=lambda number: (-hits[number].p_yes, number)),
            cameras=len(self.pasts.keys() | {stream.rpartition("/")[0] for stream in self.moments.verdicts}),
            ranked=self.ranked,
            asked=self.asked_spans,
            not_searched=once.values(),
            cost=cost,
            ended=self.ended,
        )


@dataclass(slots=True, eq=False)
class _Chain:
    """Windows of one chain that no memory covers.

    Attributes:
        epoch: The chain's epoch.
        windows: Numbers of the windows, ascending.
        motion: Largest number of tokens kept outside anchors in one of the windows' newest blocks.
    """

    epoch: EpochRecords
    windows: list[int] = field(default_factory=list)
    motion: int = 0


def _ends(epoch: EpochRecords, span: PastSpan) -> list[int]:
    """Return the windows of an epoch that end in a span, ascending."""
    return sorted(i for i in epoch.blocks if span.begin_us < epoch.end_ms(i) * 1000 <= span.end_us)


def _tenant(epoch: EpochRecords) -> str:
    """Return the tenant of an epoch's camera."""
    return next((tenant_of(record.labels.tenant) for record in epoch.blocks.values()), tenant_of(""))
