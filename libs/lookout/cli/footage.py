"""Which files of a folder are footage."""

from __future__ import annotations

from pathlib import Path

from lookout.cli.options import CliError

SUFFIXES = frozenset(
    [
        ".264",
        ".265",
        ".3g2",
        ".3gp",
        ".asf",
        ".avi",
        ".dav",
        ".dv",
        ".f4v",
        ".flv",
        ".h264",
        ".h265",
        ".hevc",
        ".ivf",
        ".m2ts",
        ".m2v",
        ".m4v",
        ".mjpeg",
        ".mjpg",
        ".mkv",
        ".mov",
        ".mp4",
        ".mpeg",
        ".mpg",
        ".mts",
        ".mxf",
        ".nut",
        ".obu",
        ".ogv",
        ".ps",
        ".qt",
        ".rm",
        ".rmvb",
        ".ts",
        ".vob",
        ".webm",
        ".wmv",
    ]
)


def footage_files(path: Path) -> list[Path]:
    """The file itself, or the video files below a folder (by suffix, hidden ones left out), by name.

    Raises:
        CliError: the path does not exist, or the folder holds none.
    """
    if path.is_file():
        return [path]
    if not path.is_dir():
        raise CliError(f"there is no file or folder {path}")
    files = sorted(
        file
        for file in path.rglob("*")
        if file.suffix.lower() in SUFFIXES
        and file.is_file()
        and not any(part.startswith(".") for part in file.relative_to(path).parts)
    )
    if not files:
        raise CliError(f"{path} holds no video file (looked for {', '.join(sorted(SUFFIXES)[:6])} ...)")
    return files
