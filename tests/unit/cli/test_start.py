"""What a command imports before it does anything."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from lookout.cli.commands import COMMANDS, load_command
from tests.unit.video.segments.clips import encode

HEAVY = (
    "torch",
    "transformers",
    "av",
    "numpy",
    "confluent_kafka",
    "grpc",
    "redis",
    "lookout.runtime.worker",
    "lookout.runtime.net",
)


@pytest.mark.parametrize("name", COMMANDS)
def test_the_list_says_what_the_command_says(name: str) -> None:
    text = (load_command(name).help or "").split("\n\n")[0]
    assert " ".join(text.split()) == COMMANDS[name].text


def loaded(words: list[str], modules: tuple[str, ...]) -> str:
    """Which of `modules` a command has imported when it ends, as the text of a list."""
    script = (
        f"import sys; sys.argv = {['lookout', *words]!r}\n"
        "from lookout.cli import main\n"
        "try:\n    main()\nexcept SystemExit:\n    pass\n"
        f"print('loaded:', [name for name in {modules!r} if name in sys.modules])\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    return done.stdout.splitlines()[-1].removeprefix("loaded: ")


@pytest.mark.slow
@pytest.mark.parametrize("word", ["--help", "--version", "nothing"])
def test_the_list_of_commands_imports_none(word: str) -> None:
    assert loaded([word], HEAVY) == "[]"


@pytest.mark.slow
@pytest.mark.parametrize(
    "words", [["watch", "list"], ["watch", "add"], ["memory", "list"], ["memory", "trim"]]
)
def test_the_help_of_a_small_command_imports_no_model_and_no_service(words: list[str]) -> None:
    modules = (
        "torch",
        "transformers",
        "av",
        "numpy",
        "grpc",
        "lookout.local",
        "lookout.runtime.worker",
        "lookout.runtime.net",
    )
    assert loaded([*words, "--help"], modules) == "[]"


def test_the_list_of_watches_imports_no_model_and_no_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv("LOOKOUT_KAFKA", raising=False)
    modules = (
        "torch",
        "transformers",
        "av",
        "numpy",
        "grpc",
        "redis",
        "pydantic",
        "structlog",
        "lookout.local.fleet",
        "lookout.runtime.worker",
        "lookout.runtime.net",
    )
    assert loaded(["watch", "list"], modules) == "[]"


@pytest.mark.slow
def test_settings_of_a_foreign_kafka_import_no_other_client() -> None:
    """Where the broker is not of this machine's fleet, its security settings are read, with pydantic."""
    script = (
        "import sys\n"
        "from lookout.cli.connect import LibraryErrors, client_options\n"
        "client_options('192.0.2.1:9092', LibraryErrors())\n"
        "print([name for name in ('grpc', 'redis', 'structlog', 'numpy') if name in sys.modules])\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_the_list_of_commands_is_written_without_markdown() -> None:
    assert loaded(["--help"], ("rich", "pygments", "markdown_it", "pydantic")) == "[]"


@pytest.mark.slow
@pytest.mark.parametrize(
    "words",
    [
        ["ask", "{}", "Is a person in view?"],
        pytest.param(["analyze", "{}", "-q", "Is a person in view?"], marks=pytest.mark.long),
    ],
)
@pytest.mark.parametrize("content", [b"", b"no video" * 100])
def test_what_is_no_video_is_refused_before_the_model_is_imported(
    words: list[str], content: bytes, tmp_path: Path
) -> None:
    file = tmp_path / "clip.mp4"
    file.write_bytes(content)
    assert loaded([word.format(file) for word in words], ("torch", "transformers")) == "[]"


@pytest.mark.long
@pytest.mark.parametrize(
    "words",
    [
        pytest.param(["ask", "{}", "Is a person in view?"], marks=pytest.mark.long),
        ["analyze", "{}", "-q", "Is a person in view?"],
    ],
)
def test_a_recording_is_asked_without_the_compiler(words: list[str], tmp_path: Path) -> None:
    """With what it brings it is a fifth of the CPU time of a question about a short clip."""
    file = tmp_path / "clip.mp4"
    file.write_bytes(encode("mp4", frames=40, fps=10, speed=1))
    modules = ("torch._dynamo", "torch.distributed.tensor", "scipy", "torchvision")
    assert loaded([word.format(file) for word in words], (*modules, "transformers")) == "['transformers']"


@pytest.mark.slow
def test_the_library_s_import_loads_no_stock_model_and_no_compiler() -> None:
    modules = (
        "lookout.recordings.analysis",
        "lookout.streams.pipeline",
        "lookout.models.engines.transformers",
        "lookout.models.families.loading",
        "watchbench.evaluation.check",
    )
    names = ("transformers", "torch._dynamo", "sympy", "scipy", "torchvision", "grpc", "confluent_kafka")
    script = (
        "import importlib, sys\n"
        f"for module in {modules!r}:\n"
        "    importlib.import_module(module)\n"
        f"    print(end=' '.join(f'{{module}}:{{name}}' for name in {names!r} if name in sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert not done.stdout
