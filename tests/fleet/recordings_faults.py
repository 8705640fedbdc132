"""Jobs about recordings while their services, Kafka and Redis are killed: `make test-recordings-faults`.

Two workers of parts, one that plans and one that collects answer jobs about the films that come along; after
each kill at least one more part is answered before the next. In the end every part of every job must have one
committed outcome, and every job's answers must equal those of `lookout.analyze`. The last line is JSON.
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

from confluent_kafka import KafkaException

from lookout.analysis import Analyzer, analyze
from lookout.cli.connect import reading, send_and_confirm
from lookout.cli.options import CliError, Position
from lookout.cli.recordings import read_jobs
from lookout.jobs import analysis_of, settings_of
from lookout.local import RECORDINGS_ROLES, Fleet, Service
from lookout.models import DEMO_QUESTIONS, TINY
from lookout.v1.recordings_pb2 import RecordingAnswers, RecordingJob, RecordingOutcome, RecordingSettings
from lookout.wire import RECORDING_RESULTS, RECORDINGS, from_bytes, key_text, to_json

FILMS = sorted((Path(str(files("watchbench"))) / "films").glob("*.mp4"))
QUESTIONS = [DEMO_QUESTIONS["lying"], DEMO_QUESTIONS["person"]]
#: parts of four seconds: a dozen of each film
SETTINGS = RecordingSettings(fps=2, part_frames=8, group_frames=3)
#: workers of parts die most, since they work longest
VICTIMS = ("recordings-0", "recordings-1") * 2 + (
    "recordings-plan-0",
    "recordings-reduce-0",
    "kafka",
    "redis",
)
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

    def kill(self) -> None:
        """SIGKILL for one process at random, of those that run."""
        pids = self.fleet.pids()
        name = self.draw.choice([victim for victim in VICTIMS if victim in pids])
        os.kill(pids[name], signal.SIGKILL)
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

    def begun(self) -> int:
        """How often a part was begun, from the logs of the workers."""
        logs = (self.fleet.folder / "logs").glob("recordings-[0-9].log")
        return sum(path.read_text(errors="replace").count('"a part begins"') for path in logs)

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
    own = {stage: {"decoders": "1", "session_timeout_s": "6"} for stage in RECORDINGS_ROLES}
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
        second = Service("recordings", fleet.folder, fleet._environment("recordings"), 1, module)
        second.start()
        fleet.services.append(second)
        trial = Trial(fleet, options.seed)
        # A service that was never ready is given up after four deaths in a row.
        trial.until(second.ready, "the second worker is not ready")
        trial.run(options.kills)
        outcomes, answers, begun = trial.outcomes(), trial.answers(), trial.begun()
    expected = sum(answer.parts for answer in answers.values())
    committed = sum(len(set(numbers)) for numbers in outcomes.values())
    doubled = sum(len(numbers) for numbers in outcomes.values()) - committed
    differ = differences(answers, trial.jobs)
    tally = {"expected": expected, "committed": committed, "doubled": doubled, "differ": differ}
    counts = {"jobs": len(trial.jobs), "kills": trial.kills.total(), "redone": begun - committed}
    sys.stdout.write(json.dumps({**counts, "killed": trial.kills}) + "\n")
    sys.stdout.write(json.dumps(tally) + "\n")
    sys.exit(0 if committed == expected and not doubled and not differ else 1)


if __name__ == "__main__":
    main()
