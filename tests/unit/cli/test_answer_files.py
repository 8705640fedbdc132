"""Answers as a table and as subtitles."""

from __future__ import annotations

import csv
import dataclasses
from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from pathlib import Path

import av
import pytest
from typer.testing import CliRunner

from lookout.cli.answer_files import write_answers
from lookout.cli.app import app
from lookout.cli.formats import spreadsheet_cell
from lookout.cli.options import CliError, check_page, page_kind
from lookout.recordings.analysis import Analysis, Part, PartAnswer, PartResult, QuestionAnswer
from lookout.recordings.analysis.results import COLUMNS, answer_of
from lookout.video.files import Gap

QUESTIONS = ("=1+1, is it?", "Is a\x1b[2J person in view?")


@pytest.fixture
def analysis() -> Analysis:
    spans = [(0.0, 4.0), (4.0, 8.0), (3600.0, 3604.5)]
    parts = tuple(
        PartResult(
            Part(number, 8 * number, 8 * number + 8, *span),
            8,
            tuple(
                PartAnswer(question, p_yes, None, ((span[0] + 0.5, 0.7),))
                for question, p_yes in zip(QUESTIONS, (0.9, 0.1 if number else 0.6), strict=True)
            ),
        )
        for number, span in enumerate(spans)
    )
    answers: list[QuestionAnswer] = [answer_of(text, place, parts) for place, text in enumerate(QUESTIONS)]
    gaps = (Gap(8_000_000, 9_000_000, 2, "damaged"),)
    return Analysis("film.mp4", 3604.5, 100, QUESTIONS, tuple(answers), parts, gaps)


@pytest.mark.parametrize("text", ["=1+1", "  =1+1", "\u3000=1+1", "＝1+1", " ＋1", "－1", "＠x"])
def test_a_cell_is_no_formula_whatever_stands_in_front(text: str) -> None:
    assert spreadsheet_cell(text).startswith("'")


def test_a_table_has_every_part_and_gap_and_no_formula(analysis: Analysis, tmp_path: Path) -> None:
    (path,) = write_answers(tmp_path / "answers.csv", [analysis, analysis], {})
    with path.open(newline="") as file:
        header, *rows = list(csv.reader(file))
    assert tuple(header) == COLUMNS
    assert len(rows) == 2 * (3 * 2 + 1)
    assert rows[0] == ["film.mp4", "'=1+1, is it?", "0.000", "4.000", "0.9", "", "0.500", "", "", "", ""]
    assert rows[6] == ["film.mp4", "", "8.000", "9.000", "", "", "", "", "damaged", "", ""]
    assert not any("\x1b" in cell for row in rows for cell in row)
    first, *_, last = analysis.rows()
    assert (first["question"], first["p_yes"], first["moments_s"], first["gap"]) == (
        QUESTIONS[0],
        0.9,
        [0.5],
        None,
    )
    assert (last["question"], last["start_s"], last["gap"]) == (None, 8.0, "damaged")


def test_times_by_the_clock_in_a_table_and_in_subtitles(analysis: Analysis, tmp_path: Path) -> None:
    begins = datetime(2026, 5, 1, 23, 59, 58, tzinfo=timezone(timedelta(hours=2)))
    timed = dataclasses.replace(analysis, begins=begins, begins_from="given")
    (path,) = write_answers(tmp_path / "answers.csv", [timed], {})
    with path.open(newline="") as file:
        first = next(csv.DictReader(file))
    assert first["start_time"] == "2026-05-01T23:59:58.000+02:00"
    assert first["end_time"] == "2026-05-02T00:00:02.000+02:00"
    (path,) = write_answers(tmp_path / "answers.srt", [timed], {})
    cue = path.read_text().split("\n\n")[0].splitlines()
    assert (cue[1], cue[3]) == ("00:00:00,000 --> 00:00:04,000", "2026-05-01 23:59:58")


@pytest.mark.parametrize("name", ["answers.csv", "answers.srt", "answers.html"])
@pytest.mark.parametrize("link", [Path.hardlink_to, Path.symlink_to])
def test_a_file_that_a_link_leads_to_stays_as_it_is(
    name: str, link: Callable[[Path, Path], None], analysis: Analysis, tmp_path: Path
) -> None:
    footage = tmp_path / "film.mp4"
    footage.write_bytes(b"footage")
    link(tmp_path / name, footage)
    write_answers(tmp_path / name, [dataclasses.replace(analysis, questions=(), parts=(), answers=())], {})
    assert footage.read_bytes() == b"footage"
    assert (tmp_path / name).read_bytes() != b"footage"


def test_subtitles_are_the_ranges_that_say_yes(analysis: Analysis, tmp_path: Path) -> None:
    first, second = write_answers(tmp_path / "answers.srt", [analysis, analysis], {})
    assert second.name == "answers-2.srt"
    assert first.read_text() == second.read_text()
    cues = first.read_text().split("\n\n")
    assert cues[1].splitlines()[1:] == ["00:00:00,000 --> 00:00:08,000", "=1+1, is it?"]
    assert cues[2].splitlines()[1:] == ["01:00:00,000 --> 01:00:04,500", "=1+1, is it?"]
    with av.open(str(first)) as subtitles:  # as a player reads them
        starts = [packet.pts for packet in subtitles.demux() if packet.pts is not None]
    assert starts == [0, 0, 3_600_000]


@pytest.mark.parametrize(
    ("question", "shown"),
    [
        ("Is a <b>red</b> van there?", "Is a <b>red</b> van there?"),
        ("{\\an8}Is a {red} van there?", "(\\an8)Is a (red) van there?"),
    ],
)
def test_markup_in_a_question_is_no_markup_of_a_subtitle(
    question: str, shown: str, analysis: Analysis, tmp_path: Path
) -> None:
    """Read by FFmpeg's parser, as players do: it takes tags out and turns them into styles."""
    answers = tuple(dataclasses.replace(answer, question=question) for answer in analysis.answers)
    (path,) = write_answers(tmp_path / "answers.srt", [dataclasses.replace(analysis, answers=answers)], {})
    with av.open(str(path)) as subtitles:
        cues = [cue for packet in subtitles.demux() for cue in packet.decode()]
    lines = {cue.ass.decode().rsplit(",", 1)[-1].replace("\u2060", "") for cue in cues}
    assert lines == {shown}


def test_a_name_that_is_an_ending_says_what_it_is() -> None:
    assert [page_kind(Path(name)) for name in (".srt", "a.CSV", "answers")] == [".srt", ".csv", "answers"]


def test_a_page_of_a_kind_that_nobody_writes_is_refused(tmp_path: Path) -> None:
    for name in ("answers.pdf", "answers.json", "answers.html.bak"):
        with pytest.raises(
            CliError, match=r"which is not a page: use a name that ends with \.html, \.htm, \.csv, \.srt"
        ):
            check_page(tmp_path / name)
    check_page(tmp_path / "answers")  # without an ending it is the page


@pytest.mark.parametrize("command", ["report", "demo"])
def test_the_page_of_a_fleet_replaces_no_other_file(command: str, tmp_path: Path) -> None:
    """Before a fleet is looked for, or started."""
    (clip := tmp_path / "clip.mp4").write_bytes(b"footage")
    error = CliRunner().invoke(app, [command, "--out", str(clip)]).exception
    assert isinstance(error, CliError)
    why = "which is not a page: choose another name; only .html, .htm files are replaced"
    assert str(error) == f"--out names {clip}, {why}"
    assert clip.read_bytes() == b"footage"
