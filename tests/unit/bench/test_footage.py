"""The table of files on which decoding was tried."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.footage import BEGIN, END, files_of, insert, main, markdown
from tests.unit.video.segments.clips import mixed_folder


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return mixed_folder(tmp_path)


def test_a_folder_is_walked_in_order(folder: Path) -> None:
    assert [path.name for path in files_of(folder)] == ["a.mp4", "b.txt", "c.ts"]


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
