"""A fleet answers about a file what `lookout.analyze` answers, also with its services killed on the way."""

from __future__ import annotations

import json
import os
import re
import signal
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from lookout.cli.app import app
from lookout.cli.connect import reading
from lookout.cli.options import Position
from lookout.local import RECORDINGS_ROLES, Fleet, Service
from lookout.models import DEMO_QUESTIONS, TINY
from lookout.recordings.analysis import analyze
from lookout.v1.recordings_pb2 import PartOutcome, RecordingOutcome
from lookout.wire import RECORDING_RESULTS, from_bytes, key_text
from tests.eventually import eventually

pytestmark = [pytest.mark.fleet, pytest.mark.long]

QUESTION = DEMO_QUESTIONS["lying"]
#: small parts, so that every service dies while there is work
SECONDS = 32
OPTIONS = ("-q", QUESTION, "--part", "8", "--fps", "2", "--until", str(SECONDS))


@pytest.fixture
def film(tmp_path: Path) -> Path:
    (source,) = (Path(str(files("watchbench"))) / "films").glob("room-*.mp4")
    path = tmp_path / "films" / "room.mp4"
    path.parent.mkdir()
    path.write_bytes(source.read_bytes())
    return path


@contextmanager
def answering(folder: Path, workers: int) -> Iterator[Fleet]:
    """The services of recordings, one or two of them for parts, on a Kafka of their own."""
    own = {stage: {"decoders": "1", "session_timeout_s": "6"} for stage in RECORDINGS_ROLES}
    with Fleet(
        settings={"model_dir": str(TINY)},
        stage_settings=own,
        stages=(),
        recordings=[folder],
        open_servers=True,
    ) as fleet:
        module = ("lookout.services.recordings", "parts")
        for number in range(1, workers):
            another = Service("recordings", fleet.folder, fleet._environment("recordings"), number, module)
            another.start()
            fleet.services.append(another)
        yield fleet


def lookout(fleet: Fleet, *words: str) -> tuple[int, str]:
    """A command's exit code and standard output."""
    result = CliRunner().invoke(app, words, env={"LOOKOUT_KAFKA": fleet.bootstrap})
    return result.exit_code, result.stdout


def committed(fleet: Fleet, job: str) -> list[PartOutcome]:
    """The committed outcomes of a job's parts, in the order of their commits."""
    with reading(fleet.bootstrap, [RECORDING_RESULTS.name], Position(oldest=True)) as reader:
        records = [message for message in reader.until_now() if key_text(message.key()) == job]
    results = [from_bytes(message.value() or b"", RecordingOutcome) for message in records]
    return [result.part for result in results if result.HasField("part")]


def outcomes(fleet: Fleet, job: str) -> list[int]:
    """The parts of a job that have a committed outcome."""
    return [outcome.number for outcome in committed(fleet, job)]


def reasons(fleet: Fleet, job: str) -> list[str]:
    """Why parts of a job were not answered; empty for those that were."""
    return [outcome.reason for outcome in committed(fleet, job)]


def listed(fleet: Fleet) -> list[dict[str, Any]]:
    """The jobs of a fleet."""
    return [json.loads(line) for line in lookout(fleet, "recordings", "list", "--json")[1].splitlines()]


def kill(fleet: Fleet, name: str) -> None:
    (service,) = [service for service in fleet.services if service.name == name]
    assert service.pid is not None
    os.kill(service.pid, signal.SIGKILL)


def answers(analysis: dict[str, Any]) -> list[dict[str, Any]]:
    return [{"answers": part["answers"], **part["part"]} for part in analysis["parts"]]


def asked(fleet: Fleet, film: Path) -> None:
    """Send the job `film`."""
    assert lookout(fleet, "analyze", str(film), *OPTIONS, "--fleet", "--id", "film") == (0, "film\n")


def assert_answered(fleet_answer: dict[str, Any], film: Path) -> None:
    """What a fleet says of the film is what `lookout.analyze` says."""
    settings = {"part_frames": 8, "fps": 2.0, "end_s": float(SECONDS)}
    expected = json.loads(json.dumps(analyze(film, [QUESTION], model=TINY, **settings).to_dict()))  # type: ignore[arg-type]
    assert fleet_answer["answers"] == expected["answers"]
    assert answers(fleet_answer) == answers(expected)
    assert (fleet_answer["frames"], fleet_answer["gaps"]) == (expected["frames"], expected["gaps"])


@pytest.mark.timeout(300)
def test_a_job_is_answered_asked_again_and_cancelled(film: Path) -> None:
    with answering(film.parent, workers=1) as fleet:
        log = fleet.logs / "recordings-0.log"
        nothing = film.with_name("nothing.mp4")
        assert lookout(fleet, "analyze", str(nothing), *OPTIONS, "--fleet", "--id", "film", "--wait")[0] == 1
        # The id of a refused job is free.
        words = ("analyze", str(film), *OPTIONS, "--fleet", "--id", "film", "--wait", "--json")
        code, out = lookout(fleet, *words)
        assert code == 0
        fleet_answer = json.loads(out)
        assert lookout(fleet, *words) == (0, out)  # the same job again
        assert sorted(outcomes(fleet, "film")) == list(range(len(fleet_answer["parts"])))
        for refused in (
            ("analyze", str(film), "-q", "Is it dark?", "--fleet", "--id", "film"),
            ("recordings", "cancel", "film"),
            ("recordings", "cancel", "another"),
            ("recordings", "show", "another"),
        ):
            assert lookout(fleet, *refused)[0] == 1, refused
        # One part of 84 groups: many seconds of work, all of it in one call of the worker.
        long = ("-q", QUESTION, "--part", "1000", "--fps", "7", "--group", "4", "--rho", "1")
        assert lookout(fleet, "analyze", str(film), *long, "--fleet", "--id", "ended")[0] == 0
        begins = re.compile(r'"job": "ended", "part": 0, .*"event": "a part begins"')
        eventually(lambda: begins.search(log.read_text()))
        assert lookout(fleet, "recordings", "cancel", "ended")[0] == 0
        assert lookout(fleet, "recordings", "show", "ended", "--wait")[0] == 1
        eventually(lambda: reasons(fleet, "ended") == ["cancelled"])
        (state,) = [job["state"] for job in listed(fleet) if job["job"] == "ended"]
        assert state == "cancelled"
        assert {job["tenant"] for job in listed(fleet)} == {"default"}
    assert_answered(fleet_answer, film)


@pytest.mark.timeout(600)
def test_killed_services_change_nothing_of_an_answer(film: Path) -> None:
    with answering(film.parent, workers=2) as fleet:
        asked(fleet, film)
        eventually(lambda: len(outcomes(fleet, "film")) > 1, every=0.1)
        kill(fleet, "recordings-0")
        kill(fleet, "recordings-reduce-0")

        def ended() -> bool:
            fleet.supervise()
            return json.loads(lookout(fleet, "recordings", "list", "--json")[1])["state"] == "done"

        eventually(ended, every=0.3)
        code, out = lookout(fleet, "recordings", "show", "film", "--json")
        assert code == 0
        fleet_answer = json.loads(out)
        counts = Counter(outcomes(fleet, "film"))
        assert set(counts.values()) == {1}
        assert len(counts) == len(fleet_answer["parts"]) > 6
    assert_answered(fleet_answer, film)
