"""Boxes of fragmented MP4: splitting off the initialisation part, and moving fragments to another time."""

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
        head: The part before the first fragment, which a player must read first.
        media: The fragments.
        begins_us: Decoding time of their first picture, in ticks of the track (microseconds in clips).
        count: Number of fragments.
    """

    head: bytes = field(repr=False)
    media: bytes = field(repr=False)
    begins_us: int
    count: int


def split(data: bytes) -> Fragments:
    """Split a file with one track into its parts.

    Raises:
        CodecError: With UNREADABLE: the file has no valid fragment.
    """
    begin = next((place for kind, place, _, _ in _boxes(data, 0, len(data)) if kind == b"moof"), 0)
    media = data[begin:]
    places = list(_places(media)) if begin else []
    if not places:
        raise CodecError(Reason.UNREADABLE, "the clip has no fragment")
    return Fragments(data[:begin], media, _TIME.unpack_from(media, places[0][1])[0], len(places))


def moved(fragments: Fragments, by_us: int, number: int) -> bytes:
    """Return the fragments with their times moved, so that they follow other fragments.

    Args:
        fragments: The fragments.
        by_us: Ticks added to their times.
        number: Number of the first one among all fragments of the stream.
    """
    media = bytearray(fragments.media)
    for place, (sequence, time) in enumerate(_places(fragments.media)):
        _NUMBER.pack_into(media, sequence, number + place & 0xFFFFFFFF)
        _TIME.pack_into(media, time, max(0, _TIME.unpack_from(media, time)[0] + by_us))
    return bytes(media)


def _places(media: bytes) -> Iterator[tuple[int, int]]:
    """Yield the offsets of each fragment's number and decoding time (ISO/IEC 14496-12, 8.8.5 and 8.8.12)."""
    for kind, _, begin, end in _boxes(media, 0, len(media)):
        if kind != b"moof":
            continue
        sequence = time = 0
        for inner, _, inner_begin, inner_end in _boxes(media, begin, end):
            if inner == b"mfhd":
                sequence = inner_begin + 4
            elif inner == b"traf":
                for leaf, _, leaf_begin, leaf_end in _boxes(media, inner_begin, inner_end):
                    # Version 1, with 64 bits, is the only one that FFmpeg writes.
                    if leaf == b"tfdt" and media[leaf_begin] == 1 and leaf_end - leaf_begin >= 12:
                        time = leaf_begin + 4
        if not sequence or not time:
            raise CodecError(Reason.UNREADABLE, "a fragment of the clip has no time")
        yield sequence, time


def _boxes(data: bytes, begin: int, end: int) -> Iterator[tuple[bytes, int, int, int]]:
    """Yield boxes: type, where each begins, and where its content begins and ends."""
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
