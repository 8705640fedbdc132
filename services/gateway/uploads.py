"""Recordings that people upload: stored where the services of recordings read, for a week."""

from __future__ import annotations

import asyncio
import secrets
import threading
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

import obstore
from obstore.exceptions import BaseError

from lookout.errors import StartupError, TransientError
from lookout.runtime.net.object_store import open_store
from lookout.runtime.observe import logs
from lookout.services.gateway.problems import ProblemError
from lookout.text import clean, public_url
from lookout.v1.gateway_pb2 import Upload
from lookout.video.files.names import SUFFIXES

#: an upload is removed after so long: anyone who still needs its answers has them in the job
KEPT: Final = timedelta(days=7)
#: seconds within which the next bytes must come
_IDLE_S: Final = 30.0
_SWEEP_S: Final = 3600.0
_PIECE: Final = 5 << 20  # S3 takes no smaller part


class Uploads:
    """Where uploaded recordings are stored, each under a name that nobody can guess.

    Args:
        url: `s3://bucket/prefix` or the like, or a folder; the services of recordings must see the same.
        limit: Bytes of all uploads, beyond which no more is taken.

    Raises:
        StartupError: It cannot be used.
    """

    def __init__(self, url: str, limit: int) -> None:
        self._url = url.rstrip("/") if "://" in url else Path(url).resolve().as_uri()
        self._limit = limit
        self._stopped = threading.Event()
        try:
            self._store: Any = open_store(url)
        except (BaseError, OSError, ValueError) as error:
            raise StartupError(
                f"LOOKOUT_UPLOAD_URL={public_url(url)}: it cannot be opened: {error}"
            ) from error

    async def take(self, name: str, chunks: AsyncIterator[bytes]) -> Upload:
        """Store a recording as it comes.

        Args:
            name: What the file is called; its ending says which container it is.
            chunks: Its bytes.

        Raises:
            ProblemError: It is no name of a video file, empty, too large, or came too slowly.
            TransientError: The store does not answer.
        """
        path = f"{secrets.token_hex(16)}-{_file_name(name)}"
        room = self._limit - await asyncio.to_thread(self._stored)
        source = _Limited(chunks, room, self._limit)
        try:
            await obstore.put_async(self._store, path, source.pieces(), chunk_size=_PIECE)
        except ProblemError:
            raise
        except (BaseError, OSError) as error:
            raise self._away(error) from error
        return Upload(uri=f"{self._url}/{path}", bytes=source.count)

    def run(self) -> None:
        """Remove what is old again and again, until `stop`."""
        while not self._stopped.wait(_SWEEP_S):
            try:
                self.sweep(datetime.now(UTC))
            except TransientError as error:
                logs.get("gateway").warning("old uploads wait", error=str(error))

    def stop(self) -> None:
        """End."""
        self._stopped.set()

    def sweep(self, now: datetime) -> None:
        """Remove what was uploaded more than a week ago.

        Raises:
            TransientError: The store does not answer.
        """
        paths = [str(entry["path"]) for entry in self._entries() if entry["last_modified"] < now - KEPT]
        try:
            for path in paths:
                obstore.delete(self._store, path)
        except FileNotFoundError:
            return  # another gateway sweeps
        except (BaseError, OSError) as error:
            raise self._away(error) from error

    def _stored(self) -> int:
        return sum(int(entry["size"]) for entry in self._entries())

    def _entries(self) -> list[dict[str, Any]]:
        try:
            return [dict(entry) for chunk in obstore.list(self._store) for entry in chunk]
        except (BaseError, OSError) as error:
            raise self._away(error) from error

    def _away(self, error: Exception) -> TransientError:
        detail = clean(str(error).splitlines()[0] if str(error) else type(error).__name__, 300)
        return TransientError(f"{public_url(self._url)}: the store of uploads does not answer: {detail}")


class _Limited:
    """Chunks of a body, counted, within a limit of bytes and of silence."""

    def __init__(self, chunks: AsyncIterator[bytes], room: int, limit: int) -> None:
        self._chunks, self._room, self._limit = chunks, room, limit
        self.count = 0

    async def pieces(self) -> AsyncIterator[bytes]:
        """The chunks."""
        while True:
            try:
                async with asyncio.timeout(_IDLE_S):
                    chunk = await anext(self._chunks)
            except StopAsyncIteration:
                break
            except TimeoutError:
                raise ProblemError(408, f"nothing came for {_IDLE_S:g} s: upload it again") from None
            self.count += len(chunk)
            if self.count > self._room:
                raise ProblemError(
                    413,
                    f"the recording does not fit: uploads may have {self._limit} bytes "
                    f"(LOOKOUT_UPLOAD_BYTES), {max(0, self._room)} are free; each is removed after "
                    f"{KEPT.days} days",
                )
            if chunk:
                yield chunk
        if not self.count:
            raise ProblemError(400, "the body is empty: send the recording's bytes")


def _file_name(name: str) -> str:
    """A name that any store takes, with its ending."""
    stem, dot, suffix = name.rpartition(".")
    if f".{suffix.lower()}" not in SUFFIXES or not dot:
        raise ProblemError(
            400, f"name: {clean(name, 80)} has no ending of a video file, such as .mp4 or .mkv"
        )
    words = "".join(
        letter if (letter.isascii() and letter.isalnum()) or letter in "-_" else "-" for letter in stem
    )
    return f"{words.strip('-')[:80] or 'recording'}.{suffix.lower()}"
