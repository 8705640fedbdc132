"""Try a question and a rule on a folder of recordings before you switch it on.

python examples/backtest.py recordings/ "Is anyone lying on the ground?" --threshold 0.7 --of 2/3

With --page FILE.html a page shows the incidents with pictures. `lookout backtest` asks the past of a fleet's
cameras in the same way.
"""

import argparse
import shlex
import sys
from pathlib import Path

import lookout
from lookout import rules
from lookout.backtest import clip_backtest
from lookout.cli.report import write_clip_page

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
    parser.add_argument("--page", type=Path, help="a page (.html) of the incidents, with pictures")
    given = parser.parse_args()
    try:
        k, n = map(int, given.of.split("/"))
        files = sorted(path for path in given.folder.iterdir() if path.suffix.lower() in VIDEO)
        rule = rules.Rule(threshold=given.threshold, k=k, n=n)
        with lookout.Pipeline(questions=[given.question]) as pipeline:
            past = clip_backtest(pipeline, files, rule)
    except (lookout.LookoutError, OSError, ValueError) as error:
        sys.exit(f"error: {error}")
    if given.page is not None:
        write_clip_page(given.page, past, files, given.question, shlex.join(sys.argv))
    for incident in past.incidents:
        begin_s, end_s = incident.opened_ms / 1000, incident.end_ms / 1000
        print(f"{incident.camera}  {begin_s:6.1f} to {end_s:6.1f} s  peak p(yes) {incident.peak:.2f}")
    for file, reason in past.unread.items():
        print(f"{file}: {reason}", file=sys.stderr)
    print(f"{len(past.incidents)} incidents in {len(files)} files")


if __name__ == "__main__":
    main()
