"""Mosaic's figures, side by side with what it has to beat, in one resumable run.

`make bench-memory` or `python -m bench.memory`. Every unit of work (a stream, a length) writes a file
under `out/bench-memory/` and is not done again; `--minutes` ends a run early, the next one continues;
`--only` picks units. Time is this thread's CPU time.

Streams are rendered cameras (`streams.py`) at one sample every two seconds, seen by the trained tiny model.
At equal budget, 64 frames of tokens in every layer, each policy reads an hour of history:

- none: the window alone
- newest, uniform, random frames: born KV of those frames
- token, frame: ReKV's two levels; exact: what attention over everything weighs most
- agnostic: StreamMem-style, kept whatever is asked; compressed: LiveVLM's scheme
- visual, semantic: one level of clusters only; random clusters: ours, drawn
- mosaic: the preset of that name; ours: the default preset

`recall` is the share of the exact top-k that a policy read, `mass` the attention it caught of what the exact
top-k caught, `evidence` the share of tokens of frames that show the asked-for thing (bounded by the budget),
all means over layers; `dp` the mean |difference| of p(yes) to attention over everything. Intervals are
bootstrap 95 % over streams and questions. `accuracy` is of questions about the past (`history.py`): how often
the history of two that shows the asked-for thing, one to sixty minutes ago, gets the higher p(yes) (0.5:
chance, which the window alone has to score).

`cuts`: a stream whose scene changes every minute, apart from all others (figure 13).

`rules`: other rules of retrieval on questions about the past, on six streams more (`rules.py`).

`rivals`: HERMES and SimpleStream on questions about the past (`rivals.py`).

`schemes`: first token of every scheme over the default's, turn by turn, and what late splits save
(`schemes.py`).

Settings were chosen on the streams `TUNING` (`--tuning` reads those instead), which are not reported.

The last line is JSON: {"recall": {policy: x}, "evidence": {policy: x}, "accuracy": {policy: x},
"splits_deferred": x, "prefetch_hits": x}.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from tqdm import tqdm

from bench.memory.history import history
from bench.memory.quality import quality
from bench.memory.report import report
from bench.memory.rivals import rivals
from bench.memory.rules import rules
from bench.memory.schemes import schemes
from bench.memory.streams import CUTS, QUALITY, RULES, TUNING
from bench.memory.world import World
from lookout.models.engines.transformers.memory import Clock


def units(tuning: bool = False) -> dict[str, Callable[[World], dict[str, Any]]]:
    """Every unit of work by its name; those of tuning are of other streams."""
    out: dict[str, Callable[[World], dict[str, Any]]] = {}
    for spec in TUNING if tuning else QUALITY:
        out[f"quality {spec.name}"] = lambda world, spec=spec: quality(world, spec)  # type: ignore[misc]
    if tuning:
        return out
    for spec in QUALITY:
        out[f"history {spec.name}"] = lambda world, spec=spec: history(world, spec)  # type: ignore[misc]
    for spec in QUALITY:
        out[f"schemes {spec.name}"] = lambda world, spec=spec: schemes(world, spec)  # type: ignore[misc]
    for spec in QUALITY:
        out[f"rivals {spec.name}"] = lambda world, spec=spec: rivals(world, spec)  # type: ignore[misc]
    for spec in RULES:
        out[f"rules {spec.name}"] = lambda world, spec=spec: rules(world, spec)  # type: ignore[misc]
    for spec in CUTS:
        for kind, run in (("quality", quality), ("history", history), ("schemes", schemes)):
            out[f"cuts {kind} {spec.name}"] = lambda world, spec=spec, run=run: run(world, spec)  # type: ignore[misc]
    return out


def main() -> None:
    """Run what is not done yet, then report."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, default=Path("out/bench-memory"), help="where results are kept")
    parser.add_argument("--minutes", type=float, default=1e9, help="begin no unit after so many minutes")
    parser.add_argument(
        "--only", default="", nargs="*", help="only units whose name begins with one of these"
    )
    parser.add_argument(
        "--tuning", action="store_true", help="what is read of the streams for tuning instead"
    )
    options = parser.parse_args()
    work = units(options.tuning)
    torch.set_num_threads(1)
    Clock.now = staticmethod(time.thread_time)
    begun = time.monotonic()
    options.out.mkdir(parents=True, exist_ok=True)
    told: dict[str, Any] = {}
    world: World | None = None
    for name, run in tqdm(work.items(), desc="units"):
        path = options.out / f"{name.replace(' ', '-')}.json"
        wanted = (
            name.startswith(tuple(options.only or [""])) and time.monotonic() - begun < options.minutes * 60
        )
        if not path.is_file() and wanted:
            world = world or World(options.out)
            result = json.dumps(run(world))
            path.with_suffix(".part").write_text(result)
            path.with_suffix(".part").replace(path)
        if path.is_file():
            told[name] = json.loads(path.read_text())

    def done(prefix: str) -> list[dict[str, Any]]:
        return [row for name, row in told.items() if name.startswith(prefix)]

    cuts = {kind: done(f"cuts {kind}") for kind in ("quality", "history", "schemes")}
    further = {kind: done(kind) for kind in ("rivals", "rules")}
    line = report(done("quality"), done("history"), done("schemes"), cuts, further)
    print(json.dumps({"bench": "memory", "units": f"{len(told)} of {len(work)}", **line}))


if __name__ == "__main__":
    main()
