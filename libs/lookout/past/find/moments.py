"""Joins windows answered yes into hits, one hit per moment. Erased windows are omitted."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

from lookout.past.find.spans import PastSpan
from lookout.past.find.types import Hit
from lookout.streams.chains import EpochRecords
from lookout.v1.lineage_pb2 import RecordRef
from lookout.v1.memory_pb2 import NotSearched
from lookout.v1.verdicts_pb2 import Verdict

Hidden = Callable[[str, int, int], bool]
"""Returns whether any part of a camera's time range (Unix microseconds) is erased now."""


@dataclass(slots=True)
class Moments:
    """The hits of a search.

    Attributes:
        threshold: Minimum p(yes) of a window that belongs to a hit.
        length_us: Length of a window and of a span, in microseconds.
        blocks: Number of stride blocks in a window.
        says_yes: Returns whether the memory says yes about a span.
        hidden: Returns whether any part of a time range is erased now.
        verdicts: Verdicts computed so far, by stream and window.
        hits: Hits by number, including those in `partial`.
        last_number: Highest number of a hit so far.
        erased: Erased times that were omitted: camera, begin and end.
        partial: Numbers of hits for which a later clause does not hold, or was not checked yet.
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
        """The hits for which every clause of the question holds, by number."""
        return {number: hit for number, hit in self.hits.items() if number not in self.partial}

    def touches(self, camera: str, begin_us: int, end_us: int, epoch: int | None = None) -> bool:
        """Whether a hit of a camera overlaps a time range; with `epoch`, only hits in that epoch count."""
        return any(
            hit.camera == camera
            and hit.begin_us < end_us
            and hit.end_us > begin_us
            and epoch in (None, hit.verdict.epoch)
            for hit in self.hits.values()
        )

    def grown(self, epoch: EpochRecords, proposed: float | None) -> Iterator[Hit]:
        """Update an epoch's hits from the verdicts computed so far; yield the hits that are new or have
        grown.

        Args:
            epoch: Records of the epoch.
            proposed: The memory's p(yes) for the span whose windows were computed last; None: the memory did
                not propose it.
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
        """Remove hits whose time was erased after they were found."""
        for number, hit in list(self.hits.items()):
            if self.hidden(hit.camera, hit.begin_us, hit.end_us):
                self.erased.add((hit.camera, hit.begin_us, hit.end_us))
                del self.hits[number], self._members[f"{hit.camera}/{hit.verdict.epoch}"][number]

    def not_searched(self) -> list[NotSearched]:
        """Return the erased times that were omitted; adjacent and overlapping ones of a camera are joined."""
        out: list[NotSearched] = []
        for camera, begin_us, end_us in sorted(self.erased):
            last = out[-1] if out else None
            if last is not None and last.camera == camera and begin_us <= last.end_us:
                last.end_us = max(end_us, last.end_us)
            else:
                erased = NotSearched(camera=camera, begin_us=begin_us, end_us=end_us)
                erased.reason = erased.kind = "erased"
                out.append(erased)
        return out

    def _runs(self, known: Mapping[int, Verdict]) -> list[list[int]]:
        """Group the windows whose p(yes) reaches the threshold by moment. Successive windows belong to the
        same moment if they overlap, or if the memory says yes about all the time between them."""
        runs: list[list[int]] = []
        for index, verdict in sorted(known.items()):
            if verdict.p_yes < self.threshold:
                continue
            span = verdict.camera, verdict.start.ToMicroseconds(), verdict.end.ToMicroseconds()
            if self.hidden(*span):
                self.erased.add(span)
            elif runs and self._same_moment(known[runs[-1][-1]], verdict):
                runs[-1].append(index)
            else:
                runs.append([index])
        return runs

    def _picture_us(self, middle: Verdict) -> int:
        """Return the time of the picture that best shows a moment, Unix microseconds: the middle of the
        newest stride of the moment's middle window.

        An answer depends mostly on the window's newest stride. The frames that the window attended to most
        are no better choice: they are often in its oldest stride, which may show nothing yet (`make
        bench-find` compares both).
        """
        return middle.end.ToMicroseconds() - self.length_us // self.blocks // 2

    def _same_moment(self, earlier: Verdict, later: Verdict) -> bool:
        """Whether two windows belong to the same moment."""
        end_us, begin_us = earlier.end.ToMicroseconds(), later.start.ToMicroseconds()
        if begin_us <= end_us:
            return True
        between = range(end_us // self.length_us * self.length_us, begin_us, self.length_us)
        return all(self.says_yes(PastSpan(later.camera, us, us + self.length_us)) for us in between)


def _segments(epoch: EpochRecords, window: int, blocks: int) -> tuple[RecordRef, ...]:
    """Return references to a window's segments, in order."""
    refs: dict[tuple[str, int, int], RecordRef] = {}
    for index in range(max(0, window - blocks + 1), window + 1):
        if (record := epoch.blocks.get(index)) is not None:
            refs |= {(ref.topic, ref.partition, ref.offset): ref for ref in record.block.embeddings.segments}
    return tuple(refs[place] for place in sorted(refs))
