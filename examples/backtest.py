"""Try a question and a rule on a folder of recordings before you switch it on.

python examples/backtest.py recordings/ "Is anyone lying on the ground?" --threshold 0.7 --of 2/3
"""

import argparse
from collections.abc import Iterator
from pathlib import Path

import lookout
from lookout import rules


def incidents(pipeline: lookout.Pipeline, path: Path, rule: rules.Rule) -> Iterator[rules.IncidentEvent]:
    """The incidents that the rule makes of one file; times are milliseconds from its start."""
    state: rules.WatchState | None = None
    for number, verdict in enumerate(pipeline.watch(path)):
        answer = rules.Verdict(
            camera=path.stem,
            epoch=1,
            window=number,
            watch=verdict.question,
            version=1,
            outcome=rules.Outcome.ANSWERED,
            p_yes=verdict.p_yes,
            start_ms=round(verdict.start * 1000),
            end_ms=round(verdict.time * 1000),
            rule=rule,
        )
        state, events = rules.step(state, answer, f"{path.stem}-{number}")
        yield from events


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
    pipeline = lookout.Pipeline(questions=[given.question])
    rule = rules.Rule(threshold=given.threshold, k=k, n=n)
    files = sorted(path for path in given.folder.iterdir() if path.suffix in (".mp4", ".mkv", ".ts", ".avi"))
    opened = 0
    for path in files:
        for event in incidents(pipeline, path, rule):
            opened += event.kind is rules.EventKind.OPENED
            print(
                f"{path.name}  {event.end_ms / 1000:6.1f} s  {event.kind}  p(yes) {event.incident.score:.2f}"
            )
    print(f"{opened} incidents in {len(files)} files")


if __name__ == "__main__":
    main()
