"""Random access to a recording's packets by their number in decoding order."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack

import av
import numpy as np

from lookout.video.files.source import Source, open_video
from lookout.video.files.table import FrameTable
from lookout.video.segments.container import Video
from lookout.video.segments.types import CodecError, Limits, Reason

SEEK_BYTES = 512 * 1024  # smallest gap that is skipped by seeking
KEEP_BYTES = 32 * 1024 * 1024  # recordings up to this size stay in memory after the scan


class PacketReader:
    """Reads a recording's packets forward, and seeks over wide gaps.

    Args:
        source: The recording's bytes.
        limits: Limits on what is read.
        table: The recording's packets, from a scan.
        kept: All packets, if the scan kept them; then nothing is read again.
        begun: An open video to use, and the packets already read from its start; None: open the source.
        probe: Whether FFmpeg probes the stream, see `Video`.
        seek: Whether seeking is allowed, see `Scan.steady`.
    """

    def __init__(
        self,
        source: Source,
        limits: Limits,
        table: FrameTable,
        kept: Sequence[av.Packet] | None = None,
        begun: tuple[Video, Sequence[av.Packet]] | None = None,
        *,
        probe: bool = True,
        seek: bool = True,
    ) -> None:
        self._source, self._limits, self._table, self._kept = source, limits, table, kept
        self.seeks, self._probe = 0, probe
        self._may_seek = seek
        self._opened = ExitStack()
        self._next = 0  # number of the demuxer's next packet
        self._held: list[tuple[int, av.Packet]] = []  # already read, but may be requested again
        if begun is not None:
            self._video, first = begun
            self._stream = self._video.packets()
            self._next, self._held = len(first), list(enumerate(first))
        elif kept is None:
            self._open()

    def _open(self) -> None:
        self._opened.close()
        self._video = self._opened.enter_context(open_video(self._source, self._limits, probe=self._probe))
        self._stream = self._video.packets()
        self._next = 0

    @property
    def video(self) -> Video:
        """The open video, which a call of `packets` may replace."""
        return self._video

    def __enter__(self) -> PacketReader:
        return self

    def __exit__(self, *_: object) -> None:
        self._opened.close()

    def packets(self, first: int, last: int) -> Iterator[av.Packet]:
        """Yield packets [first, last]. `first` must not decrease from call to call."""
        if self._kept is not None:
            yield from self._kept[first : last + 1]
            return
        self._held = [(i, packet) for i, packet in self._held if i >= first]
        if not self._held and first > self._next:
            self._skip_to(first)
        yield from [packet for i, packet in self._held if i <= last]
        while self._next <= last:
            i, packet = self._read()
            if i >= first:
                self._held.append((i, packet))
                yield packet

    def _read(self) -> tuple[int, av.Packet]:
        packet = next(self._stream, None)
        if packet is None:
            raise CodecError(
                Reason.UNREADABLE,
                f"{self._source.name} now ends at packet {self._next}, so "
                f"it has changed since it was scanned",
            )
        if not self._is(packet, self._next):
            raise CodecError(
                Reason.UNREADABLE,
                f"{self._source.name}: packet {self._next} differs from the packet "
                f"table, so the recording has changed since it was scanned",
            )
        self._next += 1
        return self._next - 1, packet

    def _skip_to(self, number: int) -> None:
        """Seek to a keyframe if this saves reading and the container's index leads there."""
        gap = int(self._table.size[self._next : number].sum())
        if not self._may_seek or not self._table.key[number] or gap < SEEK_BYTES:
            return
        self._video.seek(int(self._table.pts[number]))
        self._stream = self._video.packets()
        for packet in self._stream:
            place = self._number(packet, number)
            if place is None or place > number:
                break
            if place == number:
                self.seeks += 1
                self._held.append((number, packet))
                self._next = number + 1
                return
        # The seek led to another packet (MPEG-TS has no index). Packets' numbers are known only if packets
        # are read from the start.
        self._may_seek = False
        self._open()

    def _is(self, packet: av.Packet, number: int) -> bool:
        """Whether a packet matches the table's entry of this number."""
        table = self._table
        if number >= len(table) or int(table.size[number]) != packet.size:
            return False
        return packet.pts is None or int(table.pts[number]) == packet.pts

    def _number(self, packet: av.Packet, expected: int) -> int | None:
        if packet.pts is None:
            return None
        if self._is(packet, expected):
            return expected
        matches = np.flatnonzero((self._table.pts == packet.pts) & (self._table.size == packet.size))
        # Two packets with the same time and size cannot be told apart.
        return int(matches[0]) if len(matches) == 1 else None


class PacketCache:
    """Collects a scan's packets, and discards all of them once they are too large to keep."""

    def __init__(self) -> None:
        self._bytes = 0
        self._packets: list[av.Packet] | None = []

    def add(self, packet: av.Packet) -> None:
        """Add the next packet."""
        self._bytes += packet.size
        if self._bytes > KEEP_BYTES:
            self._packets = None
        if self._packets is not None:
            self._packets.append(packet)

    @property
    def packets(self) -> list[av.Packet] | None:
        """All packets, or None if they were too large to keep."""
        return self._packets
