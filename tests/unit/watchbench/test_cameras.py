"""Cameras and encodings: what is asked for is what the file holds."""

from __future__ import annotations

import json
from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path

import av
import numpy as np
import pytest
from av.video.frame import PictureType
from numpy.typing import NDArray
from typer.testing import CliRunner

from watchbench import cameras, encode
from watchbench.cli import app

FPS = Fraction(25, 2)


def pictures(count: int = 50) -> Iterator[NDArray[np.uint8]]:
    noise = np.random.default_rng(1)
    for i in range(count):
        picture = noise.integers(90, 110, (64, 64, 3), dtype=np.uint8)
        picture[20:40, i % 40 : i % 40 + 12] = 220
        yield picture


def kinds(path: Path) -> tuple[list[int], int, str]:
    """Presentation indexes of keyframes, number of packets, codec."""
    with av.open(str(path)) as container:
        stream = container.streams.video[0]
        packets = [packet for packet in container.demux(stream) if packet.pts is not None]
        times = sorted(packet.pts for packet in packets)
        keys = [times.index(packet.pts) for packet in packets if packet.is_keyframe]
        return keys, len(packets), stream.codec_context.name


@pytest.mark.parametrize(("codec", "bframes"), [("h264", 0), ("h264", 2), ("hevc", 0)])
def test_keyframes_come_at_the_phase_asked_for(tmp_path: Path, codec: str, bframes: int) -> None:
    how = encode.Encoding("hevc" if codec == "hevc" else "h264", gop_s=1.0, phase=0.5, bframes=bframes)
    keys, count, name = kinds(encode.write(pictures(), tmp_path / "a.mp4", FPS, how))
    assert (count, name) == (50, codec)
    assert keys[:3] == [0, 6, 18]


def test_constant_rate_is_smaller_and_intra_refresh_has_one_keyframe(tmp_path: Path) -> None:
    free = encode.write(pictures(), tmp_path / "a.mp4", FPS, encode.Encoding(crf=18))
    bound = encode.write(pictures(), tmp_path / "b.mp4", FPS, encode.Encoding(bitrate=40_000))
    assert bound.stat().st_size < free.stat().st_size
    refresh = encode.Encoding(gop_s=1.0, intra_refresh=True)
    with av.open(str(encode.write(pictures(), tmp_path / "c.mp4", FPS, refresh))) as container:
        intra = [i for i, frame in enumerate(container.decode(video=0)) if frame.pict_type == PictureType.I]
    assert intra == [0]


def test_loss_takes_packets_but_no_keyframe(tmp_path: Path) -> None:
    how = encode.Encoding(gop_s=1.0, loss=0.3, seed=4)
    keys, count, _ = kinds(encode.write(pictures(), tmp_path / "a.ts", FPS, how))
    assert count < 45
    assert len(keys) == 5


def test_no_frames_is_one_clear_error(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no frames"):
        encode.write(iter(()), tmp_path / "a.mp4", FPS)
    assert not list(tmp_path.iterdir())


def test_a_camera_is_rendered_once(tmp_path: Path) -> None:
    first = cameras.camera("room", tmp_path, seconds=2.0)
    stamp = first.path.stat().st_mtime_ns
    assert cameras.camera("room", tmp_path, seconds=2.0).path.stat().st_mtime_ns == stamp
    assert kinds(first.path)[1] == 25
    with pytest.raises(ValueError, match="no scene called 'moon'"):
        cameras.camera("moon", tmp_path)


def test_the_demo_shows_what_its_questions_ask() -> None:
    for name in cameras.DEMO:
        script = cameras.SCRIPTS[name]
        shown = {event.what for event in cameras.events(cameras.scripted(script), script.seconds)}
        assert set(script.questions) <= shown
    assert min(cameras.SCRIPTS[name].seconds for name in cameras.DEMO) >= 40


def test_the_demo_films_are_ready_made(tmp_path: Path) -> None:
    """Their names hold a digest of script and encoding: a changed script needs `watchbench films`."""
    shown = cameras.demo_cameras(tmp_path)
    assert {camera.path.name for camera in shown} == {path.name for path in cameras.FILMS.iterdir()}
    for camera in shown:
        assert kinds(camera.path)[1] == round(camera.seconds * 12.5)


def test_the_render_command_writes_the_file_it_names(tmp_path: Path) -> None:
    out = tmp_path / "clip.mp4"
    result = CliRunner().invoke(
        app, ["render", "--scene", "pole", "--seconds", "1", "--seed", "3", "-o", str(out)]
    )
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout.strip().splitlines()[-1])["path"] == str(out)
    assert kinds(out)[1] == 12
    wrong = CliRunner().invoke(app, ["render", "--scene", "moon", "-o", str(out)])
    assert wrong.exit_code == 2
    assert "no scene called" in wrong.output
