"""Finds a segment's damaged pictures, which are pictures that lost bytes and pictures predicted from these.

FFmpeg marks the picture in which it concealed errors, but only for H.264. Pictures predicted from it show the
same errors without a mark, and a lost packet of an HEVC stream leaves no mark at all. So lost packets are
found by the continuity counters of MPEG-TS (ISO/IEC 13818-1, 2.4.3.3), and damage lasts until the next
complete keyframe.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import av
import numpy as np

from lookout.video.motion.types import U8

TS_PACKET = 188
_SYNC = 0x47
_ERROR = 0x80  # of byte 1, the transport error indicator: the receiver could not correct the packet
_UNIT_START = 0x40  # of byte 1: a picture begins in the packet


class CounterScan:
    """Checks the continuity counters of one MPEG-TS stream, whose bytes arrive in pieces.

    Args:
        pid: The stream's packet identifier.

    Attributes:
        breaks: Rising byte offsets of the last packet before each loss, and of broken packets. The reader may
            remove those it has handled.
    """

    def __init__(self, pid: int) -> None:
        self.breaks: deque[int] = deque()
        self._pid = pid
        self._rest = b""  # bytes not yet split into packets
        self._rest_at = 0  # their offset
        self._last: U8 | None = None  # the stream's newest packet with a payload
        self._last_at = 0

    def take(self, data: bytes) -> None:
        """Add the stream's next bytes. Bytes between packets are skipped."""
        self._rest += data
        at = 0
        while (count := (len(self._rest) - at) // TS_PACKET) > 0:
            rows = np.frombuffer(self._rest, np.uint8, count * TS_PACKET, at).reshape(count, TS_PACKET)
            foreign = np.flatnonzero(rows[:, 0] != _SYNC)
            whole = int(foreign[0]) if len(foreign) else count
            if whole:
                self._follow(rows[:whole], self._rest_at + at)
                at += whole * TS_PACKET
            else:
                at = self._next_packet(at + 1)
        self._rest, self._rest_at = self._rest[at:], self._rest_at + at

    def _next_packet(self, at: int) -> int:
        """Return where the next packet begins: at a sync byte that is followed by another one packet later,
        if that much has arrived."""
        while (at := self._rest.find(_SYNC, at)) >= 0:
            if self._rest[at + TS_PACKET : at + TS_PACKET + 1] in (b"", bytes([_SYNC])):
                return at
            at += 1
        return len(self._rest)

    def _follow(self, rows: U8, at: int) -> None:
        control = rows[:, 3] >> 4
        pids = ((rows[:, 1] & 0x1F).astype(int) << 8) + rows[:, 2]
        # The counter counts packets with a payload.
        chosen = np.flatnonzero((pids == self._pid) & (control & 1 != 0))
        if not len(chosen):
            return
        places, packets = at + TS_PACKET * chosen, rows[chosen]
        if self._last is not None:
            places, packets = np.append(self._last_at, places), np.vstack([self._last, packets])
        counters = packets[:, 3].astype(int) & 0x0F
        # The discontinuity indicator of the adaptation field: the counter may jump here without a loss.
        announced = (packets[:, 3] & 0x20 != 0) & (packets[:, 4] > 0) & (packets[:, 5] & 0x80 != 0)
        steps = (counters[1:] - counters[:-1]) % 16
        twice = (steps == 0) & (packets[1:] == packets[:-1]).all(axis=1)  # a packet may be sent twice
        lost = np.append((steps != 1) & ~twice & ~announced[1:], False)
        broken = packets[:, 1] & _ERROR != 0
        if self._last is not None:
            broken[0] = False  # reported before
        self.breaks.extend(int(place) for place in places[broken | lost])
        # Copied, because a view would keep all bytes of this read.
        self._last, self._last_at = packets[-1].copy(), int(places[-1])


def breaks_of(data: bytes, pid: int) -> list[int]:
    """Return the places at which packets of an MPEG-TS stream are missing or marked as broken.

    Args:
        data: The segment's bytes.
        pid: The stream's packet identifier.

    Returns:
        Rising byte offsets, as `CounterScan.breaks`; empty if the bytes are not MPEG-TS.
    """
    scan = CounterScan(pid)
    scan.take(data)
    return list(scan.breaks)


def with_breaks(data: bytes, pid: int, losses: Sequence[bool]) -> bytes:
    """Change the continuity counters of MPEG-TS bytes so that they mark the damaged pictures.

    A muxer numbers its packets without a gap, whatever its source lost. Here the counter skips a number after
    the first TS packet of each damaged picture, as if the next packet had been lost.

    Args:
        data: The muxer's bytes, undamaged.
        pid: The stream's packet identifier.
        losses: For each picture, in packet order, whether bytes of it are missing.

    Returns:
        Bytes of the same length, for which `breaks_of` has an offset in each damaged picture.
    """
    if not any(losses):
        return data
    rows = np.frombuffer(data, np.uint8).reshape(-1, TS_PACKET).copy()
    pids = ((rows[:, 1] & 0x1F).astype(int) << 8) + rows[:, 2]
    places = np.flatnonzero((pids == pid) & (rows[:, 3] & 0x10 != 0))
    begins = rows[places, 1] & _UNIT_START != 0
    lossy = np.zeros(len(places), bool)
    lossy[np.flatnonzero(begins)] = losses
    gaps = np.append(False, lossy[:-1]).cumsum()
    rows[places, 3] = (rows[places, 3] & 0xF0) | ((rows[places, 3] + gaps) & 0x0F)
    if lossy[-1]:  # no packet follows whose number could mark it
        rows[places[-1], 1] |= _ERROR
    return rows.tobytes()


def with_damage(packets: Iterable[av.Packet], breaks: deque[int]) -> Iterator[tuple[av.Packet, bool]]:
    """Yield each packet, and whether bytes of its picture or of the next one are missing.

    Args:
        packets: Packets of a stream, in decoding order.
        breaks: As `CounterScan.breaks`, at least up to the packet after the newest one; handled ones are
            removed. A break means that the packet that begins at or before it lost its end, that the next
            packet lost its beginning, or that a packet between them is missing. In each case the pictures
            that follow are affected.
    """
    before: av.Packet | None = None
    for packet in packets:
        if before is not None:
            yield before, _broken(before, packet.pos, breaks)
        before = packet
    if before is not None:
        yield before, _broken(before, None, breaks)


def _broken(packet: av.Packet, following: int | None, breaks: deque[int]) -> bool:
    # If a packet is lost, FFmpeg marks the picture before it, so its mark counts only without a break nearby.
    broken = bool(packet.is_corrupt) and not breaks
    while breaks and (following is None or following < 0 or breaks[0] < following):
        breaks.popleft()
        broken = True
    return broken


def damaged_packets(packets: Sequence[av.Packet], breaks: Iterable[int]) -> frozenset[int]:
    """Return the time stamps of packets whose pictures are damaged, as far as the container shows.

    Args:
        packets: All packets of the segment, in decoding order.
        breaks: Result of `breaks_of`.
    """
    damaged: set[int] = set()
    active, shown = False, 0
    before = False  # damage before the newest keyframe, which affects that keyframe's leading pictures
    for packet, broken in with_damage(packets, deque(breaks)):
        if packet.is_keyframe:
            before, shown = active, packet.pts or 0
            active = False
        active = active or broken or packet.is_corrupt
        leading = before and packet.pts is not None and packet.pts < shown
        if (active or leading) and packet.pts is not None:
            damaged.add(packet.pts)
    return frozenset(damaged)


@dataclass(slots=True)
class DamageTrail:
    """Follows damage through decoded pictures, in presentation order.

    Attributes:
        packets: Time stamps of pictures whose packets are damaged.
    """

    packets: frozenset[int] = frozenset()
    _active: bool = False
    _refused: int = 0

    def reaches(self, pts: int | None, *, key: bool, concealed: bool, refused: int) -> bool:
        """Whether a picture is damaged.

        Args:
            pts: Its time stamp, ticks.
            key: Whether it is a keyframe.
            concealed: Whether the decoder reports the picture as damaged.
            refused: Packets that the decoder has refused so far.
        """
        if key:
            self._active = False
        self._active = self._active or concealed or refused > self._refused
        self._refused = refused
        return self._active or (pts is not None and pts in self.packets)
