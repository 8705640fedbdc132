"""Times of pictures: one table of streams with wrong stamps, on which everything that reads video agrees."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cache
from itertools import pairwise
from pathlib import Path

import av
import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from lookout.models.vision.types import Grid
from lookout.pruning.policies import policy_of
from lookout.streams.samples import SegmentSampler
from lookout.video.files import VideoReader
from lookout.video.sandbox.confined_reader import SandboxedReader
from lookout.video.sandbox.cutter import CutSegment, Cutter
from lookout.video.segments import DecodeRequest, SamplingGrid, SoftwareDecoder, cut
from lookout.video.segments.clock import StreamClock
from lookout.video.segments.inspection import inspect_file
from tests.numbered import HEIGHT, TICKS, WIDTH, WRAP, clip, number, reordered, restamped

STEP = TICKS // 25
FRAMES, GOP = 100, 25
GRID = Grid(4, 16, 16, 1, tuple((i,) for i in range(4)), tuple((i,) for i in range(16)), 8)
#: pictures that are decoded in another order are the harder case
BFRAMES = pytest.mark.parametrize("bframes", [pytest.param(0, marks=pytest.mark.long), 2])
EVERY = DecodeRequest(WIDTH, HEIGHT, grid=SamplingGrid(1000))


@dataclass(frozen=True)
class Stream:
    """Stamps of a stream in ticks, by picture, and when its pictures are shown, in milliseconds.

    `clock`: what its recorder's clock told, from which decoding times come; empty where that is the stamps.
    """

    stamps: tuple[int | None, ...]
    times: tuple[int, ...]
    jumps: int = 0
    clock: tuple[int | None, ...] = ()


def plain(first: int = 20_000 * TICKS) -> list[int | None]:
    return [first + STEP * i for i in range(FRAMES)]


def evenly(*pauses: tuple[int, int]) -> tuple[int, ...]:
    """Times at 25 a second, with (picture, milliseconds) of pauses before it."""
    return tuple(40 * i + sum(length for at, length in pauses if i >= at) for i in range(FRAMES))


def changed(changes: dict[int, int | None]) -> tuple[int | None, ...]:
    stamps = plain()
    for at, stamp in changes.items():
        stamps[at] = stamp
    return tuple(stamps)


def moved(at: int, seconds: float, first: int = 20_000 * TICKS) -> tuple[int | None, ...]:
    """The clock is set by so much before a picture."""
    return tuple(
        (stamp or 0) + (round(seconds * TICKS) if i >= at else 0) for i, stamp in enumerate(plain(first))
    )


P = plain()
STREAMS = {
    "plain": Stream(tuple(P), evenly()),
    "repeat": Stream(changed({30: P[29], 61: P[60], 62: P[60]}), evenly(), clock=tuple(P)),
    "missing": Stream(changed({1: None, 30: None, 31: None, 32: None, 99: None}), evenly(), clock=tuple(P)),
    "missing at the beginning": Stream(changed({0: None, 1: None}), evenly(), clock=tuple(P)),
    "every other": Stream(
        tuple(s if i % 2 == 0 else None for i, s in enumerate(P)), evenly(), clock=tuple(P)
    ),
    "on keyframes alone": Stream(
        tuple(s if i % GOP == 0 else None for i, s in enumerate(P)), evenly(), clock=tuple(P)
    ),
    "outliers back": Stream(
        changed({i: (P[i] or 0) - 9800 * TICKS for i in (30, 60, 75)}), evenly(), clock=tuple(P)
    ),
    "outliers ahead": Stream(
        changed({i: (P[i] or 0) + 9800 * TICKS for i in (30, 31, 75)}), evenly(), clock=tuple(P)
    ),
    "last ahead": Stream(changed({99: (P[99] or 0) + 9800 * TICKS}), evenly(), clock=tuple(P)),
    "last far ahead": Stream(changed({99: (P[99] or 0) + 40 * 86_400 * TICKS}), evenly(), clock=tuple(P)),
    "last back": Stream(changed({99: (P[99] or 0) - 9800 * TICKS}), evenly(), clock=tuple(P)),
    "last near": Stream(changed({99: (P[99] or 0) + 6 * TICKS}), evenly(), clock=tuple(P)),
    "outlier near": Stream(
        changed({30: (P[30] or 0) - 6 * TICKS, 80: (P[80] or 0) + 6 * TICKS}), evenly(), clock=tuple(P)
    ),
    **{
        f"back {seconds} s at {at}": Stream(moved(at, -seconds), evenly(), 1)
        for seconds in (0.7, 2, 5, 5.94, 3600)
        for at in (50, 60)
    },
    "ahead 3 s": Stream(moved(50, 3.0), evenly((50, 3000))),
    "hole": Stream(moved(50, 60.0), evenly((50, 60_000))),
    "hole in a group": Stream(moved(60, 60.0), evenly((60, 60_000))),
    "hole before a keyframe": Stream(moved(49, 40.0), evenly((49, 40_000))),
    "two holes": Stream(
        tuple(s + (3600 * TICKS if i >= 75 else 0) for i, s in enumerate(moved(25, 20.0)) if s is not None),
        evenly((25, 20_000), (75, 3_600_000)),
    ),
    "repeat and hole": Stream(
        tuple(s if i != 60 else moved(75, 60.0)[59] for i, s in enumerate(moved(75, 60.0))),
        evenly((75, 60_000)),
        clock=moved(75, 60.0),
    ),
    "wrap": Stream(tuple(plain(WRAP - 40 * STEP)), evenly()),
    "wrap at a keyframe": Stream(tuple(plain(WRAP - 50 * STEP)), evenly()),
    "wrap and outlier": Stream(
        tuple(s if i != 60 else 5000 * TICKS for i, s in enumerate(plain(WRAP - 40 * STEP))),
        evenly(),
        clock=tuple(plain(WRAP - 40 * STEP)),
    ),
    "join": Stream((*plain(0)[:50], *(STEP * i + STEP // 2 for i in range(50))), evenly(), 1),
}


def step(at: int, seconds: float) -> Stream:
    """The clock steps before a picture."""
    return Stream(moved(at, seconds), evenly((at, round(1000 * max(0, seconds)))), int(seconds < 0))


#: steps at any picture of a group, and at the pictures around its ends
STEPS = {
    f"{seconds} s at {at}": step(at, seconds)
    for seconds in (-3600, -0.7, 3, 60)
    for at in (*range(26, 32), *range(47, 52))
}
AROUND_THE_END = {f"{seconds} s at {at}" for seconds in (-0.7, 3) for at in (48, 49, 50, 51)}


@cache
def source(bframes: int) -> bytes:
    return clip(FRAMES, gop=GOP, start_s=10.0, bframes=bframes)


@cache
def data(name: str, bframes: int = 0) -> bytes:
    stream = {**STREAMS, **STEPS}[name]
    if not bframes:
        return restamped(source(0), stream.stamps)
    return reordered(source(bframes), 25, stream.stamps, stream.clock or stream.stamps)


Shown = list[tuple[int, int]]
"""(number of a picture, when it is shown, milliseconds)."""


def of_reader(clip: bytes, threads: int) -> Shown:
    with VideoReader(clip) as reader, reader.sample(indices=range(len(reader)), threads=threads) as frames:
        return [(number(frame.pixels), round(frame.time_us / 1000)) for frame in frames]


def of_sandbox(clip: bytes, tmp_path: Path) -> Shown:
    path = tmp_path / "clip.ts"
    path.write_bytes(clip)
    with SandboxedReader(path, workers=1) as reader, reader.sample(indices=range(len(reader))) as frames:
        return [(number(frame.pixels), round(frame.time_us / 1000)) for frame in frames]


def decoded(segment: bytes, start_us: int) -> Iterator[tuple[int, int]]:
    found = SoftwareDecoder().decode(segment, EVERY)
    for frame, pixels in zip(found.frames, found.pixels, strict=True):
        yield number(pixels), round((start_us + frame.info.time_us) / 1000)


def of_pieces(file: io.BytesIO) -> tuple[Shown, int]:
    pieces = list(cut(file, target_s=1.0))
    return [shown for piece in pieces for shown in decoded(piece.data, piece.start_us)], sum(
        piece.jump for piece in pieces
    )


class Pipe(io.BytesIO):
    """Bytes that can be read once."""

    def seekable(self) -> bool:
        return False

    def seek(self, *_: int) -> int:
        raise OSError("a pipe")


@BFRAMES
@pytest.mark.parametrize("name", STREAMS)
def test_a_file_shows_every_picture_in_its_time(name: str, bframes: int) -> None:
    stream = STREAMS[name]
    truth = list(enumerate(stream.times))
    assert of_reader(data(name, bframes), 1) == truth
    assert of_reader(data(name, bframes), 2) == truth
    assert inspect_file("clip", io.BytesIO(data(name, bframes))).jumps == stream.jumps


@BFRAMES
@pytest.mark.parametrize("name", STREAMS)
@pytest.mark.parametrize("kind", [io.BytesIO, Pipe])
def test_the_pieces_of_a_file_or_pipe_show_the_same(
    name: str, kind: Callable[[bytes], io.BytesIO], bframes: int
) -> None:
    stream = STREAMS[name]
    shown, jumps = of_pieces(kind(data(name, bframes)))
    assert shown == list(enumerate(stream.times))
    holes = sum(b - a > 30_000 for a, b in pairwise(stream.times))
    assert stream.jumps <= jumps <= stream.jumps + holes


@pytest.mark.parametrize(
    ("name", "bframes"),
    [
        # At every picture in `make test-all`; always around the end of a group, where readers differed.
        pytest.param(
            name, bframes, marks=pytest.mark.slow if bframes and name in AROUND_THE_END else pytest.mark.long
        )
        for name in STEPS
        for bframes in (0, 2)
    ],
)
def test_a_step_at_any_picture_is_told_alike_everywhere(name: str, bframes: int) -> None:
    """With B-frames, decoding times step two pictures later than presentation times, and readers disagreed on
    the pictures between."""
    truth = list(enumerate(STEPS[name].times))
    clip = data(name, bframes)
    assert of_reader(clip, 2) == truth
    assert of_pieces(io.BytesIO(clip))[0] == truth
    assert of_pieces(Pipe(clip))[0] == truth
    assert of_camera(clip, truth, bframes) == without_last(truth, bframes)


FAULTS = st.tuples(
    st.sampled_from(["missing", "repeated", "off", "off with its clock", "step"]),
    st.integers(1, FRAMES - 2),
    st.sampled_from([-4000, -7, -0.7, 0.4, 2, 60]),
)


@pytest.mark.parametrize("seconds", [0.4, 1.3, -0.4])
@pytest.mark.parametrize("at", [23, 24, 25, 49, 74])
def test_one_wrong_stamp_around_the_end_of_a_group_moves_no_picture(at: int, seconds: float) -> None:
    """A picture whose stamp comes after the next keyframe was believed, and those between were lost."""
    clip = reordered(source(2), 25, changed({at: (P[at] or 0) + round(seconds * TICKS)}), P)
    assert of_reader(clip, 2) == of_pieces(io.BytesIO(clip))[0] == list(enumerate(evenly()))


@pytest.mark.slow
@settings(max_examples=10, deadline=None)
@given(st.lists(FAULTS, min_size=1, max_size=4))
def test_whatever_is_wrong_between_b_frames_everything_shows_all_pictures_alike(
    faults: list[tuple[str, int, float]],
) -> None:
    stamps, clock = plain(), plain()
    for kind, at, seconds in faults:
        ticks = round(seconds * TICKS)
        if kind == "missing":
            stamps[at] = None
        elif kind == "repeated":
            stamps[at] = stamps[at - 1]
        for i in range(at, FRAMES if kind == "step" else at + 1):
            stamp, own = stamps[i], clock[i]
            if kind in ("off", "off with its clock", "step") and stamp is not None:
                stamps[i] = stamp + ticks
            if kind in ("off with its clock", "step") and own is not None:
                clock[i] = own + ticks
    data = reordered(source(2), 25, stamps, clock)
    shown = of_reader(data, 2)
    assert [picture for picture, _ in shown] == [*range(FRAMES)]
    assert of_pieces(io.BytesIO(data))[0] == shown
    assert of_pieces(Pipe(data))[0] == shown


@BFRAMES
@pytest.mark.parametrize("name", ["back 2 s at 60", "on keyframes alone", "outliers back", "repeat and hole"])
def test_a_sandboxed_reader_shows_the_same(name: str, bframes: int, tmp_path: Path) -> None:
    """As `lookout analyze` reads files."""
    assert of_sandbox(data(name, bframes), tmp_path) == list(enumerate(STREAMS[name].times))


@BFRAMES
@pytest.mark.parametrize("name", [name for name in STREAMS if "wrap" not in name])
def test_segments_of_a_camera_show_the_same(name: str, bframes: int) -> None:
    """FFmpeg unwraps the time stamps of RTP; a camera's own have no 33 bits."""
    truth = list(enumerate(STREAMS[name].times))
    assert of_camera(data(name, bframes), truth, bframes) == without_last(truth, bframes)


def test_a_step_ahead_of_a_camera_for_which_nobody_waited_is_a_jump() -> None:
    """A hole in a recording keeps its length. A camera's pictures come when they are taken: its clock was
    set, and the group that is open goes on."""
    segments, cutter = camera_segments(data("hole in a group"), evenly())
    times = [time for segment in segments[2:4] for _, time in decoded(segment.data, 0)]
    assert times[: 2 * GOP] == [40 * i for i in range(GOP)] + [40 * i for i in range(GOP - 1)]
    assert cutter.jumps == 1


def without_last(truth: Shown, bframes: int) -> Shown:
    """Without the picture of the last packet, which may be half a picture."""
    return [shown for shown in truth if shown[0] != (FRAMES - 2 if bframes else FRAMES - 1)]


def of_camera(stream: bytes, truth: Shown, bframes: int) -> Shown:
    """What the segments of a camera show. A segment's own time begins with its first picture."""
    times = [time for _, time in truth]
    # B-frames are sent after the picture that follows them.
    segments, cutter = camera_segments(stream, [*times[bframes:], *times[-1:] * bframes])
    assert cutter.dropped_packets == 1
    shown: Shown = []
    for segment in segments:
        pictures = list(decoded(segment.data, 0))
        shown += [(picture, times[pictures[0][0]] + time) for picture, time in pictures]
    return shown


def camera_segments(stream: bytes, times: Sequence[int]) -> tuple[list[CutSegment], Cutter]:
    """The segments of a camera's pictures, which come at times in milliseconds, and what cut them."""
    now = [0.0]

    def arriving(packets: Iterator[av.Packet]) -> Iterator[av.Packet]:
        for packet, time in zip(packets, [*times, times[-1]], strict=True):
            now[0] = time / 1000
            yield packet

    with av.open(io.BytesIO(stream), options={"correct_ts_overflow": "0"}) as file:
        cutter = Cutter(file.streams.video[0], 1.0, 1 << 22, 10_000.0, clock=lambda: now[0])
        return list(cutter.cut(arriving(file.demux(video=0)))), cutter


@pytest.mark.parametrize("bframes", [0, 2])
@pytest.mark.parametrize("name", STREAMS)
def test_an_epoch_begins_at_a_jump_and_nowhere_else(name: str, bframes: int) -> None:
    """As services/decode and `Pipeline` play pieces."""
    sampler = SegmentSampler.of(GRID, 40_000, policy_of("default"), window_us=8_000_000)
    stream = STREAMS[name]
    times: list[int] = []
    for piece in cut(io.BytesIO(data(name, bframes)), target_s=1.0):
        times += [
            sample.begun_us + sample.frame.time_us for sample in sampler.add(piece.data, piece.start_us)
        ]
    holes = [b - a > 8_000 for a, b in pairwise(stream.times)]  # longer than a window
    at_keyframes = sum(hole for i, hole in enumerate(holes, 1) if i % GOP == 0)
    assert sampler.stream == stream.jumps + at_keyframes, "the number of the newest stream"
    assert len(times) >= FRAMES - 2 * (1 + sampler.stream)


@settings(max_examples=200, deadline=None)
@given(
    st.lists(st.tuples(st.none() | st.integers(-(2**33), 2**33), st.none() | st.integers(0, 2**33))),
    st.booleans(),
    st.sampled_from([0, WRAP]),
)
def test_decoding_times_rise_and_no_packet_is_lost(
    stamps: list[tuple[int | None, int | None]], reorders: bool, wrap: int
) -> None:
    packets = []
    for pts, dts in stamps:
        packet = av.Packet(b"x")
        packet.pts, packet.dts = pts, dts
        packets.append(packet)
    clock = StreamClock(Fraction(1, TICKS), Fraction(25), wrap=wrap, reorders=reorders)
    out = list(clock.stamped(packets))
    assert [id(packet) for packet in out] == [id(packet) for packet in packets]
    if not reorders and any(pts is not None or dts is not None for pts, dts in stamps):
        times = [packet.dts if packet.dts is not None else packet.pts for packet in out]
        assert None not in times
        assert all((np.diff(np.array(times, object)) > 0).tolist())
