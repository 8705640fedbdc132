"""`lookout analyze`: what it accepts, prints and writes."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from lookout import models
from lookout.cli.analyze import recordings
from lookout.cli.app import app
from lookout.cli.options import CliError
from lookout.errors import LookoutError
from lookout.video.files import VideoReader
from tests.eventually import eventually
from tests.unit.video.segments.clips import encode
from watchbench.cameras import FILMS

QUESTION = models.DEMO_QUESTIONS["person"]


@pytest.fixture
def clip(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    path = tmp_path / "clip.mp4"
    path.write_bytes(encode("mp4", frames=120, speed=1))  # twelve seconds: two parts
    return path


def run(*words: str) -> tuple[int, str]:
    result = CliRunner().invoke(app, ["analyze", *words])
    return result.exit_code, result.stdout


@pytest.mark.slow
def test_answers_a_page_and_json(clip: Path) -> None:
    page = clip.with_name("page.html")
    code, out = run(str(clip), "-q", QUESTION, "-q", "Is a vehicle in view?", "--json", "--page", str(page))
    assert code == 0
    found = json.loads(out)
    assert found["questions"] == [QUESTION, "Is a vehicle in view?"]
    assert [part["part"]["start_s"] for part in found["parts"]] == [0.0, 6.5]
    assert all(0 <= answer["p_yes"] <= 1 for answer in found["answers"])
    assert {"t_dec", "t_prefill", "t_total", "bound", "efficiency"} <= set(found["timings"])
    text = page.read_text()
    assert text.count('<section class="line"') == 2
    assert text.count("data:image/jpeg") == 6
    assert "<text" not in text, "text in a stretched drawing is unreadable on a phone"
    assert "http" not in text.replace("http://www.w3.org", "")
    begins = ["--begins", "2026-05-01T13:30:00+02:00"]
    code, out = run(str(clip), "-q", QUESTION, "-q", "Is a vehicle in view?", "--json", *begins)
    again = json.loads(out)
    assert again["timings"] is None, "the first run's parts were not remembered"
    journals = list((clip.parent / "cache").rglob("*.jsonl"))
    assert [journal.stat().st_mode & 0o777 for journal in journals] == [0o600]
    assert (again["begins"], again["begins_from"]) == ("2026-05-01T13:30:00.000+02:00", "given")
    assert again["parts"][1]["start_time"] == "2026-05-01T13:30:06.500+02:00"
    times = {"start_time", "end_time", "yes_times"}
    for before, after in zip(found["answers"], again["answers"], strict=True):
        assert {name: before[name] for name in before if name not in times} == {
            name: after[name] for name in after if name not in times
        }


@pytest.mark.slow
def test_a_table_for_people_and_a_time_range(clip: Path) -> None:
    code, out = run(str(clip), "-q", QUESTION, "--since", "0:02", "--until", "6", "--fps", "4")
    assert code == 0
    assert QUESTION.split()[-1] in out
    assert "efficiency" in out


def test_a_url_a_file_and_a_folder_are_recordings(clip: Path) -> None:
    assert recordings("https://example.com/a.mp4") == ["https://example.com/a.mp4"]
    assert recordings(str(clip)) == [str(clip)] == recordings(str(clip.parent))
    with pytest.raises(CliError, match="no file or folder"):
        recordings("nowhere.mp4")
    with pytest.raises(CliError, match=r"^ftp://host/a\.mp4 is not supported: give a file, a folder or"):
        recordings("ftp://user:secret@host/a.mp4")


def refusal(*words: str) -> str:
    """The one error that a command ends with."""
    error = CliRunner().invoke(app, ["analyze", *words]).exception
    assert isinstance(error, LookoutError)
    return str(error)


@pytest.mark.slow
def test_what_cannot_be_done_is_refused_in_a_sentence(clip: Path) -> None:
    name = str(clip)
    assert "no file or folder" in refusal("nowhere.mp4", "-q", QUESTION)
    begins = "--begins: begins=soon: give a time between 1970 and 2200"
    assert refusal(name, "-q", QUESTION, "--begins", "soon").startswith(begins)
    clip.with_name("other.mp4").write_bytes(clip.read_bytes())
    several = refusal(str(clip.parent), "-q", QUESTION, "--begins", "2026-05-01T13:30")
    assert several.startswith("--begins applies to one recording")
    assert several.endswith("holds 2")
    assert "name a file in it" in refusal(name, "-q", QUESTION, "--page", str(clip.parent))
    assert "is not a page: choose another name; only .html" in refusal(name, "-q", QUESTION, "--page", name)
    assert refusal(name, "-q", QUESTION, "--part", "1000000000").startswith("--part: part_frames must")
    assert CliRunner().invoke(app, ["analyze", name, "-q", QUESTION, "--part", "0"]).exit_code == 2
    for threads in ("-1", "0", "99999999"):
        assert "must be from 1 to 1024" in refusal(name, "-q", QUESTION, "--threads", threads)
    assert "is empty" in refusal(name, "-q", QUESTION, "--since", "5", "--until", "3")
    assert "the recording lasts 12 s" in refusal(name, "-q", QUESTION, "--since", "20")
    assert "from 20 s to its end" in refusal(name, "-q", QUESTION, "--since", "20")
    assert "is empty" in refusal(name, "-q", " ")
    assert "the limit is 1000" in refusal(name, "-q", "a" * 1001)
    assert "is not valid UTF-8" in refusal(name, "-q", "Is a\ud800?")
    assert "no file can be created" in refusal(name, "-q", QUESTION, "--page", "/proc/answers.html")
    for option in ("--preset", "--policy"):
        assert refusal(name, "-q", QUESTION, option, "codecsight").startswith(
            f"{option}: {option[2:]} 'codecsight' needs motion"
        )
    assert "--policy" in refusal(name, "-q", QUESTION, "--policy", "nothing")
    assert "cannot run on 'nowhere'" in refusal(name, "-q", QUESTION, "--device", "nowhere")
    clip.write_bytes(b"no video")
    assert refusal(name, "-q", QUESTION).startswith(f"{name}: unreadable: this is not a video")


def test_a_cache_that_cannot_be_made_is_named(clip: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "/proc/nowhere")
    assert "set XDG_CACHE_HOME" in refusal(str(clip), "-q", QUESTION)


@pytest.mark.long
def test_one_bad_file_of_a_folder_is_named_and_the_others_are_answered(clip: Path) -> None:
    clip.with_name("a-bad.mp4").write_bytes(b"no video")
    page = clip.parent / "page.html"
    words = ["analyze", str(clip.parent), "-q", QUESTION, "--json", "--page", str(page)]
    result = CliRunner().invoke(app, words)
    assert json.loads(result.stdout)["source"] == str(clip)
    assert "a-bad.mp4" in result.stderr
    assert str(result.exception) == "1 of 2 recordings could not be read"
    assert "a-bad.mp4</h2><p class=cost>not analysed: unreadable: this is not a video" in page.read_text()


@pytest.mark.slow
def test_a_name_that_looks_like_markup_is_printed_as_it_is(clip: Path) -> None:
    strange = clip.parent / "a[" / "x][red] \x1b[2J.mp4"
    strange.parent.mkdir()
    clip.rename(strange)
    result = CliRunner().invoke(app, ["analyze", str(strange), "-q", "Is [/y] there?", "--anyway"])
    assert "the model was not trained for this question" in result.stderr
    assert result.exception is None
    assert "[/x][red]" in result.stdout
    assert "Is [/y] there?" in result.stdout
    assert "\x1b[2J" not in result.stdout


@pytest.mark.long
@pytest.mark.timeout(300)
def test_ctrl_c_ends_cleanly_and_the_next_run_goes_on(clip: Path) -> None:
    clip.write_bytes(encode("mp4", frames=1000, speed=1))  # 100 seconds
    command = [sys.executable, "-m", "lookout.cli", "analyze", str(clip), "-q", QUESTION, "--json"]
    environment = {**os.environ, "XDG_CACHE_HOME": str(clip.parent / "cache"), "OMP_NUM_THREADS": "1"}
    first = subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    journal = clip.parent / "cache" / "lookout" / "analyze"
    eventually(lambda: any(len(p.read_text().splitlines()) > 3 for p in journal.glob("*.jsonl")))
    assert first.poll() is None
    first.send_signal(signal.SIGINT)
    out, said = first.communicate(timeout=60)
    assert first.returncode == 130
    assert out == ""
    assert re.search(
        r"^stopped after \d+ of 11 parts of .*; run the same command again to continue$", said, re.M
    )
    assert "Traceback" not in said
    done = next(journal.glob("*.jsonl")).read_text().splitlines()
    second = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    found = json.loads(second.stdout)
    undated = {"start_time": None, "end_time": None}  # the clip does not say when it was taken
    assert [json.loads(line) | undated for line in done[1:]] == found["parts"][: len(done) - 1]
    # 201 samples, the last of which is the picture nearest to the end: the last two parts share 21
    assert [part["part"]["stop"] - part["part"]["first"] for part in found["parts"]] == [20] * 9 + [11, 10]
    assert found["work"]["painted"] == 201 - 20 * (len(done) - 1)


@pytest.mark.long
def test_clips_of_what_says_yes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    film = next(FILMS.glob("room-*.mp4"))
    words = [str(film), "-q", models.DEMO_QUESTIONS["lying"], "--since", "12", "--until", "16"]
    code, out = run(*words, "--clips", str(tmp_path / "clips"), "--json")
    assert code == 0
    (clip,) = json.loads(out)["clips"]
    assert clip["p_yes"] > 0.5
    with VideoReader(clip["path"]) as shown, VideoReader(film) as whole:
        place = whole.times_us.tolist().index(round(1e6 * clip["start_s"]))
        assert (shown[0] == whole[place]).all()
    assert [str(path) for path in (tmp_path / "clips").iterdir()] == [clip["path"]]


def test_a_folder_of_clips_that_cannot_be_is_refused_at_once(clip: Path) -> None:
    name = str(clip)
    assert "names the file" in refusal(name, "-q", QUESTION, "--clips", name)
    assert "cannot be created (Not a directory)" in refusal(name, "-q", QUESTION, "--clips", f"{name}/a")
    folder = str(clip.parent)
    for inside in (folder, f"{folder}/clips"):
        assert "name another folder" in refusal(folder, "-q", QUESTION, "--clips", inside)
    assert "omit --fleet" in refusal(name, "-q", QUESTION, "--fleet", "--clips", f"{folder}/clips")
