"""The vLLM engine against the transformers engine on the same windows, in one
run, on one and on eight streams.

`make bench-engines` or `python -m bench.engines`; a language model large enough that compute dominates,
windows of five strides: as the default preset computes them, with anchors refreshed, and computed in full.
Ratios are transformers' time over vLLM's: above 1, vLLM is ahead. With `--threads 1` CPU time is measured;
those ratios hold on a busy machine too. The last line is JSON.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tqdm import tqdm

from lookout.models.engines import Question, WindowRequest
from lookout.models.engines.transformers import load_engine as load_transformers
from lookout.models.windows import (
    DEFAULT_PRESET,
    PRESETS,
    EncodedFrame,
    Planner,
    Policy,
    StrideBlock,
    WindowSettings,
)
from tests import tiny_models

TEXT = {
    "hidden_size": 768,
    "intermediate_size": 2048,
    "num_hidden_layers": 8,
    "num_attention_heads": 12,
    "num_key_value_heads": 4,
}
QUESTIONS = (Question("a", "Is anyone lying on the ground?"), Question("b", "Is a vehicle in the yard?"))
BLOCKS, FRAMES, SIDE, KEEP = 5, 4, 8, 0.25


def block(stream: str, index: int, hidden: int = TEXT["hidden_size"]) -> StrideBlock:
    """A stride of `FRAMES` frames of `SIDE` x `SIDE` groups: a whole anchor, then a kept quarter."""
    draw = np.random.default_rng([index, sum(stream.encode())])
    frames = []
    for number in range(FRAMES):
        mask = np.ones((SIDE, SIDE), bool) if number == 0 else draw.random((SIDE, SIDE)) < KEEP
        tokens = draw.standard_normal((int(mask.sum()), hidden)).astype(np.float32)
        time_us = (index * FRAMES + number) * 500_000
        frames.append(EncodedFrame(time_us, number == 0, mask, torch.from_numpy(tokens)))
    return StrideBlock(stream, index, tuple(frames))


def batches(layout: Any, streams: int, windows: int, policy: Policy) -> list[list[WindowRequest]]:
    """Consecutive windows of some streams."""
    default = PRESETS[DEFAULT_PRESET]
    settings = default if policy is default.policy else WindowSettings(policy=policy)
    planner = Planner(layout, replace(settings, blocks=BLOCKS, key_every=10_000))
    previous: dict[str, Any] = {}
    held: dict[str, list[StrideBlock]] = {}
    out = []
    for window in range(windows):
        batch = []
        for number in range(streams):
            stream = f"cam-{policy}-{streams}-{number}/0"
            held[stream] = [*held.get(stream, []), block(stream, window)][-BLOCKS:]
            previous[stream] = planner.plan(held[stream], previous.get(stream))
            batch.append(WindowRequest(previous[stream], tuple(held[stream]), QUESTIONS))
        out.append(batch)
    return out


def race(
    engines: Sequence[Any], work: Sequence[Sequence[WindowRequest]], now: Callable[[], float]
) -> tuple[list[float], list[list[float]]]:
    """Per engine the median seconds of the windows that slide, and every p(yes).

    The engines take turns window by window, so that other load on the machine affects both.
    """
    times: list[list[float]] = [[] for _ in engines]
    answers: list[list[float]] = [[] for _ in engines]
    for number, batch in enumerate(work):
        for engine, spent, found in zip(engines, times, answers, strict=True):
            start = now()
            done = [answer.unwrap() for answer in engine.run(batch)]
            if number >= BLOCKS:
                spent.append(now() - start)
            found += [one.p_yes for answer in done for one in answer.answers]
    for engine in engines:
        for request in work[-1]:
            engine.close_stream(request.plan.stream)
    return [statistics.median(spent) for spent in times], answers


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--streams", type=int, nargs="+", default=[1, 8])
    parser.add_argument("--windows", type=int, default=4, help="measured windows that slide")
    parser.add_argument("--threads", type=int, default=0, help="of either engine; 0: as many as cores")
    arguments = parser.parse_args()
    if arguments.threads:
        os.environ["VLLM_CPU_OMP_THREADS_BIND"] = "nobind"
    now = time.process_time if arguments.threads == 1 else time.perf_counter
    from lookout.models.engines.vllm import load_engine as load_vllm

    result: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        path = tiny_models.build("internvl", Path(folder), text=dict(TEXT))
        plain = load_transformers(path)
        fast = load_vllm(path, max_rows=4096, max_batched_rows=4096, block_size=128, kv_cache_bytes=1 << 30)
        torch.set_num_threads(arguments.threads or torch.get_num_threads())
        for streams in arguments.streams:
            row: dict[str, Any] = {}
            policies = (PRESETS[DEFAULT_PRESET].policy, Policy.REFRESH, Policy.PRUNE_ONLY)
            for policy in tqdm(policies, desc=f"{streams} stream(s)", unit="policy"):
                work = batches(plain.layout, streams, BLOCKS + arguments.windows, policy)
                (slow, quick), (wanted, got) = race((plain, fast), work, now)
                row[policy.value] = round(slow / quick, 3)
                row["rows"] = work[-1][0].plan.rows
                row["worst_p_yes"] = max(
                    row.get("worst_p_yes", 0.0), float(np.abs(np.subtract(wanted, got)).max())
                )
            print(f"{streams} stream(s), {row['rows']} rows a window: transformers / vLLM time", row)
            result[str(streams)] = row
        fast.close()
    print(json.dumps({"bench": "engines", "streams": result}))


if __name__ == "__main__":
    main()
