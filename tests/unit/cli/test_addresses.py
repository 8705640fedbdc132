"""No message shows a password of an address, and an id that is copied stays in one piece."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from rich.console import Console
from typer.core import TyperGroup, TyperOption
from typer.testing import CliRunner

from lookout.cli.app import app
from lookout.cli.commands import COMMANDS, load_command
from lookout.cli.footage import footage_files
from lookout.cli.options import CliError
from lookout.cli.watches import print_watches
from lookout.text import without_credentials
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


def _words() -> list[list[str]]:
    """Every command with an address in a place where none belongs."""
    rows = [[ADDRESS], [f"--{ADDRESS}"], ["--version=" + ADDRESS]]
    for name in COMMANDS:
        command = load_command(name)
        inner = dict(command.commands) if isinstance(command, TyperGroup) else {"": command}
        if "" not in inner:
            rows.append([name, ADDRESS])
        for below, each in inner.items():
            path = [name, below] if below else [name]
            rows.append([*path, f"--{ADDRESS}"])
            rows.append([*path, "--bogus", ADDRESS])
            if any(parameter.nargs == -1 for parameter in each.params):
                continue  # any number of arguments: it would run
            rows.append([*path, *[ADDRESS] * 4])
            options = [max(word.opts, key=len) for word in each.params if isinstance(word, TyperOption)]
            rows += [[*path, *[ADDRESS] * 4, option, ADDRESS] for option in options]
    return rows


@pytest.mark.slow
def test_errors_of_usage_show_no_password() -> None:
    """Whatever a command does not expect is told without user, password and query."""
    shown = []
    for words in _words():
        done = CliRunner().invoke(app, words)
        assert done.exit_code != 0, words
        text = f"{done.output}{done.exception}".replace("\n", "")
        assert "hunter" not in text, words
        assert "admin" not in text, words
        shown.append("rtsp://192.0.2.7/stream" in text)
    assert sum(shown) > 20  # that there is something to hide


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        (f"No such command '{ADDRESS}'.", "No such command 'rtsp://192.0.2.7/stream'."),
        ("(rtsp://u:p@ss/w(o)rd@h:554/x y)", "(rtsp://h:554/x y)"),
        ("rtsp:/u:secret@h/x", "rtsp:/h/x"),  # a path takes one slash away
        ("two: a://u:p@h, b://u:p@i", "two: a://i"),
        ("http://h/x?token=1 and more", "http://h/x and more"),
        ("nothing@here: 10:30", "nothing@here: 10:30"),
    ],
)
def test_a_text_loses_what_its_addresses_hide(text: str, shown: str) -> None:
    assert without_credentials(text) == shown


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
