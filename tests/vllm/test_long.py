"""Heavier checks of the vLLM engine: tensor parallelism, bfloat16, long chains in one engine."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.unit.models.engines.scenes import engine as reference
from tests.vllm.conftest import start
from tests.vllm.scenes import apart, planner, same_cost, slide

pytestmark = [
    pytest.mark.vllm,
    pytest.mark.long,
    pytest.mark.timeout(600),
    pytest.mark.usefixtures("no_engine"),
]
CAMERAS = ("gate/0", "yard-2/0")


def compare(engine: Any, family: str, windows: int, close: float, **settings: Any) -> float:
    worst = 0.0
    for batch in slide(family, planner(engine, **settings), CAMERAS, range(windows), {}):
        for one, other in zip(engine.run(batch), reference(family).run(batch), strict=True):
            worst = max(worst, apart(one, other))
            assert worst < close
            assert same_cost(one, other)
    for camera in CAMERAS:
        reference(family).close_stream(camera)
        engine.close_stream(camera)
    return worst


@pytest.mark.parametrize("family", ["internvl", "qwen2_5_vl"])
def test_two_tensor_parallel_ranks_answer_like_one_engine(family: str) -> None:
    engine = start(family, tensor_parallel=2)
    try:
        compare(engine, family, 6, 1e-4)
        assert engine.backend.call("lookout_memory") == [{}, {}]
    finally:
        engine.close()


@pytest.mark.parametrize("family", ["internvl", "qwen2_5_vl", "qwen3_vl"])
def test_compiled_layers_answer_like_the_reference(family: str) -> None:
    """`eager=False`: on CPU the layers are compiled, on CUDA they are captured in graphs as well. They get
    the same addresses in every step."""
    from vllm.distributed.kv_transfer import get_kv_transfer_group
    from vllm.forward_context import get_forward_context

    engine = start(family, eager=False)
    model = get_kv_transfer_group().worker.model
    run, seen, sizes = model.run, set[tuple[int, ...]](), set[int]()

    def noted(inputs: Any) -> Any:
        if not get_forward_context().skip_compiled:  # refreshed ranges run outside of graphs
            parts = (inputs.positions, inputs.embeds, inputs.deepstack)
            seen.add(tuple(part.data_ptr() for part in parts if part is not None))
            sizes.add(len(inputs.embeds))
        return run(inputs)

    model.run = noted
    try:
        compare(engine, family, 5, 1e-4)
    finally:
        engine.close()
    assert len(sizes) > 2
    assert len(seen) == 1


def test_two_hundred_slides_do_not_drift() -> None:
    engine = start("qwen2_5_vl")
    try:
        compare(engine, "qwen2_5_vl", 200, 1e-4, key_every=1000)
    finally:
        engine.close()


def test_bfloat16_stays_bounded_over_forty_slides() -> None:
    """Keys are rotated once a window, whatever their age: the error does not grow with the slides."""
    engine = start("internvl", dtype="bfloat16")
    errors = []
    try:
        for batch in slide("internvl", planner(engine, key_every=1000), CAMERAS, range(40), {}):
            for one, other in zip(engine.run(batch), reference("internvl").run(batch), strict=True):
                errors.append(apart(one, other))
    finally:
        engine.close()
        for camera in CAMERAS:
            reference("internvl").close_stream(camera)
    early, late = torch.tensor(errors[:20]).mean(), torch.tensor(errors[-20:]).mean()
    assert float(late) < 2 * float(early) + 0.02
