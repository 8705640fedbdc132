"""Fragments that are moved follow each other as one stream."""

from __future__ import annotations

from dataclasses import replace

import pytest

from lookout.video.segments import CodecError
from lookout.video.segments.fragments import moved, split
from lookout.video.segments.joining import join
from tests.unit.video.segments.test_joining import filmed, played, segments, whole

AT_US = 10_000_000


@pytest.mark.parametrize(
    ("container", "codec"), [("ts", "libx264"), ("mp4", "libx265"), ("webm", "libvpx-vp9")]
)
def test_segments_that_were_made_alone_are_one_stream(container: str, codec: str) -> None:
    parts = segments(container, codec, 0 if codec == "libvpx-vp9" else 2)
    data, number, ends_us = b"", 1, 0
    for part in parts:
        clip = join(whole([part], at_us=AT_US, fragment=1))
        fragments = split(clip.data)
        if not data:
            data, by_us = fragments.head, -fragments.begins_us
        else:
            assert data.startswith(fragments.head)  # a player goes on without a new one
            by_us = ends_us - AT_US
        data += moved(fragments, by_us, number)
        number, ends_us = number + fragments.count, clip.end_us + by_us
    shown = played(data)
    assert [frame.pixels for frame in shown] == [frame.pixels for frame in filmed(parts)]
    first_us = filmed(parts)[0].at_us
    for frame, original in zip(shown, filmed(parts), strict=True):
        assert abs(frame.at_us - original.at_us + first_us) <= 2000
    assert split(data).begins_us == 0


def test_what_is_cut_off_or_holds_no_fragment_is_an_error() -> None:
    clip = join(whole(segments("ts", "libx264", 2)[:1], fragment=1))
    fragments = split(clip.data)
    for data in (b"", clip.data[:-1], fragments.head, b"\0" * 64):
        with pytest.raises(CodecError):
            split(data)
    for place in range(0, 200):
        damaged = bytearray(fragments.media)
        damaged[place] ^= 0xFF
        try:
            moved(replace(fragments, media=bytes(damaged)), 5, 1)
        except CodecError:
            continue
