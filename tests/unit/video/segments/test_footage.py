"""Real clips: reference vectors and frames, and what every file gives."""

from __future__ import annotations

import io
import json
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

from bench.footage import files_of
from lookout.video.motion import Fit, Picture
from lookout.video.motion.prediction import prediction_blocks
from lookout.video.sandbox import SandboxPool, inspect, inspect_all
from lookout.video.segments import CodecError, DecodeRequest, Inspection, Limits, Reason
from lookout.video.segments.container import Video
from lookout.video.segments.picture import Painter, frame_geometry

pytestmark = pytest.mark.footage

VECTORS = {
    "h264": "edited/mvextractor_vid_h264.mp4",
    "mpeg4_part2": "edited/mvextractor_vid_mpeg4_part2.mp4",
    "rtsp": "edited/mvextractor_vid_h264.264",
}
FRAMES = [
    ("nasa_13013.stream0", "edited/torchcodec_nasa_13013.mp4", 0),
    ("nasa_13013.stream3", "edited/torchcodec_nasa_13013.mp4", 1),
    ("av1_video.stream0", "odd/torchcodec_av1_video.mkv", 0),
    ("h265_video.stream0", "odd/torchcodec_h265_video.mp4", 0),
]
ERRORS = {
    "derived/truncated_no_moov.mp4": Reason.UNREADABLE,
    "derived/zero_length.mp4": Reason.EMPTY,
    "derived/join_midgop.ts": Reason.NO_KEYFRAME,
    "odd/androidx_sample_audio_only.mp4": Reason.NO_VIDEO,
}
# A few of each kind; the sweep over all files is marked long.
FEW = [
    *ERRORS,
    "derived/corrupt_bytes.mp4",
    "derived/interlaced_tff_h264.mp4",
    "derived/pts_jump_back.ts",
    "derived/pts_wrap_33bit.ts",
    "derived/resolution_change.h264",
    "derived/vfr_with_gap.mp4",
    "fixed/axis_cable_hevc.mp4",
    "fixed/dvrscan_issue53_brightness_change.avi",
    "fixed/intel_asl_again.mkv",
    "odd/androidx_bbb_176x144_128kbps_15fps_h263.3gp",
    "odd/androidx_sample_fragmented.mp4",
    "odd/androidx_sample_rotate_and_reflect.mp4",
    "odd/androidx_sample_with_invalid_nalu.mp4",
    "odd/torchcodec_av1_video.mkv",
    "odd/torchcodec_h264_10bits.mp4",
]


def reference(footage: Path, name: str) -> Iterator[np.ndarray[Any, Any]]:
    """Published vectors per frame: source, w, h, src_x, src_y, dst_x, dst_y, motion_x, motion_y, scale."""
    with tarfile.open(footage / "reference" / "mv-extractor" / f"{name}.tar.xz") as archive:
        arrays = {
            int(member.name.rsplit("-", 1)[1][:-4]): np.load(io.BytesIO(archive.extractfile(member).read()))  # type: ignore[union-attr]
            for member in archive
            if member.name.endswith(".npy")
        }
    yield from (arrays[i] for i in sorted(arrays))


@pytest.mark.slow
@pytest.mark.parametrize("name", VECTORS)
def test_block_maps_are_the_reference_vectors(footage: Path, name: str) -> None:
    types = (footage / "reference" / "mv-extractor" / f"{name}.frame_types.txt").read_text().split()
    checked = 0
    with (footage / VECTORS[name]).open("rb") as file, Video(file) as video:
        for frame, truth, kind in zip(video.frames(), reference(footage, name), types, strict=False):
            assert Picture(frame.pict_type).name == kind
            blocks = prediction_blocks(frame)
            checked += 1
            if blocks is None:
                assert len(truth) == 0
                continue
            source, w, h, _, _, x, y, dx, dy, scale = truth.reshape(-1, 10).T
            assert (blocks.source == source).all()
            assert (blocks.w == w).all()
            assert (blocks.h == h).all()
            assert (blocks.x + w // 2 == x).all()
            assert (blocks.y + h // 2 == y).all()
            assert (blocks.dx * scale == dx).all()
            assert (blocks.dy * scale == dy).all()
    assert checked == len(types)


@pytest.mark.parametrize(("name", "file", "stream"), FRAMES)
def test_pictures_are_the_reference_frames(footage: Path, name: str, file: str, stream: int) -> None:
    truth = np.load(footage / "reference" / "torchcodec" / f"{name}.frames.npz")
    wanted, painter, checked = {int(key): key for key in truth.files}, Painter(), 0
    with (footage / file).open("rb") as source, Video(source, stream=stream) as video:
        for i, frame in enumerate(video.frames()):
            if i in wanted:
                geometry = frame_geometry(frame, frame.width, frame.height, Fit.STRETCH)
                assert (painter.paint(frame, geometry) == truth[wanted[i]]).all()
                checked += 1
    assert checked == len(wanted)


@pytest.fixture(scope="module")
def manifest(footage: Path) -> dict[str, Any]:
    files = json.loads((footage / "manifest.json").read_text())["files"]
    return {entry["file"]: entry.get("facts", {}) for entry in files}


@pytest.fixture(scope="module")
def pool() -> Iterator[SandboxPool]:
    with SandboxPool(1) as pool:
        yield pool


def check(seen: Inspection, name: str, facts: dict[str, Any]) -> None:
    """An inspection agrees with what was measured apart from this code."""
    if name in ERRORS:
        assert seen.reason == ERRORS[name].value, seen
        assert seen.error
    else:
        assert seen.ok, seen
        assert seen.frames > 0
    if not facts.get("frames_decoded") or seen.reason in (Reason.EMPTY.value, Reason.UNREADABLE.value):
        return
    codec = {"libdav1d": "av1"}.get(facts["codec"], facts["codec"])
    assert (seen.codec, seen.packets) == (codec, facts["packets"])
    assert seen.frames == facts["frames_decoded"]
    assert {seen.width, seen.height} == {facts["width"], facts["height"]}
    assert seen.anchors == facts["pict_types"].get("I", 0)
    vectors = facts.get("mvs_per_frame", {}).get("frames_with_mvs", 0)
    assert seen.vectors == vectors
    assert seen.motion == ("vectors" if vectors else "luma") or seen.codec in ("h264", "mpeg4", "h263")


@pytest.mark.parametrize("name", FEW)
def test_files_give_what_was_measured(
    footage: Path, manifest: dict[str, Any], pool: SandboxPool, name: str
) -> None:
    check(inspect(footage / name, pool), name, manifest[name])
    assert pool.restarts == 0


@pytest.mark.slow
@pytest.mark.parametrize("name", FEW)
def test_files_decode_or_fail_with_one_clear_error(footage: Path, pool: SandboxPool, name: str) -> None:
    request = DecodeRequest(56, 56, limits=Limits(seconds=300))
    if name in ERRORS:
        with pytest.raises(CodecError) as caught:
            pool.decode((footage / name).read_bytes(), request)
        assert caught.value.reason is ERRORS[name]
    else:
        decoded = pool.decode((footage / name).read_bytes(), request)
        assert len(decoded.frames) == len(decoded.pixels) > 0
        assert [f.slot for f in decoded.frames] == sorted({f.slot for f in decoded.frames})


@pytest.mark.long
@pytest.mark.timeout(900)
def test_every_file_decodes_or_fails_with_one_clear_error(footage: Path, manifest: dict[str, Any]) -> None:
    children = set(psutil.Process().children(recursive=True))
    names = set()
    for seen in inspect_all(files_of(footage)):
        name = str(Path(seen.path).relative_to(footage.resolve()))
        if name in manifest:
            names.add(name)
            check(seen, name, manifest[name])
        else:
            assert not seen.ok  # licences, notes and reference data are no video
    assert names == set(manifest)
    assert set(psutil.Process().children(recursive=True)) <= children
