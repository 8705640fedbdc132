"""Stores uploaded recordings for a week, where the fleet's recordings services can read them."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

import obstore

from lookout.runtime.net.object_store import asking_store, store_of_setting
from lookout.services.gateway.problems import ProblemError
from lookout.text import clean, public_url
from lookout.v1.gateway_pb2 import Upload
from lookout.video.files.names import SUFFIXES

#: an upload is removed after this time; the answers about it remain in its jobs
KEPT: Final = timedelta(days=7)
#: seconds within which the next bytes must arrive
_IDLE_S: Final = 30.0
_PIECE: Final = 5 << 20  # the smallest part that S3 accepts


class Uploads:
    """Stores uploaded recordings, each under a name that nobody can guess.

    Args:
        url: A URL such as `s3://bucket/prefix`, or a folder. The recordings services must use the same store.
        limit: Maximum bytes of all uploads together.

    Raises:
        StartupError: The store cannot be used.
    """

    def __init__(self, url: str, limit: int) -> None:
        #: the store's URI, the prefix of the uploads' URIs
        self.url = url.rstrip("/") if "://" in url else Path(url).resolve().as_uri()
        self._called = f"{public_url(self.url)}: the store of uploads"
        self._limit = limit
        self._store: Any = store_of_setting("LOOKOUT_UPLOAD_URL", url)
        self._arriving = self._arrived = (
            0  # bytes of uploads in progress, and of all uploads that this process completed
        )

    async def take(self, name: str, chunks: AsyncIterator[bytes]) -> Upload:
        """Store a recording as it is received.

        Args:
            name: The file's name, whose extension says which container it is.
            chunks: The file's bytes.

        Raises:
            ProblemError: The name is not a video file's, or the body is empty, too large or too slow.
            TransientError: The store does not answer.
        """
        path, size, arrived = f"{secrets.token_hex(16)}-{_file_name(name)}", 0, self._arrived
        stored = await asyncio.to_thread(lambda: sum(int(entry["size"]) for entry in self._entries()))

        async def counted() -> AsyncIterator[bytes]:
            nonlocal size
            async for chunk in patient(chunks):
                size += len(chunk)
                self._arriving += len(chunk)
                # Counts what was stored when this upload began, what was completed since, and what is in
                # progress.
                if stored + self._arrived - arrived + self._arriving > self._limit:
                    raise ProblemError(
                        413,
                        f"the recording does not fit: all uploads together may have {self._limit} bytes "
                        f"(LOOKOUT_UPLOAD_BYTES), and each is removed after {KEPT.days} days",
                    )
                yield chunk
            if not size:
                raise ProblemError(400, "the body is empty: send the recording's bytes")

        try:
            with asking_store(self._called):
                await obstore.put_async(self._store, path, counted(), chunk_size=_PIECE)
        finally:
            self._arriving -= size
        self._arrived += size
        return Upload(uri=f"{self.url}/{path}", bytes=size)

    def sweep(self, now: datetime | None = None) -> None:
        """Remove uploads that are older than a week.

        Args:
            now: The current time; None: read the clock.

        Raises:
            TransientError: The store does not answer.
        """
        oldest = (now or datetime.now(UTC)) - KEPT
        paths = [str(entry["path"]) for entry in self._entries() if entry["last_modified"] < oldest]
        for path in paths:
            with (
                asking_store(self._called),
                suppress(FileNotFoundError),
            ):  # another gateway may remove it first
                obstore.delete(self._store, path)

    def _entries(self) -> list[dict[str, Any]]:
        with asking_store(self._called):
            return [dict(entry) for chunk in obstore.list(self._store) for entry in chunk]


async def patient(chunks: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """Yield the non-empty chunks; raise `ProblemError` if no chunk arrives for too long."""
    while True:
        try:
            async with asyncio.timeout(_IDLE_S):
                chunk = await anext(chunks)
        except StopAsyncIteration:
            return
        except TimeoutError:
            raise ProblemError(408, f"no bytes arrived for {_IDLE_S:g} s: upload the file again") from None
        if chunk:
            yield chunk


def _file_name(name: str) -> str:
    """Return a name that any store accepts, with the file's extension."""
    stem, dot, suffix = name.rpartition(".")
    if f".{suffix.lower()}" not in SUFFIXES or not dot:
        raise ProblemError(
            400, f"name: {clean(name, 80)} does not end like a video file, such as .mp4 or .mkv"
        )
    words = "".join(
        letter if (letter.isascii() and letter.isalnum()) or letter in "-_" else "-" for letter in stem
    )
    return f"{words.strip('-')[:80] or 'recording'}.{suffix.lower()}"
