"""Reads a local webcam's pictures as they arrive. The webcam's driver is trusted like the kernel."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator

import av
import av.error

from lookout.video.motion.types import U8
from lookout.video.segments.types import CodecError, Reason

_DEVICE = re.compile(r"/dev/video\d+")


def is_webcam(source: object) -> bool:
    """Whether a source names a webcam of this machine."""
    return isinstance(source, str | os.PathLike) and bool(_DEVICE.fullmatch(os.fspath(source)))


def webcam_frames(path: str, fps: float, *, driver: str = "video4linux2") -> Iterator[tuple[U8, float]]:
    """Yield a webcam's pictures with their times, at most `fps` a second. It ends only with an error.

    Args:
        path: The device, such as /dev/video0.
        fps: Maximum number of pictures a second.
        driver: FFmpeg's name of the input format that reads the device.

    Yields:
        uint8 [height, width, 3] RGB, and seconds since the first.

    Raises:
        CodecError: The camera does not exist, or it ended.
    """
    try:
        with av.open(path, format=driver) as camera:
            if not camera.streams.video:
                raise CodecError(Reason.NO_VIDEO, f"{path} provides no video")
            begun: float | None = None
            due = 0.0
            for frame in camera.decode(video=0):
                if frame.time is None:
                    continue
                begun = frame.time if begun is None else begun
                time_s = frame.time - begun
                if time_s + 1e-6 >= due:
                    due = max(due + 1 / fps, time_s)
                    yield frame.to_ndarray(format="rgb24"), time_s
    except (av.error.FFmpegError, OSError) as error:
        why = getattr(error, "strerror", None) or error
        raise CodecError(Reason.UNREADABLE, f"the webcam {path} cannot be read ({why})") from None
    raise CodecError(Reason.UNREADABLE, f"the webcam {path} stopped sending pictures")
