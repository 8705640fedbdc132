"""Try a question and a rule on a folder of recordings before you switch it on.

python examples/backtest.py recordings/ "Is anyone lying on the ground?" --threshold 0.7 --of 2/3

`lookout backtest` asks the past of a fleet's cameras in the same way.
"""

import argparse
from pathlib import Path

import lookout
from lookout import rules
from lookout.backtest import clip_backtest

VIDEO = (".mp4", ".mkv", ".ts", ".avi")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path, help="a folder of video files")
    parser.add_argument("question", help="a yes/no question")
    parser.add_argument("--threshold", type=float, default=0.5, help="p(yes) that counts as yes")
    parser.add_argument(
        "--of", default="1/1", help="K/N: an incident opens at yes in K of the last N windows"
    )
    given = parser.parse_args()
    k, n = map(int, given.of.split("/"))
    files = sorted(path for path in given.folder.iterdir() if path.suffix in VIDEO)
    with lookout.Pipeline(questions=[given.question]) as pipeline:
        past = clip_backtest(pipeline, files, rules.Rule(threshold=given.threshold, k=k, n=n))
    for incident in past.incidents:
        begin_s, end_s = incident.opened_ms / 1000, incident.end_ms / 1000
        print(f"{incident.camera}  {begin_s:6.1f} to {end_s:6.1f} s  peak p(yes) {incident.peak:.2f}")
    print(f"{len(past.incidents)} incidents in {len(files)} files")


if __name__ == "__main__":
    main()
