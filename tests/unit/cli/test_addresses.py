"""No message shows a password of an address, and an id that is copied stays in one piece."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from rich.console import Console
from typer.testing import CliRunner

from lookout.cli.app import app
from lookout.cli.footage import footage_files
from lookout.cli.options import CliError
from lookout.cli.watches import print_watches
from lookout.v1.watches_pb2 import Watch

ADDRESS = "rtsp://admin:hunter2@192.0.2.7/stream?token=hunter3"


@pytest.mark.parametrize(
    "command",
    [["publish", ADDRESS, "--camera", "gate"], ["inspect", ADDRESS], ["demo", "--footage", ADDRESS]],
)
def test_no_command_prints_the_password_of_an_address(command: list[str]) -> None:
    done = CliRunner().invoke(app, command)
    text = f"{done.output}{done.exception}"
    assert done.exit_code != 0
    assert "hunter" not in text


def test_an_address_is_told_from_a_path() -> None:
    with pytest.raises(CliError, match=r"rtsp://192\.0\.2\.7/stream is an address"):
        footage_files(Path(ADDRESS))


def test_ids_of_watches_are_not_broken() -> None:
    name = "a-watch-whose-id-is-rather-long-" + "x" * 60
    watch = Watch(id=name, version=1, question="Is anyone lying on the ground? " * 4)
    for width in (40, 80, 200):
        text = io.StringIO()
        print_watches(Console(file=text, width=width), {name: watch})
        assert name in text.getvalue()
