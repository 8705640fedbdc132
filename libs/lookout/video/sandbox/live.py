"""A camera's RTSP stream for a program that watches it: segments, by a confined process of its own."""

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
    """The segments of a camera, MPEG-TS, each as soon as it is whole; never ends but with an error.

    The camera is asked at the address that its name has now; a redirect is refused. Close the generator to
    end the process that reads the camera.

    Args:
        url: rtsp:// or rtsps://, with user name and password where the camera wants any.

    Raises:
        CodecError: The camera cannot be reached, ended its stream, or sends what is no video. It names the
            camera without its password.
    """
    name = public_url(url)
    try:
        parts = urlsplit(url)
        connection, address = placed(url, ()).connect(CONNECT_S)
    except (OSError, ValueError) as error:  # it shows no more of the address than its host
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
