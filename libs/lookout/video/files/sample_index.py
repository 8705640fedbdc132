"""Builds the frame table of an MP4 or MOV file from its index (ISO/IEC 14496-12), reading only a few packets.

FFmpeg reports every sample's decoding time, size and position, but not its presentation time, which is in the
track's `ctts` box. A table is built only if FFmpeg and the boxes agree, the first packets match the table,
the time stamps need no repair, and no keyframe brings other parameter sets.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

import av
import numpy as np
import numpy.typing as npt

from lookout.video.files.table import I64, FrameColumns, FrameTable, Lead, table_of
from lookout.video.segments.clock import OUTLIER_US
from lookout.video.segments.container import ByteSource, Video, source_size
from lookout.video.segments.nal import begins_clean, head_units, holds_slice, is_key
from lookout.video.segments.types import CodecError

CHECKED = 8
"""Packets that are read and compared with the index."""
BOX_BYTES = 256 * 1024 * 1024
"""Maximum bytes of an index that is read."""
HEAD = 4096
"""Bytes of a keyframe that usually suffice to tell whether decoding can begin there."""


class _UnfitError(Exception):
    """The index is not sufficient for a table."""


def indexed_table(video: Video, file: ByteSource) -> tuple[FrameTable, list[av.Packet]] | None:
    """Return the table of an open video, and its first packets, which were read from `video`.

    Args:
        video: Open, nothing read yet. If None is returned, it must be opened again before it is read.
        file: Another reader of the same bytes.

    Returns:
        The table and packets; None if the container has no such index, or if the index and FFmpeg disagree.
    """
    end = source_size(file)
    if video.container != "mp4" or end is None:
        return None
    try:
        offsets, sizes = _samples(file, video.stream.id)
        dts, pos, key = _entries(video, sizes, end)
        # If an offset is negative (`ctts` of version 1), FFmpeg moves all times forward.
        pts = dts + offsets + max(0, int(-offsets.min()))
        _check_plain(pts, dts, round(OUTLIER_US / (1_000_000 * video.time_base)))
        clean = _look_at_keyframes(video, file, pos, sizes, key)
    except (_UnfitError, CodecError, OSError, ValueError):
        return None
    first = list(islice(video.packets(), CHECKED))
    demuxed = [(p.pts, p.dts, p.size, p.is_keyframe) for p in first]
    if demuxed != [
        (int(pts[i]), int(dts[i]), int(sizes[i]), bool(key[i])) for i in range(min(CHECKED, len(pts)))
    ]:
        return None
    lead, discard = Lead(video.codec, video.sets.length), np.zeros(len(pts), np.bool_)
    discard[: len(first)] = [lead.drops(packet) for packet in first]
    if lead.open and len(first) > 1:
        return None  # more such pictures may follow the packets that were read
    columns = FrameColumns(pts, dts, key.astype(np.bool_), clean, sizes, discard)
    return table_of(video, columns), first


def _entries(video: Video, sizes: I64, end: int) -> tuple[I64, I64, I64]:
    """Return the decoding time and position of every sample and whether it is a keyframe, as FFmpeg reports
    them.
    """
    entries = video.stream.index_entries
    if len(entries) == 0 or len(entries) != len(sizes):
        raise _UnfitError
    rows = [(e.timestamp, e.pos, e.size, e.is_keyframe, e.is_discard) for e in entries]
    dts, pos, size, key, discard = (np.array(column, np.int64) for column in zip(*rows, strict=True))
    if discard.any() or (size != sizes).any() or (size <= 0).any() or (pos + size > end).any():
        raise _UnfitError
    return dts, pos, key


def _check_plain(pts: I64, dts: I64, outlier: int) -> None:
    """Check that `StreamClock` would leave all time stamps unchanged.

    Raises:
        _UnfitError: `StreamClock` might change a time stamp.
    """
    steps, shown = np.diff(dts), np.sort(pts)
    plain = (steps > 0).all() and (steps <= outlier).all() and (shown[1:] > shown[:-1]).all()
    if not plain or (np.abs(pts - dts) > outlier).any():
        raise _UnfitError


def _look_at_keyframes(
    video: Video, file: ByteSource, pos: I64, sizes: I64, key: I64
) -> npt.NDArray[np.bool_]:
    """Return, for each sample, whether decoding can begin there with a whole picture; clear `key` for samples
    that are wrongly marked as keyframes.

    Raises:
        _UnfitError: A keyframe has parameter sets that differ from those in the index.
    """
    clean = key.astype(np.bool_)
    if video.codec not in ("h264", "hevc"):
        return clean
    for i in np.flatnonzero(key):
        size = int(sizes[i])
        file.seek(int(pos[i]))
        data = file.read(min(size, HEAD))
        if len(data) < size and not holds_slice(data, video.codec, video.sets.length):
            data += file.read(size - len(data))
        units = head_units(data, video.codec, video.sets.length)
        if video.sets.differs(units):
            raise _UnfitError
        key[i] = is_key(units, video.codec)
        clean[i] = key[i] and begins_clean(data, video.codec, video.sets.length)
    return clean


def _samples(file: ByteSource, track: int) -> tuple[I64, I64]:
    """Return (presentation minus decoding time, size) of every sample of a track."""
    moov = _box(file, b"moov")
    if any(kind == b"mvex" for kind, _ in _boxes(moov)):
        raise _UnfitError  # fragmented: the index does not list all samples
    for kind, trak in _boxes(moov):
        if kind == b"trak" and _track_id(trak) == track:
            stbl = _inside(trak, b"mdia", b"minf", b"stbl")
            boxes = dict(_boxes(stbl))
            if int.from_bytes(boxes.get(b"stsd", b"")[4:8], "big") != 1:
                raise _UnfitError  # parameter sets change within the track
            sizes = _sizes(boxes.get(b"stsz", b""))
            return _offsets(boxes.get(b"ctts"), len(sizes)), sizes
    raise _UnfitError


def _box(file: ByteSource, wanted: bytes) -> bytes:
    """Return the body of a top-level box of the file."""
    end, at = source_size(file) or 0, 0
    while at + 8 <= end:
        file.seek(at)
        head = file.read(16)
        size, kind, start = int.from_bytes(head[:4], "big"), head[4:8], 8
        if size == 1:
            size, start = int.from_bytes(head[8:16], "big"), 16
        elif size == 0:
            size = end - at
        if size < start:
            raise _UnfitError
        if kind == wanted:
            if size > BOX_BYTES:
                raise _UnfitError
            file.seek(at + start)
            return _exactly(file, size - start)
        at += size
    raise _UnfitError


def _exactly(file: ByteSource, size: int) -> bytes:
    parts, remaining = [], size
    while remaining:
        part = file.read(remaining)
        if not part:
            raise _UnfitError
        parts.append(part)
        remaining -= len(part)
    return b"".join(parts)


def _boxes(body: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Yield the boxes of a body: (kind, body)."""
    at = 0
    while at + 8 <= len(body):
        size, kind, start = int.from_bytes(body[at : at + 4], "big"), body[at + 4 : at + 8], 8
        if size == 1:
            size, start = int.from_bytes(body[at + 8 : at + 16], "big"), 16
        elif size == 0:
            size = len(body) - at
        if size < start or at + size > len(body):
            raise _UnfitError
        yield kind, body[at + start : at + size]
        at += size


def _inside(body: bytes, *path: bytes) -> bytes:
    for step in path:
        boxes = [inner for kind, inner in _boxes(body) if kind == step]
        if len(boxes) != 1:
            raise _UnfitError
        body = boxes[0]
    return body


def _track_id(trak: bytes) -> int:
    header = _inside(trak, b"tkhd")
    at = 20 if header[:1] == b"\1" else 12
    return int.from_bytes(header[at : at + 4], "big")


def _sizes(stsz: bytes) -> I64:
    if len(stsz) < 12:
        raise _UnfitError
    common, count = int.from_bytes(stsz[4:8], "big"), int.from_bytes(stsz[8:12], "big")
    if common:
        return np.full(count, common, np.int64)
    return _numbers(stsz[12:], count, ">u4")


def _offsets(ctts: bytes | None, count: int) -> I64:
    """Return presentation minus decoding time of each sample; zeros if there is no `ctts` box."""
    if ctts is None:
        return np.zeros(count, np.int64)
    runs = int.from_bytes(ctts[4:8], "big")
    table = _numbers(ctts[8:], 2 * runs, ">i4").reshape(runs, 2)  # FFmpeg reads version 0 as signed, too
    if (table[:, 0] < 0).any() or int(table[:, 0].sum()) != count:
        raise _UnfitError
    return np.repeat(table[:, 1], table[:, 0])


def _numbers(body: bytes, count: int, kind: str) -> I64:
    if len(body) < 4 * count:
        raise _UnfitError
    return np.frombuffer(body, kind, count).astype(np.int64)
