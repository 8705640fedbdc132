"""Words of the command line that no command takes."""

from __future__ import annotations

import sys

import pytest

from lookout.cli import main


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["analyze", "", "-q", "Is anyone there?"], "an argument is empty"),
        (["analyze", "clip.mp4", "--clips", ""], "--clips is empty"),
        (["analyze", "clip.mp4", "--clips="], "--clips is empty"),
        (["watch", "add", "Is anyone there?", "--tenant", " "], "--tenant is empty"),
        (["publish", "clip.mp4", "--tenant", ""], "--tenant is empty"),
        (["analyze", "clip.mp4", "--clips", "a\0b"], "--clips holds a NUL character"),
    ],
)
def test_an_empty_word_is_refused_by_the_name_of_its_option(
    words: list[str], message: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["lookout", *words])
    with pytest.raises(SystemExit) as end:
        main()
    assert end.value.code == 1
    assert message in capsys.readouterr().err
