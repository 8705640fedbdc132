"""What pruning, refresh and both save against full recompute, for low, middle and high motion.

Run with `make bench-windows` or `python -m tests.bench.windows`. One process, one thread, CPU time: the
ratios hold on a busy machine. The workload is the papers': 40 s windows, 8 s strides, 2 FPS. Keep ratios
come from real clips (`motion.json`).

Time is measured on a random InternVL small enough for a CPU, with the proportions of the full size: 36 tokens
and 3 label rows a frame for 98 and 9, and a feed-forward so wide that attention costs as little beside it as
in a 7B model. Beside the FLOPs of that run stand those of the same plans at full size (98 tokens a frame,
Qwen2.5-7B), without and with InternVL's vision tower (full recompute encodes every frame of every window).

The last line is JSON: per motion level the speed-up over full recompute and the share of FLOPs saved, pruning
and refresh together.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch

from lookout.engines import Cost, Question, WindowRequest
from lookout.engines.costs import window_cost
from lookout.engines.transformers import TransformersEngine, load_engine
from lookout.windows import (
    Block,
    BlockFrame,
    LabelStyle,
    Layout,
    Planner,
    Policy,
    WindowPlan,
    WindowSettings,
    load_layout,
)
from tests.tiny_models import build

FRAMES, BLOCKS = 16, 5
SMALL, WHOLE = (6, 6), (7, 14)
LEVELS = ("low", "middle", "high")
PEERS = (Policy.REUSE_ALL, Policy.CACHEBLEND, Policy.VLCACHE, Policy.RANDOM_K, Policy.PREFIX_K)
# Qwen2.5-7B, the language half of InternVL3-8B, and InternViT-300M: for FLOPs at full size.
QWEN_7B = {"layers": 28, "heads": 28, "kv_heads": 4, "head_dim": 128, "hidden": 3584, "linear": 233_046_016}
VIT_LAYERS, VIT_HIDDEN, VIT_LINEAR, VIT_PATCHES = 24, 1024, 12 * 1024**2, 4
QUESTION = Question("q", "Is anyone lying?")


@dataclass(frozen=True)
class Spent:
    """One policy: CPU seconds and FLOPs of a steady window, the seconds its plan took; FLOPs at full size."""

    seconds: float
    cost: Cost
    planning: float
    language: int
    vision: int


def model(folder: Path, hidden: int, layers: int) -> TransformersEngine:
    """A random InternVL with the proportions of a 7B."""
    shape = {
        "hidden_size": hidden,
        "intermediate_size": 12 * hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": hidden // 64,
        "num_key_value_heads": 2,
    }
    build("internvl", folder, text=shape)
    layout = labelled(load_layout(folder), 0)
    return load_engine(folder, budget_bytes=4 << 30, layout=layout)


def labelled(layout: Layout, extra: int) -> Layout:
    """Labels of three digits and `extra` tokens more; nothing else around a frame."""
    digits = layout.label.digits if layout.label is not None else tuple(range(10))
    label = LabelStyle("frames", digits, 3, head=(70,) * extra)
    return replace(layout, label=label, frame_open=(), frame_close=())


def block(index: int, keep: list[float], hidden: int, grid: tuple[int, int]) -> Block:
    """A block whose frames keep the given shares of their tokens; the first is a whole anchor."""
    draw = np.random.default_rng(index)
    size, frames = grid[0] * grid[1], []
    for number in range(FRAMES):
        share = 1.0 if number == 0 else keep[(index * FRAMES + number) % len(keep)]
        mask = np.zeros(size, bool)
        mask[draw.permutation(size)[: round(share * size)]] = True
        tokens = torch.from_numpy(draw.standard_normal((int(mask.sum()), hidden)).astype(np.float32))
        time_us = (index * FRAMES + number) * 500_000
        frames.append(BlockFrame(time_us, number == 0, mask.reshape(grid), tokens))
    return Block("bench/0", index, tuple(frames))


def measure(engine: TransformersEngine, keep: list[float], policy: Policy, windows: int) -> Spent:
    """Slide over `windows` steady windows after a first full one; medians."""
    planner = Planner(engine.layout, WindowSettings(BLOCKS, policy, key_every=10_000))
    hidden, seconds, planning = engine.model.hidden, [], []
    blocks = [block(index, keep, hidden, SMALL) for index in range(BLOCKS)]
    plan: WindowPlan = planner.plan(blocks)
    if policy is not Policy.FULL:
        engine.run([WindowRequest(plan, blocks, [QUESTION])])[0].unwrap()
    for index in range(BLOCKS, BLOCKS + windows):
        blocks = [*blocks[1:], block(index, keep, hidden, SMALL)]
        start = time.process_time()
        plan = planner.plan(blocks, plan)
        planning.append(time.process_time() - start)
        start = time.process_time()
        answer = engine.run([WindowRequest(plan, blocks, [QUESTION])])[0].unwrap()
        seconds.append(time.process_time() - start)
    engine.close_stream("bench/0")
    language, vision = full_size(engine.layout, keep, policy)
    return Spent(statistics.median(seconds), answer.cost, statistics.median(planning), language, vision)


def full_size(layout: Layout, keep: list[float], policy: Policy) -> tuple[int, int]:
    """FLOPs of the same steady window at full size, language model and vision tower."""
    planner = Planner(replace(labelled(layout, 6), layers=QWEN_7B["layers"]), WindowSettings(BLOCKS, policy))
    blocks = [block(index, keep, 1, WHOLE) for index in range(BLOCKS + 1)]
    first = planner.plan(blocks[:-1], key=True)
    plan = planner.plan(blocks[1:], first, key=False)
    seen = blocks[1:] if policy in (Policy.FULL, Policy.PRUNE_ONLY) else blocks[-1:]
    patches = [VIT_PATCHES * frame.tokens.shape[0] + 1 for one in seen for frame in one.frames]
    vision = sum(VIT_LAYERS * (2 * VIT_LINEAR * n + 4 * VIT_HIDDEN * n * n) for n in patches)
    return window_cost(plan, [12], kv_bytes=0, **QWEN_7B).total_flops, vision


def questions(engine: TransformersEngine, keep: list[float]) -> dict[str, float]:
    """What questions cost, in shares of computing their (pruned) window."""
    planner = Planner(engine.layout, WindowSettings(BLOCKS, key_every=10_000))
    blocks = [block(index, keep, engine.model.hidden, SMALL) for index in range(BLOCKS)]
    plan = planner.plan(blocks)
    start = time.process_time()
    engine.run([WindowRequest(plan, blocks)])[0].unwrap()
    window = time.process_time() - start
    asked: dict[int, float] = {}
    for count in (1, 1, 2, 10, 50):
        plan = planner.hold(plan)
        request = WindowRequest(plan, (), [Question(str(i), QUESTION.text) for i in range(count)])
        start = time.process_time()
        engine.run([request])[0].unwrap()
        asked[count] = time.process_time() - start
    engine.close_stream("bench/0")
    each = (asked[50] - asked[1]) / 49
    return {"first": asked[1] / window, "each_2nd_to_50th": each / window, "all_50": asked[50] / window}


def levels(path: Path) -> dict[str, list[float]]:
    """The keep ratios per frame of the three levels."""
    told = json.loads(path.read_text())
    return {level: [float(share) for share in told[level]["keep"]] for level in LEVELS}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--hidden", type=int, default=384)
    parser.add_argument("--layers", type=int, default=6)
    parser.add_argument("--windows", type=int, default=2, help="steady windows per policy")
    parser.add_argument("--motion", type=Path, default=Path(__file__).with_name("motion.json"))
    parser.add_argument("--no-peers", action="store_true", help="leave the peer policies out")
    options = parser.parse_args()
    torch.set_num_threads(1)
    shares = levels(options.motion)
    out: dict[str, dict[str, float]] = {}
    with tempfile.TemporaryDirectory() as folder:
        engine = model(Path(folder), options.hidden, options.layers)
        dense = [1.0]
        full = measure(engine, dense, Policy.FULL, options.windows)
        refresh = measure(engine, dense, Policy.REFRESH, options.windows)
        header()
        show("all", "full", full, full)
        show("all", "refresh", refresh, full)
        for level, keep in shares.items():
            prune = measure(engine, keep, Policy.PRUNE_ONLY, options.windows)
            both = measure(engine, keep, Policy.REFRESH, options.windows)
            show(level, "prune-only", prune, full)
            show(level, "prune+refresh", both, full)
            if not options.no_peers:
                for peer in PEERS:
                    show(level, peer.value, measure(engine, keep, peer, options.windows), full)
            out[level] = {
                "speedup": round(full.seconds / both.seconds, 2),
                "flops": round(1 - both.cost.total_flops / full.cost.total_flops, 4),
            }
        print(
            "questions, as shares of a full pruned window (low):", rounded(questions(engine, shares["low"]))
        )
        engine.close()
    print(json.dumps(out))


def header() -> None:
    """The table's head."""
    print(f"{'motion':8} {'policy':14} {'rows':>6} {'kept':>6} {'token-layers':>12} {'speed-up':>9} "
          f"{'FLOPs saved':>12} {'at 7B':>8} {'+ vision':>9} {'planning':>9}")  # fmt: skip


def show(level: str, name: str, spent: Spent, full: Spent) -> None:
    """One row of the table; everything against full recompute of the dense window."""
    cost = spent.cost
    computed = cost.tokens_new + cost.tokens_refreshed
    print(
        f"{level:8} {name:14} {computed:6d} {cost.tokens_kept:6d} {cost.token_layers:12d} "
        f"{full.seconds / spent.seconds:9.2f} {1 - cost.total_flops / full.cost.total_flops:12.1%} "
        f"{1 - spent.language / full.language:8.1%} "
        f"{1 - (spent.language + spent.vision) / (full.language + full.vision):9.1%} "
        f"{spent.planning / spent.seconds:9.2%}",
        flush=True,
    )


def rounded(values: dict[str, float]) -> dict[str, float]:
    """Shares with four digits."""
    return {name: round(value, 4) for name, value in values.items()}


if __name__ == "__main__":
    main()
