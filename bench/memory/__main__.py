"""Mosaic's figures, side by side with other methods, in one resumable run.

Run `make bench-memory` or `python -m bench.memory`. Every unit of work (a stream, a length) writes a file
under `out/bench-memory/` and is not repeated; `--minutes` ends a run early, and the next run continues;
`--only` selects units. Time is this thread's CPU time.

Streams are rendered cameras (`streams.py`) at one sample every two seconds, seen by the trained tiny model.
With an equal budget, 64 frames of tokens in every layer, each policy reads an hour of history:

- none: only the window
- newest, uniform, random frames: born KV of those frames
- token, frame: ReKV's two levels; exact: what attention over everything weighs most
- agnostic: as StreamMem, independent of the question; compressed: LiveVLM's scheme
- visual, semantic: only one level of clusters; random clusters: our clusters, drawn at random
- mosaic: the preset `mosaic`; ours: the default preset

`recall` is the share of the exact top-k that a policy read. `mass` is the attention on what it read over that
on the exact top-k. `evidence` is the share of tokens from frames that show the episode in question (limited
by the budget). All are means over layers. `dp` is the mean |difference of p(yes)| from attention over
everything. Intervals are bootstrap 95 % over streams and questions. `accuracy` is for questions about the
past (`history.py`): of two histories, one of which shows the episode in question, one to sixty minutes ago,
how often that one gets the higher p(yes) (chance: 0.5, which a policy that reads only the window must get).

`cuts`: a stream whose scene changes every minute, separate from all others (figure 13).

`rules`: other retrieval rules on questions about the past, on six further streams (`rules.py`).

`rivals`: HERMES and SimpleStream on questions about the past (`rivals.py`).

`schemes`: time to the first token with every scheme over that of the default, taken in turn, and what
deferred splits save (`schemes.py`).

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
