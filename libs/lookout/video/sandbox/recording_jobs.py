"""Jobs that a decoder process runs on recordings: counting packets, sampling frames, cutting clips."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass
from typing import BinaryIO

from lookout.video.files.clipping import RecordingClip, clip
from lookout.video.files.parallel import DecodeWork, FileDecoder, FileFrame, Scan, scanned
from lookout.video.files.recording import StreamFacts, first_size
from lookout.video.files.source import FileSource, OpenFileSource, Source
from lookout.video.files.table import FrameTable
from lookout.video.sandbox.jobs import ClipRequest, SampleRequest
from lookout.video.segments.types import FILE_LIMITS


@dataclass(frozen=True, slots=True)
class TableResult:
    """A file's packet table. `size`: (height, width) of the upright picture, (0, 0) if the file has no
    packets.
    """

    stream: StreamFacts
    table: FrameTable
    size: tuple[int, int]


@dataclass(frozen=True, slots=True)
class SampleResult:
    """Decoded frames in order, and the decoding counters."""

    frames: tuple[FileFrame, ...]
    work: DecodeWork


class RecordingJobs:
    """Runs the jobs of a process, and keeps the latest recording's scan for the next job."""

    def __init__(self) -> None:
        self._scan: tuple[str, Scan] | None = None

    def table(self, path: str, file: BinaryIO | None = None) -> TableResult:
        """Return the packet table of a file.

        Args:
            path: The file's name, and its location unless `file` is given.
            file: The open file; closed after the job.

        Raises:
            CodecError: The file cannot be read.
        """
        with file if file is not None else nullcontext():
            return self._table(path, _source(path, file))

    def sample(self, request: SampleRequest, file: BinaryIO | None = None) -> SampleResult:
        """Decode some frames of a file.

        Args:
            request: The frames.
            file: The open file, which is closed after the job; None: open the path in the request.

        Raises:
            CodecError: The file cannot be read.
        """
        with file if file is not None else nullcontext():
            return self._sample(request, _source(request.path, file))

    def clip(self, request: ClipRequest, file: BinaryIO | None = None) -> RecordingClip:
        """Cut a range of a file into a separate file.

        Args:
            request: The range.
            file: The open file, which is closed after the job; None: open the path in the request.

        Raises:
            CodecError: The range cannot be cut.
        """
        with file if file is not None else nullcontext():
            source = _source(request.path, file)
            scan = self._scan_of(request.path, source)
            range_us = (request.start_us, request.end_us)
            return clip(source, FILE_LIMITS, scan, range_us, request.max_bytes)

    def _scan_of(self, path: str, source: Source) -> Scan:
        if self._scan is None or self._scan[0] != path:
            self._table(path, source)
        assert self._scan is not None
        return self._scan[1]

    def _table(self, path: str, source: Source) -> TableResult:
        with scanned(source, FILE_LIMITS) as (video, scan):
            stream = StreamFacts.of(video, scan)
        # Kept for `sample`, which uses the same file many times, so that the file's packets are counted only
        # once.
        self._scan = (path, scan)
        size = first_size(source, FILE_LIMITS, scan) if len(scan.table) else (0, 0)
        return TableResult(stream, scan.table, size)

    def _sample(self, request: SampleRequest, source: Source) -> SampleResult:
        scan = self._scan_of(request.path, source)
        height, width = request.size
        decoder = FileDecoder(
            source,
            width,
            height,
            picks=request.picks,
            fit=request.fit,
            threads=1,
            lookahead=max(1, len(request.picks)),
            scan=scan,
        )
        with decoder:
            return SampleResult(tuple(decoder), decoder.work)


def _source(path: str, file: BinaryIO | None) -> Source:
    return FileSource(path) if file is None else OpenFileSource(file, path)
