"""A whole fleet between the examples: it answers as the in-process pipeline does, and alerts come out."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from importlib.resources import files
from pathlib import Path

import pytest

import lookout
from lookout.cli.connect import reading
from lookout.cli.options import Position
from lookout.cli.watches import write_watches
from lookout.local import Fleet
from lookout.models import DEMO_QUESTIONS, TINY
from lookout.v1.watches_pb2 import Rule, Watch
from lookout.video.segments import cut
from lookout.wire import VERDICTS

pytestmark = pytest.mark.fleet

EXAMPLES = Path(__file__).parents[2] / "examples"
SECONDS = 20


def example(name: str, *words: str) -> str:
    command = [sys.executable, str(EXAMPLES / name), *words]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=240)
    assert done.returncode == 0, done.stderr
    return done.stdout


def committed(fleet: Fleet, windows: int, questions: int) -> dict[tuple[int, str], float]:
    """p(yes) by window and question, once so many windows are answered."""
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
    return found


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
        example("publish.py", clients, "room", str(path))
        alerts = example("alerts.py", clients, "1")
        windows = SECONDS // 2 - 1  # the last stride is open until the next segment
        found = committed(fleet, windows, len(questions))
    assert " opened room " in alerts
    expected = lookout.Pipeline(questions=questions).watch(path)
    for verdict in expected:
        window = round(verdict.time / 2) - 1
        if window < windows:
            assert found[window, verdict.question] == pytest.approx(verdict.p_yes, abs=2e-4)
