"""Jobs about recordings while their services, Kafka and Redis are killed: `make test-recordings-faults`.

Two workers of parts, one that plans, one that collects and a decode pod answer jobs about the films that
come along; after each kill at least one more part is answered before the next. One worker has the pixels of
its next part made by the decode pod, the other decodes itself. Killed are services, the decoder processes
that they started, Kafka and Redis. In the end every part of every job must have one committed outcome, and
every job's answers must equal those of `lookout.analyze`. The last line is JSON; `bench.record` keeps it.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Callable
from importlib.resources import files
from pathlib import Path
from typing import Any

import psutil
from confluent_kafka import KafkaException

from lookout.cli.connect import reading, send_and_confirm
from lookout.cli.fleet_jobs import read_jobs
from lookout.cli.options import CliError, Position
from lookout.local import RECORDINGS_ROLES, Fleet, Service
from lookout.models import DEMO_QUESTIONS, TINY
from lookout.recordings.analysis import Analyzer, analyze
from lookout.recordings.jobs import analysis_of, settings_of
from lookout.v1.recordings_pb2 import RecordingAnswers, RecordingJob, RecordingOutcome, RecordingSettings
from lookout.wire import RECORDING_RESULTS, RECORDINGS, from_bytes, key_text, to_json

FILMS = sorted((Path(str(files("watchbench"))) / "films").glob("*.mp4"))
QUESTIONS = [DEMO_QUESTIONS["lying"], DEMO_QUESTIONS["person"]]
#: parts of four seconds: a dozen of each film
SETTINGS = RecordingSettings(fps=2, part_frames=8, group_frames=3)
#: processes with decoder processes of their own
DECODING = ("recordings-0", "recordings-1", "recordings-decode-0")
#: workers of parts die most, since they work longest
VICTIMS = ("recordings-0", "recordings-1") * 2 + (
    "recordings-decode-0",
    "recordings-plan-0",
    "recordings-reduce-0",
    "kafka",
    "redis",
)
_DECODER = "lookout.video.sandbox.worker"
_LONGEST_S = 300.0


class Trial:
    """A fleet, its jobs, and what was done to it."""

    def __init__(self, fleet: Fleet, seed: int) -> None:
        self.fleet, self.draw = fleet, random.Random(seed)
        self.jobs: dict[str, Path] = {}
        self.kills: Counter[str] = Counter()

    def ask(self) -> None:
        """Send one more job."""
        film = FILMS[len(self.jobs) % len(FILMS)]
        job = RecordingJob(
            id=f"job-{len(self.jobs)}", uris=[film.as_uri()], questions=QUESTIONS, settings=SETTINGS
        )
        job.requested.GetCurrentTime()
        self.jobs[job.id] = film
        send_and_confirm(self.fleet.bootstrap, RECORDINGS.name, {job.id: to_json(job)})

    def victims(self) -> list[tuple[str, int]]:
        """What may be killed now, with its process: as often as its turn should come."""
        pids = self.fleet.pids()
        services = [(name, pids[name]) for name in VICTIMS if name in pids]
        parents = [(name, pids[name]) for name in DECODING if name in pids]
        return services + [
            (f"decoder of {name}", decoder) for name, pid in parents for decoder in _decoders(pid)
        ]

    def kill(self) -> None:
        """SIGKILL for one process at random, of those that run."""
        name, pid = self.draw.choice(self.victims())
        os.kill(pid, signal.SIGKILL)
        self.kills[name] += 1
        sys.stderr.write(f"killed {name} ({self.kills.total()})\n")

    def until(self, reached: Callable[[], bool], what: str) -> None:
        """Keep the fleet alive until something is so; Kafka may be away meanwhile.

        Raises:
            SystemExit: It does not come about.
        """
        deadline = time.monotonic() + _LONGEST_S
        while True:
            self.fleet.supervise()
            try:
                if reached():
                    return
            except (CliError, KafkaException):
                pass
            if time.monotonic() > deadline:
                raise SystemExit(f"after {_LONGEST_S:g} s: {what}")
            time.sleep(0.2)

    def outcomes(self) -> dict[str, list[int]]:
        """The numbers of parts with a committed outcome, by job."""
        numbers: dict[str, list[int]] = defaultdict(list)
        with reading(self.fleet.bootstrap, [RECORDING_RESULTS.name], Position(oldest=True)) as reader:
            for message in reader.until_now():
                outcome = from_bytes(message.value() or b"", RecordingOutcome)
                if outcome.HasField("part"):
                    numbers[key_text(message.key())].append(outcome.part.number)
        return numbers

    def count(self) -> int:
        """Parts with an outcome."""
        return sum(len(numbers) for numbers in self.outcomes().values())

    def answers(self) -> dict[str, RecordingAnswers]:
        """What every job that has ended was answered."""
        jobs = read_jobs(self.fleet.bootstrap)
        return {
            name: job.answers
            for name, job in jobs.items()
            if job.answers is not None and job.answers.state == RecordingAnswers.STATE_DONE
        }

    def begun(self) -> tuple[int, int]:
        """How often a part was begun, and how often with pixels of the decode pod, from the workers' logs."""
        logs = (self.fleet.folder / "logs").glob("recordings-[0-9].log")
        lines = [line for path in logs for line in path.read_text(errors="replace").splitlines()]
        begun = [line for line in lines if '"a part begins"' in line]
        return len(begun), sum('"from_decode_pod": true' in line for line in begun)

    def run(self, kills: int) -> None:
        """Kill while there is work, then let the jobs end."""
        self.ask()
        self.until(lambda: self.count() > 0, "no part was answered")
        while self.kills.total() < kills:
            if len(self.answers()) == len(self.jobs):
                self.ask()
            before = self.count()
            time.sleep(self.draw.uniform(0.0, 1.0))
            self.kill()
            self.until(lambda before=before: self.count() > before or self._idle(), "no part was answered")  # type: ignore[misc]
        self.until(self._idle, "not every job ended")

    def _idle(self) -> bool:
        return len(self.answers()) == len(self.jobs)


def _decoders(pid: int) -> list[int]:
    """The decoder processes of a process."""
    try:
        children = psutil.Process(pid).children()
        return [child.pid for child in children if _DECODER in child.cmdline()]
    except psutil.NoSuchProcess:  # it has ended meanwhile
        return []


def differences(answers: dict[str, RecordingAnswers], jobs: dict[str, Path]) -> int:
    """Jobs whose answers differ from `lookout.analyze`."""
    settings = settings_of(SETTINGS)
    with Analyzer(TINY) as analyzer:
        expected = {
            film: analyze(film, QUESTIONS, analyzer=analyzer, settings=settings, sandbox=True)
            for film in set(jobs.values())
        }
    wrong = 0
    for name, film in jobs.items():
        analysis = analysis_of(answers[name].recordings[0])
        wrong += (analysis.answers, analysis.parts) != (expected[film].answers, expected[film].parts)
    return wrong


def main() -> None:
    """Run, and print what came of it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=30)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    tally = run(options.kills, options.seed)
    sys.stdout.write(json.dumps(tally) + "\n")
    sys.exit(0 if passes(tally) else 1)


def passes(tally: dict[str, Any]) -> bool:
    """Whether every part has one outcome and every answer is right.

    Parts begun again cost time and nothing else: how many there may be is a target (one in five), no fault.
    """
    return tally["committed"] == tally["expected"] and not tally["doubled"] and not tally["differ"]


def run(kills: int, seed: int) -> dict[str, Any]:
    """Kill a fleet's processes while it answers jobs, and count what came of it."""
    own = {stage: {"decoders": "1", "session_timeout_s": "6"} for stage in RECORDINGS_ROLES}
    own["recordings"]["ahead"] = "1"
    with (
        tempfile.TemporaryDirectory(prefix="lookout-recordings-") as folder,
        Fleet(
            Path(folder),
            settings={"model_dir": str(TINY)},
            stage_settings=own,
            stages=(),
            recordings=[FILMS[0].parent],
            open_servers=True,
        ) as fleet,
    ):
        module = ("lookout.services.recordings", "parts")
        alone = {**fleet._environment("recordings"), "LOOKOUT_AHEAD": "0"}
        second = Service("recordings", fleet.folder, alone, 1, module)
        second.start()
        fleet.services.append(second)
        trial = Trial(fleet, seed)
        # A service that was never ready is given up after four deaths in a row.
        trial.until(second.ready, "the second worker is not ready")
        trial.run(kills)
        outcomes, answers, (begun, from_pod) = trial.outcomes(), trial.answers(), trial.begun()
    committed = sum(len(set(numbers)) for numbers in outcomes.values())
    return {
        "expected": sum(answer.parts for answer in answers.values()),
        "committed": committed,
        "doubled": sum(len(numbers) for numbers in outcomes.values()) - committed,
        "differ": differences(answers, trial.jobs),
        "redone": begun - committed,
        "redone_share": round((begun - committed) / max(1, committed), 4),
        "from_decode_pod": from_pod,
        "jobs": len(trial.jobs),
        "kills": trial.kills.total(),
        "killed": dict(sorted(trial.kills.items())),
    }


if __name__ == "__main__":
    main()
