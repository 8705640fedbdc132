"""`python -m lookout.services.controller.download`: downloads a model's archive, checks its SHA-256, and
unpacks it.

With `--without-weights`, the whole archive is read, but only the configuration and tokenizer are written to
disk.

Environment:
    LOOKOUT_MODEL_URL: The https address of a .tar or .tar.gz file. It may contain a signature and is never
    printed. LOOKOUT_MODEL_SHA256: The digest that the file must have.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import shutil
import sys
import tarfile
import tempfile
import urllib.error
import urllib.request
import zlib
from collections.abc import Collection, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import IO, cast
from urllib.parse import urlsplit

from lookout.text import visible

_CHUNK = 1 << 20
_DONE = ".sha256"
#: suffixes of files that hold a model's configuration and tokenizer
_TEXTS = frozenset({".json", ".jinja", ".model", ".tiktoken", ".txt"})


class DownloadError(RuntimeError):
    """The checkpoint cannot be downloaded; the message says why and contains no secret."""


def fetch(url: str, sha256: str, folder: Path, *, weights: bool = True) -> None:
    """Download a checkpoint into a folder, unless the folder already has one with the same digest.

    Args:
        url: https address of the archive.
        sha256: Digest of the archive.
        folder: The folder for the files.
        weights: Whether to unpack all files, or only the configuration and tokenizer.

    Raises:
        DownloadError: The address, the digest or the archive is wrong.
    """
    marker = folder / _DONE
    if marker.exists() and marker.read_text() == sha256:
        return
    if not url.startswith("https://"):
        raise DownloadError("LOOKOUT_MODEL_URL must be an https address")
    with closing(_Download(url)) as download:
        (_fetch_all if weights else _fetch_texts)(download, sha256, folder)
    marker.write_text(sha256)


class _Download:
    """A download that computes the file's SHA-256 as the file is read."""

    def __init__(self, url: str) -> None:
        self._host, self._digest = urlsplit(url).hostname, hashlib.sha256()
        with self._refused():
            self._answer: IO[bytes] = urllib.request.urlopen(url, timeout=60)

    def read(self, size: int = _CHUNK) -> bytes:
        with self._refused():
            data = self._answer.read(size)
        self._digest.update(data)
        return data

    def close(self) -> None:
        self._answer.close()

    @contextmanager
    def _refused(self) -> Iterator[None]:
        try:
            yield
        except (urllib.error.URLError, OSError) as error:
            why = getattr(error, "reason", None) or getattr(error, "strerror", None) or type(error).__name__
            raise DownloadError(f"{self._host} does not serve the file: {why}") from None

    def check(self, sha256: str) -> None:
        """Read the rest of the file and compare the digest.

        Raises:
            DownloadError: The digest differs.
        """
        while self.read():
            pass
        if (actual := self._digest.hexdigest()) != sha256:
            raise DownloadError(
                f"the file is not used: its SHA-256 is {actual}, but LOOKOUT_MODEL_SHA256 is {sha256}"
            )


def _fetch_all(download: _Download, sha256: str, folder: Path) -> None:
    with tempfile.TemporaryFile(dir=folder) as archive:
        shutil.copyfileobj(download, archive, _CHUNK)
        download.check(sha256)
        archive.seek(0)
        unpack(archive, folder)


def _fetch_texts(download: _Download, sha256: str, folder: Path) -> None:
    with tempfile.TemporaryDirectory(dir=folder) as name:
        part = Path(name)
        unpack(cast("IO[bytes]", download), part, _TEXTS)
        download.check(sha256)
        shutil.copytree(part, folder, dirs_exist_ok=True)


def unpack(archive: IO[bytes], folder: Path, suffixes: Collection[str] | None = None) -> None:
    """Unpack an archive of regular files and folders into a folder; links and devices are rejected.

    Args:
        archive: The archive, which is read once from beginning to end.
        folder: The folder for the files.
        suffixes: Suffixes of the files to unpack; None: unpack all files.

    Raises:
        DownloadError: The file is not an archive, contains a link or device, or would write outside the
            folder.
    """
    try:
        # No extraction filters, because Debian's Python 3.11.2 does not have them.
        with tarfile.open(fileobj=archive, mode="r|*") as tar:
            for member in tar:
                if suffixes is None or not member.isfile() or Path(member.name).suffix in suffixes:
                    _extract(tar, member, folder.resolve())
    except (tarfile.TarError, EOFError, zlib.error) as error:
        raise DownloadError(f"the file is not a usable tar archive: {error}") from error


def _extract(tar: tarfile.TarFile, member: tarfile.TarInfo, folder: Path) -> None:
    target = (folder / member.name).resolve()
    if not target.is_relative_to(folder):
        raise DownloadError(f"the archive would write outside its folder: {member.name}")
    if member.isdir():
        target.mkdir(parents=True, exist_ok=True)
        return
    content = tar.extractfile(member) if member.isfile() else None
    if content is None:
        raise DownloadError(
            f"the archive contains something that is neither a file nor a folder: {member.name}"
        )
    target.parent.mkdir(parents=True, exist_ok=True)
    with content, target.open("wb") as file:
        shutil.copyfileobj(content, file, _CHUNK)


def main(arguments: Sequence[str] | None = None) -> int:
    """Download the checkpoint that the environment names; return the exit code."""
    parser = argparse.ArgumentParser(description="Download a model's checkpoint and check its digest.")
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--without-weights", action="store_true")
    options = parser.parse_args(arguments)
    try:
        fetch(
            os.environ.get("LOOKOUT_MODEL_URL", ""),
            os.environ.get("LOOKOUT_MODEL_SHA256", ""),
            options.folder,
            weights=not options.without_weights,
        )
    except DownloadError as error:
        sys.stderr.write(visible(f"lookout download: {error}\n"))
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
