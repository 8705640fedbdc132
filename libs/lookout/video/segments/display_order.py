"""Gives pictures whose stamps are unusable times between those of their neighbours in display order."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

import av
import av.error

from lookout.video.segments.sets import with_sets

#: number of packets that wait in case a later packet repeats their stamp; encoders usually reorder fewer
#: packets
_WINDOW: Final = 4
#: maximum number of packets, and of bytes, in a group whose order is sought; larger groups are split
_MOST_PACKETS: Final = 5_000
_MOST_BYTES: Final = 32 << 20


def display_order(stream: av.video.stream.VideoStream, packets: Sequence[av.Packet]) -> list[int]:
    """Return the indexes of packets in the order in which their pictures are shown.

    Containers do not state this order, so a separate decoder outputs the pictures; if possible, it computes
    no pixels.

    Args:
        stream: The input's video stream.
        packets: In decoding order, the first of them a keyframe.

    Returns:
        Indexes into `packets`, without those that cannot be decoded.
    """
    source = stream.codec_context
    decoder = av.CodecContext.create(source.codec.name, "r")
    decoder.extradata = source.extradata
    decoder.thread_count, decoder.thread_type = 1, "NONE"
    decoder.options = {"skip_loop_filter": "all", "skip_idct": "all", "flags": "output_corrupt"}
    order: list[int] = []

    def shown(packet: av.Packet | None) -> None:
        with suppress(av.error.FFmpegError, ValueError):
            order.extend(frame.pts for frame in decoder.decode(packet) if frame.pts is not None)

    for place, packet in enumerate(packets):
        copied = av.Packet(bytes(with_sets(packet)))
        copied.pts = copied.dts = place
        copied.is_keyframe = packet.is_keyframe
        shown(copied)
    shown(None)
    return list(dict.fromkeys(order))


@dataclass(slots=True)
class _Timed:
    """A packet; `time`: when it is shown. If that is unknown, `stamps` are the candidates."""

    packet: av.Packet
    time: int | None
    stamps: Sequence[int] | None = None

    def forget(self) -> None:
        """Mark the packet's time as doubtful: it becomes a candidate."""
        if (time := self.time) is not None:
            self.time, self.stamps = None, (time,)

    @property
    def unknown(self) -> bool:
        """Whether the packet still needs a time."""
        return self.time is None and self.stamps is not None


def rising_subsequence(times: Sequence[int]) -> list[int]:
    """Return the indexes of a longest strictly increasing subsequence (Fredman, 1975)."""
    ends: list[int] = []  # last index of the best subsequence of each length
    lasts: list[int] = []
    before: list[int] = []
    for place, time in enumerate(times):
        length = bisect_left(lasts, time)
        before.append(ends[length - 1] if length else -1)
        ends[length : length + 1] = [place]
        lasts[length : length + 1] = [time]
    chosen: list[int] = []
    place = ends[-1] if ends else -1
    while place >= 0:
        chosen.append(place)
        place = before[place]
    return chosen[::-1]


class Arranger:
    """Assigns times to pictures of unknown time, from those shown before and after them.

    A packet of unknown time and all after it wait for the next keyframe whose time is known.

    Args:
        order: Returns the indexes of packets in presentation order, see `display_order`.
        step: Returns the usual distance between pictures, in ticks.
        far: Distance in ticks between two pictures that counts as a hole.
        whole: Whether the stream ends with its last packet; then nothing confirms a last stamp far ahead.

    Attributes:
        unread: Whether the order of some pictures could not be found.
    """

    def __init__(
        self,
        order: Callable[[Sequence[av.Packet]], list[int]],
        step: Callable[[], int],
        far: int,
        *,
        whole: bool,
    ) -> None:
        self.unread = False
        self._order, self._step, self._far, self._whole = order, step, far, whole
        self._group: list[_Timed] = []  # since the newest keyframe of a known time
        self._bytes = 0
        self._waiting = 0  # number of packets at the group's end that are not yielded yet
        self._doubted = False  # whether any time in the group is unknown or doubtful
        self._shown: int | None = None  # the latest picture before the group

    def take(
        self, packet: av.Packet, stamps: Sequence[int] | None = None, *, doubted: bool = False
    ) -> Iterator[av.Packet]:
        """Add a packet; yield the packets whose times are known by now, in decoding order.

        Args:
            packet: The next packet, with its time.
            stamps: None if its time is known; else the times at which it may be shown, according to its
                stamps.
            doubted: Whether its stamps were corrected; the times of its group are then checked against the
                display order.
        """
        timed = _Timed(packet, packet.pts) if stamps is None else _Timed(packet, None, stamps)
        large = len(self._group) >= _MOST_PACKETS or self._bytes >= _MOST_BYTES
        if (packet.is_keyframe and stamps is None and not doubted) or large:
            yield from self._settle(timed)
            self._begin()
        self._group.append(timed)
        self._bytes += packet.size
        self._waiting += 1
        self._doubted = self._doubted or doubted or stamps is not None
        for earlier in self._group[-self._waiting : -1]:
            if earlier.time in (stamps or ()):  # two packets claim the same time
                earlier.forget()
        if not self._doubted and self._waiting > _WINDOW:
            yield self._group[-self._waiting].packet
            self._waiting -= 1

    def finish(self) -> Iterator[av.Packet]:
        """Yield the packets that still wait, once the last one was added."""
        yield from self._settle(None)

    def _begin(self) -> None:
        times = [timed.time for timed in self._group if timed.time is not None]
        self._shown = max(times, default=self._shown)
        self._group, self._bytes = [], 0

    def _settle(self, following: _Timed | None) -> Iterator[av.Packet]:
        """Assign times to the waiting packets, and yield them.

        Args:
            following: The packet after them, usually a keyframe; None at the end.
        """
        waiting = self._group[len(self._group) - self._waiting :]
        if self._doubted:
            self._time_all(following)
        self._waiting, self._doubted = 0, False
        for timed in waiting:
            self.unread = self.unread or timed.unknown
            yield timed.packet

    def _time_all(self, following: _Timed | None) -> None:
        given = len(self._group) - self._waiting
        places = self._order([timed.packet for timed in self._group])
        end = None if following is None else following.time
        # Everything that is decoded before a keyframe is shown before it.
        closed = following is not None and following.packet.is_keyframe
        rising = self._rising(places, given, end if closed else None)
        run: list[_Timed] = []
        low = self._shown
        for place in places:
            timed = self._group[place]
            if place >= given and timed.time is not None and place not in rising:
                timed.forget()
            if timed.unknown:
                run.append(timed)
            if timed.time is None or place not in rising:
                continue
            self._fill(run, low, timed.time, ends=False)
            run, low = [], timed.time
        self._fill(run, low, end, ends=True)

    def _rising(self, places: Sequence[int], given: int, end: int | None) -> set[int]:
        """Return the packets whose times rise in presentation order; those already yielded take precedence.

        Args:
            places: Indexes of packets, in presentation order.
            given: Number of the group's packets that were already yielded.
            end: When the keyframe after the group is shown; None if that is unknown.
        """
        times = {place: time for place in places if (time := self._group[place].time) is not None}
        fixed = [place for place in times if place < given]
        rising = {fixed[i] for i in rising_subsequence([times[place] for place in fixed])}
        between: list[int] = []
        low = self._shown
        for place in [*times, None]:
            if place is not None and place not in rising:
                between += [place] if place >= given else []
                continue
            high = end if place is None else times[place]
            fitting = [
                other
                for other in between
                if (low is None or low < times[other]) and (high is None or times[other] < high)
            ]
            rising |= {fitting[i] for i in rising_subsequence([times[other] for other in fitting])}
            between, low = [], high
        return rising

    def _fill(self, run: list[_Timed], low: int | None, high: int | None, *, ends: bool) -> None:
        """Give consecutive pictures increasing times between two bounds: their stamps if possible, otherwise
        evenly spaced times.

        Args:
            run: In presentation order.
            low: When the picture before `run` is shown; None: `run` is at the beginning.
            high: When the picture after `run` is shown; None: `run` is at the end.
            ends: Whether other pictures, which lead the next keyframe, may be shown between `run` and `high`.
        """
        if not run:
            return
        step = self._step()
        if low is None or (high is not None and low >= high):
            low = (run[0].packet.pts or 0) - step if high is None else high - (len(run) + 1) * step
        known = [(-1, low)]
        latest = low + len(run) * step + self._far if high is None and self._whole else high
        for place, timed in enumerate(run):
            fitting = (t for t in timed.stamps or () if known[-1][1] < t and (latest is None or t < latest))
            if (time := next(fitting, None)) is not None:
                known.append((place, time))
        if high is not None:
            known.append((len(run), high))
        else:
            known.append((len(run), known[-1][1] + (len(run) - known[-1][0]) * step))
        for (before, early), (after, late) in pairwise(known):
            count = after - before
            stepped = late - early - count * step > self._far
            stepped = stepped or (ends and after == len(run) and early + (count - 1) * step < late)
            for i in range(1, count):
                run[before + i].time = early + (i * step if stepped else (late - early) * i // count)
        for place, time in known[1:]:
            if place < len(run):
                run[place].time = time
        for timed in run:
            timed.packet.pts = timed.time
