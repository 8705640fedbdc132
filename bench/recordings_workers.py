"""Four workers against one: a part of `make bench-recordings`.

The parts of one recording, planned as a job is, answered by the service's own handler: by one process,
then by four, which share them as four partitions do. Each process has one thread and one decoder; its
cost is its CPU time without loading the model, decoders and the opening of the recording included. The
model of four machines: each worker is alone on its own, so the job takes as long as the slowest of the
four.
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, Final

from bench.results import Results
from lookout.models import DEMO_QUESTIONS, TINY
from lookout.v1.recordings_pb2 import RecordingJob, RecordingSettings

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
    name = _name(seconds, share)
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
    found = [results.found.get(_name(seconds, share)) for share in shares()]
    if not all(found):
        return None
    whole, *quarters = found
    slowest = max(quarter["cpu_s"] for quarter in quarters)
    return {
        "times": round(whole["cpu_s"] / slowest, 2),
        "parts": whole["parts"],
        "cpu_s": [round(row["cpu_s"], 2) for row in found],
    }


def _name(seconds: int, share: str) -> str:
    return f"workers {seconds} s {share}"


def _cpu_s() -> float:
    """CPU seconds of this process and of its children that have ended."""
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + children.ru_utime + children.ru_stime


def main() -> None:
    """Answer a share of the parts."""
    import torch

    from lookout.analysis import Analyzer
    from lookout.jobs import Sources, plan_job
    from lookout.services.recordings.running import PartsHandler
    from lookout.v1.recordings_pb2 import RecordingOutcome
    from lookout.wire import from_bytes
    from lookout.worker import Record

    path, share = Path(sys.argv[1]).resolve(), sys.argv[2]
    place, workers = map(int, share.split("/"))
    torch.set_num_threads(1)
    analyzer = Analyzer(TINY)
    analyzer.load()
    sources = Sources([path.parent])
    job = RecordingJob(
        id="bench", uris=[path.as_uri()], questions=[QUESTION], settings=RecordingSettings(fps=1)
    )
    planned = plan_job(job, sources, analyzer.part_frames, now_ms=round(time.time() * 1000), home=0)
    handler = PartsHandler(
        analyzer, sources, partitions=1, model_digest="", cancelled=lambda _: False, decoders=1
    )
    begun = _cpu_s()
    outcomes = []
    for part in planned.parts[place::workers]:
        record = Record("recording.parts.v1", place, part.number, "bench", part.SerializeToString())
        (output,) = handler.handle(None, record).outputs
        outcomes.append(from_bytes(output.value or b"", RecordingOutcome).part)
    handler.close()
    if any(outcome.reason for outcome in outcomes):
        raise SystemExit(f"a part has no answer: {outcomes}")
    print(json.dumps({"parts": len(outcomes), "cpu_s": _cpu_s() - begun}))


if __name__ == "__main__":
    main()
