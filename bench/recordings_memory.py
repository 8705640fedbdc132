"""Time and memory of prefill by length, beside the paper's formulas: `make bench-recordings`, its third part.

A small random model of InternVL's shape prefills up to an hour at 1 FPS, in one shot and in groups, with and
without pruning. Time is CPU seconds; memory is the most bytes of tensors alive at once, KV left out, as torch
makes them. The formulas are those of sections D.1 (activations) and D.2 (KV) with this model's numbers.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from tqdm import tqdm

from bench.results import Results
from lookout.models.engines.transformers import TransformersEngine, load_engine
from lookout.models.engines.transformers.prefill import GroupPrefill
from lookout.models.windows import EncodedFrame
from lookout.recordings import GroupPlanner, PrefillSettings, grouped
from tests.meter import Meter
from tests.tiny_models import checkpoint

GIB = 1 << 30
MINUTES = (1, 5, 15, 30, 60)
GROUP = 16
CELLS = (1, 1)  # visual tokens of a frame: an hour of one-shot attention must end on one core


@dataclass(frozen=True)
class Way:
    """How a recording is prefilled; `group` None: in one shot."""

    group: int | None
    rho: float

    @property
    def name(self) -> str:
        """For people."""
        return "one shot" if self.group is None else f"groups of {self.group}, rho {self.rho:g}"


WAYS = (Way(None, 1.0), *(Way(GROUP, rho) for rho in (1.0, 0.5, 0.2)))


def frames(engine: TransformersEngine, count: int, cells: tuple[int, int] = CELLS) -> Iterator[EncodedFrame]:
    """Random tokens, one frame a second."""
    draw = torch.Generator().manual_seed(0)
    for number in range(count):
        tokens = torch.randn(cells[0] * cells[1], engine.model.hidden, generator=draw)
        yield EncodedFrame(number * 1_000_000, number == 0, np.ones(cells, bool), tokens)


def prefill(engine: TransformersEngine, minutes: int, way: Way) -> dict[str, float]:
    """One prefill: rows, CPU seconds, FLOPs, bytes of activations and of KV."""
    count = 60 * minutes
    how = PrefillSettings(way.group or count, way.rho)
    layout = replace(engine.layout, positions=replace(engine.layout.positions, limit=1 << 30))
    planner = GroupPlanner(layout, how, count, float(count))
    rows = planner.rows(count, CELLS[0] * CELLS[1])
    run = GroupPrefill(engine, how, expected_rows=rows)
    flops = 0
    begun = time.process_time()
    with Meter() as meter:
        for group in grouped(frames(engine, count), how.group_frames):
            flops += run.add(planner.plan("recording", group, run.last), group).flops
        held = sum(p.untyped_storage().nbytes() for p in (*run.kv.keys, *run.kv.values, *run.kv.entries))
        peak = meter.peak - held
    return {
        "rows": rows,
        "cpu_s": round(time.process_time() - begun, 3),
        "gflops": round(flops / 1e9, 2),
        "activations": peak,
        "kv": run.kv.kv_bytes,
    }


def formulas(engine: TransformersEngine, rows: int, total: int, rho: float) -> dict[str, float]:
    """Bytes by the paper: D.1's activations of a pass of so many rows (Equation 4 without its block of
    scores, and Equation 9) and D.2's KV of so many rows in all, in float32."""
    model = engine.model
    mlp = max(each.shape[0] for each in model.layers[0].parameters())
    return {
        "attention": 3 * rows * model.heads * model.head_dim * 4,
        "mlp": rows * (2 * model.hidden + 4 * mlp) * 4,
        "kv": round(2 * len(model.layers) * total * model.kv_heads * model.head_dim * 4 * rho),
    }


def measure(results: Results, minutes: int, within: Callable[[], bool]) -> None:
    """Every length up to `minutes` that is not measured yet, the short ones first."""
    jobs = [(m, way) for m in MINUTES if m <= minutes for way in WAYS]
    if all(_name(*job) in results for job in jobs):
        return
    engine = load_engine(checkpoint("internvl"))
    for m, way in tqdm(jobs, unit="prefill"):
        if _name(m, way) in results or not within():
            continue
        found = prefill(engine, m, way)
        rows = int(found["rows"])
        at_once = rows if way.group is None else rows * way.group // (60 * m)
        results.add(_name(m, way), {**found, "formula": formulas(engine, at_once, rows, way.rho)})
    engine.close()


def table(results: Results) -> dict[str, Any]:
    """What was measured, by minutes and way; printed as a table."""
    out: dict[str, Any] = {}
    print(
        f"{'':32}{'rows':>8}{'CPU s':>9}{'GFLOP':>10}{'activations':>13}{'D.1':>9}{'KV':>8}{'D.2':>9}  (MiB)"
    )
    for minutes in MINUTES:
        for way in WAYS:
            found = results.found.get(_name(minutes, way))
            if found is None:
                continue
            formula = found["formula"]
            peak = max(formula["attention"], formula["mlp"])
            sizes = [each / (1 << 20) for each in (found["activations"], peak, found["kv"], formula["kv"])]
            cells = f"{sizes[0]:13.2f}{sizes[1]:9.2f}{sizes[2]:8.2f}{sizes[3]:9.2f}"
            name = f"{minutes} min, {way.name}"
            print(f"{name:32}{found['rows']:8}{found['cpu_s']:9.2f}{found['gflops']:10.1f}{cells}")
            out[name] = found
    return out


def _name(minutes: int, way: Way) -> str:
    return f"memory {minutes} min, {way.name}"


def paper() -> dict[str, Any]:
    """Sections D.1 and D.2 for an hour at 1 FPS, and by the same formulas what groups of 16 and rho leave.
    The paper's figures: 21.1 GB and 112.5 GB of activations, 393.9 GB of KV (in GiB, float16; its 21.1 is
    a third of what its own formula gives)."""
    tokens, width, mlp, layers = 3600 * 256, 4096, 14336, 28
    kv = 2 * layers * (tokens + 256) * width * 2 / GIB
    out: dict[str, Any] = {}
    for name, rows in (("one shot", tokens), ("groups of 16", GROUP * 256)):
        attention = (3 * rows * width + 8 * 1024 * 1024) * 2 / GIB
        whole = rows * (2 * width + 4 * mlp) * 2 / GIB
        out[name] = {"attention_gib": round(attention, 2), "mlp_gib": round(whole, 2)}
    out["kv_gib"] = {f"rho {rho:g}": round(kv * rho, 1) for rho in (1.0, 0.5, 0.2)}
    return out
