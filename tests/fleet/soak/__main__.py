"""`python -m tests.fleet.soak`: six cameras as fast as the fleet takes them; ends with one line of JSON."""

from __future__ import annotations

import argparse
import json
import logging
import sys
import tempfile
import time
from pathlib import Path

from tqdm import tqdm

from tests.fleet.faults.run import fleet, watch
from tests.fleet.soak.load import Load
from tests.fleet.soak.sampling import Sample, sample, summary

EVERY_S = 5.0
#: budgets that are full within minutes, so that what grows beyond them is seen
BUDGETS = {
    "store__memory_bytes": str(64 << 20),
    "store__disk_bytes": str(128 << 20),
    "store__unread_bytes": str(48 << 20),
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=3600.0, help="how long")
    parser.add_argument("--cameras", type=int, default=6)
    parser.add_argument(
        "--film", type=int, default=240, help="seconds of video of a camera, played in a loop"
    )
    parser.add_argument("--keep", type=Path, help="folder to keep logs, data and samples.jsonl in")
    given = parser.parse_args()
    logging.disable(logging.CRITICAL)
    with tempfile.TemporaryDirectory(prefix="lookout-soak-") as scratch:
        samples, outcomes = run(given.seconds, given.cameras, given.film, given.keep or Path(scratch))
    sys.stderr.write(f"{outcomes} outcomes\n")
    sys.stdout.write(json.dumps(summary(samples)) + "\n")
    return 0 if outcomes else 1


def run(seconds: float, cameras: int, film: int, folder: Path) -> tuple[list[Sample], int]:
    """Play the cameras for `seconds`; samples of the processes, and how many outcomes came out."""
    folder.mkdir(parents=True, exist_ok=True)
    samples: list[Sample] = []
    with fleet(folder, more=BUDGETS) as running, (folder / "samples.jsonl").open("w") as log:
        watch(running.bootstrap)
        with Load(running.bootstrap, cameras, film) as load, tqdm(total=round(seconds), unit="s") as bar:
            begun = time.monotonic()
            while (elapsed := time.monotonic() - begun) < seconds or not samples:
                for news in running.supervise():
                    tqdm.write(news, file=sys.stderr)
                load.check()
                samples.append(sample(running, elapsed))
                log.write(json.dumps(samples[-1].to_dict()) + "\n")
                log.flush()
                bar.update(min(round(seconds), round(elapsed)) - bar.n)
                bar.set_postfix(outcomes=load.outcomes, segments=load.published)
                time.sleep(EVERY_S)
            return samples, load.outcomes


if __name__ == "__main__":
    sys.exit(main())
