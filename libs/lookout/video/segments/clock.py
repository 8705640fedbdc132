"""Decides when every picture of a stream is shown, for files, pipes, segments and RTSP alike.

Time stamps are kept if they are plausible. As long as the source's clock does not jump, decoding times rise.
A stamp that is missing, repeated or goes back is filled in from its neighbours. A stamp that is far off and
contradicted by the next two stamps is an outlier, which is also filled in. A step back that the next two
stamps confirm is a jump: time continues after one picture. A step ahead is a hole, which keeps its length,
but if it is longer than a day, it is a jump, too. If the 33-bit stamps of MPEG wrap to zero, this is neither
a jump nor a hole. If pictures are decoded in another order than shown, pictures whose stamps cannot be right
get times between those of their neighbours (`display_order`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Final

import av

from lookout.video.segments.display_order import Arranger
from lookout.video.segments.timeline import BACKWARD_US, JUMP_US

#: a stamp that differs by more than this from its expected time must be confirmed by the next two
OUTLIER_US: Final = 5_000_000
#: ticks after which MPEG's time stamps wrap: they have 33 bits
WRAP_TICKS: Final = 1 << 33
#: maximum number of packets that wait for a first stamp; if none of them has one, the stream gets no times
_MAX_UNSTAMPED: Final = 512
#: maximum number of packets, and of their bytes, that wait for the next usable stamp
_MAX_WAITING, _MAX_WAITING_BYTES = 20_000, 32 << 20
_STEPS: Final = 9  # number of steps whose median is the usual distance of pictures
_CONFIRMING: Final = 2  # number of later stamps that confirm an outlier
_RECENT: Final = 64  # pictures among which a presentation time must be unique
_REORDERED: Final = 32  # pictures by which decoding may precede presentation
_USUAL: Final = 5  # pictures by which decoding usually precedes presentation
_LATE: Final = 8  # pictures by which decoding times may step later than presentation times
_EARLY: Final = 8  # pictures by which a stamp may precede decoding: origins may differ in MP4 files


@dataclass(frozen=True, slots=True)
class Jump:
    """A picture at which the source's clock jumped.

    Attributes:
        pts: When the picture is shown, in ticks.
        at: When the picture is decoded, in ticks.
        shift: Ticks added to the stamps of this picture and of all later ones, because the source's clock is
            that far behind the assigned times.
    """

    pts: int
    at: int
    shift: int


class StreamClock:
    """Assigns times to the packets of one stream.

    Args:
        time_base: Seconds per tick.
        fps: Nominal pictures a second, used until the real rate is known.
        wrap: Ticks after which stamps wrap to zero; 0: never.
        reorders: Whether pictures may be shown in another order than they are decoded in.
        hides: Tells whether a packet's picture is hidden; the stamps of hidden pictures are not changed.
        clock: Monotonic clock of a live stream, in seconds. If the stamps step ahead by more time than
            has passed, this is a jump.
        whole: Whether the stream ends with its last packet. A segment continues in the next segment, so
            its last stamp counts as confirmed.
        order: Returns the indexes of packets in presentation order, see `display_order`; None: not available.

    Attributes:
        jumps: Jumps, in decoding order.
        shift: Ticks added to stamps because of the newest jump.
        filled: Pictures whose stamps were missing, repeated or wrong.
        guessed: Whether some times may be assigned to the wrong pictures. Even then, the sorted list of
            times is right.
    """

    def __init__(
        self,
        time_base: Fraction,
        fps: Fraction,
        *,
        wrap: int = 0,
        reorders: bool = False,
        hides: Callable[[av.Packet], bool] = lambda _: False,
        clock: Callable[[], float] | None = None,
        whole: bool = False,
        order: Callable[[Sequence[av.Packet]], list[int]] | None = None,
    ) -> None:
        self.jumps: list[Jump] = []
        self.shift = 0
        self.filled = 0
        self.guessed = False
        self._wrap, self._reorders, self._hides, self._whole = wrap, reorders, hides, whole
        second = 1 / time_base
        self._nominal = max(1, round(second / fps))
        self._outlier = round(second * OUTLIER_US / 1_000_000)
        self._backward = round(second * BACKWARD_US / 1_000_000)
        self._jump = round(second * JUMP_US / 1_000_000)
        self._time_base = time_base
        self._last: int | None = None  # decoding time of the newest packet
        self._least = self._longest = 0  # least and largest delay from decoding to presentation
        self._key_delay = 0  # the same delay of the newest keyframe
        self._steps: deque[int] = deque(maxlen=_STEPS)
        self._shown: deque[int] = deque(maxlen=_RECENT)
        #: latest presentation time before decoding times alone went back
        self._floor: int | None = None
        self._clock = clock
        # Arrival times of the newest packets. With reordering, a wait comes some packets before the resulting
        # step of decoding times.
        self._newest_arrivals: deque[float] = deque(maxlen=_LATE if reorders else 1)
        self._arrivals: deque[float] = deque()  # of the waiting packets
        self._waiting: deque[av.Packet] = deque()
        self._bytes = 0
        # By a packet's identity: candidates for its presentation time; None: it has been decided.
        self._doubted: dict[int, list[int] | None] = {}
        self._arranger: Arranger | None = None
        if reorders and order is not None:
            self._arranger = Arranger(order, self._step, self._outlier, whole=whole)

    @property
    def steady(self) -> bool:
        """Whether every packet so far kept the stamps of its container."""
        return not self.filled and not self.jumps

    def shift_of(self, packet: av.Packet) -> int:
        """Return the ticks that were added to a packet's stamps because of jumps."""
        at = packet.dts if packet.dts is not None else packet.pts
        jumps = (jump for jump in reversed(self.jumps) if at is not None and jump.at <= at)
        return next((jump.shift for jump in jumps), 0)

    @property
    def fps(self) -> Fraction | None:
        """Measured pictures a second; None until there are three pictures."""
        return 1 / (self._step() * self._time_base) if len(self._steps) > 1 else None

    def stamped(self, packets: Iterable[av.Packet]) -> Iterator[av.Packet]:
        """Yield each packet with its times, as soon as these are known. If the stream has no time
        stamps, packets pass through unchanged.

        Args:
            packets: In decoding order.
        """
        if self._arranger is None:
            yield from self._clocked(packets)
            return
        try:
            for packet in self._clocked(packets):
                doubted = id(packet) in self._doubted
                given = self._arranger.take(packet, self._doubted.pop(id(packet), None), doubted=doubted)
                yield from map(self._settled, given)
        except (OSError, ValueError):
            yield from map(self._settled, self._arranger.finish())
            raise
        yield from map(self._settled, self._arranger.finish())

    def _settled(self, packet: av.Packet) -> av.Packet:
        """Update delays and jumps with a packet's final time; return the packet."""
        assert self._arranger is not None
        self.guessed = self.guessed or self._arranger.unread
        if packet.pts is not None and packet.dts is not None:
            delay = packet.pts - packet.dts
            if abs(delay) <= _REORDERED * self._step():
                self._least, self._longest = min(self._least, delay), max(self._longest, delay)
        for place in range(len(self.jumps) - 1, -1, -1):
            jump = self.jumps[place]
            if packet.pts is None or packet.dts is None or jump.at < packet.dts:
                break
            if jump.at == packet.dts:
                self.jumps[place] = replace(jump, pts=packet.pts)
        return packet

    def _clocked(self, packets: Iterable[av.Packet]) -> Iterator[av.Packet]:
        """Yield the packets with their decoding times, and presentation times that fit these."""
        source = iter(packets)
        try:
            for packet in source:
                came_at = self._clock() if self._clock is not None else 0.0
                if not self._waiting and self._is_plain(packet):
                    self._newest_arrivals.append(came_at)
                    yield packet
                    continue
                self._waiting.append(packet)
                self._arrivals.append(came_at)
                self._bytes += packet.size
                if (
                    self._last is None
                    and len(self._waiting) >= _MAX_UNSTAMPED
                    and self._first_stamp() is None
                ):
                    break
                yield from self._decide(final=False)
        except (OSError, ValueError):  # includes FFmpeg's errors; earlier packets are passed on first
            yield from self._decide(final=True)
            raise
        yield from self._decide(final=True)
        yield from source

    def _is_plain(self, packet: av.Packet) -> bool:
        """Accept the next packet unchanged if its stamps are plausible; return whether they are."""
        pts, dts, last = packet.pts, packet.dts, self._last
        if self._hides(packet):
            return True
        if pts is None:
            return False
        own = pts if dts is None else dts
        at = self._unwrapped(own)
        shown = at + pts - own
        if dts is None and self._reorders:
            # At the beginning, FFmpeg does not always know decoding times, and they are not needed.
            plain = last is None or abs(shown - last) <= self._longest_delay()
            if plain := plain and shown not in self._shown:
                packet.pts = shown
                self._shown.append(shown)
            return plain
        if last is not None:
            near = 0 < at - last <= self._step() + self._outlier
            if not near or not self._is_usual(shown - at) or shown in self._shown:
                return False
        self._floor = None
        self._take(packet, shown, at)
        return True

    def _is_usual(self, delay: int) -> bool:
        """Whether a picture's delay from decoding to presentation is usual. If it is not, the display order
        must confirm it."""
        if self._arranger is None:
            return self._fits(delay, 0)
        return min(self._least, 0) <= delay <= max(self._longest, _USUAL * self._step())

    def _take(self, packet: av.Packet, shown: int, at: int, *, sure: bool = True) -> None:
        """Set a packet's times; `sure`: its presentation time is final."""
        if packet.pts != shown:
            packet.pts = shown
        if packet.dts is not None and packet.dts != at:
            packet.dts = at
        if self._last is not None:
            self._steps.append(at - self._last)
        self._last = at
        if not sure:
            return
        if packet.is_keyframe:
            self._key_delay = shown - at
        self._shown.append(shown)

    def _set(self, packet: av.Packet, at: int) -> None:
        """Set a packet's decoding time, and a presentation time that fits it."""
        own, pts = self._own(packet), packet.pts
        candidates: list[int] = []
        if pts is not None and own is not None:
            candidates = [at + pts - own]
            # If the decoding time is not far off, perhaps only one of the two stamps is wrong.
            near = abs(self._unwrapped(own) - at) <= self._outlier
            if self._reorders:
                candidates.insert(0 if near else 1, self._unwrapped(pts))
        fitting = [time for time in candidates if self._fits(time, at) and time not in self._shown]
        unsure = not fitting and self._arranger is not None
        if fitting:
            shown = fitting[0]
        else:
            shown = at + self._key_delay
            self.guessed = self.guessed or (self._reorders and not unsure)
            while shown in self._shown:
                shown += 1
        before = packet.pts, packet.dts
        if packet.dts is None and packet.pts is None:
            packet.dts = at
        self._take(packet, shown, at, sure=not unsure)
        if self._arranger is not None:
            self._doubted[id(packet)] = candidates if unsure else None
        self.filled += before != (packet.pts, packet.dts)

    def _step(self) -> int:
        """Return the usual distance between pictures, in ticks."""
        return max(1, sorted(self._steps)[len(self._steps) // 2]) if self._steps else self._nominal

    def _fits(self, shown: int, at: int) -> bool:
        """Whether a picture decoded at `at` may be shown at `shown`: neither long before nor too long after
        it. If a clock is set back within a group, stamps of the new clock occur next to decoding times of the
        old one."""
        return -_EARLY * self._step() <= shown - at <= self._longest_delay()

    def _longest_delay(self) -> int:
        return max(self._outlier, _REORDERED * self._step())

    def _unwrapped(self, ticks: int) -> int:
        """Return a stamp of the source converted to the clock of the previous packets."""
        ticks += self.shift
        if self._wrap and self._last is not None:
            ticks += round((self._last - ticks) / self._wrap) * self._wrap
        return ticks

    def _own(self, packet: av.Packet) -> int | None:
        """Return the decoding time that the source states for a packet; None if it states none."""
        if self._hides(packet):
            return None
        pts: int | None = None if self._reorders else packet.pts
        return pts if packet.dts is None else packet.dts

    def _first_stamp(self) -> int | None:
        return next((i for i, packet in enumerate(self._waiting) if self._own(packet) is not None), None)

    def _decide(self, *, final: bool) -> Iterator[av.Packet]:
        """Yield the waiting packets whose times can be decided now."""
        while self._waiting:
            if self._is_plain(self._waiting[0]):
                yield self._pop()
                continue
            count = self._begin(final) if self._last is None else self._go_on(final)
            if not count:
                return
            for _ in range(count):
                yield self._pop()

    def _pop(self) -> av.Packet:
        packet = self._waiting.popleft()
        self._newest_arrivals.append(self._arrivals.popleft())
        self._bytes -= packet.size
        return packet

    def _is_full(self, final: bool) -> bool:
        return final or len(self._waiting) >= _MAX_WAITING or self._bytes >= _MAX_WAITING_BYTES

    def _begin(self, final: bool) -> int:
        """Set the times of the packets up to the first packet with a stamp; return the number of packets
        set.
        """
        first = self._first_stamp()
        if first is None:
            return len(self._waiting) if final else 0  # without stamps, packets pass as they are
        owns = [self._own(packet) for packet in self._waiting]
        stamps = [(i, own) for i, own in enumerate(owns) if own is not None]
        if first and len(stamps) < 2 and not self._is_full(final):
            return 0
        step = self._nominal
        if len(stamps) > 1 and stamps[1][1] > stamps[0][1]:
            step = max(1, (stamps[1][1] - stamps[0][1]) // (stamps[1][0] - stamps[0][0]))
        for i in range(first):
            self._set(self._waiting[i], stamps[0][1] - (first - i) * step)
        if not self._is_plain(self._waiting[first]):
            self._set(self._waiting[first], stamps[0][1])
        return first + 1

    def _go_on(self, final: bool) -> int:
        """Set the times of the first waiting packet and of the packets decided with it; return the number of
        packets set.
        """
        assert self._last is not None
        own = self._own(self._waiting[0])
        if own is None:
            return self._fill(final)
        at, expected = self._unwrapped(own), self._last + self._step()
        following = self._following()
        if len(following) < _CONFIRMING and not self._is_full(final):
            return 0
        if at > self._last:
            # If a picture is near its expected time, its decoding time is right and its presentation time
            # wrong.
            if at - expected > self._outlier and not self._confirms_ahead(at, following):
                return self._fill(final)
            if at - expected > self._jump or self._is_set_ahead(at - self._last):
                self._step_to(expected, own)
            else:
                self._set(self._waiting[0], at)
        elif not self._is_shown_later(self._waiting[0]):
            if expected - at <= self._backward or not self._confirms(at, expected, following):
                return self._fill(final)
            self._step_to(expected, own)
        return 1

    def _is_set_ahead(self, ticks: int) -> bool:
        """Whether the first waiting packet arrived much sooner than its stamps say."""
        if self._clock is None or not self._newest_arrivals:
            return False
        waited_s = self._arrivals[0] - self._newest_arrivals[0]
        return float(ticks * self._time_base) - waited_s > OUTLIER_US / 500_000

    def _is_shown_later(self, packet: av.Packet) -> bool:
        """Accept a packet whose decoding time goes back although its picture is shown after all earlier ones,
        as happens where edits of an MP4 file meet."""
        if not self._reorders or packet.pts is None or packet.dts is None or not self._shown:
            return False
        assert self._last is not None
        shown, floor = self._unwrapped(packet.pts), max(self._shown) if self._floor is None else self._floor
        if not floor < shown <= self._last + self._longest_delay() or shown in self._shown:
            return False
        self._floor, self._last = floor, self._last + 1
        packet.pts, packet.dts = shown, self._last
        self._shown.append(shown)
        return True

    def _following(self) -> list[tuple[int, int]]:
        """Return the next two stamps: (packets from the first waiting one, time)."""
        later_stamps: list[tuple[int, int]] = []
        for i, packet in enumerate(self._waiting):
            own = self._own(packet) if i else None
            if own is not None:
                later_stamps.append((i, self._unwrapped(own)))
                if len(later_stamps) == _CONFIRMING:
                    break
        return later_stamps

    def _confirms_ahead(self, at: int, following: list[tuple[int, int]]) -> bool:
        """Whether a stamp far ahead is plausible. Nothing follows the last stamp of a recording; it is
        accepted if all pictures are that far apart, as in a time lapse."""
        if following:
            return all(later >= at for _, later in following)
        return not self._whole or not self._steps or self._step() > self._outlier

    def _confirms(self, at: int, expected: int, following: list[tuple[int, int]]) -> bool:
        """Whether the stamps after a step back continue from the stamp that went back, not from the stamps
        before it.
        """
        step, before = self._step(), at
        for place, later in following:
            ahead = place * step
            if later <= before or abs(later - at - ahead) >= abs(later - expected - ahead):
                return False
            before = later
        return bool(following)

    def _step_to(self, expected: int, own: int) -> None:
        """Record a jump of the source's clock at the first waiting packet, whose picture is shown one usual
        step after the last."""
        self.shift = expected - own
        packet, filled = self._waiting[0], self.filled
        self._set(packet, expected)
        self.filled = filled
        self.jumps.append(Jump(expected if packet.pts is None else packet.pts, expected, self.shift))

    def _fill(self, final: bool) -> int:
        """Set the times of the first waiting packets from the stamps before and after them; return the number
        of packets set.
        """
        assert self._last is not None
        begin, step, measured, count = self._last, self._step(), bool(self._steps), 0
        for i, packet in enumerate(self._waiting):
            own = self._own(packet) if i else None
            if own is None:
                continue
            at, count = self._unwrapped(own), count + 1
            if at > begin and (not measured or abs(at - begin - (i + 1) * step) <= self._outlier):
                for place in range(i):
                    even = begin + (at - begin) * (place + 1) // (i + 1)
                    self._set(self._waiting[place], max(self._last + 1, even))
                return i
            if count > _CONFIRMING:
                break
        else:
            if not self._is_full(final):
                return 0
        self._set(self._waiting[0], begin + step)
        return 1


def decodable(stamps: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return (presentation time, decoding time) of packets, with increasing decoding times that are not after
    the presentation times.

    If a clock jittered, pictures may be shown before their decoding times. Then decoding times are moved.

    Args:
        stamps: In decoding order.
    """
    decoded = [min(pts, dts) for pts, dts in stamps]
    for i in range(len(decoded) - 2, -1, -1):
        decoded[i] = min(decoded[i], decoded[i + 1] - 1)
    return [(pts, dts) for (pts, _), dts in zip(stamps, decoded, strict=True)]
