"""What all readers of recordings share: they choose frames, read them, and report gaps."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from types import TracebackType
from typing import ClassVar, Self, SupportsIndex

import numpy as np

from lookout.cores import usable_cores
from lookout.values import check_finite, check_whole
from lookout.video.files.begin import stated_begin
from lookout.video.files.clipping import CLIP_BYTES, RecordingClip
from lookout.video.files.parallel import DecodeWork, FileFrame, Scan
from lookout.video.files.source import Source, open_video
from lookout.video.files.table import FrameTable, Hole, holes_of
from lookout.video.motion.geometry import Fit
from lookout.video.motion.types import U8
from lookout.video.segments.container import Video, missing_packets, ticks_to_us
from lookout.video.segments.picture import orientation
from lookout.video.segments.sampling import Pick, SamplingGrid
from lookout.video.segments.types import FILE_LIMITS, CodecError, Limits, Reason

#: maximum samples per second; larger values are rejected as mistakes
_MOST_THREADS, _MOST_WAITING, _MOST_PIXELS = 1024, 1_000_000, 16_384

Progress = Callable[[int, int], None]
"""Called with the number of samples done and their total."""


@dataclass(frozen=True, slots=True)
class Gap:
    """A part of a recording without samples.

    Attributes:
        start_us: Begin, in microseconds since the first frame.
        end_us: End, in microseconds since the first frame.
        samples: Number of missing samples.
        reason: Why they are missing.
    """

    start_us: int
    end_us: int
    samples: int
    reason: str

    @property
    def start_s(self) -> float:
        """Begin in seconds."""
        return self.start_us / 1e6

    @property
    def end_s(self) -> float:
        """End in seconds."""
        return self.end_us / 1e6


@dataclass(frozen=True, slots=True)
class RecordingFacts:
    """Facts about a recording, which its packets alone give.

    Attributes:
        name: Path or URL.
        container: Short name, e.g. mp4.
        codec: Name of the codec.
        width: Width of the coded picture in pixels.
        height: Height of the coded picture in pixels.
        frames: Number of packets with a frame.
        keyframes: Number of frames at which decoding can begin.
        fps: Nominal frames per second.
        duration_us: From the first frame to the end of the last.
        damage: Why the packets end early, if they do.
        promised_us: Length that the container claims; 0 if it claims none.
        begins: When the recording begins, as the container states it; None if it states no plausible time.
    """

    name: str
    container: str
    codec: str
    width: int
    height: int
    frames: int
    keyframes: int
    fps: float
    duration_us: int
    damage: str = ""
    promised_us: int = 0
    begins: datetime | None = None


@dataclass(frozen=True, slots=True)
class StreamFacts:
    """Facts that the container states about its video stream.

    Attributes:
        container: Short name, e.g. mp4.
        codec: Name of the codec.
        width: Width of the coded picture in pixels.
        height: Height of the coded picture in pixels.
        damage: Why the packets end early, if they do.
        listed: Number of packets that the container claims; 0 if it claims none.
        promised_us: Length that the container claims; 0 if it claims none.
        begins: When the recording begins, as the container states it; None if it states no plausible time.
    """

    container: str
    codec: str
    width: int
    height: int
    damage: str = ""
    listed: int = 0
    promised_us: int = 0
    begins: datetime | None = None

    @classmethod
    def of(cls, video: Video, scan: Scan) -> StreamFacts:
        """Return the facts of an open video."""
        return cls(
            container=video.container,
            codec=video.codec,
            width=video.context.width,
            height=video.context.height,
            damage=scan.damage,
            listed=video.listed,
            promised_us=max(0, ticks_to_us(video.stream.duration or 0, video.time_base)),
            begins=stated_begin(video.tags, datetime.now(UTC)),
        )


@dataclass(frozen=True, slots=True)
class Samples:
    """Frames in one array. `pixels`: uint8 [n, height, width, 3] RGB; `times_us`: int64 [n], the frames'
    times; `gaps`: ranges that could not be decoded and whose frames are missing.
    """

    pixels: U8
    times_us: np.ndarray
    gaps: tuple[Gap, ...]

    def __len__(self) -> int:
        return len(self.times_us)


@dataclass(frozen=True, slots=True)
class SamplingPlan:
    """The frames to decode, and how; see `RecordingReader.sample`."""

    picks: Sequence[Pick]
    size: tuple[int, int]
    fit: Fit
    threads: int
    lookahead: int
    intervals: int | None


class _Closable(ABC):
    """A context manager that calls `close` at its end."""

    @abstractmethod
    def close(self) -> None:
        """Release all resources."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class RecordingReader(_Closable):
    """Random access to the frames of a recording, independent of how they are decoded.

    Args:
        facts: Facts of the recording.
        table: Its packets in decoding order.
    """

    def __init__(self, facts: RecordingFacts, table: FrameTable) -> None:
        self.facts, self.table = facts, table
        self._order, self._times = table.times()
        if not self._times:
            raise CodecError(Reason.NO_FRAMES, f"{facts.name} has no packet of video")

    def __repr__(self) -> str:
        facts = self.facts
        return (
            f"{type(self).__name__}({facts.name!r}: {facts.codec} {facts.width}x{facts.height}, "
            f"{len(self)} frames, {self.duration:.1f} s)"
        )

    def __len__(self) -> int:
        """Number of frames."""
        return len(self._times)

    @property
    def times_us(self) -> np.ndarray:
        """int64 [frames]: time of every frame in microseconds since the first frame, in presentation
        order.
        """
        return np.asarray(self._times, np.int64)

    @property
    def holes(self) -> tuple[Hole, ...]:
        """Stretches without packets although no packet was lost, longer than ten seconds and than ten usual
        frame intervals.
        """
        return holes_of(self._times, round(1e6 / max(1e-3, self.facts.fps)))

    @property
    @abstractmethod
    def size(self) -> tuple[int, int]:
        """(height, width) of the upright picture, from the first frame that decodes."""

    @property
    def fps(self) -> float:
        """Nominal frames per second."""
        return self.facts.fps

    @property
    def duration(self) -> float:
        """Seconds from the first frame to the end of the last frame."""
        return self.facts.duration_us / 1e6

    def __getitem__(self, index: SupportsIndex | slice) -> U8:
        """Return a frame by its presentation index, negative from the end, uint8 [height, width, 3]; for a
        slice, its frames, uint8 [n, height, width, 3].

        Raises:
            IndexError: The recording has no such frame.
            TypeError: The index is neither a whole number nor a slice.
            CodecError: A frame cannot be decoded.
        """
        rows = self._rows(index)
        indices = rows if isinstance(rows, range) else [rows]
        samples = self.read(indices=indices, threads=1 if len(indices) == 1 else None)
        if len(samples) < len(indices):
            reason = samples.gaps[0].reason if samples.gaps else UNDECODABLE
            raise CodecError(Reason.UNREADABLE, f"{self.facts.name}: frames are missing ({reason})")
        return samples.pixels if isinstance(rows, range) else samples.pixels[0]

    def _rows(self, index: SupportsIndex | slice) -> range | int:
        """Return the presentation indexes of a slice, or that of one frame."""
        try:
            return range(len(self))[index]
        except IndexError:
            raise IndexError(
                f"{self.facts.name} has {len(self)} frames, but no frame {_text(index)}"
            ) from None
        except TypeError:
            raise TypeError(
                f"a frame's index is a whole number or a slice, not {_text(index)}; read(indices=...) takes "
                "several, and read(times_s=...) times"
            ) from None

    #: not supported, because `in` would decode and compare every frame
    __contains__: ClassVar[None] = None

    def __iter__(self) -> Iterator[U8]:
        """Yield every frame in order, uint8 [height, width, 3]. Frames that cannot be decoded are skipped."""
        with self.sample(indices=range(len(self))) as frames:
            for frame in frames:
                yield frame.pixels

    def picks(
        self,
        fps: float | None = None,
        *,
        times_us: Sequence[int] | None = None,
        times_s: Sequence[float] | None = None,
        indices: Sequence[int] | None = None,
        start_us: int = 0,
        end_us: int | None = None,
    ) -> list[Pick]:
        """Return the frames that `sample` would decode, as plain data that can be split and passed on.

        Args:
            fps: Samples per second on a grid. An I-frame within half a step is preferred to the nearest
                frame.
            times_us: Times in whole microseconds instead: the frames shown at these times, each once.
            times_s: Times in seconds instead of microseconds.
            indices: Presentation indexes instead; negative ones count from the end.
            start_us: Begin of the range.
            end_us: End of the range, excluded.

        Raises:
            CodecError: Not exactly one of `fps`, `times_us`, `times_s` and `indices` is given, or a frame
                is outside the recording.
        """
        request = self._asked(times_us, times_s, indices)
        if (fps is None) == (request is None):
            raise CodecError(Reason.REQUEST, "give exactly one of fps, times_us, times_s and indices")
        for name, value in (("start_us", start_us), *(() if end_us is None else (("end_us", end_us),))):
            check_finite(name, value, _refused)
        if end_us is not None and end_us <= start_us:
            raise CodecError(Reason.REQUEST, f"the range ends ({end_us} us) before it begins ({start_us} us)")
        if fps is not None:
            if not 0 < check_finite("fps", fps, _refused) <= 1e6:
                raise _refused(f"fps={fps:g} must be above 0 and at most 1000000")
            return self.table.picks(SamplingGrid(max(1, round(1e6 / fps))), start_us, end_us)
        assert request is not None
        shown = sorted(set(request.tolist()))
        picks = [self._pick(index, slot) for slot, index in enumerate(shown)]
        return [p for p in picks if start_us <= p.time_us and (end_us is None or p.time_us < end_us)]

    def sample(
        self,
        fps: float | None = None,
        *,
        times_us: Sequence[int] | None = None,
        times_s: Sequence[float] | None = None,
        indices: Sequence[int] | None = None,
        picks: Sequence[Pick] | None = None,
        size: tuple[int, int] | None = None,
        fit: Fit = Fit.STRETCH,
        start_us: int = 0,
        end_us: int | None = None,
        threads: int | None = None,
        lookahead: int = 64,
        intervals: int | None = None,
    ) -> Sampling:
        """Return an iterator over the chosen frames, which yields each frame while later frames are still
        being decoded.

        Args:
            fps: See `picks`.
            times_us: See `picks`.
            times_s: See `picks`.
            indices: See `picks`.
            picks: Frames chosen by `picks`, instead of these arguments.
            size: (height, width) of the frames in pixels (default: the picture's own).
            fit: How a picture is fitted into a size of another shape.
            start_us: Begin of the range.
            end_us: End of the range, excluded.
            threads: Decoding threads (default: the cores that this process may use).
            lookahead: Decoded frames that may wait for the caller.
            intervals: Number of parts that are decoded independently (default: derived from `threads`).

        Raises:
            CodecError: As `picks`.
        """
        if threads is not None:
            check_whole("threads", threads, 1, _MOST_THREADS, _refused)
        if intervals is not None:
            check_whole("intervals", intervals, 1, _MOST_WAITING, _refused)
        check_whole("lookahead", lookahead, 1, _MOST_WAITING, _refused)
        _check_size(size)
        if picks is None:
            picks = self.picks(
                fps, times_us=times_us, times_s=times_s, indices=indices, start_us=start_us, end_us=end_us
            )
        height, width = size or self.size
        cores = threads or usable_cores()
        return self._sampling(SamplingPlan(picks, (height, width), fit, cores, lookahead, intervals))

    @abstractmethod
    def _sampling(self, plan: SamplingPlan) -> Sampling:
        """Start decoding the chosen frames."""

    def read(
        self,
        fps: float | None = None,
        *,
        times_us: Sequence[int] | None = None,
        times_s: Sequence[float] | None = None,
        indices: Sequence[int] | None = None,
        size: tuple[int, int] | None = None,
        fit: Fit = Fit.STRETCH,
        start_us: int = 0,
        end_us: int | None = None,
        threads: int | None = None,
        progress: Progress | None = None,
    ) -> Samples:
        """Return the chosen frames as one array. With times or indices, the array has one row for each, in
        the given order.

        Args:
            fps: See `sample`.
            times_us: See `picks`.
            times_s: See `picks`.
            indices: See `picks`.
            size: See `sample`.
            fit: See `sample`.
            start_us: See `sample`.
            end_us: See `sample`.
            threads: See `sample`.
            progress: Called after every frame.

        Raises:
            CodecError: As `picks`.
        """
        _check_size(size)
        picks = self.picks(
            fps, times_us=times_us, times_s=times_s, indices=indices, start_us=start_us, end_us=end_us
        )
        shape = size or self.size
        pixels = np.empty((len(picks), *shape, 3), np.uint8)
        row_of: dict[int, int] = {}
        with self.sample(picks=picks, size=shape, fit=fit, threads=threads) as frames:
            for row, frame in enumerate(frames):
                pixels[row] = frame.pixels
                row_of[frame.index] = row
                if progress is not None:
                    progress(frame.position + 1, len(picks))
            gaps = frames.gaps
        order = [pick.index for pick in picks]
        request = self._asked(times_us, times_s, indices)
        if request is not None:
            inside = set(order)
            order = [index for index in request.tolist() if index in inside]
        # A time or index may be given twice, but its frame is decoded only once.
        rows = [row_of[index] for index in order if index in row_of]
        times = self.times_us[[index for index in order if index in row_of]]
        if rows != list(range(len(picks))):
            pixels = pixels[rows]
        return Samples(pixels, times, gaps)

    def clip(self, start_us: int, end_us: int, *, max_bytes: int = CLIP_BYTES) -> RecordingClip:
        """Cut a range into a file that plays on its own, without re-encoding.

        Args:
            start_us: Begin of the range; the clip begins with the last keyframe before it.
            end_us: End of the range, excluded.
            max_bytes: Maximum bytes of the clip.

        Raises:
            CodecError: The range cannot be cut.
        """
        check_finite("start_us", start_us, _refused)
        check_finite("end_us", end_us, _refused)
        try:
            return self._clip(start_us, end_us, max_bytes)
        except CodecError as error:
            raise CodecError(
                error.reason, f"no clip of {self.facts.name} can be cut: {error.detail}"
            ) from error

    @abstractmethod
    def _clip(self, start_us: int, end_us: int, max_bytes: int) -> RecordingClip:
        """Cut a range into a file."""

    @abstractmethod
    def close(self) -> None:
        """Release all resources."""

    def _asked(
        self, times_us: Sequence[int] | None, times_s: Sequence[float] | None, indices: Sequence[int] | None
    ) -> np.ndarray | None:
        """Return the presentation index of every frame that was requested by time or index; None if neither
        was given.
        """
        if sum(option is not None for option in (times_us, times_s, indices)) > 1:
            raise CodecError(Reason.REQUEST, "give exactly one of fps, times_us, times_s and indices")
        if times_us is not None:
            return self._shown(_whole_numbers(times_us, "times_us", "microseconds; times_s takes seconds"))
        if times_s is not None:
            try:
                seconds = np.asarray(times_s, np.float64)
            except (TypeError, ValueError, OverflowError):
                raise CodecError(Reason.REQUEST, f"times_s takes seconds, not {_text(times_s)}") from None
            if seconds.ndim != 1 or not (np.abs(seconds) < FILE_LIMITS.seconds).all():
                raise CodecError(
                    Reason.REQUEST,
                    "times_s has a value that is not a time, or that is too late for any recording",
                )
            return self._shown(np.round(seconds * 1e6).astype(np.int64))
        if indices is None:
            return None
        numbers = _whole_numbers(indices, "indices", "frame numbers")
        outside = (numbers < -len(self)) | (numbers >= len(self))
        if outside.any():
            wrong = int(numbers[outside][0])
            raise CodecError(
                Reason.REQUEST, f"{self.facts.name} has {len(self)} frames, but no frame {wrong}"
            )
        return np.where(numbers < 0, numbers + len(self), numbers)

    def _shown(self, asked: np.ndarray) -> np.ndarray:
        """Return the presentation index of the frame shown at each time."""
        outside = (asked < 0) | (asked >= self.facts.duration_us)
        if outside.any():
            wrong = int(asked[outside][0])
            raise CodecError(
                Reason.REQUEST,
                f"{self.facts.name} has no frame at {wrong / 1e6:g} s; "
                f"it lasts {self.facts.duration_us / 1e6:g} s",
            )
        return np.searchsorted(self.times_us, asked, side="right") - 1

    def _pick(self, index: int, slot: int) -> Pick:
        return Pick(index, slot, self._times[index], int(self.table.pts[self._order[index]]))


def _refused(text: str) -> CodecError:
    """Return the error for an invalid request."""
    return CodecError(Reason.REQUEST, text)


def _text(value: object) -> str:
    """Return a value as a short text, even a number with thousands of digits, for which Python's repr
    fails.
    """
    try:
        return f"{value!r:.80}"
    except ValueError:
        return "a number with thousands of digits"


def _check_size(size: tuple[int, int] | None) -> None:
    """Check that a size is a valid picture size.

    Raises:
        CodecError: With REQUEST: it is not.
    """
    if size is None:
        return
    if not isinstance(size, tuple | list) or len(size) != 2:
        raise _refused(f"size must be (height, width), not {_text(size)}")
    for name, value in zip(("height", "width"), size, strict=True):
        check_whole(f"{name} in size", value, 1, _MOST_PIXELS, _refused)


def _whole_numbers(values: Sequence[int], name: str, unit: str) -> np.ndarray:
    array = np.asarray(values)
    if array.ndim != 1 or (array.size and array.dtype.kind not in "iu"):
        raise CodecError(Reason.REQUEST, f"{name} must be a list of whole {unit}")
    return array.astype(np.int64)


class Sampling(_Closable):
    """An iterator over sampled frames, in order, which can be used once. To stop early, call `close` or use a
    `with` block.
    """

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def __iter__(self) -> Iterator[FileFrame]: ...

    @property
    @abstractmethod
    def gaps(self) -> tuple[Gap, ...]:
        """Ranges that could not be decoded so far, and the missing end of a recording that breaks off."""

    @property
    @abstractmethod
    def lost(self) -> Mapping[int, str]:
        """Reasons why samples could not be decoded so far, by pts."""

    @property
    @abstractmethod
    def work(self) -> DecodeWork:
        """Counters of the decoding so far."""

    @property
    @abstractmethod
    def busy_s(self) -> float:
        """Decoding time so far in seconds, without waits for the reader."""

    @abstractmethod
    def close(self) -> None:
        """Stop decoding."""


UNDECODABLE = "damaged: no frame could be decoded"


def gaps_of(picks: Sequence[Pick], lost: Mapping[int, str], end_us: int) -> tuple[Gap, ...]:
    """Return the time ranges of missing samples (`lost`: reason by pts). Each range begins at its first
    missing sample and ends at the next decoded sample, or at `end_us`.
    """
    gaps: list[Gap] = []
    begun: list[Pick] = []
    for pick in picks:
        if pick.pts in lost:
            begun.append(pick)
        elif begun:
            gaps.append(Gap(begun[0].time_us, pick.time_us, len(begun), lost[begun[0].pts]))
            begun = []
    if begun:
        gaps.append(Gap(begun[0].time_us, end_us, len(begun), lost[begun[0].pts]))
    return tuple(gaps)


def broken_off(facts: RecordingFacts) -> tuple[Gap, ...]:
    """Return the missing end of a recording that breaks off, as a gap; empty if it does not break off."""
    if not facts.damage:
        return ()
    end = max(facts.duration_us, facts.promised_us)
    return (Gap(facts.duration_us, end, 0, f"the file breaks off: {facts.damage}"),)


def facts_of(name: str, stream: StreamFacts, table: FrameTable) -> RecordingFacts:
    """Return the facts about a recording, from its packets."""
    _, times = table.times()
    nominal = max(1, round(1e6 / float(table.fps)))
    step = int(np.median(np.diff(times))) if len(times) > 2 else nominal
    damage = stream.damage or missing_packets(stream.listed, len(table))
    return RecordingFacts(
        name=name,
        container=stream.container,
        codec=stream.codec,
        width=stream.width,
        height=stream.height,
        frames=len(times),
        keyframes=int((table.clean & ~table.discard).sum()),
        fps=round(float(table.fps), 3),
        duration_us=times[-1] + step if times else 0,
        damage=damage,
        promised_us=stream.promised_us,
        begins=stream.begins,
    )


def first_size(source: Source, limits: Limits, scan: Scan) -> tuple[int, int]:
    """Return (height, width) of the upright picture, from the first frame that decodes."""
    with open_video(source, limits, probe=not scan.indexed) as video:
        for frame in video.frames():
            turned = orientation(frame)[0] in (90, 270)
            return (frame.width, frame.height) if turned else (frame.height, frame.width)
    raise CodecError(Reason.NO_FRAMES, f"{source.name}: none of its frames can be decoded")
