from __future__ import annotations

import gc
import io
from collections.abc import Callable

import av
import pytest

from lookout.video.files import VideoReader
from lookout.video.segments import DecodeRequest, SoftwareDecoder
from lookout.video.segments.inspection import inspect_file
from tests.unit.video.segments.clips import Recorder, encode


def read(data: bytes) -> None:
    with VideoReader(data) as reader:
        assert len(reader.read(times_us=[0, 1_500_000], size=(24, 32), threads=2)) == 2


def decode(data: bytes) -> None:
    recorder = Recorder()
    SoftwareDecoder().decode(data, DecodeRequest(56, 42, gather=recorder))
    assert any(recorder.maps)


def look(data: bytes) -> None:
    assert inspect_file("clip", io.BytesIO(data)).vectors


def pictures() -> int:
    """Decoded pictures in memory; other tests keep some."""
    return sum(issubclass(type(each), av.VideoFrame) for each in gc.get_objects())


@pytest.mark.slow
@pytest.mark.parametrize("use", [read, decode, look])
def test_pictures_are_freed_without_the_garbage_collector(use: Callable[[bytes], None]) -> None:
    data = encode(speed=2)
    gc.collect()
    before = pictures()
    gc.disable()
    try:
        use(data)
        after = pictures()
    finally:
        gc.enable()
    assert after == before
