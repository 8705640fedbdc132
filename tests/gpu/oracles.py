"""Every CPU oracle of engines, vision, recordings and memory on the device.

First the device against the host: the same windows of every policy, group prefill, answers over a memory and
kept patches, in float32 on both. Then the tests of these rooms themselves, which compare with the stock
models, the dense towers and the version-expanded oracle: their engines and towers load on the device.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch

from bench.row_policies import CACHEBLEND
from lookout.models.engines import Question, WindowRequest
from lookout.models.engines.transformers import TransformersEngine, load_engine
from lookout.models.engines.transformers.memory import ask
from lookout.models.engines.transformers.prefill import GroupPrefill
from lookout.models.engines.transformers.recall import StreamRecall
from lookout.models.families import load_tower
from lookout.models.vision import FrameInput
from lookout.models.windows import Planner, Policy, RowPolicy, WindowSettings
from lookout.past.memory import MemorySettings
from lookout.recordings import GroupPlanner, PrefillSettings, grouped
from tests.gpu.scale import Scale
from tests.tiny_models import FAMILIES, SIZE, checkpoint
from tests.unit.models.engines.scenes import block
from tests.unit.recordings.oracle import frames

ROOT: Final = Path(__file__).parents[2]
QUESTION: Final = Question("q", "Is anyone lying?")
CLOSE: Final = 2e-3  #: logits and tokens of unit scale; float32 sums in another order
MEMORY: Final = MemorySettings(window=3, construct=4, cluster_tokens=12, visual_frames=4, smallest=4)
SUITES: Final = (
    "tests/unit/models/vision",
    "tests/unit/models/engines",
    "tests/unit/recordings/analysis",
    "tests/unit/past/memory",
)


def run(scale: Scale) -> dict[str, Any]:
    """The largest differences, those that float32 does not explain with the arrays that have them, and the
    tests that passed and failed."""
    torch.backends.cudnn.allow_tf32 = False
    differences, wrong = dict[str, float](), dict[str, Any]()
    for family in scale.families or FAMILIES:
        for name, check in CHECKS.items():
            host, device, again = (
                list(check(family, where)) for where in (torch.device("cpu"), scale.device, scale.device)
            )
            key = f"{family}: {name}"
            differences[key] = largest(host, device)
            if not differences[key] <= CLOSE:
                arrays = [round(largest([a], [b]), 5) for a, b in zip(host, device, strict=True)]
                wrong[key] = {"arrays": arrays, "twice on the device": largest(device, again)}
    return {"differences": differences, "wrong": wrong, "tests": suites(scale)}


def largest(host: Sequence[np.ndarray], device: Sequence[np.ndarray]) -> float:
    """The largest difference of any two arrays."""
    return max(float(np.abs(a - b).max(initial=0.0)) for a, b in zip(host, device, strict=True))


@cache
def _engine(family: str, device: torch.device) -> TransformersEngine:
    return load_engine(checkpoint(family), device, "float32")


def windows(family: str, device: torch.device, *, policy: Policy | RowPolicy) -> Iterator[np.ndarray]:
    """Logits, K and V of a chain of sliding windows."""
    engine = _engine(family, device)
    planner, plan = Planner(engine.layout, WindowSettings(3, policy, key_every=100)), None
    blocks = [block(family, policy.value, index, frames=3) for index in range(6)]
    for last in range(1, len(blocks) + 1):
        window = blocks[max(0, last - 3) : last]
        plan = planner.plan(window, plan)
        answer = engine.run([WindowRequest(plan, window, [QUESTION])])[0].unwrap().answers[0]
        yield np.array([answer.yes_logit, answer.no_logit])
        # CacheBlend chooses rows by comparing deviations: two devices may choose other rows of a tie.
        if policy is not CACHEBLEND:
            yield from (part.numpy() for part in engine.rows(plan, 0, plan.rows))
    engine.close_stream(policy.value)


def recordings(family: str, device: torch.device) -> Iterator[np.ndarray]:
    """Logits of a question about a recording, prefilled group by group."""
    engine, how = _engine(family, device), PrefillSettings(4, 0.5)
    shown = frames(family, 12)
    run = GroupPrefill(engine, how, questions=[QUESTION])
    plans = GroupPlanner(engine.layout, how).plans("r", shown)
    for plan, group in zip(plans, grouped(shown, how.group_frames), strict=True):
        run.add(plan, group)
    answer = run.ask([QUESTION])[0][0].answer
    yield np.array([answer.yes_logit, answer.no_logit])


def memory(family: str, device: torch.device) -> Iterator[np.ndarray]:
    """Logits of a question about the past, over clusters that move to the device."""
    engine = _engine(family, device)
    keeper = StreamRecall(engine, "1h", settings=MEMORY)
    planner, plan = Planner(engine.layout, WindowSettings(3, key_every=4)), None
    blocks = [block(family, "past", index) for index in range(9)]
    for last in range(1, len(blocks) + 1):
        window = blocks[max(0, last - 3) : last]
        plan = planner.plan(window, plan)
        engine.run([WindowRequest(plan, window)])[0].unwrap()
        keeper.close_block(plan, blocks[last - 1])
    assert keeper.memory is not None
    answer = ask(engine, keeper.memory.snapshot(), QUESTION.text)
    yield np.array([answer.yes_logit, answer.no_logit])
    engine.close_stream("past")


def vision(family: str, device: torch.device) -> Iterator[np.ndarray]:
    """Tokens of kept patches."""
    tower = load_tower(checkpoint(family), device=device, dtype="float32", size=(SIZE[family],) * 2)
    draw, grid = np.random.default_rng(3), tower.grid
    for share in (1.1, 0.5, 0.1):
        pixels = draw.integers(0, 256, (grid.temporal, grid.height, grid.width, 3), dtype=np.uint8)
        keep = draw.random((grid.group_rows, grid.group_cols)) < share
        encoded = tower.encode([FrameInput(pixels, keep)])[0]
        yield encoded.tokens.cpu().numpy()
        if encoded.deepstack is not None:
            yield encoded.deepstack.cpu().numpy()


CHECKS: Final[dict[str, Callable[[str, torch.device], Iterator[np.ndarray]]]] = {
    "vision": vision,
    **{f"windows, {policy.value}": partial(windows, policy=policy) for policy in Policy},
    "recordings": recordings,
    "memory": memory,
}


def suites(scale: Scale) -> dict[str, Any]:
    """The rooms' own tests with the device as the default of engines and towers; tests that fail are named,
    since some look into tensors of the host."""
    if scale.device.type == "cpu":
        return {"skipped": "they run on this device with `make test`"}
    environment = os.environ | {
        "LOOKOUT_TEST_DEVICE": str(scale.device),
        "PYTHONPATH": os.pathsep.join(sys.path),
    }
    command = (
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "-p",
        "tests.gpu.on_device",
        "-m",
        "not long",
        "--continue-on-collection-errors",
    )
    done = subprocess.run(
        [sys.executable, *command, "--timeout=60", *SUITES],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    return {
        "summary": (done.stdout.strip().splitlines() or [done.stderr[-300:]])[-1],
        "failed": re.findall(r"^(?:FAILED|ERROR) (\S+)", done.stdout, re.MULTILINE),
    }
