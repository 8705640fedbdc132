"""The parameter sets in force at each keyframe of a stream that changes them.

H.264 and HEVC streams may change their parameter sets between two pictures and need not repeat them, and an
MP4 file may have several sample descriptions. After such a change, every keyframe carries the sets in force,
so that decoding and cutting may begin at any keyframe.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import av
from av.packet import PacketSideData

from lookout.video.segments.nal import START, head_units, is_key, length_bytes, nal_units, set_key

_NAL_CODECS: Final = ("h264", "hevc")
_RAW_CODECS: Final = ("mpeg4", "mpeg2video", "mpeg1video")  # stream and container have the same form
_AUD: Final = {"h264": 9, "hevc": 35}  # the delimiter at the beginning of an access unit


@dataclass(frozen=True, slots=True)
class Sets:
    """The configuration that a decoder needs at a keyframe.

    Attributes:
        codec: Name of the codec.
        units: Parameter sets, without start codes or lengths; for other codecs, the configuration.
        length: Bytes of the length field in front of the keyframe's units, see `length_bytes`.
        configuration: The new configuration as in an MP4 sample description; None if it did not change.
    """

    codec: str
    units: tuple[bytes, ...]
    length: int
    configuration: PacketSideData | None


class SetsInForce:
    """Follows the parameter sets through a stream's packets.

    Args:
        codec: Name of the codec.
        extradata: The decoder's configuration from the container.
        always: Whether every keyframe gets its `Sets`, even if they did not change.

    Attributes:
        changed: Whether the sets differ from those of the container.
        length: Bytes of the length field in front of every unit, see `length_bytes`.
    """

    def __init__(self, codec: str, extradata: bytes | None, *, always: bool = False) -> None:
        self.changed, self._always = False, always
        self.length = length_bytes(extradata, codec)
        self._codec = codec
        self._configuration: PacketSideData | None = None
        self._raw = b""
        self._sets = _sets_of(extradata or b"", codec)

    def mark(self, packet: av.Packet) -> av.Packet:
        """Process the next packet. A keyframe after a change gets its `Sets`; a packet that only the
        container calls a keyframe loses that mark."""
        if packet.has_sidedata("new_extradata"):
            self._configure(packet.get_sidedata("new_extradata"))
        if self._codec in _NAL_CODECS:
            units = head_units(memoryview(packet), self._codec, self.length)
            self._take(units)
            if packet.is_keyframe and not is_key(units, self._codec):
                packet.is_keyframe = False
        if packet.is_keyframe and (self.changed or (self._always and self._sets)):
            units = [self._raw] if self._codec in _RAW_CODECS else list(self._sets.values())
            packet.opaque = Sets(self._codec, tuple(units), self.length, self._configuration)
        return packet

    def differs(self, units: list[bytes]) -> bool:
        """Whether any of the units is a parameter set that differs from those in force."""
        return any(self._sets.get(key) != unit.rstrip(b"\0") for key, unit in _keyed(units, self._codec))

    def _configure(self, configuration: PacketSideData) -> None:
        data = bytes(configuration)
        self.changed, self._configuration, self._raw = True, configuration, data
        self.length = length_bytes(data, self._codec)
        self._sets = _sets_of(data, self._codec)

    def _take(self, units: list[bytes]) -> None:
        for key, raw_unit in _keyed(units, self._codec):
            unit = raw_unit.rstrip(b"\0")
            if self._sets.get(key) != unit:
                self.changed = True
                self._sets[key] = unit
                self._sets = dict(sorted(self._sets.items()))


def with_sets(packet: av.Packet, length: int | None = None) -> av.Packet:
    """Return a packet that has its parameter sets among its bytes; the same packet if none changed.

    Args:
        packet: A packet from `SetsInForce`.
        length: Bytes of the length field that the reader expects in front of every unit; None: unchanged.
    """
    sets = packet.opaque
    if not isinstance(sets, Sets):
        return packet
    data = bytes(packet)
    if sets.codec in _NAL_CODECS:
        own = list(nal_units(data, sets.length))
        named = {key for key, _ in _keyed(own, sets.codec)}
        missing = [unit for unit in sets.units if set_key(unit, sets.codec) not in named]
        at = 1 if own and _kind(own[0], sets.codec) == _AUD[sets.codec] else 0
        data = _joined([*own[:at], *missing, *own[at:]], sets.length if length is None else length)
    elif not data.startswith(sets.units):
        data = b"".join(sets.units) + data
    out = av.Packet(data)
    out.pts, out.dts, out.duration, out.time_base = packet.pts, packet.dts, packet.duration, packet.time_base
    out.is_keyframe = packet.is_keyframe
    if length is None and sets.configuration is not None:
        out.set_sidedata(sets.configuration)
    return out


def _joined(units: list[bytes], length: int) -> bytes:
    if not length:
        return b"".join(b"\0" + START + unit for unit in units)
    return b"".join(len(unit).to_bytes(length, "big") + unit for unit in units)


def _kind(unit: bytes, codec: str) -> int:
    return unit[0] & 0x1F if codec == "h264" else unit[0] >> 1 & 0x3F


def _keyed(units: list[bytes], codec: str) -> list[tuple[tuple[int, int], bytes]]:
    return [(key, unit) for unit in units if (key := set_key(unit, codec)) is not None]


def _sets_of(extradata: bytes, codec: str) -> dict[tuple[int, int], bytes]:
    """Return the parameter sets of a configuration: avcC, hvcC, or units with start codes."""
    if codec not in _NAL_CODECS:
        return {}
    if not length_bytes(extradata, codec):
        units = list(nal_units(extradata, 0))
    elif codec == "h264":
        units = _avc_units(extradata)
    else:
        units = _hevc_units(extradata)
    return {key: unit.rstrip(b"\0") for key, unit in _keyed(units, codec)}


def _avc_units(data: bytes) -> list[bytes]:
    """Return the sets of an avcC box (ISO/IEC 14496-15, 5.3.3.1)."""
    units: list[bytes] = []
    at = 5
    for mask in (0x1F, 0xFF):
        count, at = (data[at] & mask, at + 1) if at < len(data) else (0, at)
        at = _sized(data, at, count, units)
    return units


def _hevc_units(data: bytes) -> list[bytes]:
    """Return the sets of an hvcC box (ISO/IEC 14496-15, 8.3.3.1)."""
    units: list[bytes] = []
    at = 23
    for _ in range(data[22]):
        at = _sized(data, at + 3, int.from_bytes(data[at + 1 : at + 3], "big"), units)
    return units


def _sized(data: bytes, at: int, count: int, units: list[bytes]) -> int:
    """Append `count` units with two-byte lengths to `units`; return where they end."""
    for _ in range(count):
        size = int.from_bytes(data[at : at + 2], "big")
        if unit := data[at + 2 : at + 2 + size]:
            units.append(unit)
        at += 2 + size
    return at
