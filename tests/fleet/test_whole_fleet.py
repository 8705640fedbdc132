"""A whole fleet between the examples: it answers as the in-process pipeline does, and alerts come out."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from importlib.resources import files
from pathlib import Path

import pytest
from typer.testing import CliRunner

import lookout
from lookout.cli.app import app
from lookout.cli.connect import reading
from lookout.cli.options import Position
from lookout.cli.watches import write_watches
from lookout.local import Fleet
from lookout.models import DEMO_QUESTIONS, TINY
from lookout.v1.watches_pb2 import Rule, Watch
from lookout.video.segments import cut
from lookout.wire import ALERTS, VERDICTS
from lookout.wire.limits import LEAST_THRESHOLD
from tests.eventually import eventually

pytestmark = pytest.mark.fleet

EXAMPLES = Path(__file__).parents[2] / "examples"
SECONDS = 20
STRIDES = "Is there a person?"
COUNT = "How many people are in view? [0..5] when count != 5"
CLASS = "Is a person sitting, standing or lying? [sitting, standing, lying] when class in {sitting, lying}"


def example(name: str, *words: str) -> str:
    command = [sys.executable, str(EXAMPLES / name), *words]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=240)
    assert done.returncode == 0, done.stderr
    return done.stdout


def committed(fleet: Fleet, windows: int, questions: int) -> dict[tuple[int, str], float]:
    """p(yes) by window and question, once so many windows are answered. Allowed answers add up to 1."""
    found: dict[tuple[int, str], float] = {}
    with reading(fleet.bootstrap, [VERDICTS.name], Position(oldest=True)) as reader:
        end = time.monotonic() + 240
        while len(found) < windows * questions:
            assert time.monotonic() < end, found
            message = reader.poll(0.5)
            if message is not None:
                verdict = json.loads(message.value())
                assert verdict["outcome"] == "answered", verdict
                found[verdict["window"], verdict["question"]] = verdict["p_yes"]
                shares = [share.get("p", 0.0) for share in verdict.get("answers", [])]
                assert len(shares) == (6 if verdict["question"] == COUNT else 0)
                assert not shares or sum(shares) == pytest.approx(1, abs=1e-5)
    return found


def back_tested(fleet: Fleet, question: str, *more: str) -> list[str]:
    """The cameras of incidents that a watch with the lowest threshold would have raised."""
    words = [
        "backtest",
        question,
        "--threshold",
        f"{LEAST_THRESHOLD}",
        "--since",
        "start",
        "--anyway",
        "--json",
    ]
    done = CliRunner().invoke(app, [*words, *more, "--bootstrap", fleet.bootstrap])
    assert done.exit_code == 0, done.output
    return [past["camera"] for past in json.loads(done.stdout)["incidents"]]


def opened(fleet: Fleet) -> set[str]:
    """The questions of incidents that opened."""
    with reading(fleet.bootstrap, [ALERTS.name], Position(oldest=True)) as reader:
        alerts = [json.loads(message.value() or b"{}") for message in reader.until_now()]
    return {alert["question"] for alert in alerts if alert.get("kind") == "opened"}


@pytest.mark.timeout(600)
def test_the_fleet_says_what_the_pipeline_says(tmp_path: Path) -> None:
    (film,) = (Path(str(files("watchbench"))) / "films").glob("room-*.mp4")
    path = tmp_path / "room.ts"
    path.write_bytes(b"".join(each.data for each in cut(film) if each.start_us < SECONDS * 1e6))
    questions = [DEMO_QUESTIONS["person"], DEMO_QUESTIONS["lying"]]
    rule = Rule(threshold=0.5, k=2, n=3)
    with Fleet(settings={"model_dir": str(TINY)}, announced=True) as fleet:
        clients = str(fleet.client_properties)
        write_watches(
            fleet.bootstrap,
            [Watch(id=f"watch-{i}", version=1, question=each, rule=rule) for i, each in enumerate(questions)],
        )
        count = ["watch", "add", "How many people are in view?", "--answers", "0..5", "--when", "count != 5"]
        count += ["--id", "count", "--threshold", f"{LEAST_THRESHOLD}", "--bootstrap", fleet.bootstrap]
        untrained = CliRunner().invoke(app, count)
        assert "--anyway" in str(untrained.exception)
        added = CliRunner().invoke(app, [*count, "--anyway"])
        assert added.exit_code == 0, added.output
        by_strides = ["watch", "add", STRIDES, "--id", "strides", "--bootstrap", fleet.bootstrap]
        advised = CliRunner().invoke(app, by_strides)
        assert "strides answer this as well" in " ".join(advised.output.split())
        added = CliRunner().invoke(app, [*by_strides, "--asked", "strides"])
        assert (added.exit_code, "--asked" in added.output) == (0, False), added.output
        example("publish.py", clients, "room", str(path))
        alerts = example("alerts.py", clients, "1")
        windows = SECONDS // 2 - 1  # the last stride is open until the next segment
        found = committed(fleet, windows, len(questions) + 2)
        eventually(lambda: {COUNT, STRIDES} < opened(fleet))
        for question in (COUNT, CLASS):  # one that was asked live, and one that nobody asked
            assert back_tested(fleet, question) == ["room"]
        assert back_tested(fleet, STRIDES, "--asked", "strides") == ["room"]
        verified = CliRunner().invoke(app, ["verify", "--bootstrap", fleet.bootstrap])
        assert verified.exit_code == 0, verified.output
    assert " opened room " in alerts
    for asked, preset in (([*questions, COUNT], "default"), ([STRIDES], "strides")):
        for verdict in lookout.Pipeline(questions=asked, preset=preset, anyway=True).watch(path):
            window = round(verdict.time / 2) - 1
            if window < windows:
                assert found[window, verdict.question] == pytest.approx(verdict.p_yes, abs=2e-4)
