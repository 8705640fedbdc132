"""Keyframe-parallel decoding of files (QuickCodec, QuickVideo section 3): intervals between keyframes are
decoded on threads, earliest first, and handed out in order.

Beyond the paper: unsampled pictures nothing refers to are skipped, a group of pictures is left after its
last sample, and groups without samples are neither read nor decoded."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from queue import Empty, Full, Queue
from types import TracebackType
from typing import cast

import av
import numpy as np

from lookout.codec.container import ByteSource, Video
from lookout.codec.geometry import Fit
from lookout.codec.picture import Painter, frame_geometry
from lookout.codec.sampling import SamplingGrid
from lookout.codec.table import FrameTable, PacketRange, Pick, plan_ranges, share_out
from lookout.codec.types import U8, CodecError, Limits, Picture, Reason

FILE_LIMITS = Limits(bytes=1 << 50, seconds=1e9, frames=1 << 40)
REORDER = 16  # frames by which H.264 and HEVC may output a picture after a later one was decoded
SEEK_BYTES = 4 * 1024 * 1024  # a gap worth a seek


@dataclass(frozen=True, slots=True)
class FileFrame:
    """One sampled frame. pixels: uint8 [height, width, 3] RGB, the reader's own."""

    position: int  # among the samples
    index: int  # among the file's frames, in presentation order
    slot: int
    time_us: int  # since the file's first frame
    key: bool
    picture: Picture
    corrupt: bool
    pixels: U8


@dataclass(slots=True)
class Work:
    """What a decode did."""

    packets: int = 0  # in the file
    fed: int = 0  # given to a decoder, twice where intervals overlap
    skipped: int = 0  # of these, not decoded because nothing refers to them
    frames: int = 0  # decoded
    painted: int = 0
    runs: int = 0
    seeks: int = 0
    mended: int = 0  # runs decoded again with what precedes them, because they are damaged
    missing: int = 0  # sampled but not decodable


@dataclass(frozen=True, slots=True)
class _Sample:
    key: bool
    picture: Picture
    corrupt: bool
    pixels: U8


@dataclass(slots=True)
class _Slot:
    key: bool = False
    picture: Picture = Picture.UNKNOWN
    corrupt: bool = False
    state: str = "waiting"  # waiting, ready, missing


class _Ring:
    """A preallocated array of `capacity` pictures between decoding threads and the reader."""

    def __init__(self, samples: int, capacity: int, width: int, height: int) -> None:
        self.capacity = max(1, min(capacity, samples))
        self.pixels: U8 = np.zeros((self.capacity, height, width, 3), np.uint8)
        self.slots = [_Slot() for _ in range(samples)]
        self.read = 0
        self.error: BaseException | None = None
        self.closed = False
        self._changed = threading.Condition()

    def put(self, position: int, sample: _Sample) -> bool:
        """Hand over a sample, waiting for room; False if nobody reads any more."""
        with self._changed:
            self._changed.wait_for(lambda: self.closed or position < self.read + self.capacity)
            slot = self.slots[position]
            if not self.closed and slot.state == "waiting":
                self.pixels[position % self.capacity] = sample.pixels
                slot.key, slot.corrupt, slot.picture = sample.key, sample.corrupt, sample.picture
                slot.state = "ready"
                self._changed.notify_all()
            return not self.closed

    def give_up(self, position: int) -> None:
        """Say that a sample will not come."""
        with self._changed:
            if self.slots[position].state == "waiting":
                self.slots[position].state = "missing"
            self._changed.notify_all()

    def fail(self, error: BaseException) -> None:
        """Let the reader know that decoding broke down."""
        with self._changed:
            self.error = self.error or error
            self.closed = True
            self._changed.notify_all()

    def close(self) -> None:
        """Nobody reads any more."""
        with self._changed:
            self.closed = True
            self._changed.notify_all()

    def take(self, position: int) -> tuple[_Slot, U8 | None]:
        """Wait for a sample; its own copy of the pixels, or None where it is missing."""
        with self._changed:
            self._changed.wait_for(lambda: self.error is not None or self.slots[position].state != "waiting")
            slot = self.slots[position]
            if slot.state == "waiting" and self.error is not None:
                raise self.error
            pixels = self.pixels[position % self.capacity].copy() if slot.state == "ready" else None
            self.read = position + 1
            self._changed.notify_all()
            return slot, pixels


@dataclass(frozen=True, slots=True)
class _Interval:
    runs: tuple[tuple[PacketRange, tuple[av.Packet, ...]], ...]


class FileDecoder:
    """Samples a file on a grid, decoding between keyframes in parallel.

    width, height, fit: the model's input; start_us, end_us: time range since the first frame; threads:
    decoding threads; intervals: into how many the file is cut (default: four per thread, or enough to bound
    memory); lookahead: samples that may wait for the reader; skip: False decodes every packet of a run.
    Iterate it once, in order; `work` counts what was done. Files without usable time stamps are decoded in
    order on one thread. Errors: `CodecError`."""

    def __init__(
        self,
        path: str | Path,
        width: int,
        height: int,
        *,
        grid: SamplingGrid | None = None,
        fit: Fit = Fit.STRETCH,
        start_us: int = 0,
        end_us: int | None = None,
        threads: int = 2,
        intervals: int | None = None,
        lookahead: int = 64,
        skip: bool = True,
        exact: bool = True,
        limits: Limits = FILE_LIMITS,
    ) -> None:
        if threads < 1 or lookahead < 1 or (intervals is not None and intervals < 1):
            raise CodecError(Reason.REQUEST, "threads, intervals and lookahead must be at least 1")
        self.path, self.width, self.height, self.fit, self.limits = Path(path), width, height, fit, limits
        self.skip, self.exact, self.threads = skip, exact, threads
        with self._open() as video:
            self.table = FrameTable.scan(video)
        self.picks = self.table.picks(grid or SamplingGrid(), start_us, end_us)
        self.parallel = self.table.ordered and bool(self.table.clean.any())
        self.work = Work(packets=len(self.table))
        # An interval waits in memory as packets: keep it to some hundred pictures.
        self._intervals = intervals or max(4 * threads, len(self.table) // 256)
        self._ring = _Ring(len(self.picks), lookahead, width, height)
        self._threads: list[threading.Thread] = []
        self._ready: Queue[_Interval | None] = Queue(maxsize=threads)
        self._positions = {pick.pts: i for i, pick in enumerate(self.picks)}
        self._count = threading.Lock()
        self._spoiled = threading.Event()
        self._started = False

    def __len__(self) -> int:
        return len(self.picks)

    def __iter__(self) -> Iterator[FileFrame]:
        """Sampled frames in order. Frames that cannot be decoded are left out and counted in
        `work.missing`."""
        self._start()
        try:
            for position, pick in enumerate(self.picks):
                slot, pixels = self._ring.take(position)
                if pixels is None:
                    self.work.missing += 1
                    continue
                yield FileFrame(
                    position,
                    pick.index,
                    pick.slot,
                    pick.time_us,
                    slot.key,
                    slot.picture,
                    slot.corrupt,
                    pixels,
                )
        finally:
            self.close()

    def close(self) -> None:
        """Stop the threads."""
        self._ring.close()
        for thread in self._threads:
            thread.join()
        self._threads = []

    def __enter__(self) -> FileDecoder:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _open(self) -> _OpenVideo:
        return _OpenVideo(self.path, self.limits)

    def _start(self) -> None:
        if self._started:
            raise CodecError(Reason.REQUEST, "a file decoder can be read once")
        self._started = True
        if not self.picks:
            return
        jobs: list[Callable[[], None]] = [self._in_order]
        if self.parallel:
            jobs = [self._feed, *([self._decode] * self.threads)]
        for job in jobs:
            thread = threading.Thread(target=self._guarded, args=(job,), name="file-decoder", daemon=True)
            self._threads.append(thread)
            thread.start()

    def _guarded(self, job: Callable[[], None]) -> None:
        try:
            job()
        except BaseException as error:
            self._ring.fail(error)

    def _feed(self) -> None:
        """Read packets once and hand them to the decoding threads interval by interval."""
        plan = share_out(plan_ranges(self.table, [pick.pts for pick in self.picks]), self._intervals)
        with _Reader(self.path, self.limits, self.table) as reader:
            for runs in plan:
                loaded = tuple((run, tuple(reader.packets(run.first, run.last))) for run in runs)
                if not self._offer(_Interval(loaded)):
                    break
            self.work.seeks = reader.seeks
        for _ in range(self.threads):
            if not self._offer(None):
                break

    def _offer(self, interval: _Interval | None) -> bool:
        while not self._ring.closed:
            try:
                self._ready.put(interval, timeout=0.2)
            except Full:
                continue
            return True
        return False

    def _next(self) -> _Interval | None:
        while not self._ring.closed:
            try:
                return self._ready.get(timeout=0.2)
            except Empty:
                continue
        return None

    def _decode(self) -> None:
        painter = Painter()
        with self._open() as video:
            while (interval := self._next()) is not None:
                for run, packets in interval.runs:
                    if self._spoiled.is_set():
                        return
                    if self._run(video, painter, run, packets, self.skip):
                        continue
                    if not self._repair(video, painter, run):
                        return

    def _run(
        self, video: Video, painter: Painter, run: PacketRange, packets: tuple[av.Packet, ...], skip: bool
    ) -> bool:
        """Decode a run from scratch. False if it is damaged and `exact`: what is left of it must be
        mended."""
        delivery = _Delivery(self._ring, run.wanted, self._positions)
        refused, frames, damaged = video.refused, 0, False
        for packet in (*packets, None):
            if packet is not None:
                unneeded = skip and packet.pts not in run.wanted and not packet.is_keyframe
                video.context.skip_frame = "NONREF" if unneeded else "DEFAULT"
            for frame in video.decode(packet):
                frames += 1
                damaged = damaged or bool(frame.is_corrupt)
                if frame.pts in run.wanted:
                    delivery.hold(frame.pts, self._paint(painter, frame))
                delivery.step()
            damaged = damaged or video.refused > refused
            if (damaged and self.exact) or self._ring.closed:
                break
        video.context.flush_buffers()
        if damaged and self.exact:
            self._tally(len(packets), frames, 0)
            return False
        self._tally(len(packets), frames, delivery.finish())
        return True

    def _repair(self, video: Video, painter: Painter, run: PacketRange) -> bool:
        """Decode a damaged run as a plain decoder would, which hides damage with what came before.

        The group before is decoded whole to have that; if it is damaged as well, the file is decoded in
        order from its beginning, once, and the other threads stop. False: nothing is left to do."""
        before = np.flatnonzero(self.table.clean[: run.first])
        lead = int(before[-1]) if len(before) else 0
        with _Reader(self.path, self.limits, self.table) as reader:
            packets = list(reader.packets(lead, run.last))
        delivery = _Delivery(self._ring, run.wanted, self._positions)
        video.context.skip_frame = "DEFAULT"
        refused, frames, spoilt = video.refused, 0, False
        shown = int(self.table.pts[run.first])
        for i, packet in enumerate((*packets, None)):
            for frame in video.decode(packet):
                frames += 1
                spoilt = spoilt or (frame.is_corrupt and frame.pts is not None and frame.pts < shown)
                if frame.pts in run.wanted:
                    delivery.hold(frame.pts, self._paint(painter, frame))
            spoilt = spoilt or (video.refused > refused and i + lead < run.first)
            if spoilt and lead > 0:
                video.context.flush_buffers()
                return self._spoil()
        video.context.flush_buffers()
        self._tally(len(packets), frames, delivery.finish())
        with self._count:
            self.work.mended += 1
        return True

    def _spoil(self) -> bool:
        with self._count:
            first = not self._spoiled.is_set()
            self._spoiled.set()
        if first:
            self._in_order()
        return False

    def _tally(self, fed: int, frames: int, painted: int) -> None:
        with self._count:
            work = self.work
            work.fed += fed
            work.frames += frames
            work.painted += painted
            work.skipped += max(0, fed - frames)
            work.runs += 1

    def _paint(self, painter: Painter, frame: av.VideoFrame) -> _Sample:
        pixels = painter.paint(frame, frame_geometry(frame, self.width, self.height, self.fit))
        return _Sample(bool(frame.key_frame), Picture(frame.pict_type), bool(frame.is_corrupt), pixels)

    def _in_order(self) -> None:
        """Decode the file in order and hand over every sample that still waits."""
        positions = {self._name(pick): i for i, pick in enumerate(self.picks)}
        painter, index = Painter(), 0
        with self._open() as video:
            for index, frame in enumerate(video.frames()):
                position = positions.pop(frame.pts if self.table.ordered else index, None)
                self.work.frames += 1
                if position is not None:
                    self.work.painted += 1
                    if not self._ring.put(position, self._paint(painter, frame)):
                        return
                if not positions:
                    break
        for position in positions.values():
            self._ring.give_up(position)
        self.work.fed += index + 1
        self.work.runs += 1

    def _name(self, pick: Pick) -> int:
        """What tells a frame from others: its time stamp, or its place where time stamps do not."""
        return pick.pts if self.table.ordered else pick.index


class _Delivery:
    """Hands a run's samples over in order, each once so many frames have followed that no damage can
    concern it."""

    def __init__(self, ring: _Ring, wanted: frozenset[int], positions: dict[int, int]) -> None:
        self._ring, self._positions = ring, positions
        self._awaited = sorted(positions[pts] for pts in wanted)
        self._held: list[tuple[int, int, _Sample]] = []
        self._frames = 0
        self._delivered = 0

    def hold(self, pts: int, sample: _Sample) -> None:
        """Take a sample."""
        self._held.append((self._frames, self._positions[pts], sample))

    def step(self) -> None:
        """Count a decoded frame, and deliver what is old enough."""
        self._frames += 1
        while self._held and self._frames - self._held[0][0] > REORDER:
            self._deliver()

    def finish(self) -> int:
        """Deliver the rest and give up samples that did not come; how many came in all."""
        while self._held:
            self._deliver()
        for position in self._awaited:
            self._ring.give_up(position)
        return self._delivered

    def _deliver(self) -> None:
        _, position, sample = self._held.pop(0)
        # Frames come in order: what should have come before will not come any more.
        while self._awaited and self._awaited[0] <= position:
            earlier = self._awaited.pop(0)
            if earlier != position:
                self._ring.give_up(earlier)
        self._ring.put(position, sample)
        self._delivered += 1


class _OpenVideo:
    """A path opened as `Video`, with its file."""

    def __init__(self, path: Path, limits: Limits) -> None:
        self._path, self._limits = path, limits
        self._stack = ExitStack()

    def __enter__(self) -> Video:
        try:
            file = self._stack.enter_context(self._path.open("rb"))
        except OSError as error:
            raise CodecError(Reason.UNREADABLE, f"{self._path} cannot be read ({error.strerror})") from None
        try:
            return self._stack.enter_context(
                Video(cast(ByteSource, file), vectors=False, limits=self._limits)
            )
        except BaseException:
            self._stack.close()
            raise

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()


class _Reader:
    """Packets of a file by their number in decoding order, read forward, sought where a gap is wide."""

    def __init__(self, path: Path, limits: Limits, table: FrameTable) -> None:
        self._path, self._limits, self._table = path, limits, table
        self.seeks = 0
        self._may_seek = True
        self._opened = ExitStack()
        self._next = 0  # number of the next packet the demuxer will give
        self._held: list[tuple[int, av.Packet]] = []  # read already, may be asked for again
        self._open()

    def _open(self) -> None:
        self._opened.close()
        self._video = self._opened.enter_context(_OpenVideo(self._path, self._limits))
        self._stream = self._video.packets()
        self._next = 0

    def __enter__(self) -> _Reader:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._opened.close()

    def packets(self, first: int, last: int) -> Iterator[av.Packet]:
        """Packets [first, last]. `first` never decreases from call to call."""
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
            raise CodecError(Reason.UNREADABLE, f"{self._path} now ends at packet {self._next}")
        self._next += 1
        return self._next - 1, packet

    def _skip_to(self, number: int) -> None:
        """Seek to a keyframe if that saves reading and the container's index leads there."""
        gap = int(self._table.size[self._next : number].sum())
        if not self._may_seek or not self._table.key[number] or gap < SEEK_BYTES:
            return
        self._video.seek(int(self._table.pts[number]))
        self._stream = self._video.packets()
        for packet in self._stream:
            found = self._number(packet)
            if found is None or found > number:
                break
            if found == number:
                self.seeks += 1
                self._held.append((number, packet))
                self._next = number + 1
                return
        # It led elsewhere (MPEG-TS has no index). Only a fresh start gives the packets as they were counted.
        self._may_seek = False
        self._open()

    def _number(self, packet: av.Packet) -> int | None:
        if packet.pts is None:
            return None
        found = np.flatnonzero((self._table.pts == packet.pts) & (self._table.size == packet.size))
        return int(found[0]) if len(found) == 1 else None
