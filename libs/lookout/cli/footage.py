"""Finds the video files of a folder."""

from __future__ import annotations

import re
from pathlib import Path

from lookout.cli.options import CliError
from lookout.text import public_url

_ADDRESS = re.compile(r"(\w+):/+(.*)", re.DOTALL)


def footage_files(path: Path) -> list[Path]:
    """Return the file itself, or the video files in a folder and its subfolders, sorted by name.

    Video files are recognised by suffix; hidden files are skipped.

    Raises:
        CliError: The path does not exist, is neither a file nor a folder, or the folder holds no video.
    """
    from lookout.video.files.names import SUFFIXES, video_files

    if path.is_file():
        return [path]
    if not path.exists():
        if address := _ADDRESS.match(str(path)):  # `Path` has dropped one slash of a URL
            url = public_url(f"{address[1]}://{address[2]}")
            raise CliError(f"{url} is an address: only files and folders are read here")
        raise CliError(f"there is no file or folder {path}")
    if not path.is_dir():
        raise CliError(f"{path} is a pipe or a device: only `lookout publish -` reads from one")
    files = video_files(path)
    if not files:
        raise CliError(f"{path} has no video file (looked for {', '.join(sorted(SUFFIXES)[:6])} ...)")
    return files
