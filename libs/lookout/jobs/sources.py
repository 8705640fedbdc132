"""Where recordings of jobs are read: folders that an operator allows."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote, urlsplit

from lookout.errors import LookoutError
from lookout.files.names import video_files
from lookout.outside_text import public_url


class SourceError(LookoutError):
    """A recording that may not be read, is gone, or changed while it was read."""


@dataclass(frozen=True, slots=True)
class OpenSource:
    """A recording's bytes in a file.

    Attributes:
        uri: How the job calls it.
        path: The file.
        mark: Its size and time of change; another mark is another recording.
    """

    uri: str
    path: Path
    mark: str

    def check(self) -> None:
        """Check that the file is as it was when it was opened.

        Raises:
            SourceError: It changed, or is gone.
        """
        mark = _mark(self.uri, self.path)
        if mark != self.mark:
            raise SourceError(f"{public_url(self.uri)} changed while it was read ({self.mark}, now {mark})")


class Sources:
    """Opens what is allowed.

    Args:
        roots: Folders; what is below them may be read, links that lead elsewhere may not.
    """

    def __init__(self, roots: Sequence[Path | str] = ()) -> None:
        self._roots = [Path(root).resolve() for root in roots]

    def listed(self, uri: str) -> list[str]:
        """A recording, or the video files of a folder, as `file://` URIs.

        Raises:
            SourceError: It may not be read, or a folder holds no video file.
        """
        path = self._allowed(uri)
        if not path.is_dir():
            return [uri]
        files = [file for file in video_files(path) if self._within(file.resolve())]
        if not files:
            raise SourceError(f"{public_url(uri)} is a folder without a video file")
        return [file.as_uri() for file in files]

    @contextmanager
    def open(self, uri: str, mark: str | None = None) -> Iterator[OpenSource]:
        """A recording's bytes as a file, for as long as the block lasts.

        Args:
            uri: Which.
            mark: What `OpenSource.mark` was when the job was planned; None: any.

        Raises:
            SourceError: It may not be read, is not there, or is another one by now.
        """
        path = self._allowed(uri)
        if path.is_dir():
            raise SourceError(f"{public_url(uri)} is a folder without a video file")
        source = OpenSource(uri, path, _mark(uri, path))
        if mark is not None and source.mark != mark:
            raise SourceError(
                f"{public_url(uri)} changed since the job was planned ({mark}, now {source.mark})"
            )
        yield source

    def _allowed(self, uri: str) -> Path:
        named = _path_of(uri)
        try:
            path = named.resolve()
        except (OSError, RuntimeError) as error:
            raise SourceError(f"{public_url(uri)} cannot be read ({error})") from error
        if not self._within(path):
            roots = ",".join(map(str, self._roots)) or "nothing"
            raise SourceError(
                f"{public_url(uri)} is below no folder that may be read; LOOKOUT_RECORDING_ROOTS={roots}"
            )
        return path

    def _within(self, path: Path) -> bool:
        return any(path.is_relative_to(root) for root in self._roots)


def _path_of(uri: str) -> Path:
    """The path of a `file://` URI, or of an absolute path.

    Raises:
        SourceError: It is neither.
    """
    if "\x00" in uri or "%00" in uri:
        raise SourceError("a path holds no zero character")
    if uri.startswith("/"):
        return Path(uri)
    try:
        url = urlsplit(uri)
    except ValueError as error:
        raise SourceError(f"no URI ({error})") from error
    if url.scheme.lower() != "file":
        raise SourceError(
            f"{public_url(uri)}: scheme {url.scheme!r} is not read; name a file (file:///folder/clip.mp4)"
        )
    if url.netloc not in ("", "localhost") or not url.path.startswith("/"):
        raise SourceError(f"{public_url(uri)}: a file's URI has an absolute path and no host")
    return Path(unquote(url.path, errors="surrogateescape"))


def _mark(uri: str, path: Path) -> str:
    try:
        facts = os.stat(path)
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else str(error)
        raise SourceError(f"{public_url(uri)} cannot be read ({why})") from error
    return f"{facts.st_size} bytes, {facts.st_mtime_ns} ns"
