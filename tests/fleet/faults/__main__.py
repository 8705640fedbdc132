"""`python -m tests.fleet.faults`: ten cameras, every fault; ends with one line of JSON."""

from __future__ import annotations

import argparse
import json
import logging
import sys
import tempfile
import time
from pathlib import Path

from tests.fleet.faults import outcomes, run
from tests.fleet.faults.faults import EVERY


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cameras", type=int, default=10)
    parser.add_argument("--seconds", type=int, default=60, help="of each camera, a multiple of the stride")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--pace", type=float, default=0.5, help="times real time")
    parser.add_argument(
        "--lossy", type=float, nargs="*", default=[0.05, 0.4], help="further cameras: share of packets lost"
    )
    parser.add_argument("--keep", type=Path, help="folder to keep logs and data in")
    given = parser.parse_args()
    logging.disable(logging.CRITICAL)
    plan = run.Plan(
        given.cameras, given.seconds, given.seed, given.pace, patience_s=2400.0, lossy=tuple(given.lossy)
    )
    begun = time.monotonic()

    def tell(text: str) -> None:
        sys.stderr.write(f"{time.monotonic() - begun:7.1f} s  {text}\n")
        sys.stderr.flush()

    with tempfile.TemporaryDirectory(prefix="lookout-faults-") as scratch:
        folder = given.keep or Path(scratch)
        tell(
            f"filming {plan.cameras} cameras, {plan.seconds} s each, and {len(plan.lossy)} that lose packets"
        )
        footage = run.film(plan)
        undisturbed = run.undisturbed(plan, footage.segments, folder / "undisturbed", tell)
        committed, tally, memory = run.stormy(plan, footage.segments, EVERY, folder, tell)
    score, faults = outcomes.score(
        plan.expected, committed, tally, footage.damaged, memory=memory, undisturbed=undisturbed
    )
    for line in faults[:40]:
        tell(line)
    tell(f"{outcomes.kinds(committed)}, {len(committed.alerts)} alerts; {len(EVERY)} faults")
    tell(f"computed again: {tally.to_dict()}; {outcomes.bases(committed)}")
    tell(f"remembered: {memory.frames} frames in {memory.chapters} chapters")
    sys.stdout.write(json.dumps(score.to_dict()) + "\n")
    return 0 if score.clean else 1


if __name__ == "__main__":
    sys.exit(main())
