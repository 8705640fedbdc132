"""Makes clips and pictures on demand, and caches them in memory for a while."""

from __future__ import annotations

import io
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

import numpy as np
from cachetools import TLRUCache, TTLCache
from PIL import Image

from lookout.past.erasures import Fence
from lookout.rules.masks import Masks
from lookout.services.gateway.media.footage import FilmedSegment, Footage
from lookout.services.gateway.problems import ProblemError
from lookout.services.gateway.settings import MaskedClips
from lookout.streams import filmed_pictures
from lookout.v1.alerts_pb2 import Alert
from lookout.v1.lineage_pb2 import RecordRef
from lookout.video.motion.grids import Mask
from lookout.video.motion.types import U8
from lookout.video.sandbox import SandboxPool, SandboxSettings
from lookout.video.segments.types import CodecError, JoinedClip, JoinRequest, Reason
from lookout.wire import tenant_of

#: longest clip, in microseconds of footage
LONGEST_US: Final = 300_000_000
#: time of the first picture in live fragments, in microseconds; above 0, because reordered pictures have
#: earlier decoding times
LIVE_US: Final = 60_000_000
_ENDLESS_US: Final = 1 << 62
#: maximum microseconds between a requested time and its picture
NEAREST_US: Final = 5_000_000
#: maximum bytes of a clip's segments
_CLIP_BYTES: Final = 128 << 20
_CACHE_BYTES: Final = 256 << 20
#: seconds for which a piece is cached: while footage of its time may still arrive, and afterwards
_OPEN_S: Final = 10.0
_CLOSED_S: Final = 600.0
#: footage arrives at most this many microseconds after it was filmed
_SETTLED_US: Final = 120_000_000
_QUALITY: Final = 85
_DIMMED: Final = 4
_WORKERS: Final = 2
#: maximum CPU seconds of a decoder process; re-encoding five minutes of a masked camera takes longest
_CPU_S: Final = 240.0
#: seconds within which one person's repeated views of the same thing count as one view
_VIEW_S: Final = 60.0

#: given a camera and a tenant, returns whether the caller may see the tenant's camera of this id
Sees = Callable[[str, str], bool]


@dataclass(frozen=True, slots=True)
class PictureSize:
    """How to show a picture.

    Attributes:
        width: Largest width in pixels.
        patches: Whether to dim parts that were not computed.
        whole: Whether to show the whole picture as filmed, instead of the model's input.
    """

    width: int
    patches: bool = False
    whole: bool = False


@dataclass(frozen=True, slots=True)
class Piece:
    """A clip or a picture.

    Attributes:
        data: The file's bytes.
        tenants: The tenants of the footage.
        spans: The times shown, in Unix microseconds.
        clip: Facts about the clip; None: the piece is a picture.
        settled: Whether no later footage can change the piece.
        masks: Fingerprints of the masks that hide part of it.
    """

    data: bytes = field(repr=False)
    tenants: frozenset[str]
    spans: Sequence[tuple[int, int]]
    clip: JoinedClip | None = None
    settled: bool = True
    masks: frozenset[str] = frozenset()


class Media:
    """Makes and caches clips and pictures. Thread-safe; threads that ask for the same piece share the
    work.

    Args:
        footage: Reads segments.
        fence: Returns the erasures that the history knows.
        masks: The privacy masks that the history knows.
        masked_clips: What to do with clips of masked footage: re-encode or refuse them.
    """

    def __init__(
        self,
        footage: Footage,
        fence: Callable[[], Fence],
        masks: Masks,
        masked_clips: MaskedClips = "encode",
    ) -> None:
        self._footage, self._fence = footage, fence
        self._masks, self._masked_clips = masks, masked_clips
        self._sandbox = SandboxPool(_WORKERS, SandboxSettings(cpu_s=_CPU_S, wall_s=1.5 * _CPU_S))
        self._cache: TLRUCache[Any, Piece] = TLRUCache(
            _CACHE_BYTES,
            ttu=lambda _key, piece, now: now + (_CLOSED_S if piece.settled else _OPEN_S),
            getsizeof=lambda piece: len(piece.data),
        )
        self._lock = threading.Lock()
        self._views: TTLCache[tuple[str, ...], bool] = TTLCache(10_000, ttl=_VIEW_S)
        self._making: dict[Any, threading.Lock] = {}

    def close(self) -> None:
        """End the decoder processes and close the connections to Kafka."""
        self._sandbox.close()
        self._footage.close()

    def clip(self, camera: str, from_us: int, to_us: int, sees: Sees, near: RecordRef | None = None) -> Piece:
        """Return a clip of what a camera filmed in a time range.

        Args:
            camera: The camera's id.
            from_us: Begin of the range, Unix microseconds.
            to_us: End of the range, excluded.
            sees: What the caller may see.
            near: A frames record or verdict of about this time.

        Raises:
            ProblemError: There is no footage of this time that the caller may see, or it cannot be made into
                a clip.
        """
        key = ("clip", camera, from_us, to_us)
        return self._checked(camera, self._made(key, lambda: self._clip(camera, from_us, to_us, near)), sees)

    def evidence(self, alert: Alert, sees: Sees, size: PictureSize) -> Piece:
        """Return an incident's picture: the first piece of evidence in its newest alert that Kafka still
        has.

        An alert about a camera's fault has no evidence, so its picture is the one nearest to the fault's
        begin.

        Args:
            alert: The alert.
            sees: What the caller may see.
            size: How to show the picture.

        Raises:
            ProblemError: The alert has no evidence, or Kafka no longer has it.
        """
        for evidence in alert.evidence:
            place = evidence.record.partition, evidence.record.offset, evidence.row

            def make(ref: RecordRef = evidence.record, row: int = evidence.row) -> Piece | None:
                filmed = self._footage.at(alert.camera, ref)
                return None if filmed is None else self._picture(filmed, row, size)

            piece = self._made(("evidence", alert.camera, *place, size), make)
            if piece is not None:
                return self._checked(alert.camera, piece, sees)
        if alert.cause:
            return self.picture(alert.camera, alert.start.ToMicroseconds(), sees, size)
        raise ProblemError(404, f"incident {alert.incident}: Kafka no longer has a picture of it")

    def picture(
        self, camera: str, at_us: int, sees: Sees, size: PictureSize, near: RecordRef | None = None
    ) -> Piece:
        """Return a camera's sampled frame that is nearest to a time.

        Args:
            camera: The camera's id.
            at_us: The time, Unix microseconds.
            sees: What the caller may see.
            size: How to show the picture.
            near: A frames record or verdict of about this time.

        Raises:
            ProblemError: There is no footage of this time that the caller may see.
        """
        key = ("picture", camera, at_us, size)
        return self._checked(camera, self._made(key, lambda: self._nearest(camera, at_us, size, near)), sees)

    def live(self, filmed: FilmedSegment, *, newest: bool) -> Piece:
        """Return a segment as fragments that can continue earlier ones, with the first picture at
        `LIVE_US`.

        Args:
            filmed: The segment.
            newest: Whether to begin at the segment's last keyframe with a sampled picture after it, instead
                of at its start.

        Raises:
            ProblemError: The segment cannot be made into fragments, or was erased.
        """
        camera = filmed.record.camera
        key = ("live", camera, filmed.place, newest)
        return self._checked(camera, self._made(key, lambda: self._live(filmed, newest)), lambda *_: True)

    def is_new_view(self, *view: str) -> bool:
        """Count a view; return False if the same view was already counted within the last minute.

        Args:
            view: What identifies the view: for example the viewer, the address, and what is viewed.
        """
        with self._lock:
            is_new = view not in self._views
            self._views.setdefault(view, True)
        return is_new

    def _checked(self, camera: str, piece: Piece | None, sees: Sees) -> Piece:
        """Return a piece if the caller may see all of it and none of it was erased; otherwise raise
        `ProblemError`.
        """
        if (
            piece is None
            or not all(sees(camera, tenant) for tenant in piece.tenants)
            or _touches(self._fence(), camera, piece)
            or self._masks.lacks(camera, piece.masks)
        ):
            raise ProblemError(404, f"camera {camera}: there is no footage of this time that you may see")
        return piece

    def _made(self, key: tuple[Any, ...], make: Callable[[], Piece | None]) -> Piece | None:
        """Return a piece from the cache; if it is not there, make it. `key` begins with the kind and the
        camera. None: there is no such piece.
        """
        with self._lock:
            making = self._making.setdefault(key, threading.Lock())
        try:
            with making:
                piece = self._known(key)
                if piece is None and (piece := make()) is not None:
                    with self._lock:
                        if len(piece.data) <= self._cache.maxsize:
                            self._cache[key] = piece
                return piece
        finally:
            with self._lock:
                self._making.pop(key, None)

    def _known(self, key: tuple[Any, ...]) -> Piece | None:
        """Return a piece from the cache; None if it is not there. A piece whose footage was erased or masked
        in the meantime is dropped.
        """
        fence = self._fence()
        with self._lock:
            piece = self._cache.get(key)
            if piece is not None and (
                _touches(fence, key[1], piece) or self._masks.lacks(key[1], piece.masks)
            ):
                del self._cache[key]
                return None
        return piece

    def _clip(self, camera: str, from_us: int, to_us: int, near: RecordRef | None) -> Piece | None:
        filmed_segments = self._shown(camera, self._footage.between(camera, from_us, to_us, near))
        segments = tuple(self._footage.clip_segments(filmed_segments, _CLIP_BYTES))
        if not segments:
            return None
        request = JoinRequest(segments, from_us, to_us, _CLIP_BYTES)
        clip, masks = self._joined(filmed_segments, request)
        settled = to_us < time.time() * 1e6 - _SETTLED_US
        spans = [(filmed.start_us, filmed.end_us) for filmed in filmed_segments]
        tenants = _tenants(filmed_segments)
        return Piece(clip.data, tenants, spans, replace(clip, data=b""), settled, masks)

    def _live(self, filmed: FilmedSegment, newest: bool) -> Piece | None:
        segments = tuple(self._footage.clip_segments([filmed], _CLIP_BYTES))
        if not segments:
            return None
        frames = filmed.record.segment.frames
        # A clip begins with the last keyframe at or before its range.
        from_us = frames[-1].time_us + filmed.record.wall_offset_us if newest and frames else 0
        request = JoinRequest(segments, from_us, _ENDLESS_US, _CLIP_BYTES, LIVE_US, fragment=1)
        clip, masks = self._joined([filmed], request)
        span = (filmed.start_us, filmed.end_us)
        return Piece(clip.data, _tenants([filmed]), [span], replace(clip, data=b""), False, masks)

    def _joined(
        self, filmed_segments: Sequence[FilmedSegment], request: JoinRequest
    ) -> tuple[JoinedClip, frozenset[str]]:
        """Join segments into one file; return the file, and the fingerprints of the masks that hide part of
        it.
        """
        filmed = filmed_segments[0]
        camera = filmed.record.camera
        names = dict.fromkeys(name for segment in filmed_segments for name in segment.record.labels.masks)
        hidden = self._masks.shown(camera, names)
        if hidden.mask is not None and self._masked_clips == "refuse":
            raise ProblemError(
                404,
                f"camera {camera} has a privacy mask, and this gateway makes no clips of masked footage "
                f"(LOOKOUT_MASKED_CLIPS): use the pictures at /v1/cameras/{camera}/frames/TIME.jpg",
            )
        try:
            clip = self._sandbox.join(replace(request, mask=hidden.mask))
            return clip, frozenset(hidden.names)
        except CodecError as error:
            if error.reason is Reason.NO_DECODER:
                codec = filmed.record.segment.facts.codec
                raise ProblemError(
                    404,
                    f"camera {camera} sends {codec}, which browsers do not play, so there are no clips: "
                    f"use the pictures at /v1/cameras/{camera}/frames/TIME.jpg",
                ) from None
            detail = f"camera {camera}: this time cannot be made into a clip: {error.detail}"
            raise ProblemError(404, detail) from None

    def _shown(self, camera: str, filmed_segments: Sequence[FilmedSegment]) -> list[FilmedSegment]:
        fence = self._fence()
        return [
            filmed for filmed in filmed_segments if not fence.hides(camera, filmed.start_us, filmed.end_us)
        ]

    def _nearest(self, camera: str, at_us: int, size: PictureSize, near: RecordRef | None) -> Piece | None:
        span = at_us - NEAREST_US, at_us + NEAREST_US
        filmed_segments = self._shown(camera, self._footage.between(camera, *span, near))
        frames = [
            (abs(frame.time_us + filmed.record.wall_offset_us - at_us), place, row)
            for place, filmed in enumerate(filmed_segments)
            for row, frame in enumerate(filmed.record.segment.frames)
        ]
        if not frames or min(frames)[0] > NEAREST_US:
            return None
        _, place, row = min(frames)
        return self._picture(filmed_segments[place], row, size)

    def _picture(self, filmed: FilmedSegment, row: int, size: PictureSize) -> Piece | None:
        segment = filmed.record.segment
        data = None if row >= len(segment.frames) else self._footage.segment(filmed)
        if data is None:
            return None
        camera = filmed.record.camera
        computed = self._footage.computed(filmed, row) if size.patches else None
        if size.patches and computed is None:
            raise ProblemError(
                404,
                f"camera {camera}: no record says which parts of this picture were computed: "
                "ask without overlay",
            )
        hidden = self._masks.shown(camera, filmed.record.labels.masks)
        try:
            pictures = filmed_pictures(
                self._sandbox, data, segment, [row], size.width, mask=hidden.mask, whole=size.whole
            )
        except CodecError as error:
            detail = f"camera {camera}: the picture cannot be decoded: {error.detail}"
            raise ProblemError(404, detail) from None
        at_us = segment.frames[row].time_us + filmed.record.wall_offset_us
        picture = pictures[row] if computed is None else dimmed(pictures[row], computed)
        masks = frozenset(hidden.names)
        return Piece(jpeg(picture), _tenants([filmed]), [(at_us, at_us + 1)], masks=masks)


def dimmed(pixels: U8, computed: Mask) -> U8:
    """Return a picture in which the parts that were not computed are darkened.

    Args:
        pixels: uint8 [height, width, 3].
        computed: bool [rows, columns], for a grid over the whole picture.
    """
    height, width = pixels.shape[:2]
    rows = np.arange(height) * computed.shape[0] // height
    columns = np.arange(width) * computed.shape[1] // width
    return np.where(computed[rows][:, columns, None], pixels, pixels // _DIMMED).astype(np.uint8)


def jpeg(pixels: U8) -> bytes:
    """Encode a picture as JPEG.

    Args:
        pixels: uint8 [height, width, 3], RGB.
    """
    buffer = io.BytesIO()
    Image.fromarray(np.asarray(pixels)).save(buffer, "JPEG", quality=_QUALITY)
    return buffer.getvalue()


def _touches(fence: Fence, camera: str, piece: Piece) -> bool:
    """Return whether a piece shows something that was erased."""
    return any(fence.hides(camera, *span) is not None for span in piece.spans)


def _tenants(filmed_segments: Sequence[FilmedSegment]) -> frozenset[str]:
    return frozenset(tenant_of(filmed.record.labels.tenant) for filmed in filmed_segments)
