"""What docs/papers.md says of committed results is what they say."""

from __future__ import annotations

import pytest

from bench import pages
from bench.memory import history
from bench.record import Record


def _record(figures: dict[str, object]) -> Record:
    return Record("python -m bench.x", "a machine", "abc", "2026-01-01", 0.1, figures)


def test_a_number_of_the_page_is_read_from_its_result() -> None:
    records = {"x": _record({"top": 0.955, "tables": {"rows": {"a, b": {"dp 95 %": [-0.04, 0.8061]}}}})}
    text = "{{x top .2}}, {{x top 0}}, {{x top %1}}, {{x rows/a, b/dp 95 % .2}}; {one}"
    assert pages.written(text, records) == ".96, 1, 95.5, −.04 to .81; {one}"
    with pytest.raises(KeyError):
        pages.written("{{x rows/a, b/f1 .2}}", records)


NO_DIFFERENCE = [
    ("worth", "strides less others", "default", "product"),
    ("worth", "strides less others", "default", "contextual"),
    *(
        ("codecsight-16", "default less others", rival, family)
        for rival in ("vlcache 8", "cacheblend 8", "front 8")
        for family in ("product", "contextual")
    ),
]


@pytest.mark.parametrize(("result", "table", "rival", "family"), NO_DIFFERENCE)
def test_what_shows_no_difference_has_an_interval_that_includes_0(
    result: str, table: str, rival: str, family: str
) -> None:
    low, high = pages.results()[result].figures["tables"][table][rival][f"{family} 95 %"]
    assert low <= 0 <= high


def test_no_rule_of_retrieval_differs_significantly_from_ours() -> None:
    found = pages.results()["memory-rules"].figures
    table = found["tables"]["rules"]
    edges = {rule: row["ours less it 95 %"] for rule, row in table.items()}
    assert not [rule for rule, (low, high) in edges.items() if not low <= 0 <= high]
    units = [{"stream": stream, "rows": rows} for stream, rows in found[pages.BY_CAMERA].items()]
    assert history.table(units) == table


def test_with_a_language_model_only_vlcache_is_better_than_the_default() -> None:
    less = pages.results()["smol"].figures["tables"]["default less others"]
    assert {name for name, row in less.items() if row["contextual 95 %"][1] < 0} == {"vlcache 8"}


def test_strides_differ_from_the_default_in_the_families_that_the_page_names() -> None:
    families = pages.results()["worth"].figures["tables"]["families"]
    edges = {name: row["strides less default 95 %"] for name, row in families.items()}
    assert {name for name, edge in edges.items() if edge and edge[1] < 0} == {"static-only"}
    assert {name for name, edge in edges.items() if edge and edge[0] > 0} == {"count"}


def test_intervals_of_the_simplest_rivals_can_be_drawn_again() -> None:
    """Of every camera, what every interval of the page is drawn from."""
    figures = pages.results()["worth"].figures
    assert figures["cameras"] >= 40
    for name, row in figures["tables"]["rivals"].items():
        cameras = figures[pages.BY_CAMERA][name]
        assert len(cameras) == figures["cameras"]
        counts = [[int(n) for n in cell.split("/")] for told in cameras.values() for cell in told.split()]
        right, all_of = sum(hit + quiet for hit, _, _, quiet in counts), sum(map(sum, counts))
        assert row["accuracy"] == round(right / all_of, 4)
