"""What pruning, refresh and both save against full recompute, for low, middle and high motion.

Run with `make bench-windows` or `python -m bench.windows`. One process, one thread, CPU time: the
ratios hold on a busy machine. The workload is the papers': 40 s windows, 8 s strides, 2 FPS. Shares of kept
tokens come from real clips (`motion.json`), under three kinds of mask: the default (pixels, since encoded),
motion vectors since the anchor (the paper), motion vectors since encoded.

Time is measured on a random InternVL small enough for a CPU, with the proportions of the full size: 36 tokens
and 3 label rows a frame for 98 and 9, and a feed-forward so wide that attention costs as little beside it as
in a 7B model. Beside the FLOPs of that run stand those of the same plans at full size (98 tokens a frame,
Qwen2.5-7B), without and with InternVL's vision tower (full recompute encodes every frame of every window).

Every figure is the mean over one cycle of the clip (five windows): strides differ in how much moves in them.
Key windows are counted in: of every 30 windows one is computed in full, under the same masks.

The last line is JSON: per motion level and setting the speed-up over full recompute, the share of FLOPs saved
and the share of a window's time that planning takes; `targets` says which targets are met.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from tqdm import tqdm

from bench.shapes import QWEN_7B, VIT_300M
from lookout.models.engines import Cost, Question, WindowRequest
from lookout.models.engines.costs import window_cost
from lookout.models.engines.transformers import TransformersEngine
from lookout.models.engines.transformers.model import take_language_model
from lookout.models.families import load_layout
from lookout.models.flops import DecoderShape
from lookout.models.windows import (
    DEFAULT_PRESET,
    PRESETS,
    EncodedFrame,
    LabelStyle,
    Layout,
    Planner,
    Policy,
    StrideBlock,
    WindowPlan,
    WindowSettings,
)
from tests.tiny_models import checkpoint

FRAMES, BLOCKS, STRIDE_S = 16, 5, 8.0
SMALL, WHOLE = (6, 6), (7, 14)
LEVELS = ("low", "middle", "high")
WHOLE_WINDOWS = {Policy.FULL, Policy.PRUNE_ONLY}
PEERS = (Policy.REUSE_ALL, Policy.CACHEBLEND, Policy.VLCACHE, Policy.RANDOM_K)
PERIOD = WindowSettings().key_every  # one window in so many is a key window
TARGETS = {"low": (6.0, 0.92), "high": (3.0, 0.80)}  # speed-up, FLOPs saved at full size
OVERHEAD = 0.01  # of a window's time for planning
VIT_PATCHES = 4  # behind one visual token of InternViT-300M
QUESTION = Question("q", "Is anyone lying?")


@dataclass(frozen=True)
class Spent:
    """One policy: mean CPU seconds and costs of steady windows, the seconds a plan
    took; mean FLOPs at full size."""

    seconds: float
    costs: list[Cost]
    planning: float
    language: float = 0.0
    vision: float = 0.0
    mean_flops: float = 0.0

    @property
    def flops(self) -> float:
        """Of a window, on average."""
        return self.mean_flops or statistics.fmean(cost.total_flops for cost in self.costs)


SHAPES = {
    "tiny": {"hidden": 64, "intermediate": 128, "layers": 2, "heads": 2, "kv_heads": 1},
    "small": {"hidden": 256, "intermediate": 3072, "layers": 4, "heads": 4, "kv_heads": 2},
    "7b": {"hidden": 3584, "intermediate": 18944, "layers": 28, "heads": 28, "kv_heads": 4},
}


def model(
    shape: str, device: torch.device, dtype: torch.dtype, *, layers: int | None = None
) -> TransformersEngine:
    """A random InternVL of a shape, made where it will run; its prompt with the labels of that size. With
    `layers`, only so many decoder layers."""
    told = SHAPES[shape] | ({} if layers is None else {"layers": layers})
    folder = checkpoint("internvl")
    # Not at the head: stock models import compilers, and tests read this module's plans alone.
    from transformers import AutoConfig, AutoModelForImageTextToText, AutoTokenizer

    config = AutoConfig.from_pretrained(folder)
    text = config.text_config
    text.hidden_size, text.intermediate_size = told["hidden"], told["intermediate"]
    text.num_attention_heads, text.num_key_value_heads = told["heads"], told["kv_heads"]
    text.num_hidden_layers = text.max_window_layers = told["layers"]
    text.layer_types = ["full_attention"] * told["layers"]
    with device:
        whole = AutoModelForImageTextToText.from_config(config, dtype=dtype)
    layout = replace(load_layout(folder), layers=told["layers"])
    return TransformersEngine(
        take_language_model(whole, "internvl", device),
        labelled(layout, 6 if shape == "7b" else 0),
        AutoTokenizer.from_pretrained(folder),
        budget_bytes=16 << 30,
    )


def labelled(layout: Layout, extra: int) -> Layout:
    """Labels of three digits and `extra` tokens more; nothing else around a frame."""
    digits = layout.label.digits if layout.label is not None else tuple(range(10))
    label = LabelStyle("frames", digits, 3, head=(70,) * extra)
    return replace(layout, label=label, frame_open=(), frame_close=())


def now(device: torch.device) -> float:
    """CPU seconds of this process; on an accelerator the wall clock, after its work is done."""
    if device.type == "cpu":
        return time.process_time()
    torch.cuda.synchronize(device)
    return time.perf_counter()


def block(index: int, keep: list[float], hidden: int, grid: tuple[int, int]) -> StrideBlock:
    """A block whose frames keep the given shares of their tokens; the first is a whole anchor."""
    draw = np.random.default_rng(index)
    size, frames = grid[0] * grid[1], []
    for number in range(FRAMES):
        share = 1.0 if number == 0 else keep[(index * FRAMES + number) % len(keep)]
        mask = np.zeros(size, bool)
        mask[draw.permutation(size)[: round(share * size)]] = True
        tokens = torch.from_numpy(draw.standard_normal((int(mask.sum()), hidden)).astype(np.float32))
        time_us = (index * FRAMES + number) * 500_000
        frames.append(EncodedFrame(time_us, number == 0, mask.reshape(grid), tokens))
    return StrideBlock("bench/0", index, tuple(frames))


def ways() -> dict[str, tuple[str, WindowSettings]]:
    """The settings compared: which masks, and how windows are computed."""
    front = PRESETS[DEFAULT_PRESET]

    def budget(frames: int) -> WindowSettings:
        return replace(front, policy=Policy.FRONT, refresh_frames=frames, refresh_surplus=None)

    return {
        "default": ("default", front),
        "default, whole windows": ("default", PRESETS["whole"]),
        **{f"default masks, {frames} frames": ("default", budget(frames)) for frames in (0, 1, 2, 4, 8)},
        **{f"vectors, encoded, {frames}": ("since_encoded", budget(frames)) for frames in (1, 2, 4)},
        "codecsight": ("keep", PRESETS["codecsight"]),
    }


def measure(
    engine: TransformersEngine,
    keep: list[float],
    policies: Sequence[Policy],
    windows: int,
    base: WindowSettings | None = None,
) -> dict[Policy, Spent]:
    """Every policy from the same key window, over `windows` steady windows; means."""
    settings = replace(
        base or WindowSettings(),
        blocks=BLOCKS,
        key_every=PERIOD,
        samples=FRAMES,
        stride_s=STRIDE_S,
    )
    planner, grid = Planner(engine.layout, settings), grid_of(engine)
    blocks = [block(index, keep, engine.model.hidden, grid) for index in range(BLOCKS + windows)]
    key = planner.plan(blocks[:BLOCKS], key=True)
    engine.run([WindowRequest(key, blocks[:BLOCKS], [QUESTION])])[0].unwrap()
    held = engine.kv("bench/0")
    keys, values = [part.clone() for part in held.keys], [part.clone() for part in held.values]
    out = {}
    for policy in policies:
        held.keys, held.values = [part.clone() for part in keys], [part.clone() for part in values]
        held.digest, held.rows = key.digest, key.rows
        spent = slide(engine, planner, blocks, key, policy)
        language, vision = full_size(engine.layout, keep, policy, settings, windows)
        out[policy] = replace(spent, language=language, vision=vision)
    engine.close_stream("bench/0")
    return out


def with_key_windows(spent: Spent, key: Spent) -> Spent:
    """Means over a key period: one key window and the others."""

    def mixed(one: float, other: float) -> float:
        return (one * (PERIOD - 1) + other) / PERIOD

    return replace(
        spent,
        seconds=mixed(spent.seconds, key.seconds),
        planning=mixed(spent.planning, key.planning),
        language=mixed(spent.language, key.language),
        vision=spent.vision,  # a block is encoded once, in key windows too
        mean_flops=mixed(spent.flops, key.flops),
    )


def slide(
    engine: TransformersEngine, planner: Planner, blocks: list[StrideBlock], plan: WindowPlan, policy: Policy
) -> Spent:
    """The windows behind `plan`, one block at a time."""
    seconds, planning, costs = [], [], []
    for last in range(BLOCKS + 1, len(blocks) + 1):
        window = blocks[last - BLOCKS : last]
        start = time.process_time()
        plan = planner.plan(window, plan, policy=policy, key=False)
        planning.append(time.process_time() - start)
        request = WindowRequest(plan, window, [QUESTION], keep=policy not in WHOLE_WINDOWS)
        start = now(engine.model.device)
        answer = engine.run([request])[0].unwrap()
        seconds.append(now(engine.model.device) - start)
        costs.append(answer.cost)
    return Spent(statistics.fmean(seconds), costs, statistics.median(planning))


def full_size(
    layout: Layout,
    keep: list[float],
    policy: Policy,
    settings: WindowSettings,
    windows: int,
    *,
    shape: DecoderShape = QWEN_7B,
    questions: Sequence[int] = (12,),
) -> tuple[float, float]:
    """Mean FLOPs of the same steady windows at full size: language model, with questions of so many tokens,
    and vision tower."""
    planner = Planner(replace(labelled(layout, 6), layers=shape.layers), replace(settings, policy=policy))
    blocks = [block(index, keep, 1, WHOLE) for index in range(BLOCKS + windows)]
    plan = planner.plan(blocks[:BLOCKS], key=True)
    language, vision = [], []
    for last in range(BLOCKS + 1, len(blocks) + 1):
        window = blocks[last - BLOCKS : last]
        plan = planner.plan(window, plan, key=False)
        seen = window if policy in WHOLE_WINDOWS else window[-1:]
        patches = [VIT_PATCHES * frame.tokens.shape[0] + 1 for one in seen for frame in one.frames]
        vision.append(sum(VIT_300M.flops(rows, rows * rows) for rows in patches))
        language.append(window_cost(plan, questions, shape, kv_bytes=0).total_flops)
    return statistics.fmean(language), statistics.fmean(vision)


def questions(engine: TransformersEngine, keep: list[float]) -> dict[str, float]:
    """What questions cost, in shares of computing their (pruned) window."""
    planner = Planner(engine.layout, WindowSettings(BLOCKS, samples=FRAMES))
    device = engine.model.device
    blocks = [block(index, keep, engine.model.hidden, grid_of(engine)) for index in range(BLOCKS)]
    plan = planner.plan(blocks)
    start = now(device)
    engine.run([WindowRequest(plan, blocks)])[0].unwrap()
    window = now(device) - start
    asked: dict[int, float] = {}
    for count in (1, 1, 2, 10, 50):
        plan = planner.hold(plan)
        request = WindowRequest(plan, (), [Question(str(i), QUESTION.text) for i in range(count)])
        start = now(device)
        engine.run([request])[0].unwrap()
        asked[count] = now(device) - start
    engine.close_stream("bench/0")
    each = (asked[50] - asked[1]) / 49
    return {"first": asked[1] / window, "each_2nd_to_50th": each / window, "all_50": asked[50] / window}


def grid_of(engine: TransformersEngine) -> tuple[int, int]:
    """Tokens of a frame that fit the model's size."""
    return WHOLE if engine.model.hidden > 1024 else SMALL


def levels(path: Path, kind: str) -> dict[str, list[float]]:
    """The keep ratios per frame of the three levels, with the accumulation of that `kind`."""
    told = json.loads(path.read_text())
    return {level: [float(share) for share in told[level][kind]] for level in LEVELS}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--shape", choices=tuple(SHAPES), default="small", help="7b wants an accelerator")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dtype", default=None, help="float32 on cpu, else bfloat16")
    parser.add_argument("--windows", type=int, default=5, help="steady windows per setting")
    parser.add_argument("--motion", type=Path, default=Path(__file__).with_name("motion.json"))
    parser.add_argument(
        "--peers", action="store_true", help="the peer policies too, at the budget of `refresh`"
    )
    parser.add_argument(
        "--flops", action="store_true", help="only FLOPs at full size, with vision: nothing is run or timed"
    )
    options = parser.parse_args()
    if options.flops:
        print(json.dumps({"bench": "windows", "flops_7b": counted(options.motion, options.windows)}))
        return
    torch.set_num_threads(1)
    device = torch.device(options.device)
    dtype = options.dtype or ("float32" if device.type == "cpu" else "bfloat16")
    engine = model(options.shape, device, getattr(torch, dtype))
    full = measure(engine, [1.0], [Policy.FULL], options.windows)[Policy.FULL]
    header()
    show("all", "full", full, full)
    out: dict[str, dict[str, dict[str, float]]] = {}
    shares = {kind: levels(options.motion, kind) for kind in ("default", "keep", "since_encoded")}
    with tqdm(total=len(LEVELS) * len(ways()), unit="setting", disable=None) as bar:
        for level in LEVELS:
            out[level] = {}
            for name, (masks, settings) in ways().items():
                keep = shares[masks][level]
                wanted = dict.fromkeys(
                    (Policy.PRUNE_ONLY, settings.policy, *(PEERS if options.peers else ()))
                )
                told = measure(engine, keep, list(wanted), options.windows, settings)
                spent = with_key_windows(told[settings.policy], told[Policy.PRUNE_ONLY])
                show(level, name, spent, full)
                out[level][name] = saved(spent, full)
                for policy in PEERS if options.peers else ():
                    show(
                        level,
                        f"  {policy.value}",
                        with_key_windows(told[policy], told[Policy.PRUNE_ONLY]),
                        full,
                    )
                bar.update()
    if device.type != "cpu":
        live(torch.cuda.get_device_name(device), out, full)
    shown = rounded(questions(engine, shares["default"]["low"]))
    print("questions, as shares of a full pruned window (low):", shown)
    engine.close()
    print(json.dumps({"bench": "windows", "levels": out, "targets": met(out)}))


def counted(motion: Path, windows: int) -> dict[str, dict[str, float]]:
    """FLOPs saved at full size, vision tower and key windows counted in, by motion level and setting."""
    layout = load_layout(checkpoint("internvl"))

    def of(keep: list[float], policy: Policy, base: WindowSettings) -> tuple[float, float]:
        told = replace(base, blocks=BLOCKS, key_every=PERIOD, samples=FRAMES, stride_s=STRIDE_S)
        return full_size(layout, keep, policy, told, windows)

    full = sum(of([1.0], Policy.FULL, WindowSettings()))
    out: dict[str, dict[str, float]] = {}
    for level in LEVELS:
        out[level] = {}
        for name, (masks, settings) in ways().items():
            keep = levels(motion, masks)[level]
            language, vision = of(keep, settings.policy, settings)
            whole, _ = of(keep, Policy.PRUNE_ONLY, settings)
            out[level][name] = round(1 - (((PERIOD - 1) * language + whole) / PERIOD + vision) / full, 4)
            print(f"{level:8} {name:26} {out[level][name]:8.1%}", flush=True)
    return out


def met(out: dict[str, dict[str, dict[str, float]]]) -> dict[str, bool]:
    """Which targets the default setting meets."""
    told: dict[str, bool] = {}
    for level, (speedup, flops) in TARGETS.items():
        default = out[level]["default"]
        told[f"{level} speed-up {speedup:g}"] = default["speedup"] >= speedup
        told[f"{level} FLOPs -{flops:.0%}"] = default["flops_7b"] >= flops
    told[f"planning below {OVERHEAD:.0%}"] = all(
        one["default"]["planning"] < OVERHEAD for one in out.values()
    )
    return told


def live(name: str, out: dict[str, dict[str, dict[str, float]]], full: Spent) -> None:
    """Latency and live streams on an accelerator."""
    for level, told in out.items():
        seconds = full.seconds / told["default"]["speedup"]
        print(
            f"{name}: {level}: {full.seconds * 1e3:.0f} ms full, {seconds * 1e3:.0f} ms by default; "
            f"{STRIDE_S / full.seconds:.0f} and {STRIDE_S / seconds:.0f} live streams one by one"
        )


def saved(spent: Spent, full: Spent) -> dict[str, float]:
    """What the JSON line says of a setting."""
    return {
        "speedup": round(full.seconds / spent.seconds, 2),
        "flops": round(1 - spent.flops / full.flops, 4),
        "flops_7b_language": round(1 - spent.language / full.language, 4),
        "flops_7b": round(1 - (spent.language + spent.vision) / (full.language + full.vision), 4),
        "planning": round(spent.planning / spent.seconds, 4),
    }


def header() -> None:
    """The table's head."""
    print(f"{'motion':8} {'setting':26} {'rows':>6} {'kept':>6} {'token-layers':>12} {'speed-up':>9} "
          f"{'FLOPs saved':>12} {'at 7B':>8} {'+ vision':>9} {'planning':>9}")  # fmt: skip


def show(level: str, name: str, spent: Spent, full: Spent) -> None:
    """One row of the table; everything against full recompute of the dense window."""
    computed = statistics.fmean(cost.tokens_new + cost.tokens_refreshed for cost in spent.costs)
    kept = statistics.fmean(cost.tokens_kept for cost in spent.costs)
    layers = statistics.fmean(cost.token_layers for cost in spent.costs)
    print(
        f"{level:8} {name:26} {computed:6.0f} {kept:6.0f} {layers:12.0f} "
        f"{full.seconds / spent.seconds:9.2f} {1 - spent.flops / full.flops:12.1%} "
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
