"""Samples frames from files and segments."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import BinaryIO

from lookout.models.vision import Grid
from lookout.pruning import GatherMethod, GatherSettings, MaskPolicy
from lookout.streams.blocks import StrideFrame
from lookout.streams.requests import decode_request

# Only the package is imported here. Importing the decoder's names would load FFmpeg, which prefill's image
# does not have.
from lookout.video import segments
from lookout.video.segments import DecodedSegment, DecodeRequest, Limits, SamplingGrid, Tail

LONGEST_S = 3600.0
"""Maximum length of a clip in seconds."""


@dataclass(frozen=True, slots=True)
class ClipFrames:
    """The sampled frames of a clip.

    Attributes:
        frames: In time order.
        step_us: Microseconds between two points of the sampling grid.
    """

    frames: list[StrideFrame]
    step_us: int


def read_clip(
    path: Path | str, grid: Grid, fps: float = 2.0, *, vectors: GatherMethod | None = None
) -> ClipFrames:
    """Decode and sample a clip at a model's input size.

    Args:
        path: The clip.
        grid: The grid of the model's input.
        fps: Sampled frames per second.
        vectors: How motion vectors are summed up per patch; None: pruning compares pixels, and no motion
            vectors are read.

    Raises:
        CodecError: The clip cannot be decoded.
    """
    step_us = round(1e6 / fps)
    request = _request(grid, step_us, vectors, limits=Limits(seconds=LONGEST_S))
    decoded = segments.SoftwareDecoder().decode(Path(path).read_bytes(), request)
    frames = [
        StrideFrame.of(frame, pixels) for frame, pixels in zip(decoded.frames, decoded.pixels, strict=True)
    ]
    return ClipFrames(frames, step_us)


@dataclass(frozen=True, slots=True, eq=False)
class SourceFrame:
    """A sampled frame of a source.

    Attributes:
        stream: Number of the frame's stream. A jump of the source's clock begins the next stream.
        begun_us: Source time in microseconds at which that stream begins.
        end_us: Stream time in microseconds at which the frame's segment ends.
        frame: The frame.
    """

    stream: int
    begun_us: int
    end_us: int
    frame: StrideFrame


def segment_frames(
    source: Path | BinaryIO, grid: Grid, step_us: int, policy: MaskPolicy, *, window_us: int
) -> Iterator[SourceFrame]:
    """Yield the sampled frames of a source. The source is cut at keyframes, like a camera's stream, and
    decoded segment by segment.

    If two segments overlap, or the hole between them is at most as long as a window, the stream continues.
    Any other jump of the clock begins the next stream. services/decode must follow the same rule.

    Args:
        source: The video.
        grid: The grid of the model's input.
        step_us: Microseconds between two points of the sampling grid.
        policy: Determines whether motion vectors are gathered.
        window_us: Microseconds of a window.

    Raises:
        CodecError: The source cannot be read.
    """
    sampler = SegmentSampler.of(grid, step_us, policy, window_us=window_us)
    for piece in segments.cut(source):
        yield from sampler.add(piece.data, piece.start_us)


@dataclass(slots=True, eq=False)
class SegmentSampler:
    """Samples a source's segments one after the other; see `segment_frames`. A copy (`copy.copy`) continues
    independently.

    Attributes:
        request: How the next segment is decoded.
        window_us: Microseconds of a window.
        stream: Number of the current stream; -1 before the first.
        begun_us: Source time in microseconds at which the current stream begins.
        watermark_us: Stream time in microseconds up to which the current stream is decoded.
        heard_us: Source time in microseconds up to which the source is decoded.
    """

    request: DecodeRequest
    window_us: int
    stream: int = -1
    begun_us: int = 0
    watermark_us: int = 0
    heard_us: int = 0

    @classmethod
    def of(
        cls, grid: Grid, step_us: int, policy: MaskPolicy, *, window_us: int, begun_us: int = 0
    ) -> SegmentSampler:
        """Return a sampler that begins at source time `begun_us`, in microseconds. The other arguments are
        those of `segment_frames`."""
        request = _request(grid, step_us, policy.gathers, tail=Tail.LEAVE)
        return cls(request, window_us, begun_us=begun_us)

    def add(self, data: bytes, start_us: int | None) -> list[SourceFrame]:
        """Return the samples of the next segment; an empty list if its time was already decoded.

        Args:
            data: The encoded segment.
            start_us: Source time in microseconds at which the segment begins; None: where the previous
                segment ends.

        Raises:
            CodecError: The segment cannot be decoded. The sampler is unchanged.
        """
        decoded = self._decoded(data, start_us)
        start_us = self.begun_us + self.watermark_us if start_us is None else start_us
        if not decoded.continued:
            self.stream, self.begun_us, self.watermark_us = self.stream + 1, start_us, 0
        elif decoded.end_stream_us <= self.watermark_us:
            return []  # late
        self.heard_us = max(self.heard_us, start_us + decoded.facts.end_us - decoded.facts.first_us)
        self.watermark_us = max(self.watermark_us, decoded.end_stream_us)
        self.request = replace(
            self.request, expected=decoded.following(self.window_us), first_slot=decoded.next_slot
        )
        return [
            SourceFrame(self.stream, self.begun_us, decoded.end_stream_us, StrideFrame.of(frame, pixels))
            for frame, pixels in zip(decoded.frames, decoded.pixels, strict=True)
        ]

    def _decoded(self, data: bytes, start_us: int | None) -> DecodedSegment:
        """Decode a segment. If its clock repeats earlier times although its footage is new, decode it as the
        beginning of a stream."""
        decoder, request = segments.SoftwareDecoder(), self.request
        decoded = decoder.decode(data, request)
        if start_us is None or request.expected is None:
            return decoded
        overlap_us = request.expected.next_us - decoded.facts.first_us
        ahead_us = start_us - self.heard_us + overlap_us
        if decoded.continued and segments.is_other_footage(overlap_us, ahead_us, continued=True):
            return decoder.decode(data, replace(request, expected=None, first_slot=0))
        return decoded


def _request(
    grid: Grid,
    step_us: int,
    method: GatherMethod | None,
    *,
    tail: Tail = Tail.KEEP,
    limits: Limits | None = None,
) -> DecodeRequest:
    """Return the decoder's request for a model's input. If `method` is None, motion vectors are not read."""
    gather = None if method is None else GatherSettings(grid.rows, grid.cols, grid.patch, method)
    return decode_request(
        grid.width, grid.height, gather=gather, grid=SamplingGrid(step_us), tail=tail, limits=limits
    )
