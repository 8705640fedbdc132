"""Edit lists of MP4 and MOV pieces, which define what is shown (ISO/IEC 14496-12, 8.6.6)."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction

import av

from lookout.video.segments.container import Video

MOVIE_SCALE = 90_000  # ticks a second in an edit list; also set in the muxer


@dataclass(frozen=True, slots=True)
class Edit:
    """The shown part of a piece that contains hidden pictures, in the source's ticks.

    Attributes:
        begin: Time of the first picture that is shown.
        end: When the last shown picture ends.
        hides_begin: Whether pictures before `begin` are hidden.
        hides_end: Whether pictures after `end` are hidden.
    """

    begin: int
    end: int
    hides_begin: bool
    hides_end: bool

    @classmethod
    def of(cls, video: Video, packets: Sequence[av.Packet], nominal: int) -> Edit | None:
        """Return the edit of a piece; None if nothing is hidden at its beginning or end.

        Args:
            video: The source.
            packets: Packets of the piece.
            nominal: Duration of a picture in ticks, if its packet states none.
        """
        shown = {p.pts: p.duration or nominal for p in packets if p.pts is not None and not video.hides(p)}
        hidden = [packet.pts for packet in packets if packet.pts is not None and video.hides(packet)]
        if not shown or not hidden:
            return None
        first, last = min(shown), max(shown)
        behind = min((pts for pts in hidden if pts > last), default=None)
        before = any(pts < first for pts in hidden)
        if behind is None and not before:
            return None
        return cls(first, last + shown[last] if behind is None else behind, before, behind is not None)


def with_edit(data: bytes, start: Fraction, length: Fraction, media: Fraction) -> bytes:
    """Replace the edit list of an MP4 or MOV file that has one track, and its index after the packets.

    Args:
        data: The file.
        start: When its first picture is shown, seconds.
        length: How long the file is shown, seconds.
        media: Position in the track at which the shown part begins, in seconds from the track's first
            decoding time.
    """
    at = data.rindex(b"moov") - 4
    return data[:at] + _edited(data[at:], (b"moov", b"trak"), start, length, media)


def _edited(boxes: bytes, path: tuple[bytes, ...], *edit: Fraction) -> bytes:
    """Return the boxes with the edit list set in the box at the end of a path."""
    out: list[bytes] = []
    for kind, body in _boxes(boxes):
        if path and kind == path[0]:
            own = _edited(body, path[1:], *edit) if path[1:] else _with_list(body, *edit)
            out.append(_box(kind, own))
        else:
            out.append(_box(kind, body))
    return b"".join(out)


def _with_list(track: bytes, start: Fraction, length: Fraction, media: Fraction) -> bytes:
    boxes = dict(_boxes(track))
    header = dict(_boxes(boxes[b"mdia"]))[b"mdhd"]
    (scale,) = struct.unpack_from(">I", header, 20 if header[0] else 12)
    rows = [(round(length * MOVIE_SCALE), round(media * scale))]
    if empty := round(start * MOVIE_SCALE):
        rows.insert(0, (empty, -1))  # an empty edit: nothing is shown for this time
    table = b"".join(struct.pack(">QqHH", *row, 1, 0) for row in rows)
    edits = _box(b"edts", _box(b"elst", struct.pack(">II", 1 << 24, len(rows)) + table))
    parts = [_box(kind, body) for kind, body in _boxes(track) if kind != b"edts"]
    return b"".join([parts[0], edits, *parts[1:]])  # after the track's header


def _box(kind: bytes, body: bytes) -> bytes:
    return struct.pack(">I4s", 8 + len(body), kind) + body


def _boxes(body: bytes) -> Iterator[tuple[bytes, bytes]]:
    at = 0
    while at < len(body):
        size, kind = struct.unpack_from(">I4s", body, at)
        yield kind, body[at + 8 : at + size]
        at += size
