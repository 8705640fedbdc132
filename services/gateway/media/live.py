"""Live view: a camera's newest segments as an endless fragmented MP4.

One thread follows frames.v1 while somebody watches. Nothing is buffered for viewers: a slow viewer skips
segments, and a viewer that accepts no data for a while is dropped.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Any, Final

from confluent_kafka import KafkaException
from starlette.responses import StreamingResponse
from starlette.types import Message, Receive, Scope, Send

from lookout.errors import LookoutError, RecordsGoneError
from lookout.runtime.observe import logs
from lookout.runtime.worker import FetchSettings
from lookout.runtime.worker.record_reader import record_of
from lookout.runtime.worker.topic_reader import End, TopicReader
from lookout.services.gateway.media.footage import FilmedSegment, filmed_segment
from lookout.services.gateway.media.store import LIVE_US, Media, Sees
from lookout.services.gateway.principal import RECHECK_S
from lookout.services.gateway.problems import ProblemError
from lookout.video.segments.fragments import moved, split
from lookout.video.segments.types import JoinedClip
from lookout.wire import FRAMES, tenant_of

#: maximum number of concurrent live views: in total, per tenant, and per viewer
VIEWS: Final = 64
_TENANT_VIEWS: Final = 16
_VIEWER_VIEWS: Final = 4
#: microseconds by which a viewer may lag behind the newest footage
BEHIND_US: Final = 3_000_000
#: seconds without a segment after which a camera counts as silent
SILENT_S: Final = 30.0
#: seconds that a new viewer waits for a segment
_FIRST_S: Final = 10.0
#: seconds without accepted data after which a viewer is dropped
_SLOW_S: Final = 10.0
#: seconds for which frames.v1 is still followed after the last viewer has left
_LINGER_S: Final = 30.0
#: bytes per write; nothing more is buffered for a viewer
_SLICE: Final = 64 << 10
_PAUSE_S: Final = 1.0
_ANSWER_S: Final = 10.0


@dataclass(frozen=True, slots=True)
class Viewer:
    """A viewer of live views.

    Attributes:
        name: The name under which the viewer's views are counted.
        sees: What the viewer may see.
        holds: Returns whether the viewer still has this right; called repeatedly during a view.
    """

    name: str
    sees: Sees
    holds: Callable[[], bool]


class _Camera:
    """A camera's segments within `BEHIND_US` of its newest segment, and when that segment arrived."""

    def __init__(self) -> None:
        self.recent: deque[FilmedSegment] = deque()
        self.arrived = 0.0

    def add(self, filmed: FilmedSegment, arrived: float) -> None:
        self.recent.append(filmed)
        self.arrived = max(self.arrived, arrived)
        while sum(map(_length_us, self.recent)) - _length_us(self.recent[0]) > BEHIND_US:
            self.recent.popleft()


def _length_us(filmed: FilmedSegment) -> int:
    return filmed.record.segment.end_us - filmed.record.segment.start_us


class Live:
    """Serves live views of cameras. Thread-safe.

    Args:
        settings: How to reach Kafka.
        media: Makes fragments from segments.
    """

    def __init__(self, settings: FetchSettings, media: Media) -> None:
        self._media = media
        self._reader = TopicReader(settings, "live", options={"auto.offset.reset": "latest"})
        self._cameras: dict[str, _Camera] = {}
        self._views: list[View] = []
        self._unread: set[int] = set()  # partitions that were not yet read up to their ends
        self._changed = threading.Condition()
        self._viewed_at = 0.0
        self._stopped = False

    def run(self) -> None:
        """Follow frames.v1 while somebody watches, until `stop`."""
        while not self._stopped:
            with self._changed:
                self._changed.wait_for(lambda: self._stopped or self._views)
            try:
                self._follow()
            except (KafkaException, RecordsGoneError) as error:
                logs.get("gateway").warning("live views are waiting for Kafka", error=str(error)[:300])
                self._reader.close()
                time.sleep(_PAUSE_S)
        self._reader.close()

    def stop(self) -> None:
        """End all views."""
        with self._changed:
            self._stopped = True
            self._changed.notify_all()
            for view in self._views:
                view.wake()

    async def open(self, camera: str, viewer: Viewer) -> View:
        """Start a view at the newest keyframe. The view counts towards the limits until its `close`.

        Args:
            camera: The camera's id.
            viewer: The viewer.

        Raises:
            ProblemError: The camera sends nothing that the viewer may see or a browser can play, or there are
                too many views.
        """
        view = View(self, self._media, camera, viewer)
        with self._changed:
            count = sum(1 for other in self._views if other.viewer.name == viewer.name)
            self._check_room("you have", count, _VIEWER_VIEWS)
            self._check_room("the gateway has", len(self._views), VIEWS)
            self._views.append(view)
            self._changed.notify_all()
        try:
            await view.begin()
            with self._changed:
                count = sum(1 for other in self._views if other.tenant == view.tenant and other is not view)
                self._check_room(f"tenant {view.tenant} has", count, _TENANT_VIEWS)
        except BaseException:
            view.close()
            raise
        return view

    def newest(self, camera: str) -> list[FilmedSegment]:
        """Return a camera's segments that are recent enough to show, oldest first."""
        with self._changed:
            known = self._cameras.get(camera)
            if known is None or self._unread or time.time() - known.arrived > SILENT_S:
                return []
            return list(known.recent)

    def forget(self, view: View) -> None:
        """Remove a view that has ended."""
        with self._changed:
            if view in self._views:
                self._views.remove(view)
                self._viewed_at = time.monotonic()

    @property
    def stopped(self) -> bool:
        """Whether `stop` was called."""
        return self._stopped

    @staticmethod
    def _check_room(who: str, count: int, limit: int) -> None:
        if count >= limit:
            detail = f"{who} {limit} live views, which is the limit: close one"
            raise ProblemError(429, detail, {"Retry-After": "5"})

    def _follow(self) -> None:
        partitions = self._reader.partitions(FRAMES.name, _ANSWER_S)
        since_ms = round((time.time() - SILENT_S) * 1000)
        starts = self._reader.at(FRAMES.name, partitions, since_ms, _ANSWER_S)
        with self._changed:
            self._unread = set(partitions)
        self._reader.read_from(FRAMES.name, starts)
        try:
            while self._is_watched():
                message = self._reader.next(0.5)
                if isinstance(message, End):
                    self._read_to_now(message.partition)
                    continue
                if message is None:
                    continue
                filmed = filmed_segment(record_of(message))
                if filmed is not None:
                    self._take(filmed, message.timestamp()[1] / 1000)
        finally:
            self._reader.stop_reading()
            with self._changed:
                self._cameras.clear()

    def _read_to_now(self, partition: int) -> None:
        with self._changed:
            if self._unread == {partition}:
                for view in self._views:
                    view.wake()
            self._unread.discard(partition)

    def _take(self, filmed: FilmedSegment, arrived: float) -> None:
        for frame in filmed.record.segment.frames:  # most of a record's bytes, and not used here
            frame.ClearField("motion")
            frame.ClearField("residual")
        camera = filmed.record.camera
        with self._changed:
            self._cameras.setdefault(camera, _Camera()).add(filmed, arrived)
            for view in self._views:
                if view.camera == camera:
                    view.wake()

    def _is_watched(self) -> bool:
        with self._changed:
            watched = bool(self._views) or time.monotonic() - self._viewed_at < _LINGER_S
            return watched and not self._stopped


class View:
    """A live view, made by `Live.open`.

    Attributes:
        camera: The camera's id.
        viewer: The viewer.
        tenant: The camera's tenant.
        clip: Codec and size of the video.
    """

    def __init__(self, live: Live, media: Media, camera: str, viewer: Viewer) -> None:
        self.camera, self.viewer, self.tenant = camera, viewer, ""
        self.clip: JoinedClip
        self._live, self._media = live, media
        self._loop, self._woken = asyncio.get_running_loop(), asyncio.Event()
        self._head = self._first = b""
        self._number = 1
        self._last: FilmedSegment | None = None
        self._ends_us = 0  # end of the footage sent so far, in the sent stream's time
        self._checked_at = self._loop.time()

    def wake(self) -> None:
        """Wake the view's thread, because a segment of the camera arrived or the gateway is stopping."""
        self._loop.call_soon_threadsafe(self._woken.set)

    def close(self) -> None:
        """End the view."""
        self._live.forget(self)

    async def begin(self) -> None:
        """Wait for the first segment.

        Raises:
            ProblemError: There is no segment that the viewer may see and a browser can play.
        """
        deadline = self._loop.time() + _FIRST_S
        while True:
            self._woken.clear()
            filmed = self._following()
            if filmed is not None:
                media = await asyncio.to_thread(self._media_of, filmed)
                self._first = self._head + (media or b"")
                return
            wait_s = deadline - self._loop.time()
            if wait_s <= 0 or self._live.stopped:
                raise ProblemError(
                    404, f"camera {self.camera} sends nothing now: run `lookout doctor` to see why"
                )
            await self._wait(wait_s)

    async def parts(self) -> AsyncIterator[bytes]:
        """Yield the view's bytes until the camera is silent, the viewer loses the right to see the camera, or
        the video's format changes.
        """
        data: bytes | None = self._first
        self._first = b""
        while data is not None:
            for begin in range(0, len(data), _SLICE):
                yield data[begin : begin + _SLICE]
            data = await self._next()

    async def _next(self) -> bytes | None:
        """Return the bytes of the next segment; None if the view ends."""
        silent_at = self._loop.time() + SILENT_S
        while not self._live.stopped:
            if self._loop.time() - self._checked_at > RECHECK_S:
                self._checked_at = self._loop.time()
                if not await asyncio.to_thread(self.viewer.holds):
                    return None
            self._woken.clear()
            filmed = self._following()
            if filmed is not None:
                try:
                    return await asyncio.to_thread(self._media_of, filmed)
                except (ProblemError, LookoutError) as error:  # damaged or erased, so skip the segment
                    logs.get("gateway").info(
                        "a segment was skipped in a live view", camera=self.camera, error=str(error)[:300]
                    )
                    continue
            if self._loop.time() > silent_at:
                return None
            await self._wait(1.0)
        return None

    async def _wait(self, seconds: float) -> None:
        try:
            await asyncio.wait_for(self._woken.wait(), seconds)
        except TimeoutError:
            return

    def _following(self) -> FilmedSegment | None:
        """Return the segment to show next, which is the newest for a new view, otherwise the oldest that was
        not shown yet; None if there is no such segment.
        """
        segments = [
            filmed
            for filmed in self._live.newest(self.camera)
            if self.viewer.sees(self.camera, tenant_of(filmed.record.labels.tenant))
            and self._is_later(filmed)
        ]
        if not segments:
            return None
        return segments[-1] if self._last is None else segments[0]

    def _is_later(self, filmed: FilmedSegment) -> bool:
        if self._last is None:
            return True
        new, old = filmed.record, self._last.record
        return (new.epoch, new.segment.start_us) > (old.epoch, old.segment.start_us)

    def _media_of(self, filmed: FilmedSegment) -> bytes | None:
        """Return a segment's fragments, shifted to their time in the sent stream; None if the fragments need
        a different header, which ends the view.
        """
        last, self._last = self._last, filmed
        piece = self._media.live(filmed, newest=last is None)
        clip = piece.clip
        assert clip is not None
        fragments = split(piece.data)
        if last is None:
            self.clip, self._head = clip, fragments.head
            self.tenant = min(piece.tenants)
            by_us = -fragments.begins_us
        elif fragments.head != self._head:
            return None
        else:
            by_us = self._ends_us - LIVE_US + _step_us(last, filmed, clip)
        self._ends_us = clip.end_us + by_us
        media = moved(fragments, by_us, self._number)
        self._number += fragments.count
        return media


def _step_us(before: FilmedSegment, filmed: FilmedSegment, clip: JoinedClip) -> int:
    """Return the time between two segments in microseconds. If it is a frame or longer, return 0, so that
    gaps in the footage are closed.
    """
    if before.record.epoch != filmed.record.epoch:
        return 0
    step_us = filmed.record.segment.start_us - before.record.segment.end_us
    return step_us if abs(step_us) * clip.frames < clip.end_us - LIVE_US else 0


class LiveResponse(StreamingResponse):
    """The HTTP response of a view. It always closes the view at the end, and drops a viewer that accepts no
    data for a while.

    Args:
        view: The view.
        more: Arguments of `StreamingResponse`.
    """

    def __init__(self, view: View, **more: Any) -> None:
        super().__init__(view.parts(), **more)
        self._view = view

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the response, then close the view."""
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._view.close()

    async def stream_response(self, send: Send) -> None:
        """Send the view's bytes."""

        async def send_soon(message: Message) -> None:
            async with asyncio.timeout(_SLOW_S):
                await send(message)

        try:
            await super().stream_response(send_soon)
        except TimeoutError:
            logs.get("gateway").info("dropped a live view that accepted no data", camera=self._view.camera)
