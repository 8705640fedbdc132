"""Whatever a decoder process replies, its pool gets what it asked for or an error, in bounded time and
memory."""

from __future__ import annotations

import math
import os
import resource
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise

import numpy as np
import pytest
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lookout.motion import Picture
from lookout.motion.geometry import Fit
from lookout.sandbox import SandboxError, SandboxPool, SandboxSettings
from lookout.sandbox import sandbox_pb2 as pb
from lookout.sandbox.exchange import shared_file, write_all
from lookout.sandbox.jobs import InspectRequest, Request, SampleRequest, TableRequest, job_message
from lookout.sandbox.recording_jobs import RecordingJobs
from lookout.sandbox.reply_reader import (
    MAX_REPLY,
    BugError,
    Planes,
    ReplyError,
    SamplesReply,
    TableReply,
    parse_reply,
    raise_failure,
    read_result,
)
from lookout.sandbox.reply_writer import ReplyWriter
from lookout.segments import (
    CodecError,
    DecodedSegment,
    DecodeRequest,
    Expected,
    Inspection,
    Limits,
    Reason,
    SoftwareDecoder,
)
from lookout.segments.cutting import cut
from lookout.segments.inspection import inspect_file
from lookout.segments.sampling import Pick
from lookout.segments.types import CutRequest, Segment
from tests.unit.segments.clips import FakeMalice, Recorder, encode

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


@pytest.fixture(scope="module")
def cases(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Case]:
    path = tmp_path_factory.mktemp("replies") / "clip.mp4"
    path.write_bytes(CLIP)
    name, size, jobs = str(path), len(CLIP), RecordingJobs()
    table = TableRequest(name, size)
    picks = tuple(Pick(i, i, 100_000 * i, 1024 * i) for i in range(0, 30, 5))
    sample = SampleRequest(name, picks, (12, 16), Fit.STRETCH)
    live = DecodeRequest(
        28, 28, gather=Recorder(), expected=EXPECTED, first_slot=3, limits=Limits(seconds=30)
    )
    pieces = tuple(cut(path, target_s=1.0))
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
        case _:
            raise AssertionError(f"{type(result).__name__} for {type(request).__name__}")


WHOLE = st.one_of(
    st.sampled_from([0, 1, -1, 2, 255, 1 << 20, (1 << 31) - 1, 1 << 31, 1 << 53, (1 << 63) - 1, -(1 << 63)]),
    st.integers(-(1 << 63), (1 << 63) - 1),
)
TEXT = st.one_of(
    st.text(max_size=40), st.sampled_from(["mp4", "\x1b]0;x\x07", "\u202e", "a" * 5000, "1e300000000"])
)


def _value(field: FieldDescriptor, data: st.DataObject) -> object:
    match field.cpp_type:
        case FieldDescriptor.CPPTYPE_STRING:
            return data.draw(TEXT)
        case FieldDescriptor.CPPTYPE_BOOL:
            return data.draw(st.booleans())
        case FieldDescriptor.CPPTYPE_DOUBLE:
            return data.draw(st.floats())
        case FieldDescriptor.CPPTYPE_ENUM:
            return data.draw(st.integers(0, 40))
        case FieldDescriptor.CPPTYPE_UINT64:
            return abs(data.draw(WHOLE)) % (1 << 63)
    return data.draw(WHOLE)


def _mutate(message: Message, data: st.DataObject) -> None:
    """Change a field somewhere in a message; lists grow, shrink and repeat."""
    fields = list(message.DESCRIPTOR.fields)
    field = data.draw(st.sampled_from(fields))
    if field.is_repeated:
        entries = getattr(message, field.name)
        deed = data.draw(st.sampled_from(["clear", "more", "many", "into", "pop"]))
        if deed == "clear":
            del entries[:]
        elif deed == "more" or not entries:
            entries.add()
        elif deed == "many":
            entries.MergeFrom([entries[0]] * data.draw(st.integers(1, 300)))
        elif deed == "pop":
            entries.pop()
        else:
            _mutate(entries[data.draw(st.integers(0, len(entries) - 1))], data)
    elif field.cpp_type == FieldDescriptor.CPPTYPE_MESSAGE:
        _mutate(getattr(message, field.name), data)
    else:
        setattr(message, field.name, _value(field, data))


def _fuzz(cases: dict[str, Case], data: st.DataObject) -> None:
    case = cases[data.draw(st.sampled_from(sorted(cases)))]
    message, planes = case.message, case.planes
    way = data.draw(st.sampled_from(["fields", "fields", "fields", "bytes", "noise", "planes", "other"]))
    if way == "fields":
        reply = pb.Reply.FromString(message)
        inner = getattr(reply, reply.WhichOneof("outcome"))
        for _ in range(data.draw(st.integers(1, 4))):
            _mutate(inner, data)
        message = reply.SerializeToString()
    elif way == "bytes":
        changed = bytearray(message)
        for _ in range(data.draw(st.integers(1, 8))):
            changed[data.draw(st.integers(0, len(changed) - 1))] = data.draw(st.integers(0, 255))
        message = bytes(changed[: data.draw(st.integers(0, len(changed)))])
    elif way == "noise":
        message = data.draw(st.binary(max_size=300))
    elif way == "planes":
        damaged = bytearray(planes)
        for _ in range(data.draw(st.integers(0, 8)) if damaged else 0):
            damaged[data.draw(st.integers(0, len(damaged) - 1))] = data.draw(st.integers(0, 255))
        planes = bytes(damaged[: data.draw(st.integers(0, len(damaged)))])
    else:
        message = cases[data.draw(st.sampled_from(sorted(cases)))].message
    try:
        result = read(case.request, message, planes)
    except (ReplyError, CodecError, BugError):
        return
    check(case.request, result)


QUIET = [HealthCheck.function_scoped_fixture, HealthCheck.too_slow, HealthCheck.data_too_large]


@settings(max_examples=400, deadline=None, suppress_health_check=QUIET)
@given(st.data())
def test_a_reply_is_believed_where_it_answers_and_refused_elsewhere(
    cases: dict[str, Case], data: st.DataObject
) -> None:
    _fuzz(cases, data)


@pytest.mark.long
@settings(max_examples=100_000, deadline=None, suppress_health_check=QUIET)
@given(st.data())
def test_a_hundred_thousand_replies(cases: dict[str, Case], data: st.DataObject) -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    _fuzz(cases, data)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 256 * 1024  # kB


def test_honest_replies_are_believed(cases: dict[str, Case]) -> None:
    for case in cases.values():
        result = read(case.request, case.message, case.planes)
        check(case.request, result)
    segment = read(*_parts(cases["decode"]))
    assert isinstance(segment, DecodedSegment)
    direct = SoftwareDecoder().decode(CLIP, cases["decode"].request)  # type: ignore[arg-type]
    assert segment.facts == direct.facts
    assert segment.geometry == direct.geometry
    assert (segment.continued, segment.next_slot, segment.end_stream_us) == (
        direct.continued,
        direct.next_slot,
        direct.end_stream_us,
    )
    assert [(f.info, f.slot, f.stream_us) for f in segment.frames] == [
        (f.info, f.slot, f.stream_us) for f in direct.frames
    ]
    assert (segment.pixels == direct.pixels).all()
    for ours, theirs in zip(segment.frames, direct.frames, strict=True):
        assert ours.motion is not None
        assert theirs.motion is not None
        assert ours.motion.basis is theirs.motion.basis
        assert np.array_equal(ours.motion.v, theirs.motion.v)  # type: ignore[arg-type]
    with pytest.raises(ReplyError, match="no answer to job 7"):
        parse_reply(pb.Reply(number=6, bug=pb.Bug()).SerializeToString(), NUMBER)


def _parts(case: Case) -> tuple[Request, bytes, bytes]:
    return case.request, case.message, case.planes


Change = Callable[[pb.Reply], None]


def _set(name: str, value: object) -> Change:
    """Set a field by its dotted path; a number is a place in a list."""

    def change(reply: pb.Reply) -> None:
        *path, last = name.split(".")
        target: object = reply
        for part in path:
            target = target[int(part)] if part.isdigit() else getattr(target, part)  # type: ignore[index]
        setattr(target, last, value)

    return change


@pytest.mark.parametrize(
    ("kind", "change", "problem"),
    [
        ("decode", _set("decoded.facts.fps", math.nan), "fps is nan"),
        ("decode", _set("decoded.facts.rotation", 45), "rotation is 45"),
        ("decode", _set("decoded.facts.width", 9000), "width is 9000"),
        ("decode", _set("decoded.facts.frames", 20_001), "frames is 20001"),
        ("decode", _set("decoded.facts.codec", "\x1b[2J"), "codec is no name"),
        ("decode", _set("decoded.frames.1.index", 0), "follows frame"),
        ("decode", _set("decoded.frames.6.index", 30), "frame 30 of 30"),
        ("decode", _set("decoded.frames.0.picture", 99), "picture is 99"),
        ("decode", _set("decoded.frames.0.basis", 77), "basis is 77"),
        ("decode", _set("decoded.frames.0.time_us", 10**9), "time_us is"),
        ("decode", _set("decoded.end_stream_us", -1), "end_stream_us is -1"),
        ("again", _set("decoded.frames.0.index", 0), "not asked for"),
        ("again", _set("decoded.frames.0.with_v", True), "not asked for"),
        ("cut", _set("pieces.pieces.0.bytes", 1 << 40), "bytes is"),
        ("cut", _set("pieces.pieces.1.start_us", 0), "start_us is 0"),
        ("table", _set("table.packets", 1 << 30), "packets is"),
        ("table", _set("table.time_base_den", 0), "time_base_den is 0"),
        ("table", _set("table.fps_num", 1 << 31), "frames a second"),
        ("sample", _set("samples.samples.0.pick", 6), "pick is 6"),
        ("sample", _set("samples.samples.1.pick", 0), "out of order"),
        ("sample", lambda reply: reply.samples.samples.add(pick=5), "7 frames of 6"),
        ("inspect", _set("inspected.motion", "magic"), "motion is no basis"),
        ("inspect", lambda reply: reply.table.SetInParent(), "table where inspected was asked for"),
    ],
)
def test_what_was_not_asked_for_is_named(
    cases: dict[str, Case], kind: str, change: Change, problem: str
) -> None:
    reply = pb.Reply.FromString(cases[kind].message)
    change(reply)
    with pytest.raises(ReplyError, match=problem):
        read(cases[kind].request, reply.SerializeToString(), cases[kind].planes)


def test_motion_that_is_no_displacement_is_refused(cases: dict[str, Case]) -> None:
    case = cases["decode"]
    planes = case.planes[:-2] + np.array(np.nan, np.float16).tobytes()
    with pytest.raises(ReplyError, match="no displacement"):
        read(case.request, case.message, planes)


def test_planes_beyond_the_limit_are_not_read(cases: dict[str, Case]) -> None:
    case = cases["decode"]
    fd = shared_file()
    try:
        write_all(fd, case.planes)
        with pytest.raises(ReplyError, match="larger than the limit"):
            read_result(parse_reply(case.message, NUMBER), case.request, len(CLIP), Planes(fd, 1000))
        os.ftruncate(fd, 100)
        with pytest.raises(ReplyError, match="did not write"):
            read_result(parse_reply(case.message, NUMBER), case.request, len(CLIP), Planes(fd, LIMIT))
    finally:
        os.close(fd)


def test_an_error_and_a_trace_are_texts_for_people() -> None:
    refusal = pb.Reply(number=NUMBER, refusal=pb.Refusal(reason=99, detail="\x1b[31m" + "x" * 10_000))  # type: ignore[arg-type]
    with pytest.raises(CodecError) as caught:
        raise_failure(refusal)
    assert caught.value.reason is Reason.POISON
    assert "\x1b" not in caught.value.detail
    assert len(caught.value.detail) == 2000
    with pytest.raises(BugError, match="line one\nline two\ufffd"):
        raise_failure(pb.Reply(number=NUMBER, bug=pb.Bug(trace="line one\nline two\x07")))


def test_a_number_beyond_64_bits_cannot_be_asked_for() -> None:
    with pytest.raises(CodecError) as caught:
        job_message(1, DecodeRequest(28, 28, first_slot=1 << 70))
    assert caught.value.reason is Reason.REQUEST


@pytest.fixture(scope="module")
def pool() -> Iterator[SandboxPool]:
    with SandboxPool(1, SandboxSettings(modules=("tests.unit.segments.clips",))) as pool:
        yield pool


@pytest.mark.parametrize("deed", ["forge", "forge pickle", "forge long"])
def test_a_taken_over_process_gains_a_wrong_answer_at_most(pool: SandboxPool, deed: str) -> None:
    """It writes to the pipe whatever it likes, before its own code can answer."""
    with pytest.raises(CodecError, match="cannot be read") as caught:
        pool.decode(CLIP, DecodeRequest(28, 28, gather=FakeMalice(deed)))
    assert caught.value.reason is Reason.POISON
    assert int(Picture.I) == 1
    with pytest.raises(SandboxError):
        pool.decode(CLIP, DecodeRequest(28, 28, gather=FakeMalice("bug")))
    assert pool.decode(CLIP, DecodeRequest(28, 28)).facts.frames == 30
    assert MAX_REPLY < 1 << 24
