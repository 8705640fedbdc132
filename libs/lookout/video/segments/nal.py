"""Reads properties of H.264 and HEVC streams that FFmpeg does not report: units, keyframes, leading pictures,
parameter sets."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

SEI = 6
IDR = 5
RECOVERY_POINT = 6
HEVC_SLICES = 32  # units below are slices
HEVC_KEYS = range(16, 24)  # pictures at which decoding can begin (ITU-T H.265, table 7-1)
RASL = (8, 9)
GROUP_HEADER = b"\0\0\1\xb8"
START: Final = b"\0\0\1"
_H264_INTRA: Final = (2, 4, 7, 9)  # slice types I and SI
_HEAD: Final = 4096  # bytes of an access unit that usually suffice to reach its first slice
_SLICE_HEAD: Final = 64


def length_bytes(extradata: bytes | None, codec: str) -> int:
    """Return the size of the length field in front of every unit; 0 if start codes separate the units (Annex
    B).

    Args:
        extradata: The decoder's configuration from the container.
        codec: Name of the codec.
    """
    data = extradata or b""
    if codec == "h264" and len(data) > 6 and data[0] == 1:  # avcC, ISO/IEC 14496-15, 5.3.3
        return (data[4] & 3) + 1
    if codec == "hevc" and len(data) > 22 and data[:3] not in (b"\0\0\0", START):  # hvcC, 8.3.3
        return (data[21] & 3) + 1
    return 0


def begins_clean(data: bytes, codec: str, length: int) -> bool:
    """Whether decoding that begins at a keyframe gives a whole picture at once. False if the keyframe only
    starts a gradual intra refresh (an H.264 recovery point), after which the picture is whole only some
    frames later.

    Args:
        data: The keyframe's access unit.
        codec: Name of the codec.
        length: See `length_bytes`.
    """
    if codec != "h264":
        return True
    wait = 0
    for nal in nal_units(data, length):
        kind = nal[0] & 0x1F
        if kind == IDR:
            return True
        if kind == SEI:
            wait = max(wait, recovery_frames(nal[1:]))
    return wait == 0


def is_key(units: list[bytes], codec: str) -> bool:
    """Whether decoding can begin at a picture that its container marks as a keyframe, because some containers
    mark every picture.

    Args:
        units: Units of the picture's access unit, up to its first slice.
        codec: h264 or hevc.
    """
    for unit in units:
        if codec == "hevc":
            kind = unit[0] >> 1 & 0x3F
            if kind < HEVC_SLICES:
                return kind in HEVC_KEYS
        elif unit[0] & 0x1F == IDR:
            return True
        elif unit[0] & 0x1F in (1, 2):
            # The slice's type follows the number of its first macroblock (ITU-T H.264, 7.3.3).
            return _exp_golomb(unit[1:], 1) in _H264_INTRA
    return True  # damaged: trust the container


def skipped_leading(data: bytes, length: int) -> bool:
    """Whether an HEVC access unit is a leading picture that refers to pictures before its keyframe (RASL)."""
    kinds = [nal[0] >> 1 & 0x3F for nal in nal_units(data, length)]
    slices = [kind for kind in kinds if kind < HEVC_SLICES]
    return bool(slices) and all(kind in RASL for kind in slices)


def may_lead(keyframe: bytes, codec: str, length: int) -> bool:
    """Whether pictures that follow a keyframe but are shown before it may refer to pictures before it.

    Args:
        keyframe: The keyframe's access unit.
        codec: Name of the codec.
        length: See `length_bytes`.
    """
    if codec == "h264":
        return all(nal[0] & 0x1F != IDR for nal in nal_units(keyframe, length))
    if codec in ("mpeg1video", "mpeg2video"):
        header = keyframe.find(GROUP_HEADER)
        # With closed_gop set in the group's header, no such picture refers to anything before the keyframe
        # (ISO/IEC 13818-2, 6.3.8).
        return not (0 <= header < len(keyframe) - 7 and keyframe[header + 7] & 0x40)
    return codec == "hevc"


def is_slice(unit: bytes, codec: str) -> bool:
    """Whether a unit is a slice of a picture."""
    if codec == "hevc":
        return unit[0] >> 1 & 0x3F < HEVC_SLICES
    # Types 1 to 5 are the slices of a picture (H.264, table 7-1).
    return 1 <= unit[0] & 0x1F <= IDR


def holds_slice(data: bytes, codec: str, length: int) -> bool:
    """Whether these first bytes of an access unit include its first slice."""
    return any(is_slice(unit, codec) for unit in nal_units(data, length))


def head_units(packet: bytes | memoryview, codec: str, length: int) -> list[bytes]:
    """Return the units of an access unit up to its first slice, of which only the beginning is included."""
    if len(packet) > _HEAD:
        units = _head_units(bytes(packet[:_HEAD]), codec, length)
        if units and is_slice(units[-1], codec):
            return units
    return _head_units(bytes(packet), codec, length)


def _head_units(data: bytes, codec: str, length: int) -> list[bytes]:
    units: list[bytes] = []
    for unit in nal_units(data, length):
        if is_slice(unit, codec):
            return [*units, unit[:_SLICE_HEAD]]
        units.append(unit)
    return units


def nal_units(data: bytes, length: int) -> Iterator[bytes]:
    """Yield the non-empty units of an access unit.

    Args:
        data: The access unit's bytes.
        length: See `length_bytes`. If it is 4 but the data begins with a start code, start codes are used:
            some writers announce lengths but write start codes, and a length of 1 is impossible.
    """
    if not length or (length == 4 and data.startswith(b"\0" + START)):
        at = data.find(START)
        while at >= 0:
            begin = at + len(START)
            at = data.find(START, begin)
            unit = data[begin:] if at < 0 else data[begin:at]
            if unit.strip(b"\0"):
                yield unit
        return
    at = 0
    while at + length < len(data):
        size = int.from_bytes(data[at : at + length], "big")
        unit = data[at + length : at + length + size]
        if unit:
            yield unit
        at += length + size


def recovery_frames(sei: bytes) -> int:
    """Return how many frames to wait according to an SEI unit's recovery point message; 0 if it has none
    (ITU-T H.264, D.2.8)."""
    at = 0
    while at + 2 < len(sei):
        kind, at = _chunked(sei, at)
        size, at = _chunked(sei, at)
        if kind == RECOVERY_POINT:
            # The message's first field is the number of frames.
            return _exp_golomb(sei[at : at + max(size, 1)])
        at += size
    return 0


def _chunked(data: bytes, at: int) -> tuple[int, int]:
    value = 0
    while at < len(data) and data[at] == 0xFF:
        value, at = value + 255, at + 1
    return (value + data[at], at + 1) if at < len(data) else (value, at)


def _exp_golomb(data: bytes, skip: int = 0) -> int:
    """Return the unsigned Exp-Golomb number at the start of `data`, after skipping `skip` others; 0 if it is
    cut off."""
    bits = "".join(f"{byte:08b}" for byte in data[:24].replace(b"\0\0\3", b"\0\0"))
    value, at = 0, 0
    for _ in range(skip + 1):
        first_bit = bits.find("1", at)
        end = 2 * first_bit - at + 1
        if first_bit < 0 or end > len(bits):
            return 0
        value, at = int(bits[first_bit:end], 2) - 1, end
    return value


def set_key(unit: bytes, codec: str) -> tuple[int, int] | None:
    """Return (type, number) of a parameter set; None for other units.

    Args:
        unit: The unit with its header.
        codec: h264 or hevc.
    """
    if codec == "h264":
        kind = unit[0] & 0x1F
        if kind == 7:
            return kind, _exp_golomb(unit[4:])  # after profile, constraints and level
        return (kind, _exp_golomb(unit[1:])) if kind == 8 else None
    kind = unit[0] >> 1 & 0x3F
    if kind == 32 and len(unit) > 2:
        return kind, unit[2] >> 4
    if kind == 33 and len(unit) > 2:
        return kind, _sps_number(unit[2:].replace(b"\0\0\3", b"\0\0"))
    return (kind, _exp_golomb(unit[2:])) if kind == 34 else None


def _sps_number(body: bytes) -> int:
    """Return the number of an HEVC sequence parameter set, which follows its profile and levels (ITU-T H.265,
    7.3.3)."""
    layers = body[0] >> 1 & 7
    at = 13  # one byte, and 12 of the general profile and level
    if layers:
        present = int.from_bytes(body[at : at + 2], "big")
        at += 2
        for layer in range(layers):
            flags = present >> (14 - 2 * layer) & 3
            at += 11 * (flags >> 1) + (flags & 1)
    return _exp_golomb(body[at:])
