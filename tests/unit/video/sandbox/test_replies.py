"""Whatever a decoder process replies, its pool gets what it asked for or an error, in bounded time and
memory."""

from __future__ import annotations

import math
import os
import random
import resource
from collections.abc import Callable, Iterator

import numpy as np
import pytest

from lookout.video.motion import Fit, Picture
from lookout.video.motion.hiding import MaskLayer, PictureMask
from lookout.video.sandbox import SandboxError, SandboxPool, SandboxSettings, sandbox_pb2 as pb
from lookout.video.sandbox.exchange import shared_file, write_all
from lookout.video.sandbox.jobs import DecoderJob, Request, SampleRequest, job_message, job_number, read_job
from lookout.video.sandbox.reply_reader import (
    MAX_REPLY,
    BugError,
    Planes,
    ReplyError,
    TableReply,
    parse_reply,
    raise_failure,
    read_result,
)
from lookout.video.segments import (
    CodecError,
    DecodedSegment,
    DecodeRequest,
    Expected,
    Reason,
    SoftwareDecoder,
)
from lookout.video.segments.sampling import Pick
from lookout.video.segments.types import ClipSegment, JoinRequest
from tests.unit.video.sandbox.reply_case import (
    CLIP,
    LIMIT,
    NUMBER,
    WAYS,
    Case,
    check,
    honest_cases,
    read,
    read_strange,
)
from tests.unit.video.segments.clips import FakeMalice


@pytest.fixture(scope="module")
def cases(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Case]:
    return honest_cases(tmp_path_factory.mktemp("replies"))


def fuzz(cases: dict[str, Case], count: int, seed: int) -> None:
    """Read so many strange replies; the seed of the one that fails is in the message."""
    ways = sorted(WAYS)
    for number in range(count):
        chance = random.Random(f"{seed}/{number}")
        way = chance.choice(("fields", *ways))
        try:
            read_strange(cases, way, chance)
        except (ReplyError, CodecError, BugError):
            continue
        except Exception as error:
            raise AssertionError(f"{way} with seed {seed}/{number}: {error!r}") from error


@pytest.mark.slow
def test_a_reply_is_believed_where_it_answers_and_refused_elsewhere(cases: dict[str, Case]) -> None:
    fuzz(cases, 2000, seed=1)


@pytest.mark.long
def test_a_hundred_thousand_replies(cases: dict[str, Case]) -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    fuzz(cases, 100_000, seed=2)
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
    with pytest.raises(ReplyError, match="does not answer job 7"):
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
        ("decode", _set("decoded.facts.width", 1 << 20), "width is 1048576"),
        ("decode", _set("decoded.facts.frames", 20_001), "frames is 20001"),
        ("decode", _set("decoded.facts.codec", "\x1b[2J"), "codec is not a valid name"),
        ("decode", _set("decoded.frames.1.index", 0), "is not after frame"),
        ("decode", _set("decoded.frames.6.index", 30), "frame index 30, but only 30"),
        ("decode", _set("decoded.frames.0.picture", 99), "picture is 99"),
        ("decode", _set("decoded.frames.0.basis", 77), "basis is 77"),
        ("decode", _set("decoded.frames.0.time_us", 10**9), "time_us is"),
        ("decode", _set("decoded.end_stream_us", -1), "end_stream_us is -1"),
        ("again", _set("decoded.frames.0.index", 0), "not requested"),
        ("again", _set("decoded.frames.0.with_v", True), "not requested"),
        ("cut", _set("pieces.pieces.0.bytes", 1 << 40), "bytes is"),
        ("cut", _set("pieces.pieces.1.start_us", 0), "start_us is 0"),
        ("table", _set("table.packets", 1 << 30), "packets is"),
        ("table", _set("table.time_base_den", 0), "time_base_den is 0"),
        ("table", _set("table.fps_num", 1 << 31), "frames a second"),
        ("sample", _set("samples.samples.0.pick", 6), "pick is 6"),
        ("sample", _set("samples.samples.1.pick", 0), "out of order"),
        ("sample", lambda reply: reply.samples.samples.add(pick=5), "7 frames, but 6 were requested"),
        ("clip", _set("clip.bytes", 1 << 40), "bytes is"),
        ("clip", _set("clip.container", "sh"), "cannot be in sh"),
        ("clip", _set("clip.end_us", 0), "end_us is 0"),
        ("join", _set("joined.bytes", 1 << 40), "bytes is"),
        ("mask", _set("masked.bytes", 1 << 40), "bytes is"),
        ("join", _set("joined.codec", "mpeg4"), "cannot be of mpeg4"),
        ("join", _set("joined.codecs", "a\r\nb"), "codecs is not a valid name"),
        ("join", _set("joined.spans.0.end_us", 0), "end_us is 0"),
        ("join", lambda reply: reply.joined.ClearField("spans"), "has no span"),
        ("inspect", _set("inspected.motion", "magic"), "motion is not a valid basis"),
        ("inspect", lambda reply: reply.table.SetInParent(), "table instead of inspected"),
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
    with pytest.raises(ReplyError, match="invalid displacement"):
        read(case.request, case.message, planes)


def test_planes_beyond_the_limit_are_not_read(cases: dict[str, Case]) -> None:
    case = cases["decode"]
    fd = shared_file()
    try:
        write_all(fd, case.planes)
        with pytest.raises(ReplyError, match="exceed the limit"):
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


def test_a_request_comes_back_out_of_its_message() -> None:
    box = ((0.0, 0.0), (0.5, 0.0), (0.5, 1.0))
    mask = PictureMask((MaskLayer(hide=(box,), keep=()),))
    decode = DecodeRequest(28, 28, fit=Fit.COVER, expected=Expected(1, 2), frames=(3, 5), mask=mask)
    pieces = (ClipSegment(b"first", 1, 2, 3), ClipSegment(b"second", 1, 2, 3))
    join = JoinRequest(pieces, 10, 20, 30, mask=mask)
    sample = SampleRequest("caf\udce9.mp4", (Pick(1, 2, 3, 4),), (28, 56), Fit.CONTAIN)
    shared = b"firstsecond"
    for request in (decode, join, sample):
        message = job_message(7, DecoderJob(request, 11, with_file=True))
        assert job_number(message) == 7
        read = read_job(message, lambda size, at: shared[at : at + size])
        assert read == DecoderJob(request, 11, with_file=True)
    assert b"first" not in job_message(7, DecoderJob(join))


def test_a_gather_that_a_decoder_cannot_make_is_named() -> None:
    with pytest.raises(CodecError, match="Planes has no to_json") as caught:
        job_message(1, DecoderJob(DecodeRequest(28, 28, gather=Planes(0, 0))))  # type: ignore[arg-type]
    assert caught.value.reason is Reason.REQUEST
    message = job_message(1, DecoderJob(DecodeRequest(28, 28, gather=FakeMalice("bug"))))
    unknown = message.replace(b"segments.clips", b"segments.clipz")
    with pytest.raises(LookupError, match=r"clipz must be listed in the modules of SandboxSettings"):
        read_job(unknown, lambda size, at: b"")


@pytest.fixture(scope="module")
def pool() -> Iterator[SandboxPool]:
    with SandboxPool(1, SandboxSettings(modules=("tests.unit.video.segments.clips",))) as pool:
        yield pool


@pytest.mark.slow
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


@pytest.mark.parametrize("values", [(-1, 0), ((1 << 53) + 1, 0), (0, 1440), (0, -1440)])
def test_a_begin_beyond_every_date_is_no_reply(cases: dict[str, Case], values: tuple[int, int]) -> None:
    case = cases["table"]
    reply = pb.Reply.FromString(case.message)
    reply.table.begins_us, reply.table.begins_offset_min = values
    with pytest.raises(ReplyError, match="begins_"):
        read(case.request, reply.SerializeToString(), case.planes)


def test_a_begin_in_the_future_is_none(cases: dict[str, Case]) -> None:
    case = cases["table"]
    reply = pb.Reply.FromString(case.message)
    for begins_us, expected in ((1 << 53, None), (1_700_000_000_000_000, 1_700_000_000.0)):
        reply.table.begins_us = begins_us
        result = read(case.request, reply.SerializeToString(), case.planes)
        assert isinstance(result, TableReply)
        assert (result.begins.timestamp() if result.begins else None) == expected
