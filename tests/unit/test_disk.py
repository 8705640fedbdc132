"""Files that are written whole or not at all."""

from __future__ import annotations

import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from lookout.disk import replace_file, write_file


@contextmanager
def full_after(size: int) -> Iterator[None]:
    """The system refuses what makes a file longer than `size` bytes; as on a full disk it names no file."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_disk_that_is_full_leaves_what_was_there_and_names_the_file(tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    replace_file(page, b"before")
    with full_after(1000), pytest.raises(OSError, match=r"'.*/page\.html'$") as refused:
        replace_file(page, bytes(2000))
    assert refused.value.filename == str(page)
    with full_after(1000), pytest.raises(OSError, match=r"'.*/slab\.bin'$"):
        write_file(tmp_path / "slab.bin", [bytes(900), bytes(900)])
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == {"page.html": b"before"}


def test_a_folder_in_a_file_s_place_is_named(tmp_path: Path) -> None:
    (tmp_path / "page.html").mkdir()
    with pytest.raises(OSError, match=r"'.*/page\.html'$"):
        replace_file(tmp_path / "page.html", b"text")
    assert [path.name for path in tmp_path.iterdir()] == ["page.html"]
