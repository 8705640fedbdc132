"""Try a question and a rule on recordings before you enable a watch.

python examples/backtest.py recordings/ "Is anyone lying on the ground?" --threshold 0.7 --of 2/3

`--page FILE.html` writes a page that shows the incidents with pictures. `lookout backtest` does the same for
the past of a fleet's cameras.
"""

import argparse
import shlex
import sys
from pathlib import Path

import lookout
from lookout import rules
from lookout.cli.options import WEB_PAGES, check_page
from lookout.cli.report import write_clip_page
from lookout.past.backtests import clip_backtest, clip_cameras


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("recordings", type=Path, help="a video file, or a folder of them")
    parser.add_argument("question", help="a yes/no question")
    parser.add_argument(
        "--threshold", type=float, default=0.5, help="p(yes) from which an answer counts as yes"
    )
    parser.add_argument(
        "--of", default="1/1", help="K/N: an incident opens when K of the last N windows say yes"
    )
    parser.add_argument(
        "--page", type=Path, help="file (.html) for a page that shows the incidents with pictures"
    )
    given = parser.parse_args()
    try:
        check_page(given.page, WEB_PAGES)
        rule = rule_of(given.threshold, given.of)
        with lookout.Pipeline(questions=[given.question]) as pipeline:
            past = clip_backtest(pipeline, given.recordings, rule)
        if given.page is not None:
            write_clip_page(given.page, past, given.recordings, given.question, shlex.join(sys.argv))
    except (lookout.LookoutError, OSError) as error:
        sys.exit(f"error: {error}")
    for incident in past.incidents:
        begin_s, end_s = incident.opened_ms / 1000, incident.end_ms / 1000
        print(f"{incident.camera}  {begin_s:6.1f} to {end_s:6.1f} s  peak p(yes) {incident.peak:.2f}")
    for file, reason in past.unread.items():
        print(f"{file}: {reason}", file=sys.stderr)
    print(f"{len(past.incidents)} incidents in {len(clip_cameras(given.recordings))} files")
    print(
        f"{past.cost.cpu_s:.1f} s of processor time, "
        f"{past.dense_share:.0%} of the FLOPs of every window in full"
    )


def rule_of(threshold: float, of: str) -> rules.Rule:
    """Return the rule that the options describe.

    Raises:
        RuleError: The options are not a valid rule.
    """
    try:
        k, n = map(int, of.split("/"))
    except ValueError:
        raise rules.RuleError(f"--of {of[:40]!r} is not K/N, such as 2/3") from None
    return rules.Rule(threshold=threshold, k=k, n=n)


if __name__ == "__main__":
    main()
