"""A webcam's pictures, by a file in its place: no machine of the tests has a camera."""

from __future__ import annotations

from pathlib import Path

import pytest

from lookout.video.files import VideoReader
from lookout.video.segments import CodecError
from lookout.video.segments.webcam import is_webcam, webcam_frames
from tests.unit.video.segments.clips import encode


def test_a_device_is_told_by_its_name() -> None:
    assert is_webcam("/dev/video0")
    assert is_webcam(Path("/dev/video12"))
    for source in ("/dev/video", "/dev/videos/a.mp4", "video0", b"/dev/video0", None):
        assert not is_webcam(source)


@pytest.mark.parametrize(("fps", "step"), [(2.0, 5), (10.0, 1), (50.0, 1)])
def test_pictures_come_at_the_rate_that_is_wanted(tmp_path: Path, fps: float, step: int) -> None:
    path = tmp_path / "camera.avi"
    path.write_bytes(encode("avi", "mjpeg", frames=20, fps=10, speed=2, pix_fmt="yuvj420p"))
    pictures, times = [], []
    frames = webcam_frames(str(path), fps, driver="avi")
    for _ in range(0, 20, step):
        pixels, time_s = next(frames)
        pictures.append(pixels)
        times.append(round(time_s, 3))
    with pytest.raises(CodecError, match=r"the webcam .*camera\.avi stopped sending pictures"):
        next(frames)
    assert times == [index / 10 for index in range(0, 20, step)]
    with VideoReader(path) as reader:
        assert abs(pictures[1].astype(int) - reader[step].astype(int)).mean() < 2
