"""`make bench-recordings`: pruned KV and answers in clips of 20 and of 64 to 256 frames, overlap of decode
and prefill, prefill by length, four workers against one, decode pods, live windows
beside jobs, an hour beside peers, one question beside stock `generate`.

A part for each (recordings_answers, _long, _overlap, _memory, _workers, _layouts, _live, _hour, _question);
each keeps what it measured in --results, so that a run that was stopped continues. The last line is JSON.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch

from bench import (
    recordings_answers as answers,
    recordings_hour as hour,
    recordings_layouts as layouts,
    recordings_live as live,
    recordings_long as long,
    recordings_memory as memory,
    recordings_question as question,
    recordings_workers as workers,
)
from bench.peers import SOURCE, base_clip, repeated
from bench.plots import Lines, line_chart
from bench.recordings_overlap import Overlap
from bench.results import Results
from lookout.recordings import PrefillSettings
from tests.conftest import find_footage
from watchbench.films import HELD_BACK

PARTS = ("answers", "long", "memory", "overlap", "workers", "layouts", "live", "hour", "question")


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
    parser.add_argument("--minutes", type=int, default=60, help="memory: the longest recording")
    parser.add_argument("--recording", type=Path, help="overlap: a file (default: 720p of real footage)")
    parser.add_argument("--seconds", type=int, default=1800, help="overlap: length, one sample a second")
    shipped = PrefillSettings().group_frames
    parser.add_argument("--group", type=int, default=shipped, help="overlap: frames of a group")
    parser.add_argument("--rho", type=float, default=0.2, help="overlap: share of entries kept")
    parser.add_argument(
        "--share",
        type=float,
        default=0.8,
        help="overlap: the fake's prefill takes this share of decoding's time",
    )
    parser.add_argument("--threads", type=int, default=2, help="overlap: decoding threads")
    parser.add_argument("--worker-seconds", type=int, default=1200, help="workers: length of the recording")
    parser.add_argument("--live-rounds", type=int, default=24, help="live: rounds of its three phases")
    parser.add_argument("--question-rounds", type=int, default=9, help="question: rounds of its four calls")
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
    parser.add_argument("--plot", type=Path, help="write the plot into this folder")
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
    out: dict[str, object] = {"paper": memory.paper(), "tables": tables}
    if "answers" in options.only:
        out |= answers.quality(results, options.clips, options.first, options.cells)
        tables["20 frames"] = out.pop("grid")
        if options.plot is not None:
            draw(options.plot, out)
    if "long" in options.only:
        first = options.first + long.FIRST
        out["accuracy_long"], more = long.measured(results, options.lengths, first, within)
        tables |= more
    if "memory" in options.only:
        memory.measure(results, options.minutes, within)
        out["memory"] = memory.table(results)
    footage = find_footage()
    if "overlap" in options.only and footage is None and options.recording is None:
        print("no footage: set LOOKOUT_FOOTAGE for the overlap", file=sys.stderr)
    elif "overlap" in options.only:
        path = options.recording
        if path is None and footage is not None:
            options.keep.mkdir(parents=True, exist_ok=True)
            path = repeated(base_clip(footage / SOURCE, options.keep, "b250", (1280, 720)), options.seconds)
        how = PrefillSettings(options.group, options.rho)
        bench = Overlap(path, options.seconds, how, options.threads, options.share)
        bench.measure(results, within)
        fake = out["fake_accelerator"] = bench.summary(results)
        for name, value in fake.items():
            print(f"  {name}: {value}")
        out["overlap"], out["end_to_end"] = fake.get("efficiency"), fake.get("end_to_end")
    if footage is not None:
        out |= fleet_and_peers(options, results, footage, within)
    order = (
        "overlap",
        "end_to_end",
        "dp",
        "kv",
        "accuracy",
        "accuracy_long",
        "workers",
        "layouts",
        "live",
        "hour_s",
        "question",
    )
    print(json.dumps({**{name: out[name] for name in order if name in out}, **out}))
    return 0


def fleet_and_peers(
    options: argparse.Namespace, results: Results, footage: Path, within: Callable[[], bool]
) -> dict[str, object]:
    """The service of recordings, and an hour beside peers, as far as they were asked for."""
    out: dict[str, object] = {}
    options.keep.mkdir(parents=True, exist_ok=True)
    base = base_clip(footage / SOURCE, options.keep, "b250").resolve()
    seconds = options.worker_seconds
    if "workers" in options.only:
        for share in workers.shares():
            if within():
                workers.measure(results, repeated(base, seconds), seconds, share)
        out["workers"] = workers.summary(results, seconds)
    if "layouts" in options.only:
        if within():
            workers.measure(results, repeated(base, seconds), seconds, "0/1")
            layouts.measure(results, repeated(base, seconds), seconds)
        out["layouts"] = layouts.summary(results, seconds)
    if "live" in options.only:
        if "live" not in results and within():
            results.add("live", live.measure(repeated(base, seconds), options.live_rounds))
        out["live"] = results.found.get("live")
    if "hour" in options.only:
        lengths = (min(options.hour_seconds), max(options.hour_seconds))
        for length in lengths:
            for way in hour.WAYS:
                if within():
                    hour.measure(results, repeated(base, length), length, way, options.threads)
        out["hour_s"] = hour.summary(results, lengths)
    if "question" in options.only:
        out["question"] = question.once(results, repeated(base, question.SECONDS), options.question_rounds)
    return out


def draw(folder: Path, found: dict[str, object]) -> None:
    """|dp| by share kept."""
    main_table = found["dp"]
    assert isinstance(main_table, dict)
    names = next(iter(main_table.values()))
    lines = [Lines(name, [(float(rho), each[name]) for rho, each in main_table.items()]) for name in names]
    folder.mkdir(parents=True, exist_ok=True)
    text = line_chart("Change of p(yes) by share of KV kept", "share kept (rho)", "mean |dp|", lines)
    (folder / "recordings-dp.svg").write_text(text)


if __name__ == "__main__":
    raise SystemExit(main())
