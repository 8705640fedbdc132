"""`--device` is one option, of every command that loads a model or starts services that do."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from lookout import models
from lookout.cli import commands
from lookout.cli.app import app
from lookout.cli.commands import load_command
from lookout.cli.model import find_device, with_device
from lookout.cli.options import CliError
from lookout.errors import LookoutError
from tests.unit.video.segments.clips import encode

QUESTION = "Is a person in view?"
LABELS = "clip,question,answer\nclip.mp4,Is a person in view?,yes\n"
#: words of a command that loads a model, or starts services that do
COMMANDS = {
    "analyze": ["{clip}", "-q", QUESTION],
    "ask": ["{clip}", QUESTION],
    "verify": [],
    "memory rebuild": ["--camera", "gate", "--to", "{folder}"],
    "up": [],
    "demo": [],
    "model check": ["{folder}"],
    "model serve": ["{model}"],
    "eval": ["--labels", "{labels}", "--model", "{model}"],
    "backtest": [QUESTION],
}


def options() -> dict[str, set[str]]:
    """The options of every command, by its words."""
    found: dict[str, set[str]] = {}
    for name in commands.COMMANDS:
        command = load_command(name)
        for inner, own in getattr(command, "commands", {"": command}).items():
            found[f"{name} {inner}".strip()] = {word for option in own.params for word in option.opts}
    return found


def test_every_command_with_a_model_has_it() -> None:
    every = options()
    with_model = {name for name, words in every.items() if "--model" in words}
    with_device = {name for name, words in every.items() if "--device" in words}
    assert with_model
    assert with_model - with_device == {"doctor"}  # it counts a checkpoint's bytes, and loads none
    assert with_device == set(COMMANDS)


@pytest.mark.slow
@pytest.mark.parametrize("device", ["nonsense", "cuda:99", "meta"])
@pytest.mark.parametrize("name", COMMANDS)
def test_what_this_machine_lacks_is_refused_at_once(
    name: str, device: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    clip, labels = tmp_path / "clip.mp4", tmp_path / "labels.csv"
    clip.write_bytes(encode("mp4", frames=20))
    labels.write_text(LABELS)
    places = {"model": models.find_model(), "clip": clip, "folder": tmp_path, "labels": labels}
    words = [word.format(**places) for word in COMMANDS[name]]
    result = CliRunner().invoke(app, [*name.split(), *words, "--device", device])
    assert isinstance(result.exception, LookoutError), result.exception
    assert str(result.exception).startswith(f"--device: a model cannot run on '{device}'")


def test_the_processor_is_the_default() -> None:
    assert find_device(None) == find_device("cpu") == "cpu"
    assert with_device({"window_s": "8"}, None) == {"window_s": "8"}
    assert with_device({"window_s": "8"}, "cpu") == {"window_s": "8", "device": "cpu"}
    assert with_device({"device": "cpu"}, "cpu") == {"device": "cpu"}
    with pytest.raises(CliError, match="--device cpu and --set device=cuda: give one of them"):
        with_device({"device": "cuda"}, "cpu")
