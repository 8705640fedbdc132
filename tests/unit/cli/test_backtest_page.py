"""The page of a back-test: its incidents with the pictures that show them, out of files and out of Kafka."""

from __future__ import annotations

import base64
import io
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner

from lookout import Pipeline
from lookout.cli.app import app
from lookout.cli.report import Album, PageFacts, PastFacts, write_clip_page, write_past_page
from lookout.cli.report.backtest import past_record
from lookout.cli.report.page import page_data
from lookout.past.backtests import Backtest, clip_backtest
from lookout.past.backtests.answers import backtest_message, incident_message, incident_of
from lookout.rules import Outcome, Rule, WatchVerdict
from lookout.rules.masks import Masks
from lookout.v1.recordings_pb2 import BacktestAnswer, BacktestJob, RecordingAnswers, RecordingJob
from lookout.v1.watches_pb2 import Watch
from lookout.video.files import VideoReader
from lookout.wire import ANSWERS, ERASURES, FRAMES, RECORDINGS, SEGMENTS, TOKENS, VERDICTS, to_json
from tests.mock_kafka import mock_kafka
from tests.one_process_fleet import OneProcessFleet
from tests.streams import clip
from tests.tiny_models import checkpoint
from tests.unit.past.backtests.test_past_windows import CROWD, SAMPLING, replayed, run
from tests.unit.video.segments.clips import encode

QUESTION = "Is anyone there?"


def payload(page: Path) -> dict[str, Any]:
    """The data of a page."""
    text = page.read_text()
    data = re.search(r'<script id="data" type="application/json">(.*?)</script>', text, re.S)
    assert data is not None
    return dict(json.loads(data[1]))


def shown(uri: str) -> np.ndarray:
    """The pixels of a picture of a page."""
    data = base64.b64decode(uri.removeprefix("data:image/jpeg;base64,"))
    return np.asarray(Image.open(io.BytesIO(data)).convert("RGB"))


def difference(one: np.ndarray, other: np.ndarray) -> float:
    """Mean absolute difference of two pictures."""
    return float(np.abs(one.astype(float) - other.astype(float)).mean())


def past_of(*files: Path) -> Backtest:
    """A back-test of files in which nearly every window says yes."""
    with Pipeline(checkpoint("internvl"), [QUESTION], fps=2, stride_s=2, window_s=4) as pipeline:
        return clip_backtest(pipeline, files, Rule(threshold=0.001))


def test_incidents_whose_windows_overlap_have_a_bar_each() -> None:
    """Windows of 40 s that slide by 8: that of the second incident begins inside the first one."""
    past = Backtest(Rule(threshold=0.5), timeline={})
    for number, p_yes in enumerate((0.9, 0.9, 0.1, 0.9, 0.1)):
        past.add(
            WatchVerdict(
                camera="yard",
                epoch=1,
                window=number,
                watch="backtest",
                version=1,
                outcome=Outcome.ANSWERED,
                p_yes=p_yes,
                start_ms=8_000 * number,
                end_ms=8_000 * number + 40_000,
                rule=past.rule,
            )
        )
    one, other = past.incidents
    assert other.opened_ms < one.end_ms
    again = incident_of(incident_message(other))
    assert (again.opened_ms, again.raised_ms, again.end_ms) == (24_000, 64_000, 72_000)
    record = past_record(
        PastFacts.of(backtest_message(past), QUESTION, past.rule),
        past.incidents,
        past.timeline or {},
        wall=True,
    )
    (camera,) = page_data(record, None, PageFacts("", ""))["cameras"]
    bars = [(incident["a"], incident["b"]) for incident in camera["lanes"][0]["incidents"]]
    assert bars == [(40.0, 56.0), (64.0, 72.0)]


@pytest.mark.slow
def test_a_page_of_files_shows_the_frames_of_the_incidents(tmp_path: Path) -> None:
    film, page = tmp_path / "yard.mp4", tmp_path / "pages" / "page.html"
    film.write_bytes(encode("mp4", frames=120, fps=10, speed=1))
    past = past_of(film)
    (incident,) = past.incidents
    write_clip_page(page, past, [film], QUESTION, "a test")
    data = payload(page)
    (camera,) = data["cameras"]
    (own,) = data["incidents"]["yard.mp4"]
    assert incident.opened_ms < incident.raised_ms
    assert (own["a"], own["b"], own["gone"]) == (incident.raised_ms / 1000, incident.end_ms / 1000, False)
    shot = camera["shots"][own["shot"]]
    assert shot["t"] == own["evidence"][0]
    frames = [
        VideoReader(str(film)).read(times_us=[round(1e6 * at)]).pixels[0] for at in (shot["t"], shot["t"] + 2)
    ]
    picture = shown(shot["filmed"])
    assert picture.shape == frames[0].shape
    assert difference(picture, frames[0]) < difference(picture, frames[1]) / 2
    (lane,) = camera["lanes"]
    assert (len(lane["points"]), lane["question"]) == (past.outcomes["answered"], QUESTION)
    text = page.read_text()
    assert f"“{QUESTION}” asked of 0.2 minutes of 1 camera." in text
    assert "incidents per camera and day" in text
    assert "never computed" not in text, "what was pruned of a file is not known"
    assert "picture gone" not in text


@pytest.mark.slow
def test_a_page_says_where_the_footage_is_gone(tmp_path: Path) -> None:
    films, page = [tmp_path / name for name in ("a.mp4", "b.mp4")], tmp_path / "page.html"
    for film in films:
        film.write_bytes(encode("mp4", frames=60, fps=10, speed=1))
    past = past_of(*films)
    films[0].unlink()
    write_clip_page(page, past, films, QUESTION, "a test")
    incidents = payload(page)["incidents"]
    assert [(own["gone"], own["shot"]) for (own,) in incidents.values()] == [(True, None), (False, 0)]
    assert page.read_text().count("<small>picture gone</small>") == 1


@pytest.fixture(scope="module")
def fleet() -> Iterator[OneProcessFleet]:
    fleet = run(lambda: clip(24.0), [], {"key_every": 3})
    yield fleet
    fleet.close()


@pytest.fixture(scope="module")
def past(fleet: OneProcessFleet) -> Backtest:
    """A back-test of what the fleet saw, and its timeline."""
    verdicts, past = replayed(fleet, CROWD)
    assert past.incidents
    assert all(verdict.evidence for verdict in verdicts if verdict.HasField("p_yes"))
    return past


def records(fleet: OneProcessFleet, *topics: str) -> list[tuple[str, int, str | None, bytes | None]]:
    """The records of topics, at the places where the fleet has them."""
    return [(row.topic, 0, row.camera, row.value) for topic in topics for row in fleet.topics[topic]]


@pytest.mark.slow
def test_pictures_of_cameras_come_out_of_kafka_and_a_gone_one_is_named(
    fleet: OneProcessFleet, past: Backtest, tmp_path: Path
) -> None:
    page, facts = tmp_path / "page.html", PastFacts.of(backtest_message(past), CROWD.question, past.rule)
    with mock_kafka(records(fleet, FRAMES.name, SEGMENTS.name)) as address:
        album = Album(address, masks=Masks())
        write_past_page(page, facts, past.incidents, past.timeline, album, "a test")
        album.close()
    data = payload(page)
    (camera,) = data["cameras"]
    assert [own["gone"] for own in data["incidents"]["cam"]] == [False] * len(past.incidents)
    (film := tmp_path / "film.ts").write_bytes(clip(24.0))
    for own, incident in zip(data["incidents"]["cam"], past.incidents, strict=True):
        shot = camera["shots"][own["shot"]]
        assert incident.opened_ms <= 1000 * shot["t"] + camera["begin"] <= incident.end_ms
        picture = shown(shot["filmed"])
        times_us = [round(1e6 * at) % 24_000_000 for at in (shot["t"], shot["t"] + 3)]  # with and without
        samples = VideoReader(str(film)).read(times_us=times_us, size=picture.shape[:2])
        assert difference(picture, samples.pixels[0]) < difference(picture, samples.pixels[1]) / 2
    gone = [*records(fleet, FRAMES.name), (SEGMENTS.name, 0, "cam", None)]
    with mock_kafka(gone) as address:
        album = Album(address, masks=Masks())
        write_past_page(page, facts, past.incidents, past.timeline, album, "a test")
        album.close()
    assert [own["gone"] for own in payload(page)["incidents"]["cam"]] == [True] * len(past.incidents)
    assert "<small>picture gone</small>" in page.read_text()


@pytest.mark.slow
def test_the_answers_of_a_job_make_a_page(fleet: OneProcessFleet, past: Backtest, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    answer = BacktestAnswer(
        incidents=map(incident_message, past.incidents),
        incidents_total=len(past.incidents) + 3,
        cameras=1,
        watched_s=24,
        threshold=past.rule.threshold,
    )
    watch = Watch(id="backtest", version=1, question=CROWD.question, rule=CROWD.rule)
    job = RecordingJob(id="past", backtest=BacktestJob(watch=watch))
    answers = RecordingAnswers(id="past", state=RecordingAnswers.STATE_DONE, backtest=answer)
    rows = [
        *records(fleet, FRAMES.name, SEGMENTS.name),
        (RECORDINGS.name, 0, "past", to_json(job)),
        (ANSWERS.name, 0, "past", to_json(answers)),
        (ERASURES.name, 0, "none", None),
    ]
    with mock_kafka(rows) as address:
        words = ["backtests", "show", "past", "--page", str(page), "--bootstrap", address, "--json"]
        result = CliRunner().invoke(app, words)
        refused = CliRunner().invoke(app, [*words[:3], "--page", str(tmp_path / "page.csv"), *words[5:]])
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout)["incidents_total"] == len(past.incidents) + 3
    data = payload(page)
    assert [own["gone"] for own in data["incidents"]["cam"]] == [False] * len(past.incidents)
    assert all(own["when"].endswith("UTC") for own in data["incidents"]["cam"])
    assert data["cameras"][0]["shots"]
    text = page.read_text()
    assert "3 more incidents are not on this page" in text
    assert "have no curves" in text
    assert CROWD.question in text
    assert refused.exit_code != 0
    assert "this command writes only .html, .htm" in str(refused.exception)


@pytest.mark.slow
def test_the_command_asks_kafka_and_writes_the_page(fleet: OneProcessFleet, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    rows = [
        *records(fleet, FRAMES.name, SEGMENTS.name, TOKENS.name),
        (VERDICTS.name, 0, "none", None),
        (ERASURES.name, 0, "none", None),
    ]
    rule = ["--threshold", str(CROWD.rule.threshold), "--since", "start", "--page", str(page), "--json"]
    own = [*(f"{name}={value:g}" for name, value in SAMPLING.items()), "prefill.key_every=3"]
    settings = [word for setting in own for word in ("--set", setting)]
    with mock_kafka(rows) as address:
        where = ["--bootstrap", address, "--model", str(fleet.model)]
        result = CliRunner().invoke(app, ["backtest", CROWD.question, *rule, *where, *settings])
    assert result.exit_code == 0, result.output
    answer, data = json.loads(result.stdout), payload(page)
    (camera,) = data["cameras"]
    shown_incidents = data["incidents"]["cam"]
    assert len(shown_incidents) == len(answer["incidents"]) > 0
    assert all(camera["shots"][own["shot"]]["filmed"] for own in shown_incidents)
    assert len(camera["lanes"][0]["points"]) == sum(answer["windows"].values())
    text = page.read_text()
    assert f"<b>{answer['question_share']:.1%}</b><span>is what the question adds" in text
    assert f"<b>{answer['share_of_dense']:.1%}</b><span>of the cost of computing every window in full" in text


def test_a_page_that_cannot_be_written_is_refused_at_once(tmp_path: Path) -> None:
    other = tmp_path / "notes.txt"
    other.write_text("kept")
    refusals = {
        tmp_path: "names the folder",
        other: "is not a page: choose another name; only .html, .htm files are replaced",
        tmp_path / "rows.csv": "this command writes only .html, .htm; .csv works only for recordings",
    }
    for page, why in refusals.items():
        for group in ([], ["--fleet", "--wait"]):
            result = CliRunner().invoke(app, ["backtest", QUESTION, "--page", str(page), *group])
            assert why in str(result.exception), result.output
    assert other.read_text() == "kept"
