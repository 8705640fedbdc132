"""Keeps incidents' evidence beyond Kafka's retention, on demand and up to a number of bytes."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from typing import Final

from lookout.past.erasures import Fence
from lookout.rules.masks import Masks
from lookout.runtime.observe import logs
from lookout.services.gateway.history.wanted import Wanted
from lookout.services.gateway.media.facts import clip_facts, joined_clip
from lookout.services.gateway.media.kept_store import CLIP, PICTURE, KeptStore
from lookout.services.gateway.media.store import LONGEST_US, Media, PictureSize, Piece, Sees
from lookout.services.gateway.problems import ProblemError
from lookout.v1.alerts_pb2 import Alert
from lookout.v1.erasures_pb2 import Erasure
from lookout.v1.lineage_pb2 import RecordRef
from lookout.v1.media_pb2 import KeptEvidence

#: seconds of footage before and after the incident in a clip
PAD_S: Final = 5.0
WIDTH: Final = 1280
#: microseconds after an incident's end after which no more of its footage arrives
_SETTLED_US: Final = 120_000_000


class Keeping:
    """Keeps incidents' pictures and clips. Thread-safe.

    Args:
        store: Stores the pictures and clips.
        media: Makes the pictures and clips.
        fence: Returns the erasures in force.
        limit: Maximum bytes to keep.
        days: Days after an incident's end for which to keep its evidence.
        masks: The cameras' privacy masks.
        newest: Returns an incident's newest alert; None if the history has none.
        wanted: Incidents whose watches ask for their evidence to be kept; None: watches cannot ask for this.
        clock: Unix seconds.
    """

    def __init__(
        self,
        store: KeptStore,
        media: Media,
        fence: Callable[[], Fence],
        *,
        limit: int,
        days: float,
        masks: Masks,
        newest: Callable[[str], Alert | None],
        wanted: Wanted | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.store, self._media, self._fence = store, media, fence
        self._limit, self._days, self._newest, self._clock = limit, days, newest, clock
        self._wanted, self._masks = wanted, masks
        # Held while the store changes, so that no evidence that is being written survives a confirmed
        # erasure.
        self._lock = threading.Lock()
        self._erased: list[Erasure] = []  # erasures done here, which the history may not know yet
        # Evidence of erased times that a sweep removed before `erase` was called. The erasure's receipt must
        # count it, too.
        self._swept = deque[KeptEvidence](maxlen=10_000)

    def find(self, incident: str, sees: Sees) -> KeptEvidence | None:
        """Return an incident's kept evidence; None if nothing is kept, the caller may not see it, or it was
        erased.

        Raises:
            TransientError: The store does not answer.
        """
        kept = self.store.find(incident)
        visible = kept is not None and all(sees(kept.camera, tenant) for tenant in kept.tenants)
        return kept if kept is not None and visible and not _is_erased(self._fence(), kept) else None

    def keep(self, alert: Alert, sees: Sees, actor: str) -> KeptEvidence:
        """Store an incident's picture and clip, unless both are already kept completely; return the kept
        evidence.

        Args:
            alert: The incident's newest alert.
            sees: What the caller may see.
            actor: Who asked to keep the evidence.

        Raises:
            ProblemError: There is neither a picture nor a clip, the footage was erased, or the store is full.
            TransientError: Kafka or the store does not answer.
        """
        kept_before = self.store.find(alert.incident)
        if kept_before is not None and kept_before.complete and self._is_masked(kept_before):
            return kept_before  # not made again, because Kafka may have less of the footage by now
        made = [
            _tried(lambda: self._media.evidence(alert, sees, PictureSize(WIDTH))),
            _tried(lambda: self._clip(alert, sees)),
        ]
        pieces = [piece for piece in made if isinstance(piece, Piece)]
        if not pieces:
            raise next(piece for piece in made if isinstance(piece, ProblemError))
        kept = self._evidence(alert, actor, made, pieces)
        with self._lock:
            _, _, stored = self.store.list()
            if stored - (kept_before.bytes if kept_before else 0) + kept.bytes > self._limit:
                raise ProblemError(
                    409,
                    f"incident {alert.incident}: its {kept.bytes} bytes of evidence do not fit, because "
                    f"{stored} of {self._limit} bytes are in use: release another incident, or raise "
                    "LOOKOUT_KEEP_BYTES",
                )
            if _is_erased(self._fence(), kept) or _is_erased(Fence(self._erased), kept):
                raise ProblemError(404, f"incident {alert.incident}: its footage was erased")
            picture, clip = (piece.data if isinstance(piece, Piece) else None for piece in made)
            self.store.put(kept, clip, picture)
        return kept

    def release(self, incident: str) -> None:
        """Remove an incident's kept evidence.

        Raises:
            TransientError: The store does not answer.
        """
        with self._lock:
            self.store.remove(incident)

    def _is_masked(self, kept: KeptEvidence) -> bool:
        """Return whether the stored evidence hides everything that the camera's mask hides now."""
        return not self._masks.lacks(kept.camera, kept.masks)

    def clip(self, kept: KeptEvidence) -> Piece | None:
        """Return the kept clip; None if there is none, or if it lacks the camera's current mask.

        Raises:
            TransientError: The store does not answer.
        """
        has_clip = kept.HasField("clip") and self._is_masked(kept)
        data = self.store.read(kept.incident, CLIP) if has_clip else None
        if data is None:
            return None
        return replace(self._piece(kept, data), clip=joined_clip(kept.clip))

    def picture(self, kept: KeptEvidence) -> Piece | None:
        """Return the kept picture; None if there is none, or if it lacks the camera's current mask.

        Raises:
            TransientError: The store does not answer.
        """
        has_picture = kept.picture and self._is_masked(kept)
        data = self.store.read(kept.incident, PICTURE) if has_picture else None
        return None if data is None else self._piece(kept, data)

    def erase(self, erasure: Erasure) -> int:
        """Remove all evidence that shows part of an erased time.

        Returns:
            The number of incidents whose evidence was removed.

        Raises:
            TransientError: The store does not answer; erase again.
        """
        fence, count = Fence([erasure]), 0
        with self._lock:
            self._erased.append(erasure)
            evidence, halves, _ = self.store.list()
            hit = {kept.incident for kept in (*evidence, *self._swept) if _is_erased(fence, kept)}
            # An entry without a manifest may belong to any camera, so it is removed, too.
            for incident in hit | halves:
                self.store.remove(incident)
                count += 1
            for kept in [kept for kept in self._swept if kept.incident in hit]:
                self._swept.remove(kept)
        return count

    def sweep(self) -> None:
        """Store evidence that watches ask for, and remove evidence that is too old or was erased.

        Evidence that was stored while its incident was open, or without the current mask, is stored again
        once the incident is complete.

        Raises:
            TransientError: Kafka or the store does not answer.
        """
        self._keep_wanted()
        now_us, fence = round(self._clock() * 1e6), self._fence()
        evidence, _, _ = self.store.list()
        for kept in evidence:
            is_erased = _is_erased(fence, kept)
            if is_erased or kept.alert.end.ToMicroseconds() < now_us - self._days * 86_400e6:
                self._sweep_away(kept, is_erased)
            elif (
                not (kept.complete and self._is_masked(kept))
                and (alert := self._newest(kept.incident)) is not None
                and _is_whole(alert, now_us)
            ):
                try:
                    self.keep(alert, lambda *_: True, kept.kept_by)
                except ProblemError as error:  # the evidence stored earlier stays
                    logs.get("gateway").info(
                        "evidence could not be stored again", incident=kept.incident, error=str(error)
                    )

    def _sweep_away(self, kept: KeptEvidence, is_erased: bool) -> None:
        with self._lock:
            self.store.remove(kept.incident)
            if is_erased:
                self._swept.append(kept)

    def _keep_wanted(self) -> None:
        """Store the evidence of incidents whose watches ask for it. This happens once per incident, so
        evidence that somebody removes later stays removed.
        """
        if self._wanted is None:
            return
        for incident, watch in self._wanted.incidents().items():
            alert = self._newest(incident)
            try:
                if alert is not None:
                    self.keep(alert, lambda *_: True, f"watch {watch}")
            except ProblemError as error:
                logs.get("gateway").warning(
                    "cannot keep evidence that a watch asks for",
                    watch=watch,
                    incident=incident,
                    error=str(error),
                )
            self._wanted.remove(incident)

    def _clip(self, alert: Alert, sees: Sees) -> Piece:
        return self._media.clip(alert.camera, *clip_span(alert, PAD_S), sees, near_of(alert))

    def _evidence(
        self, alert: Alert, actor: str, made: list[Piece | ProblemError], pieces: list[Piece]
    ) -> KeptEvidence:
        picture, clip = made
        kept = KeptEvidence(
            incident=alert.incident,
            camera=alert.camera,
            tenants=sorted({tenant for piece in pieces for tenant in piece.tenants}),
            kept_by=actor,
            complete=_is_whole(alert, round(self._clock() * 1e6)),
            picture=isinstance(picture, Piece),
            clip=clip_facts(alert.camera, clip) if isinstance(clip, Piece) else None,
            bytes=sum(len(piece.data) for piece in pieces),
            alert=alert,
            masks=sorted(frozenset.intersection(*(piece.masks for piece in pieces))),
        )
        kept.kept.FromMilliseconds(round(self._clock() * 1000))
        kept.start.FromMicroseconds(min(begin for piece in pieces for begin, _ in piece.spans))
        kept.end.FromMicroseconds(max(end for piece in pieces for _, end in piece.spans))
        return kept

    def _piece(self, kept: KeptEvidence, data: bytes) -> Piece:
        span = kept.start.ToMicroseconds(), kept.end.ToMicroseconds()
        return Piece(data, frozenset(kept.tenants), [span], masks=frozenset(kept.masks))


def clip_span(alert: Alert, pad_s: float) -> tuple[int, int]:
    """Return the begin and end of an incident's clip in Unix microseconds; a clip has at most the first five
    minutes.

    Args:
        alert: The incident's newest alert.
        pad_s: Seconds added before and after the incident.
    """
    begin_us = alert.start.ToMicroseconds() - round(pad_s * 1e6)
    return begin_us, min(alert.end.ToMicroseconds() + round(pad_s * 1e6), begin_us + LONGEST_US)


def near_of(alert: Alert) -> RecordRef | None:
    """Return a reference to a record of about the incident's time; None if the alert has no evidence."""
    return alert.evidence[0].record if alert.evidence else None


def _tried(make: Callable[[], Piece]) -> Piece | ProblemError:
    try:
        return make()
    except ProblemError as error:
        return error


def _is_whole(alert: Alert, now_us: int) -> bool:
    """Return whether an incident is closed and no more footage of its time will arrive."""
    return alert.kind == Alert.KIND_CLOSED and alert.end.ToMicroseconds() < now_us - _SETTLED_US


def _is_erased(fence: Fence, kept: KeptEvidence) -> bool:
    return fence.hides(kept.camera, kept.start.ToMicroseconds(), kept.end.ToMicroseconds()) is not None
