"""Cuts films that people send as a camera's footage, and publishes them as if they had just been filmed."""

from __future__ import annotations

import math
import os
import time
from collections.abc import AsyncIterator, Callable, Mapping
from typing import IO, Final

from lookout.administration.footage import with_headers
from lookout.services.gateway.problems import ProblemError
from lookout.v1.gateway_pb2 import Film
from lookout.video.sandbox import SandboxPool, SandboxSettings
from lookout.video.sandbox.confined_reader import recording_length_us
from lookout.video.segments import CodecError
from lookout.wire import MAX_SEGMENT_BYTES
from lookout.wire.headers import Headers

#: maximum bytes of a film, which stays in the gateway's temporary folder until it is published
FILM_BYTES: Final = 512 << 20


async def receive(chunks: AsyncIterator[bytes], file: IO[bytes]) -> None:
    """Write a film to a file as it arrives.

    Raises:
        ProblemError: The film is empty or too large.
    """
    size = 0
    async for chunk in chunks:
        size += len(chunk)
        if size > FILM_BYTES:
            raise ProblemError(
                413, f"the film has more than {FILM_BYTES} bytes: use `lookout publish` instead"
            )
        file.write(chunk)
    if not size:
        raise ProblemError(400, "the body is empty: send the film's bytes")
    file.flush()


def publish(
    path: str | os.PathLike[str],
    camera: str,
    labels: Mapping[str, str],
    send: Callable[[bytes, Headers], object],
    footage_until_ms: int,
) -> Film:
    """Cut a film at keyframes, in a sandbox, and publish the pieces with times such that the film ends now.

    Args:
        path: The film, which is untrusted.
        camera: The camera under whose id the film is published.
        labels: Headers for every segment, in addition to its time.
        send: Publishes a segment, and returns when Kafka has confirmed it.
        footage_until_ms: End of the camera's existing footage, Unix milliseconds.

    Returns:
        What was published.

    Raises:
        ProblemError: The film cannot be read to its end, or would overlap the camera's footage.
    """
    film = Film(camera=camera)
    with SandboxPool(1, SandboxSettings()) as pool:
        try:
            begin_ms = round(time.time() * 1000) - recording_length_us(pool, path) // 1000
            if begin_ms < footage_until_ms:
                wait_s = math.ceil((footage_until_ms - begin_ms) / 1000)
                raise ProblemError(
                    409,
                    f"the film would be published as ending now, and would overlap camera {camera}'s newest "
                    f"footage: send it again in {wait_s} s, or as another camera",
                    {"Retry-After": str(wait_s)},
                )
            film.begin.FromMilliseconds(begin_ms)
            pieces = pool.cut(path, max_bytes=MAX_SEGMENT_BYTES)
            for piece, more in with_headers(pieces, begin_ms * 1000, labels, ends=True):
                send(piece.data, more)
                film.segments += 1
                film.end.FromMilliseconds(begin_ms + (piece.start_us + piece.duration_us) // 1000)
        except CodecError as error:
            sent = f"{film.segments} segments were sent before" if film.segments else "nothing was sent"
            raise ProblemError(400, f"the film cannot be read ({error}): {sent}") from None
    return film
