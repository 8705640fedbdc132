"""Decodes a segment in one pass, which decodes every packet once, converts sampled frames and gathers block
maps.
"""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Protocol

import av
import numpy as np

from lookout.video.motion.geometry import Geometry
from lookout.video.motion.types import U8, FrameInfo, Luma, VectorSource
from lookout.video.segments.clock import WRAP_TICKS
from lookout.video.segments.container import WRAPPING, ByteSource, Video, source_size, ticks_to_us
from lookout.video.segments.damage import DamageTrail, breaks_of, damaged_packets
from lookout.video.segments.decoded_frame import DecodedFrame
from lookout.video.segments.picture import Painter, orientation
from lookout.video.segments.planned import PicturePlace, Run, Timetable, decode_runs, runs_of
from lookout.video.segments.sampling import Selector, Tail
from lookout.video.segments.timeline import JUMP_US, Timeline, usual_step
from lookout.video.segments.types import (
    SAMPLED_BYTES,
    CodecError,
    DecodedSegment,
    DecodeRequest,
    Reason,
    SampledFrame,
    SegmentFacts,
)

if TYPE_CHECKING:
    from lookout.video.segments.surface import Surface  # imports torch

_CUT_OFTEN = "let the camera send keyframes, at which segments are cut, more often"


class Decoder(Protocol):
    """A back end that turns the bytes of one segment into sampled frames. Errors: `CodecError`."""

    def decode(self, segment: bytes, request: DecodeRequest) -> DecodedSegment: ...


class SoftwareDecoder:
    """Decodes with FFmpeg through PyAV, in this process. For untrusted bytes use `SandboxPool`, which does
    the same in a child process."""

    def decode(self, segment: bytes, request: DecodeRequest) -> DecodedSegment:
        """Decode one segment.

        Raises:
            CodecError: The segment cannot be decoded; `reason` says why.
        """
        return decode_segment(segment, request)


def decode_segment(
    segment: bytes | ByteSource, request: DecodeRequest, *, threads: int = 1
) -> DecodedSegment:
    """Decode one segment with the software decoder in this process.

    Raises:
        CodecError: The segment cannot be decoded; `reason` says why.
    """
    source = io.BytesIO(segment) if isinstance(segment, bytes) else segment
    size = source_size(source) or 0
    if size > request.limits.bytes:
        raise CodecError(
            Reason.BYTES, f"{size} bytes exceed the limit of {request.limits.bytes} for a segment"
        )
    exported = request.vectors and request.gather is not None
    with Video(source, vectors=exported, threads=threads, limits=request.limits) as video:
        # All packets are read before decoding: their times and keyframes show which pictures are needed.
        packets = list(_bounded(video, request))
        breaks: list[int] = []
        if isinstance(segment, bytes) and video.container == "mpegts":
            breaks = breaks_of(segment, video.stream.id)
        damaged = damaged_packets(packets, breaks)
        timetable = Timetable.of(video, packets)
        # If stamps do not tell the pictures apart, none can be chosen beforehand. If the first packet is not
        # a keyframe, the single pass raises the error.
        if timetable is None or not packets[0].is_keyframe:
            return SinglePass(video, request, size, packets, damaged).run()
        try:
            return PlannedPass(video, request, size, timetable, damaged).run()
        except _UnplannedError:
            # The planned pass told the decoder to skip pictures. The whole segment is decoded now, from its
            # beginning.
            video.context.skip_frame = "DEFAULT"
            video.context.flush_buffers()
            return SinglePass(video, request, size, packets, damaged).run()


def _bounded(video: Video, request: DecodeRequest) -> Iterator[av.Packet]:
    """Yield the packets; raise if there are more than a segment may have frames."""
    for count, packet in enumerate(video.packets(), 1):
        if count > request.limits.frames + 1:
            raise _too_long(request)
        yield packet


def _too_long(request: DecodeRequest) -> CodecError:
    limits = request.limits
    return CodecError(
        Reason.LENGTH,
        f"the segment exceeds the limit of {limits.seconds:g} s, or of {limits.frames} frames: {_CUT_OFTEN}",
    )


def _too_many_samples(request: DecodeRequest) -> CodecError:
    """Return the error for a segment with too many samples. They form one result, and one tensor that
    prune-encode fetches, which must fit in memory."""
    samples = SAMPLED_BYTES // (request.width * request.height * 3)
    return CodecError(
        Reason.LENGTH,
        f"the segment has more than {samples} samples of {request.width}x{request.height} pixels; the limit "
        f"is {SAMPLED_BYTES >> 20} MiB ({samples * request.grid.step_us / 1e6:g} s at "
        f"{1e6 / request.grid.step_us:g} a second): lower LOOKOUT_FPS, or {_CUT_OFTEN}",
    )


def mean_step(times: list[int], otherwise: int) -> float:
    """Return the mean distance between rising times, pauses excluded, in microseconds."""
    steps = np.diff(times)
    # A step over four times the usual one is a pause of the camera, which must not lower the frame rate.
    usual = steps[steps <= 4 * usual_step(times, otherwise)]
    return float(usual.mean()) if len(usual) else float(otherwise)


@dataclass(slots=True)
class Counts:
    """Totals over the frames and packets of a stream."""

    packets: int = 0
    keyframes: int = 0
    intra: int = 0
    corrupt: int = 0
    interlaced: int = 0
    leading: int = 0  # packets with leading pictures of the first keyframe
    leading_seen: int = 0  # of `leading`, those that were decoded
    sizes: set[tuple[int, int]] = field(default_factory=set)
    first_pts: int | None = None

    def packet(self, packet: av.Packet, *, hidden: bool) -> None:
        """Count a packet, in decoding order; `hidden`: its picture is not shown."""
        self.packets += 1
        if self.packets == 1:
            self.first_pts = packet.pts
        elif not hidden and self._leads(packet.pts):
            self.leading += 1

    def shot(self, shot: DecodedFrame) -> None:
        """Count a frame."""
        self.keyframes += shot.key
        self.intra += shot.picture.intra
        self.corrupt += shot.corrupt
        self.interlaced += shot.interlaced
        self.sizes.add(shot.size)
        self.leading_seen += self._leads(shot.pts)

    def _leads(self, pts: int | None) -> bool:
        return pts is not None and self.first_pts is not None and pts < self.first_pts and self.keyframes < 2

    @property
    def leading_lost(self) -> int:
        """Leading pictures that gave no frame."""
        return max(0, self.leading - self.leading_seen)


@dataclass(slots=True)
class _Item:
    """A decoded frame on its way to the gather; `frame` is released once its pixels are no longer needed."""

    info: FrameInfo
    stream_us: int
    blocks: VectorSource | None
    frame: av.VideoFrame | Surface | None


class _Paints(Protocol):
    """Converts a back end's frames; `Painter` and `SurfacePainter` are the implementations."""

    def paint(self, frame: Any, geometry: Geometry) -> U8: ...
    def luma(self, frame: Any, geometry: Geometry) -> Luma: ...


class SinglePass:
    """Decodes one segment, every frame once; other back ends override `shots`."""

    backend = "software"

    def __init__(
        self,
        video: Video,
        request: DecodeRequest,
        size: int,
        packets: Sequence[av.Packet] | None = None,
        damaged: frozenset[int] = frozenset(),
    ) -> None:
        self.video, self.request, self.size = video, request, size
        self._packets = packets
        self.trail = DamageTrail(damaged)
        self.has_vectors = video.has_vectors
        self.counts = Counts()
        self.timeline = Timeline(video.fps, JUMP_US)
        self.painter: _Paints = Painter(request.mask)
        self.timed = False
        self.jumps = (
            frozenset(jump.pts for jump in video.clock.jumps) if video.clock is not None else frozenset()
        )
        self.turns_us = 0  # total by which the container's clock wrapped since the epoch began
        self.decoded = 0  # frames
        self.continued = request.expected is not None
        self.epoch_offset = 0  # stream time of segment time 0
        self.first_us = 0
        self.selector: Selector[_Item] = Selector(request.grid, request.first_slot)
        self.geometry: Geometry | None = None
        self.gathering: Geometry | None = None
        self.wanted = frozenset(request.frames or ())
        self.pixels: list[U8] = []
        self.samples: list[SampledFrame] = []

    def run(self) -> DecodedSegment:
        """Process every frame once.

        Raises:
            CodecError: The segment cannot be decoded; `reason` says why.
        """
        for shot in self.shots():
            self._take(shot)
        if not self.timeline.times or self.geometry is None:
            why = f": {self.video.damage}" if self.video.damage else ""
            raise CodecError(Reason.NO_FRAMES, f"{self.counts.packets} packets gave no frame{why}")
        if self.request.frames is None:
            end = self.epoch_offset + self.timeline.end_us
            self._settle(self.selector.finish(self._left_cell(end)))
        return self._result(self.geometry)

    def shots(self) -> Iterator[DecodedFrame]:
        """Yield every frame in presentation order."""
        for packet in self.video.packets() if self._packets is None else self._packets:
            if not self.counts.packets and not packet.is_keyframe:
                raise CodecError(
                    Reason.NO_KEYFRAME,
                    f"the {self.video.codec} stream does not start at a keyframe; cut it at keyframes",
                )
            self.timed = self.timed or packet.pts is not None
            self.counts.packet(packet, hidden=self.video.hides(packet))
            yield from map(DecodedFrame.of, self.video.decode(packet))
        yield from map(DecodedFrame.of, self.video.decode(None))

    def _take(self, shot: DecodedFrame) -> None:
        shot.corrupt = self.trail.reaches(
            shot.pts, key=shot.key, concealed=shot.corrupt, refused=self.video.refused
        )
        self.counts.shot(shot)
        stamped = self.timed and shot.pts is not None
        time_us, _ = self.timeline.add(ticks_to_us(shot.pts or 0, self.video.time_base) if stamped else None)
        jump = shot.pts is not None and shot.pts in self.jumps
        index = len(self.timeline.times) - 1
        self.decoded += 1
        self._check_length(time_us)
        if index == 0:
            self._begin()
        if self.geometry is None or (self.geometry.width, self.geometry.height) != shot.size:
            self.geometry = self._fitted(shot.size, *shot.turn())
        info = FrameInfo(
            index=index,
            time_us=time_us,
            picture=shot.picture,
            key=shot.key,
            corrupt=shot.corrupt,
            interlaced=shot.interlaced,
            width=shot.size[0],
            height=shot.size[1],
            jump=jump,
        )
        blocks = shot.blocks() if self.has_vectors and self.request.gather is not None else None
        self._offer(_Item(info, self.epoch_offset + time_us, blocks, shot.frame))

    def _fitted(self, size: tuple[int, int], rotation: int, mirror: bool) -> Geometry:
        out = (self.request.width, self.request.height)
        return Geometry.fitted(size, out, self.request.fit, rotation=rotation, mirror=mirror)

    def _begin(self) -> None:
        """Decide, at the first frame, whether the segment continues the epoch."""
        expected = self.request.expected
        self.first_us = self.timeline.first_us or 0
        if expected is None:
            return
        if not self.timed:
            self.first_us = expected.next_us
        elif self.video.container in WRAPPING:
            turn_us = round(WRAP_TICKS * self.video.time_base * 1_000_000)
            self.turns_us = round((expected.next_us - self.first_us) / turn_us) * turn_us
            self.first_us += self.turns_us
        self.continued = expected.holds(self.first_us)
        if self.continued:
            self.epoch_offset = self.first_us - expected.epoch_us
        else:
            self.selector = Selector(self.request.grid, 0)

    def _left_cell(self, end_us: int) -> int | None:
        """Return the stream time in the grid cell that is left to the next segment; None if no cell is left.

        The first cell of a stream is always filled, because a clip that ends in it may have no other.
        """
        leave = self.request.tail is Tail.LEAVE and self.request.grid.slot(end_us) > 0
        return end_us if leave else None

    def _offer(self, item: _Item) -> None:
        if self.request.frames is not None:
            sampled = item.info.index in self.wanted
            self._settle([(item, self.request.grid.slot(item.stream_us) if sampled else None)])
            return
        # An intra picture is sharper than predicted ones, so the selector prefers it among frames near a grid
        # point.
        intra = item.info.key or item.info.picture.intra
        self._settle(self.selector.offer(item, item.stream_us, intra, item.info.corrupt))
        gather = self.request.gather
        # Pixels are released as soon as they cannot be needed: a segment may have thousands of frames.
        if self.selector.candidate is not item and not (gather is not None and gather.needs_luma):
            item.frame = None

    def _settle(self, known: list[tuple[_Item, int | None]]) -> None:
        for item, slot in known:
            self._push(item)
            if slot is not None:
                self._sample(item, slot)

    def _push(self, item: _Item) -> None:
        gather, frame = self.request.gather, item.frame
        if gather is None:
            return
        geometry = self._geometry_of(item)
        if geometry != self.gathering:
            self.gathering = geometry
            gather.start(geometry)
        luma = self.painter.luma(frame, geometry) if gather.needs_luma and frame is not None else None
        blocks, mask = item.blocks, self.request.mask
        if mask is not None and blocks is not None:
            blocks = mask.still(blocks, geometry, self.video.codec)
        gather.push(item.info, blocks, luma)

    def _geometry_of(self, item: _Item) -> Geometry:
        assert self.geometry is not None
        size = (item.info.width, item.info.height)
        if (self.geometry.width, self.geometry.height) == size:
            return self.geometry
        return self._fitted(size, self.geometry.rotation, self.geometry.mirror)

    def _sample(self, item: _Item, slot: int) -> None:
        assert item.frame is not None
        size = self.request.width * self.request.height * 3
        if (len(self.pixels) + 1) * size > SAMPLED_BYTES:
            raise _too_many_samples(self.request)
        gather = self.request.gather
        if gather is not None:
            gather.sample(item.info)
        self.pixels.append(self.painter.paint(item.frame, self._geometry_of(item)))
        self.samples.append(SampledFrame(item.info, slot, item.stream_us))

    def _check_length(self, time_us: int) -> None:
        limits = self.request.limits
        if time_us > limits.seconds * 1e6 or len(self.timeline.times) > limits.frames:
            raise _too_long(self.request)

    def _result(self, geometry: Geometry) -> DecodedSegment:
        shape = (0, self.request.height, self.request.width, 3)
        gather = self.request.gather
        if gather is not None:
            moved = zip(self.samples, gather.motions(), strict=True)
            self.samples = [replace(sample, motion=motion) for sample, motion in moved]
        # Grid points before the segment stay taken even if it gives no sample; a new epoch begins at zero.
        floor = self.request.first_slot if self.continued or self.request.expected is None else 0
        return DecodedSegment(
            pixels=np.stack(self.pixels) if self.pixels else np.zeros(shape, np.uint8),
            frames=tuple(self.samples),
            facts=self._facts(),
            geometry=geometry,
            continued=self.continued,
            next_slot=max([floor, *(s.slot + 1 for s in self.samples)]),
            end_stream_us=self.epoch_offset + self.timeline.end_us,
        )

    def _jumped_us(self) -> int:
        """Return by how much the container's clock is behind segment time at the segment's end."""
        clock = self.video.clock
        return ticks_to_us(clock.shift, self.video.time_base) if self.timed and clock is not None else 0

    def _facts(self) -> SegmentFacts:
        times, counts, video = self.timeline.times, self.counts, self.video
        geometry = self.geometry
        assert geometry is not None
        return SegmentFacts(
            container=video.container,
            codec=video.codec,
            profile=str(video.context.profile or ""),
            width=geometry.width,
            height=geometry.height,
            rotation=geometry.rotation,
            fps=round(1e6 / mean_step(times, self.timeline.nominal_us), 3),
            timed=self.timed,
            first_us=self.first_us,
            end_us=self.first_us + self.timeline.end_us - self._jumped_us(),
            bytes=self.size,
            packets=counts.packets,
            frames=len(times),
            decoded=self.decoded,
            keyframes=counts.keyframes,
            intra=counts.intra,
            corrupt=counts.corrupt,
            refused=video.refused,
            leading_lost=counts.leading_lost,
            jumps=len(self.jumps),
            sizes=len(counts.sizes),
            interlaced=counts.interlaced,
            has_vectors=self.has_vectors,
            backend=self.backend,
        )


class _UnplannedError(Exception):
    """The decoder returned a picture that no packet announced, so the segment's plan cannot be used."""


@dataclass(slots=True)
class _Held:
    """A decoded frame that waits for the next one; `slot`: the grid point it is sampled for."""

    frame: av.VideoFrame
    place: PicturePlace
    slot: int | None
    corrupt: bool


class PlannedPass(SinglePass):
    """A single pass whose samples are chosen before anything is decoded (`lookout.video.segments.planned`).

    If the frame chosen for a grid point is damaged, the undamaged frame decoded right before it is used
    instead.
    """

    def __init__(
        self,
        video: Video,
        request: DecodeRequest,
        size: int,
        timetable: Timetable,
        damaged: frozenset[int] = frozenset(),
    ) -> None:
        super().__init__(video, request, size, timetable.packets, damaged)
        self.timetable, self.timeline, self.timed = timetable, timetable.timeline, True
        self.counts.packets = len(timetable.packets)

    def run(self) -> DecodedSegment:
        """Process every frame that is needed once.

        Raises:
            CodecError: The segment cannot be decoded; `reason` says why.
        """
        self._check_length(self.timeline.times[-1])
        self._begin()
        end_us = self.epoch_offset + self.timeline.end_us
        request = self.request
        slots = self.timetable.picks(
            request,
            self.epoch_offset,
            self.selector.first_slot,
            self._left_cell(end_us),
            self.trail.packets,
        )
        if not slots and self.timetable.packets:  # nothing to sample: one picture is decoded for the geometry
            slots = {self.timetable.packets[0].pts or 0: -1}
        skip = request.gather is None or not request.gather.needs_all
        single = [Run(0, len(self.timetable.packets) - 1, drain=False)]
        runs = runs_of(self.timetable, self.video.codec, self.video.sets.length, slots) if skip else single
        pending: _Held | None = None
        for frame in decode_runs(self.video, self.timetable, runs, slots, skip=skip):
            pending = self._next(frame, slots, pending)
        if pending is not None:
            self._settle_held(pending)
        if self.geometry is None:
            why = f": {self.video.damage}" if self.video.damage else ""
            raise CodecError(Reason.NO_FRAMES, f"{self.counts.packets} packets gave no frame{why}")
        self.counts.keyframes = sum(packet.is_keyframe for packet in self.timetable.packets)
        return self._result(self.geometry)

    def _next(self, frame: av.VideoFrame, wanted: dict[int, int], before: _Held | None) -> _Held:
        """Count a frame, and process the one before it."""
        pts = frame.pts if frame.pts is not None else frame.dts
        place = self.timetable.places.get(pts) if pts is not None else None
        if place is None or pts is None:
            raise _UnplannedError
        self.decoded += 1
        damaged = self.trail.reaches(
            pts, key=bool(frame.key_frame), concealed=bool(frame.is_corrupt), refused=self.video.refused
        )
        pending = _Held(frame, place, wanted.get(pts), damaged)
        self.counts.corrupt += pending.corrupt
        self.counts.interlaced += bool(frame.interlaced_frame)
        self.counts.intra += bool(frame.key_frame)
        if self.geometry is None or (self.geometry.width, self.geometry.height) != (
            frame.width,
            frame.height,
        ):
            self.counts.sizes.add((frame.width, frame.height))
            self.geometry = self._fitted((frame.width, frame.height), *orientation(frame))
        if before is not None:
            if pending.slot is not None and pending.corrupt and self._serves(before, pending.slot):
                before.slot, pending.slot = pending.slot, None
            self._settle_held(before)
        return pending

    def _serves(self, before: _Held, slot: int) -> bool:
        """Whether a frame can be sampled instead of a damaged frame."""
        stream_us = self.epoch_offset + before.place.time_us
        return before.slot is None and not before.corrupt and self.request.grid.slot(stream_us) == slot

    def _settle_held(self, held: _Held) -> None:
        """Gather a frame's motion, and sample it if it was chosen."""
        if held.slot == -1 or (self.request.gather is None and held.slot is None):
            return
        shot = DecodedFrame.of(held.frame)
        info = FrameInfo(
            index=held.place.index,
            time_us=held.place.time_us,
            picture=shot.picture,
            key=shot.key,
            corrupt=held.corrupt,
            interlaced=shot.interlaced,
            width=shot.size[0],
            height=shot.size[1],
        )
        gathers = self.request.gather is not None
        item = _Item(
            info,
            self.epoch_offset + held.place.time_us,
            shot.blocks() if gathers and self.has_vectors else None,
            held.frame,
        )
        self._settle([(item, held.slot)])
