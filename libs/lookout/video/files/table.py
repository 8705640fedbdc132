"""The frame table of a recording, from one scan over its packets without decoding."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction

import av
import numpy as np
import numpy.typing as npt

from lookout.video.segments.container import Video, ticks_to_us
from lookout.video.segments.nal import begins_clean, may_lead, skipped_leading
from lookout.video.segments.sampling import Pick, SamplingGrid
from lookout.video.segments.timeline import JUMP_US, Timeline, usual_step

#: a step between pictures is a hole if it is longer than this and than `HOLE_STEPS` usual steps. Ten seconds
#: are a whole window of the bundled model
HOLE_US = 10_000_000
HOLE_STEPS = 10

I64 = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class FrameColumns:
    """Packets in decoding order.

    Attributes:
        pts: Presentation times, int64 [n] ticks; 0 for a packet without one.
        dts: Decoding times, int64 [n] ticks.
        key: Keyframes, bool [n].
        clean: Keyframes at which decoding can begin with a whole picture, bool [n].
        size: Bytes, int64 [n].
        discard: Packets that are decoded but not shown, bool [n]: an edit list hides their pictures.
    """

    pts: I64
    dts: I64
    key: Flags
    clean: Flags
    size: I64
    discard: Flags


@dataclass(frozen=True, slots=True)
class FrameTable(FrameColumns):
    """The packets of a recording, and what follows from them. The columns are those of `FrameColumns`.

    Attributes:
        time_base: Seconds per tick.
        fps: Nominal frames a second.
        stamped: Whether every packet has a presentation time.
        reordered: Whether time stamps increase in decoding order although pictures are shown in another
            order (AVI with B-frames). The times are then right, but belong to other packets.
        ordered: Whether every time stamp identifies one picture. If not, pictures can be told apart only
            by decoding in order.
        grouped: Whether groups of pictures are shown one after the other, so that decoding can begin at each.
    """

    time_base: Fraction
    fps: Fraction
    stamped: bool = True
    reordered: bool = False
    ordered: bool = True
    grouped: bool = True

    @classmethod
    def of(
        cls,
        columns: FrameColumns,
        *,
        time_base: Fraction,
        fps: Fraction,
        stamped: bool = True,
        reordered: bool = False,
    ) -> FrameTable:
        """Build the table from columns."""
        shown = np.sort(columns.pts[~columns.discard])
        # np.unique would import numpy.ma, which takes 40 ms.
        unique = len(shown) > 0 and bool((shown[1:] > shown[:-1]).all())
        ordered = stamped and unique and not reordered
        fields = {name: getattr(columns, name) for name in ("pts", "dts", "key", "clean", "size", "discard")}
        grouped = ordered and _is_grouped(columns)
        return cls(
            **fields,
            time_base=time_base,
            fps=fps,
            stamped=stamped,
            reordered=reordered,
            ordered=ordered,
            grouped=grouped,
        )

    def __len__(self) -> int:
        return len(self.pts)

    @classmethod
    def scan(cls, video: Video, take: Callable[[av.Packet], None] | None = None) -> FrameTable:
        """Return the table of an open video, by reading all its packets; `take` is called with each
        packet.
        """
        rows: list[tuple[int, int, bool, bool, int, bool]] = []
        stamped, lead = True, Lead(video.codec, video.sets.length)
        for packet in video.packets():
            if take is not None:
                take(packet)
            discard = lead.drops(packet) or video.hides(packet)
            stamped = stamped and (discard or packet.pts is not None)
            pts = packet.pts if packet.pts is not None else 0
            key = packet.is_keyframe
            clean = key and begins_clean(bytes(packet), video.codec, video.sets.length)
            dts = packet.dts if packet.dts is not None else pts
            rows.append((pts, dts, key, clean, packet.size, discard))
        if not lead.keyframe:  # unknown where decoding can begin, so every decodable picture is shown
            rows = [(*row[:-1], False) for row in rows]
        kinds = (np.int64, np.int64, np.bool_, np.bool_, np.int64, np.bool_)
        columns = zip(*rows, strict=True) if rows else [()] * len(kinds)
        return table_of(
            video,
            FrameColumns(*(np.array(column, kind) for column, kind in zip(columns, kinds, strict=True))),
            stamped=stamped,
        )

    def times(self) -> tuple[I64, list[int]]:
        """Return (packet per presentation index, its time since the first frame in microseconds).

        Packets without times, and packets whose times belong to other packets, are in decoding order.
        """
        shown = np.flatnonzero(~self.discard)
        if not self.stamped or not (self.ordered or self.reordered):
            timeline = Timeline(self.fps)
            for _ in shown:
                timeline.add(None)
            return shown, timeline.times
        order = shown[np.argsort(self.pts[shown], kind="stable")]
        times = self._plain_times(order)
        if times is None:
            timeline = Timeline(self.fps, JUMP_US)
            for packet in order:
                timeline.add(ticks_to_us(int(self.pts[packet]), self.time_base))
            times = timeline.times
        return (shown if self.reordered else order), times

    def _plain_times(self, order: I64) -> list[int] | None:
        """Return the times of `times`, computed in one step; None if the clock jumps or stamps are very
        large.
        """
        ticks, base = self.pts[order], self.time_base
        if max(abs(int(ticks[0])), abs(int(ticks[-1]))) * base.numerator * 1_000_000 >= 1 << 62:
            return None
        times = ticks * (base.numerator * 1_000_000) // base.denominator
        steps = np.diff(times)
        if (steps < 1).any() or (steps > JUMP_US).any():
            return None
        offsets: list[int] = (times - times[0]).tolist()
        return offsets

    def picks(self, grid: SamplingGrid, start_us: int = 0, end_us: int | None = None) -> list[Pick]:
        """Return the frames that a grid samples between two times, chosen from time stamps alone."""
        order, times = self.times()
        picks = grid.pick(times, self.key[order].tolist() if self.ordered else None)
        return [
            Pick(index, slot, times[index], int(self.pts[order[index]]))
            for slot, index in picks
            if start_us <= times[index] and (end_us is None or times[index] < end_us)
        ]


@dataclass(frozen=True, slots=True)
class Hole:
    """A stretch of a recording without packets, because nothing was recorded or the stretch was cut out.

    Attributes:
        index: The picture after the hole, in presentation order.
        start_us: When the picture before the hole ends, in microseconds since the first picture.
        end_us: When the picture after the hole is shown.
    """

    index: int
    start_us: int
    end_us: int


def holes_of(times_us: Sequence[int], nominal_us: int) -> tuple[Hole, ...]:
    """Return the holes of a recording.

    Args:
        times_us: When its pictures are shown, in increasing order.
        nominal_us: Nominal distance between pictures.
    """
    usual_us = usual_step(times_us, nominal_us)
    steps = np.diff(np.asarray(times_us, np.int64))
    late = np.flatnonzero(steps > max(HOLE_US, HOLE_STEPS * usual_us))
    return tuple(Hole(int(i) + 1, times_us[i] + usual_us, times_us[i + 1]) for i in late)


class Lead:
    """Finds pictures at a stream's beginning that refer to pictures before that beginning, so that no decoder
    shows them.

    A recording that was not cut at a keyframe begins with pictures before its first keyframe. After that
    keyframe, there may be leading pictures, which are shown before it.

    Args:
        codec: Name of the codec.
        length: Bytes of the length field in front of each unit of a packet, see `segments.nal.length_bytes`.
    """

    def __init__(self, codec: str, length: int) -> None:
        self._codec, self._length = codec, length
        self._key: av.Packet | None = None
        self.open = True  # whether the next packet may be such a picture

    @property
    def keyframe(self) -> bool:
        """Whether a keyframe was seen."""
        return self._key is not None

    def drops(self, packet: av.Packet) -> bool:
        """Whether the next packet contains such a picture."""
        if not self.open:
            return False
        if self._key is None:
            if packet.is_keyframe:
                self._key, self.open = packet, may_lead(bytes(packet), self._codec, self._length)
            return not packet.is_keyframe
        if self._codec == "hevc":
            self.open = skipped_leading(bytes(packet), self._length)
        else:
            stamps = packet.pts, self._key.pts
            self.open = None not in stamps and stamps[0] < stamps[1]
        return self.open


def table_of(video: Video, columns: FrameColumns, *, stamped: bool = True) -> FrameTable:
    """Build the table of an open video's packets; `stamped`: every packet has a presentation time."""
    return FrameTable.of(
        columns,
        time_base=video.time_base,
        fps=video.fps,
        stamped=stamped,
        reordered=stamped
        and (
            (video.stamps_decoding and bool((columns.pts[1:] > columns.pts[:-1]).all()))
            or (video.clock is not None and video.clock.guessed)
        ),
    )


def _starts(table: FrameColumns) -> I64:
    """Return the packets at which decoding can begin; the first packet always counts as one."""
    starts = np.flatnonzero(table.clean)
    return starts if len(starts) and starts[0] == 0 else np.concatenate([[0], starts]).astype(np.int64)


def _groups(table: FrameColumns, starts: I64, packets: I64) -> I64:
    """Return, for each of some packets, the index in `starts` from which it is decoded.

    A leading picture (shown before the keyframe that precedes it in decoding order) also needs the previous
    group.
    """
    group = np.searchsorted(starts, packets, side="right") - 1
    leads = (table.pts[packets] < table.pts[starts[group]]) & (group > 0)
    return np.asarray(group - leads, np.int64)


def _is_grouped(table: FrameColumns) -> bool:
    """Whether every group's pictures are shown before those of the next group."""
    shown = np.flatnonzero(~table.discard)
    order = shown[np.argsort(table.pts[shown], kind="stable")]
    return bool((np.diff(_groups(table, _starts(table), order)) >= 0).all())


@dataclass(frozen=True, slots=True)
class PacketRange:
    """Packets [first, last] in decoding order for a fresh decoder, and the pts wanted from them."""

    first: int
    last: int
    wanted: frozenset[int]


def plan_ranges(table: FrameTable, wanted: Sequence[int]) -> list[PacketRange]:
    """Return the fewest packets that yield the wanted frames (pts), as runs that each begin where decoding
    can begin.

    In presentation order, a group contains the pictures from its keyframe up to the next keyframe, including
    those that lead the next keyframe. So a run may reach beyond that keyframe. It ends with the last packet
    whose pts is not after the run's last wanted frame.
    """
    starts = _starts(table)
    shown = np.flatnonzero(~table.discard)
    order = shown[np.argsort(table.pts[shown], kind="stable")]
    sorted_wanted = np.sort(np.asarray(wanted, np.int64))
    packets = order[np.searchsorted(table.pts[order], sorted_wanted)]
    group = _groups(table, starts, packets)
    runs: list[PacketRange] = []
    for g in dict.fromkeys(group.tolist()):
        own = group == g
        first = int(starts[g])
        # Pictures that lead the next keyframe end, in decoding order, before the keyframe after it.
        end = int(starts[g + 2]) if g + 2 < len(starts) else len(table)
        before = (table.pts[first:end] <= sorted_wanted[own][-1]) & ~table.discard[first:end]
        last = first + int(np.flatnonzero(before)[-1])
        runs.append(PacketRange(first, last, frozenset(int(pts) for pts in sorted_wanted[own])))
    return runs


def intervals_of(table: FrameTable, workers: int) -> int:
    """Return the number of intervals into which to cut a recording for a number of workers. An interval's
    packets wait in memory, so an interval has a few hundred pictures.
    """
    return max(4 * workers, len(table) // 256)


def share_out(runs: Sequence[PacketRange], intervals: int) -> list[list[PacketRange]]:
    """Return the runs distributed over at most `intervals` intervals of about equal packet counts, in
    presentation order.

    If a run reaches the keyframe of the interval's next run, it continues into that run, so that the keyframe
    is not decoded twice.
    """
    total = sum(run.last - run.first + 1 for run in runs)
    out: list[list[PacketRange]] = []
    packets = 0
    for run in runs:
        interval = packets * intervals // max(1, total)
        packets += run.last - run.first + 1
        if not out or interval >= len(out):
            out.append([run])
            continue
        before = out[-1][-1]
        if before.last >= run.first - 1:
            out[-1][-1] = PacketRange(before.first, max(before.last, run.last), before.wanted | run.wanted)
        else:
            out[-1].append(run)
    return out
