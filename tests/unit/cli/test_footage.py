"""Which files a command's argument stands for; what is no footage is named for what it is."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from lookout.cli.footage import footage_files
from lookout.cli.options import CliError


def test_a_pipe_and_a_device_are_named_for_what_they_are(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    for path in (pipe, Path("/dev/zero")):
        with pytest.raises(CliError, match=rf"^{path} is a pipe or a device: .*lookout publish -"):
            footage_files(path)


def test_a_link_that_leads_nowhere_is_no_file(tmp_path: Path) -> None:
    link = tmp_path / "clip.mp4"
    link.symlink_to(tmp_path / "gone.mp4")
    with pytest.raises(CliError, match="no file or folder"):
        footage_files(link)


def test_hidden_files_and_other_kinds_are_left_out(tmp_path: Path) -> None:
    for name in ("b.mp4", "a.MKV", ".hidden.mp4", "notes.txt"):
        (tmp_path / name).touch()
    assert [file.name for file in footage_files(tmp_path)] == ["a.MKV", "b.mp4"]
    assert footage_files(tmp_path / "notes.txt") == [tmp_path / "notes.txt"]
