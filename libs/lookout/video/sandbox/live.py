"""Reads a camera's RTSP stream in a confined process, and yields its segments to the program that watches the
camera."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import closing
from typing import Final
from urllib.parse import unquote, urlsplit

from lookout.text import public_url
from lookout.video.sandbox import sandbox_pb2 as pb
from lookout.video.sandbox.places import placed, with_credentials, without_addresses
from lookout.video.sandbox.pull import Pull, PullError
from lookout.video.segments.types import CodecError, Limits, Reason

CONNECT_S: Final = 10.0
SEGMENT_S: Final = 2.0
JUMP_S: Final = 10.0
MEMORY: Final = 256 << 20


def camera_segments(url: str) -> Generator[bytes]:
    """Yield a camera's segments (MPEG-TS), each as soon as it is complete. The stream ends only with an
    error.

    The camera's host is resolved once, at the beginning; redirects are refused. Close the generator to end
    the process that reads the camera.

    Args:
        url: rtsp:// or rtsps://, with user name and password if the camera requires them.

    Raises:
        CodecError: The camera cannot be reached, ended its stream, or does not send video. The message names
            the camera without its password.
    """
    name = public_url(url)
    try:
        parts = urlsplit(url)
        connection, address = placed(url, ()).connect(CONNECT_S)
    except (OSError, ValueError) as error:  # the message shows only the host of the camera's address
        raise CodecError(Reason.UNREADABLE, f"{name}: {error}") from None
    try:
        if parts.username is not None:
            address = with_credentials(address, (unquote(parts.username), unquote(parts.password or "")))
        job = pb.PullJob(
            url=address,
            connect_s=CONNECT_S,
            segment_s=SEGMENT_S,
            segment_bytes=Limits().bytes - (1 << 20),
            jump_s=JUMP_S,
            memory_bytes=MEMORY,
        )
        with connection:
            pull = Pull(connection, job)
        with closing(pull):
            pull.begin()
            for segment in pull.segments():
                yield segment.data
    except (PullError, OSError, ValueError) as error:
        raise CodecError(Reason.UNREADABLE, f"{name}: {without_addresses(str(error), name)}") from None
