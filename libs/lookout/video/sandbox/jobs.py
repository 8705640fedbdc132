"""Jobs of a decoder process as messages (`sandbox.proto`): written by the pool, read by the process.

The process may trust its jobs: they come from the pool."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Protocol, Self, runtime_checkable

from lookout.text import clean
from lookout.video.motion.geometry import Fit
from lookout.video.motion.hiding import MaskLayer, PictureMask, Polygon
from lookout.video.motion.types import Gather
from lookout.video.sandbox import sandbox_pb2 as pb
from lookout.video.segments.sampling import Expected, Pick, SamplingGrid, Tail
from lookout.video.segments.types import (
    ClipSegment,
    CodecError,
    CutRequest,
    DecodeRequest,
    JoinRequest,
    Limits,
    Reason,
)

FITS = {Fit.STRETCH: pb.FIT_STRETCH, Fit.COVER: pb.FIT_COVER, Fit.CONTAIN: pb.FIT_CONTAIN}
TAILS = {Tail.KEEP: pb.TAIL_KEEP, Tail.LEAVE: pb.TAIL_LEAVE}


@dataclass(frozen=True, slots=True)
class InspectRequest:
    """Decode a file and count. size: bytes of the file."""

    path: str
    size: int


@dataclass(frozen=True, slots=True)
class TableRequest:
    """Count the packets of a file. size: bytes of the file."""

    path: str
    size: int


@dataclass(frozen=True, slots=True)
class SampleRequest:
    """Decode some frames of a file. size: (height, width) in pixels."""

    path: str
    picks: tuple[Pick, ...]
    size: tuple[int, int]
    fit: Fit


@dataclass(frozen=True, slots=True)
class ClipRequest:
    """A range of a file as a file of its own, see `lookout.video.files.clipping.clip`."""

    path: str
    start_us: int
    end_us: int
    max_bytes: int


Request = (
    DecodeRequest | InspectRequest | CutRequest | TableRequest | SampleRequest | ClipRequest | JoinRequest
)


@runtime_checkable
class PortableGather(Gather, Protocol):
    """A gather that can be made again in a decoder process. Its class stands at the top of its module."""

    @property
    def grid(self) -> tuple[int, int]:
        """(rows, cols) of every motion grid."""

    def to_json(self) -> str:
        """The settings it was made with."""

    @classmethod
    def from_json(cls, text: str) -> Self:
        """A fresh gather with these settings."""


def job_message(number: int, request: Request, *, size: int = 0, with_file: bool = False) -> bytes:
    """A request as a job.

    Args:
        number: Counts the jobs of the process.
        request: What is asked.
        size: Bytes of the segment in the shared input.
        with_file: Whether a descriptor is sent along.

    Raises:
        CodecError: With the reason REQUEST where the request cannot be sent.
    """
    job = pb.Job(number=number, with_file=with_file)
    try:
        _fill(job, request, size)
    except UnicodeEncodeError as error:
        name = clean(error.object, 200)
        raise CodecError(
            Reason.REQUEST, f"its name {name} is not UTF-8: rename it, or decode without a sandbox"
        ) from None
    except ValueError as error:  # a number beyond 64 bits
        raise CodecError(Reason.REQUEST, f"the request cannot be sent to a decoder ({error})") from None
    return job.SerializeToString()


def _fill(job: pb.Job, request: Request, size: int) -> None:
    match request:
        case DecodeRequest():
            _fill_decode(job.decode, request, size)
        case InspectRequest(path):
            job.inspect.path = path
        case TableRequest(path):
            job.table.path = path
        case CutRequest(path, target_s, max_bytes, first, limit):
            job.cut.path, job.cut.target_s, job.cut.max_bytes = path, target_s, max_bytes
            job.cut.first, job.cut.limit = first, limit
        case SampleRequest(path, picks, (height, width), fit):
            job.sample.path, job.sample.fit = path, FITS[fit]
            job.sample.height, job.sample.width = height, width
            for pick in picks:
                job.sample.picks.add(index=pick.index, slot=pick.slot, time_us=pick.time_us, pts=pick.pts)
        case ClipRequest(path, start_us, end_us, max_bytes):
            job.clip.path, job.clip.max_bytes = path, max_bytes
            job.clip.start_us, job.clip.end_us = start_us, end_us
        case JoinRequest():
            _fill_join(job.join, request)


def _fill_decode(job: pb.DecodeJob, request: DecodeRequest, size: int) -> None:
    job.bytes, job.width, job.height = size, request.width, request.height
    job.step_us, job.origin_us = request.grid.step_us, request.grid.origin_us
    job.fit, job.tail, job.first_slot = FITS[request.fit], TAILS[request.tail], request.first_slot
    job.vectors = request.vectors
    job.limits.CopyFrom(pb.Limits(**asdict(request.limits)))
    _fill_mask(job, request.mask)
    if request.expected is not None:
        job.expected.CopyFrom(pb.Expected(**asdict(request.expected)))
    if request.frames is not None:
        job.exact = True
        job.frames.extend(request.frames)
    gather = request.gather
    if gather is not None:
        if not isinstance(gather, PortableGather):
            raise CodecError(
                Reason.REQUEST,
                f"{type(gather).__name__} has no to_json and from_json: no sandbox can make it",
            )
        job.gather.module, job.gather.name = type(gather).__module__, type(gather).__qualname__
        job.gather.settings = gather.to_json()


def _fill_join(job: pb.JoinJob, request: JoinRequest) -> None:
    for segment in request.segments:
        job.segments.add(
            bytes=len(segment.data),
            epoch=segment.epoch,
            origin_us=segment.origin_us,
            wall_offset_us=segment.wall_offset_us,
        )
    job.from_us, job.to_us, job.max_bytes = request.from_us, request.to_us, request.max_bytes
    job.at_us, job.fragment = request.at_us, request.fragment
    _fill_mask(job, request.mask)


def _fill_mask(job: pb.DecodeJob | pb.JoinJob, mask: PictureMask | None) -> None:
    if mask is None:
        return
    job.mask.SetInParent()
    for layer in mask.layers:
        message = job.mask.layers.add()
        for polygons, target in ((layer.hide, message.hide), (layer.keep, message.keep)):
            for polygon in polygons:
                target.add(xy=[share for point in polygon for share in point])


def _mask(job: pb.DecodeJob | pb.JoinJob) -> PictureMask | None:
    if not job.HasField("mask"):
        return None
    return PictureMask(
        tuple(
            MaskLayer(
                hide=tuple(_polygon(polygon) for polygon in layer.hide),
                keep=tuple(_polygon(polygon) for polygon in layer.keep),
            )
            for layer in job.mask.layers
        )
    )


def _polygon(message: pb.Polygon) -> Polygon:
    return tuple(zip(message.xy[::2], message.xy[1::2], strict=True))


def decode_request(job: pb.DecodeJob) -> DecodeRequest:
    """What a decode job asks for.

    Raises:
        LookupError: The gather's module was not imported when the process began.
    """
    fits, tails = {value: fit for fit, value in FITS.items()}, {value: tail for tail, value in TAILS.items()}
    expected = job.expected
    return DecodeRequest(
        job.width,
        job.height,
        grid=SamplingGrid(job.step_us, job.origin_us),
        fit=fits[job.fit],
        expected=Expected(expected.epoch_us, expected.next_us, expected.early_us, expected.late_us)
        if job.HasField("expected")
        else None,
        first_slot=job.first_slot,
        tail=tails[job.tail],
        frames=tuple(job.frames) if job.exact else None,
        gather=_gather(job.gather) if job.HasField("gather") else None,
        vectors=job.vectors,
        limits=Limits(
            job.limits.bytes, job.limits.side, job.limits.pixels, job.limits.seconds, job.limits.frames
        ),
        mask=_mask(job),
    )


def _gather(wanted: pb.Gather) -> Gather:
    # Not imported here: a confined process may not open files any more.
    module = sys.modules.get(wanted.module)
    if module is None:
        raise LookupError(f"{wanted.module} is not among the modules of SandboxSettings")
    gather = getattr(module, wanted.name).from_json(wanted.settings)
    if not isinstance(gather, PortableGather):
        raise LookupError(f"{wanted.module}.{wanted.name} is no gather")
    return gather


def cut_request(job: pb.CutJob) -> CutRequest:
    """What a cut job asks for."""
    return CutRequest(job.path, job.target_s, job.max_bytes, job.first, job.limit)


def sample_request(job: pb.SampleJob) -> SampleRequest:
    """What a sample job asks for."""
    fits = {value: fit for fit, value in FITS.items()}
    picks = tuple(Pick(pick.index, pick.slot, pick.time_us, pick.pts) for pick in job.picks)
    return SampleRequest(job.path, picks, (job.height, job.width), fits[job.fit])


def clip_request(job: pb.ClipJob) -> ClipRequest:
    """What a clip job asks for."""
    return ClipRequest(job.path, job.start_us, job.end_us, job.max_bytes)


def join_request(job: pb.JoinJob, read: Callable[[int, int], bytes]) -> JoinRequest:
    """What a join job asks for.

    Args:
        job: The job.
        read: Gives a number of bytes of the shared input from a position on.
    """
    segments: list[ClipSegment] = []
    at = 0
    for segment in job.segments:
        data = read(segment.bytes, at)
        segments.append(ClipSegment(data, segment.epoch, segment.origin_us, segment.wall_offset_us))
        at += segment.bytes
    return JoinRequest(
        tuple(segments),
        job.from_us,
        job.to_us,
        job.max_bytes,
        at_us=job.at_us,
        fragment=job.fragment,
        mask=_mask(job),
    )
