"""Opens a recording by its path or address, in this process or in confined processes."""

from __future__ import annotations

import dataclasses
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from lookout.disk import private_opener, write_all
from lookout.video.files.ranged import RangedSource
from lookout.video.files.reader import VideoReader
from lookout.video.files.recording import RecordingReader
from lookout.video.files.source import FileSource, Given, UrlSource, source_of
from lookout.video.sandbox.confined_reader import SandboxedReader
from lookout.video.segments.types import CodecError, Reason


@contextmanager
def open_recording(
    source: Given | RecordingReader,
    *,
    sandbox: bool = False,
    workers: int | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Iterator[RecordingReader]:
    """Open a recording for reading.

    Args:
        source: A path, an http(s) URL, or, without a sandbox, bytes or a `Source`. A reader that is already
            open is used as it is and stays open.
        sandbox: Whether to demux and decode in confined processes. A URL is first downloaded into a
            temporary file, because these processes have no sockets. A `RangedSource` is read on their behalf.
        workers: Number of decoder processes (default: the number of cores that this process may use).
        progress: Called with the bytes done and the total bytes while a URL is downloaded.

    Raises:
        CodecError: The recording cannot be read.
    """
    if isinstance(source, RecordingReader):
        yield source
        return
    origin = source_of(source)
    with ExitStack() as opened:
        if not sandbox:
            yield opened.enter_context(VideoReader(origin))
            return
        if isinstance(origin, UrlSource):
            origin = opened.enter_context(downloaded(origin, progress))
        if not isinstance(origin, FileSource | RangedSource):
            raise CodecError(Reason.REQUEST, "only files and URLs can be decoded in a sandbox")
        given = origin.path if isinstance(origin, FileSource) else origin
        reader = opened.enter_context(SandboxedReader(given, workers=workers))
        reader.facts = dataclasses.replace(reader.facts, name=origin.name)
        yield reader


class DownloadedFile(FileSource):
    """A downloaded URL in a file; messages name the URL."""

    def __init__(self, url: str, path: str) -> None:
        super().__init__(path)
        self._url = url

    @property
    def name(self) -> str:
        """The URL."""
        return self._url


@contextmanager
def downloaded(
    source: UrlSource, progress: Callable[[int, int], None] | None = None
) -> Iterator[DownloadedFile]:
    """Download a URL into a temporary file, and delete the file at the end of the block.

    Args:
        source: The URL; closed after the download.
        progress: Called with the bytes done and the total bytes.

    Raises:
        CodecError: The URL cannot be read.
    """
    with tempfile.NamedTemporaryFile(prefix="lookout-recording-") as file:
        try:
            download(source, file.name, progress)
        finally:
            source.close()
        # The connections are already closed here, because decoding may take hours.
        yield DownloadedFile(source.name, file.name)


def download(source: UrlSource, path: str, progress: Callable[[int, int], None] | None = None) -> None:
    """Append to a file the bytes of a URL that it does not have yet, piece by piece, without parsing them.

    Args:
        source: The URL.
        path: The file, whose content must be the first bytes of the same version.
        progress: Called with the bytes done and the total bytes.

    Raises:
        CodecError: The URL cannot be read, or does not fit on the disk. Bytes already written stay.
    """
    size, folder = source.size, Path(path).parent
    try:
        with open(path, "ab", buffering=0, opener=private_opener) as file:
            free = shutil.disk_usage(folder).free
            # Checked before the first byte, because a full disk would also affect other programs on this
            # machine.
            if size - file.tell() > free:
                raise not_stored(source, f"it has {size} bytes, but {folder} has room for {free}")
            while (position := file.tell()) < size:
                number, begin = divmod(position, source.piece_bytes)
                write_all(file.fileno(), source.piece(number)[begin:])
                if progress is not None:
                    progress(file.tell(), size)
    except OSError as error:
        raise not_stored(source, f"{folder}: {error.strerror}") from error


def not_stored(source: UrlSource, why: str) -> CodecError:
    """Return the error of a recording that cannot be stored on this machine."""
    return CodecError(Reason.UNREADABLE, f"{source.name} cannot be stored ({why})")
