"""Recordings that were trimmed, edited or put into a container that does not say when pictures are shown:
frames and times are those of decoding the file from its beginning to its end."""

from __future__ import annotations

import io
from functools import cache
from pathlib import Path

import av
import numpy as np
import pytest

from lookout.video.files import VideoReader
from lookout.video.files.table import Hole
from lookout.video.motion.geometry import Fit
from lookout.video.motion.types import U8
from lookout.video.sandbox import SandboxedReader, inspect_all
from lookout.video.segments import CodecError, DecodeRequest, Reason, SamplingGrid, SoftwareDecoder, cut
from lookout.video.segments.picture import Painter, frame_geometry
from tests.unit.video.segments.clips import edited, encode, trimmed, with_hole

SIZE = (24, 32)
X265 = "keyint=12:min-keyint=12:log-level=none:bframes="

EDITS: dict[str, list[tuple[float, float | None]]] = {
    "tail": [(3.05, 0.2)],
    "middle": [(2.05, 1.7)],
    "delay": [(1.5, None), (4.0, 0.2)],
    "two": [(1.0, 0.5), (1.5, 3.5)],
    "backwards": [(1.0, 3.5), (1.5, 0.5)],
    "twice": [(1.0, 1.5), (1.0, 1.5)],
    "pause": [(1.0, 0.2), (0.7, None), (1.5, 2.2)],
    "long pause": [(1.0, 0.2), (60.0, None), (1.5, 2.2)],
}
TRIMS = {
    "mp4": ("mp4", 2.05, {}),
    "mov": ("mov", 2.05, {}),
    "at a keyframe": ("mp4", 2.4, {}),
    "fragments": ("mp4", 2.05, {"movflags": "frag_keyframe+empty_moov+default_base_moof"}),
    "mkv": ("mkv", 2.05, {}),
    "ts": ("ts", 2.05, {}),
}


@cache
def source(codec: str, bframes: int) -> bytes:
    options = {"x265-params": f"{X265}{bframes}"} if codec == "libx265" else None
    return encode("mp4", codec, frames=60, fps=10, gop=12, bframes=bframes, speed=2, options=options)


def in_order(data: bytes) -> tuple[list[float], list[U8]]:
    """(seconds since the first frame, picture) of all frames of a file, decoded by PyAV with no trick."""
    painter, pictures, times = Painter(), [], []
    with av.open(io.BytesIO(data)) as container:
        for frame in container.decode(video=0):
            assert frame.time is not None
            times.append(frame.time)
            pictures.append(painter.paint(frame, frame_geometry(frame, SIZE[1], SIZE[0], Fit.STRETCH)))
    return [time - times[0] for time in times], pictures


def check(data: bytes, threads: int = 2) -> VideoReader:
    """Read a whole file at once, backwards and around its middle, and compare."""
    times, pictures = in_order(data)
    with VideoReader(data) as reader:
        assert len(reader) == len(pictures)
        assert np.abs(reader.times_us / 1e6 - np.array(times)).max() < 2e-6
        got = reader.read(times_us=reader.times_us[::-1], size=SIZE, threads=threads)
        assert not got.gaps
        assert (got.pixels[::-1] == np.stack(pictures)).all()
        middle = len(reader) // 2
        picks = [reader._pick(index, slot) for slot, index in enumerate((0, middle, middle + 1))]
        for frame in reader.sample(picks=picks, size=SIZE, threads=1):
            assert (frame.pixels == pictures[frame.index]).all()
    return reader


@pytest.mark.parametrize("bframes", [0, 2])
@pytest.mark.parametrize("codec", ["libx264", "libx265"])
@pytest.mark.parametrize("trim", TRIMS)
def test_a_trimmed_recording_is_what_a_player_shows(trim: str, codec: str, bframes: int) -> None:
    container, start, options = TRIMS[trim]
    check(trimmed(source(codec, bframes), start, container, **options))


@pytest.mark.parametrize("bframes", [0, 2])
@pytest.mark.parametrize("edit", EDITS)
def test_edits_of_h264_are_what_a_player_shows(edit: str, bframes: int) -> None:
    check(edited(source("libx264", bframes), EDITS[edit]))


@pytest.mark.parametrize("bframes", [0, 2])
@pytest.mark.parametrize("edit", EDITS)
def test_edits_of_hevc_are_what_a_player_shows(edit: str, bframes: int) -> None:
    """FFmpeg loses pictures of HEVC where an edit continues at a keyframe that it has seen; a reader begins
    again there and has them. Each of FFmpeg's is one of the reader's."""
    data = edited(source("libx265", bframes), EDITS[edit])
    times, pictures = in_order(data)
    with VideoReader(data) as reader:
        got = reader.read(times_us=reader.times_us, size=SIZE)
    assert not got.gaps
    rows = np.searchsorted(got.times_us, np.array(times) * 1e6 - 500)
    assert np.abs(got.times_us[rows] / 1e6 - np.array(times)).max() < 2e-6
    assert (got.pixels[rows] == np.stack(pictures)).all()
    if edit not in ("twice", "pause", "long pause"):
        assert len(got) == len(pictures)


@pytest.mark.slow
@pytest.mark.parametrize("codec", ["libx264", "mpeg4"])
@pytest.mark.parametrize("bframes", [0, 2])
def test_b_frames_in_avi(codec: str, bframes: int) -> None:
    """AVI has decoding times only: the demuxer gives a picture the time of the place where it lies."""
    data = encode("avi", codec, frames=100, fps=25, gop=25, bframes=bframes, speed=1)
    times, pictures = in_order(data)
    with VideoReader(data) as reader:
        assert np.abs(reader.times_us / 1e6 - np.sort(times)).max() < 2e-6
        got = reader.read(times_us=reader.times_us, size=SIZE)
        half = reader.read(5.0, start_us=1_000_000, size=SIZE)
    assert not got.gaps
    assert (got.pixels == np.stack(pictures)).all()
    assert (half.pixels == np.stack(pictures)[half.times_us // 40_000]).all()


@pytest.mark.slow
def test_a_trimmed_recording_is_intact_in_the_sandbox_too(tmp_path: Path) -> None:
    file = tmp_path / "clip.mp4"
    file.write_bytes(trimmed(source("libx264", 2), 2.05))
    with VideoReader(file) as plain, SandboxedReader(file, workers=1) as reader:
        assert reader.facts == plain.facts
        assert reader.facts.frames == 39
        assert reader.facts.duration_us == 3_900_000
        assert (reader.read(4, size=SIZE).pixels == plain.read(4, size=SIZE).pixels).all()
    (found,) = inspect_all([file])
    assert (found.frames, found.error) == (39, "")


def test_a_segment_shows_what_its_edit_list_shows() -> None:
    data = trimmed(source("libx264", 0), 2.05)
    _, pictures = in_order(data)
    decoded = SoftwareDecoder().decode(data, DecodeRequest(SIZE[1], SIZE[0]))
    assert decoded.facts.frames == 39
    rows = [frame.info.index for frame in decoded.frames]
    assert [frame.stream_us for frame in decoded.frames] == [100_000 * row for row in rows]
    assert (decoded.pixels == np.stack(pictures)[rows]).all()


def test_what_an_edit_hides_at_the_end_is_not_cut_out(tmp_path: Path) -> None:
    """Nor is what it hides at the beginning shown, whose packets are needed to decode what follows."""
    file = tmp_path / "clip.mp4"
    file.write_bytes(edited(source("libx264", 0), EDITS["middle"]))
    every = DecodeRequest(28, 28, grid=SamplingGrid(100_000))
    pieces = list(cut(file, target_s=1.0))
    frames = [len(SoftwareDecoder().decode(piece.data, every).frames) for piece in pieces]
    assert sum(frames) == 21  # from 1.7 s to 3.75 s


RECORDED = {
    "wmv": ("asf", "wmv2", "yuv420p"),
    "mxf": ("mxf", "mpeg2video", "yuv420p"),
    "nut": ("nut", "libx264", "yuv420p"),
    "prores": ("mov", "prores_ks", "yuv422p10le"),
    "ffv1": ("mkv", "ffv1", "yuv420p"),
    "raw": ("avi", "rawvideo", "yuv420p"),
    "huffyuv": ("avi", "huffyuv", "yuv422p"),
}


@pytest.mark.parametrize("kind", RECORDED)
def test_formats_that_no_camera_sends_are_read_as_recordings(kind: str) -> None:
    container, codec, pixels = RECORDED[kind]
    data = encode(container, codec, frames=20, fps=25, speed=1, pix_fmt=pixels)
    check(data)


def test_a_segment_comes_in_what_cameras_send() -> None:
    data = encode("asf", "wmv2", frames=5)
    with pytest.raises(CodecError) as caught:
        SoftwareDecoder().decode(data, DecodeRequest(28, 28))
    assert caught.value.reason is Reason.UNREADABLE


@pytest.mark.slow
@pytest.mark.parametrize("container", ["mp4", "mkv", "ts"])
def test_a_hole_is_as_long_as_a_player_waits(tmp_path: Path, container: str) -> None:
    data = with_hole(source("libx264", 0), 2.4, 60.0, container)
    reader = check(data)
    assert reader.holes == (Hole(24, 2_400_000, 62_400_000),)
    file = tmp_path / "garden"
    file.write_bytes(data)
    with SandboxedReader(file, workers=1) as confined:
        assert confined.holes == reader.holes


@pytest.mark.parametrize(("step_s", "holes"), [(1.0, 0), (8.0, 0), (12.0, 1), (3600.0, 1), (100_000.0, 0)])
def test_a_hole_is_longer_than_a_window_and_no_jump_of_the_clock(step_s: float, holes: int) -> None:
    with VideoReader(with_hole(source("libx264", 0), 2.4, step_s, "mkv")) as reader:
        assert len(reader.holes) == holes
        assert reader.duration == pytest.approx(6 + (step_s if step_s < 90_000 else 0), abs=0.01)
