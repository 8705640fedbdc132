"""`python -m lookout.services.controller.download`: fetch a model's archive, compare its SHA-256, unpack it.

Environment:
    LOOKOUT_MODEL_URL: https address of a .tar or .tar.gz file; it may hold a signature and is never printed.
    LOOKOUT_MODEL_SHA256: the digest that the file must have.
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
from collections.abc import Sequence
from pathlib import Path
from typing import IO
from urllib.parse import urlsplit

from lookout.outside_text import visible

_CHUNK = 1 << 20
_DONE = ".sha256"


class DownloadError(RuntimeError):
    """The checkpoint cannot be fetched; the message says why and names no secret."""


def fetch(url: str, sha256: str, folder: Path) -> None:
    """Put a checkpoint into a folder; one that is there with the same digest stays.

    Raises:
        DownloadError: The address, the digest or the archive is wrong.
    """
    marker = folder / _DONE
    if marker.exists() and marker.read_text() == sha256:
        return
    if not url.startswith("https://"):
        raise DownloadError("LOOKOUT_MODEL_URL is not an https address")
    with tempfile.TemporaryFile(dir=folder) as archive:
        actual = _download(url, archive)
        if actual != sha256:
            raise DownloadError(f"the file has SHA-256 {actual}, LOOKOUT_MODEL_SHA256 is {sha256}: not used")
        archive.seek(0)
        unpack(archive, folder)
    marker.write_text(sha256)


def unpack(archive: IO[bytes], folder: Path) -> None:
    """Unpack an archive of plain files and folders below a folder; links and devices are refused.

    Raises:
        DownloadError: It is no archive, or it would write outside the folder.
    """
    try:
        # Python 3.11.2, which Debian has, knows no extraction filters.
        with tarfile.open(fileobj=archive, mode="r:*") as tar:
            for member in tar:
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
        raise DownloadError(f"the archive holds something that is no file or folder: {member.name}")
    target.parent.mkdir(parents=True, exist_ok=True)
    with content, target.open("wb") as file:
        shutil.copyfileobj(content, file, _CHUNK)


def _download(url: str, target: IO[bytes]) -> str:
    digest = hashlib.sha256()
    try:
        with urllib.request.urlopen(url, timeout=60) as answer:
            while chunk := answer.read(_CHUNK):
                digest.update(chunk)
                target.write(chunk)
    except (urllib.error.URLError, OSError) as error:
        why = getattr(error, "reason", None) or getattr(error, "strerror", None) or type(error).__name__
        raise DownloadError(f"{urlsplit(url).hostname} does not give the file: {why}") from None
    return digest.hexdigest()


def main(arguments: Sequence[str] | None = None) -> int:
    """Fetch what the environment names; returns the exit code."""
    parser = argparse.ArgumentParser(description="Fetch a model's checkpoint and check its digest.")
    parser.add_argument("--folder", type=Path, required=True)
    options = parser.parse_args(arguments)
    try:
        fetch(
            os.environ.get("LOOKOUT_MODEL_URL", ""),
            os.environ.get("LOOKOUT_MODEL_SHA256", ""),
            options.folder,
        )
    except DownloadError as error:
        sys.stderr.write(visible(f"lookout download: {error}\n"))
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
