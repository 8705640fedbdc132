"""Clips across segments: every picture as in its segment, at its time, whatever is cut."""

from __future__ import annotations

import io
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import av
import pytest
from hypothesis import given, settings, strategies as st

from lookout.video.sandbox import SandboxPool
from lookout.video.segments import CodecError, DecodeRequest, Reason, cut
from lookout.video.segments.container import Video, ticks_to_us
from lookout.video.segments.decoder import decode_segment
from lookout.video.segments.joining import CLOSED_HOLE_US, KEPT_HOLE_US, join
from lookout.video.segments.types import ClipSegment, JoinedClip, JoinRequest
from tests.unit.video.segments.clips import encode

WALL_US = 1_700_000_000_000_000
END_US = 1 << 52
#: container and encoder of sources; what an encoder cannot write as H.264 or HEVC has no clip
SOURCES = [
    ("ts", "libx264", 0),
    ("ts", "libx264", 2),
    ("mp4", "libx264", 2),
    ("mkv", "libx264", 2),
    ("flv", "libx264", 0),
    ("ts", "libx265", 2),
    ("mp4", "libx265", 0),
    ("webm", "libvpx-vp9", 0),
]
WITHOUT_CLIP = [("ts", "mpeg4"), ("avi", "mjpeg"), ("ts", "mpeg2video")]


@dataclass(frozen=True)
class Shown:
    """A decoded picture: when it is shown, and its bytes."""

    at_us: int
    pixels: bytes


def segment_of(data: bytes, start_us: int, epoch: int = 1) -> ClipSegment:
    """A segment as frames records place it: its first decoded picture lies at `start_us`."""
    first_us = decode_segment(data, DecodeRequest(16, 16, vectors=False)).facts.first_us
    return ClipSegment(data, epoch, start_us - first_us, WALL_US)


@cache
def segments(container: str, codec: str, bframes: int, options: str = "") -> tuple[ClipSegment, ...]:
    """A clip of six seconds as six segments."""
    if codec == "libx265" and not options:
        options = "x265-params=open-gop=0"
    more = dict(option.split("=", 1) for option in [options] if option)
    clip = encode(container, codec, frames=60, bframes=bframes, speed=1, options=more)
    return tuple(segment_of(piece.data, piece.start_us) for piece in cut(io.BytesIO(clip), target_s=1.0))


def played(data: bytes) -> list[Shown]:
    """What FFmpeg decodes of a file; times since its first picture."""
    with av.open(io.BytesIO(data)) as file:
        stream = file.streams.video[0]
        frames = [
            Shown(ticks_to_us(frame.pts or 0, frame.time_base), frame.to_ndarray().tobytes())
            for frame in file.decode(stream)
        ]
    return [replace(frame, at_us=frame.at_us - frames[0].at_us) for frame in frames]


def filmed(parts: Sequence[ClipSegment]) -> list[Shown]:
    """What FFmpeg decodes of the segments, each alone; stream times."""
    shown: list[Shown] = []
    for part in parts:
        with Video(part.data, vectors=False) as video:
            shown += [
                Shown(
                    ticks_to_us(frame.pts or 0, video.time_base) + part.origin_us,
                    frame.to_ndarray().tobytes(),
                )
                for frame in video.frames()
            ]
    return shown


def whole(parts: Sequence[ClipSegment], **fields: int) -> JoinRequest:
    """A clip of everything."""
    return replace(JoinRequest(tuple(parts), 0, END_US, 1 << 28), **fields)


def check(clip: JoinedClip, expected: Sequence[Shown]) -> None:
    """A clip shows the pictures at their times, those of its first at zero."""
    shown = played(clip.data)
    assert [frame.pixels for frame in shown] == [frame.pixels for frame in expected]
    first_us = expected[0].at_us
    for frame, original in zip(shown, expected, strict=True):
        assert abs(frame.at_us - (original.at_us - first_us)) <= 1
    assert clip.frames == len(expected)


@pytest.mark.parametrize(("container", "codec", "bframes"), SOURCES)
def test_a_clip_of_all_segments_has_every_picture_at_its_time(
    container: str, codec: str, bframes: int
) -> None:
    parts = segments(container, codec, bframes)
    clip = join(whole(parts))
    check(clip, filmed(parts))
    assert len(clip.spans) == 1
    assert clip.spans[0].start_us == WALL_US


@pytest.mark.parametrize(("container", "codec", "bframes"), SOURCES)
@settings(max_examples=12, deadline=None)
@given(begin_us=st.integers(0, 6_000_000), length_us=st.integers(1, 7_000_000))
def test_a_clip_begins_at_the_keyframe_before_the_range_and_misses_nothing(
    container: str, codec: str, bframes: int, begin_us: int, length_us: int
) -> None:
    parts = segments(container, codec, bframes)
    originals = filmed(parts)
    end_us = begin_us + length_us
    if not any(begin_us <= frame.at_us < end_us for frame in originals):
        return
    clip = join(whole(parts, from_us=WALL_US + begin_us, to_us=WALL_US + end_us))
    shown = played(clip.data)
    first = next(i for i, frame in enumerate(originals) if frame.pixels == shown[0].pixels)
    # Keyframes come every second: the clip begins at most so long before.
    assert begin_us - 1_000_000 < originals[first].at_us <= begin_us
    assert originals[first].at_us % 1_000_000 < 1000
    check(clip, originals[first : first + len(shown)])
    newest_us = originals[first + len(shown) - 1].at_us
    assert newest_us >= max(frame.at_us for frame in originals if frame.at_us < end_us)
    assert newest_us < end_us + 300_000  # pictures that are stored before the last one


@pytest.mark.parametrize(("hole_us", "takes_us"), [(3_000_000, 3_000_000), (60_000_000, CLOSED_HOLE_US)])
@pytest.mark.parametrize("codec", ["libx264", "libx265"])
def test_a_short_hole_keeps_its_length_and_a_long_one_is_closed(
    codec: str, hole_us: int, takes_us: int
) -> None:
    assert (hole_us <= KEPT_HOLE_US) == (hole_us == takes_us)
    parts = segments("ts", codec, 2)
    later = [replace(part, origin_us=part.origin_us + hole_us) for part in parts[3:]]
    clip = join(whole([*parts[:2], *later]))
    shown, expected = played(clip.data), filmed([*parts[:2], *parts[3:]])
    assert [frame.pixels for frame in shown] == [frame.pixels for frame in expected]
    count = len(filmed(parts[:2]))
    hole_begins_us = 2_000_000
    step_us = shown[count].at_us - hole_begins_us
    lost_us = 1_000_000 if hole_us <= KEPT_HOLE_US else 0  # the segment that was left out
    assert abs(step_us - takes_us - lost_us) <= 2
    before, after = clip.spans
    assert before.end_us == WALL_US + hole_begins_us
    assert after.start_us == WALL_US + 3_000_000 + hole_us
    assert abs(after.at_us - clip.spans[0].at_us - shown[count].at_us) <= 2


def test_a_new_epoch_goes_on_and_one_that_overlaps_is_shown_after_the_other() -> None:
    parts = segments("mp4", "libx264", 2)
    other = [replace(part, epoch=2, wall_offset_us=WALL_US + 1_000_000) for part in parts[:2]]
    clip = join(whole([*parts[:3], *other]))
    shown = played(clip.data)
    assert [frame.pixels for frame in shown] == [frame.pixels for frame in filmed([*parts[:3], *other])]
    times = [frame.at_us for frame in shown]
    assert times == sorted(set(times))
    assert [span.start_us - WALL_US for span in clip.spans] == [0, 1_000_000]


def test_what_was_sent_twice_is_shown_once() -> None:
    parts = segments("ts", "libx264", 2)
    check(join(whole([*parts[:2], parts[1], *parts[2:]])), filmed(parts))


def test_other_pictures_sizes_and_parameter_sets_under_way_are_shown() -> None:
    small = segments("ts", "libx264", 0)
    clip = encode("ts", frames=20, size=(160, 120), speed=1)
    large = [segment_of(p.data, 6_000_000 + p.start_us) for p in cut(io.BytesIO(clip), target_s=1.0)]
    joined = join(whole([*small, *large]))
    check(joined, filmed([*small, *large]))
    assert joined.codecs.startswith("avc3.")


def test_where_the_codec_changes_the_longer_part_is_shown() -> None:
    first, second = segments("ts", "libx264", 2), segments("mp4", "libx265", 0)
    later = [replace(part, origin_us=part.origin_us + 6_000_000) for part in second]
    check(join(whole([*first[:2], *later])), filmed(later))


def test_leading_pictures_are_shown_where_what_they_refer_to_is() -> None:
    parts = segments("mp4", "libx264", 2, "x264-params=open-gop=1:keyint=10:min-keyint=10")
    alone, together = filmed(parts), played(join(whole(parts)).data)
    lost = len(together) - len(alone)
    assert lost > 0  # a segment alone loses them
    assert Counter(frame.pixels for frame in together) >= Counter(frame.pixels for frame in alone)
    # Without the segment before, they are not shown at all.
    hole = [*parts[:2], *(replace(p, origin_us=p.origin_us + 2_000_000) for p in parts[3:4])]
    shown = played(join(whole(hole)).data)
    assert [f.pixels for f in shown[-len(filmed(hole[-1:])) :]] == [f.pixels for f in filmed(hole[-1:])]


@pytest.mark.parametrize(("container", "codec"), WITHOUT_CLIP)
def test_there_is_no_clip_of_what_browsers_do_not_play(container: str, codec: str) -> None:
    pix_fmt = "yuvj420p" if codec == "mjpeg" else "yuv420p"
    clip = encode(container, codec, frames=10, pix_fmt=pix_fmt)
    with pytest.raises(CodecError) as caught:
        join(whole([ClipSegment(clip, 1, 0, WALL_US)]))
    assert caught.value.reason is Reason.NO_DECODER


def test_a_damaged_segment_is_a_hole_and_nothing_but_damage_an_error() -> None:
    parts = segments("ts", "libx264", 2)
    broken = replace(parts[2], data=b"\0" * 5000)
    clip = join(whole([*parts[:2], broken, *parts[3:]]))
    assert len(played(clip.data)) == len(filmed([*parts[:2], *parts[3:]]))
    with pytest.raises(CodecError) as caught:
        join(whole([broken]))
    assert caught.value.reason is Reason.UNREADABLE
    with pytest.raises(CodecError, match="no picture was filmed"):
        join(whole(parts, from_us=WALL_US + 60_000_000, to_us=WALL_US + 70_000_000))
    with pytest.raises(CodecError) as caught:
        join(whole(parts, max_bytes=1000))
    assert caught.value.reason is Reason.BYTES


def test_clips_that_continue_each_other_are_one_file() -> None:
    parts = segments("ts", "libx264", 2)
    data, at_us = b"", 1_000_000
    for number, part in enumerate(parts):
        clip = join(whole([part], at_us=at_us, fragment=10 * number + 1))
        body = clip.data if not data else clip.data[clip.data.index(b"moof") - 4 :]
        data, at_us = data + body, clip.end_us
    shown = played(data)
    assert [frame.pixels for frame in shown] == [frame.pixels for frame in filmed(parts)]
    assert all(abs(f.at_us - o.at_us) <= 2000 for f, o in zip(shown, filmed(parts), strict=True))


def test_the_sandbox_makes_the_same_clip() -> None:
    request = whole(segments("ts", "libx265", 2), from_us=WALL_US + 1_500_000)
    with SandboxPool() as pool:
        assert pool.join(request) == join(request)


@pytest.mark.footage
@pytest.mark.long
def test_real_footage_of_every_kind_has_every_picture(footage: Path) -> None:
    """Damaged files aside: what their pictures show depends on what was decoded before."""
    joined, reasons = 0, set[Reason]()
    damaged = ("corrupt", "invalid_nalu", "truncated", "zero_length")
    for path in sorted(
        path for path in footage.rglob("*.*") if path.suffix in (".mp4", ".ts", ".mkv", ".webm")
    ):
        if any(word in path.name for word in damaged):
            continue
        try:
            pieces = [piece for piece, _ in zip(cut(path, target_s=1.0), range(4), strict=False)]
            parts = [segment_of(piece.data, piece.start_us) for piece in pieces]
            clip = join(whole(parts))
        except CodecError as error:
            reasons.add(error.reason)
            continue
        missing = Counter(frame.pixels for frame in filmed(parts))
        missing.subtract(Counter(frame.pixels for frame in played(clip.data)))
        assert not +missing, path
        joined += 1
    assert joined > 30
    assert reasons <= {Reason.NO_DECODER, Reason.NO_VIDEO, Reason.NO_KEYFRAME}
