"""Windows that say yes become hits: those of one moment are one hit, and erased windows are left out."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace

from lookout.past.find.spans import PastSpan
from lookout.past.find.types import Hit, NotSearched
from lookout.streams.chains import EpochRecords
from lookout.v1.lineage_pb2 import RecordRef
from lookout.v1.verdicts_pb2 import Verdict

Hidden = Callable[[str, int, int], bool]
"""Whether a time of a camera (Unix microseconds) is erased now."""


@dataclass(slots=True)
class Moments:
    """The hits of a search.

    Attributes:
        threshold: Least p(yes) of a window of a hit.
        length_us: Of a window, and of a span.
        blocks: Of a window.
        says_yes: Whether the memory says yes to a span.
        hidden: What is erased now.
        verdicts: Outcomes that were computed, by stream and window.
        hits: By number, those that stand.
        last_number: The highest number that was given.
        erased: Times of windows that said yes and are erased.
        partial: Numbers of hits that do not stand: a later clause of the question does not hold.
    """

    threshold: float
    length_us: int
    blocks: int
    says_yes: Callable[[PastSpan], bool]
    hidden: Hidden
    verdicts: dict[str, dict[int, Verdict]] = field(default_factory=lambda: defaultdict(dict))
    hits: dict[int, Hit] = field(default_factory=dict)
    last_number: int = 0
    erased: set[tuple[str, int, int]] = field(default_factory=set)
    partial: set[int] = field(default_factory=set)
    _members: dict[str, dict[int, set[int]]] = field(default_factory=lambda: defaultdict(dict))

    @property
    def standing(self) -> dict[int, Hit]:
        """The hits of which every clause holds."""
        return {number: hit for number, hit in self.hits.items() if number not in self.partial}

    def touches(self, camera: str, begin_us: int, end_us: int, epoch: int | None = None) -> bool:
        """Whether a hit of a camera reaches into a time; `epoch`: of that epoch alone."""
        return any(
            hit.camera == camera
            and hit.begin_us < end_us
            and hit.end_us > begin_us
            and epoch in (None, hit.verdict.epoch)
            for hit in self.hits.values()
        )

    def grown(self, epoch: EpochRecords, proposed: float | None) -> Iterator[Hit]:
        """The hits of an epoch that are new, or have grown, by the outcomes that are known now.

        Args:
            epoch: Its records.
            proposed: p(yes) of the memory for the span whose windows were computed last.
        """
        verdicts, members = self.verdicts[epoch.stream], self._members[epoch.stream]
        for run in self._runs(verdicts):
            touched = sorted(number for number, own in members.items() if own & set(run))
            if touched and members[touched[0]] == set(run):
                continue
            number, *merged = touched or [self.last_number + 1]
            self.last_number = max(self.last_number, number)
            then: tuple[Verdict, ...] = ()
            for part in touched:
                proposed = max(proposed or 0.0, self.hits[part].proposed or 0.0) or None
                then = then or self.hits[part].then
                self.partial.discard(part)
                del members[part], self.hits[part]
            members[number] = set(run)
            best = max((verdicts[index] for index in run), key=lambda own: own.p_yes)
            ends = [verdict.end.ToMicroseconds() for verdict in (verdicts[run[-1]], *then)]
            self.hits[number] = Hit(
                number,
                best,
                verdicts[run[0]].start.ToMicroseconds(),
                max(ends),
                len(run),
                proposed,
                _segments(epoch, best.window, self.blocks),
                tuple(merged),
                then,
                self._picture_us(verdicts[run[len(run) // 2]]),
            )
            yield self.hits[number]

    def withdraw_erased(self) -> None:
        """Drop the hits of which something was erased since they were given."""
        for number, hit in list(self.hits.items()):
            if self.hidden(hit.camera, hit.begin_us, hit.end_us):
                self.erased.add((hit.camera, hit.begin_us, hit.end_us))
                del self.hits[number], self._members[f"{hit.camera}/{hit.verdict.epoch}"][number]

    def not_searched(self) -> list[NotSearched]:
        """The erased times, those of a camera that touch as one."""
        out: list[NotSearched] = []
        for camera, begin_us, end_us in sorted(self.erased):
            last = out[-1] if out else None
            if last is not None and last.camera == camera and begin_us <= (last.end_us or 0):
                out[-1] = replace(last, end_us=max(end_us, last.end_us or 0))
            else:
                out.append(NotSearched(camera, begin_us, end_us, "erased", kind="erased"))
        return out

    def _runs(self, known: Mapping[int, Verdict]) -> list[list[int]]:
        """Windows with p(yes) at the threshold or above, those of one moment together: they share pictures,
        or the memory says yes to everything between them."""
        runs: list[list[int]] = []
        for index, verdict in sorted(known.items()):
            if verdict.p_yes < self.threshold:
                continue
            span = verdict.camera, verdict.start.ToMicroseconds(), verdict.end.ToMicroseconds()
            if self.hidden(*span):
                self.erased.add(span)
            elif runs and self._is_one(known[runs[-1][-1]], verdict):
                runs[-1].append(index)
            else:
                runs.append([index])
        return runs

    def _picture_us(self, middle: Verdict) -> int:
        """When the picture that shows a moment was taken, by the middle one of its windows that say yes.

        An answer follows the window's newest stride. What one window attended to is of its oldest stride as
        often, which may show nothing yet (`make bench-find` compares both).
        """
        return middle.end.ToMicroseconds() - self.length_us // self.blocks // 2

    def _is_one(self, earlier: Verdict, later: Verdict) -> bool:
        """Whether two windows are of one moment."""
        end_us, begin_us = earlier.end.ToMicroseconds(), later.start.ToMicroseconds()
        if begin_us <= end_us:
            return True
        between = range(end_us // self.length_us * self.length_us, begin_us, self.length_us)
        return all(self.says_yes(PastSpan(later.camera, us, us + self.length_us)) for us in between)


def _segments(epoch: EpochRecords, window: int, blocks: int) -> tuple[RecordRef, ...]:
    """The segments that show a window, in their order."""
    refs: dict[tuple[str, int, int], RecordRef] = {}
    for index in range(max(0, window - blocks + 1), window + 1):
        if (record := epoch.blocks.get(index)) is not None:
            refs |= {(ref.topic, ref.partition, ref.offset): ref for ref in record.block.embeddings.segments}
    return tuple(refs[place] for place in sorted(refs))
