"""Pages of results are made from the committed results of the benches."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench import pages, record


def test_pages_and_readme_show_the_committed_results() -> None:
    stale = [str(path.relative_to(pages.ROOT)) for path, text in pages.pages().items() if _read(path) != text]
    assert not stale, "run `make results`"


def test_a_page_without_a_result_is_gone() -> None:
    assert {path.stem for path in pages.DOCS.glob("*.md")} == {"index", *pages.results()}


def test_every_figure_of_a_result_is_on_its_page() -> None:
    figures = {"a": {"b": [1, 2], "c": [{"d": 0.5}, {"d": "x"}]}, "e": None}
    assert pages.leaves(figures) == [("a b", "[1, 2]"), ("a c 0 d", "0.5"), ("a c 1 d", "x"), ("e", "null")]


def test_a_result_is_written_and_read(tmp_path: Path) -> None:
    run = record.Record("python -m bench.x", "a machine", "abc", "2026-01-01", 0.1, {"ratio": 2.0})
    run.write(tmp_path / "x.json")
    assert record.Record.read(tmp_path / "x.json") == run
    (tmp_path / "x.json").write_text('{"command": ""}')
    with pytest.raises(ValueError, match=r"x\.json"):
        record.Record.read(tmp_path / "x.json")


@pytest.mark.parametrize("output", ["", "no figures\n", "[1]\n"])
def test_a_bench_without_its_last_line_is_refused(output: str) -> None:
    with pytest.raises(ValueError, match="the bench ended with"):
        record.last_line(output)
    assert record.last_line('table\n{"ratio": 2}\n') == {"ratio": 2}


def _read(path: Path) -> str:
    return path.read_text() if path.exists() else ""
