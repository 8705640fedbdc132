"""A model's folder says how its windows are cut; a published checkpoint gets the paper's."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

import lookout
from lookout.models import TINY, ModelError, WindowDefaults, window_defaults
from watchbench import cameras

FILE = "lookout_windows.json"
FILM = cameras.FILMS / "room-5d21eaf5c855.mp4"


def test_the_tiny_model_brings_its_own() -> None:
    assert window_defaults(TINY) == WindowDefaults(fps=2, stride_s=2, window_s=10)


def test_a_folder_without_the_file_gets_the_paper_s(tmp_path: Path) -> None:
    assert window_defaults(tmp_path) == WindowDefaults(fps=2, stride_s=8, window_s=40)


def test_an_entry_that_is_left_out_keeps_its_default(tmp_path: Path) -> None:
    (tmp_path / FILE).write_text('{"window_s": 80}')
    assert window_defaults(tmp_path) == WindowDefaults(fps=2, stride_s=8, window_s=80)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("{", "cannot be read as JSON"),
        ("[2, 8, 40]", "has list"),
        ('{"window": 40}', r"has \['window'\].*fps, stride_s, window_s"),
        ('{"fps": "2"}', "fps must be a number, not '2'"),
        ('{"fps": true}', "fps must be a number, not True"),
        ('{"fps": 0}', "fps=0 must be above 0"),
        ('{"window_s": -40}', "window_s=-40 must be above 0"),
        ('{"fps": 1e308}', "fps=1e.308 must be from 1e-06 to 1e.06"),
        ('{"window_s": NaN}', "window_s=nan must be a finite number"),
        ('{"window_s": 41}', "window_s=41 is not a multiple of stride_s=8"),
        ('{"stride_s": 0.7, "window_s": 7}', "stride_s=0.7 has 1.4 samples at fps=2"),
    ],
)
def test_a_wrong_file_is_named_with_its_entry(tmp_path: Path, text: str, why: str) -> None:
    (tmp_path / FILE).write_text(text)
    with pytest.raises(ModelError, match=why) as error:
        window_defaults(tmp_path)
    assert FILE in str(error.value)


@pytest.mark.slow
def test_the_pipeline_follows_the_folder_and_explicit_values_win(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    shutil.copytree(TINY, folder)
    (folder / FILE).write_text('{"stride_s": 8, "window_s": 16}')
    verdicts = list(lookout.Pipeline(folder, ["Is a person in view?"]).watch(FILM))
    assert [each.time for each in verdicts] == [8 * n for n in range(1, 7)]
    assert [each.time - each.start for each in verdicts] == [8, *[16] * 5]
    shorter = lookout.Pipeline(folder, ["Is a person in view?"], stride_s=16, fps=0.5).watch(FILM)
    assert [each.time for each in shorter] == [16, 32, 48]
