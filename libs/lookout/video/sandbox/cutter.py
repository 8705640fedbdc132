"""Cuts a camera's packets into segments: at keyframes, remuxed into MPEG-TS, never decoded."""

from __future__ import annotations

import io
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import av
import av.error

from lookout.video.sandbox.start_times import with_start_times
from lookout.video.segments.clock import StreamClock, decodable
from lookout.video.segments.container import DEFAULT_FPS
from lookout.video.segments.display_order import display_order
from lookout.video.segments.sets import SetsInForce, with_sets

_STREAM_PACKETS = 100_000  # maximum number of packets of one segment


@dataclass(frozen=True, slots=True)
class CutSegment:
    """One segment.

    Attributes:
        data: MPEG-TS that begins at a keyframe.
        seconds: Duration from its first to its last packet, by their stamps.
        waited_s: Seconds since the last packet arrived, which is long if the camera fell silent after it.
    """

    data: bytes
    seconds: float
    waited_s: float = 0.0


@dataclass(slots=True)
class Cutter:
    """Cuts one connection's packets into segments. It keeps only the packets of the open segment, at most
    `max_bytes`.

    Args:
        stream: The input's video stream.
        target_s: Seconds after which a segment ends at the next keyframe.
        max_bytes: An open segment that grows larger is dropped and counted.
        jump_s: If the time stamps step by more than this, a new segment begins at the next keyframe, as
            after every jump of the clock.
        clock: Monotonic clock, seconds.
    """

    stream: Any
    target_s: float
    max_bytes: int
    jump_s: float
    clock: Callable[[], float] = time.monotonic
    dropped_packets: int = 0
    jumps: int = 0
    _times: StreamClock | None = None
    _open: list[Any] = field(default_factory=list)
    _bytes: int = 0
    _came_at: float = 0.0

    def cut(self, packets: Iterable[Any]) -> Iterator[CutSegment]:
        """Yield each complete segment and, after the last packet, the unfinished one.

        Only the very last packet is dropped, because its picture may be incomplete. The rest is kept, because
        a connection may end with its camera, whose last pictures may matter most.

        Raises:
            FFmpegError, OSError: The packets ended with this error; the unfinished segment was yielded first.
        """
        failure: Exception | None = None
        try:
            for packet in self._stamped(packets):
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

    def _stamped(self, packets: Iterable[Any]) -> Iterator[Any]:
        """Yield the packets with their times and parameter sets."""
        context = self.stream.codec_context
        self._times = StreamClock(
            self.stream.time_base,
            self.stream.guessed_rate or self.stream.average_rate or DEFAULT_FPS,
            reorders=bool(context.has_b_frames),
            clock=self.clock,
            whole=True,
            order=partial(display_order, self.stream),
        )
        # Cameras may send their parameter sets only in the answer to DESCRIBE.
        sets = SetsInForce(context.name, context.extradata, always=True)
        pictures = (packet for packet in with_start_times(packets) if packet.size)
        return self._times.stamped(map(sets.mark, pictures))

    def _cut_before(self, packet: Any) -> Iterator[CutSegment]:
        """Add a packet; if it begins a new segment, yield the previous segment."""
        if packet.dts is None or packet.pts is None or packet.is_corrupt:
            self.dropped_packets += 1
            if packet.is_corrupt:
                self._drop()  # dropped, because later pictures refer to this one
            return
        if packet.is_keyframe and self._open:
            jumped = self._jumped(packet)
            self.jumps += jumped
            if jumped or self._seconds(packet) >= self.target_s:
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
        assert self._times is not None
        step = float((packet.dts - self._open[-1].dts) * self.stream.time_base)
        return self._times.shift_of(packet) != self._times.shift_of(self._open[0]) or step > self.jump_s

    def _seconds(self, packet: Any) -> float:
        return float((packet.dts - self._open[0].dts) * self.stream.time_base)

    def _close(self) -> Iterator[CutSegment]:
        packets, self._open, self._bytes = self._open, [], 0
        seconds = float((packets[-1].dts - packets[0].dts) * self.stream.time_base)
        assert self._times is not None
        shift = self._times.shift_of(packets[0])
        yield CutSegment(remux(self.stream, packets, -shift), seconds, self.clock() - self._came_at)


def remux(stream: Any, packets: Sequence[Any], shift: int = 0) -> bytes:
    """Return packets of one stream as MPEG-TS, with time stamps moved by `shift` ticks."""
    buffer = io.BytesIO()
    stamps = decodable([(packet.pts + shift, packet.dts + shift) for packet in packets])
    with av.open(buffer, "w", format="mpegts", options={"mpegts_copyts": "1"}) as container:
        target = container.add_stream_from_template(stream)
        for source_packet, (pts, dts) in zip(packets, stamps, strict=True):
            packet = with_sets(source_packet)
            packet.pts, packet.dts = max(pts, 0), max(dts, 0)  # negative only at the start of a stream
            packet.stream = target
            container.mux(packet)
    return buffer.getvalue()
