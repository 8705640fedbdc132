"""Boxes of fragmented MP4: what a player must have first, and fragments moved to another time."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

from lookout.video.segments.types import CodecError, Reason

_HEADER: Final = struct.Struct(">I4s")
_NUMBER: Final = struct.Struct(">I")
_TIME: Final = struct.Struct(">Q")


@dataclass(frozen=True, slots=True)
class Fragments:
    """A fragmented MP4 file in two parts.

    Attributes:
        head: What precedes the first fragment: a player must have read it.
        media: The fragments.
        begins_us: Decoding time of their first picture, in ticks of the track (clips have microseconds).
        count: How many there are.
    """

    head: bytes = field(repr=False)
    media: bytes = field(repr=False)
    begins_us: int
    count: int


def split(data: bytes) -> Fragments:
    """The parts of a file with one track.

    Raises:
        CodecError: With UNREADABLE: it holds no fragment.
    """
    begin = next((place for kind, place, _, _ in _boxes(data, 0, len(data)) if kind == b"moof"), 0)
    media = data[begin:]
    places = list(_places(media)) if begin else []
    if not places:
        raise CodecError(Reason.UNREADABLE, "the clip holds no fragment")
    return Fragments(data[:begin], media, _TIME.unpack_from(media, places[0][1])[0], len(places))


def moved(fragments: Fragments, by_us: int, number: int) -> bytes:
    """The fragments at another time, as they follow others.

    Args:
        fragments: The fragments.
        by_us: What is added to their times.
        number: Of the first among all fragments of the stream.
    """
    media = bytearray(fragments.media)
    for place, (sequence, time) in enumerate(_places(fragments.media)):
        _NUMBER.pack_into(media, sequence, number + place & 0xFFFFFFFF)
        _TIME.pack_into(media, time, max(0, _TIME.unpack_from(media, time)[0] + by_us))
    return bytes(media)


def _places(media: bytes) -> Iterator[tuple[int, int]]:
    """Where each fragment has its number and its decoding time (ISO/IEC 14496-12, 8.8.5 and 8.8.12)."""
    for kind, _, begin, end in _boxes(media, 0, len(media)):
        if kind != b"moof":
            continue
        sequence = time = 0
        for inner, _, inner_begin, inner_end in _boxes(media, begin, end):
            if inner == b"mfhd":
                sequence = inner_begin + 4
            elif inner == b"traf":
                for leaf, _, leaf_begin, leaf_end in _boxes(media, inner_begin, inner_end):
                    # Version 1 has 64 bits; FFmpeg writes no other.
                    if leaf == b"tfdt" and media[leaf_begin] == 1 and leaf_end - leaf_begin >= 12:
                        time = leaf_begin + 4
        if not sequence or not time:
            raise CodecError(Reason.UNREADABLE, "a fragment of the clip has no time")
        yield sequence, time


def _boxes(data: bytes, begin: int, end: int) -> Iterator[tuple[bytes, int, int, int]]:
    """Boxes: type, where each begins, and where its content begins and ends."""
    while end - begin >= _HEADER.size:
        size, kind = _HEADER.unpack_from(data, begin)
        head = _HEADER.size
        if size == 1 and end - begin >= 16:
            size, head = _TIME.unpack_from(data, begin + head)[0], 16
        elif size == 0:
            size = end - begin
        if not head <= size <= end - begin:
            raise CodecError(Reason.UNREADABLE, "a box of the clip is cut off")
        yield kind, begin, begin + head, begin + size
        begin += size
