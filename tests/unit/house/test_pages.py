"""Pages are easy to read: short lines, a summary on top, a place in the navigation, snippets that run."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[3]
DOCS = sorted((ROOT / "docs").glob("*.md"))
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *DOCS]
WIDTH, SUMMARY = 120, 3
EXAMPLES = {path.name: path.read_text() for path in sorted((ROOT / "examples").glob("*.py"))}
FENCE = re.compile(r"^ *```(\w*).*?\n(.*?)^ *```", re.MULTILINE | re.DOTALL)
#: what has no room for a line break, and what commands write
KEPT_LONG = re.compile(r"^\s*\||^!\[|^<|^    options: |^#|https?://\S{60}")


def prose(text: str) -> Iterator[tuple[int, str]]:
    """Lines with their numbers, without code, tables, pictures and generated marks."""
    fenced = False
    for number, line in enumerate(text.splitlines(), 1):
        if line.lstrip().startswith("```"):
            fenced = not fenced
        elif not fenced and not KEPT_LONG.search(line):
            yield number, line


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_no_line_of_prose_is_too_long(page: Path) -> None:
    long = [number for number, line in prose(page.read_text()) if len(line) > WIDTH]
    assert not long, f"more than {WIDTH} characters on lines {long}"


@pytest.mark.parametrize("page", DOCS, ids=lambda page: page.name)
def test_a_page_begins_with_a_summary(page: Path) -> None:
    title, summary, *_ = page.read_text().split("\n\n")
    assert re.fullmatch(r"# [^\n]+", title), "the first line is the title"
    assert len(summary.splitlines()) <= SUMMARY, f"the summary has more than {SUMMARY} lines"
    assert summary[0].isalpha(), "the summary is prose"


def test_the_navigation_has_every_page_once() -> None:
    named = re.findall(r": ([\w/-]+\.md)$", (ROOT / "mkdocs.yml").read_text(), re.MULTILINE)
    assert sorted(named) == sorted([*(page.name for page in DOCS), "results/index.md"])
    groups = [next(iter(entry)) for entry in yaml.safe_load((ROOT / "mkdocs.yml").read_text())["nav"][1:]]
    assert groups == ["Tutorials", "How-to guides", "Reference", "Explanation"]


def links(text: str) -> Iterator[str]:
    """Targets of Markdown links outside code."""
    for target in re.findall(r"\]\(([^)\s]+)\)", FENCE.sub("", text)):
        if "://" not in target:
            yield target


def anchors(text: str) -> set[str]:
    """Anchors of a page's headings, as mkdocs and GitHub make them."""
    heads = re.findall(r"^#+ (.+)$", FENCE.sub("", text), re.MULTILINE)
    slugs = {re.sub(r"[^\w\- ]", "", head.lower()).strip().replace(" ", "-") for head in heads}
    return slugs | set(re.findall(r'<a id="([^"]+)"', text))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_link_leads_somewhere(page: Path) -> None:
    broken = []
    for target in links(page.read_text()):
        name, _, anchor = target.partition("#")
        file = page if not name else page.parent / name
        found = file.exists() and (not anchor or file.suffix != ".md" or anchor in anchors(file.read_text()))
        broken += [] if found else [target]
    assert not broken


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_python_snippet_is_part_of_an_example(page: Path) -> None:
    lost = [
        snippet
        for language, snippet in FENCE.findall(page.read_text())
        if language == "python"
        and not any(
            textwrap.dedent(snippet) in code or snippet in code or textwrap.indent(snippet, "    ") in code
            for code in EXAMPLES.values()
        )
    ]
    assert not lost, "put it into a file in examples/ that a test runs"


def test_every_example_is_run_by_a_test() -> None:
    tests = "".join(
        path.read_text() for path in (ROOT / "tests").rglob("test_*.py") if path != Path(__file__)
    )
    assert [name for name in EXAMPLES if f'"{name}"' not in tests and f"examples/{name}" not in tests] == []


def test_a_change_is_one_line_of_the_changelog() -> None:
    """What a user notices, in a sentence; reasons and history are in the commit."""
    lines = (ROOT / "CHANGELOG.md").read_text().splitlines()
    wrong = [n for n, line in enumerate(lines, 1) if len(line) > WIDTH or line.startswith("  ")]
    assert not wrong, f"more than {WIDTH} characters, or more than a line, at lines {wrong}"
    entries = [line for line in lines if line.startswith("- ")]
    assert len(entries) == len(set(entries))
    groups = {line for line in lines if line.startswith("### ")}
    assert groups == {"### Added", "### Changed", "### Fixed"}
