from __future__ import annotations

import threading
from fractions import Fraction
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from lookout.video.files import FileDecoder
from lookout.video.files.parallel import threads_per_worker
from lookout.video.files.table import FrameColumns, FrameTable, plan_ranges, share_out
from lookout.video.motion import Fit
from lookout.video.motion.types import U8
from lookout.video.segments import CodecError, SamplingGrid
from lookout.video.segments.container import Video, ticks_to_us
from lookout.video.segments.picture import Painter, frame_geometry
from lookout.video.segments.timeline import JUMP_US, Timeline
from tests.unit.video.segments.clips import encode

SIZE = (32, 24)
OPEN_GOP = {"x264-params": "open-gop=1:bframes=3:b-adapt=2:keyint=12:min-keyint=12:scenecut=0"}
# One of a kind: B-frames, open groups, HEVC, AV1, variable rate, damage, no time stamps, mid-group start.
FEW = (
    "derived/open_gop_bframes_h264.mp4",
    "derived/fall_hevc.mp4",
    "derived/corrupt_bytes.mp4",
    "derived/join_midgop.ts",
    "derived/vfr_with_gap.mp4",
    "derived/resolution_change.h264",
    "derived/truncated_faststart.mp4",
    "fixed/gmdcsa_s1_fall13.mp4",
    "fixed/zamba_ir_tree_1fps.avi",
    "odd/torchcodec_av1_video.mkv",
    "odd/androidx_bbb_642x642_768kbps_30fps_vp9.webm",
    "odd/decord_rot90.mov",
)


def plain(decoder: FileDecoder) -> dict[int, U8]:
    """Position -> pixels, by decoding the whole file in order with no trick at all."""
    ordered = decoder.table.ordered
    wanted = {(pick.pts if ordered else pick.index): i for i, pick in enumerate(decoder.picks)}
    painter, out = Painter(), {}
    with decoder.source.open() as file, Video(file, vectors=False) as video:
        for i, frame in enumerate(video.frames()):
            position = wanted.get(frame.pts if ordered else i)
            if position is not None:
                out[position] = painter.paint(frame, frame_geometry(frame, *SIZE, Fit.STRETCH))
    return out


def check(path: Path, step: int, **options: int) -> FileDecoder:
    decoder = FileDecoder(path, *SIZE, grid=SamplingGrid(step), **options)
    got = {frame.position: frame.pixels for frame in decoder}
    truth = plain(decoder)
    assert got.keys() == truth.keys()
    assert all((got[i] == truth[i]).all() for i in truth)
    return decoder


@given(
    st.sets(st.integers(-(10**6), 10**7) | st.integers(-(2**62), 2**62), min_size=1, max_size=40),
    st.sampled_from((Fraction(1, 90_000), Fraction(1, 15_360), Fraction(1, 1000), Fraction(1001, 30_000))),
    st.integers(1, 300),
)
def test_times_of_a_table_are_those_of_a_timeline(stamps: set[int], base: Fraction, step: int) -> None:
    for pts in (sorted(stamps), [i * step for i in range(len(stamps))]):
        count, flags = np.array(pts, np.int64), np.ones(len(pts), np.bool_)
        columns = FrameColumns(count[::-1], count, flags, flags, count, ~flags)
        table = FrameTable.of(columns, time_base=base, fps=Fraction(25))
        timeline = Timeline(table.fps, JUMP_US)
        for each in pts:
            timeline.add(ticks_to_us(each, base))
        order, times = table.times()
        assert table.pts[order].tolist() == pts
        assert times == timeline.times


@pytest.mark.parametrize(
    ("loads", "threads", "expected"),
    [
        ([10] * 8, 2, [1, 1]),
        ([10], 3, [3]),  # one interval: all threads share its pictures
        ([241, 21], 2, [2]),  # alone, the second thread would wait for the first
        ([10] * 8, 16, [2] * 8),
        ([10] * 3, 4, [4]),
        ([10] * 4, 1, [1]),
    ],
)
def test_threads_share_pictures_where_intervals_are_uneven(
    loads: list[int], threads: int, expected: list[int]
) -> None:
    assert threads_per_worker(loads, threads) == expected


@pytest.fixture
def clip(tmp_path: Path) -> Path:
    path = tmp_path / "clip.mp4"
    path.write_bytes(encode("mp4", frames=90, speed=1, options=OPEN_GOP))
    return path


@settings(max_examples=12, deadline=None)
@given(
    st.sampled_from((100_000, 250_000, 500_000, 3_000_000)),
    st.integers(1, 4),
    st.integers(1, 12),
    st.integers(1, 70),
)
def test_parallel_equals_plain_decoding(
    tmp_path_factory: pytest.TempPathFactory, step: int, threads: int, intervals: int, lookahead: int
) -> None:
    path = tmp_path_factory.getbasetemp() / "open.mp4"
    if not path.exists():
        path.write_bytes(encode("mp4", frames=90, speed=1, options=OPEN_GOP))
    check(path, step, threads=threads, intervals=intervals, lookahead=lookahead)


def test_less_is_decoded_than_the_file_holds(clip: Path) -> None:
    every = check(clip, 100_000).work
    some = check(clip, 500_000).work
    few = check(clip, 5_000_000).work
    assert every.frames >= 90
    assert some.frames < 90
    assert few.frames < 10
    assert few.fed < some.fed <= every.fed
    assert every.painted == 90


def test_a_time_range_decodes_only_what_it_needs(clip: Path) -> None:
    decoder = FileDecoder(clip, *SIZE, start_us=2_000_000, end_us=4_000_000)
    frames = list(decoder)
    assert [frame.slot for frame in frames] == [4, 5, 6, 7]
    assert decoder.work.fed < 50


def test_leaving_early_stops_the_threads(clip: Path) -> None:
    before = set(threading.enumerate())
    for _ in FileDecoder(clip, *SIZE, threads=3, lookahead=1):
        break
    assert set(threading.enumerate()) <= before


def test_a_decoder_is_read_once(clip: Path) -> None:
    with FileDecoder(clip, *SIZE) as decoder:
        next(iter(decoder))
        with pytest.raises(CodecError, match="once"):
            next(iter(decoder))


def test_seeking_skips_what_is_not_needed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lookout.video.files.packets.SEEK_BYTES", 1)
    monkeypatch.setattr("lookout.video.files.packets.KEEP_BYTES", 0)
    for container, can in (("mp4", True), ("mkv", True), ("ts", False)):
        path = tmp_path / f"clip.{container}"
        path.write_bytes(encode(container, frames=120, speed=1, options=OPEN_GOP))
        assert (check(path, 5_000_000).work.seeks > 0) is can


@pytest.mark.slow
def test_seeks_do_not_disturb_the_decoders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Packets are read from the video that was scanned: its seeks also empty the decoder it owns."""
    monkeypatch.setattr("lookout.video.files.packets.SEEK_BYTES", 1)
    path = tmp_path / "clip.mp4"
    closed = {"x264-params": "bframes=0:keyint=6:min-keyint=6:scenecut=0"}
    path.write_bytes(encode("mp4", frames=300, speed=2, size=(320, 240), options=closed))
    work = check(path, 1_700_000, threads=2, intervals=30).work
    assert work.seeks > 5


def test_a_file_or_setting_that_cannot_be_used_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CodecError, match="cannot be read"):
        FileDecoder(tmp_path / "none.mp4", *SIZE)
    (tmp_path / "empty.mp4").touch()
    with pytest.raises(CodecError, match="0 bytes"):
        FileDecoder(tmp_path / "empty.mp4", *SIZE)
    with pytest.raises(CodecError, match="at least 1"):
        FileDecoder(tmp_path / "none.mp4", *SIZE, threads=0)


@settings(max_examples=60, deadline=None)
@given(st.sets(st.integers(0, 89), min_size=1), st.integers(1, 9))
def test_runs_hold_each_wanted_frame_once(wanted: set[int], intervals: int) -> None:
    table = _table()
    order, _ = table.times()
    pts = [int(table.pts[order[i]]) for i in sorted(wanted)]
    runs = plan_ranges(table, pts)
    assert sorted(p for run in runs for p in run.wanted) == sorted(pts)
    for run in runs:
        assert table.clean[run.first]
        held = set(table.pts[run.first : run.last + 1].tolist())
        assert run.wanted <= held
    shared = share_out(runs, intervals)
    assert len(shared) <= intervals
    assert sorted(p for interval in shared for run in interval for p in run.wanted) == sorted(pts)


@cache
def _table() -> FrameTable:
    with Video(encode("mp4", frames=90, speed=1, options=OPEN_GOP), vectors=False) as video:
        return FrameTable.scan(video)


@pytest.mark.slow
@pytest.mark.footage
@pytest.mark.parametrize("name", FEW)
def test_real_files_equal_plain_decoding(footage: Path, name: str) -> None:
    check(footage / name, 500_000, threads=3)


@pytest.mark.long
@pytest.mark.timeout(1800)
@pytest.mark.footage
def test_every_real_file_equals_plain_decoding(footage: Path) -> None:
    checked = 0
    for path in sorted(footage.glob("*/*.*")):
        if path.suffix in (".json", ".txt"):
            continue
        for step, options in (
            (500_000, {"threads": 3}),
            (40_000, {"threads": 2, "intervals": 7, "lookahead": 5}),
        ):
            try:
                check(path, step, **options)
            except CodecError:
                continue
            checked += 1
    assert checked > 0
