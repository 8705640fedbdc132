"""Keyframe-parallel decoding of recordings (QuickCodec, QuickVideo section 3): intervals between keyframes
are decoded on threads, earliest first, and delivered in order.

Beyond the paper: unsampled pictures that nothing refers to are skipped, decoding of a group of pictures
stops after its last sample, and groups without samples are neither read nor decoded.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from queue import Empty, Full, Queue
from types import TracebackType

import av
import numpy as np

from lookout.video.files.packets import PacketCache, PacketReader
from lookout.video.files.ring import Ring, RingSample, SampleDelivery
from lookout.video.files.sample_index import indexed_table
from lookout.video.files.source import Given, Source, open_video, source_of
from lookout.video.files.table import FrameTable, PacketRange, intervals_of, plan_ranges, share_out
from lookout.video.motion.geometry import Fit
from lookout.video.motion.types import U8, Picture
from lookout.video.segments.container import Video
from lookout.video.segments.picture import Painter, frame_geometry
from lookout.video.segments.sampling import Pick, SamplingGrid
from lookout.video.segments.skipping import decode_wanted
from lookout.video.segments.types import FILE_LIMITS, CodecError, Limits, Reason

AT_ONCE = 0.85
"""Speed of each thread, if several threads decode the pictures of one interval, relative to a single
thread."""
WORTH = 0.95
"""Fewer workers are chosen only if their time is below this share of the best time with more workers.
Otherwise more workers are better, because they use less CPU time."""


@dataclass(frozen=True, slots=True)
class FileFrame:
    """A sampled frame. `pixels`: uint8 [height, width, 3] RGB, which the reader may keep."""

    position: int  # among the samples
    index: int  # among the recording's frames, in presentation order
    slot: int
    time_us: int  # since the recording's first frame
    key: bool
    picture: Picture
    corrupt: bool
    pixels: U8


@dataclass(slots=True)
class DecodeWork:
    """Counters of one decode."""

    packets: int = 0  # in the recording
    fed: int = 0  # given to a decoder; packets in two intervals count twice
    skipped: int = 0  # of `fed`, not decoded because nothing refers to them
    frames: int = 0  # decoded
    painted: int = 0
    runs: int = 0
    seeks: int = 0
    repaired: int = 0  # packet ranges decoded again after the group before them, because of damage
    missing: int = 0  # sampled but not decodable


@dataclass(frozen=True, slots=True)
class Scan:
    """A recording's packet table, and the other results of a scan.

    Attributes:
        table: The packets.
        kept: The packets themselves, if all were read and they are small enough to keep.
        damage: Why the packets ended early, if they did.
        first: The first packets, if only these were read because the container's index lists the rest.
        changing: Whether parameter sets change in the course of the recording.
        steady: Whether time stamps and parameter sets come from the container itself. Otherwise they depend
            on all earlier packets, so that seeking is not possible.
    """

    table: FrameTable
    kept: Sequence[av.Packet] | None = None
    damage: str = ""
    first: Sequence[av.Packet] | None = None
    changing: bool = False
    steady: bool = True

    @property
    def indexed(self) -> bool:
        """Whether the table comes from the container's index, so that FFmpeg need not probe the stream."""
        return self.first is not None


@contextmanager
def scanned(source: Source, limits: Limits) -> Iterator[tuple[Video, Scan]]:
    """Open and scan a recording, from the container's index if that suffices, otherwise by reading every
    packet.

    Raises:
        CodecError: The recording cannot be decoded; `reason` says why.
    """
    with ExitStack() as opened:
        video = opened.enter_context(open_video(source, limits, probe=False))
        # A second handle, because reading the index must not move the opened video's position.
        with source.open() as file:
            indexed = indexed_table(video, file)
        if indexed is not None:
            yield video, Scan(indexed[0], first=indexed[1])
            return
        # Opened again, now with probing: without the index, FFmpeg learns some facts only by decoding.
        opened.pop_all().close()
        video = opened.enter_context(open_video(source, limits))
        collector = PacketCache()
        table = FrameTable.scan(video, collector.add)
        yield (
            video,
            Scan(table, collector.packets, video.damage, changing=video.sets.changed, steady=video.steady),
        )


@dataclass(frozen=True, slots=True)
class _Interval:
    runs: tuple[tuple[PacketRange, tuple[av.Packet, ...]], ...]


def threads_per_worker(loads: Sequence[int], threads: int) -> list[int]:
    """Return the number of threads of each worker with which intervals of these loads, taken in order, are
    finished soonest.
    """
    best, least = [1], float("inf")
    # Tried from many workers to few. Threads inside one decoder gain less than a second decoder (`AT_ONCE`),
    # so fewer workers must be clearly faster (`WORTH`).
    for workers in range(min(threads, len(loads)), 0, -1):
        counts = [threads // workers + (i < threads % workers) for i in range(workers)]
        speeds = [1.0 if count == 1 else AT_ONCE * count for count in counts]
        busy = [0.0] * workers
        for load in loads:
            first = busy.index(min(busy))
            busy[first] += load / speeds[first]
        if max(busy) < WORTH * least:
            best, least = counts, max(busy)
    return best


class FileDecoder:
    """Samples a recording on a grid, decoding between keyframes in parallel.

    Iterate it once, in order; `work` counts what was done. Recordings without usable time stamps are decoded
    in order on one thread. If there are too few keyframes to keep all threads busy, several threads decode
    the pictures of one interval.

    Args:
        source: A path, a URL, bytes, or a `Source`.
        width: Width of the model's input in pixels.
        height: Height of the model's input in pixels.
        grid: The sampling grid (default: two frames per second).
        picks: Frames to return instead of those of a grid; distinct, in presentation order.
        fit: How a picture is fitted into an input of another shape.
        start_us: Begin of the time range, counted from the first frame.
        end_us: End of the time range, excluded; None: to the end.
        threads: Decoding threads.
        intervals: Number of intervals (default: four per thread, more in long recordings to bound memory).
        lookahead: Samples that may wait for the reader.
        skip: Whether to skip pictures that nothing refers to; False decodes every packet of a range.
        exact: Whether to decode damaged ranges again together with the previous group, which gives the
            result of a plain decoder.
        limits: Limits on what is read.
        scan: The recording's scan, if there is one already.
        video: The open video of `scan`, not read any further since the scan.
        opened: Resources to close together with the decoder, such as the source of `video`.

    Raises:
        CodecError: The recording cannot be read, or an argument is invalid.
    """

    def __init__(
        self,
        source: Given,
        width: int,
        height: int,
        *,
        grid: SamplingGrid | None = None,
        picks: Sequence[Pick] | None = None,
        fit: Fit = Fit.STRETCH,
        start_us: int = 0,
        end_us: int | None = None,
        threads: int = 2,
        intervals: int | None = None,
        lookahead: int = 64,
        skip: bool = True,
        exact: bool = True,
        limits: Limits = FILE_LIMITS,
        scan: Scan | None = None,
        video: Video | None = None,
        opened: ExitStack | None = None,
    ) -> None:
        if threads < 1 or lookahead < 1 or (intervals is not None and intervals < 1):
            raise CodecError(Reason.REQUEST, "threads, intervals and lookahead must be at least 1")
        self.source = source_of(source)
        self.width, self.height, self.fit, self.limits = width, height, fit, limits
        self.skip, self.exact, self.threads = skip, exact, threads
        self._first = opened or ExitStack()  # the scan's video is also used by the first threads
        if scan is None:
            video, scan = self._first.enter_context(scanned(self.source, limits))
        self._scanned, self._begun_packets = video, scan.first
        self._probe, self._steady = not scan.indexed, scan.steady
        self.table, self._kept, self.damage = scan.table, scan.kept, scan.damage
        if picks is None:
            picks = self.table.picks(grid or SamplingGrid(), start_us, end_us)
        self.picks = list(picks)
        self.parallel = self.table.grouped and bool(self.table.clean.any())
        self.work = DecodeWork(packets=len(self.table))
        self.missing: list[Pick] = []
        self._intervals = intervals or intervals_of(self.table, threads)
        self._ring = Ring(len(self.picks), lookahead)
        self._threads: list[threading.Thread] = []
        # Bounded, because the packets of a whole recording would not fit into memory.
        self._ready: Queue[_Interval | None] = Queue(maxsize=threads)
        self._positions = {pick.pts: i for i, pick in enumerate(self.picks)}
        self._count = threading.Lock()
        self._spoiled = threading.Event()
        self._started = False
        self._spent, self._workers = 0.0, 1
        self._begun: dict[int, float] = {}

    def __len__(self) -> int:
        return len(self.picks)

    @property
    def busy_s(self) -> float:
        """Decoding time so far in seconds, without waits for the reader: the threads' time in packet ranges,
        divided by the number of workers."""
        now = time.perf_counter()
        with self._count:
            spent = self._spent + sum(now - begun for begun in self._begun.values())
        return max(0.0, spent - self._ring.stalled_s) / max(1, self._workers)

    @contextmanager
    def _busy(self) -> Iterator[None]:
        name = threading.get_ident()
        with self._count:
            self._begun[name] = time.perf_counter()
        try:
            yield
        finally:
            with self._count:
                self._spent += time.perf_counter() - self._begun.pop(name)

    def __iter__(self) -> Generator[FileFrame]:
        """Yield the sampled frames in order. Frames that cannot be decoded are skipped; `missing`
        lists them, and `work.missing` counts them."""
        self._start()
        try:
            for position, pick in enumerate(self.picks):
                sample = self._ring.take(position)
                if sample is None:
                    self.work.missing += 1
                    self.missing.append(pick)
                    continue
                yield FileFrame(
                    position,
                    pick.index,
                    pick.slot,
                    pick.time_us,
                    sample.key,
                    sample.picture,
                    sample.corrupt,
                    sample.pixels,
                )
        finally:
            self.close()

    def close(self) -> None:
        """Stop the threads."""
        self._ring.close()
        for thread in self._threads:
            thread.join()
        self._threads = []
        self._first.close()
        self._scanned = None

    def __enter__(self) -> FileDecoder:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _start(self) -> None:
        if self._started:
            raise CodecError(Reason.REQUEST, "a file decoder can be iterated only once")
        self._started = True
        if not self.picks:
            return
        jobs: list[Callable[[], None]] = [self._in_order]
        if self.parallel:
            ranges = plan_ranges(self.table, [pick.pts for pick in self.picks])
            plan = share_out(ranges, self._intervals)
            spare = threads_per_worker(
                [sum(run.last - run.first + 1 for run in runs) for runs in plan], self.threads
            )
            workers = self._workers = len(spare)
            jobs = [partial(self._feed, plan, workers)]
            jobs += [partial(self._decode, count, i == 0) for i, count in enumerate(spare)]
        for job in jobs:
            thread = threading.Thread(target=self._guarded, args=(job,), name="file-decoder", daemon=True)
            self._threads.append(thread)
            thread.start()

    def _guarded(self, job: Callable[[], None]) -> None:
        try:
            job()
        except BaseException as error:
            # Passed to the reader, because an error raised in a thread would go unnoticed.
            self._ring.fail(error)

    def _feed(self, plan: Sequence[Sequence[PacketRange]], workers: int) -> None:
        """Read packets once and hand them to the decoding threads interval by interval."""
        begun = None
        if self._scanned is not None and self._begun_packets is not None:
            begun = self._scanned, self._begun_packets
        with PacketReader(
            self.source, self.limits, self.table, self._kept, begun, probe=self._probe, seek=self._steady
        ) as reader:
            for runs in plan:
                loaded = tuple((run, tuple(reader.packets(run.first, run.last))) for run in runs)
                if not self._offer(_Interval(loaded)):
                    break
            self.work.seeks = reader.seeks
        for _ in range(workers):
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

    def _decode(self, frame_threads: int, first: bool) -> None:
        """Run one worker: decode packet ranges as they arrive, `frame_threads` pictures in parallel."""
        painter = Painter()
        with ExitStack() as opened:
            # With begun packets, the packet reader uses this video, and its seeks would flush the decoder.
            if first and self._scanned is not None and self._begun_packets is None and frame_threads == 1:
                video = self._scanned
            else:
                video = opened.enter_context(
                    open_video(self.source, self.limits, frame_threads=frame_threads, probe=self._probe)
                )
            while (interval := self._next()) is not None:
                for run, packets in interval.runs:
                    if self._spoiled.is_set():
                        return
                    with self._busy():
                        complete = self._run(video, painter, run, packets, frame_threads > 1)
                    if complete:
                        continue
                    if not self._repair(painter, run):
                        return

    def _run(
        self,
        video: Video,
        painter: Painter,
        run: PacketRange,
        packets: tuple[av.Packet, ...],
        at_once: bool,
    ) -> bool:
        """Decode a range with a fresh decoder. Return False if the range is damaged and `exact` is set, so
        that the rest must be repaired. If pictures are decoded in parallel (`at_once`), FFmpeg may silently
        drop pictures after an error, so a missing picture counts as damage.
        """
        delivery = SampleDelivery(self._ring, run.wanted, self._positions)
        refused_before, frames, damaged = video.refused, 0, False
        for batch in self._frames(video, run, packets):
            for frame in batch:
                frames += 1
                damaged = damaged or bool(frame.is_corrupt)
                if frame.pts in run.wanted:
                    delivery.hold(frame.pts, self._paint(painter, frame))
                delivery.step()
            damaged = damaged or video.refused > refused_before
            if (damaged and self.exact) or self._ring.closed:
                break
        video.context.flush_buffers()
        damaged = damaged or (at_once and not delivery.complete)
        if damaged and self.exact:
            self._tally(len(packets), frames, 0)
            return False
        self._tally(len(packets), frames, delivery.finish())
        return True

    def _frames(
        self, video: Video, run: PacketRange, packets: tuple[av.Packet, ...]
    ) -> Iterator[list[av.VideoFrame]]:
        """Yield the frames that each packet completes, and then the frames that are still in the decoder."""
        if self.skip:
            yield from decode_wanted(video, packets, run.wanted)
        else:
            video.context.skip_frame = "DEFAULT"
            yield from (video.decode(packet) for packet in packets)
        yield video.decode(None)

    def _repair(self, painter: Painter, run: PacketRange) -> bool:
        """Decode a damaged range with the result of a plain decoder, which conceals damage with earlier
        pictures.

        These pictures come from the previous group, which is therefore decoded completely. If that group is
        also damaged, one thread decodes the recording in order from its beginning, the other threads stop,
        and the method returns False.
        """
        before = np.flatnonzero(self.table.clean[: run.first])
        lead = int(before[-1]) if len(before) else 0
        with PacketReader(self.source, self.limits, self.table, self._kept, seek=self._steady) as reader:
            packets = list(reader.packets(lead, run.last))
        delivery = SampleDelivery(self._ring, run.wanted, self._positions)
        frames, spoilt = 0, False
        shown = int(self.table.pts[run.first])
        with open_video(self.source, self.limits) as video:
            for i, packet in enumerate((*packets, None)):
                for frame in video.decode(packet):
                    frames += 1
                    spoilt = spoilt or (frame.is_corrupt and frame.pts is not None and frame.pts < shown)
                    if frame.pts in run.wanted:
                        delivery.hold(frame.pts, self._paint(painter, frame))
                spoilt = spoilt or (video.refused > 0 and i + lead < run.first)
                if spoilt and lead > 0:
                    return self._spoil()
        self._tally(len(packets), frames, delivery.finish())
        with self._count:
            self.work.repaired += 1
        return True

    def _spoil(self) -> bool:
        with self._count:
            # The first thread that gets here decodes for all; the others end.
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

    def _paint(self, painter: Painter, frame: av.VideoFrame) -> RingSample:
        pixels = painter.paint(frame, frame_geometry(frame, self.width, self.height, self.fit))
        return RingSample(bool(frame.key_frame), Picture(frame.pict_type), bool(frame.is_corrupt), pixels)

    def _in_order(self) -> None:
        """Decode the file in order and deliver every sample that is still missing."""
        positions = {self._name(pick): i for i, pick in enumerate(self.picks)}
        # Missing samples are marked before later samples wait for room, because the reader makes room only
        # once it knows the missing ones.
        delivery = SampleDelivery(self._ring, frozenset(positions), positions)
        painter, index = Painter(), 0
        with self._busy(), open_video(self.source, self.limits) as video:
            for index, frame in enumerate(video.frames()):
                name = frame.pts if self.table.ordered else index
                self.work.frames += 1
                if name in positions:
                    delivery.hold(name, self._paint(painter, frame))
                delivery.step()
                if delivery.complete or self._ring.closed:
                    break
        self.work.painted += delivery.finish()
        self.work.fed += index + 1
        self.work.runs += 1

    def _name(self, pick: Pick) -> int:
        """Return a frame's key: its time stamp, or its index if time stamps are ambiguous."""
        return pick.pts if self.table.ordered else pick.index
