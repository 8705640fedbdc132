"""`lookout camera`: a local fleet pulls a camera with a password, and connects again."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from lookout.cli.connect import reading
from lookout.cli.options import Position
from lookout.local import CAMERA_SECRETS, Fleet
from lookout.wire import CAMERAS, SEGMENTS
from tests.numbered import clip
from tests.rtsp_camera import PACKAGES, RtspCamera, have_server, repeated

pytestmark = [
    pytest.mark.fleet,
    pytest.mark.timeout(300),
    pytest.mark.skipif(not have_server(), reason=f"needs Debian's {', '.join(PACKAGES)}"),
]
_PATIENCE_S = 120.0


@pytest.fixture
def fleet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Fleet]:
    monkeypatch.setenv("LOOKOUT_CACHE", os.environ.get("LOOKOUT_CACHE", str(tmp_path / "cache")))
    with Fleet(tmp_path / "fleet", stages=(), open_servers=True, announced=True, cameras=True) as running:
        yield running


@pytest.fixture
def camera(tmp_path: Path) -> Iterator[RtspCamera]:
    short = tmp_path / "short.mp4"
    short.write_bytes(clip(100, container="mp4"))
    film = repeated(short, tmp_path / "film.mp4", 60)
    source = RtspCamera(film, "--user", "admin", "--password", "hunter 2", "--digest")
    source.on()
    yield source
    source.off()


def lookout(*arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "lookout.cli", *arguments], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr


def segments(fleet: Fleet, wanted: int) -> int:
    """How many segments of the camera there are, once there are so many."""
    deadline = time.monotonic() + _PATIENCE_S
    count = 0
    while count < wanted and time.monotonic() < deadline:
        fleet.supervise()
        with reading(fleet.bootstrap, [SEGMENTS.name], Position(oldest=True)) as reader:
            count = sum(message.key() == b"yard/gate:1" for message in reader.until_now())
        time.sleep(0.5)
    return count


@pytest.mark.long
def test_a_camera_is_pulled_again_after_it_was_away(fleet: Fleet, camera: RtspCamera) -> None:
    url = camera.url.replace("rtsp://", "rtsp://admin:hunter%202@")
    assert "hunter" not in lookout("camera", "add", "yard/gate:1", url)
    before = segments(fleet, 2)
    assert before >= 2
    camera.off()
    camera.on()
    assert segments(fleet, before + 3) >= before + 3
    listed = lookout("camera", "list")
    assert "yard/gate:1" in listed
    assert "hunter" not in listed
    with reading(fleet.bootstrap, [CAMERAS.name], Position(oldest=True)) as reader:
        records = [message.value() for message in reader.until_now()]
    assert not any(b"hunter" in (value or b"") for value in records)
    secrets = [path for path in (fleet.folder / CAMERA_SECRETS).rglob("*") if path.is_file()]
    assert len(secrets) == 3
    assert all(path.stat().st_mode & 0o077 == 0 for path in secrets)
    assert "hunter" not in "".join(path.read_text() for path in fleet.logs.glob("*.log"))
    lookout("camera", "rm", "yard/gate:1")
    assert not any((fleet.folder / CAMERA_SECRETS).iterdir())
    assert "No cameras" in lookout("camera", "list")
