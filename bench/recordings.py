"""`make bench-recordings`: how pruned KV changes answers in clips of 20 to 256 frames, and an hour compared
with peers.

Each part (recordings_answers, _long, _hour) stores its measurements in --results, so that an interrupted run
continues. The last line is JSON.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

import torch

from bench import (
    recordings_answers as answers,
    recordings_hour as hour,
    recordings_long as long,
)
from bench.clips import SOURCE, base_clip, repeated
from bench.results import Results
from tests.conftest import find_footage
from watchbench.films import HELD_BACK

PARTS = ("answers", "long", "hour")


def options_of() -> argparse.Namespace:
    """What was asked for."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", choices=PARTS, nargs="+", default=list(PARTS), help="some of the parts")
    parser.add_argument("--clips", type=int, default=36, help="answers: rendered clips")
    parser.add_argument("--first", type=int, default=HELD_BACK, help="answers: seed of the first clip")
    parser.add_argument(
        "--cells",
        nargs="+",
        choices=answers.CELLS,
        default=list(answers.CELLS),
        help="answers: parts of the grid",
    )
    parser.add_argument(
        "--lengths", type=int, nargs="+", choices=list(long.LENGTHS), default=list(long.LENGTHS),
        help="long: frames of a clip",
    )  # fmt: skip
    parser.add_argument("--threads", type=int, default=2, help="hour: decoding threads")
    parser.add_argument(
        "--hour-seconds", type=int, nargs=2, default=(60, 240), help="hour: lengths of the two recordings"
    )
    parser.add_argument("--keep", type=Path, default=Path("out/peers-clips"), help="folder for the clips")
    parser.add_argument(
        "--results", type=Path, default=Path("out/recordings.jsonl"), help="what was measured"
    )
    parser.add_argument("--fresh", action="store_true", help="measure everything again")
    parser.add_argument(
        "--within", type=float, default=float("inf"), help="begin nothing after so many seconds"
    )
    return parser.parse_args()


def main() -> int:
    """Measure and print."""
    options = options_of()
    torch.set_num_threads(1)
    begun = time.monotonic()

    def within() -> bool:
        return bool(time.monotonic() - begun < options.within)

    results = Results(options.results, fresh=options.fresh)
    tables: dict[str, object] = {}
    out: dict[str, object] = {"tables": tables}
    if "answers" in options.only:
        out |= answers.quality(results, options.clips, options.first, options.cells)
        tables["20 frames"] = out.pop("grid")
    if "long" in options.only:
        first = options.first + long.FIRST
        out["accuracy_long"], more = long.measured(results, options.lengths, first, within)
        tables |= more
    footage = find_footage()
    if footage is not None and "hour" in options.only:
        options.keep.mkdir(parents=True, exist_ok=True)
        base = base_clip(footage / SOURCE, options.keep).resolve()
        lengths = (min(options.hour_seconds), max(options.hour_seconds))
        for length in lengths:
            for way in hour.WAYS:
                if within():
                    hour.measure(results, repeated(base, length), length, way, options.threads)
        out["hour_s"] = hour.summary(results, lengths)
    print(json.dumps(out))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
