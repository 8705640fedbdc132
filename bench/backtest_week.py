"""What a back-test of many cameras over many days needs of the services that plan it and collect outcomes.

The real handlers plan a job over tokens.v1 with as many records as there would be, write its parts, take one
outcome for each, and write the answers. **The outcomes are made up**: nobody ran a model for a week. Two in a
hundred windows say yes, in runs; a thousand labels are scored. Offsets interleave the cameras of a partition,
as they do live. Reported are bytes of records and of the checkpoint, CPU seconds without those that make
outcomes up, and MiB by which the process grew. The last line is JSON.
"""

from __future__ import annotations

import argparse
import json
import random
import resource
import sys
import tempfile
import time
from collections.abc import Iterable, Mapping
from typing import Any, BinaryIO

from lookout.models import DEMO_QUESTIONS, TINY
from lookout.recordings.jobs import Sources
from lookout.runtime.worker import Record, Result
from lookout.services.recordings.planning import PlanHandler
from lookout.services.recordings.reducing import ReduceHandler, Reduction
from lookout.streams.chains import ChainRange
from lookout.v1.labels_pb2 import Label
from lookout.v1.recordings_pb2 import (
    BacktestJob,
    BacktestOutcome,
    BacktestPart,
    PartOutcome,
    PastStream,
    RecordingAnswers,
    RecordingJob,
    RecordingOutcome,
    RecordingPart,
)
from lookout.v1.verdicts_pb2 import Evidence, Verdict
from lookout.v1.watches_pb2 import Rule, Watch
from lookout.wire import RECORDING_PARTS, RECORDING_RESULTS, RECORDINGS, from_bytes, from_json, to_json

WATCH = Watch(id="w", version=1, question=DEMO_QUESTIONS["lying"], rule=Rule(threshold=0.5, k=2, n=3))
BEGIN_MS = 1_760_000_000_000
EPOCH = BEGIN_MS
LABELS = 1000


class MadeUp:
    """Outcomes that no model computed, in a file: reads them again as the runtime's reader does.

    Args:
        file: Where they lie.
        cameras: Of a partition.
        stride_s: Seconds from one window to the next.
        window_s: Seconds of a window.
    """

    def __init__(self, file: BinaryIO, cameras: int, stride_s: int, window_s: int) -> None:
        self._file, self._cameras = file, cameras
        self._stride_ms, self._window_ms = 1000 * stride_s, 1000 * window_s
        self._draw = random.Random(1)
        self._places: list[tuple[int, int]] = []

    def add(self, value: bytes) -> int:
        """Keep a record; its offset."""
        self._places.append((self._file.seek(0, 2), len(value)))
        self._file.write(value)
        return len(self._places) - 1

    def read(self, topic: str, partition: int, offsets: Iterable[int]) -> list[Record]:
        """The records at offsets."""
        records = []
        for offset in sorted(set(offsets)):
            begin, length = self._places[offset]
            self._file.seek(begin)
            records.append(Record(topic, partition, offset, "week", self._file.read(length)))
        return records

    def outcome(self, part: RecordingPart) -> bytes:
        """The outcome of a part."""
        past, streams = part.backtest, {}
        for offset in range(past.first, past.stop):
            window, camera = divmod(offset, self._cameras)
            name = f"camera-{past.partition}-{camera}"
            stream = streams.setdefault(name, PastStream(camera=name, epoch=EPOCH))
            self._window(stream.verdicts.add(), window, past)
        outcome = PartOutcome(
            number=part.number, span=part.span, backtest=BacktestOutcome(streams=list(streams.values()))
        )
        return RecordingOutcome(job=part.job, part=outcome, place=0).SerializeToString()

    def _window(self, verdict: Verdict, window: int, past: BacktestPart) -> None:
        end_ms = BEGIN_MS + window * self._stride_ms
        verdict.window, verdict.outcome = window, Verdict.OUTCOME_ANSWERED
        verdict.start.FromMilliseconds(end_ms - self._window_ms)
        verdict.end.FromMilliseconds(end_ms)
        says_yes = window % 250 < 5
        verdict.p_yes = self._draw.uniform(0.5, 1.0) if says_yes else self._draw.uniform(0.0, 0.4)
        if says_yes:
            for row in range(3):
                frame = verdict.evidence.add()
                frame.CopyFrom(_frame(past.partition, window, row))


def _frame(partition: int, window: int, row: int) -> Evidence:
    frame = Evidence(row=row)
    frame.time.FromMilliseconds(BEGIN_MS + 1000 * window)
    frame.record.topic, frame.record.partition, frame.record.offset = "frames.v1", partition, window
    return frame


def job_of(cameras: int, days: float) -> RecordingJob:
    """The request, with labels all over the time."""
    job = RecordingJob(id="week", backtest=BacktestJob(watch=WATCH))
    draw = random.Random(2)
    for number in range(LABELS):
        camera = f"camera-0-{draw.randrange(cameras)}"
        label = Label(camera=camera, watch="w", incident=str(number), right=draw.random() < 0.5)
        begin_ms = BEGIN_MS + draw.randrange(round(days * 86_400_000))
        label.start.FromMilliseconds(begin_ms)
        label.end.FromMilliseconds(begin_ms + 60_000)
        job.backtest.labels.append(label)
    return job


def planned(job: RecordingJob, ranges: Mapping[int, ChainRange], stride_s: int) -> Result:
    """What the service that plans says of the request."""
    handler = PlanHandler(
        TINY, lambda _: 20, Sources([]), ranges=lambda since_ms, until_ms: ranges, stride_s=stride_s
    )
    record = Record(RECORDINGS.name, 0, 0, job.id, to_json(job), timestamp_ms=BEGIN_MS)
    return handler.handle(handler.load(job.id, None), record)


class Collected:
    """A job followed by the service that collects outcomes.

    Args:
        outcomes: Makes them up.
        partitions: Of the topic of parts.
    """

    def __init__(self, outcomes: MadeUp, partitions: int) -> None:
        self._outcomes = outcomes
        self._handler = ReduceHandler(outcomes, partitions=partitions, most_parts=2 * partitions)
        self._state: Reduction = self._handler.load("week", None)
        self.cpu_s, self.end_cpu_s, self.written = 0.0, 0.0, 0
        self.sizes: dict[str, list[int]] = {"part": [], "outcome": [], "checkpoint": []}
        self.answers = b""

    def take(self, value: bytes) -> None:
        """Take the plan, and the outcome of every part that it brings, to the end."""
        waiting = [value]
        while waiting:
            value = waiting.pop()
            offset = self._outcomes.add(value)
            began = time.process_time()
            result = self._handler.handle(
                self._state, Record(RECORDING_RESULTS.name, 0, offset, "week", value)
            )
            self.end_cpu_s = time.process_time() - began
            self.cpu_s += self.end_cpu_s
            self._count(result)
            for output in result.outputs:
                if output.topic == RECORDING_PARTS.name:
                    self.sizes["part"].append(len(output.value or b""))
                    waiting.append(self._outcomes.outcome(from_bytes(output.value or b"", RecordingPart)))
                    self.sizes["outcome"].append(len(waiting[-1]))

    def _count(self, result: Result) -> None:
        assert result.checkpoint is not None
        self.sizes["checkpoint"].append(result.checkpoint.ByteSize())
        self.written += self.sizes["checkpoint"][-1] + sum(len(o.value or b"") for o in result.outputs)
        self.answers = result.outputs[0].value or b""


def main() -> None:
    """Run, and print what came of it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cameras", type=int, default=100)
    parser.add_argument("--days", type=float, default=7.0)
    parser.add_argument("--stride", type=int, default=8, help="seconds")
    parser.add_argument("--partitions", type=int, default=4)
    given = parser.parse_args()
    share = given.cameras // given.partitions
    windows = round(given.days * 86_400 / given.stride)
    ranges = {place: ChainRange(place, 0, share * windows, 0) for place in range(given.partitions)}
    began = time.process_time()
    plan = planned(job_of(share, given.days), ranges, given.stride).outputs[0].value or b""
    plan_cpu_s, before = time.process_time() - began, _peak_mib()
    with tempfile.TemporaryFile() as file:
        collected = Collected(MadeUp(file, share, given.stride, 5 * given.stride), given.partitions)
        collected.take(plan)
    answers = from_json(collected.answers, RecordingAnswers)
    past, sizes = answers.backtest, collected.sizes
    figures: dict[str, Any] = {
        "cameras": given.cameras,
        "days": given.days,
        "windows": sum(count.windows for count in past.windows),
        "parts": answers.parts,
        "incidents": past.incidents_total,
        "bytes": {
            "plan": len(plan),
            **{name: {"largest": max(rows), "sum": sum(rows)} for name, rows in sizes.items()},
            "written by the collector": collected.written,
            "answers": len(collected.answers),
        },
        "cpu_s": {
            "plan": round(plan_cpu_s, 2),
            "outcomes": round(collected.cpu_s - collected.end_cpu_s, 2),
            "answers": round(collected.end_cpu_s, 2),
        },
        "memory_mib": round(_peak_mib() - before),
    }
    sys.stdout.write(json.dumps(figures) + "\n")
    sys.exit(0 if answers.state == RecordingAnswers.STATE_DONE and not past.unanswered else 1)


def _peak_mib() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


if __name__ == "__main__":
    main()
