"""A low-rank patch for what reused KV has lost, beside the front run: `python -m bench.kamera`.

Kamera (arXiv 2606.23581) keeps a chunk's KV free of its position and stores with it a patch of rank m, which
turns it into what it would be in another context; it finds that questions of more than one hop need it. Here
a chunk is a stride block, and the context changes when the oldest block leaves the window. Rendered cameras
that the trained tiny model never saw, under the default masks, in windows of 20 and of 80 frames:

- `full`: every row of every window is computed: the reference. `reuse`: nothing is computed again.
- `front 2`, `default` (front 2, and the blocks behind a burst), `front one block`: what the product has.
- `patch m`: of every block that stays, in every layer, the KV it was born with plus the best approximation
  of rank m of the difference to its KV in `full`. A row depends on what stands before it alone, so this is
  what a block's KV would have been had it been born behind the blocks that stay: the patches can be made
  when the block is born, one for each block before it. `patch m, once`: only the first, for one slide.
- `map m`: no patch is made. In the first two windows that slide, a linear map of rank m from a row's KV to
  its difference is fitted for each layer (a key window's audit has both); later windows apply it.
  `front 2, map m`: to the rows that the front run leaves stale.

`rows`: rows computed, patches included, by those of `full`. `bytes`: patches by the KV of a block. `dp`: mean
|p(yes) - p(yes) of full|, by camera, for questions of one hop and of several (order, return, count), with
95 % over cameras, from the third sliding window on. Answers are kept in --keep. The last line is JSON.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from tqdm import tqdm

from bench.results import Results
from bench.windows_fidelity import BLOCKS, Cut, chains, interval, rendered
from lookout.models import find_model
from lookout.models.digest import folder_digest
from lookout.models.engines import Question, WindowRequest
from lookout.models.engines.transformers import TransformersEngine, load_engine
from lookout.models.families import load_tower
from lookout.models.vision import Tower
from lookout.models.windows import (
    DEFAULT_PRESET,
    PRESETS,
    Planner,
    Policy,
    StrideBlock,
    WindowPlan,
    WindowSettings,
)
from lookout.pruning import PrunePolicy
from watchbench.questions import QUESTIONS as KNOWN

QUESTIONS: Final = [Question(one.name, one.text) for one in KNOWN]
HOPS: Final = ("order", "return", "count")
RANKS: Final = (1, 4, 16)
FITTED: Final = 2  #: sliding windows that a map is fitted on; they count for no method
RIDGE: Final = 1e-2  #: of the fit, in units of the rows' mean square
CUTS: Final = {"20": 4, "80": 16}
KV = torch.Tensor  #: [layers, rows, 2 * kv_heads * head_dim], K un-rotated beside V


@dataclass(frozen=True, slots=True)
class Way:
    """How windows are computed: a policy of the product, or reuse with something added to what is reused."""

    policy: Policy = Policy.REUSE_ALL
    frames: int | None = None
    surplus: float | None = None
    rank: int = 0
    slides: int = BLOCKS
    fitted: bool = False


def ways(samples: int) -> dict[str, Way]:
    """Everything that is compared, by name."""
    preset = PRESETS[DEFAULT_PRESET]
    out = {
        "full": Way(Policy.PRUNE_ONLY),
        "reuse": Way(),
        "front 2": Way(Policy.FRONT, 2),
        "default": Way(preset.policy, preset.refresh_frames, preset.refresh_surplus),
        "front one block": Way(Policy.FRONT, samples),
    }
    out |= {f"patch {rank}": Way(rank=rank) for rank in RANKS}
    out["patch 16, once"] = Way(rank=16, slides=1)
    out |= {f"map {rank}": Way(rank=rank, fitted=True) for rank in RANKS}
    out |= {f"front 2, map {rank}": Way(Policy.FRONT, 2, rank=rank, fitted=True) for rank in RANKS}
    return out


@dataclass(slots=True)
class Answered:
    """A camera under one way: p(yes) [windows, questions], and rows computed by all rows of each window."""

    p: list[list[float]] = field(default_factory=list)
    rows: list[float] = field(default_factory=list)


class Chain:
    """One camera's windows under one way, beside the same windows computed whole."""

    def __init__(self, engine: TransformersEngine, way: Way, samples: int) -> None:
        self._engine, self._way = engine, way
        settings = WindowSettings(
            BLOCKS,
            way.policy,
            refresh_frames=way.frames,
            refresh_surplus=way.surplus,
            samples=samples,
            stride_s=samples * 0.5,
        )
        self._planner = Planner(engine.layout, settings)
        self._born: dict[int, KV] = {}
        self._fits: list[tuple[KV, KV]] = []
        self._maps: list[torch.Tensor] = []

    def run(self, blocks: Sequence[StrideBlock], count: int) -> Answered:
        """All windows of the camera, at most `count` behind those that are fitted on."""
        out, plan = Answered(), None
        whole: WindowPlan | None = None
        last = min(len(blocks), BLOCKS + FITTED + count)
        for end in range(BLOCKS, last + 1):
            window = blocks[end - BLOCKS : end]
            plan = self._planner.plan(window, plan, key=plan is None)
            self._engine.run([WindowRequest(plan, window, [], keep=True)])[0].unwrap()
            rows = sum(run.stop - run.start for run in plan.compute)
            if self._way.rank:
                whole = self._whole(window, whole)
                rows += self._patched(plan, whole, end - BLOCKS)
            if end - BLOCKS > FITTED:
                answer = self._engine.ask(plan, QUESTIONS)
                out.p.append([reply.p_yes for reply in answer.answers])
                out.rows.append(rows / plan.rows)
        for stream in {blocks[0].stream, f"whole/{blocks[0].stream}"}:
            self._engine.close_stream(stream)
        return out

    def _whole(self, window: Sequence[StrideBlock], before: WindowPlan | None) -> WindowPlan:
        """The same window, every row computed, under a name of its own; labels go on as in the chain."""
        named = [replace(block, stream=f"whole/{block.stream}") for block in window]
        plan = self._planner.plan(named, before, policy=Policy.PRUNE_ONLY, key=before is None)
        self._engine.run([WindowRequest(plan, named, [], keep=True)])[0].unwrap()
        return plan

    def _patched(self, plan: WindowPlan, whole: WindowPlan, slide: int) -> int:
        """Add to the rows that were reused what the way says; rows that making it computes."""
        spans = spans_of(plan)
        newest = plan.blocks[-1]
        made = 0
        for place, (block, (begin, end)) in enumerate(spans.items()):
            if slide == 0 or block == newest:
                self._born[block] = read(self._engine, plan, begin, end)
                continue
            born, right = self._born[block], read(self._engine, whole, begin, end)
            apart = right - born
            if self._way.fitted:
                if slide <= FITTED:
                    self._fits.append((born, apart))
                    continue
                self._maps = self._maps or fitted(self._fits, self._way.rank)
                patch = torch.stack([rows @ own for rows, own in zip(born, self._maps, strict=True)])
            elif len(spans) - 1 - place <= self._way.slides:
                patch = low_rank(apart, self._way.rank)
                made += end - begin
            else:
                continue
            stale = np.ones(plan.rows, np.bool_)
            for run in plan.compute:
                stale[run.start : run.stop] = False
            own = torch.from_numpy(stale[begin:end])[None, :, None]
            current = read(self._engine, plan, begin, end)
            write(self._engine, plan.stream, begin, torch.where(own, born + patch, current))
        return made


def spans_of(plan: WindowPlan) -> dict[int, tuple[int, int]]:
    """First row and the row behind the last one of every block of a window."""
    out: dict[int, tuple[int, int]] = {}
    for part in plan.parts[1:]:
        begin, _ = out.get(part.block, (part.start, part.stop))
        out[part.block] = begin, part.stop
    return out


def read(engine: TransformersEngine, plan: WindowPlan, begin: int, end: int) -> KV:
    """Some rows' K and V."""
    keys, values = engine.rows(plan, begin, end)
    return torch.cat([part.transpose(1, 2).flatten(2) for part in (keys, values)], 2)


def write(engine: TransformersEngine, stream: str, begin: int, rows: KV) -> None:
    """Put K and V in the place of what a stream has in some rows."""
    kv = engine.kv(stream)
    heads, _, size = kv.keys[0].shape
    with engine.in_turn():  # the engine's tensors are of inference mode
        for layer, own in enumerate(rows):
            keys, values = own.view(len(own), 2, heads, size).permute(1, 2, 0, 3)
            kv.keys[layer][:, begin : begin + len(own)] = keys
            kv.values[layer][:, begin : begin + len(own)] = values


def low_rank(apart: KV, rank: int) -> KV:
    """The best approximation of every layer's difference."""
    u, s, v = torch.linalg.svd(apart, full_matrices=False)
    return (u[..., :rank] * s[..., None, :rank]) @ v[..., :rank, :]


def fitted(pairs: Sequence[tuple[KV, KV]], rank: int) -> list[torch.Tensor]:
    """Of every layer, the map of rank `rank` from a row's KV to its difference, by ridge regression."""
    out = []
    for layer in range(len(pairs[0][0])):
        rows, apart = (torch.cat([pair[side][layer] for pair in pairs]).double() for side in (0, 1))
        gram = rows.T @ rows
        gram += RIDGE * gram.diagonal().mean() * torch.eye(len(gram), dtype=gram.dtype)
        full = torch.linalg.solve(gram, rows.T @ apart)
        # The best of this rank for these rows: what it makes of them is projected.
        _, _, v = torch.linalg.svd(rows @ full, full_matrices=False)
        out.append((full @ v[:rank].T @ v[:rank]).float())
    return out


@dataclass(frozen=True, slots=True)
class Bench:
    """Measures what is not measured yet, in windows of so many samples a block."""

    engine: TransformersEngine
    tower: Tower
    samples: int
    windows: int
    results: Results

    def measured(self, path: Path) -> dict[str, dict[str, Any]]:
        """Every way on one camera."""
        chain = FITTED + 1 + self.windows
        cut = Cut(frames=self.samples, chain=chain, shortest=BLOCKS + FITTED + 1)
        found: dict[str, dict[str, Any]] = {}
        blocks: list[StrideBlock] = []
        for name, way in ways(self.samples).items():
            key = f"{self.samples}, {path.stem}, {name}, {self.windows}"
            if key not in self.results:
                blocks = blocks or chains(path, self.tower, PrunePolicy(), cut)[0]
                answered = Chain(self.engine, way, self.samples).run(blocks, self.windows)
                self.results.add(key, {**asdict(answered), "block": bytes_of(blocks, self.engine)})
            found[name] = self.results.found[key]
        return found


def bytes_of(blocks: Sequence[StrideBlock], engine: TransformersEngine) -> list[float]:
    """Rows of a block and numbers of a row's KV in a layer, for what a patch takes."""
    label = engine.layout.label
    text = (
        len(engine.layout.frame_open)
        + len(engine.layout.frame_close)
        + (0 if label is None else label.tokens)
    )
    rows = [block.tokens + text * len(block.frames) for block in blocks]
    shape = engine.kv_shape
    return [float(np.mean(rows)), float(2 * shape.kv_heads * shape.head_dim)]


def table(cameras: Sequence[dict[str, dict[str, Any]]], samples: int) -> dict[str, dict[str, Any]]:
    """Every way against full windows, over cameras."""
    hops = np.array([one.name in HOPS for one in KNOWN])
    out = {}
    for name, way in ways(samples).items():
        apart = np.array([np.abs(np.array(c[name]["p"]) - np.array(c["full"]["p"])).mean(0) for c in cameras])
        rows, width = np.mean([camera[name]["block"] for camera in cameras], 0)
        patches = 0 if way.fitted or not way.rank else min(way.slides, BLOCKS - 1)
        out[name] = {
            "rows": round(float(np.mean([np.mean(camera[name]["rows"]) for camera in cameras])), 3),
            "bytes": round(patches * way.rank * (rows + width) / (rows * width), 3),
            "one_hop": round(float(apart[:, ~hops].mean()), 4),
            "one_hop_interval": interval(apart[:, ~hops].mean(1)),
            "hops": round(float(apart[:, hops].mean()), 4),
            "hops_interval": interval(apart[:, hops].mean(1)),
        }
    return out


def summary(rows: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """At the longest windows and questions of several hops: what patches cost and give."""
    shown = {"default": "default", "patch": "patch 16", "patch_once": "patch 16, once", "map": "map 4"}
    out = {f"{name}_rows": rows[way]["rows"] for name, way in shown.items()}
    return out | {f"{name}_hops": rows[way]["hops"] for name, way in shown.items()}


def films(folder: Path, cameras: int) -> list[Path]:
    """Rendered cameras that are long enough for windows of 80 frames."""
    return rendered(cameras, folder, Cut(frames=max(CUTS.values()), chain=10))


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--cameras", type=int, default=6)
    parser.add_argument("--windows", type=int, default=7, help="of each camera, behind those fitted on")
    parser.add_argument("--frames", nargs="+", choices=tuple(CUTS), default=list(CUTS))
    parser.add_argument("--keep", type=Path, default=Path("out/kamera"), help="folder for clips and answers")
    options = parser.parse_args()
    torch.set_num_threads(1)
    model = find_model()
    tower, engine = load_tower(model), load_engine(model)
    options.keep.mkdir(parents=True, exist_ok=True)
    results = Results(options.keep / f"results-{folder_digest(model)[:12]}.jsonl")
    tables: dict[str, Any] = {}
    for frames in options.frames:
        samples = CUTS[frames]
        bench = Bench(engine, tower, samples, options.windows, results)
        found = [bench.measured(path) for path in tqdm(films(options.keep, options.cameras), disable=None)]
        tables[f"{frames} frames"] = table(found, samples)
        print(f"{frames} frames:")
        for name, row in tables[f"{frames} frames"].items():
            print(
                f"  {name:18} rows {row['rows']:.3f}  bytes {row['bytes']:.3f}  one hop {row['one_hop']:.4f} "
                f"{row['one_hop_interval']}  several {row['hops']:.4f} {row['hops_interval']}",
                flush=True,
            )
    engine.close()
    print(json.dumps(summary(list(tables.values())[-1]) | {"tables": tables}))


if __name__ == "__main__":
    main()
