"""Four workers against one: a part of `make bench-recordings`.

The parts of one recording, planned as a job is, answered by the service's own handler: by one process,
then by four, which share them as four partitions do. Each process has one thread and one decoder; its
cost is its CPU time without loading the model, decoders and the opening of the recording included. The
model of four machines: each worker is alone on its own, so the job takes as long as the slowest of the
four. Parts that four cannot share evenly are left out.
"""

from __future__ import annotations

import hashlib
import json
import resource
import subprocess
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self

from bench.results import Results
from lookout.models import DEMO_QUESTIONS, TINY
from lookout.v1.recordings_pb2 import RecordingJob, RecordingPart, RecordingSettings

if TYPE_CHECKING:
    from lookout.services.recordings.running import Ahead

WORKERS: Final = 4
QUESTION: Final = DEMO_QUESTIONS["person"]


def measure(results: Results, path: Path, seconds: int, share: str) -> None:
    """One share of the parts in a process of its own, unless it was measured.

    Args:
        results: What was measured.
        path: The recording.
        seconds: Its length.
        share: `place/workers`, for example 0/4.
    """
    name = name_of(seconds, share)
    if name in results:
        return
    command = [sys.executable, "-m", "bench.recordings_workers", str(path), share]
    child = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    results.add(name, json.loads(child.stdout.splitlines()[-1]))


def shares() -> list[str]:
    """One worker with all parts, then four with a quarter each."""
    return ["0/1", *(f"{place}/{WORKERS}" for place in range(WORKERS))]


def summary(results: Results, seconds: int) -> dict[str, Any] | None:
    """CPU seconds of one worker over those of the slowest of four; None until all are measured."""
    found = [results.found.get(name_of(seconds, share)) for share in shares()]
    if not all(found):
        return None
    whole, *quarters = found
    slowest = max(quarter["cpu_s"] for quarter in quarters)
    return {
        "times": round(whole["cpu_s"] / slowest, 2),
        "parts": whole["parts"],
        "cpu_s": [round(row["cpu_s"], 2) for row in found],
    }


def name_of(seconds: int, share: str) -> str:
    """Names a measurement."""
    return f"workers {seconds} s {share}"


class Worker:
    """The service's own handler on one thread, with the parts of a job about one recording.

    Args:
        path: The recording.
    """

    def __init__(self, path: Path) -> None:
        import torch

        from lookout.recordings.analysis import Analyzer
        from lookout.recordings.jobs import Sources, plan_job
        from lookout.services.recordings.running import PartsHandler

        torch.set_num_threads(1)
        analyzer = Analyzer(TINY)
        analyzer.load()
        self.size = (analyzer.tower.grid.height, analyzer.tower.grid.width)
        sources = Sources([path.parent])
        job = RecordingJob(
            id="bench", uris=[path.as_uri()], questions=[QUESTION], settings=RecordingSettings(fps=1)
        )
        self._plan = plan_job(job, sources, analyzer.part_frames, now_ms=round(time.time() * 1000))
        # As many parts as workers can share evenly: the rest would measure rounding.
        self.parts = self._plan.parts - self._plan.parts % WORKERS
        if not self.parts:
            raise SystemExit(f"{path} has {self._plan.parts} parts: make it longer")
        self._handler = PartsHandler(
            analyzer, sources, partitions=1, model_digest="", cancelled=lambda _: False, decoders=1
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._handler.close()

    def part(self, number: int) -> RecordingPart:
        """A part of the job."""
        from lookout.recordings.jobs import planned_part

        return planned_part(self._plan, number, home=0)

    def answered(self, numbers: Iterable[int], ahead: Ahead | None = None) -> dict[str, Any]:
        """CPU seconds of some parts, and a digest of their outcomes.

        Args:
            numbers: Which.
            ahead: Where their pixels come from; None: they are decoded here.

        Raises:
            SystemExit: A part has no answer.
        """
        from lookout.runtime.worker import Record
        from lookout.v1.recordings_pb2 import RecordingOutcome
        from lookout.wire import from_bytes

        self._handler._ahead = ahead
        begun, digest, from_pods = _cpu_s(), hashlib.blake2b(digest_size=8), 0
        for number in numbers:
            value = self.part(number).SerializeToString()
            result = self._handler.handle(None, Record("recording.parts.v1", 0, number, "bench", value))
            outcome = from_bytes(result.outputs[0].value or b"", RecordingOutcome).part
            if outcome.reason:
                raise SystemExit(f"a part has no answer: {outcome}")
            digest.update(outcome.SerializeToString(deterministic=True))
            from_pods += result.counts.get("ahead", 0)
        self._handler.close()  # CPU time of decoders counts once they have ended
        return {"cpu_s": _cpu_s() - begun, "digest": digest.hexdigest(), "ahead": from_pods}


def _cpu_s() -> float:
    """CPU seconds of this process and of its children that have ended."""
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + children.ru_utime + children.ru_stime


def main() -> None:
    """Answer a share of the parts."""
    place, workers = map(int, sys.argv[2].split("/"))
    with Worker(Path(sys.argv[1]).resolve()) as worker:
        numbers = range(place, worker.parts, workers)
        print(json.dumps({"parts": len(numbers), **worker.answered(numbers)}))


if __name__ == "__main__":
    main()
