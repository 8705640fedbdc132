"""The part of H.264's syntax that FFmpeg does not report: does a keyframe show the whole picture at once?"""

from __future__ import annotations

from collections.abc import Iterator

SEI = 6
IDR = 5
RECOVERY_POINT = 6
HEVC_SLICES = 32  # units below are slices
RASL = (8, 9)
GROUP_HEADER = b"\0\0\1\xb8"


def begins_clean(data: bytes, codec: str) -> bool:
    """False for a keyframe that is only the start of a gradual intra refresh (H.264 recovery point with
    frames to wait for): decoding there yields nothing until the picture is whole."""
    if codec != "h264":
        return True
    wait = 0
    for nal in nal_units(data):
        kind = nal[0] & 0x1F
        if kind == IDR:
            return True
        if kind == SEI:
            wait = max(wait, recovery_frames(nal[1:]))
    return wait == 0


def skipped_leading(data: bytes) -> bool:
    """Whether an HEVC access unit is a leading picture that refers to pictures before its keyframe (RASL)."""
    kinds = [nal[0] >> 1 & 0x3F for nal in nal_units(data)]
    slices = [kind for kind in kinds if kind < HEVC_SLICES]
    return bool(slices) and all(kind in RASL for kind in slices)


def may_lead(keyframe: bytes, codec: str) -> bool:
    """Whether pictures that follow a keyframe and are shown before it may refer to pictures before it.

    Args:
        keyframe: Its access unit.
        codec: Name of the codec.
    """
    if codec == "h264":
        return all(nal[0] & 0x1F != IDR for nal in nal_units(keyframe))
    if codec in ("mpeg1video", "mpeg2video"):
        header = keyframe.find(GROUP_HEADER)
        # Bit 25 of a group's header says that they refer to nothing before it (ISO/IEC 13818-2, 6.3.8).
        return not (0 <= header < len(keyframe) - 7 and keyframe[header + 7] & 0x40)
    return codec == "hevc"


def holds_slice(data: bytes) -> bool:
    """Whether the beginning of an H.264 access unit reaches its first slice."""
    # Types 1 to 5 are the slices of a picture (H.264, table 7-1).
    return any(1 <= nal[0] & 0x1F <= IDR for nal in nal_units(data))


def nal_units(data: bytes) -> Iterator[bytes]:
    """The non-empty units of an access unit, in Annex B or with 4-byte lengths."""
    if data.startswith((b"\0\0\1", b"\0\0\0\1")):
        yield from (unit for unit in data.split(b"\0\0\1") if unit.strip(b"\0"))
        return
    at = 0
    while at + 4 < len(data):
        size = int.from_bytes(data[at : at + 4], "big")
        unit = data[at + 4 : at + 4 + size]
        if unit:
            yield unit
        at += 4 + size


def recovery_frames(sei: bytes) -> int:
    """Frames to wait for according to an SEI unit's recovery point message, 0 without one (ITU-T H.264,
    D.2.8)."""
    at = 0
    while at + 2 < len(sei):
        kind, at = _chunked(sei, at)
        size, at = _chunked(sei, at)
        if kind == RECOVERY_POINT:
            # Its first field is the number of frames.
            return _exp_golomb(sei[at : at + max(size, 1)])
        at += size
    return 0


def _chunked(data: bytes, at: int) -> tuple[int, int]:
    value = 0
    while at < len(data) and data[at] == 0xFF:
        value, at = value + 255, at + 1
    return (value + data[at], at + 1) if at < len(data) else (value, at)


def _exp_golomb(data: bytes) -> int:
    """The unsigned Exp-Golomb number at the start of `data`; 0 where it is cut short."""
    bits = "".join(f"{byte:08b}" for byte in data[:8])
    zeros = len(bits) - len(bits.lstrip("0"))
    code = bits[zeros : 2 * zeros + 1]
    return int(code, 2) - 1 if len(code) == zeros + 1 else 0
