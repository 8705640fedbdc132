"""`VideoReader`: the samples of a whole recording, fast (QuickCodec with what the paper leaves out)."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from types import TracebackType

import numpy as np

from lookout.codec.container import Video
from lookout.codec.geometry import Fit
from lookout.codec.parallel import FILE_LIMITS, FileDecoder, FileFrame, Scan
from lookout.codec.picture import orientation
from lookout.codec.sampling import SamplingGrid
from lookout.codec.source import Source, UrlSource, open_video, source_of
from lookout.codec.table import FrameTable, Pick
from lookout.codec.types import U8, CodecError, Limits, Reason

Progress = Callable[[int, int], None]
"""Called with samples done and samples in all."""


@dataclass(frozen=True, slots=True)
class Gap:
    """A part of a recording without samples. Times in microseconds since the first frame."""

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
    """What a recording is, from its packets alone.

    Attributes:
        name: Path or URL.
        container: Short name, e.g. mp4.
        codec: Name of the codec.
        width: Width of the coded picture in pixels.
        height: Height of the coded picture in pixels.
        frames: Packets that hold a frame.
        keyframes: Frames at which decoding can begin.
        fps: Nominal frames a second.
        duration_us: From the first frame to the end of the last.
        damage: Why the packets end early, if they do.
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


@dataclass(frozen=True, slots=True)
class Samples:
    """Frames read at once. pixels: uint8 [n, height, width, 3] RGB; times_us: int64 [n] of the frames;
    gaps: what could not be decoded (its frames are left out)."""

    pixels: U8
    times_us: np.ndarray
    gaps: tuple[Gap, ...]

    def __len__(self) -> int:
        return len(self.times_us)


class VideoReader:
    """Random access to the frames of a recording.

    Packets are counted once when the reader is made; every `sample` and `read` decodes only what its frames
    need, on several threads. Results are equal to the bytes to decoding every frame in order.

    Args:
        source: A path, an http(s) URL (read in range requests), bytes, or a `Source`.
        limits: What to refuse.

    Raises:
        CodecError: The source cannot be read or holds no video.
    """

    def __init__(
        self, source: str | os.PathLike[str] | bytes | Source, *, limits: Limits = FILE_LIMITS
    ) -> None:
        self.source = source_of(source)
        self._limits = limits
        with open_video(self.source, limits) as video:
            self._scan = Scan.of(video)
            self.facts = _facts(self.source.name, video, self._scan)
        self._order, self._times = self._scan.table.times()
        if not self._times:
            raise CodecError(Reason.NO_FRAMES, f"{self.source.name} holds no packet of video")
        self._upright: tuple[int, int] | None = None

    def __len__(self) -> int:
        """Frames of the recording."""
        return len(self._times)

    @property
    def table(self) -> FrameTable:
        """The packets in decoding order."""
        return self._scan.table

    @property
    def scan(self) -> Scan:
        """The counted packets."""
        return self._scan

    @property
    def times_us(self) -> np.ndarray:
        """int64 [frames]: time of every frame in presentation order, since the first."""
        return np.asarray(self._times, np.int64)

    @property
    def size(self) -> tuple[int, int]:
        """(height, width) of the upright picture, from the first frame that decodes."""
        if self._upright is None:
            self._upright = self._first_size()
        return self._upright

    def picks(
        self,
        fps: float | None = None,
        *,
        times_us: Sequence[int] | None = None,
        start_us: int = 0,
        end_us: int | None = None,
    ) -> list[Pick]:
        """The frames that `sample` would give: plain data that can be cut into pieces.

        Args:
            fps: Samples a second on a grid. An I-frame within half a step is preferred to the nearest frame.
            times_us: Explicit times instead: the frames shown then, each once.
            start_us: Begin of the range.
            end_us: End of the range, excluded.

        Raises:
            CodecError: Neither or both of `fps` and `times_us`, or a time outside the recording.
        """
        if (fps is None) == (times_us is None):
            raise CodecError(Reason.REQUEST, "give either fps or times_us")
        if end_us is not None and end_us <= start_us:
            raise CodecError(Reason.REQUEST, f"the range ends ({end_us} us) before it begins ({start_us} us)")
        if fps is not None:
            if not 0 < fps <= 1e6:
                raise CodecError(Reason.REQUEST, f"{fps:g} frames a second make no sense")
            return self.table.picks(SamplingGrid(max(1, round(1e6 / fps))), start_us, end_us)
        assert times_us is not None
        shown = np.unique(self._shown(times_us))
        found = [self._pick(int(index), slot) for slot, index in enumerate(shown)]
        return [p for p in found if start_us <= p.time_us and (end_us is None or p.time_us < end_us)]

    def sample(
        self,
        fps: float | None = None,
        *,
        times_us: Sequence[int] | None = None,
        picks: Sequence[Pick] | None = None,
        size: tuple[int, int] | None = None,
        fit: Fit = Fit.STRETCH,
        start_us: int = 0,
        end_us: int | None = None,
        threads: int | None = None,
        lookahead: int = 64,
        intervals: int | None = None,
    ) -> Sampling:
        """The chosen frames, one after the other, while later ones are decoded.

        Args:
            fps: See `picks`.
            times_us: See `picks`.
            picks: Chosen frames, instead of either.
            size: (height, width) of the frames in pixels (default: the picture's own).
            fit: How a picture meets a size of another shape.
            start_us: Begin of the range.
            end_us: End of the range, excluded.
            threads: Decoding threads (default: the machine's cores).
            lookahead: Frames that may wait to be taken.
            intervals: Into how many parts the decoding is cut (default: by the threads).

        Raises:
            CodecError: As `picks`.
        """
        if picks is None:
            picks = self.picks(fps, times_us=times_us, start_us=start_us, end_us=end_us)
        height, width = size or self.size
        decoder = FileDecoder(
            self.source,
            width,
            height,
            picks=picks,
            fit=fit,
            threads=threads or os.cpu_count() or 1,
            lookahead=lookahead,
            intervals=intervals,
            limits=self._limits,
            scan=self._scan,
        )
        return Sampling(decoder, self.facts)

    def read(
        self,
        fps: float | None = None,
        *,
        times_us: Sequence[int] | None = None,
        size: tuple[int, int] | None = None,
        fit: Fit = Fit.STRETCH,
        start_us: int = 0,
        end_us: int | None = None,
        threads: int | None = None,
        progress: Progress | None = None,
    ) -> Samples:
        """The chosen frames as one array; with `times_us` one row per time, in the order of the times.

        Args:
            fps: See `sample`.
            times_us: See `sample`.
            size: See `sample`.
            fit: See `sample`.
            start_us: See `sample`.
            end_us: See `sample`.
            threads: See `sample`.
            progress: Called after every frame.

        Raises:
            CodecError: As `picks`.
        """
        chosen = self.picks(fps, times_us=times_us, start_us=start_us, end_us=end_us)
        shape = size or self.size
        pixels = np.empty((len(chosen), *shape, 3), np.uint8)
        row_of: dict[int, int] = {}
        with self.sample(picks=chosen, size=shape, fit=fit, threads=threads) as frames:
            for row, frame in enumerate(frames):
                pixels[row] = frame.pixels
                row_of[frame.index] = row
                if progress is not None:
                    progress(frame.position + 1, len(chosen))
            gaps = frames.gaps
        order = [pick.index for pick in chosen]
        if times_us is not None:
            order = [int(index) for index in self._shown(times_us)]
        rows = [row_of[index] for index in order if index in row_of]
        times = self.times_us[[index for index in order if index in row_of]]
        if rows != list(range(len(chosen))):
            pixels = pixels[rows]
        return Samples(pixels, times, gaps)

    def close(self) -> None:
        """Let go of the packets and, for a URL, of its connections."""
        self._scan = Scan(self._scan.table, None, self._scan.damage)
        if isinstance(self.source, UrlSource):
            self.source.close()

    def __enter__(self) -> VideoReader:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _shown(self, times_us: Sequence[int]) -> np.ndarray:
        """Presentation index of the frame shown at each time."""
        asked = np.asarray(times_us, np.int64)
        outside = (asked < 0) | (asked >= self.facts.duration_us)
        if outside.any():
            wrong = int(asked[outside][0])
            raise CodecError(
                Reason.REQUEST,
                f"{self.source.name} has no frame at {wrong / 1e6:g} s; "
                f"it lasts {self.facts.duration_us / 1e6:g} s",
            )
        return np.searchsorted(self.times_us, asked, side="right") - 1

    def _pick(self, index: int, slot: int) -> Pick:
        return Pick(index, slot, self._times[index], int(self.table.pts[self._order[index]]))

    def _first_size(self) -> tuple[int, int]:
        with open_video(self.source, self._limits) as video:
            for frame in video.frames():
                turned = orientation(frame)[0] in (90, 270)
                return (frame.width, frame.height) if turned else (frame.height, frame.width)
        raise CodecError(Reason.NO_FRAMES, f"{self.source.name}: no frame decodes")


class Sampling:
    """Sampled frames in order; iterate once, or leave early by `close` or a `with` block."""

    def __init__(self, decoder: FileDecoder, facts: RecordingFacts) -> None:
        self.decoder, self._facts = decoder, facts

    def __len__(self) -> int:
        return len(self.decoder)

    def __iter__(self) -> Iterator[FileFrame]:
        return iter(self.decoder)

    @property
    def gaps(self) -> tuple[Gap, ...]:
        """What could not be decoded so far, and where the recording ends before its time."""
        return gaps_of(self.decoder, self._facts)

    def close(self) -> None:
        """Stop decoding."""
        self.decoder.close()

    def __enter__(self) -> Sampling:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def gaps_of(decoder: FileDecoder, facts: RecordingFacts) -> tuple[Gap, ...]:
    """Missing samples as ranges of time, each from its first missing sample to the next that came."""
    picks = decoder.picks
    lost = {pick.pts for pick in decoder.missing}
    gaps: list[Gap] = []
    begun: list[Pick] = []
    for pick in picks:
        if pick.pts in lost:
            begun.append(pick)
        elif begun:
            gaps.append(_gap(begun, pick.time_us))
            begun = []
    if begun:
        gaps.append(_gap(begun, facts.duration_us))
    if facts.damage:
        gaps.append(Gap(facts.duration_us, facts.duration_us, 0, f"the file breaks off: {facts.damage}"))
    return tuple(gaps)


def _gap(lost: Sequence[Pick], end_us: int) -> Gap:
    return Gap(lost[0].time_us, end_us, len(lost), "damaged: no frame could be decoded")


def _facts(name: str, video: Video, scan: Scan) -> RecordingFacts:
    table = scan.table
    _, times = table.times()
    nominal = max(1, round(1e6 / float(table.fps)))
    step = int(np.median(np.diff(times))) if len(times) > 2 else nominal
    return RecordingFacts(
        name=name,
        container=video.container,
        codec=video.codec,
        width=video.context.width,
        height=video.context.height,
        frames=len(table),
        keyframes=int(table.clean.sum()),
        fps=round(float(table.fps), 3),
        duration_us=times[-1] + step if times else 0,
        damage=scan.damage,
    )
