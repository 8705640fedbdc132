"""Pieces of a recording whose beginning was cut away hold what its edit list hides, and do not show it."""

from __future__ import annotations

import io
import struct
from collections.abc import Iterable
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from lookout.video.files import VideoReader
from lookout.video.motion.types import U8
from lookout.video.sandbox import SandboxPool
from lookout.video.segments import DecodeRequest, SamplingGrid, Segment, SoftwareDecoder, Tail, cut
from tests.unit.video.segments.clips import Recorder, edited, encode, rest, trimmed

WIDTH, HEIGHT = 32, 24
EVERY = DecodeRequest(WIDTH, HEIGHT, grid=SamplingGrid(1000), vectors=False)
CLOSED = {"libx265": {"x265-params": "log-level=none:open-gop=0:keyint=12:min-keyint=12:bframes=2"}}
QUIET = CLOSED | {"libsvtav1": {"preset": "12"}}
CASES = [
    ("mp4", "libx264", "mp4", "mpegts"),
    ("mov", "libx264", "mp4", "mpegts"),
    ("mp4", "libx265", "mp4", "mpegts"),
    ("mp4", "mpeg4", "mp4", "mpegts"),
    ("3gp", "h263", "mov", "mov"),
    ("mp4", "libvpx-vp9", "mp4", "mp4"),
    ("mp4", "libsvtav1", "mp4", "mp4"),
]
TICK_US = 12
"""MPEG-TS counts in 1/90000 s."""


@cache
def source(container: str = "mp4", codec: str = "libx264", bframes: int = 2) -> bytes:
    size = (176, 144) if codec == "h263" else (128, 96)
    fps = 25 if codec == "h263" else 10
    bframes = bframes if codec == "libx264" else 0
    options = QUIET.get(codec)
    return encode(
        container, codec, frames=60, fps=fps, size=size, gop=12, bframes=bframes, speed=2, options=options
    )


def shown(pieces: Iterable[Segment]) -> tuple[list[int], U8]:
    """(stream time, picture) of all that is sampled of pieces decoded one after the other."""
    request, times, pictures = EVERY, [], []
    for piece in pieces:
        decoded = SoftwareDecoder().decode(piece.data, request)
        facts = decoded.facts
        assert decoded.continued is (piece.index > 0)
        assert facts.frames == piece.frames == len(decoded.frames)
        assert (facts.corrupt, facts.refused, facts.leading_lost, facts.jumps) == (0, 0, 0, 0)
        assert abs(decoded.frames[0].stream_us - piece.start_us) <= TICK_US
        times += [frame.stream_us for frame in decoded.frames]
        pictures.append(decoded.pixels)
        request = replace(request, expected=decoded.following(), first_slot=decoded.next_slot)
    return times, np.concatenate(pictures)


def check(data: bytes, **how: float) -> list[Segment]:
    """The pieces show what a player shows, when it shows it."""
    pieces = list(cut(io.BytesIO(data), **how))  # type: ignore[arg-type]
    times, pictures = shown(pieces)
    with VideoReader(data) as reader:
        assert len(times) == len(reader)
        assert np.abs(np.array(times) - reader.times_us).max() <= TICK_US
        whole = reader.read(times_us=reader.times_us, size=(HEIGHT, WIDTH))
    assert not whole.gaps
    assert (pictures == whole.pixels).all()
    return pieces


@pytest.mark.slow
@pytest.mark.parametrize(("container", "codec", "first", "rest"), CASES)
def test_what_was_cut_away_at_the_beginning_is_not_shown(
    container: str, codec: str, first: str, rest: str
) -> None:
    data = trimmed(source(container, codec), 1.05 if container == "3gp" else 2.05, container)
    pieces = check(data, target_s=0.5)
    assert [piece.container for piece in pieces] == [first, *[rest] * (len(pieces) - 1)]
    assert len(pieces) >= 2


@pytest.mark.slow
@pytest.mark.parametrize("bframes", [pytest.param(0, marks=pytest.mark.long), 2])
def test_wherever_it_is_cut_away(bframes: int) -> None:
    """A first piece of one picture, too: those behind it are decoded before time begins."""
    data = source(bframes=bframes)
    for trim_ms in range(0, 3600, 130):
        check(trimmed(data, trim_ms / 1000), keyframes=1)


@pytest.mark.slow
@pytest.mark.parametrize("bframes", [0, 2])
@pytest.mark.parametrize("edit", [[(3.05, 0.5)], [(2.05, 1.7)], [(1.5, None), (3.6, 0.5)]])
def test_whatever_the_edit_list_says(edit: list[tuple[float, float | None]], bframes: int) -> None:
    pieces = check(edited(source(bframes=bframes), edit), target_s=0.5)
    assert [piece.container for piece in pieces][:2] == ["mp4", "mpegts"]


@pytest.mark.slow
@pytest.mark.parametrize("codec", ["libx264", "libx265"])
def test_what_was_cut_away_at_the_end_is_not_shown(codec: str) -> None:
    """A picture behind the end is decoded before those that refer to it and are shown: it is in the piece."""
    whole, containers = source(codec=codec), set()
    for begin_s in (0.2, 0.75):
        for length_ms in range(150, 4000, 310):
            pieces = check(edited(whole, [(length_ms / 1000, begin_s)]), target_s=1.0)
            containers |= {piece.container for piece in pieces[1:]}
    assert containers == {"mpegts", "mp4"}


@pytest.mark.slow
def test_the_end_of_a_long_day() -> None:
    """Times of 32 bits reach 6.6 hours."""
    pieces = check(edited(source(), [(25_000.0, None), (3.15, 0.2)]), target_s=1.0)
    assert [piece.container for piece in pieces] == ["mpegts", "mpegts", "mp4"]


def test_a_whole_recording_is_cut_as_before() -> None:
    assert {piece.container for piece in check(source(), target_s=1)} == {"mpegts"}


def turned(clip: bytes) -> bytes:
    """An MP4 clip that is to be turned by 90 degrees (ISO/IEC 14496-12, 8.3.2)."""
    one, whole = 1 << 16, 1 << 30
    plain = struct.pack(">9i", one, 0, 0, 0, one, 0, 0, 0, whole)
    at = clip.index(plain, clip.index(b"tkhd"))
    return clip[:at] + struct.pack(">9i", 0, one, 0, -one, 0, 0, 0, 0, whole) + clip[at + len(plain) :]


@pytest.mark.slow
def test_a_turned_picture_stays_turned_behind_a_hidden_one() -> None:
    pieces = check(turned(trimmed(source(), 2.05)), target_s=0.5)
    decoded = [SoftwareDecoder().decode(piece.data, EVERY) for piece in pieces]
    assert {each.geometry.rotation for each in decoded} == {90}


def test_hidden_leading_pictures_are_not_lost() -> None:
    """A recording that begins with the keyframe of an open group: its leading pictures are hidden."""
    options = {"x265-params": "log-level=none:open-gop=1:keyint=12:min-keyint=12:bframes=2"}
    data = trimmed(encode(codec="libx265", frames=36, gop=12, speed=2, options=options), 1.2)
    for clip in (data, next(cut(io.BytesIO(data))).data):
        facts = SoftwareDecoder().decode(clip, EVERY).facts
        assert (facts.leading_lost, facts.refused, facts.corrupt) == (0, 0, 0)


@pytest.mark.slow
def test_pictures_before_the_first_keyframe_that_is_shown() -> None:
    """The leading pictures of an open group refer to a group of which nothing is shown."""
    options = {"x264-params": "open-gop=1:b-pyramid=none:b-adapt=0"}
    whole = encode(frames=36, gop=12, bframes=2, speed=2, options=options)
    for trim_ms in range(900, 1300, 50):
        data = trimmed(whole, trim_ms / 1000)
        first = next(cut(io.BytesIO(data), target_s=0.5))
        times, pictures = shown([first])
        with VideoReader(data) as reader:
            expected = reader.read(indices=range(first.frames), size=(HEIGHT, WIDTH))
        assert np.abs(np.array(times) - expected.times_us).max() <= TICK_US
        assert (pictures == expected.pixels).all()


def test_vectors_are_gathered_of_shown_pictures_alone() -> None:
    first = next(cut(io.BytesIO(trimmed(source(), 2.05)), target_s=0.5))
    recorder = Recorder()
    decoded = SoftwareDecoder().decode(first.data, DecodeRequest(56, 42, gather=recorder))
    assert decoded.facts.has_vectors
    assert len(recorder.frames) == first.frames
    assert [frame.index for frame in recorder.frames] == list(range(first.frames))


@pytest.mark.slow
def test_the_sandbox_cuts_and_decodes_it_alike(tmp_path: Path) -> None:
    file = tmp_path / "phone.mp4"
    file.write_bytes(trimmed(source(), 2.05))
    here = list(cut(file, target_s=0.5))
    with SandboxPool(1) as pool:
        assert list(pool.cut(file, target_s=0.5)) == here
        confined = pool.decode(here[0].data, EVERY)
    plain = SoftwareDecoder().decode(here[0].data, EVERY)
    assert (confined.facts, confined.frames) == (plain.facts, plain.frames)
    assert (confined.pixels == plain.pixels).all()


SEVERAL: dict[str, list[tuple[float, float | None]]] = {
    "two": [(1.0, 0.5), (1.5, 3.5)],
    "at keyframes": [(1.2, 0.0), (1.2, 2.4), (1.2, 4.8)],
    "ends within": [(1.0, 0.0), (1.0, 2.4), (1.0, 4.8)],
    "begins within": [(1.2, 0.0), (0.5, 3.1), (0.7, 5.3)],
    "backwards": [(1.0, 3.5), (1.5, 0.5)],
    "twice": [(1.0, 1.5), (1.0, 1.5)],
    "pause": [(1.0, 0.2), (0.7, None), (1.5, 2.2)],
    "long pause": [(1.0, 0.2), (20.0, None), (1.5, 2.2)],
}


@pytest.mark.slow
@pytest.mark.parametrize("bframes", [0, 2])
@pytest.mark.parametrize("edits", SEVERAL)
def test_what_several_edits_leave_out_is_not_shown(edits: str, bframes: int) -> None:
    """It was sampled and asked, and pieces lasted as long as it."""
    data = edited(source(bframes=bframes), SEVERAL[edits])
    for target_s in (0.5, 2.0):
        pieces = check(data, target_s=target_s)
        assert not any(piece.jump for piece in pieces)
        with VideoReader(data) as reader:
            assert abs(sum(piece.duration_us for piece in pieces) - reader.facts.duration_us) <= 200_000


@pytest.mark.slow
@pytest.mark.parametrize("codec", ["libx265", "mpeg4", "libsvtav1"])
def test_what_two_edits_leave_out_of_other_codecs_is_not_shown(codec: str) -> None:
    check(edited(source(codec=codec), SEVERAL["two"]), target_s=0.5)


@pytest.mark.slow
def test_what_many_edits_leave_out_is_not_shown() -> None:
    """Without B-frames: with them FFmpeg shows pictures of two edits at the same time."""
    pieces = check(edited(source(bframes=0), [(0.3, round(0.7 * n, 1)) for n in range(8)]), target_s=2.0)
    assert len(pieces) == 8


@pytest.mark.slow
def test_an_edit_that_begins_far_behind_its_keyframe_is_no_jump() -> None:
    whole = encode(frames=100, fps=10, gop=50, bframes=2, speed=2)
    pieces = check(edited(whole, [(1.0, 0.5), (1.0, 9.0)]), target_s=0.5)
    assert [piece.jump for piece in pieces] == [False, False]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("codec", "container"),
    [
        *(("libx264", container) for container in ("mp4", "ts", "mkv", "flv", "h264")),
        ("libx265", "ts"),
        ("mpeg4", "ts"),
        ("libvpx-vp9", "mkv"),
        ("libsvtav1", "mp4"),
    ],
)
def test_time_begins_with_the_first_keyframe(codec: str, container: str) -> None:
    """A recording that begins between keyframes: what precedes the first one cannot be decoded."""
    whole = source("mkv" if codec == "libvpx-vp9" else "mp4", codec)
    for first in (1, 7, 12):
        pieces = check(rest(whole, container, first), target_s=0.5)
        assert sum(piece.frames for piece in pieces) == 48


@pytest.mark.slow
@pytest.mark.parametrize(
    ("codec", "options"),
    [
        (
            "libx264",
            {"x264-params": "open-gop=1:b-pyramid=none:b-adapt=0:keyint=12:min-keyint=12:scenecut=0"},
        ),
        ("libx265", {"x265-params": "log-level=none:open-gop=1:keyint=12:min-keyint=12:bframes=2"}),
        ("mpeg2video", {"bf": "2"}),
    ],
)
def test_leading_pictures_of_the_first_keyframe_are_no_beginning(codec: str, options: dict[str, str]) -> None:
    """No decoder shows them: they refer to pictures before the recording."""
    whole = encode(codec=codec, frames=60, fps=25, gop=12, bframes=2, speed=2, options=options)
    for first in (7, 12, 14):
        data = rest(whole, "ts", first)
        times, pictures = shown_of(next(cut(io.BytesIO(data), target_s=0.1)))
        with VideoReader(data) as reader:
            beginning = reader.read(indices=range(len(times)), size=(HEIGHT, WIDTH))
        assert not beginning.gaps
        assert np.abs(np.array(times) - beginning.times_us).max() <= TICK_US
        assert (pictures == beginning.pixels).all()


def shown_of(piece: Segment) -> tuple[list[int], U8]:
    """(stream time, picture) of all that is sampled of a first piece, whatever was lost of it."""
    decoded = SoftwareDecoder().decode(piece.data, EVERY)
    return [frame.stream_us for frame in decoded.frames], decoded.pixels


@pytest.mark.slow
@pytest.mark.parametrize("bframes", [0, 2])
@pytest.mark.parametrize("first", [0, 7])
def test_what_lies_before_the_zero_of_a_matroska_file_is_hidden(first: int, bframes: int) -> None:
    """FFmpeg gives such packets no time. All pictures of the file had nominal times then, and were shown."""
    data = rest(source(bframes=bframes), "mkv", first, later_s=-2.55)
    pieces = check(data, target_s=0.5)
    assert sum(piece.frames for piece in pieces) == 34
    assert sum(piece.duration_us for piece in pieces) == 3_400_000
    assert pieces[0].container == "mp4"  # with an edit list
    if not first:  # as one segment
        assert SoftwareDecoder().decode(data, EVERY).facts.frames == 34


def test_a_recording_that_hides_longer_than_a_piece() -> None:
    """One group of pictures whose first four seconds were cut away."""
    data = trimmed(encode(frames=60, fps=10, gop=60, bframes=2, speed=2), 4.05)
    (piece,) = check(data, target_s=0.5)
    assert piece.start_us == 0
    assert (piece.frames, piece.duration_us) == (19, 1_900_000)


@pytest.mark.parametrize("vectors", [False, True])
def test_what_is_asked_of_a_stream_is_what_is_asked_of_the_recording(vectors: bool) -> None:
    """Two pictures a second, and the last cell left to a piece that does not come."""
    data, grid = trimmed(source(), 2.05), SamplingGrid(500_000)
    request = replace(EVERY, grid=grid, tail=Tail.LEAVE, vectors=vectors)
    samples: list[tuple[int, int]] = []
    for piece in cut(io.BytesIO(data), target_s=1.0):
        decoded = SoftwareDecoder().decode(
            piece.data, replace(request, gather=Recorder() if vectors else None)
        )
        samples += [(frame.slot, round(frame.stream_us, -3)) for frame in decoded.frames]
        request = replace(request, expected=decoded.following(), first_slot=decoded.next_slot)
    with VideoReader(data) as reader:
        picks = [(pick.slot, round(pick.time_us, -3)) for pick in reader.picks(2.0)]
    assert samples == picks[: len(samples)]
    assert len(picks) - len(samples) <= 1
