"""Stores recordings that people upload for a week, where the fleet's recordings services can read them."""

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

#: an upload is removed after this long; its answers remain in the job
KEPT: Final = timedelta(days=7)
#: seconds within which the next bytes must arrive
_IDLE_S: Final = 30.0
_PIECE: Final = 5 << 20  # S3 takes no smaller part


class Uploads:
    """Stores uploaded recordings, each under a name that nobody can guess.

    Args:
        url: A URL such as `s3://bucket/prefix`, or a folder; the services of recordings must see the same.
        limit: Bytes of all uploads, above which no more is accepted.

    Raises:
        StartupError: It cannot be used.
    """

    def __init__(self, url: str, limit: int) -> None:
        #: the store's URI, the prefix of the uploads' URIs
        self.url = url.rstrip("/") if "://" in url else Path(url).resolve().as_uri()
        self._called = f"{public_url(self.url)}: the store of uploads"
        self._limit = limit
        self._store: Any = store_of_setting("LOOKOUT_UPLOAD_URL", url)
        self._arriving = self._arrived = (
            0  # bytes: of uploads in progress, and of all completed by this process
        )

    async def take(self, name: str, chunks: AsyncIterator[bytes]) -> Upload:
        """Store a recording while it is received.

        Args:
            name: The file's name; its ending says which container it is.
            chunks: Its bytes.

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
                # The limit includes what was stored at the beginning, completed since then, and is in
                # progress.
                if stored + self._arrived - arrived + self._arriving > self._limit:
                    raise ProblemError(
                        413,
                        f"the recording does not fit: all uploads may have {self._limit} bytes together "
                        f"(LOOKOUT_UPLOAD_BYTES); each is removed after {KEPT.days} days",
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
        """Remove what was uploaded more than a week ago.

        Args:
            now: The time; None: as the clock says.

        Raises:
            TransientError: The store does not answer.
        """
        oldest = (now or datetime.now(UTC)) - KEPT
        paths = [str(entry["path"]) for entry in self._entries() if entry["last_modified"] < oldest]
        for path in paths:
            with asking_store(self._called), suppress(FileNotFoundError):  # another gateway sweeps as well
                obstore.delete(self._store, path)

    def _entries(self) -> list[dict[str, Any]]:
        with asking_store(self._called):
            return [dict(entry) for chunk in obstore.list(self._store) for entry in chunk]


async def patient(chunks: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """Yield the non-empty chunks; fail if none arrives for too long."""
    while True:
        try:
            async with asyncio.timeout(_IDLE_S):
                chunk = await anext(chunks)
        except StopAsyncIteration:
            return
        except TimeoutError:
            raise ProblemError(408, f"nothing came for {_IDLE_S:g} s: upload it again") from None
        if chunk:
            yield chunk


def _file_name(name: str) -> str:
    """Return a name that any store accepts, with the file's extension."""
    stem, dot, suffix = name.rpartition(".")
    if f".{suffix.lower()}" not in SUFFIXES or not dot:
        raise ProblemError(
            400, f"name: {clean(name, 80)} has no ending of a video file, such as .mp4 or .mkv"
        )
    words = "".join(
        letter if (letter.isascii() and letter.isalnum()) or letter in "-_" else "-" for letter in stem
    )
    return f"{words.strip('-')[:80] or 'recording'}.{suffix.lower()}"
