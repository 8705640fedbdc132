"""Turns a session's input (encoded segments or frames) into stride blocks."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from lookout.models import WindowDefaults
from lookout.models.vision import Grid, Tower
from lookout.pruning import MaskPolicy, Sample
from lookout.streams import BlockMaker, SegmentSampler, SourceFrame, StreamBlock, StrideFrame
from lookout.streams.session.errors import SessionError
from lookout.values import check_finite
from lookout.video.motion import Basis
from lookout.video.segments import SamplingGrid
from lookout.video.segments.sampling import Selector

Frames = NDArray[np.uint8] | Sequence[NDArray[np.uint8]]
"""RGB pictures: an array uint8 [n, height, width, 3], or a list of arrays [height, width, 3]."""

SECOND_US: Final = 1_000_000
LATEST_S: Final = 9e9
"""Latest valid time of a frame in seconds: the year 2255 in Unix time. Larger times are probably in
milliseconds."""


@dataclass(frozen=True, slots=True, eq=False)
class ClosedBlock:
    """A stride block that has ended.

    Attributes:
        block: The block.
        begun_us: Source time in microseconds at which its stream begins.
        end_us: Stream time in microseconds at which the block ends: the end of its stride, or of the video if
            that is earlier.
    """

    block: StreamBlock
    begun_us: int
    end_us: int


@dataclass(slots=True, eq=False)
class Feed:
    """Turns a session's pushes into stride blocks, and keeps the state between two pushes.

    A session pushes to a copy (`copy`), which continues independently, so that a failed push changes nothing.

    Attributes:
        name: The camera's name; the camera's streams are named `name/number`.
        tower: The vision tower.
        policy: The pruning policy.
        sampling: Sample rate, and lengths of stride and window.
        numbers: Yields the numbers for the next streams.
    """

    name: str
    tower: Tower
    policy: MaskPolicy
    sampling: WindowDefaults
    numbers: Iterator[int]
    _encoded: SegmentSampler | None = None
    _selector: Selector[tuple[NDArray[np.uint8], int]] | None = None
    _maker: BlockMaker | None = None
    _stream: int = -1  # number of the sampler's stream to which the blocks of `_maker` belong
    _begun_us: int = 0
    _decoded_us: int = 0

    def copy(self) -> Feed:
        """Return an independent copy of the feed."""
        selector = copy.copy(self._selector)
        if selector is not None:
            selector._cell = list(selector._cell)
        return replace(
            self, _encoded=copy.copy(self._encoded), _selector=selector, _maker=copy.copy(self._maker)
        )

    def segment(self, data: bytes, start_s: float | None = None) -> list[ClosedBlock]:
        """Add an encoded segment that begins with a keyframe; return the blocks that end before its last
        frame.

        Args:
            data: The encoded segment.
            start_s: Source time in seconds at which the segment begins; None: where the previous segment
                ends. It is used only if the clock in the bytes does not continue the previous segment, or
                repeats earlier times.

        Raises:
            CodecError: The segment cannot be decoded.
            SessionError: Frames were already pushed to the session, or `start_s` is not a valid time.
        """
        if self._selector is not None:
            raise SessionError(
                "this session already has frames, so it cannot take encoded bytes: open another session"
            )
        if self._encoded is None:
            sampling = self.sampling
            self._encoded = SegmentSampler.of(
                self.tower.grid,
                sampling.step_us,
                self.policy,
                window_us=sampling.window_us,
                begun_us=self._begun_us + self._decoded_us,
            )
        _check_times([] if start_s is None else [start_s])
        start_us = None if start_s is None else round(start_s * SECOND_US)
        blocks = [block for frame in self._encoded.add(data, start_us) for block in self.frame(frame)]
        if self._encoded.stream == self._stream:  # false if a new stream's first segment has no sample
            self._decoded_us = max(self._decoded_us, self._encoded.watermark_us)
        return blocks

    def pictures(self, frames: Frames, times_s: Sequence[float]) -> list[ClosedBlock]:
        """Add frames with rising times, at any rate; return the blocks that end. The frames nearest to the
        points of the sampling grid are used.

        Raises:
            SessionError: Shapes or times are invalid, or encoded bytes were already pushed to the session.
        """
        if self._encoded is not None:
            raise SessionError(
                "this session already has encoded bytes, so it cannot take frames: open another session"
            )
        pictures = _checked(frames, times_s)
        times = [round(time * SECOND_US) for time in times_s]
        if self._selector is None and times:
            self._begin(times[0])
        blocks: list[ClosedBlock] = []
        for picture, time_us in zip(pictures, times, strict=True):
            if time_us <= self._begun_us + self._decoded_us and (self._decoded_us or self._cell_filled()):
                raise SessionError(
                    f"the times of frames must rise, but {time_us / SECOND_US:g} s comes after "
                    f"{(self._begun_us + self._decoded_us) / SECOND_US:g} s"
                )
            if time_us - self._begun_us - self._decoded_us > self.sampling.window_us:
                blocks += self.end()  # a window never spans a hole longer than itself
                self._begin(time_us)
            stream_us = time_us - self._begun_us
            assert self._selector is not None
            chosen = self._selector.offer((picture, stream_us), stream_us, intra=False, corrupt=False)
            self._decoded_us = stream_us
            blocks += self._sampled(chosen)
        return blocks

    def end(self) -> list[ClosedBlock]:
        """End the stream and return its remaining blocks. The next push begins a new stream."""
        blocks = []
        if self._selector is not None:
            blocks += self._sampled(self._selector.finish(None))
        if self._maker is not None:
            blocks += self._closed(self._maker.end(), ended=True)
        self._maker, self._selector, self._encoded = None, None, None
        self._begun_us, self._decoded_us = self._begun_us + self._decoded_us, 0
        return blocks

    def frame(self, frame: SourceFrame) -> list[ClosedBlock]:
        """Add a sampled frame of a source; return the blocks that end before it."""
        blocks: list[ClosedBlock] = []
        if self._maker is None or frame.stream != self._stream:
            if self._maker is not None:
                blocks = self._closed(self._maker.end(), ended=True)
            self._maker, self._stream = self._next_stream(), frame.stream
            self._begun_us, self._decoded_us = frame.begun_us, 0
        blocks += self._closed(self._maker.add(frame.frame))
        self._decoded_us = frame.end_us
        return blocks

    def _begin(self, begun_us: int) -> None:
        """Begin a stream of pictures."""
        self._selector = Selector(SamplingGrid(self.sampling.step_us))
        self._begun_us, self._decoded_us = begun_us, 0
        self._stream += 1

    def _cell_filled(self) -> bool:
        return self._selector is not None and self._selector.candidate is not None

    def _sampled(
        self, decisions: list[tuple[tuple[NDArray[np.uint8], int], int | None]]
    ) -> list[ClosedBlock]:
        blocks: list[ClosedBlock] = []
        for (picture, time_us), slot in decisions:
            if slot is not None:
                sample = Sample(_fitted(picture, self.tower.grid), Basis.LUMA)
                frame = StrideFrame(sample, time_us, slot)
                if self._maker is None:
                    self._maker = self._next_stream()
                blocks += self._closed(self._maker.add(frame), time_us)
        return blocks

    def _next_stream(self) -> BlockMaker:
        sampling = self.sampling
        return BlockMaker(
            f"{self.name}/{next(self.numbers)}",
            self.tower,
            self.policy,
            samples=sampling.block_samples,
            step_us=sampling.step_us,
            window_blocks=sampling.window_blocks,
        )

    def _closed(
        self, blocks: Sequence[StreamBlock], decoded_us: int | None = None, *, ended: bool = False
    ) -> list[ClosedBlock]:
        decoded = self._decoded_us if decoded_us is None else decoded_us
        return [ClosedBlock(block, self._begun_us, self._end_of(block, decoded, ended)) for block in blocks]

    def _end_of(self, block: StreamBlock, decoded_us: int, ended: bool) -> int:
        """Return the stream time in microseconds at which a block ends: the end of its stride. If the stream
        has `ended`, or more than one sample is missing after the decoded part, return the end of that
        part."""
        end_us = (block.block.index + 1) * self.sampling.stride_us
        least_us = 0 if ended else self.sampling.step_us
        return decoded_us if end_us - decoded_us > least_us else end_us


def _checked(frames: Frames, times_s: Sequence[float]) -> list[NDArray[np.uint8]]:
    """Check and return the frames, each uint8 [height, width, 3].

    Raises:
        SessionError: A frame has another type or shape, there is not one time per frame, or a time is
            invalid.
    """
    pictures = [np.asarray(frame) for frame in frames]
    for number, picture in enumerate(pictures):
        if picture.dtype != np.uint8 or picture.ndim != 3 or picture.shape[2] != 3 or not picture.size:
            raise SessionError(
                f"frame {number} is {picture.dtype} of shape {picture.shape}; give RGB frames, "
                "uint8 [height, width, 3]"
            )
    if len(times_s) != len(pictures):
        raise SessionError(
            f"{len(pictures)} frames came with {len(times_s)} times: give one time per frame, in seconds"
        )
    _check_times(times_s)
    return pictures


def _check_times(times_s: Sequence[float]) -> None:
    """Check times in seconds. A time that is far too large would make all later frames late.

    Raises:
        SessionError: A time is not a finite number, or is later than `LATEST_S`.
    """
    for time_s in times_s:
        if abs(check_finite("a time", time_s, SessionError)) > LATEST_S:
            raise SessionError(f"a time of {time_s:g} s is later than {LATEST_S:g} s: give times in seconds")


def _fitted(picture: NDArray[np.uint8], grid: Grid) -> NDArray[np.uint8]:
    """Scale a picture to the model's input size, as the decoder does."""
    if picture.shape[:2] == (grid.height, grid.width):
        return picture.copy()  # the caller may reuse its buffer
    # Imported here, because only pictures of another size need FFmpeg.
    import av

    from lookout.video.motion import Fit
    from lookout.video.segments.picture import Painter, frame_geometry

    frame = av.VideoFrame.from_ndarray(np.ascontiguousarray(picture), format="rgb24")
    return Painter().paint(frame, frame_geometry(frame, grid.width, grid.height, Fit.STRETCH))
