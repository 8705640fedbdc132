"""A back-test as a job of a fleet says what the fleet committed, with its workers killed on the way."""

from __future__ import annotations

import json
import os
import signal
from collections import defaultdict
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from lookout.cli.app import app
from lookout.cli.connect import reading
from lookout.cli.label import read_labels
from lookout.cli.options import Position
from lookout.cli.watches import write_watches
from lookout.local import Fleet, Service
from lookout.models import DEMO_QUESTIONS, TINY
from lookout.past.backtests import Backtest
from lookout.rules import messages
from lookout.v1.recordings_pb2 import RecordingOutcome
from lookout.v1.verdicts_pb2 import Verdict
from lookout.v1.watches_pb2 import Rule, Watch
from lookout.wire import RECORDING_RESULTS, VERDICTS, from_bytes, from_json
from tests.eventually import eventually

pytestmark = [pytest.mark.fleet, pytest.mark.long]

QUESTION = DEMO_QUESTIONS["lying"]
RULE = Rule(threshold=0.5, clear_threshold=0.5, k=2, n=3)
ASKED = ("backtest", QUESTION, "--threshold", "0.5", "--of", "2/3", "--since", "start")
CAMERAS = ("room", "gate", "yard")


def lookout(fleet: Fleet, *words: str, code: int = 0) -> str:
    """What a command prints."""
    environment = {
        "LOOKOUT_KAFKA": fleet.bootstrap,
        "LOOKOUT_GRPC_TOKEN_FILE": str(fleet.address.grpc_token_file),
    }
    result = CliRunner().invoke(app, words, env=environment)
    assert result.exit_code == code, result.output
    return result.stdout


def committed(fleet: Fleet) -> dict[tuple[str, int], Verdict]:
    with reading(fleet.bootstrap, [VERDICTS.name], Position(oldest=True)) as reader:
        verdicts = [from_json(message.value() or b"", Verdict) for message in reader.until_now()]
    return {(verdict.camera, verdict.window): verdict for verdict in verdicts if verdict.watch == "lying"}


def replayed(fleet: Fleet) -> dict[tuple[str, int], Verdict]:
    found: dict[tuple[str, int], Verdict] = {}
    with reading(fleet.bootstrap, [RECORDING_RESULTS.name], Position(oldest=True)) as reader:
        for message in reader.until_now():
            past = from_bytes(message.value() or b"", RecordingOutcome).part.backtest
            for stream in past.streams:
                for verdict in stream.verdicts:
                    assert found.setdefault((stream.camera, verdict.window), verdict) is verdict
    return found


def incidents(verdicts: dict[tuple[str, int], Verdict]) -> list[tuple[str, int, int]]:
    backtest = Backtest(messages.rule_of(RULE))
    for _, verdict in sorted(verdicts.items()):
        backtest.add(messages.verdict_of(verdict, backtest.rule))
    return sorted((past.camera, past.opened_ms, past.end_ms) for past in backtest.incidents)


def kill(fleet: Fleet, name: str) -> None:
    os.kill(fleet.pids()[name], signal.SIGKILL)


def labelled(fleet: Fleet, answer: dict[str, Any]) -> None:
    """Incidents get labels, a back-test is measured by them, and an erased camera has none."""
    alerts = [
        json.loads(line)
        for line in lookout(fleet, "alerts", "--since", "start", "--no-follow", "--json").splitlines()
    ]
    ids = {alert["incident"]: alert["camera"] for alert in alerts}
    assert len(ids) >= len(CAMERAS)
    for identity, camera in ids.items():
        lookout(fleet, "label", identity[:12], "wrong" if camera == "yard" else "right")
    lookout(fleet, "label", "000000000000", "right", code=1)
    words = ("--fleet", "--labels", "--wait", "--precision", "0.1", "--json")
    out = json.loads(lookout(fleet, *ASKED, *words))
    wrong = sum(camera == "yard" for camera in ids.values())
    precision = out["quality"]["precision"]
    assert (out["labels"], precision["of"]) == (len(ids), len(ids))
    assert precision["value"] == pytest.approx(1 - wrong / len(ids), abs=1e-4)
    assert out["for_precision"]["quality"]["recall"]["value"] == 1
    lookout(fleet, "backtest", "Is it dark?", "--fleet", "--labels", code=1)
    lookout(fleet, "erase", "--camera", "yard", "--yes", "--wait", "60")
    assert {label.camera for label in read_labels(fleet.bootstrap)} == set(CAMERAS) - {"yard"}
    shown = json.loads(lookout(fleet, "backtests", "show", "past", "--json"))
    assert {row["camera"] for row in shown["incidents"]} == set(CAMERAS) - {"yard"}


def test_a_back_test_says_what_was_committed(tmp_path: Path) -> None:
    (film,) = (Path(str(files("watchbench"))) / "films").glob("room-*.mp4")
    own = {"recordings": {"session_timeout_s": "6"}, "prefill": {"key_every": "5"}}
    with Fleet(
        settings={"model_dir": str(TINY)}, stage_settings=own, recordings=[tmp_path], open_servers=True
    ) as fleet:
        module = ("lookout.services.recordings", "parts")
        second = Service("recordings", fleet.folder, fleet._environment("recordings"), 1, module)
        second.start()
        fleet.services.append(second)
        write_watches(fleet.bootstrap, [Watch(id="lying", version=1, question=QUESTION, rule=RULE)])
        for camera in CAMERAS:
            lookout(fleet, "publish", str(film), "--camera", camera, "--rate", "max")

        def settled() -> bool:
            counts: dict[str, int] = defaultdict(int)
            for camera, _ in committed(fleet):
                counts[camera] += 1
            return len(counts) == len(CAMERAS) and min(counts.values()) >= 20

        eventually(settled, every=1)
        lookout(fleet, *ASKED, "--fleet", "--id", "past")
        for name in ("recordings-0", "recordings-1", "recordings-reduce-0"):
            kill(fleet, name)

        def ended() -> bool:
            fleet.supervise()
            return json.loads(lookout(fleet, "backtests", "list", "--json"))["state"] == "done"

        eventually(ended, every=0.5)
        answer = json.loads(lookout(fleet, "backtests", "show", "past", "--json"))
        past, expected = replayed(fleet), committed(fleet)
        shared = past.keys() & expected.keys()
        assert len(shared) >= 60
        for key in shared:
            assert past[key].outcome == expected[key].outcome
            assert past[key].p_yes == pytest.approx(expected[key].p_yes, abs=1e-4)
        own_incidents = [(row["camera"], row["opened_ms"], row["end_ms"]) for row in answer["incidents"]]
        assert len(own_incidents) >= len(CAMERAS)
        assert sorted(own_incidents) == incidents(expected)
        assert (answer["replanned"], answer["unanswered"]) == (0, [])
        assert 0 < answer["share_of_dense"] < 1

        here = json.loads(
            lookout(fleet, *ASKED, "--json", "--model", str(TINY), "--set", "prefill.key_every=5")
        )
        assert sorted((row["camera"], row["opened_ms"]) for row in here["incidents"]) == sorted(
            row[:2] for row in own_incidents
        )
        labelled(fleet, answer)
        lookout(fleet, "backtest", "Is it dark?", "--fleet", "--id", "past", code=1)
        lookout(fleet, "backtests", "cancel", "past", code=1)
