"""Adds headers to published footage that say when each segment was filmed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Protocol, TypeVar

from lookout.wire.headers import CAPTURED_AT, LAST, Headers, encode


class Piece(Protocol):
    """A segment: bytes that begin at a keyframe, and their place in the footage."""

    @property
    def data(self) -> bytes: ...
    @property
    def start_us(self) -> int: ...
    @property
    def duration_us(self) -> int: ...


P = TypeVar("P", bound=Piece)


def with_headers(
    pieces: Iterable[P], start_us: int, labels: Mapping[str, str], *, ends: bool
) -> Iterator[tuple[P, Headers]]:
    """Yield each piece with the headers of its record.

    Args:
        pieces: The segments, in order.
        start_us: Wall clock of the first picture, Unix microseconds.
        labels: Headers for every segment, in addition to its time.
        ends: Whether the source is a recording. If so, the last segment is marked, so that the silence after
            it does not count as an outage; if the source ends with an error, no segment is marked. Each piece
            is held back until the next one is available.
    """
    for piece, is_last in _with_last(pieces) if ends else ((piece, False) for piece in pieces):
        facts = {CAPTURED_AT: str((start_us + piece.start_us) // 1000), **labels}
        yield piece, encode({**facts, LAST: "1"} if is_last else facts)


def _with_last(pieces: Iterable[P]) -> Iterator[tuple[P, bool]]:
    """Yield pieces, each with whether it is the last one; if they end with an error, none is."""
    previous: P | None = None
    try:
        for piece in pieces:
            if previous is not None:
                yield previous, False
            previous = piece
    except Exception:
        if previous is not None:
            yield previous, False
        raise
    if previous is not None:
        yield previous, True
