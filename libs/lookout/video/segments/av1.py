"""Parses enough of AV1 (bitstream specification, sections 5.3 to 5.9) to find each picture's references,
because FFmpeg does not report them and libdav1d cannot skip single pictures."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

# Kinds of units, kinds of frames, the third value of a flag, and the number of picture slots, as in the
# specification (sections 6.2.2, 6.8.2 and 3).
SEQUENCE_HEADER, FRAME_HEADER, FRAME = 1, 3, 6
KEY, INTRA_ONLY, SWITCH = 0, 2, 3
SELECT = 2
SLOTS = 8


class _Bits:
    """Reads a byte string bit by bit, the highest bit first; after its end, zeros."""

    def __init__(self, data: bytes) -> None:
        self._value, self._left = int.from_bytes(data, "big"), 8 * len(data)

    def take(self, count: int) -> int:
        """Return the next `count` bits as a number."""
        self._left -= count
        if self._left < 0:
            return 0
        return (self._value >> self._left) & ((1 << count) - 1)


@dataclass(frozen=True, slots=True)
class SequenceHeader:
    """The fields of a sequence header that frame headers depend on."""

    frame_id_bits: int
    delta_id_bits: int
    screen_content: int
    integer_mv: int
    order_hint_bits: int

    @classmethod
    def parse(cls, body: bytes) -> SequenceHeader | None:
        """Parse a sequence header; None if the stream uses features that are not supported here: still
        pictures, several operating points, a decoder model."""
        bits = _Bits(body)
        bits.take(3)
        still, reduced, timing = bits.take(1), bits.take(1), bits.take(1)
        if still or reduced:
            return None
        if timing:
            bits.take(64)
            if bits.take(1):  # equal intervals: an unsigned Exp-Golomb number follows
                zeros = 0
                while bits.take(1) == 0 and zeros < 32:
                    zeros += 1
                bits.take(zeros)
            if bits.take(1):
                return None
        delays = bits.take(1)
        if bits.take(5):
            return None
        bits.take(12)
        if bits.take(5) > 7:
            bits.take(1)
        if delays and bits.take(1):
            bits.take(4)
        across, down = bits.take(4) + 1, bits.take(4) + 1
        bits.take(across + down)
        frame_id_bits = delta_id_bits = 0
        if bits.take(1):
            delta_id_bits = bits.take(4) + 2
            frame_id_bits = bits.take(3) + delta_id_bits + 1
        bits.take(3 + 4)
        ordered = bits.take(1)
        if ordered:
            bits.take(2)
        screen_content = SELECT if bits.take(1) else bits.take(1)
        integer_mv = SELECT
        if screen_content:
            integer_mv = SELECT if bits.take(1) else bits.take(1)
        return cls(
            frame_id_bits, delta_id_bits, screen_content, integer_mv, bits.take(3) + 1 if ordered else 0
        )


@dataclass(frozen=True, slots=True)
class FrameHeader:
    """The picture slots that one frame reads and writes. Slots are numbered 0 to 7.

    Attributes:
        shows: The slot whose picture is shown again; None if the frame has its own picture.
        reads: Slots that the frame refers to.
        writes: Slots in which the frame is stored.
        key: Whether the frame is a keyframe.
    """

    shows: int | None
    reads: tuple[int, ...]
    writes: tuple[int, ...]
    key: bool

    @classmethod
    def parse(cls, body: bytes, sequence: SequenceHeader) -> FrameHeader:
        """Parse the beginning of a frame unit or a frame header unit."""
        # A header is far shorter; the rest of a frame's unit is its pixels.
        bits = _Bits(body[:64])
        if bits.take(1):
            return cls(bits.take(3), (), (), False)
        kind, shown = bits.take(2), bits.take(1)
        if not shown:
            bits.take(1)
        resilient = kind == SWITCH or (kind == KEY and shown) or bits.take(1) == 1
        bits.take(1)
        tools = bits.take(1) if sequence.screen_content == SELECT else sequence.screen_content
        if tools and sequence.integer_mv == SELECT:
            bits.take(1)
        bits.take(sequence.frame_id_bits + (kind != SWITCH) + sequence.order_hint_bits)
        if kind not in (KEY, INTRA_ONLY) and not resilient:
            bits.take(3)
        mask = 0xFF if kind == SWITCH or (kind == KEY and shown) else bits.take(8)
        writes = tuple(slot for slot in range(SLOTS) if mask >> slot & 1)
        if kind in (KEY, INTRA_ONLY):
            return cls(None, (), writes, kind == KEY)
        if resilient:
            bits.take(SLOTS * sequence.order_hint_bits)
        if sequence.order_hint_bits and bits.take(1):  # short signalling: the slots are derived, assume all
            return cls(None, tuple(range(SLOTS)), writes, False)
        reads = set()
        for _ in range(7):
            reads.add(bits.take(3))
            bits.take(sequence.delta_id_bits)
        return cls(None, tuple(sorted(reads)), writes, False)


def needed(packets: Sequence[bytes], wanted: Sequence[bool], extradata: bytes | None = None) -> list[bool]:
    """Return which packets (temporal units) must be decoded to get the wanted pictures.

    A frame's header names the slots that it reads and the slots in which it is stored, so headers alone show
    what the wanted pictures depend on.

    Args:
        packets: In decoding order, from a keyframe on.
        wanted: One flag per packet.
        extradata: The container's `av1C` record, if there is one (AV1 in ISO base media files, section 2.3).

    Returns:
        One flag per packet; all True if the stream uses features that are not supported here.
    """
    rests = _rests(packets, extradata)
    if rests is None:
        return [True] * len(packets)
    out = list(wanted)
    for number in reversed(range(len(packets))):
        if out[number]:
            for reference in rests[number]:
                out[reference] = True
    return out


def _rests(packets: Sequence[bytes], extradata: bytes | None) -> list[set[int]] | None:
    """Return, for each packet, the earlier packets whose pictures it reads; None if this is unknown."""
    sequence: SequenceHeader | None = None
    slots: list[int | None] = [None] * SLOTS  # the packet whose picture each slot holds
    keys: set[int] = set()
    rests: list[set[int]] = []
    # The `av1C` record has four bytes before the sequence header, which packets need not repeat.
    for number, packet in enumerate([(extradata or b"")[4:], *packets], -1):
        mine: set[int] = set()
        for kind, body in units(packet):
            if kind == SEQUENCE_HEADER:
                sequence = SequenceHeader.parse(body)
            if kind not in (FRAME_HEADER, FRAME) or number < 0:
                continue
            if sequence is None:
                return None
            header = FrameHeader.parse(body, sequence)
            reads = header.reads if header.shows is None else (header.shows,)
            frames = {slots[slot] for slot in reads}
            mine |= {frame for frame in frames if frame is not None and frame != number}
            writes = header.writes
            if header.shows is not None and slots[header.shows] in keys:
                writes = tuple(range(SLOTS))  # a keyframe that is shown again is stored everywhere
            for slot in writes:
                slots[slot] = number
            if header.key:
                keys.add(number)
        if number >= 0:
            rests.append(mine)
    return rests


def units(data: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield the open bitstream units of a packet: (kind, body). Stop at an invalid unit."""
    at = 0
    while at < len(data):
        head = data[at]
        at += 1 + (head >> 2 & 1)
        size = len(data) - at
        if head >> 1 & 1:
            size, shift = 0, 0
            while at < len(data) and shift < 56:
                byte = data[at]
                at, size, shift = at + 1, size | (byte & 0x7F) << shift, shift + 7
                if byte < 0x80:
                    break
        if head & 0x80 or size > len(data) - at:
            return
        yield head >> 3 & 0xF, data[at : at + size]
        at += size
