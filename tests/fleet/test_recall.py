"""The fleet's memory: prefill writes it, recall asks it, and a killed holder changes nothing of an answer."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest

from lookout.cli.watches import write_watches
from lookout.local import Fleet
from lookout.models import DEMO_QUESTIONS, TINY
from lookout.pipeline import ask_folder
from lookout.segments import cut
from lookout.v1.watches_pb2 import Rule, Watch
from tests.eventually import eventually
from tests.fleet.test_whole_fleet import committed, example

pytestmark = pytest.mark.fleet

SECONDS = 20
BLOCK_US = 2_000_000
QUESTION = DEMO_QUESTIONS["lying"]


def asked(fleet: Fleet, *words: str) -> list[dict[str, Any]]:
    """`lookout ask --fleet --json`: one object a camera, then the summary."""
    port = fleet.address.grpc["recall-0"]
    command = [sys.executable, "-m", "lookout.cli", "ask", "--fleet", QUESTION, "--json"]
    done = subprocess.run(
        [*command, "--recall", f"127.0.0.1:{port}", *words],
        capture_output=True,
        text=True,
        check=False,
        timeout=240,
        env={**os.environ, "LOOKOUT_GRPC_TOKEN_FILE": str(fleet.address.grpc_token_file)},
    )
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def frames(answer: dict[str, Any]) -> int:
    """Seconds of stream that an answer covers, in frames of two a second."""
    return sum(
        (int(span["end_us"]) - int(span["begin_us"])) // 500_000 + 1 for span in answer.get("covered", [])
    )


@pytest.mark.timeout(600)
def test_the_past_is_written_asked_and_served_again(tmp_path: Path) -> None:
    (film,) = (Path(str(files("watchbench"))) / "films").glob("room-*.mp4")
    path = tmp_path / "room.ts"
    parts = [part for part in cut(film) if part.start_us < SECONDS * 1e6]
    path.write_bytes(b"".join(part.data for part in parts))
    windows = -(-(parts[-1].start_us + parts[-1].duration_us) // BLOCK_US)
    rule = Rule(threshold=0.5, k=2, n=3)
    with Fleet(settings={"model_dir": str(TINY)}, memory="2h") as fleet:
        write_watches(fleet.bootstrap, [Watch(id="fall", version=1, question=QUESTION, rule=rule)])
        example("publish.py", fleet.bootstrap, "room", str(path))
        committed(fleet, windows, 1)  # the last one closes when silence ends its stride
        complete = (windows - 1) * 4
        eventually(lambda: frames(asked(fleet, "--camera", "room")[0]) > complete, seconds=120)
        growing, summary = asked(fleet, "--camera", "r*")
        assert summary == {"summary": {"cameras": 1, "answered": 1}}
        assert "missing" not in growing

        (prefill,) = [service for service in fleet.services if service.name == "prefill-0"]
        assert prefill.pid is not None
        os.kill(prefill.pid, signal.SIGKILL)
        eventually(lambda: prefill.pid is None, seconds=30)
        fleet.supervise()
        eventually(lambda: bool(fleet.supervise() or True) and prefill.ready(), seconds=120)
        again, _ = asked(fleet, "--camera", "room")
        assert again["covered"] == growing["covered"]
        shutil.copytree(prefill.folder / "memory", tmp_path / "copies")
    (expected,) = ask_folder(tmp_path / "copies", QUESTION, camera="room")
    assert again["p_yes"] == expected.p_yes
    assert [moment["weight"] for moment in again["moments"]] == [moment.weight for moment in expected.moments]
