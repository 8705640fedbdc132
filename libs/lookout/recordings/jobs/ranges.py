"""Reads ranges of recordings behind a URL or in an object store, with retries and a byte limit."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from lookout.errors import BadRecordError, LookoutError, TransientError
from lookout.video.files.ranged import RangedSource

#: attempts to reach a host that does not answer, and seconds between two attempts
TRIES, PAUSE_S = 3, 2.0
#: a connection that breaks after at most this many bytes (or a quarter of the request, if that is less)
#: counts as a further failed attempt in a row
LEAST_BYTES = 1 << 16
#: maximum number of broken connections while one part is read
PART_TRIES = 30
#: maximum length of a version's name
_VERSION = 120


class SourceError(LookoutError):
    """The recording may not be read, does not exist, or changed while it was read."""


class AwayError(SourceError):
    """The recording's host is unavailable at the moment."""


class VersionRanges(Protocol):
    """Reads byte ranges of one version of a recording.

    Attributes:
        size: Size of the recording in bytes.
        version: Name of the version, such as an ETag.
    """

    size: int
    version: str

    def read(self, start: int, stop: int, take: Callable[[bytes], object]) -> None:
        """Pass the bytes [start, stop) to `take`, piece by piece, in one attempt. If the attempt fails,
        `take` may already have received the first bytes.

        Raises:
            BadRecordError: Another attempt would not help.
            TransientError: Another attempt may help.
        """


class RangedRecording(RangedSource):
    """A recording of which only the requested bytes are fetched. If a connection breaks, the next attempt
    continues after the last byte received.

    Args:
        name: The recording's name in messages.
        ranges: Reads the recording's bytes.
        limit: Maximum bytes that may be fetched between two calls of `renew`.
        pause: Waits this many seconds between attempts.
        away: Called when the host has failed so often that reading is given up.
    """

    def __init__(
        self,
        name: str,
        ranges: VersionRanges,
        limit: int,
        pause: Callable[[float], object],
        away: Callable[[], object] = lambda: None,
    ) -> None:
        super().__init__(name, ranges.size, self._fetched)
        self._ranges, self._limit, self._pause, self._away = ranges, limit, pause, away
        self._spent = self._failures = 0

    def renew(self) -> None:
        """Reset the counts of fetched bytes and broken connections. Call this when another part begins."""
        self._spent = self._failures = 0

    def _fetched(self, start: int, stop: int) -> bytes:
        self._spent += stop - start
        if self._spent > self._limit:
            raise SourceError(
                f"{self.name}: one part needs more than {self._limit} bytes: raise LOOKOUT_FETCH_BYTES"
            )
        body, failures = bytearray(), 0
        while len(body) < stop - start:
            before = len(body)
            try:
                self._ranges.read(start + before, stop, body.extend)
            except BadRecordError as error:
                raise SourceError(f"{self.name}: {error.detail}") from error
            except TransientError as error:
                # Counting connections that bring few bytes as failures limits the time that a host can cost
                # by sending one byte per connection.
                least = min(LEAST_BYTES, (stop - start - before) // 4)
                failures = failures + 1 if len(body) - before <= least else 1
                self._failures += 1
                if failures == TRIES or self._failures == PART_TRIES:
                    self._away()
                    raise AwayError(f"{self.name} cannot be read now ({error})") from error
                self._pause(PAUSE_S)
        return bytes(body)


class ObjectRanges:
    """Reads byte ranges of an object in an object store (`VersionRanges`).

    Args:
        store: An obstore store.
        key: The object's key.
    """

    def __init__(self, store: Any, key: str) -> None:
        self._store, self._key = store, key
        self.size, self.version = 0, ""

    def begin(self) -> bool:
        """Ask the store for the object's size and version. Call this before `read`.

        Returns:
            Whether the store names a version, without which the object cannot be read in ranges.

        Raises:
            BadRecordError: The object does not exist.
            TransientError: The store does not answer.
        """
        import obstore
        from obstore.exceptions import BaseError

        try:
            facts = obstore.head(self._store, self._key)
        except FileNotFoundError as error:
            raise BadRecordError("uri-status", "the object does not exist") from error
        except (BaseError, OSError, ValueError) as error:
            raise TransientError(first_line(error)) from error
        self.size, self.version = facts["size"], facts["e_tag"] or ""
        return 0 < len(self.version) <= _VERSION and self.version.isprintable()

    def read(self, start: int, stop: int, take: Callable[[bytes], object]) -> None:
        """See `VersionRanges.read`."""
        import obstore
        from obstore.exceptions import BaseError, PreconditionError

        try:
            answer = obstore.get(
                self._store, self._key, options={"range": (start, stop), "if_match": self.version}
            )
            body = answer.bytes()
        except (PreconditionError, FileNotFoundError) as error:
            raise BadRecordError("uri-changed", "the object changed while it was read") from error
        except (BaseError, OSError, ValueError) as error:
            raise TransientError(first_line(error)) from error
        facts = answer.meta  # checked again, because not every store honours `if_match`
        if (facts["size"], facts["e_tag"]) != (self.size, self.version):
            raise BadRecordError("uri-changed", "the object changed while it was read")
        if len(body) != stop - start:
            raise BadRecordError(
                "bad-range",
                f"the store sent {len(body)} bytes instead of the {stop - start} bytes {start}-{stop - 1}",
            )
        take(bytes(body))


def first_line(error: Exception) -> str:
    """Return the first line of an error's text; the name of the error's class if it has no text."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
