"""`python -m bench.capacity`: how many cameras one core carries, end to end, with the tiny model.

A real Kafka, Redis and the four services with their default settings; one question a camera. Cameras are
played as fast as the fleet takes them, and again at the pace of live cameras, where batches are smaller and
more transactions are committed. The film is a real camera's (768x432, 10 frames a second) where there
is footage, else one of the demo's (448x448, 12.5 a second). CPU time of all processes counts, the broker's
too: a core carries one camera-second a CPU-second. Ends with one line of JSON; `cpu_ms` is what a
camera-second costs, by process.
"""

from __future__ import annotations

import argparse
import json
import logging
import sys
import tempfile
from pathlib import Path
from typing import Any

from bench.fleet import STRIDE_S, Run, fleet, measure
from lookout.segments import cut
from tests.conftest import find_footage
from tests.fleet.faults.footage import Piece
from watchbench import cameras

REAL = "fixed/intel_one_by_one_person.mp4"
TARGET = 15.0  # cameras a core


def film(seconds: float) -> tuple[str, list[Piece]]:
    """A clip's name and its segments of one stride each."""
    footage = find_footage()
    path = (
        footage / REAL if footage is not None else cameras.demo_cameras(Path("out/films"), ("room",))[0].path
    )
    segments = cut(path, target_s=STRIDE_S)
    made = [Piece("film", segment.data, segment.start_us / 1e6) for segment in segments]
    return path.name, [piece for piece in made if piece.start_s < seconds]


def report(run: Run) -> dict[str, Any]:
    """What the last line says of one pace."""
    return {
        "cameras_per_core": round(1000 / run.cpu_ms, 1),
        "cpu_ms": {
            process: round(1000 * cpu / run.camera_seconds, 2) for process, cpu in sorted(run.cpu_s.items())
        },
        "seconds": round(run.seconds, 1),
    }


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--cameras", type=int, default=8)
    parser.add_argument("--seconds", type=float, default=40.0, help="of video of a camera")
    given = parser.parse_args()
    logging.disable(logging.CRITICAL)
    name, pieces = film(given.seconds)
    with (
        tempfile.TemporaryDirectory(prefix="lookout-bench-") as scratch,
        fleet(Path(scratch), given.cameras, modules={}) as running,
    ):
        measure(running, [pieces[:6]], "warm-", given.cameras)
        fast = measure(running, [pieces], "fast-", given.cameras)
        live = measure(running, [pieces], "live-", given.cameras, pace=given.cameras)
    line = {"bench": "capacity", "film": name, "cameras": given.cameras, "target": TARGET}
    sys.stdout.write(json.dumps({**line, "fast": report(fast), "live": report(live)}) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
