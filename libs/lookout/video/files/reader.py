"""`VideoReader`: random access to the samples of a whole recording (QuickCodec, with additions)."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing

from lookout.video.files.clipping import RecordingClip, clip
from lookout.video.files.parallel import DecodeWork, FileDecoder, FileFrame, Scan, scanned
from lookout.video.files.recording import (
    UNDECODABLE,
    Gap,
    RecordingFacts,
    RecordingReader,
    Sampling,
    SamplingPlan,
    StreamFacts,
    broken_off,
    facts_of,
    first_size,
    gaps_of,
)
from lookout.video.files.source import Given, Source, UrlSource, source_of
from lookout.video.segments.container import Video
from lookout.video.segments.types import FILE_LIMITS, CodecError, Limits, Reason


class VideoReader(RecordingReader):
    """Random access to the frames of a recording.

    Packets are counted once, when the reader is created: from the index of an MP4 file, otherwise by reading
    them. Every `sample` and `read` decodes only what its frames need, on several threads. Results equal those
    of decoding every frame in order, byte for byte. A reader may be passed to other processes, by fork or by
    pickling (for example to workers of a `DataLoader`). Each process opens the recording separately.

    Args:
        source: A path, an http(s) URL (read in range requests), bytes, a file object, or a `Source`.
        limits: Limits on what is read.

    Raises:
        CodecError: The source cannot be read or has no video.
    """

    def __init__(self, source: Given, *, limits: Limits = FILE_LIMITS) -> None:
        self.source = source_of(source)
        self._limits = limits
        self._opened = ExitStack()
        with ExitStack() as opened:
            video, self.scan = opened.enter_context(scanned(self.source, limits))
            stream = StreamFacts.of(video, self.scan)
            super().__init__(facts_of(self.source.name, stream, self.scan.table), self.scan.table)
            self._opened = opened.pop_all()
        self._video: Video | None = video  # serves the first `sample`
        self._process = os.getpid()
        self._closed = False
        self._upright: tuple[int, int] | None = None

    @property
    def size(self) -> tuple[int, int]:
        """(height, width) of the upright picture, from the first frame that decodes."""
        self._check_open()
        if self._upright is None:
            self._upright = first_size(self.source, self._limits, self.scan)
        return self._upright

    def __reduce__(self) -> tuple[Callable[..., VideoReader], tuple[Source, Limits]]:
        return _opened_again, (self.source, self._limits)

    def close(self) -> None:
        """Release the packets and a URL's connections. Later reads fail."""
        self._closed = True
        self.scan, self._video = Scan(self.scan.table, damage=self.scan.damage), None
        self._opened.close()
        if isinstance(self.source, UrlSource):
            self.source.close()

    def _sampling(self, plan: SamplingPlan) -> Sampling:
        self._check_open()
        video, opened = self._video, self._opened
        self._video, self._opened = None, ExitStack()
        if self._process != os.getpid():
            video, opened = None, ExitStack()  # a forked process would share its parent's file position
        decoder = FileDecoder(
            self.source,
            plan.size[1],
            plan.size[0],
            picks=plan.picks,
            fit=plan.fit,
            threads=plan.threads,
            lookahead=plan.lookahead,
            intervals=plan.intervals,
            limits=self._limits,
            scan=self.scan,
            video=video,
            opened=opened,
        )
        return DecodedSampling(decoder, self.facts, self._check_open)

    def _clip(self, start_us: int, end_us: int, max_bytes: int) -> RecordingClip:
        self._check_open()
        return clip(self.source, self._limits, self.scan, (start_us, end_us), max_bytes)

    def _check_open(self) -> None:
        """Check that the reader was not closed.

        Raises:
            CodecError: With CLOSED: the reader was closed.
        """
        if self._closed:
            raise CodecError(Reason.CLOSED, f"{self.facts.name} was closed: open it again")


def _opened_again(source: Source, limits: Limits) -> VideoReader:
    return VideoReader(source, limits=limits)


class DecodedSampling(Sampling):
    """Frames decoded in this process.

    Args:
        decoder: The decoder.
        facts: Facts of the recording.
        check_open: Raises `CodecError` once the recording is closed.
    """

    def __init__(
        self, decoder: FileDecoder, facts: RecordingFacts, check_open: Callable[[], None] = lambda: None
    ) -> None:
        self.decoder, self._facts, self._check_open = decoder, facts, check_open

    def __len__(self) -> int:
        return len(self.decoder)

    def __iter__(self) -> Iterator[FileFrame]:
        self._check_open()
        # The decoder's threads end together with its iterator, even if `check_open` raises.
        with closing(iter(self.decoder)) as frames:
            for frame in frames:
                yield frame
                self._check_open()

    @property
    def gaps(self) -> tuple[Gap, ...]:
        return gaps_of(self.decoder.picks, self.lost, self._facts.duration_us) + broken_off(self._facts)

    @property
    def lost(self) -> Mapping[int, str]:
        return dict.fromkeys((pick.pts for pick in self.decoder.missing), UNDECODABLE)

    @property
    def work(self) -> DecodeWork:
        return self.decoder.work

    @property
    def busy_s(self) -> float:
        return self.decoder.busy_s

    def close(self) -> None:
        self.decoder.close()
