"""`python -m bench.capacity`: what the fleet costs compared with plain decoding of the same clip.

It runs a real Kafka, a real Redis and the four services with their default settings and the tiny model, with
one question per camera. Cameras are played as fast as the fleet can process them, and again at the pace of
live cameras, where batches are smaller and more transactions are committed. The film is a real camera's
(768x432, 10 frames a second) if there is footage, otherwise one of the demo's (448x448, 12.5 a second). The
CPU time of all processes counts, including the broker's. Each pace is played in several rounds. Because the
speed of a machine changes while others use it, the same process decodes the clip before and after each round:
alone, every frame, with FFmpeg on one thread.

- `multiple`: the fleet's CPU time over the mean of these two baselines; the median of the rounds, with the
  least and the largest. `by_process`: each process's part of it.
- `decoding_spread`: the largest baseline over the smallest. If it exceeds 1.1, the machine was busy with
  other work.
- `idle`: what the processes use while no camera sends, in camera-seconds of decoding per second.
- `latency_s`: from a segment's arrival in Kafka to the verdict at a consumer, median and 95th percentile.

If the machine cannot carry that many cameras live, they are only played as fast as it goes. The last line is
JSON.
"""

from __future__ import annotations

import argparse
import io
import json
import logging
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import av

from bench.fleet import STRIDE_S, Run, cpu_seconds, fleet, measure
from lookout.local import Fleet
from lookout.video.segments import cut
from tests.conftest import find_footage
from tests.fleet.faults.footage import Piece
from watchbench import cameras

REAL = "fixed/intel_one_by_one_person.mp4"
TARGET = {"fast": 5.0, "live": 6.0}  # times plain decoding
PARTITIONS = 64
ROUNDS = 3
BASELINES = 3  # times that the clip is decoded for one baseline
WARM_ROUNDS = 2  # a Java virtual machine compiles while it works
IDLE_S = 10.0
SHORTEST_S = 6.0


def film(seconds: float) -> tuple[str, list[Piece]]:
    """A clip's name and its segments of one stride each."""
    footage = find_footage()
    path = (
        footage / REAL if footage is not None else cameras.demo_cameras(Path("out/films"), ("room",))[0].path
    )
    segments = cut(path, target_s=STRIDE_S)
    pieces = [Piece("film", segment.data, segment.start_us / 1e6) for segment in segments]
    return path.name, [piece for piece in pieces if piece.start_s < seconds]


def decoding_ms(pieces: Sequence[Piece]) -> float:
    """CPU milliseconds that plain decoding of a camera-second costs now."""
    begun = time.process_time()
    for _ in range(BASELINES):
        for piece in pieces:
            with av.open(io.BytesIO(piece.data)) as container:
                container.streams.video[0].thread_count = 1
                for _frame in container.decode(video=0):
                    pass
    return 1000 * (time.process_time() - begun) / (BASELINES * len(pieces) * STRIDE_S)


@dataclass(frozen=True, slots=True)
class Round:
    """One run of a pace, and plain decoding before and after it, CPU-ms of a camera-second."""

    run: Run
    before: float
    after: float

    @property
    def decoding(self) -> float:
        """The baseline of this run."""
        return (self.before + self.after) / 2

    @property
    def multiple(self) -> float:
        """CPU time of the fleet over that of plain decoding."""
        return self.run.cpu_ms / self.decoding


def report(rounds: Sequence[Round]) -> dict[str, Any]:
    """What the last line says of one pace."""
    multiples = sorted(each.multiple for each in rounds)
    baselines = [baseline for each in rounds for baseline in (each.before, each.after)]
    latencies = sorted(latency for each in rounds for latency in each.run.latencies_s)
    return {
        "multiple": round(statistics.median(multiples), 1),
        "from_to": [round(multiples[0], 1), round(multiples[-1], 1)],
        "by_process": {
            process: round(
                statistics.median(
                    1000 * each.run.cpu_s[process] / each.run.camera_seconds / each.decoding
                    for each in rounds
                ),
                2,
            )
            for process in sorted(rounds[0].run.cpu_s)
        },
        "decoding_spread": round(max(baselines) / min(baselines), 2),
        "latency_s": [
            round(statistics.median(latencies), 2),
            round(latencies[int(0.95 * (len(latencies) - 1))], 2),
        ],
        "transactions_a_window": round(
            sum(each.run.transactions for each in rounds)
            * STRIDE_S
            / sum(each.run.camera_seconds for each in rounds),
            2,
        ),
    }


def played(
    running: Fleet,
    pieces: Sequence[Piece],
    cameras: int,
    name: str,
    *,
    rounds: int,
    pace: float | None = None,
) -> list[Round]:
    """So many rounds of a pace, each between two baselines."""
    out = []
    before = decoding_ms(pieces)
    for number in range(rounds):
        run = measure(running, [pieces], f"{name}-{number}-", cameras, pace)
        after = decoding_ms(pieces)
        out.append(Round(run, before, after))
        before = after
    return out


def idle(running: Fleet, decoding: float) -> dict[str, float]:
    """What every process uses while no camera sends: camera-seconds of decoding a second."""
    before = cpu_seconds(running)
    time.sleep(IDLE_S)
    after = cpu_seconds(running)
    return {
        process: round(1000 * (after[process] - before[process]) / IDLE_S / decoding, 2)
        for process in sorted(after)
    }


def measured(cameras: int, pieces: Sequence[Piece], rounds: int) -> dict[str, Any]:
    """Both paces of so many cameras, on a fleet of their own."""
    with (
        tempfile.TemporaryDirectory(prefix="lookout-bench-") as scratch,
        fleet(Path(scratch), min(cameras, PARTITIONS), modules={}) as running,
    ):
        for number in range(WARM_ROUNDS):
            measure(running, [pieces], f"warm-{number}-", cameras)
        fast = played(running, pieces, cameras, "fast", rounds=rounds)
        paces = {"idle": idle(running, fast[-1].decoding), "fast": report(fast)}
        if min(each.run.capacity for each in fast) > cameras:
            paces["live"] = report(played(running, pieces, cameras, "live", rounds=rounds, pace=cameras))
    return {**paces, "seconds": len(pieces) * STRIDE_S, "rounds": rounds}


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--cameras", type=int, nargs="+", default=[8, 100])
    parser.add_argument(
        "--seconds", type=float, default=320.0, help="of video of all cameras of a pace together"
    )
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="runs of a pace")
    given = parser.parse_args()
    logging.disable(logging.CRITICAL)
    figures: dict[str, Any] = {}
    for size in given.cameras:
        name, pieces = film(max(SHORTEST_S, given.seconds / size))
        name_of_size = f"{size} cameras"
        figures[name_of_size] = measured(size, pieces, given.rounds)
        sys.stderr.write(f"{name_of_size}: {json.dumps(figures[name_of_size])}\n")
    line = {"bench": "capacity", "film": name, "target": TARGET}
    sys.stdout.write(json.dumps({**line, "fleet": figures}) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
