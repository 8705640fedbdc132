"""Finds a camera's chapters and reads ranges of them: from holders first, then from the durable tier."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any, TypeVar

import google_crc32c
import grpc
import structlog

from lookout.past.chapters.announcing import ScenesDirectory
from lookout.past.chapters.checking import checked_chapter
from lookout.past.chapters.service import MemoryLimits, fits_batch, split_calls
from lookout.past.memory import Chapter, HistoryError, LostChapterError
from lookout.past.memory.catalogue import Head
from lookout.past.memory.chapters import without_doubles
from lookout.past.memory.past import ChapterRange
from lookout.runtime.net import Channels, GrpcSecurity, without_security
from lookout.runtime.store import Directory
from lookout.v1 import memory_pb2_grpc
from lookout.v1.lineage_pb2 import STAGE_CHAPTERS
from lookout.v1.memory_pb2 import (
    ChapterInfo,
    ListChaptersRequest,
    ReadSlabsRequest,
    ReadSlabsResponse,
    SlabBatch,
    SlabHeader,
    SlabRange,
)

if TYPE_CHECKING:
    from lookout.past.chapters.durable import DurableTier

log = structlog.get_logger(__name__)
T = TypeVar("T")
CONNECT_S = 1.0
"""Seconds that a new connection to a holder may take after the previous connection failed."""
LISTING_BYTES = 1 << 30
"""Maximum bytes of heads that a holder may send in one call."""
PAGE = 1000
"""Number of chapters per call. It may be exceeded, because a camera's chapters are never split between
calls."""
HEADER_BYTES = 64
"""Maximum overhead of an answer in bytes per range."""
DURABLE = "durable"
"""Stands for the durable tier where a holder's address is expected."""


class Holders:
    """Lists and reads chapters of holders over gRPC, with one channel per address. Thread-safe.

    Args:
        security: Certificates and token of the fleet; None: neither.
        traced: Wraps a channel for tracing; None: channels are not traced.
        limits: Limits of one call; None: the defaults.
        list_s: Seconds that a page of a listing may take.
        read_s: Seconds that a read may take.
    """

    def __init__(
        self,
        security: GrpcSecurity | None = None,
        *,
        traced: Callable[[grpc.Channel], grpc.Channel] | None = None,
        limits: MemoryLimits | None = None,
        list_s: float = 10.0,
        read_s: float = 30.0,
    ) -> None:
        self._opener = Channels(security or without_security())
        self._traced = traced or (lambda channel: channel)
        self._limits = limits or MemoryLimits()
        self._list_s, self._read_s = list_s, read_s
        self._version = self._opener.version
        self._stubs: dict[str, tuple[grpc.Channel, Any]] = {}
        self._lock = threading.Lock()

    def listing(
        self, address: str, cameras: str, since_us: int | None, until_us: int | None
    ) -> list[Chapter]:
        """Return the chapters that a holder can read now.

        Args:
            address: Address of the holder.
            cameras: An id, or a pattern with `*`.
            since_us: Only chapters with frames from this time on (Unix microseconds); None: all.
            until_us: Only chapters with frames before this time; None: all.

        Raises:
            HistoryError: the holder does not answer, or its answer is invalid.
        """
        out: list[Chapter] = []
        after = ""
        while True:
            page = self._page(address, cameras, since_us, until_us, after)
            # Ignore repeated chapters, so that a holder that repeats a page cannot keep this loop running.
            fresh = [chapter for chapter in page if _camera(chapter) > after]
            out += fresh
            if "*" not in cameras or len(fresh) < PAGE:
                return out
            after = max(map(_camera, fresh))

    def _page(
        self, address: str, cameras: str, since_us: int | None, until_us: int | None, after: str
    ) -> list[Chapter]:
        """Read one page of a holder's chapters, those of cameras after `after`. The time limit applies to
        each page."""
        request = ListChaptersRequest(
            cameras=cameras, since_us=since_us, until_us=until_us, after=after, page=PAGE
        )
        out: list[tuple[ChapterInfo, bytearray]] = []
        for part in self._parts(address, "ListChapters", request, self._list_s, LISTING_BYTES):
            match part.WhichOneof("part"):
                case "chapter":
                    out.append((part.chapter, bytearray()))
                case "chunk" if out:
                    out[-1][1].extend(part.chunk)
        return [_chapter(info, bytes(head), address) for info, head in out]

    def read(self, address: str, requests: Sequence[ChapterRange]) -> list[bytes]:
        """Read ranges of chapters from one holder, and compare them with their checksums.

        Returns:
            The bytes of each range, in the order of `requests`.

        Raises:
            HistoryError: the holder does not answer, no longer has a chapter, or sent wrong bytes.
        """
        # Read by chapter, file and offset.
        order = sorted(range(len(requests)), key=lambda number: _place(requests[number]))
        ordered = [requests[number] for number in order]
        out: list[bytes] = [b""] * len(requests)
        for part in split_calls([place.length for _, place in ordered], self._limits):
            for number, data in zip(order[part], self._call(address, ordered[part]), strict=True):
                chapter, place = requests[number]
                out[number] = place.checked(data, f"{chapter.name} from {address}")
        return out

    def close(self) -> None:
        """Close every channel."""
        with self._lock:
            for channel, _ in self._stubs.values():
                channel.close()
            self._stubs.clear()

    def _call(self, address: str, requests: Sequence[ChapterRange]) -> list[bytes]:
        message = ReadSlabsRequest()
        for chapter, place in requests:
            last = message.chapters[-1] if message.chapters else None
            if last is None or (last.name, last.version) != (chapter.name, chapter.head.version):
                last = message.chapters.add(name=chapter.name, version=chapter.head.version)
            last.ranges.append(SlabRange(file=place.file, offset=place.offset, length=place.length))
        headers: list[SlabHeader] = []
        data: list[bytes] = []
        for part in self._answer(address, message, [place.length for _, place in requests]):
            match part.WhichOneof("part"):
                case "batch":
                    headers += part.batch.slabs
                    data += _slabs(part.batch)
                case "header":
                    headers.append(part.header)
                    data.append(b"")
                case "chunk" if data:
                    data[-1] += part.chunk
        intact = all(
            len(slab) == header.length and google_crc32c.value(slab) == header.crc32c
            for slab, header in zip(data, headers, strict=True)
        )
        if len(data) != len(requests) or not intact:
            raise HistoryError(f"{address}: the holder sent other bytes than were requested")
        return data

    def _answer(self, address: str, request: ReadSlabsRequest, lengths: Sequence[int]) -> list[Any]:
        """Return the messages that answer a read. Most reads fit in one message, which costs a third less
        without a stream."""
        if fits_batch(lengths):
            batch = self._with_reconnect(address, lambda stub: stub.ReadBatch(request, timeout=self._read_s))
            return [ReadSlabsResponse(batch=batch)]
        limit = sum(lengths) + HEADER_BYTES * len(lengths)
        return self._parts(address, "ReadSlabs", request, self._read_s, limit)

    def _parts(self, address: str, method: str, request: Any, timeout_s: float, limit: int) -> list[Any]:
        """Return all messages of a call's answer, of at most `limit` bytes in total."""

        def call(stub: Any) -> list[Any]:
            return _bounded(getattr(stub, method)(request, timeout=timeout_s), limit, address)

        return self._with_reconnect(address, call)

    def _with_reconnect(self, address: str, call: Callable[[Any], T]) -> T:
        """Make a call and return its result. If the holder is unavailable, reconnect and repeat the call
        once.

        After a failed connection, gRPC waits before it reconnects. Without the second attempt, a holder that
        has restarted meanwhile would count as gone.

        Raises:
            HistoryError: The call failed.
        """
        stub = self._stub(address)
        try:
            try:
                return call(stub)
            except grpc.RpcError as error:
                if error.code() is not grpc.StatusCode.UNAVAILABLE or not self._reconnected(address, stub):
                    raise
            return call(self._stub(address))
        except grpc.RpcError as error:
            raise HistoryError(f"{address}: {error.code().name} {error.details()}") from error

    def _reconnected(self, address: str, stub: Any) -> bool:
        """Replace a stub's channel with a new one; return whether the new one connects."""
        with self._lock:
            current = self._stubs.get(address)
            if current is not None and current[1] is stub:
                del self._stubs[address]  # running calls keep their channel
        self._stub(address)
        with self._lock:
            current = self._stubs.get(address)
        return current is not None and _connects(current[0])

    def _stub(self, address: str) -> Any:
        with self._lock:
            if (version := self._opener.version) != self._version:
                # Certificates changed. Running calls keep their channel, which closes after the last call.
                self._version, self._stubs = version, {}
            if address not in self._stubs:
                channel = self._opener.open(
                    address,
                    [
                        ("grpc.max_receive_message_length", 8 << 20),
                        ("grpc.enable_retries", 0),
                        ("SingleThreadedUnaryStream", 1),
                        ("grpc.http2.lookahead_bytes", 4 << 20),
                        ("grpc.http2.max_frame_size", 1 << 20),
                        ("grpc.initial_reconnect_backoff_ms", 100),
                        ("grpc.max_reconnect_backoff_ms", 2000),
                        # Without this, a new channel shares the backoff of the previous one.
                        ("grpc.use_local_subchannel_pool", 1),
                    ],
                )
                stub = memory_pb2_grpc.MemoryServiceStub(self._traced(channel))  # type: ignore[no-untyped-call]
                self._stubs[address] = channel, stub
            return self._stubs[address][1]


def _camera(chapter: Chapter) -> str:
    return str(chapter.head.about["camera"])


def _place(request: ChapterRange) -> tuple[str, str, int]:
    chapter, place = request
    return chapter.key, place.file, place.offset


def _slabs(batch: SlabBatch) -> Iterator[bytes]:
    """Yield the ranges in a batch. If the batch has too few bytes, the last ranges are shorter than
    announced."""
    view, begin = memoryview(batch.data), 0
    for header in batch.slabs:
        yield bytes(view[begin : begin + header.length])
        begin += header.length


def _bounded(answer: Any, limit: int, address: str) -> list[Any]:
    """Return the messages of an answer.

    Raises:
        HistoryError: the answer has more than `limit` bytes.
    """
    out, total = [], 0
    for message in answer:
        total += message.ByteSize()
        if total > limit:
            answer.cancel()
            raise HistoryError(f"{address}: the holder sent more bytes than were requested")
        out.append(message)
    return out


def _connects(channel: grpc.Channel) -> bool:
    """Whether a channel connects. A refused connection gives False at once, no answer after `CONNECT_S`."""
    states: SimpleQueue[grpc.ChannelConnectivity] = SimpleQueue()
    channel.subscribe(states.put, try_to_connect=True)
    deadline = time.monotonic() + CONNECT_S
    try:
        while True:
            state = states.get(timeout=max(0.0, deadline - time.monotonic()))
            if state is grpc.ChannelConnectivity.READY:
                return True
            if state in (grpc.ChannelConnectivity.TRANSIENT_FAILURE, grpc.ChannelConnectivity.SHUTDOWN):
                return False
    except Empty:
        return False
    finally:
        channel.unsubscribe(states.put)


def _chapter(info: ChapterInfo, head: bytes, address: str) -> Chapter:
    if len(head) != info.head_bytes:
        raise HistoryError(f"{address}: the head of chapter {info.name} is cut short")
    where = f"{info.name} from {address}"
    own = info.camera, info.name
    return checked_chapter(lambda: Head.unpacked(head, where), lambda *names: names == own, where)


@dataclass(slots=True, eq=False)
class Resolved:
    """The chapters of one camera, and where each of them can be read.

    Attributes:
        camera: id of the camera.
        chapters: the chapters, in order.
        sources: addresses that have a chapter, by its name, in order of preference; failed ones are removed.
        missing: messages about chapters that exist but cannot be read, and holders that do not answer.
    """

    camera: str
    chapters: list[Chapter] = field(default_factory=list)
    sources: dict[str, list[str]] = field(default_factory=dict)
    missing: list[str] = field(default_factory=list)

    def lose(self, name: str, cause: str) -> None:
        """Remove a chapter, and add it to `missing` with the cause."""
        self.chapters = [chapter for chapter in self.chapters if chapter.name != name]
        self.missing.append(f"{name}: {cause}")


class ChapterSources:
    """Finds chapters by asking every live holder and listing the durable tier, and reads them.

    Args:
        holders: lists and reads chapters of holders.
        directory: lists live holders; None: only `replicas` are asked.
        scenes: reads scenes from Redis; None: they are read like other ranges.
        replicas: addresses of holders that are always asked.
        durable: the durable tier; None: there is none.
        threads: maximum number of parallel calls.
    """

    def __init__(
        self,
        holders: Holders,
        directory: Directory | None = None,
        scenes: ScenesDirectory | None = None,
        *,
        replicas: Sequence[str] = (),
        durable: DurableTier | None = None,
        threads: int = 16,
    ) -> None:
        self._holders, self._directory, self._scenes = holders, directory, scenes
        self._replicas, self._durable = tuple(replicas), durable
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="chapters")
        self.from_redis = self.from_holders = 0
        """Number of ranges read from Redis, and number read from holders or the durable tier."""

    def find(
        self, cameras: str, since_us: int | None, until_us: int | None, model_digest: str = ""
    ) -> dict[str, Resolved]:
        """Find the chapters of a camera, or of all cameras that match a pattern; return them by camera.

        Args:
            cameras: an id, or a pattern with `*`.
            since_us: only chapters with frames from this time on (Unix microseconds); None: all.
            until_us: only chapters with frames before this time; None: all.
            model_digest: chapters of other models are listed in `missing`; empty: any model's chapters count.
        """
        addresses = sorted({*self._replicas, *self._live()})
        calls = {
            address: self._pool.submit(self._holders.listing, address, cameras, since_us, until_us)
            for address in addresses
        }
        listed: list[tuple[str, Chapter]] = []
        silent: list[str] = []
        for address, call in calls.items():
            try:
                listed += [(address, chapter) for chapter in call.result()]
            except HistoryError as error:
                silent.append(str(error))
                log.warning("a holder of chapters does not answer", address=address, error=str(error))
        if self._durable is not None:
            try:
                listed += [(DURABLE, chapter) for chapter in self._durable.listing(cameras)]
            except (HistoryError, OSError) as error:
                silent.append(f"the durable tier: {error}")
        out = _by_camera(listed, model_digest)
        for camera, resolved in out.items():
            resolved.missing += silent
            if silent and self._scenes is not None:
                listing = self._scenes.chapters(camera)
                lost = sorted(set(listing) - {chapter.name for chapter in resolved.chapters})
                resolved.missing += [f"{name}: held by {listing[name]['pod']}" for name in lost]
        if not out and silent and "*" not in cameras:
            out[cameras] = Resolved(cameras, missing=silent)
        return out

    def fetch(self, resolved: Resolved) -> Callable[[Sequence[ChapterRange]], list[bytes]]:
        """Return a function that reads ranges of the camera's chapters, from several holders in parallel. The
        function raises LostChapterError if no source has a chapter."""

        def fetch(requests: Sequence[ChapterRange]) -> list[bytes]:
            out: list[bytes | None] = [None] * len(requests)
            self._from_directory(resolved.camera, requests, out)
            while missing := [number for number, data in enumerate(out) if data is None]:
                self._round(resolved, requests, missing, out)
            return [data or b"" for data in out]

        return fetch

    def close(self) -> None:
        """Stop the threads and close the channels."""
        self._pool.shutdown(wait=False, cancel_futures=True)
        self._holders.close()

    def _live(self) -> list[str]:
        return [] if self._directory is None else self._directory.replicas(STAGE_CHAPTERS)

    def _round(
        self,
        resolved: Resolved,
        requests: Sequence[ChapterRange],
        rest: Sequence[int],
        out: list[bytes | None],
    ) -> None:
        """Read the ranges numbered `rest`, each from its chapter's first source. A source that fails is
        removed from its chapters' sources, so that the next round asks another.

        Raises:
            LostChapterError: A chapter has no source left.
        """
        groups: dict[str, list[int]] = {}
        for number in rest:
            sources = resolved.sources.get(requests[number][0].name, [])
            if not sources:
                raise LostChapterError(
                    requests[number][0].name, "neither a holder nor the durable tier has it"
                )
            groups.setdefault(sources[0], []).append(number)
        parts = {source: [requests[number] for number in numbers] for source, numbers in groups.items()}
        first, *further = parts
        parallel = {source: self._pool.submit(self._read, source, parts[source]).result for source in further}
        # The first source is read on this thread, because handing a call to another one costs a tenth of it.
        read_first = partial(self._read, first, parts[first])
        calls: dict[str, Callable[[], list[bytes]]] = {first: read_first, **parallel}
        for source, call in calls.items():
            numbers = groups[source]
            try:
                for number, data in zip(numbers, call(), strict=True):
                    out[number] = data
                self.from_holders += len(numbers)
            except HistoryError as error:
                log.warning("a source of chapters failed", source=source, error=str(error))
                for name in {requests[number][0].name for number in numbers}:
                    resolved.sources[name] = [holder for holder in resolved.sources[name] if holder != source]

    def _read(self, source: str, requests: Sequence[ChapterRange]) -> list[bytes]:
        if source != DURABLE:
            return self._holders.read(source, requests)
        assert self._durable is not None
        out: list[bytes] = [b""] * len(requests)
        for name in dict.fromkeys(chapter.name for chapter, _ in requests):
            numbers = [number for number, (chapter, _) in enumerate(requests) if chapter.name == name]
            ranges = [requests[number][1] for number in numbers]
            data = self._durable.read(requests[numbers[0]][0], ranges)
            for number, place, part in zip(numbers, ranges, data, strict=True):
                out[number] = place.checked(part, f"{name} from the durable tier")
        return out

    def _from_directory(self, camera: str, requests: Sequence[ChapterRange], out: list[bytes | None]) -> None:
        """Put the requested scenes that Redis has into `out`, if they match the checksums in the heads."""
        if self._scenes is None:
            return
        blocks: dict[str, dict[int, int]] = {}
        chapters: dict[str, Chapter] = {}
        for number, (chapter, place) in enumerate(requests):
            layers = {own.offset: layer for layer, (own, _) in enumerate(chapter.head.scenes)}
            if chapter.head.sealed and place.file == chapter.head.catalogue and place.offset in layers:
                blocks.setdefault(chapter.name, {})[layers[place.offset]] = number
                chapters[chapter.name] = chapter
        scenes = self._scenes.scenes(camera, {name: list(numbers) for name, numbers in blocks.items()})
        for name, values in scenes.items():
            for number, value in zip(blocks[name].values(), values, strict=True):
                try:
                    out[number] = None if value is None else requests[number][1].checked(value, name)
                    self.from_redis += value is not None
                except HistoryError:
                    log.warning("scenes in Redis do not match the holder's checksums", chapter=name)


def _by_camera(listed: Iterable[tuple[str, Chapter]], model_digest: str) -> dict[str, Resolved]:
    """Group chapters by camera, each in its newest version only. Sources are sorted, the durable tier
    last."""
    out: dict[str, Resolved] = {}
    best: dict[str, Chapter] = {}
    listed = list(listed)
    for _, chapter in listed:
        newest = best.get(chapter.name)
        if newest is None or newest.head.version < chapter.head.version:
            best[chapter.name] = chapter
    for source, chapter in listed:
        resolved = out.setdefault(
            str(chapter.head.about["camera"]), Resolved(str(chapter.head.about["camera"]))
        )
        if chapter.head.version == best[chapter.name].head.version:
            resolved.sources.setdefault(chapter.name, []).append(source)
    for chapter in best.values():
        resolved = out[str(chapter.head.about["camera"])]
        chapter_digest = str(chapter.head.about.get("model_digest", ""))
        if model_digest and chapter_digest and chapter_digest != model_digest:
            resolved.missing.append(f"{chapter.name}: computed by another model, {chapter_digest}")
        else:
            resolved.chapters.append(chapter)
    for resolved in out.values():
        resolved.chapters, omitted = without_doubles(resolved.chapters)
        resolved.missing += [f"{name}: {cause}" for name, cause in omitted.items()]
        for sources in resolved.sources.values():
            sources.sort(key=lambda source: (source == DURABLE, source))
    return out
