"""`python -m bench.capacity`: what the fleet costs beside plain decoding of the same clip.

A real Kafka, Redis and the four services with their default settings and the tiny model; one question a
camera. Cameras are played as fast as the fleet takes them, and again at the pace of live cameras, where
batches are smaller and more transactions are committed. The film is a real camera's (768x432, 10 frames a
second) where there is footage, else one of the demo's (448x448, 12.5 a second). CPU time of all processes
counts, the broker's too. The same run decodes the clip alone, every frame, with FFmpeg on one thread:
`multiple` is the fleet's CPU time over that, `by_process` what each process has of it. `latency_s` is from a
segment's arrival in Kafka to the verdict at a consumer: median and 95th percentile. Cameras that are more
than the machine carries live are only played as fast as it goes. Ends with one line of JSON.
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
from pathlib import Path
from typing import Any

import av

from bench.fleet import STRIDE_S, Run, fleet, measure
from lookout.segments import cut
from tests.conftest import find_footage
from tests.fleet.faults.footage import Piece
from watchbench import cameras

REAL = "fixed/intel_one_by_one_person.mp4"
TARGET = {"fast": 5.0, "live": 7.0}  # times plain decoding
PARTITIONS = 64
ROUNDS = 3
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
    """CPU milliseconds that plain decoding of a camera-second costs: the least of a few rounds."""

    def once() -> float:
        begun = time.process_time()
        for piece in pieces:
            with av.open(io.BytesIO(piece.data)) as container:
                container.streams.video[0].thread_count = 1
                for _ in container.decode(video=0):
                    pass
        return time.process_time() - begun

    return 1000 * min(once() for _ in range(ROUNDS)) / (len(pieces) * STRIDE_S)


def report(run: Run, decoding: float) -> dict[str, Any]:
    """What the last line says of one pace; `decoding`: CPU-ms of plain decoding of a camera-second."""
    latencies = sorted(run.latencies_s)
    return {
        "multiple": round(run.cpu_ms / decoding, 1),
        "by_process": {
            process: round(1000 * cpu / run.camera_seconds / decoding, 2)
            for process, cpu in sorted(run.cpu_s.items())
        },
        "latency_s": [
            round(statistics.median(latencies), 2),
            round(latencies[int(0.95 * (len(latencies) - 1))], 2),
        ],
        "transactions_a_window": round(run.transactions * STRIDE_S / run.camera_seconds, 2),
    }


def measured(cameras: int, pieces: Sequence[Piece]) -> dict[str, Any]:
    """Both paces of so many cameras, on a fleet of their own."""
    decoding = decoding_ms(pieces)
    with (
        tempfile.TemporaryDirectory(prefix="lookout-bench-") as scratch,
        fleet(Path(scratch), min(cameras, PARTITIONS), modules={}) as running,
    ):
        measure(running, [pieces[:6]], "warm-", cameras)
        fast = measure(running, [pieces], "fast-", cameras)
        paces = {"fast": report(fast, decoding)}
        if fast.capacity > cameras:
            paces["live"] = report(measure(running, [pieces], "live-", cameras, pace=cameras), decoding)
    return {"decoding": 1.0, **paces, "seconds": len(pieces) * STRIDE_S}


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--cameras", type=int, nargs="+", default=[8, 100])
    parser.add_argument(
        "--seconds", type=float, default=320.0, help="of video of all cameras of a pace together"
    )
    given = parser.parse_args()
    logging.disable(logging.CRITICAL)
    figures: dict[str, Any] = {}
    for size in given.cameras:
        name, pieces = film(max(SHORTEST_S, given.seconds / size))
        name_of_size = f"{size} cameras"
        figures[name_of_size] = measured(size, pieces)
        sys.stderr.write(f"{name_of_size}: {json.dumps(figures[name_of_size])}\n")
    line = {"bench": "capacity", "film": name, "target": TARGET}
    sys.stdout.write(json.dumps({**line, "fleet": figures}) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
