"""What a decoder process does for a recording: count its packets, and give some of its samples."""

from __future__ import annotations

import io
import os
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import BinaryIO, cast

from lookout.codec.container import ByteSource
from lookout.codec.geometry import Fit
from lookout.codec.parallel import FILE_LIMITS, FileDecoder, FileFrame, Scan, Work, scanned
from lookout.codec.recording import RecordingFacts, facts_of, first_size
from lookout.codec.source import FileSource, Source
from lookout.codec.table import FrameTable, Pick


@dataclass(frozen=True, slots=True)
class TableRequest:
    """Count the packets of a file."""

    path: str


@dataclass(frozen=True, slots=True)
class SampleRequest:
    """Decode some frames of a file. size: (height, width) in pixels."""

    path: str
    picks: tuple[Pick, ...]
    size: tuple[int, int]
    fit: Fit


@dataclass(frozen=True, slots=True)
class TableResult:
    """A file's packets. size: (height, width) of the upright picture, (0, 0) where no frame decodes."""

    facts: RecordingFacts
    table: FrameTable
    size: tuple[int, int]


@dataclass(frozen=True, slots=True)
class SampleResult:
    """Decoded frames in order, and what decoding them took."""

    frames: tuple[FileFrame, ...]
    work: Work


class _OpenFile:
    """A file that is open already, as a source."""

    def __init__(self, file: BinaryIO, name: str) -> None:
        self._file, self.name = file, name

    @contextmanager
    def open(self) -> Iterator[ByteSource]:
        """A reader with a position of its own."""
        yield cast(ByteSource, io.BufferedReader(_At(self._file.fileno())))


class _At(io.RawIOBase):
    """One position in a file descriptor that several readers share."""

    def __init__(self, descriptor: int) -> None:
        super().__init__()
        self._descriptor, self._at = descriptor, 0
        self._read, self._size = os.pread, os.fstat(descriptor).st_size

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET, /) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size}[whence]
        self._at = base + offset
        return self._at

    def tell(self) -> int:
        return self._at

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        found = self._read(self._descriptor, len(buffer), self._at)
        buffer[: len(found)] = found
        self._at += len(found)
        return len(found)


class RecordingJobs:
    """The jobs of one process; the scan of the newest recording stays for the next job."""

    def __init__(self) -> None:
        self._scan: tuple[str, Scan] | None = None

    def run(
        self, request: TableRequest | SampleRequest, file: BinaryIO | None = None
    ) -> TableResult | SampleResult:
        """One job. `file` is the opened file where this process may not open it by its path.

        Raises:
            CodecError: The file cannot be read.
        """
        source: Source = FileSource(request.path) if file is None else _OpenFile(file, request.path)
        with file if file is not None else nullcontext():
            if isinstance(request, TableRequest):
                return self._table(request, source)
            return self._sample(request, source)

    def _table(self, request: TableRequest, source: Source) -> TableResult:
        with scanned(source, FILE_LIMITS) as (video, scan):
            facts = facts_of(request.path, video, scan)
        self._scan = (request.path, scan)
        size = first_size(source, FILE_LIMITS, scan) if len(scan.table) else (0, 0)
        return TableResult(facts, scan.table, size)

    def _sample(self, request: SampleRequest, source: Source) -> SampleResult:
        if self._scan is None or self._scan[0] != request.path:
            self._table(TableRequest(request.path), source)
        assert self._scan is not None
        height, width = request.size
        decoder = FileDecoder(
            source,
            width,
            height,
            picks=request.picks,
            fit=request.fit,
            threads=1,
            lookahead=max(1, len(request.picks)),
            scan=self._scan[1],
        )
        with decoder:
            return SampleResult(tuple(decoder), decoder.work)


RESULTS = (TableResult, SampleResult, RecordingFacts, FrameTable, FileFrame, Work)
