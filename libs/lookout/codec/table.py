"""The frame table of a file: one scan over its packets, nothing decoded."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction

import av
import numpy as np
import numpy.typing as npt

from lookout.codec.container import Video, ticks_to_us
from lookout.codec.nal import begins_clean
from lookout.codec.sampling import SamplingGrid
from lookout.codec.timeline import MAX_GAP_US, Timeline

I64 = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Pick:
    """A frame to sample: presentation index, grid point, time since the file's first frame."""

    index: int
    slot: int
    time_us: int
    pts: int


@dataclass(frozen=True, slots=True)
class FrameTable:
    """Packets in decoding order. pts, dts: int64 [n] ticks; key, clean: bool [n]; size: int64 [n] bytes.

    `clean` marks keyframes at which decoding can begin with a whole picture. `ordered` is False where time
    stamps are missing or repeat: then frames can only be told apart by decoding in order."""

    pts: I64
    dts: I64
    key: Flags
    clean: Flags
    size: I64
    time_base: Fraction
    fps: Fraction
    ordered: bool

    def __len__(self) -> int:
        return len(self.pts)

    @classmethod
    def scan(cls, video: Video, take: Callable[[av.Packet], None] | None = None) -> FrameTable:
        """Read all packets of an opened video; `take` gets each of them."""
        pts, dts, key, clean, size = [], [], [], [], []
        stamped = True
        for packet in video.packets():
            if take is not None:
                take(packet)
            stamped = stamped and packet.pts is not None
            pts.append(packet.pts if packet.pts is not None else 0)
            dts.append(packet.dts if packet.dts is not None else pts[-1])
            key.append(packet.is_keyframe)
            clean.append(packet.is_keyframe and begins_clean(bytes(packet), video.codec))
            size.append(packet.size)
        return table_of(
            video,
            np.array(pts, np.int64),
            np.array(dts, np.int64),
            np.array(key, np.bool_),
            np.array(clean, np.bool_),
            np.array(size, np.int64),
            stamped=stamped,
        )

    def times(self) -> tuple[I64, list[int]]:
        """(packet per presentation index, its time since the first frame in microseconds)."""
        order = np.argsort(self.pts, kind="stable") if self.ordered else np.arange(len(self))
        plain = self._plain_times(order) if self.ordered else None
        if plain is not None:
            return order, plain
        timeline = Timeline(self.fps)
        for packet in order:
            timeline.add(ticks_to_us(int(self.pts[packet]), self.time_base) if self.ordered else None)
        return order, timeline.times

    def _plain_times(self, order: I64) -> list[int] | None:
        """`times` of a clock that never jumps, all at once; None for others and for very large stamps."""
        ticks, base = self.pts[order], self.time_base
        if max(abs(int(ticks[0])), abs(int(ticks[-1]))) * base.numerator * 1_000_000 >= 1 << 62:
            return None
        times = ticks * (base.numerator * 1_000_000) // base.denominator
        steps = np.diff(times)
        if (steps < 1).any() or (steps > MAX_GAP_US).any():
            return None
        found: list[int] = (times - times[0]).tolist()
        return found

    def picks(self, grid: SamplingGrid, start_us: int = 0, end_us: int | None = None) -> list[Pick]:
        """The frames a grid samples between two times, chosen from time stamps alone."""
        order, times = self.times()
        chosen = grid.pick(times, self.key[order].tolist() if self.ordered else None)
        return [
            Pick(index, slot, times[index], int(self.pts[order[index]]))
            for slot, index in chosen
            if start_us <= times[index] and (end_us is None or times[index] < end_us)
        ]


def table_of(  # noqa: PLR0917
    video: Video, pts: I64, dts: I64, key: Flags, clean: Flags, size: I64, *, stamped: bool = True
) -> FrameTable:
    """The table of an opened video's packets; `stamped`: every packet has a presentation time."""
    unique = bool(np.all(np.diff(np.sort(pts)) > 0))  # np.unique would import numpy.ma: 40 ms
    ordered = stamped and len(pts) > 0 and unique and bool(np.all(np.diff(pts[clean]) > 0))
    return FrameTable(pts, dts, key, clean, size, video.time_base, video.fps, ordered)


@dataclass(frozen=True, slots=True)
class PacketRange:
    """Packets [first, last] in decoding order, fed to a fresh decoder, and the pts wanted of them."""

    first: int
    last: int
    wanted: frozenset[int]


def plan_ranges(table: FrameTable, wanted: Sequence[int]) -> list[PacketRange]:
    """The fewest packets that give the wanted frames (pts), as runs that each begin where decoding can begin.

    A group of pictures shows [its keyframe, the next keyframe) in presentation order. The pictures that
    lead the next keyframe belong to it, so a run may reach beyond that keyframe; it ends with the last
    packet whose pts is not after its last wanted frame."""
    starts = np.flatnonzero(table.clean)
    if len(starts) == 0 or starts[0] != 0:
        starts = np.concatenate([[0], starts])
    shown = table.pts[starts].copy()
    shown[0] = min(int(table.pts.min()), int(shown[0]))
    sorted_wanted = np.sort(np.asarray(wanted, np.int64))
    group = np.searchsorted(shown, sorted_wanted, side="right") - 1
    runs: list[PacketRange] = []
    for g in dict.fromkeys(group.tolist()):
        mine = sorted_wanted[group == g]
        first = int(starts[g])
        # Pictures that lead the next keyframe end, in decoding order, before the keyframe after it.
        end = int(starts[g + 2]) if g + 2 < len(starts) else len(table)
        last = first + int(np.flatnonzero(table.pts[first:end] <= mine[-1])[-1])
        runs.append(PacketRange(first, last, frozenset(int(p) for p in mine)))
    return runs


def intervals_of(table: FrameTable, workers: int) -> int:
    """Into how many intervals a recording is cut for so many workers. An interval waits in memory as packets:
    it holds some hundred pictures."""
    return max(4 * workers, len(table) // 256)


def share_out(runs: Sequence[PacketRange], intervals: int) -> list[list[PacketRange]]:
    """Runs shared out to at most so many intervals of about equal packet counts, in order of presentation.

    Within an interval a run that reaches the next one's keyframe goes on into it
    without decoding that keyframe twice."""
    total = sum(run.last - run.first + 1 for run in runs)
    out: list[list[PacketRange]] = []
    done = 0
    for run in runs:
        interval = done * intervals // max(1, total)
        done += run.last - run.first + 1
        if not out or interval >= len(out):
            out.append([run])
            continue
        before = out[-1][-1]
        if before.last >= run.first - 1:
            out[-1][-1] = PacketRange(before.first, max(before.last, run.last), before.wanted | run.wanted)
        else:
            out[-1].append(run)
    return out
