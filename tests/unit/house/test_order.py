"""In a run of several processes: what is begun first is there, and the files of a folder stay together."""

from __future__ import annotations

from pathlib import Path

from xdist.scheduler import LoadScopeScheduling

from tests.conftest import LONGEST, TOGETHER, Interleaved

ROOT = Path(__file__).parents[3]


def test_the_groups_that_are_begun_first_are_there() -> None:
    assert [group for group in LONGEST if not (ROOT / group).exists()] == []


def test_a_file_is_a_group_and_so_are_some_folders() -> None:
    scheduler = Interleaved.__new__(Interleaved)
    assert isinstance(scheduler, LoadScopeScheduling)
    ids = [
        "tests/fleet/test_demo.py::test_a[x::y]",
        "tests/vllm/test_long.py::test_b",
        "tests/unit/house/test_c.py::C::test",
    ]
    assert [scheduler._split_scope(name) for name in ids] == ["tests/fleet/test_demo.py", *TOGETHER]
