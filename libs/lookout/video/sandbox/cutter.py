"""Packets in, segments out: cut at keyframes, remuxed into MPEG-TS, never decoded."""

from __future__ import annotations

import io
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import av
import av.error

from lookout.video.sandbox.start_times import with_start_times

_STREAM_PACKETS = 100_000  # of one segment


@dataclass(frozen=True, slots=True)
class CutSegment:
    """One segment.

    Attributes:
        data: MPEG-TS that begins at a keyframe.
        seconds: From its first to its last packet.
        waited_s: Seconds since its last packet came: many where the camera fell silent behind it.
    """

    data: bytes
    seconds: float
    waited_s: float = 0.0


@dataclass(slots=True)
class Cutter:
    """Cuts one connection's packets. The packets of one open segment are held, at most `max_bytes`.

    Args:
        stream: The input's video stream.
        target_s: A segment ends at the first keyframe after so long.
        max_bytes: A group of pictures that is larger is dropped and counted.
        jump_s: A step of the time stamps by so many seconds begins a new segment at the next keyframe.
        clock: Seconds that only grow.
    """

    stream: Any
    target_s: float
    max_bytes: int
    jump_s: float
    clock: Callable[[], float] = time.monotonic
    dropped_packets: int = 0
    jumps: int = 0
    _open: list[Any] = field(default_factory=list)
    _bytes: int = 0
    _came_at: float = 0.0

    def cut(self, packets: Iterable[Any]) -> Iterator[CutSegment]:
        """Yield a segment whenever one is complete, and behind the last packet what is open then.

        The end of a connection may be the end of its camera, and its last pictures those that matter. Only
        the last packet of all is dropped: nobody knows whether its picture came whole.

        Raises:
            FFmpegError, OSError: The packets ended with it; what was open has been yielded.
        """
        failure: Exception | None = None
        try:
            for packet in with_start_times(packets):
                yield from self._cut_before(packet)
        except (av.error.FFmpegError, OSError) as error:
            failure = error
        if self._open:
            self._open.pop()
            self.dropped_packets += 1
        if self._open:
            yield from self._close()
        if failure is not None:
            raise failure

    def _cut_before(self, packet: Any) -> Iterator[CutSegment]:
        """Take a packet, behind the segment that it completes."""
        if packet.dts is None or packet.pts is None or packet.is_corrupt:
            self.dropped_packets += packet.size > 0
            if packet.size and packet.is_corrupt:
                self._drop()  # what follows refers to it
            return
        if self._open and self._jumped(packet):
            self.jumps += 1
            yield from self._close()
        if packet.is_keyframe and self._open and self._seconds(packet) >= self.target_s:
            yield from self._close()
        self._take(packet)

    def _take(self, packet: Any) -> None:
        if not self._open and not packet.is_keyframe:
            self.dropped_packets += 1
            return
        self._open.append(packet)
        self._came_at = self.clock()
        self._bytes += packet.size
        if self._bytes > self.max_bytes or len(self._open) > _STREAM_PACKETS:
            self._drop()

    def _drop(self) -> None:
        self.dropped_packets += len(self._open)
        self._open, self._bytes = [], 0

    def _jumped(self, packet: Any) -> bool:
        step = float((packet.dts - self._open[-1].dts) * self.stream.time_base)
        return step <= 0 or step > self.jump_s

    def _seconds(self, packet: Any) -> float:
        return float((packet.dts - self._open[0].dts) * self.stream.time_base)

    def _close(self) -> Iterator[CutSegment]:
        packets, self._open, self._bytes = self._open, [], 0
        seconds = float((packets[-1].dts - packets[0].dts) * self.stream.time_base)
        yield CutSegment(remux(self.stream, packets), seconds, self.clock() - self._came_at)


def remux(stream: Any, packets: Iterable[Any]) -> bytes:
    """Return packets of one stream as MPEG-TS with their own time stamps."""
    buffer = io.BytesIO()
    with av.open(buffer, "w", format="mpegts", options={"mpegts_copyts": "1"}) as container:
        target = container.add_stream_from_template(stream)
        for packet in packets:
            packet.stream = target
            container.mux(packet)
    return buffer.getvalue()
