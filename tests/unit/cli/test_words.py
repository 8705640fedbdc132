"""Words of the command line that no command takes."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from lookout.cli import main


@pytest.fixture
def refusal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[[list[str]], str]:
    """What a command says that ends with exit code 1, by its words."""

    def run(words: list[str]) -> str:
        monkeypatch.setattr(sys, "argv", ["lookout", *words])
        with pytest.raises(SystemExit) as end:
            main()
        assert end.value.code == 1
        return capsys.readouterr().err

    return run


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["analyze", "", "-q", "Is anyone there?"], "an argument is empty"),
        (["analyze", "clip.mp4", "--clips", ""], "--clips is empty"),
        (["analyze", "clip.mp4", "--clips="], "--clips is empty"),
        (["watch", "add", "Is anyone there?", "--tenant", " "], "--tenant is empty"),
        (["publish", "clip.mp4", "--tenant", ""], "--tenant is empty"),
        (["analyze", "clip.mp4", "--clips", "a\0b"], "--clips contains a NUL character"),
    ],
)
def test_an_empty_word_is_refused_by_the_name_of_its_option(
    words: list[str], message: str, refusal: Callable[[list[str]], str]
) -> None:
    assert message in refusal(words)


ASCII = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="other systems have no such locale")
@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("clip.mp4", r"\u2717 clip.mp4: this is not a video"),
        ("fünf.mp4", "an argument contains characters that this locale (ascii) cannot encode"),
    ],
)
def test_a_locale_of_ascii_is_no_traceback(name: str, message: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(bytes(5000))
    run = subprocess.run(
        [sys.executable, "-m", "lookout.cli", "inspect", str(tmp_path / name)],
        env={**os.environ, **ASCII},
        capture_output=True,
        check=False,
    )
    assert run.returncode == 1
    text = run.stdout.decode("ascii") + run.stderr.decode("ascii")
    assert message in text
    assert "Traceback" not in text


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ["ask", "clip.mp4", "Is anyone there?", "--recall", "a:1"],
            "--recall works only with a fleet: give --fleet",
        ),
        (
            ["ask", "clip.mp4", "Is anyone there?", "-b", "a:1"],
            "--bootstrap works only with a fleet: give --fleet",
        ),
        (
            ["ask", "--fleet", "Is it?", "-c", "gate", "--keep", "x"],
            "--keep works only for a file: omit it with --fleet",
        ),
        (
            ["ask", "--fleet", "Is it?", "-c", "gate", "--frames", "x"],
            "--frames works only for a file: omit it with --fleet",
        ),
        (["doctor", "-n", "lookout"], "--namespace works only for a cluster: give --kubernetes"),
        (["doctor", "--context", "kind"], "--context works only for a cluster: give --kubernetes"),
        (["doctor", "--kubernetes", "-b", "a:1"], "--bootstrap works only for this machine: omit it with"),
        (
            ["doctor", "--kubernetes", "--redis", "redis://a"],
            "--redis works only for this machine: omit it with",
        ),
        (
            ["ask", "--fleet", "Is it?", "-c", "gate", "--model", "x"],
            "--model cannot be combined with --fleet",
        ),
        (
            ["ask", "--fleet", "Is it?", "-c", "gate", "--memory", "2h"],
            "--memory works only for a file: omit it with",
        ),
        (
            ["ask", ".", "Is it?", "--memory", "2h"],
            "--memory works only for a file: a folder's memories",
        ),
        (
            ["analyze", "a.mp4", "-q", "Is it?", "--wait"],
            "--wait works only with a fleet: give --fleet as well",
        ),
        (
            ["analyze", "--fleet", "/a", "-q", "Is it?", "--no-sandbox"],
            "--no-sandbox cannot be combined with --fleet",
        ),
        (
            ["backtest", "--fleet", "Is it?", "--set", "fps=4"],
            "--set cannot be combined with --fleet, which uses the fleet's own",
        ),
        (["backtest", "Is it?", "--id", "a"], "--id works only with a fleet: give --fleet as well"),
        (
            ["up", "--kafka", "a:1", "--port", "9092"],
            "--port works only for a Kafka that this command starts",
        ),
        (
            ["up", "--kafka", "a:1", "--redis", "redis://a", "--open"],
            "--open works only for servers that this command starts",
        ),
        (["erase", "--check", "a", "--camera", "gate"], "--camera cannot be given with --check"),
        (["erase", "--gone", "a", "--yes"], "--yes cannot be given with --gone"),
        (["erase", "--receipt", "a", "--gone", "b"], "--receipt cannot be given with --gone"),
        (["erase", "--camera", "gate", "--key", "a"], "--key signs receipts: give --receipt as well"),
    ],
)
def test_an_option_that_would_be_ignored_is_refused(
    words: list[str], message: str, refusal: Callable[[list[str]], str]
) -> None:
    assert message in refusal(words)


@pytest.mark.slow
@pytest.mark.skipif(not Path("/dev/full").exists(), reason="other systems have no such device")
@pytest.mark.parametrize(
    ("words", "unbuffered"), [(["--version"], "1"), (["alerts", "--help"], ""), (["doctor", "--json"], "1")]
)
def test_a_full_disk_behind_standard_output_is_named(words: list[str], unbuffered: str) -> None:
    with open("/dev/full", "wb") as full:
        run = subprocess.run(
            [sys.executable, "-m", "lookout.cli", *words],
            env={**os.environ, "PYTHONUNBUFFERED": unbuffered},
            stdout=full,
            stderr=subprocess.PIPE,
            check=False,
        )
    assert run.returncode == 1
    assert run.stderr.decode() == "error standard output: No space left on device\n"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["ask", "--fleet", "Is it?", "-c", "gate", "--recall", "127.0.0.1:1"], "recall at 127.0.0.1:1"),
        (["doctor", "--kubernetes", "--context", "nowhere"], "name another --context"),
        (["analyze", "--fleet", "/a.mp4", "-q", "Is it?", "-b", "127.0.0.1:1"], "does not answer"),
    ],
)
def test_a_variable_that_a_command_has_no_use_for_is_passed_over(
    words: list[str], message: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("LOOKOUT_MODEL_DIR", "/nowhere")
    monkeypatch.setenv("LOOKOUT_REDIS", "redis://nowhere")
    monkeypatch.setattr(sys, "argv", ["lookout", *words])
    with pytest.raises(SystemExit) as end:
        main()
    assert end.value.code == 1
    streams = capsys.readouterr()
    assert message in streams.out + streams.err
