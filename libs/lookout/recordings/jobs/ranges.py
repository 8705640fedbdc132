"""Ranges of recordings behind a URL or in an object store, with tries and a limit of bytes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from lookout.errors import BadRecordError, LookoutError, TransientError
from lookout.video.files.ranged import RangedSource

#: tries of a host that does not answer, and seconds between them: a job names what it cannot read and goes on
TRIES, PAUSE_S = 3, 2.0
#: bytes, or a quarter of what was asked for, that a connection must give before it breaks, else it counts as
#: failed; broken connections of a part
LEAST_BYTES, PART_TRIES = 1 << 16, 30
_VERSION = 120


class SourceError(LookoutError):
    """A recording that may not be read, is gone, or changed while it was read."""


class AwayError(SourceError):
    """A recording whose host does not give it now."""


class VersionRanges(Protocol):
    """Reads ranges of one version of a recording's bytes. `size`: its bytes; `version`: what names it."""

    size: int
    version: str

    def read(self, start: int, stop: int, take: Callable[[bytes], object]) -> None:
        """Read the bytes [start, stop), tried once; where that fails some may have been taken.

        Raises:
            BadRecordError: No other try would help.
            TransientError: Another may.
        """


class RangedRecording(RangedSource):
    """A recording of which only what is asked for is fetched. A broken connection goes on where it broke.

    Args:
        name: How messages call it.
        ranges: Read it.
        limit: Bytes that may be fetched until `renew`.
        pause: Waits between tries.
        away: Called where the host is given up.
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
        """Another part begins: its bytes and its broken connections are counted from 0."""
        self._spent = self._failures = 0

    def _fetched(self, start: int, stop: int) -> bytes:
        self._spent += stop - start
        if self._spent > self._limit:
            raise SourceError(
                f"{self.name}: more than {self._limit} bytes of it would have to be fetched for one part "
                "(LOOKOUT_FETCH_BYTES)"
            )
        body, failures = bytearray(), 0
        while len(body) < stop - start:
            before = len(body)
            try:
                self._ranges.read(start + before, stop, body.extend)
            except BadRecordError as error:
                raise SourceError(f"{self.name}: {error.detail}") from error
            except TransientError as error:
                # A host that sends a byte a connection must not keep a job for ever.
                least = min(LEAST_BYTES, (stop - start - before) // 4)
                failures = failures + 1 if len(body) - before <= least else 1
                self._failures += 1
                if failures == TRIES or self._failures == PART_TRIES:
                    self._away()
                    raise AwayError(f"{self.name} cannot be read now ({error})") from error
                self._pause(PAUSE_S)
        return bytes(body)


class ObjectRanges:
    """An object of a store that is read in ranges.

    Args:
        store: Of obstore.
        key: The object's.
    """

    def __init__(self, store: Any, key: str) -> None:
        self._store, self._key = store, key
        self.size, self.version = 0, ""

    def begin(self) -> bool:
        """Ask for the object's size and version.

        Returns:
            Whether it has a version.

        Raises:
            BadRecordError: It is not there.
            TransientError: The store does not answer.
        """
        import obstore
        from obstore.exceptions import BaseError

        try:
            facts = obstore.head(self._store, self._key)
        except FileNotFoundError as error:
            raise BadRecordError("uri-status", "it is not there") from error
        except (BaseError, OSError, ValueError) as error:
            raise TransientError(first_line(error)) from error
        self.size, self.version = facts["size"], facts["e_tag"] or ""
        return 0 < len(self.version) <= _VERSION and self.version.isprintable()

    def read(self, start: int, stop: int, take: Callable[[bytes], object]) -> None:
        """As `VersionRanges.read`."""
        import obstore
        from obstore.exceptions import BaseError, PreconditionError

        try:
            answer = obstore.get(
                self._store, self._key, options={"range": (start, stop), "if_match": self.version}
            )
            body = answer.bytes()
        except (PreconditionError, FileNotFoundError) as error:
            raise BadRecordError("uri-changed", "it changed while it was read") from error
        except (BaseError, OSError, ValueError) as error:
            raise TransientError(first_line(error)) from error
        facts = answer.meta  # not every store heeds the condition
        if (facts["size"], facts["e_tag"]) != (self.size, self.version):
            raise BadRecordError("uri-changed", "it changed while it was read")
        if len(body) != stop - start:
            raise BadRecordError("bad-range", f"the store does not answer with bytes {start}-{stop - 1}")
        take(bytes(body))


def first_line(error: Exception) -> str:
    """The first line of an error's text, else its name."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
