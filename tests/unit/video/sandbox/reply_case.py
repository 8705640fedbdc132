"""What an honest decoder process replies, what strangers make of it, and what a pool may believe of that."""

from __future__ import annotations

import math
import os
import pickle
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import pairwise
from pathlib import Path
from typing import Final

import numpy as np

from lookout.video.files.clipping import CLIP_CONTAINERS, RecordingClip
from lookout.video.motion import Picture
from lookout.video.motion.geometry import Fit
from lookout.video.sandbox import sandbox_pb2 as pb
from lookout.video.sandbox.exchange import shared_file, write_all
from lookout.video.sandbox.jobs import ClipRequest, InspectRequest, Request, SampleRequest, TableRequest
from lookout.video.sandbox.recording_jobs import RecordingJobs
from lookout.video.sandbox.reply_reader import (
    Planes,
    SamplesReply,
    TableReply,
    parse_reply,
    raise_failure,
    read_result,
)
from lookout.video.sandbox.reply_writer import ReplyWriter
from lookout.video.segments import (
    DecodedSegment,
    DecodeRequest,
    Expected,
    Inspection,
    Limits,
    SoftwareDecoder,
)
from lookout.video.segments.cutting import cut
from lookout.video.segments.inspection import inspect_file
from lookout.video.segments.joining import join
from lookout.video.segments.masked_clip import masked_segment
from lookout.video.segments.sampling import Pick
from lookout.video.segments.types import (
    CLIP_CODECS,
    ClipSegment,
    CutRequest,
    JoinedClip,
    JoinRequest,
    MaskRequest,
    Segment,
)
from tests import mutations
from tests.flipping import MASK
from tests.unit.video.segments.clips import Recorder, encode

Chance = random.Random

LIMIT = 1 << 22  # bytes of planes
CLIP = encode("mp4", speed=2, bframes=1)
NUMBER = 7
EXPECTED = Expected(epoch_us=-5_000_000, next_us=0)


@dataclass(frozen=True)
class Case:
    """A request, and what an honest process replies: the message and its planes."""

    request: Request
    message: bytes
    planes: bytes


def honest_cases(folder: Path) -> dict[str, Case]:
    """A request of every kind with its honest reply; the clip lies in `folder`."""
    path = folder / "clip.mp4"
    path.write_bytes(CLIP)
    name, size, jobs = str(path), len(CLIP), RecordingJobs()
    table = TableRequest(name, size)
    picks = tuple(Pick(i, i, 100_000 * i, 1024 * i) for i in range(0, 30, 5))
    sample = SampleRequest(name, picks, (12, 16), Fit.STRETCH)
    live = DecodeRequest(
        28, 28, gather=Recorder(), expected=EXPECTED, first_slot=3, limits=Limits(seconds=30)
    )
    pieces = tuple(cut(path, target_s=1.0))
    clip = ClipRequest(name, 1_500_000, 2_000_000, len(CLIP))
    joined = JoinRequest((ClipSegment(CLIP, 1, 0, 1_700_000_000_000_000),), 0, 1 << 52, len(CLIP))
    honest: dict[str, tuple[Request, object]] = {
        "decode": (live, SoftwareDecoder().decode(CLIP, live)),
        "again": (
            DecodeRequest(14, 14, frames=(1, 4, 9)),
            SoftwareDecoder().decode(CLIP, DecodeRequest(14, 14, frames=(1, 4, 9))),
        ),
        "inspect": (InspectRequest(name, size), inspect_file(name)),
        "cut": (CutRequest(name, 1.0, 1 << 20, first=2, limit=1 << 20), pieces),
        "table": (table, jobs.table(name)),
        "sample": (sample, jobs.sample(sample)),
        "clip": (clip, jobs.clip(clip)),
        "join": (joined, join(joined)),
        "mask": (MaskRequest(MASK, 1 << 20), masked_segment(CLIP, MASK, 1 << 20)),
    }
    return {kind: _case(request, result) for kind, (request, result) in honest.items()}


def _case(request: Request, result: object) -> Case:
    fd = shared_file()
    try:
        message = ReplyWriter(fd).result(NUMBER, result)  # type: ignore[arg-type]
        return Case(request, message, os.pread(fd, 1 << 30, 0))
    finally:
        os.close(fd)


def read(request: Request, message: bytes, planes: bytes) -> object:
    """As a pool does it."""
    fd = shared_file()
    try:
        write_all(fd, planes)
        reply = parse_reply(message, NUMBER)
        raise_failure(reply)
        return read_result(reply, request, len(CLIP), Planes(fd, LIMIT))
    finally:
        os.close(fd)


def check(request: Request, result: object) -> None:
    """What holds of every result, honest or not."""
    match request, result:
        case DecodeRequest(), DecodedSegment():
            assert result.pixels.shape == (len(result.frames), request.height, request.width, 3)
            assert result.geometry.out_width == request.width
            slots = [frame.slot for frame in result.frames]
            assert all(before.info.index < after.info.index for before, after in pairwise(result.frames))
            assert request.frames is not None or slots == sorted(set(slots))
            assert request.frames is None or {f.info.index for f in result.frames} <= set(request.frames)
            assert all(isinstance(frame.info.picture, Picture) for frame in result.frames)
            assert math.isfinite(result.facts.fps)
            assert result.facts.bytes == len(CLIP)
            for frame in result.frames:
                assert (frame.motion is None) == (request.gather is None)
                if frame.motion is not None and frame.motion.v is not None:
                    assert frame.motion.v.shape == (1, 1)
        case InspectRequest(), Inspection():
            assert (result.path, result.bytes) == (request.path, request.size)
            assert math.isfinite(result.seconds)
            assert result.error.isprintable()
        case CutRequest(), tuple():
            assert all(isinstance(piece, Segment) for piece in result)
            assert [piece.index for piece in result] == list(range(2, 2 + len(result)))
            assert sum(len(piece.data) for piece in result) <= request.limit + request.max_bytes
        case TableRequest(), TableReply():
            columns = (result.pts, result.dts, result.bytes, result.key, result.clean, result.discard)
            assert {len(column) for column in columns} <= set(range(request.size + 1))
            assert len({len(column) for column in columns}) == 1
            assert (result.bytes >= 0).all()
            assert isinstance(result.fps, Fraction)
        case SampleRequest(), SamplesReply():
            assert all(frame.pixels.shape == (12, 16, 3) for frame in result.frames)
            assert all(0 <= frame.pick < len(request.picks) for frame in result.frames)
        case ClipRequest(), RecordingClip():
            assert 0 < len(result.data) <= request.max_bytes
            assert 0 <= result.start_us < result.end_us
            assert result.container in CLIP_CONTAINERS.values()
        case JoinRequest(), JoinedClip():
            assert len(result.data) > 0
            assert result.codec in CLIP_CODECS
            assert all(0 <= span.start_us < span.end_us for span in result.spans)
        case MaskRequest(), bytes():
            assert 0 < len(result) <= request.max_bytes
        case _:
            raise AssertionError(f"{type(result).__name__} for {type(request).__name__}")


def _fields(case: Case, chance: Chance) -> Case:
    """One to four fields are others; lists grow, shrink and repeat."""
    reply = pb.Reply.FromString(case.message)
    inner = getattr(reply, str(reply.WhichOneof("outcome")))
    for _ in range(chance.randint(1, 4)):
        mutations.mutate_message(inner, chance)
    return replace(case, message=reply.SerializeToString())


def _planes(case: Case, chance: Chance) -> Case:
    """Planes with other bytes, or fewer."""
    way = chance.choice((mutations.flipped, mutations.truncated, mutations.spliced))
    return replace(case, planes=way(case.planes, pb.Reply, chance))


def _pickle(case: Case, chance: Chance) -> Case:
    """What a reply was in earlier releases: objects that rule whoever loads them."""
    objects = (Fraction(1, 3), np.arange(3), Picture.I, os.getcwd, [Fraction("1e3000")] * 3)
    return replace(case, message=pickle.dumps(chance.choice(objects)))


def _changed(change: mutations.Mutation) -> Callable[[Case, Chance], Case]:
    return lambda case, chance: replace(case, message=change(case.message, pb.Reply, chance))


#: what strangers do to a reply
WAYS: Final[dict[str, Callable[[Case, Chance], Case]]] = {
    "fields": _fields,
    "planes": _planes,
    "pickle": _pickle,
    "other-number": lambda case, chance: replace(
        case,
        message=pb.Reply(number=chance.choice((0, 6, 2**64 - 1)), bug=pb.Bug(trace="x")).SerializeToString(),
    ),
    **{name: _changed(change) for name, change in mutations.BINARY.items() if name != "json-instead"},
}


def read_strange(cases: Mapping[str, Case], way: str, chance: Chance) -> None:
    """Read one strange reply as a pool does.

    Raises:
        ReplyError: It does not answer what was asked.
        CodecError: It says that the bytes cannot be decoded.
        BugError: It says that the code failed.
        AssertionError: It was believed, and is not what was asked for.
    """
    kinds = sorted(cases)
    case = cases[chance.choice(kinds)]
    strange = WAYS[way](case, chance)
    if way == "planes" and chance.random() < 0.2:  # the answer to another request
        strange = replace(strange, message=cases[chance.choice(kinds)].message)
    check(case.request, read(case.request, strange.message, strange.planes))
