"""What a back-test computes, as a share of asking every window whole, and whether it says what was committed.

Cameras are watched by the handlers of decode, prune-encode and prefill in one process. Then the question is
asked once more of what they saw, as a job in parts, in a random order. A watch that was enabled must get its
committed p(yes). The cost is that of a question that was not asked. Tokens are held; `made_again` is the
share where the vision tower encodes every kept patch again. KV is computed again in either case: born KV
is not that of a window. The last line is JSON.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
from collections.abc import Iterable
from contextlib import closing
from importlib.resources import files
from pathlib import Path

from bench.motion import MOVING, clips_of, footage
from lookout.models import DEMO_QUESTIONS, TINY
from lookout.models.engines import load_engine
from lookout.models.windows import Planner
from lookout.past.backtests import PastWindows
from lookout.past.backtests.answers import answer_of
from lookout.past.backtests.jobs import plan_backtest, run_part
from lookout.recordings.jobs import planned_part
from lookout.streams.chains import ChainRange, load_block, plan_digest
from lookout.v1.recordings_pb2 import BacktestAnswer, BacktestJob, PartOutcome, RecordingJob
from lookout.v1.watches_pb2 import Rule, Watch
from lookout.video.segments import cut
from lookout.wire import TOKENS
from tests.one_process_fleet import FleetLog, OneProcessFleet

RULE = Rule(threshold=0.5, k=2, n=3)
ENABLED = Watch(id="lying", version=1, question=DEMO_QUESTIONS["lying"], rule=RULE)
NEW = Watch(id="person", version=1, question=DEMO_QUESTIONS["person"], rule=RULE)
#: difference of p(yes) that float32 in another order explains
EQUAL = 1e-4


def watched(clip: Path, seconds: float) -> OneProcessFleet:
    """A camera that shows a clip, with one watch."""
    fleet = OneProcessFleet(TINY, ENABLED, camera=clip.stem)
    for piece in cut(clip):
        if piece.start_us < seconds * 1e6:
            fleet.send(piece.data)
    fleet.end()
    return fleet


def backtested(fleet: OneProcessFleet, watch: Watch) -> tuple[BacktestAnswer, dict[int, float]]:
    """The answer of a job, and p(yes) by window."""
    with closing(load_engine(TINY)) as engine:
        planner = Planner(engine.layout, fleet.settings.windows)
        windows = PastWindows(
            fleet.settings,
            engine,
            planner,
            lambda record: load_block(record, fleet.client, fleet.settings.step_us).block,
            fleet.digest,
        )
        end = len(fleet.topics[TOKENS.name])
        job = RecordingJob(id="bench", backtest=BacktestJob(watch=watch))
        plan = plan_backtest(job, {0: ChainRange(0, 0, end)}, now_ms=0, most_parts=4)
        digest = plan_digest(planner, reuse=fleet.settings.reuse)
        outcomes: dict[int, PartOutcome] = {}
        for number in random.Random(1).sample(range(plan.parts), plan.parts):
            part = planned_part(plan, number, home=0)
            past = run_part(part.backtest, FleetLog(fleet), windows, plan_digest=digest)
            outcomes[number] = PartOutcome(number=number, backtest=past)
    p_yes = {
        verdict.window: verdict.p_yes
        for outcome in outcomes.values()
        for stream in outcome.backtest.streams
        for verdict in stream.verdicts
        if verdict.HasField("p_yes")
    }
    return answer_of(plan, lambda numbers: [outcomes[number] for number in numbers]), p_yes


def measure(clips: Iterable[Path], seconds: float) -> dict[str, float]:
    """The figures, and a line for each clip."""
    equal = differ = flops = dense = vision = 0
    for clip in clips:
        fleet = watched(clip, seconds)
        committed = {verdict.window: verdict.p_yes for verdict in fleet.verdicts if verdict.HasField("p_yes")}
        _, again = backtested(fleet, ENABLED)
        same = sum(abs(again.get(window, 2.0) - p_yes) <= EQUAL for window, p_yes in committed.items())
        equal, differ = equal + same, differ + len(committed.keys() | again.keys()) - same
        answer, _ = backtested(fleet, NEW)
        encoded = sum(record.block.flops_vision for record in fleet.tokens)
        fleet.close()
        cost = answer.cost
        flops, dense, vision = flops + cost.flops, dense + cost.flops_dense, vision + encoded
        row = {"clip": clip.stem, "windows": len(committed), "share": round(cost.flops / cost.flops_dense, 4)}
        sys.stdout.write(json.dumps(row) + "\n")
        sys.stdout.flush()
    return {
        "share_of_dense": round(flops / dense, 4),
        "made_again": round((flops + vision) / dense, 4),
        "equal": equal,
        "differ": differ,
    }


def main() -> None:
    """Run, and print what came of it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0, help="of each clip")
    parser.add_argument("--clips", type=int, default=6, help="films that come along, then real clips")
    options = parser.parse_args()
    films = sorted((Path(str(files("watchbench"))) / "films").glob("*.mp4"))
    root = footage()
    fixed = [] if root is None else [path for path in clips_of(root) if path.parent.name == "fixed"]
    real = [path for path in fixed if path.stem not in MOVING and path.suffix == ".mp4"]
    figures = measure([*films, *real][: options.clips], options.seconds)
    sys.stdout.write(json.dumps(figures) + "\n")
    sys.exit(1 if figures["differ"] else 0)


if __name__ == "__main__":
    main()
