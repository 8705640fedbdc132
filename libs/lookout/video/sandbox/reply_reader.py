"""Validates the replies of untrusted decoder processes.

If hostile bytes have taken over a process, it must not be able to do more than give a wrong answer. A reply
consists of a message of scalars, each of which is checked against the request, and of planes, whose shapes
are computed here. Nothing that can be computed here is read from a reply. The time and memory for reading are
in proportion to the request's limits, whatever the reply contains.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from fractions import Fraction
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
from google.protobuf.message import DecodeError, Message

from lookout.video.files.begin import MINUTE_OFFSETS, begin_of_numbers, is_plausible
from lookout.video.files.clipping import CLIP_CONTAINERS, RecordingClip
from lookout.video.motion.geometry import Geometry
from lookout.video.motion.types import F16, U8, Basis, FrameInfo, Motion, Picture
from lookout.video.sandbox import sandbox_pb2 as pb
from lookout.video.sandbox.exchange import read_all
from lookout.video.sandbox.jobs import (
    ClipRequest,
    InspectRequest,
    PortableGather,
    Request,
    SampleRequest,
    TableRequest,
)
from lookout.video.sandbox.reply_writer import BASES, REASONS, WORK
from lookout.video.segments.inspection import INSPECT_LIMITS, Inspection
from lookout.video.segments.types import (
    CLIP_CODECS,
    FILE_LIMITS,
    ClipSpan,
    CodecError,
    CutRequest,
    DecodedSegment,
    DecodeRequest,
    JoinedClip,
    JoinRequest,
    Limits,
    MaskRequest,
    Reason,
    SampledFrame,
    Segment,
    SegmentFacts,
)

MAX_REPLY = 4 << 20
"""Maximum bytes of a reply message."""
MAX_PIECES = 100_000
MAX_SPANS = 10_000
MAX_BOXES = 1 << 20
"""Bytes allowed for a clip's boxes, in addition to its pictures."""
MAX_NUMBER = 1 << 53
"""Bound on times in microseconds and on counts; sums of a few of them fit in 64 bits."""
MAX_RATE = 1e6  # frames per second: one per microsecond
_NAME = re.compile(r"[a-z0-9_,\-]{0,60}")
_CODECS = re.compile(r"[A-Za-z0-9.]{1,60}")
_REASONS = {value: reason for reason, value in REASONS.items()}
_BASES = {value: basis for basis, value in BASES.items()}
_TABLE_FLAGS = 3
_TABLE_NUMBERS = 3


class ReplyError(ValueError):
    """The reply is not a valid answer to the request."""


class BugError(Exception):
    """The code in the process failed; the message is the traceback."""


@dataclass(frozen=True, slots=True)
class TableReply:
    """A recording's packet table. The columns are those of `FrameTable`.

    `size`: (height, width) of the upright picture, (0, 0) if there are no packets; `listed`, `promised_us`
    and `begins`: number of packets, length and begin as the container claims.
    """

    container: str
    codec: str
    width: int
    height: int
    damage: str
    listed: int
    promised_us: int
    begins: datetime | None
    size: tuple[int, int]
    time_base: Fraction
    fps: Fraction
    stamped: bool
    reordered: bool
    pts: npt.NDArray[np.int64]
    dts: npt.NDArray[np.int64]
    bytes: npt.NDArray[np.int64]
    key: npt.NDArray[np.bool_]
    clean: npt.NDArray[np.bool_]
    discard: npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class SampledPick:
    """A decoded frame. `pick`: its index among the picks; `pixels`: uint8 [height, width, 3]."""

    pick: int
    key: bool
    corrupt: bool
    picture: Picture
    pixels: U8


@dataclass(frozen=True, slots=True)
class SamplesReply:
    """Decoded frames in order. `work`: decoding counters by the names in `reply_writer.WORK`."""

    frames: tuple[SampledPick, ...]
    work: dict[str, int]


Clip = RecordingClip | JoinedClip
Result = DecodedSegment | Inspection | tuple[Segment, ...] | TableReply | SamplesReply | Clip | bytes


class Planes:
    """Reads the shared output from its beginning.

    Args:
        fd: The shared file.
        limit: Maximum bytes to read from it.
    """

    def __init__(self, fd: int, limit: int) -> None:
        self._fd, self._left, self._offset = fd, limit, 0

    def take(self, size: int) -> bytearray:
        """Return a copy of the next bytes.

        Raises:
            ReplyError: The bytes are missing, or exceed the limit.
        """
        if size > self._left:
            raise ReplyError(f"its planes exceed the limit by {size - self._left} bytes")
        try:
            data = read_all(self._fd, size, self._offset)
        except EOFError as error:
            raise ReplyError(str(error)) from None
        self._left, self._offset = self._left - size, self._offset + size
        return data

    def array(self, shape: tuple[int, ...], kind: str) -> np.ndarray:
        """Return a copy of the next bytes as an array."""
        size = math.prod(shape) * np.dtype(kind).itemsize
        return np.frombuffer(self.take(size), kind).reshape(shape)


def parse_reply(message: bytes, number: int) -> pb.Reply:
    """Parse a reply.

    Args:
        message: The bytes from the pipe.
        number: Number of the job that the reply must answer.

    Raises:
        ReplyError: The bytes are not a valid reply, or they answer another job.
    """
    reply = pb.Reply()
    try:
        reply.ParseFromString(message)
    except (DecodeError, ValueError) as error:
        raise ReplyError(f"not a valid message ({error})") from None
    if reply.number != number or reply.WhichOneof("outcome") is None:
        raise ReplyError(f"it does not answer job {number}")
    return reply


def raise_failure(reply: pb.Reply) -> None:
    """Raise the failure that a reply reports, if it reports one.

    Raises:
        CodecError: The input cannot be decoded; `reason` says why.
        BugError: The code in the process failed.
    """
    if reply.HasField("refusal"):
        reason = _REASONS.get(reply.refusal.reason, Reason.POISON)
        raise CodecError(reason, clean_text(reply.refusal.detail, 2000))
    if reply.HasField("bug"):
        raise BugError(clean_text(reply.bug.trace, 20_000, lines=True))


def read_result(reply: pb.Reply, request: Request, size: int, planes: Planes) -> Result:
    """Return the validated result of a job.

    Args:
        reply: The reply.
        request: The request.
        size: Size of the segment in bytes.
        planes: The shared output.

    Raises:
        ReplyError: The reply is not a valid answer to the request.
    """
    match request:
        case DecodeRequest():
            return _decoded(_outcome(reply, "decoded"), request, size, planes)
        case InspectRequest():
            return _inspection(_outcome(reply, "inspected"), request)
        case CutRequest():
            return _pieces(_outcome(reply, "pieces"), request, planes)
        case TableRequest():
            return _table(_outcome(reply, "table"), request, planes)
        case SampleRequest():
            return _samples(_outcome(reply, "samples"), request, planes)
        case ClipRequest() | JoinRequest() | MaskRequest():
            return _footage(reply, request, planes)


def clean_text(text: str, limit: int, *, lines: bool = False) -> str:
    """Return a process's text, limited to printable characters and to `limit` of them; with `lines`, line
    breaks are kept.
    """
    return "".join(c if c.isprintable() or (lines and c == "\n") else "\ufffd" for c in text[:limit])


def _outcome(reply: pb.Reply, name: str) -> Any:
    kind = reply.WhichOneof("outcome")
    if kind != name:
        raise ReplyError(f"it contains {kind} instead of {name}")
    return getattr(reply, name)


def _integer(message: Message, field: str, least: int, limit: int) -> int:
    value: int = getattr(message, field)
    if not least <= value <= limit:
        raise ReplyError(f"{field} is {value}, outside {least} to {limit}")
    return value


def _number(message: Message, field: str, least: float, limit: float) -> float:
    value: float = getattr(message, field)
    if not least <= value <= limit:  # also false for NaN
        raise ReplyError(f"{field} is {value}, outside {least:g} to {limit:g}")
    return value


def _name(message: Message, field: str) -> str:
    value: str = getattr(message, field)
    if not _NAME.fullmatch(value):
        raise ReplyError(f"{field} is not a valid name")
    return value


def _size(message: Message, limits: Limits, names: tuple[str, str] = ("width", "height")) -> tuple[int, int]:
    width, height = (_integer(message, name, 1, limits.side) for name in names)
    if width * height > limits.pixels:
        raise ReplyError(f"a picture of {width}x{height} exceeds the limit of {limits.pixels} pixels")
    return width, height


def _one_of(value: int, allowed: Sequence[int], field: str) -> int:
    if value not in allowed:
        raise ReplyError(f"{field} is {value}, which is not allowed")
    return value


def _decoded(message: pb.Decoded, request: DecodeRequest, size: int, planes: Planes) -> DecodedSegment:
    facts = _facts(message.facts, request.limits, size)
    count = len(message.frames)
    limit = min(facts.frames, request.limits.frames, len(request.frames or ()) or request.limits.frames)
    if count > limit:
        raise ReplyError(f"it has {count} samples, but at most {limit} are possible")
    geometry = Geometry.fitted(
        (facts.width, facts.height),
        (request.width, request.height),
        request.fit,
        rotation=facts.rotation,
        mirror=message.mirror,
    )
    expected = request.expected
    continued = expected is not None and expected.holds(facts.first_us)
    offset = facts.first_us - expected.epoch_us if expected is not None and continued else 0
    floor = request.first_slot if continued or expected is None else 0
    infos = [_frame_info(frame, request.limits) for frame in message.frames]
    slots = [request.grid.slot(offset + info.time_us) for info in infos]
    _check_order(infos, slots, floor, facts.frames, request)
    # The last frame may last as long as the longest pause. Frame rates below one frame in two minutes are
    # rejected.
    longest = round(2e6 * request.limits.seconds) + 120_000_000
    pixels = planes.array((count, request.height, request.width, 3), "u1")
    motions = _motions(message.frames, request, planes)
    frames = [
        SampledFrame(info, slot, offset + info.time_us, motion)
        for info, slot, motion in zip(infos, slots, motions, strict=True)
    ]
    return DecodedSegment(
        pixels=pixels,
        frames=tuple(frames),
        facts=facts,
        geometry=geometry,
        continued=continued,
        next_slot=max([floor, *(slot + 1 for slot in slots)]),
        end_stream_us=_integer(message, "end_stream_us", offset, offset + longest),
    )


def _facts(message: pb.Facts, limits: Limits, size: int) -> SegmentFacts:
    width, height = _size(message, limits)
    # A demuxer may read one packet too many, and a packet gives at most two frames (fields).
    limit = 2 * (limits.frames + 1)
    counts = ("decoded", "keyframes", "intra", "corrupt", "refused", "leading_lost", "jumps", "sizes")
    numbers: dict[str, Any] = {name: _integer(message, name, 0, limit) for name in (*counts, "interlaced")}
    return SegmentFacts(
        container=_name(message, "container"),
        codec=_name(message, "codec"),
        profile=clean_text(message.profile, 60),
        width=width,
        height=height,
        rotation=_one_of(message.rotation, (0, 90, 180, 270), "rotation"),
        fps=_number(message, "fps", 0.0, MAX_RATE),
        timed=message.timed,
        first_us=_integer(message, "first_us", -MAX_NUMBER, MAX_NUMBER),
        end_us=_integer(message, "end_us", -MAX_NUMBER, MAX_NUMBER),
        bytes=size,
        packets=_integer(message, "packets", 1, limits.frames + 1),
        frames=_integer(message, "frames", 1, limits.frames),
        has_vectors=message.has_vectors,
        **numbers,
    )


def _frame_info(message: pb.Frame, limits: Limits) -> FrameInfo:
    width, height = _size(message, limits)
    return FrameInfo(
        index=_integer(message, "index", 0, limits.frames),
        time_us=_integer(message, "time_us", 0, round(1e6 * limits.seconds)),
        picture=Picture(_one_of(message.picture, tuple(Picture), "picture")),
        key=message.key,
        corrupt=message.corrupt,
        interlaced=message.interlaced,
        width=width,
        height=height,
        jump=message.jump,
    )


def _check_order(
    infos: Sequence[FrameInfo], slots: Sequence[int], floor: int, frames: int, request: DecodeRequest
) -> None:
    """Check that samples are in order and were requested."""
    for before, info in pairwise(infos):
        if info.index <= before.index or info.time_us <= before.time_us:
            raise ReplyError(f"frame {info.index} at {info.time_us} us is not after frame {before.index}")
    if infos and infos[-1].index >= frames:
        raise ReplyError(f"it has frame index {infos[-1].index}, but only {frames} frames were decoded")
    if request.frames is not None:
        if not {info.index for info in infos} <= set(request.frames):
            raise ReplyError("it has a frame that was not requested")
        return
    if slots and slots[0] < floor:
        raise ReplyError(f"grid point {slots[0]} belongs to an earlier segment")
    if any(slot <= before for before, slot in pairwise(slots)):
        raise ReplyError("it has two samples for one grid point")


def _motions(frames: Sequence[pb.Frame], request: DecodeRequest, planes: Planes) -> list[Motion | None]:
    gather = request.gather
    if gather is None:
        if any(frame.basis or frame.with_v or frame.with_r for frame in frames):
            raise ReplyError("it has motion that was not requested")
        return [None] * len(frames)
    if not isinstance(gather, PortableGather):
        raise ReplyError("the request's gather has no grid")
    rows, cols = gather.grid
    motions: list[Motion | None] = []
    for frame in frames:
        basis = _BASES.get(frame.basis)
        if basis is None or ((frame.with_v or frame.with_r) and basis is not Basis.VECTORS):
            raise ReplyError(f"basis is {frame.basis}, which is not allowed")
        v = _grid(planes, rows, cols, infinite=True) if frame.with_v else None
        r = _grid(planes, rows, cols, infinite=False) if frame.with_r else None
        motions.append(Motion(basis, v, r))
    return motions


def _grid(planes: Planes, rows: int, cols: int, *, infinite: bool) -> F16:
    grid: F16 = planes.array((rows, cols), "<f2")
    if not (grid >= 0).all() or (not infinite and np.isinf(grid).any()):
        raise ReplyError("a motion grid has an invalid displacement")
    return grid


def _inspection(message: pb.Inspected, request: InspectRequest) -> Inspection:
    limits = INSPECT_LIMITS
    numbers: dict[str, Any] = {}
    if message.width or message.height:
        numbers["width"], numbers["height"] = _size(message, limits)
    counts = (
        *("packets", "frames", "keyframes", "anchors", "vectors", "corrupt", "refused"),
        *("leading_lost", "jumps", "sizes", "interlaced"),
    )
    numbers |= {name: _integer(message, name, 0, MAX_NUMBER) for name in counts}
    if message.motion not in ("", "vectors", "luma"):
        raise ReplyError("motion is not a valid basis")
    reason = _REASONS.get(message.reason, Reason.POISON) if message.HasField("reason") else None
    return Inspection(
        path=request.path,
        bytes=request.size,
        container=_name(message, "container"),
        codec=_name(message, "codec"),
        profile=clean_text(message.profile, 60),
        rotation=_one_of(message.rotation, (0, 90, 180, 270), "rotation"),
        fps=_number(message, "fps", 0.0, MAX_RATE),
        seconds=_number(message, "seconds", 0.0, MAX_NUMBER / 1e6),
        timed=message.timed,
        blocks=_number(message, "blocks", 0.0, MAX_NUMBER),
        motion=message.motion,
        reason="" if reason is None else reason.value,
        error="" if reason is None else clean_text(message.error, 2000),
        **numbers,
    )


def _pieces(message: pb.Pieces, request: CutRequest, planes: Planes) -> tuple[Segment, ...]:
    if len(message.pieces) > MAX_PIECES:
        raise ReplyError(f"{len(message.pieces)} pieces are too many")
    pieces: list[Segment] = []
    total = 0
    for index, piece in enumerate(message.pieces, request.first):
        if total >= request.limit:
            raise ReplyError(f"more pieces than needed for {request.limit} bytes")
        total += _integer(piece, "bytes", 1, request.max_bytes)
        start = _integer(piece, "start_us", pieces[-1].start_us + 1 if pieces else 0, MAX_NUMBER)
        duration, frames = (
            _integer(piece, "duration_us", 1, MAX_NUMBER),
            _integer(piece, "frames", 1, MAX_NUMBER),
        )
        container = _name(piece, "container")
        data = bytes(planes.take(piece.bytes))
        pieces.append(Segment(data, start, duration, frames, index, container, piece.jump))
    return tuple(pieces)


def _table(message: pb.Table, request: TableRequest, planes: Planes) -> TableReply:
    count = _integer(message, "packets", 0, request.size)  # every packet takes a byte of the file
    numbers = [planes.array((count,), "<i8") for _ in range(_TABLE_NUMBERS)]
    flags = [planes.array((count,), "u1") for _ in range(_TABLE_FLAGS)]
    if any((flag > 1).any() for flag in flags):
        raise ReplyError("a flag is neither 0 nor 1")
    pts, dts, size = numbers
    key, clean, discard = (flag.astype(np.bool_) for flag in flags)
    if (size < 0).any() or (size > 1 << 31).any() or (clean & ~key).any():
        raise ReplyError("its packet table is inconsistent")
    ticks = 1 << 31
    base = Fraction(
        _integer(message, "time_base_num", 1, ticks), _integer(message, "time_base_den", 1, ticks)
    )
    fps = Fraction(_integer(message, "fps_num", 1, ticks), _integer(message, "fps_den", 1, ticks))
    if not Fraction(1, 120) <= fps <= 1000:
        raise ReplyError(f"{float(fps):g} frames a second is not a valid rate")
    upright = (0, 0)
    if message.upright_width or message.upright_height:
        width, height = _size(message, FILE_LIMITS, ("upright_width", "upright_height"))
        upright = (height, width)
    side = FILE_LIMITS.side
    return TableReply(
        container=_name(message, "container"),
        codec=_name(message, "codec"),
        width=_integer(message, "width", 0, side),
        height=_integer(message, "height", 0, side),
        damage=clean_text(message.damage, 200),
        listed=_integer(message, "listed", 0, MAX_NUMBER),
        promised_us=_integer(message, "promised_us", 0, MAX_NUMBER),
        begins=_begins(message),
        size=upright,
        time_base=base,
        fps=fps,
        stamped=message.stamped,
        reordered=message.reordered,
        pts=pts,
        dts=dts,
        bytes=size,
        key=key,
        clean=clean,
        discard=discard,
    )


def _begins(message: pb.Table) -> datetime | None:
    """Return when the recording begins; None if it is not stated or implausible."""
    if not message.HasField("begins_us"):
        return None
    day = MINUTE_OFFSETS - 1
    begin = begin_of_numbers(
        _integer(message, "begins_us", 0, MAX_NUMBER), _integer(message, "begins_offset_min", -day, day)
    )
    return begin if is_plausible(begin, datetime.now(UTC)) else None


def _samples(message: pb.Samples, request: SampleRequest, planes: Planes) -> SamplesReply:
    count, limit = len(message.samples), len(request.picks)
    if count > limit:
        raise ReplyError(f"it has {count} frames, but {limit} were requested")
    places = [_integer(sample, "pick", 0, limit - 1) for sample in message.samples]
    if any(place <= before for before, place in pairwise(places)):
        raise ReplyError("its frames are out of order")
    pictures = [Picture(_one_of(sample.picture, tuple(Picture), "picture")) for sample in message.samples]
    work = {name: _integer(message, name, 0, MAX_NUMBER) for name in WORK}
    pixels = planes.array((count, *request.size, 3), "u1")
    frames = [
        SampledPick(place, sample.key, sample.corrupt, picture, pixels[row])
        for row, (place, sample, picture) in enumerate(zip(places, message.samples, pictures, strict=True))
    ]
    return SamplesReply(tuple(frames), work)


def _footage(
    reply: pb.Reply, request: ClipRequest | JoinRequest | MaskRequest, planes: Planes
) -> Clip | bytes:
    if isinstance(request, ClipRequest):
        return _clip(_outcome(reply, "clip"), request, planes)
    if isinstance(request, MaskRequest):
        masked: pb.Masked = _outcome(reply, "masked")
        return bytes(planes.take(_integer(masked, "bytes", 1, request.max_bytes)))
    return _joined(_outcome(reply, "joined"), request, planes)


def _clip(message: pb.Clip, request: ClipRequest, planes: Planes) -> RecordingClip:
    size = _integer(message, "bytes", 1, request.max_bytes)
    start_us = _integer(message, "start_us", 0, request.end_us)
    container = _name(message, "container")
    if container not in CLIP_CONTAINERS.values():
        raise ReplyError(f"a clip cannot be in {container}")
    end_us, frames = (
        _integer(message, "end_us", start_us + 1, MAX_NUMBER),
        _integer(message, "frames", 1, MAX_NUMBER),
    )
    return RecordingClip(bytes(planes.take(size)), start_us, end_us, frames, container)


def _joined(message: pb.Joined, request: JoinRequest, planes: Planes) -> JoinedClip:
    size = _integer(message, "bytes", 1, 2 * request.max_bytes + MAX_BOXES)
    codec = _name(message, "codec")
    if codec not in CLIP_CODECS:
        raise ReplyError(f"a clip cannot be of {codec} video")
    if not _CODECS.fullmatch(message.codecs):
        raise ReplyError("codecs is not a valid name")
    spans = tuple(
        ClipSpan(
            _integer(span, "at_us", 0, MAX_NUMBER),
            _integer(span, "start_us", 0, MAX_NUMBER),
            _integer(span, "end_us", span.start_us + 1, MAX_NUMBER),
        )
        for span in message.spans[:MAX_SPANS]
    )
    if not spans:
        raise ReplyError("the clip has no span of time")
    return JoinedClip(
        bytes(planes.take(size)),
        codec,
        message.codecs,
        _integer(message, "width", 1, MAX_NUMBER),
        _integer(message, "height", 1, MAX_NUMBER),
        _integer(message, "frames", 1, MAX_NUMBER),
        spans,
        _integer(message, "end_us", 1, MAX_NUMBER),
        masked=request.mask is not None,
    )
