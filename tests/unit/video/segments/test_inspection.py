from __future__ import annotations

import json
from pathlib import Path

import pytest

from lookout.video.sandbox import SandboxPool, inspect, inspect_all
from tests.unit.video.segments.clips import mixed_folder


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return mixed_folder(tmp_path)


def test_a_file_is_counted(folder: Path) -> None:
    (seen,) = inspect_all([folder / "a.mp4"])
    assert seen.ok
    assert (seen.container, seen.codec, seen.frames, seen.keyframes, seen.anchors) == (
        "mp4",
        "h264",
        20,
        2,
        2,
    )
    assert (seen.vectors, seen.motion, seen.corrupt, seen.seconds) == (18, "vectors", 0, 2.0)
    assert json.loads(seen.to_json())["frames"] == 20


def test_what_is_wrong_is_in_the_result(folder: Path) -> None:
    with SandboxPool(1) as pool:
        assert inspect(folder / "none.mp4", pool).reason == "unreadable"
        assert inspect(folder / "b.txt", pool).reason == "unreadable"
        assert inspect(folder / "sub" / "c.ts", pool).reason == "empty"
        assert inspect(folder, pool).reason == "unreadable"
