from __future__ import annotations

import json
from pathlib import Path

import pytest

from lookout.video.sandbox import SandboxPool, inspect, inspect_all
from lookout.video.sandbox.report import BEGIN, END, insert, main, markdown
from tests.unit.video.segments.clips import encode


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "a.mp4").write_bytes(encode("mp4", frames=20, bframes=1))
    (tmp_path / "b.txt").write_text("no video")
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "c.ts").write_bytes(b"")
    return tmp_path


def test_a_file_is_counted(folder: Path) -> None:
    seen = inspect(folder / "a.mp4")
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


def test_a_folder_is_walked_in_order(folder: Path) -> None:
    assert [Path(seen.path).name for seen in inspect_all(folder)] == ["a.mp4", "b.txt", "c.ts"]


@pytest.mark.slow
def test_the_report_is_a_table(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(folder)]) == 0
    table = capsys.readouterr().out
    assert "`a.mp4` | mp4, h264 High | 128x96" in table
    assert "`sub/c.ts`" in table
    assert "b.txt" not in table
    document = folder / "page.md"
    document.write_text(f"before\n{BEGIN}\nold\n{END}\nafter\n")
    assert main([str(folder), "--into", str(document)]) == 0
    assert document.read_text() == f"before\n{BEGIN}\n{table.strip()}\n{END}\nafter\n"
    assert main([str(folder / "none")]) == 2
    with pytest.raises(ValueError, match="markers"):
        insert("no markers", markdown([], folder))
