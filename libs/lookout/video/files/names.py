"""The video files of a folder."""

from __future__ import annotations

from pathlib import Path

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


def video_files(folder: Path) -> list[Path]:
    """List the video files below a folder, sorted by path. Files are recognised by suffix; hidden files are
    skipped."""
    return sorted(
        file
        for file in folder.rglob("*")
        if file.suffix.lower() in SUFFIXES
        and file.is_file()
        and not any(part.startswith(".") for part in file.relative_to(folder).parts)
    )
