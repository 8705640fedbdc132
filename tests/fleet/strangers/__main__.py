"""`python -m tests.fleet.strangers`: strangers at every door while honest cameras play; ends with one line of
JSON."""

from __future__ import annotations

import argparse
import json
import logging
import sys
import tempfile
import time
from dataclasses import asdict
from pathlib import Path

import structlog

from tests.fleet.strangers import run


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--minutes", type=float, default=3.0, help="that the honest cameras play, and strangers try at least"
    )
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--list", action="store_true", help="print every kind of input and end")
    parser.add_argument("--keep", type=Path, help="folder to keep logs and data in")
    given = parser.parse_args()
    begun = time.monotonic()

    def tell(text: str) -> None:
        sys.stderr.write(f"{time.monotonic() - begun:7.1f} s  {text}\n")
        sys.stderr.flush()

    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    with tempfile.TemporaryDirectory(prefix="lookout-strangers-") as scratch:
        folder = given.keep or Path(scratch)
        folder.mkdir(parents=True, exist_ok=True)
        if given.list:
            kinds = run.kinds(folder)
            sys.stdout.write("\n".join([*kinds, f"{len(kinds)} kinds", ""]))
            return 0
        plan = run.Plan(minutes=given.minutes, seed=given.seed)
        score, tally = run.run(plan, folder, tell)
    for kind, count in sorted(tally.inputs.items()):
        tell(f"  {count:6d} {kind}")
    for title, lines in (
        ("crash", tally.crashes),
        ("hung", tally.hung),
        ("leaked", tally.leaked),
        ("undone", tally.undone),
    ):
        for line in dict.fromkeys(lines):
            tell(f"{title}: {line}")
    sys.stdout.write(json.dumps(asdict(score)) + "\n")
    return 0 if score.clean else 1


if __name__ == "__main__":
    sys.exit(main())
