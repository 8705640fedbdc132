"""What a command imports before it does anything."""

from __future__ import annotations

import subprocess
import sys

import pytest

from lookout.cli.commands import COMMANDS, load_command

HEAVY = ("torch", "transformers", "av", "numpy", "confluent_kafka", "grpc", "redis", "lookout.runtime")


@pytest.mark.parametrize("name", COMMANDS)
def test_the_list_says_what_the_command_says(name: str) -> None:
    text = (load_command(name).help or "").split("\n\n")[0]
    assert " ".join(text.split()) == COMMANDS[name].text


@pytest.mark.parametrize("words", ["--help", "--version", "nothing"])
def test_the_list_of_commands_imports_none(words: str) -> None:
    script = (
        f"import sys; sys.argv = ['lookout', {words!r}]\n"
        "from lookout.cli import main\n"
        "try:\n    main()\nexcept SystemExit:\n    pass\n"
        f"print('loaded:', [name for name in {HEAVY!r} if name in sys.modules])\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "loaded: []"
