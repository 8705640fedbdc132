from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest

from lookout.video.files import VideoReader
from lookout.video.files.parallel import FILE_LIMITS
from lookout.video.files.sample_index import indexed_table
from lookout.video.files.source import BytesSource, FileSource, Source, open_video
from lookout.video.files.table import FrameTable
from lookout.video.segments import CodecError
from lookout.video.segments.container import Video
from tests.unit.video.segments.clips import encode

OPEN_GOP = {"x264-params": "open-gop=1:bframes=3:b-adapt=2:keyint=12:min-keyint=12:scenecut=0"}


def tables(source: Source) -> tuple[FrameTable | None, FrameTable]:
    """(from the index, nothing decoded to know the stream; from reading every packet)."""
    with open_video(source, FILE_LIMITS, probe=False) as video, source.open() as file:
        found = indexed_table(video, file)
        known = shape(video)
    with open_video(source, FILE_LIMITS) as video:
        if found is not None:
            assert known == shape(video), source.name
        return None if found is None else found[0], FrameTable.scan(video)


def shape(video: Video) -> tuple[object, ...]:
    """What decoding starts from: a decoder that holds back too few pictures gives them out of order."""
    context = video.context
    size = context.width, context.height, context.coded_width, context.coded_height
    return (*size, context.reorder_depth, context.extradata, context.profile, video.fps, video.time_base)


def same(one: FrameTable, other: FrameTable) -> bool:
    fields = [field.name for field in dataclasses.fields(one)]
    return all(np.array_equal(getattr(one, name), getattr(other, name)) for name in fields)


@pytest.mark.slow
def test_the_index_of_every_real_file_gives_what_its_packets_give(footage: Path) -> None:
    indexed = 0
    for path in sorted(footage.glob("*/*")):
        if path.suffix not in {".mp4", ".mov", ".3gp", ".mkv", ".ts"}:
            continue
        try:
            found, scanned = tables(FileSource(path))
        except CodecError:
            continue  # holds no video
        if found is not None:
            indexed += 1
            assert same(found, scanned), path
    assert indexed > 35


@pytest.mark.parametrize("options", [OPEN_GOP, {"x264-params": "bframes=0:keyint=30"}])
def test_open_groups_and_no_reordering(options: dict[str, str]) -> None:
    found, scanned = tables(BytesSource(encode("mp4", frames=60, speed=1, options=options)))
    assert found is not None
    assert same(found, scanned)


def test_a_file_that_is_cut_short_is_scanned_instead() -> None:
    whole = encode("mp4", frames=60, speed=1, options=OPEN_GOP)
    moov = whole.index(b"moov") - 4
    front = whole[:moov]
    assert tables(BytesSource(whole))[0] is not None
    with pytest.raises(CodecError):
        tables(BytesSource(front))


def test_an_index_that_contradicts_the_packets_is_not_used() -> None:
    data = bytearray(encode("mp4", frames=60, speed=1, options=OPEN_GOP))
    at = data.index(b"ctts") + 16  # the first run's offset
    data[at + 3] ^= 0x40
    found, scanned = tables(BytesSource(bytes(data)))
    assert found is None or same(found, scanned)


@pytest.mark.slow
def test_a_reader_of_an_indexed_file_reads_a_few_packets_only(tmp_path: Path) -> None:
    path = tmp_path / "clip.mp4"
    path.write_bytes(encode("mp4", size=(640, 480), frames=120, speed=8, options=OPEN_GOP))
    with VideoReader(path) as reader:
        assert reader.scan.kept is None
        assert reader.scan.first is not None
        assert len(reader.scan.first) < len(reader.table)
