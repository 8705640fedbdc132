"""Serves a holder's chapters over gRPC: their heads, and ranges of their bytes."""

from __future__ import annotations

import fnmatch
import itertools
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import google_crc32c
import grpc

from lookout.past.memory import Chapter, HistoryError
from lookout.past.memory.catalogue import ByteRange
from lookout.past.memory.chapters import ChapterFacts, ChapterFolder
from lookout.runtime.net import PeerBytes
from lookout.v1 import memory_pb2_grpc
from lookout.v1.memory_pb2 import (
    DESCRIPTOR,
    ChapterInfo,
    ChapterRanges,
    ListChaptersRequest,
    ListChaptersResponse,
    ReadSlabsRequest,
    ReadSlabsResponse,
    SlabBatch,
    SlabHeader,
)

CHUNK_BYTES = 1 << 20
BATCH_RANGES = 1024
"""Maximum number of ranges in one message."""
BATCH_BYTES = 4 << 20
"""Maximum bytes of a message with several ranges: half of what a reader accepts in one message."""
HEAD_BYTES = 32 << 20
"""Maximum bytes of packed heads that a holder caches, which is enough for a few thousand chapters."""


@dataclass(frozen=True, slots=True)
class MemoryLimits:
    """Limits of what readers may take from a holder, so that questions do not delay windows.

    Attributes:
        ranges: maximum number of ranges per call.
        call_bytes: maximum bytes per call.
        peer_bytes: maximum bytes in transit to one host.
        readers: maximum number of concurrent reads; further calls are rejected and may be retried.
    """

    ranges: int = 4096
    call_bytes: int = 256 << 20
    peer_bytes: int = 512 << 20
    readers: int = 4


def is_meant(camera: str, pattern: str) -> bool:
    """Whether a camera's id equals the pattern, or matches it if the pattern has a `*`."""
    return camera == pattern or ("*" in pattern and fnmatch.fnmatchcase(camera, pattern.replace("[", "[[]")))


class MemoryService(memory_pb2_grpc.MemoryServiceServicer):  # type: ignore[misc]
    """Serves a folder of chapters. To add it to a server: `server.add(service.register, service.NAME)`.

    Status codes:
        NOT_FOUND: There is no such chapter, or not in this version.
        INVALID_ARGUMENT: A range lies outside the chapter's files, or the call exceeds `MemoryLimits`.
        RESOURCE_EXHAUSTED: Too many reads are in progress.
    """

    NAME: str = DESCRIPTOR.services_by_name["MemoryService"].full_name

    def __init__(
        self,
        folder: ChapterFolder,
        limits: MemoryLimits | None = None,
        give_way: Callable[[], object] | None = None,
    ) -> None:
        """Serve a folder.

        Args:
            folder: The chapters.
            limits: How much readers may take; None: the defaults.
            give_way: Called before each listed chapter and each message of ranges; it must return when more
                urgent work has ended. None: nothing is more urgent.
        """
        self._folder, self._limits = folder, limits or MemoryLimits()
        self._give_way = give_way or (lambda: None)
        self._readers = threading.BoundedSemaphore(self._limits.readers)
        self._sending = PeerBytes(self._limits.peer_bytes)
        self._heads = PackedHeads(folder)
        self.sent_bytes = 0
        self.calls = 0

    def register(self, server: grpc.Server) -> None:
        """Add the service to a server."""
        memory_pb2_grpc.add_MemoryServiceServicer_to_server(self, server)  # type: ignore[no-untyped-call]

    def ListChapters(  # noqa: N802
        self, request: ListChaptersRequest, context: grpc.ServicerContext
    ) -> Iterator[ListChaptersResponse]:
        count, camera = 0, ""
        for facts in self._folder.chapters():  # ascending by camera
            if facts.camera <= request.after:
                continue
            if not is_meant(facts.camera, request.cameras) or not _in_range(facts, request):
                continue
            if request.page and count >= request.page and facts.camera != camera:
                return
            count, camera = count + 1, facts.camera
            self._give_way()
            try:
                head = self._heads.of(facts)
            except HistoryError:
                continue  # erased or expired since it was listed
            yield ListChaptersResponse(chapter=head.info)
            for chunk in _chunks(head.data):
                yield ListChaptersResponse(chunk=chunk)

    def ReadSlabs(  # noqa: N802
        self, request: ReadSlabsRequest, context: grpc.ServicerContext
    ) -> Iterator[ReadSlabsResponse]:
        with self._admitted(request, context):
            yield from self._batches(request, context)

    def ReadBatch(  # noqa: N802
        self, request: ReadSlabsRequest, context: grpc.ServicerContext
    ) -> SlabBatch:
        places = _places(request)
        if not fits_batch([place.length for _, place in places]):
            context.abort(
                grpc.StatusCode.INVALID_ARGUMENT,
                f"{len(places)} ranges do not fit in one message, which holds at most {BATCH_RANGES} ranges "
                f"and {BATCH_BYTES} bytes; call ReadSlabs",
            )
        with self._admitted(request, context):
            return self._batch(places, context)

    @contextmanager
    def _admitted(self, request: ReadSlabsRequest, context: grpc.ServicerContext) -> Iterator[None]:
        """Check a call against the limits, and count it as a reader while the context is open."""
        lengths = [place.length for part in request.chapters for place in part.ranges]
        if len(lengths) > self._limits.ranges or sum(lengths) > self._limits.call_bytes:
            context.abort(
                grpc.StatusCode.INVALID_ARGUMENT,
                f"{len(lengths)} ranges with {sum(lengths)} bytes exceed the limit of a call, "
                f"{self._limits.ranges} ranges and {self._limits.call_bytes} bytes",
            )
        if not self._readers.acquire(timeout=2.0):
            context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "too many reads are in progress; retry later")
        try:
            with self._sending.share(sum(lengths), context):
                self.calls += 1
                yield
        finally:
            self._readers.release()

    def _batches(
        self, request: ReadSlabsRequest, context: grpc.ServicerContext
    ) -> Iterator[ReadSlabsResponse]:
        """Yield the requested ranges, as many per message as fit. Most ranges are small, so a message each
        would cost more than the bytes."""
        places = _places(request)
        lengths = [place.length for _, place in places]
        for own in split_calls(lengths, MemoryLimits(ranges=BATCH_RANGES, call_bytes=BATCH_BYTES)):
            if sum(lengths[own]) > BATCH_BYTES:  # a single range that is larger than a message
                part, place = places[own.start]
                alone = ChapterRanges(name=part.name, version=part.version, ranges=[place])
                yield from self._ranges(alone, context)
                continue
            yield ReadSlabsResponse(batch=self._batch(places[own], context))
            if not context.is_active():
                return

    def _batch(self, places: Sequence[tuple[ChapterRanges, Any]], context: grpc.ServicerContext) -> SlabBatch:
        self._give_way()
        data: list[bytes] = []
        for _, group in itertools.groupby(places, key=lambda entry: id(entry[0])):
            members = list(group)
            data += self._read(members[0][0], [place for _, place in members], context)
        self.sent_bytes += sum(map(len, data))
        headers = [SlabHeader(length=len(slab), crc32c=google_crc32c.value(slab)) for slab in data]
        return SlabBatch(slabs=headers, data=b"".join(data))

    def _read(self, part: ChapterRanges, places: Any, context: grpc.ServicerContext) -> list[bytes]:
        try:
            files = self._folder.files(part.name, part.version)
        except HistoryError as error:
            context.abort(grpc.StatusCode.NOT_FOUND, str(error))
        try:
            return list(files.read([ByteRange(place.file, place.offset, place.length) for place in places]))
        except HistoryError as error:
            context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))
        return []

    def _ranges(self, part: ChapterRanges, context: grpc.ServicerContext) -> Iterator[ReadSlabsResponse]:
        for place in part.ranges:
            self._give_way()
            (data,) = self._read(part, [place], context)
            if not context.is_active():
                return
            self.sent_bytes += len(data)
            yield ReadSlabsResponse(header=SlabHeader(length=len(data), crc32c=google_crc32c.value(data)))
            for chunk in _chunks(data):
                yield ReadSlabsResponse(chunk=chunk)


@dataclass(frozen=True, slots=True)
class PackedHead:
    """A chapter's head as a listing sends it: its facts, and the packed head."""

    info: ChapterInfo
    data: bytes


class PackedHeads:
    """Packs the heads of a folder's chapters for listings, and caches those of sealed chapters."""

    def __init__(self, folder: ChapterFolder) -> None:
        self._folder = folder
        self._lock = threading.Lock()
        self._cached: OrderedDict[str, PackedHead] = OrderedDict()
        self._bytes = 0

    def of(self, facts: ChapterFacts) -> PackedHead:
        """Return the head of a chapter.

        Raises:
            HistoryError: the chapter can no longer be read.
        """
        with self._lock:
            cached = self._cached.get(facts.name)
        if cached is not None and cached.info.version == facts.version:
            return cached
        chapter, _ = self._folder.read(facts.name)
        data = chapter.head.packed()
        head = PackedHead(_info(facts, chapter, len(data)), data)
        if chapter.head.sealed:
            self._cache(facts.name, head)
        return head

    def _cache(self, name: str, head: PackedHead) -> None:
        with self._lock:
            earlier = self._cached.pop(name, None)
            self._cached[name] = head
            self._bytes += len(head.data) - (len(earlier.data) if earlier else 0)
            while self._bytes > HEAD_BYTES:
                self._bytes -= len(self._cached.popitem(last=False)[1].data)


def _info(facts: ChapterFacts, chapter: Chapter, head_bytes: int) -> ChapterInfo:
    return ChapterInfo(
        name=facts.name,
        camera=facts.camera,
        epoch=facts.epoch,
        first_block=facts.first_block,
        version=chapter.head.version,
        sealed=facts.sealed,
        begin_us=facts.begin_us,
        end_us=facts.end_us,
        bytes=facts.bytes,
        head_bytes=head_bytes,
        model_digest=str(chapter.head.about.get("model_digest", "")),
    )


def _chunks(data: bytes) -> Iterator[bytes]:
    for start in range(0, len(data), CHUNK_BYTES):
        yield data[start : start + CHUNK_BYTES]


def _places(request: ReadSlabsRequest) -> list[tuple[ChapterRanges, Any]]:
    return [(part, place) for part in request.chapters for place in part.ranges]


def fits_batch(lengths: Sequence[int]) -> bool:
    """Whether one message can hold ranges of these lengths."""
    return len(lengths) <= BATCH_RANGES and sum(lengths) <= BATCH_BYTES


def _in_range(facts: ChapterFacts, request: ListChaptersRequest) -> bool:
    after = not request.HasField("since_us") or facts.end_us >= request.since_us
    return after and (not request.HasField("until_us") or facts.begin_us < request.until_us)


def split_calls(lengths: Sequence[int], limits: MemoryLimits) -> list[slice]:
    """Group consecutive ranges of these lengths into calls within the limits; return a slice per call. A
    range over the byte limit gets its own call."""
    out, begin, total = [], 0, 0
    for number, length in enumerate(lengths):
        if number > begin and (number - begin >= limits.ranges or total + length > limits.call_bytes):
            out.append(slice(begin, number))
            begin, total = number, 0
        total += length
    return [*out, slice(begin, len(lengths))] if len(lengths) else []
