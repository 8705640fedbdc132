"""A pipeline that keeps a memory, `lookout ask` over a file and over a folder, and the upkeep of folders."""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from lookout import Pipeline, PipelineError
from lookout.cli.app import app
from lookout.errors import LookoutError
from lookout.models import QuestionError
from lookout.past.memory import HistoryError, MemoryFolder
from lookout.past.memory.shelf import entries, remove, trim
from lookout.streams.pipeline import ask_folder
from watchbench.encode import write

SECONDS = 26


@pytest.fixture(scope="module")
def clip(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A square that wanders over a grey picture."""

    def pictures() -> list[np.ndarray]:
        out = []
        for number in range(SECONDS * 4):
            picture = np.full((112, 112, 3), 90, np.uint8)
            left = number * 2 % 90
            picture[40:60, left : left + 20] = (200, 30, 30)
            out.append(picture)
        return out

    return write(pictures(), tmp_path_factory.mktemp("clip") / "yard.mp4", Fraction(4))


@pytest.fixture(scope="module")
def kept(clip: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the memory of the clip."""
    folder = tmp_path_factory.mktemp("memories")
    pipeline = Pipeline(memory="1h", memory_dir=folder)
    assert list(pipeline.watch(clip)) == []
    (mine,) = pipeline.ask("Is a vehicle in view?")
    assert mine.p_yes is not None
    assert mine.text is None
    assert mine.covered_from == pytest.approx(0, abs=0.6)
    assert SECONDS - 2.5 < mine.covered_to <= SECONDS
    assert mine.moments
    pipeline.close()
    return folder


def run(*words: str) -> tuple[int, str]:
    result = CliRunner().invoke(app, list(words))
    return result.exit_code, result.stdout


def test_a_pipeline_that_is_closed_is_not_asked(clip: Path) -> None:
    with Pipeline(memory="1h") as pipeline:
        list(pipeline.watch(clip))
    with pytest.raises(PipelineError, match="this pipeline is closed"):
        pipeline.ask("Is a vehicle in view?")


@pytest.mark.parametrize(
    "wrong", [{"since": "x"}, {"since": float("nan")}, {"until": float("inf")}, {"until": True}, {"words": 0}]
)
def test_times_and_lengths_that_make_no_sense_are_refused_by_name(kept: Path, wrong: dict[str, Any]) -> None:
    (name,) = wrong
    with pytest.raises(HistoryError, match=f"{name}( must|=)"):
        next(ask_folder(kept, "Is a vehicle in view?", **wrong))


@pytest.mark.slow
def test_a_folder_answers_as_the_pipeline_that_filled_it(clip: Path, kept: Path) -> None:
    pipeline = Pipeline(memory="1h")
    list(pipeline.watch(clip))
    (mine,) = pipeline.ask("Is a person in view?", settle=False)
    pipeline.close()
    (told,) = ask_folder(kept, "Is a person in view?", settle=False)
    assert told.p_yes == pytest.approx(mine.p_yes, abs=1e-6)
    assert [m.time for m in told.moments] == [m.time for m in mine.moments]


@pytest.mark.slow
def test_ask_prints_one_line_of_json_and_writes_frames(kept: Path, tmp_path: Path) -> None:
    words = ["ask", str(kept), "Is a person in view?", "--json", "--since", "0:04", "--until", "12"]
    code, out = run(*words, "--frames", str(tmp_path))
    assert code == 0, out
    told = json.loads(out.splitlines()[-1])
    assert told["camera"] == "yard"
    assert all(4 <= moment["time"] < 12 for moment in told["moments"])
    assert len(list(tmp_path.glob("*.jpg"))) == len(told["moments"]) > 0


def test_what_the_small_model_cannot_answer_is_refused_before_anything_is_decoded(
    clip: Path, kept: Path
) -> None:
    for source in (clip, kept):
        for words in (["What happened?"], ["Is a person in view?", "--describe", "64"]):
            result = CliRunner().invoke(app, ["ask", str(source), *words])
            assert isinstance(result.exception, QuestionError)
            assert result.stdout == ""


@pytest.mark.slow
def test_a_kept_memory_is_asked_and_not_made_twice(
    clip: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "memories"
    words = ["ask", str(clip), "Is a person in view?", "--keep", str(folder), "--json"]
    code, first = run(*words)
    assert code == 0, first
    monkeypatch.setattr(Pipeline, "watch", lambda *_: pytest.fail("the file was watched again"))
    code, second = run(*words)
    assert code == 0, second
    assert json.loads(second)["p_yes"] == pytest.approx(json.loads(first)["p_yes"], abs=1e-6)
    assert [entry.camera for entry in entries(folder)] == ["yard"]


@pytest.mark.slow
def test_a_memory_that_ends_before_its_file_says_so(
    clip: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As after a full disk, or Ctrl-C: an answer over the beginning must not pass for one over the file."""
    with Pipeline(memory="1h", memory_dir=tmp_path) as pipeline:
        windows = pipeline.windows(clip)
        for _ in range(2):
            next(windows)
    words = ["ask", str(clip), "Is a person in view?", "--keep", str(tmp_path), "--json"]
    result = CliRunner().invoke(app, words)
    assert result.exit_code == 0, result.output
    told = " ".join(result.stderr.split())
    assert re.search(
        r"it ends at 0:\d+\.\d of 0:26\.0: to watch the whole file, first remove the memory", told
    )
    assert f"lookout memory remove {tmp_path} --camera yard" in told


@pytest.mark.slow
@pytest.mark.parametrize("fault", [errno.EROFS, errno.EACCES])
def test_a_memory_that_nobody_may_write_is_asked(
    kept: Path, fault: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(folder: Path) -> None:
        raise OSError(fault, os.strerror(fault), str(folder / "owner.lock"))

    (truth,) = ask_folder(kept, "Is a person in view?", settle=False)
    monkeypatch.setattr("lookout.past.memory.folder.lock_of", refused)  # a fake of a read-only file system
    (answer,) = ask_folder(kept, "Is a person in view?")
    assert answer.p_yes == truth.p_yes


def test_ask_writes_text_where_no_yes_or_no_is_asked(kept: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As for a model that was trained to write."""
    monkeypatch.setattr("lookout.models.questions.TRAINED", "nothing of this name")
    code, out = run("ask", str(kept), "What happened?", "--describe", "4")
    assert code == 0, out
    assert "covered from 0:00.0 to" in out
    assert "cost:" in out
    assert "p(yes)" not in out


def test_a_folder_of_memories_is_listed_and_checked(kept: Path) -> None:
    code, out = run("memory", "list", str(kept), "--json")
    assert code == 0
    row = json.loads(out)
    assert row["camera"] == "yard"
    assert row["frames"] > 40
    code, out = run("memory", "check", str(kept))
    assert code == 0
    assert "clusters checked, no damage" in out


@pytest.mark.slow
def test_damage_of_one_memory_is_named_and_hides_no_other(kept: Path, tmp_path: Path) -> None:
    sound = entries(kept)[0].path
    for epoch in ("000000", "000001"):
        shutil.copytree(sound, tmp_path / "yard" / epoch)
    index = next((tmp_path / "yard" / "000001").glob("index-*.bin"))
    index.write_bytes(index.read_bytes()[:-100])
    code, out = run("memory", "list", str(tmp_path), "--json")
    rows = [json.loads(line) for line in out.splitlines()]
    assert code == 0
    assert [row["frames"] > 40 for row in rows] == [True, False]
    assert [index.name in row["damage"] for row in rows] == [False, True]
    code, out = run("memory", "check", str(tmp_path))
    assert code == 1
    assert "no damage" in out
    assert f"{index}: the file is damaged: it is cut short" in out
    code, out = run("ask", str(tmp_path), "Is a person in view?")
    assert code == 1
    assert out.count("covered from 0:00.0 to") == 1
    code, out = run("memory", "repair", str(tmp_path))
    assert code == 0
    assert "everything before the records after this checkpoint is lost" in out
    assert run("memory", "check", str(tmp_path))[0] == 0
    assert run("ask", str(tmp_path), "Is a person in view?", "--camera", "yard")[0] == 0


@pytest.mark.slow
def test_a_time_range_and_then_a_camera_are_removed(clip: Path, tmp_path: Path) -> None:
    pipeline = Pipeline(memory="1h", memory_dir=tmp_path)
    list(pipeline.watch(clip))
    with pytest.raises(HistoryError, match="another process is writing"):
        remove(tmp_path, "yard")
    pipeline.close()
    assert remove(tmp_path, "yard", 2.0, 8.0)[1] >= 11
    with pytest.raises(HistoryError, match="nothing is remembered between"):
        list(ask_folder(tmp_path, "Is a person in view?", since=3.0, until=7.0))
    with pytest.raises(HistoryError, match="only of: yard"):
        remove(tmp_path, "gate")
    before = sum(entry.bytes for entry in entries(tmp_path))
    fed = entries(tmp_path)[0].fed_s
    list(ask_folder(tmp_path, "Is a person in view?"))
    assert entries(tmp_path)[0].fed_s == fed  # neither erasing nor asking makes a frame younger
    freed = trim(tmp_path, max_age_s=20, now_s=fed + 5)
    assert 0 < freed < before
    held = MemoryFolder.open(entries(tmp_path)[0].path, owner=False).memory
    assert held.covered_from_us is not None
    assert held.covered_from_us >= (SECONDS - 2 - 15.5) * 1e6
    damaged = next(entries(tmp_path)[0].path.glob("index-*.bin"))
    damaged.write_bytes(b"")  # what is damaged can still be removed
    assert trim(tmp_path, max_bytes=1) > 0
    with pytest.raises(HistoryError, match="contains no memory"):
        entries(tmp_path)
    assert list(tmp_path.iterdir()) == []  # the camera's name is gone too


def test_what_is_missing_is_said(tmp_path: Path) -> None:
    bad = tmp_path / "bad.mp4"
    bad.write_bytes(b"no video")
    for source, said in ((bad, f"{bad}: unreadable"), (tmp_path, f"{tmp_path} contains no memory")):
        found = CliRunner().invoke(app, ["ask", str(source), "Is a person in view?"]).exception
        assert isinstance(found, LookoutError)
        assert str(found).startswith(said)
    with pytest.raises(PipelineError, match="keeps no memory"):
        Pipeline().ask("Is a person in view?")
    with pytest.raises(LookoutError, match="was not trained for 'Is it\\?'"):
        Pipeline().ask("Is it?")
    with pytest.raises(PipelineError, match="needs memory"):
        Pipeline(memory_dir="x")


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["--camera", "gate"], "--camera works only for a folder of memories or a fleet"),
        (["--since", "9", "--until", "3"], "--since 9 s is not before --until 3 s"),
        (["--until", "0"], "--since 0 s is not before --until 0 s"),
        (["--frames", "notes.txt"], "--frames names the file notes.txt; name a folder"),
        (["--keep", "notes.txt"], "--keep names the file notes.txt; name a folder"),
    ],
)
def test_what_could_not_be_answered_is_refused_before_the_file_is_watched(
    words: list[str], why: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("yard.mp4").write_bytes(b"never read")
    Path("notes.txt").write_text("a file")
    result = CliRunner().invoke(app, ["ask", "yard.mp4", "Is a vehicle in view?", *words])
    assert isinstance(result.exception, LookoutError)
    assert why in str(result.exception)
