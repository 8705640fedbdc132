"""Cameras per GPU and their cost, counted: `make capacity` writes docs/capacity.md.

FLOPs are those of window plans at full model size (bench/windows.py). The share of its peak that a GPU
reaches is taken from the published figure of NVIDIA VSS on an H100, whose workload is counted by the same
formulas. The page also has what was measured on one GPU (`python -m tests.gpu`, bench/results/gpu.json).
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from bench import windows
from bench.record import RESULTS, Record
from bench.shapes import QWEN_7B, QWEN_32B
from lookout.models.families import load_layout
from lookout.models.flops import DecoderShape
from lookout.models.windows import DEFAULT_PRESET, PRESETS, Layout, Policy
from tests.tiny_models import checkpoint

PAGE: Final = Path(__file__).parents[1] / "docs" / "capacity.md"
GIB: Final = 1 << 30
VOCABULARY: Final = 152_064
RESERVED: Final = 0.15  #: of the memory: activations, block table, CUDA
CHUNK_S, VSS_STREAMS = 10.0, 51
HOURS: Final = 730  #: of a month
PRICE: Final = 2.5  #: dollars for an hour of an H100: between 2.35 and 2.95 where it was offered in 2026
LICENCE: Final = 199 / 12  #: dollars a month for a camera's licence of Verkada, 199 dollars a year
AIM: Final = 300  #: live streams of a GPU
#: share of a dense window's FLOPs that bursts take in the clip of a walk: `bench.windows --flops`
BURSTS: Final = 0.039
TOKENS: Final = windows.WHOLE[0] * windows.WHOLE[1]
STRIDES: Final = {level: f"strides, {level}" for level in windows.LEVELS}
COLUMNS: Final = ("whole", *windows.LEVELS, *STRIDES.values())


@dataclass(frozen=True, slots=True)
class Gpu:
    """A data sheet: dense TFLOP/s in bf16 and FP8, memory in GiB."""

    name: str
    bf16: float
    fp8: float
    memory: float


GPUS: Final = (
    Gpu("H100 SXM", 989, 1979, 80),
    Gpu("H200", 989, 1979, 141),
    Gpu("L40S", 362, 733, 48),
    Gpu("RTX PRO 6000", 503, 1007, 96),
)
MODELS: Final = {"8B": QWEN_7B, "32B": QWEN_32B}


def weights(shape: DecoderShape) -> int:
    """Parameters of a language model: layers, embeddings and head."""
    return shape.layers * shape.linear + 2 * VOCABULARY * shape.hidden


def stride_flops(layout: Layout, shape: DecoderShape, keep: list[float] | None) -> float:
    """FLOPs of a stride of 16 frames: ours, key windows counted in; None: the window computed whole, every
    frame of it encoded."""
    settings = replace(
        PRESETS[DEFAULT_PRESET],
        blocks=windows.BLOCKS,
        samples=windows.FRAMES,
        stride_s=windows.STRIDE_S,
        key_every=windows.PERIOD,
    )
    if keep is None:
        return sum(windows.full_size(layout, [1.0], Policy.FULL, settings, 5, shape=shape))
    language, vision = windows.full_size(layout, keep, settings.policy, settings, 5, shape=shape)
    whole, _ = windows.full_size(layout, keep, Policy.PRUNE_ONLY, settings, 5, shape=shape)
    return ((windows.PERIOD - 1) * language + whole) / windows.PERIOD + vision


def stride_alone_flops(layout: Layout, shape: DecoderShape, keep: list[float]) -> float:
    """FLOPs of a stride of 16 frames asked alone: a prompt of its own, and its tower."""
    settings = replace(
        PRESETS["strides"], blocks=1, samples=windows.FRAMES, stride_s=windows.STRIDE_S, key_every=1
    )
    return sum(windows.full_size(layout, keep, settings.policy, settings, 5, shape=shape, blocks=1))


def window_rows(keep: list[float]) -> int:
    """Rows of a window with so many tokens kept: an anchor a block, labels of nine tokens."""
    shares = [
        1.0 if i % windows.FRAMES == 0 else keep[i % len(keep)]
        for i in range(windows.BLOCKS * windows.FRAMES)
    ]
    return round(sum(share * TOKENS + 9 for share in shares))


def held(gpu: Gpu, shape: DecoderShape, rows: int, *, weight_bytes: int, kv_bytes: int) -> int:
    """Streams whose KV fits beside the weights."""
    free = gpu.memory * GIB * (1 - RESERVED) - weights(shape) * weight_bytes
    return max(0, int(free / (rows * shape.row_numbers * kv_bytes)))


def page(price: float = PRICE) -> str:
    """The page, with a price in dollars for an hour of an H100."""
    layout = load_layout(checkpoint("internvl"))
    shares = windows.levels("default")
    chunk = stride_flops(layout, QWEN_7B, None)
    used = VSS_STREAMS * chunk / CHUNK_S / (GPUS[0].fp8 * 1e12)
    lines = [
        "# Capacity, counted",
        "",
        "This page says how many live cameras fit on each GPU, and what one costs. Only [one "
        "section](#measured-on-one-gpu) is",
        "measured; all other numbers are counted. They are FLOPs and bytes of window plans at full model "
        "size, scaled by the",
        "published throughput of VSS, NVIDIA's blueprint for video search and summarization. "
        "`make capacity` writes the page.",
        "",
        "## Assumptions",
        "",
        "| assumption | value | from |",
        "| --- | --- | --- |",
        f"| a chunk of VSS: 80 frames of {TOKENS} tokens, every frame encoded, 8B model | {chunk / 1e12:.0f} "
        "TFLOP "
        "| counted |",
        f"| share of the FP8 peak that VSS reaches with {VSS_STREAMS} live streams on an H100; the same "
        f"share is assumed for all GPUs | {100 * used:.0f} % | VSS 3.1's page and the row above |",
        f"| memory reserved for activations and the block table | {100 * RESERVED:.0f} % | assumed |",
        "| dense peaks, TFLOP/s (bf16, FP8) and memory | "
        + "; ".join(f"{g.name} {g.bf16:g}, {g.fp8:g}, {g.memory:g} GiB" for g in GPUS)
        + " | data sheets; for the RTX PRO 6000, half of its sparse peaks, assumed |",
        "| FP8 is twice as fast as bf16 | yes | data sheets; not measured |",
        "",
        "## What a stride costs",
        "",
        "The table shows the FLOPs of one stride of 16 frames in three clips: people walking through a "
        'lobby ("walk"), a bedroom',
        'at night ("night") and a fall at night ("fall"). In the columns "with `strides`", all watches of '
        "the camera ask about",
        "[each stride alone](windows.md#strides-asked-alone), so no KV is kept.",
        "",
        "| model | every token computed | walk | night | fall | walk with `strides` | night with `strides` "
        "| fall with `strides` | KV per stream in bf16 (night) |",
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    costs: dict[str, dict[str, float]] = {}
    for name, shape in MODELS.items():
        costs[name] = {level: stride_flops(layout, shape, keep) for level, keep in shares.items()}
        costs[name]["whole"] = stride_flops(layout, shape, None)
        costs[name] |= {STRIDES[at]: stride_alone_flops(layout, shape, keep) for at, keep in shares.items()}
        kv = window_rows(shares["night"]) * 2 * shape.row_numbers
        row = [f"{costs[name][level] / 1e12:.1f} TFLOP" for level in COLUMNS]
        lines.append(f"| {name} | {' | '.join(row)} | {kv / (1 << 20):.0f} MiB |")
    lines += [
        "",
        "## Live streams for each GPU",
        "",
        "The table assumes windows of 40 s that slide by 8 s, at 2 FPS and at the share of the peak given "
        "above.",
        "",
        "- **`whole` to `fall with strides`**: the number of streams that the GPU has time for. `whole` "
        "computes every window in",
        "  full; the other columns are the clips above.",
        '- **`held`**: the number of streams whose KV fits into memory, in the clip "night", with KV in bf16 '
        "and in FP8. If a",
        "  stream's KV does not fit, each of its windows is computed in full. With `strides`, no KV is kept.",
        "",
        "| GPU | model | weights | whole | walk | night | fall | walk with `strides` "
        "| night with `strides` | fall with `strides` | held, KV bf16 | held, KV FP8 |",
        f"| {' | '.join(['---'] * 12)} |",
    ]
    rows = window_rows(shares["night"])
    for gpu in GPUS:
        for name, shape in MODELS.items():
            for kind, size, peak in (("bf16", 2, gpu.bf16), ("FP8", 1, gpu.fp8)):
                fits = [held(gpu, shape, rows, weight_bytes=size, kv_bytes=kv) for kv in (2, 1)]
                if not fits[0]:
                    lines.append(f"| {gpu.name} | {name} | {kind} | does not fit |{' |' * 8}")
                    continue
                live = [
                    f"{used * peak * 1e12 * windows.STRIDE_S / costs[name][level]:.0f}" for level in COLUMNS
                ]
                lines.append(f"| {gpu.name} | {name} | {kind} | {' | '.join(live)} | {fits[0]} | {fits[1]} |")
    lines += [
        "",
        *measured(Record.read(RESULTS / "gpu.json")),
        "",
        *workload(costs["8B"], used),
        "",
        *money(costs["8B"], used, price),
        "",
        *missing(costs["8B"], used, layout),
        "",
    ]
    return "\n".join(lines)


def measured(record: Record) -> list[str]:
    """What a GPU did with windows of random weights: `python -m tests.gpu`, step `live`."""
    live = record.figures["live"]
    whole = windows.STRIDE_S * 1e3 / live["dense_window_ms"]
    rows = []
    for clip in windows.LEVELS:
        found = live[clip]
        batch, fast = min(found["by_batch"].items(), key=lambda item: float(item[1]["stream_ms"]))
        asked = fast["question_ms"] / (fast["plan_ms"] + fast["window_ms"] + fast["question_ms"])
        streams = found["live_streams_40s"]
        chunks, often = found["streams_of_chunks"], found["live_streams_vss_every_2s"]
        cells = (f"{streams:.0f}", f"{streams / whole:.1f}", batch, f"{100 * asked:.0f} %")
        rows.append(f"| a {clip} | {' | '.join(cells)} | {chunks:.0f} | {often:.0f} |")
    gpu, chunks = record.device.partition(",")[0], live["dense_streams_of_chunks"]
    return [
        "## Measured on one GPU",
        "",
        f"This was measured on one {gpu} on {record.date}, with PyTorch {record.figures['torch']}, without "
        "compiled layers or",
        "CUDA graphs. The language model has a 7B model's shape and random weights in bf16; vision towers "
        "are not included",
        "([all figures](results/gpu.md)).",
        "",
        "- **Lookout's workload**: windows of 40 s that slide by 8 s, with one question. If every window is "
        "computed in full, the",
        f"  GPU has time for {whole:.0f} streams. The table shows the preset `default`.",
        "- **VSS's workload**: chunks of 10 s, asked once. With every token, the GPU has time for "
        f"{chunks:.0f} streams. For comparison, VSS",
        f"  reports {VSS_STREAMS} streams on an H100, in FP8.",
        "",
        "| clip | streams, preset `default` | times as many as with full windows | streams in a batch "
        "| share of time for the question | streams of VSS's chunks, pruned "
        "| streams of VSS's chunks, pruned, as a sliding window asked every 2 s |",
        "| --- | --- | --- | --- | --- | --- | --- |",
        *rows,
        "",
        "Kernel launches probably take most of the time. A question has few rows but launches as many "
        "kernels as a window. So its",
        "share of the time is far above its share of the FLOPs, and more than eight streams in a batch gain "
        "little.",
    ]


def workload(cost: dict[str, float], used: float) -> list[str]:
    """VSS's workload on an H100: chunks of 80 frames asked once, or every 2 s by a window that slides."""
    peak = used * GPUS[0].fp8 * 1e12
    rows = [f"a {clip} {peak * 2.0 / cost[clip]:.0f}" for clip in windows.LEVELS]
    return [
        "## VSS's workload on an H100, 8B, FP8",
        "",
        f"VSS reports {VSS_STREAMS} streams for chunks of 10 s with 80 frames, asked once per chunk. (This "
        "figure sets the share of the",
        "peak above.) If a window of the same 80 frames instead slides by 16 frames, it is asked every 2 s, "
        "five times as often.",
        f"The GPU then has time for these numbers of streams: {', '.join(rows)}.",
    ]


def money(cost: dict[str, float], used: float, price: float) -> list[str]:
    """What a camera costs in a month on an H100, 8B in FP8, where the GPU is kept busy."""
    gpu, month, shares = GPUS[0], HOURS * price, windows.levels("default")
    peak = used * gpu.fp8 * 1e12

    def live(name: str) -> float:
        """Streams of windows that slide by a stride; KV in bf16 has to fit where any is kept."""
        computed = peak * windows.STRIDE_S / cost[name]
        if name not in shares:
            return computed
        fits = held(gpu, QWEN_7B, window_rows(shares[name]), weight_bytes=1, kv_bytes=2)
        return min(computed, fits)

    streams = {
        f"VSS: chunks of {CHUNK_S:.0f} s, asked once": VSS_STREAMS,
        "VSS's chunks as a sliding window, asked every 2 s; walk": peak * 2.0 / cost["walk"],
        "windows of 40 s, asked every 8 s, computed in full": live("whole"),
        "these windows, preset `default`, walk": live("walk"),
        "these windows, preset `default`, night": live("night"),
        "these windows, preset `default`, fall": live("fall"),
        **{f"these windows, `strides`, {level}": live(name) for level, name in STRIDES.items()},
    }
    return [
        "## Cost per camera and month, 8B, FP8",
        "",
        f"The table assumes an H100 that costs {price:g} dollars an hour, {HOURS} hours a month, and carries "
        "as many cameras as it has",
        "time and memory for (KV in bf16). Storage, network and CPUs are not included. For comparison, a "
        "Verkada licence costs",
        f"{LICENCE:.2f} dollars per camera and month. For another price, run "
        "`python -m bench.gpu_capacity --price DOLLARS`.",
        "",
        "| workload | cameras on an H100 | dollars per camera and month | share of the licence |",
        "| --- | --- | --- | --- |",
        *(
            f"| {name} | {count:.0f} | {month / count:.2f} | {100 * month / count / LICENCE:.0f} % |"
            for name, count in streams.items()
        ),
    ]


def missing(cost: dict[str, float], used: float, layout: Layout) -> list[str]:
    """What stands between the engine and `AIM` live streams on an H100, by its cost."""
    peak = used * GPUS[0].fp8 * 1e12
    planner = windows.Planner(layout, windows.WindowSettings())
    names = [f"camera-{number}/0" for number in range(AIM)]
    keys = [sum(planner.is_key(name, stride) for name in names) for stride in range(windows.PERIOD)]
    burst = peak * windows.STRIDE_S / (cost["walk"] - BURSTS * cost["whole"])
    return [
        f"## What limits {AIM} live streams on an H100",
        "",
        f"The aim is {AIM} live streams on one H100. Numbers of streams are counted.",
        "",
        "| limit | effect | state |",
        "| --- | --- | --- |",
        "| matrix products of the language model in FP8 | without FP8, half as many streams: "
        f"{peak / 2 * windows.STRIDE_S / cost['walk']:.0f} in the clip walk, 8B "
        "| part of vLLM; not run here |",
        "| windows computed again after a burst of motion | without recomputing them, "
        f"{burst:.0f} streams in the clip walk, 8B "
        "| needed: nothing cheaper gives the same answers ([windows](windows.md)) |",
        "| KV of streams in bf16 instead of FP8 | half as many streams fit. This limits 32B on one H100, but "
        "not 8B. "
        "FP8 (e4m3, a scale for each head and row) changes p(yes) by 0.00025 (0.0002 to 0.0004) on eight "
        "real "
        "clips, default preset, chains of 15 windows. The difference from windows computed in full stays at "
        "0.0030 "
        "| FP8 is off, because 8B does not need it |",
        "| paged KV instead of contiguous copies | costs half a page per stream, less than 1 % of memory "
        "| not built |",
        "| kernel launches of questions | in each layer, every stream has its own rotation, "
        "concatenation and attention. So a batch launches as many kernels as its streams one by one "
        "| fewer launches are not built. With keys stored rotated and KV padded to a few lengths, attention "
        "would be one call per layer with static shapes, which a CUDA graph can replay |",
        "| CUDA graphs for vision towers | a pass over the patches of a few frames takes as long as "
        "launching its kernels | built, but off until it has run on a GPU ([towers](vision.md)) |",
        "| host reads of device values | one per batch, to check that the answers are finite | counted by a "
        "test |",
        "| transfers of indices to the device | one per pass, and two per stream whose rows move "
        "| counted by a test |",
        f"| key windows that fall on the same stride | of {AIM} cameras at most {max(keys)}, "
        f"{AIM / windows.PERIOD:.0f} on average. The camera's name decides the strides, so all instances "
        "agree | done: key windows are spread |",
    ]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--price", type=float, default=PRICE, help="dollars for an hour of an H100")
    PAGE.write_text(page(parser.parse_args().price))
    print(PAGE)
