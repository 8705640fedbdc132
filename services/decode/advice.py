"""Warnings about cameras that are not set up correctly."""

from collections.abc import Callable

import structlog

from lookout.runtime.worker import Record
from lookout.services.decode.claims import Claims
from lookout.services.decode.epoch import Seen

_log = structlog.get_logger(__name__)


class Advice:
    """Logs warnings about cameras, each at most once per camera in `keep_s` seconds.

    Args:
        keep_s: Seconds between two equal warnings about a camera.
        clock: Monotonic seconds.
    """

    def __init__(self, keep_s: float, clock: Callable[[], float]) -> None:
        self._keep_s, self._clock = keep_s, clock
        self._claims = Claims(keep_s, clock)

    def release(self, partition: int) -> None:
        """Drop a partition's claims on cameras, because the partition now belongs to another worker."""
        self._claims.release(partition)

    def two_partitions(self, record: Record) -> bool:
        """Warn if a camera's records arrive in two partitions, because later stages would then mix its
        streams.

        Returns:
            Whether this call noticed it first; True only once per case, for counting.
        """
        claimant = self._claims.take(record.camera, record.partition)
        if claimant is None:
            return False
        _log.warning(
            "records with one camera id arrive in two partitions: give every camera its own id, and use one "
            "producer (or one partitioner) per camera; expected once after partitions are added",
            camera=record.camera,
            partitions=sorted((claimant, record.partition)),
            advice=True,
        )
        return True

    def two_cameras(self, seen: Seen, camera: str) -> None:
        """Warn that two cameras use the same id."""
        self._warn(seen, camera, "two cameras send under the same id: give every camera its own id")

    def late(self, seen: Seen, camera: str) -> None:
        """Warn that segments arrive late."""
        self._warn(
            seen,
            camera,
            "segments arrive after later ones were written, because they were sent twice or out of order: "
            "send each segment once, in order",
        )

    def _warn(self, seen: Seen, camera: str, text: str) -> None:
        now = self._clock()
        if now >= seen.warned_until.get(text, 0.0):
            seen.warned_until[text] = now + self._keep_s
            _log.warning(text, camera=camera, advice=True)
