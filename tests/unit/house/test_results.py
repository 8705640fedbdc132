"""Pages of results are made from the committed results of the benches."""

from __future__ import annotations

import re
import subprocess
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


def test_a_page_says_that_its_bench_was_removed() -> None:
    for command, gone in (
        ("python -m bench.worth --cameras 44", False),
        ("python -m bench.memory --only cuts", False),
        ("python -m watchbench.sight", False),
        ("python -m bench.never", True),
        ("make bench-never", True),
    ):
        run = record.Record(command, "a machine", "abc", "2026-01-01", 0.1, {})
        assert ("the bench has since been removed" in pages.origin(run)) == gone


@pytest.mark.parametrize("weights", [record.bundled(), "0123456789ab", ""])
def test_a_page_says_that_the_bundled_weights_were_others(weights: str) -> None:
    run = record.Record("python -m bench.x", "a machine", "abc", "2026-01-01", 0.1, {}, weights=weights)
    others = "the bundled model has had other weights since" in pages.origin(run)
    assert others == (weights != record.bundled())


def test_figures_of_guides_are_read_from_results() -> None:
    """A row that links to a result holds no typed share or decimal: aims, bounds and settings alone."""
    typed = []
    for guide in sorted((pages.ROOT / "docs").glob("*.md")):
        if guide == pages.PAPERS:
            continue
        for line in guide.read_text().splitlines():
            if not line.startswith("|") or "](results/" not in line:
                continue
            rest = re.sub(
                r"<!-- [^>]+ -->−?\d*\.?\d+|\|[^|]*\(aim[^|]*\)[^|]*\||bound is [\d.]+"
                r"|below \d+ %|\d+ % busy",
                "|",
                line,
            )
            typed += [f"{guide.name}: {found}" for found in re.findall(r"\d+ %|\b0\.\d+", rest)]
    assert not typed


def test_a_figure_after_a_mark_is_written_again() -> None:
    figures = {"tables": {"worth": {"flops": 0.135, "range": [0.1, 0.25]}}}
    records = {"r": record.Record("python -m bench.x", "a machine", "abc", "2026-01-01", 0.1, figures)}
    written = pages.marked(
        "<!-- r worth/flops %0 -->99 %, <!-- r worth/range .2 -->9. <!-- note -->7", records
    )
    assert written == "<!-- r worth/flops %0 -->14 %, <!-- r worth/range .2 -->.10 to .25. <!-- note -->7"
    assert pages.marked(written, records) == written
    with pytest.raises(KeyError):
        pages.marked("<!-- r worth/other %0 -->1", records)


@pytest.mark.parametrize("output", ["", "no figures\n", "[1]\n"])
def test_a_bench_without_its_last_line_is_refused(output: str) -> None:
    with pytest.raises(ValueError, match="the bench ended with"):
        record.last_line(output)
    assert record.last_line('table\n{"ratio": 2}\n') == {"ratio": 2}


def _read(path: Path) -> str:
    return path.read_text() if path.exists() else ""


def test_what_is_said_of_several_things_is_a_table_with_a_column_for_each() -> None:
    figures = {
        "ratio": 2,
        "dp": {"0.8": {"random": 0.1, "norm": 0.2}, "0.5": {"random": 0.3, "norm": 0.4}, "1": {"none": 0.0}},
        "by clip": {"a": 0.5, "b": 0.25},
    }
    alone, tables = pages.figures_of(figures)
    assert alone == [("ratio", "2"), ("by clip a", "0.5"), ("by clip b", "0.25")]
    assert tables == [
        "## dp\n\n| | 0.8 | 0.5 | 1 |\n| --- | --- | --- | --- |\n| random | 0.1 | 0.3 |  |\n"
        "| norm | 0.2 | 0.4 |  |\n| none |  |  | 0.0 |"
    ]


def test_tables_within_what_is_alike_stand_for_themselves() -> None:
    settings = {"front 1": {"dp": 1, "saved": 2}, "front 2": {"dp": 3, "saved": 4}}
    alone, tables = pages.figures_of(
        {"real": {"kept": 0.3, "by": settings}, "all": {"kept": 0.4, "by": settings}}
    )
    assert alone == []
    assert tables[0] == "## figures\n\n| | real | all |\n| --- | --- | --- |\n| kept | 0.3 | 0.4 |"
    assert [text.partition("\n")[0] for text in tables[1:]] == ["## real by", "## all by"]
    assert "| front 2 | 3 | 4 |" in tables[1]
    assert pages.figures_of({"real": {"by": settings}, "all": {"by": settings}}) == ([], tables[1:])


@pytest.mark.parametrize("name", sorted(pages.results()))
def test_no_figure_is_lost_in_a_page(name: str) -> None:
    result = pages.results()[name]
    cells = {cell.strip() for line in pages.page(name, result).splitlines() for cell in line.split("|")}
    apart = {"tables", pages.BY_CAMERA}
    figures = {key: value for key, value in result.figures.items() if key not in apart}
    assert {value for _, value in pages.leaves(figures)} - cells == set()


def test_pages_of_quickvideo_and_mosaic_have_the_papers_figures() -> None:
    records = pages.results()
    shown = pages.page("recordings", records["recordings"], records)
    table_1 = "| table 1, 64 frames, key norms (small) | 95.9% |"
    assert table_1 in shown
    cells = records["recordings"].figures["tables"]["64 frames"]
    ours = cells["rho 0.5, key-norm"]["right"] / cells["unpruned"]["right"]
    assert f"{table_1} {ours:.1%} |" in shown
    level = records["memory"].figures["tables"]["history"]["visual"]["chosen"]
    assert f"| table IV, accuracy %, visual level | 66.8 / 59.2 | {100 * level:.1f} (" in pages.page(
        "memory", records["memory"], records
    )
    splits = pages.page("memory-schemes", records["memory-schemes"], records)
    assert "| figure 8, splits fewer | 42.7 % fewer" in splits


def test_levels_are_said_to_meet_where_their_intervals_do() -> None:
    records = pages.results()
    history = records["memory"].figures["tables"]["history"]
    shown = pages.page("memory", records["memory"], records)
    for level, policy in (("visual level", "visual"), ("no clustering", "token")):
        (row,) = (line for line in shown.splitlines() if f"table IV, accuracy %, {level} " in line)
        low, high = history[policy]["chosen 95 %"]
        meets = low <= history["ours"]["chosen 95 %"][1] and history["ours"]["chosen 95 %"][0] <= high
        assert ("meets that of both" in row) == meets
        assert ("is below that of both" in row) == (not meets)


def test_a_module_elsewhere_is_run_by_its_whole_name() -> None:
    assert record.module("windows") == "bench.windows"
    assert record.module("watchbench.sight") == "watchbench.sight"


def test_a_result_names_its_code() -> None:
    """By the trees of its code, which are digests of its content; or by a commit that the history has.

    A commit alone is not enough where it was rebased away, and no later squash may make a result wrong.
    """
    try:
        if record.git("rev-parse", "--is-shallow-repository") == "true":
            pytest.skip("a shallow clone has no history")
        history = set(record.git("log", "--format=%h", "--abbrev=9").split())
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("no repository here")
    lost = [
        name
        for name, result in pages.results().items()
        if not result.trees and not {result.commit.rstrip("+"), result.landed} & history
    ]
    assert lost == [], "run them again, or name the commit that their changes landed with in `landed`"


def test_trees_are_those_of_the_commit() -> None:
    whole = record.git("rev-parse", "HEAD:libs", "HEAD:services").split()
    assert record.trees() == " ".join(tree[:12] for tree in whole)
