"""What fails in the middle of a window: no half-changed KV answers, memory halves a batch, devices raise."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from bench.row_policies import CACHEBLEND, VLCACHE
from lookout.models.engines import (
    DeviceError,
    Question,
    StreamFailedError,
    StreamLostError,
    WindowAnswer,
    WindowRequest,
)
from lookout.models.engines.faults import Fault, fault_of
from lookout.models.engines.transformers import TransformersEngine, load_engine
from lookout.models.engines.transformers.prefill import GroupPrefill
from lookout.models.windows import Planner, Policy, RowPolicy, WindowPlan, WindowSettings
from lookout.recordings import GroupPlanner, PrefillSettings, grouped
from tests.out_of_memory import OutOfMemoryAt, operations, sampled
from tests.tiny_models import checkpoint
from tests.unit.models.engines.scenes import block, engine
from tests.unit.recordings import oracle

FAMILY = "internvl"
QUESTIONS = (Question("a", "Is anyone lying?"), Question("b", "Any smoke?"))
MEMORY = "CUDA out of memory. Tried to allocate 2.00 GiB."
DEVICE = "CUDA error: device-side assert triggered"


@pytest.fixture
def runner() -> Iterator[TransformersEngine]:
    one = load_engine(checkpoint(FAMILY))
    yield one
    one.close()


def request(
    runner: TransformersEngine,
    stream: str,
    window: int,
    previous: WindowPlan | None,
    policy: Policy | RowPolicy = Policy.REFRESH,
) -> WindowRequest:
    blocks = [block(FAMILY, stream, index, frames=3) for index in range(max(0, window - 2), window + 1)]
    planner = Planner(runner.layout, WindowSettings(3, policy, key_every=1000))
    return WindowRequest(planner.plan(blocks, previous), blocks, QUESTIONS)


def slid(
    runner: TransformersEngine,
    streams: Sequence[str],
    windows: int,
    policy: Policy | RowPolicy = Policy.REFRESH,
) -> dict[str, WindowPlan]:
    """Run the first windows of some streams; their last plans."""
    plans: dict[str, WindowPlan] = {}
    for window in range(windows):
        batch = [request(runner, stream, window, plans.get(stream), policy) for stream in streams]
        for one, answer in zip(batch, runner.run(batch), strict=True):
            answer.unwrap()
            plans[one.plan.stream] = one.plan
    return plans


def logits(answer: WindowAnswer) -> list[float]:
    return [one.yes_logit - one.no_logit for one in answer.unwrap().answers]


class Failing:
    """A layer that raises at its nth call; then it runs as ever."""

    def __init__(self, layer: torch.nn.Module, calls: Callable[[int], bool], words: str) -> None:
        self.inner, self.calls, self.words, self.count = layer.forward, calls, words, 0
        layer.forward = self  # type: ignore[method-assign,assignment]

    def __call__(self, *args: Any, **extra: Any) -> Any:
        self.count += 1
        if self.calls(self.count):
            raise RuntimeError(self.words)
        return self.inner(*args, **extra)


@pytest.mark.slow
@pytest.mark.parametrize("calls", range(1, 9))
def test_kv_that_moved_half_way_answers_nothing(
    runner: TransformersEngine, monkeypatch: pytest.MonkeyPatch, calls: int
) -> None:
    """Out of memory after some of eight tensors (K and V of four layers) have moved, and then no more: the
    stream is lost or its answer is right; it is never answered from rows that moved twice."""
    plans = slid(runner, ["cam/0"], 4)
    following = request(runner, "cam/0", 4, plans["cam/0"])
    other = engine(FAMILY)
    want = slid(other, ["cam/0"], 4)
    right = logits(other.run([request(other, "cam/0", 4, want["cam/0"])])[0])
    other.close_stream("cam/0")
    select, seen = torch.index_select, 0

    def short(*args: Any, **extra: Any) -> Any:
        nonlocal seen
        seen += 1
        if seen == calls:
            raise torch.OutOfMemoryError(MEMORY)
        return select(*args, **extra)

    with monkeypatch.context() as patch:
        patch.setattr(torch, "index_select", short)
        answer = runner.run([following])[0]
    assert seen >= calls
    if answer.error is None:
        assert logits(answer) == pytest.approx(right, abs=1e-5)
    else:
        assert isinstance(answer.error, StreamLostError)
        assert runner.held("cam/0") is None
        again = runner.run([following])[0]
        assert isinstance(again.error, StreamLostError)
    key = runner.run([request(runner, "cam/0", 4, None)])[0]
    assert key.error is None


def test_a_window_that_was_not_finished_is_continued_by_nothing(
    runner: TransformersEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever ends a pass, the KV under way belongs to no plan."""
    plans = slid(runner, ["cam/0"], 3)
    half = request(runner, "cam/0", 3, plans["cam/0"])

    def interrupted(self: TransformersEngine, works: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(TransformersEngine, "_forward", interrupted)
        with pytest.raises(KeyboardInterrupt):
            runner.run([half])
    assert runner.held("cam/0") is None
    for plan in (half.plan, plans["cam/0"]):
        after = runner.run([request(runner, "cam/0", plan.window + 1, plan)])[0]
        assert isinstance(after.error, StreamLostError)


@pytest.mark.slow
@pytest.mark.parametrize("policy", [Policy.REFRESH, VLCACHE])
def test_out_of_memory_halves_the_batch_and_loses_nothing(policy: Policy | RowPolicy) -> None:
    streams = [f"cam-{number}/0" for number in range(5)]
    undisturbed = engine(FAMILY)
    wanted = slid(undisturbed, streams, 4, policy)
    right = [
        logits(answer)
        for answer in undisturbed.run(
            [request(undisturbed, name, 4, wanted[name], policy) for name in streams]
        )
    ]
    for name in streams:
        undisturbed.close_stream(name)
    runner = load_engine(checkpoint(FAMILY))
    plans = slid(runner, streams, 4, policy)
    sizes: list[int] = []
    forward = runner._forward

    def small(works: Sequence[Any]) -> Any:
        sizes.append(len(works))
        if len(works) > 2:
            forward(works)
            raise torch.OutOfMemoryError(MEMORY)
        return forward(works)

    runner._forward = small  # type: ignore[method-assign,assignment]
    batch = [request(runner, name, 4, plans[name], policy) for name in streams]
    got = [logits(answer) for answer in runner.run(batch)]
    assert sizes == [5, 2, 3, 1, 2]
    for one, other in zip(got, right, strict=True):
        assert one == pytest.approx(other, abs=2e-5)
    runner.close()


def test_rows_chosen_by_the_kv_are_not_chosen_again_after_a_failed_pass(runner: TransformersEngine) -> None:
    """CacheBlend compares fresh with stored KV; a failed pass has overwritten what was stored."""
    plans = slid(runner, ["cam/0"], 5, CACHEBLEND)
    following = request(runner, "cam/0", 5, plans["cam/0"], CACHEBLEND)
    assert following.plan.select is not None
    Failing(runner.model.layers[3], lambda count: count == 1, MEMORY)
    answer = runner.run([following])[0]
    assert isinstance(answer.error, StreamFailedError)
    assert runner.held("cam/0") is None


def test_one_window_too_large_for_the_memory_runs_with_no_other_kv_beside_it(
    runner: TransformersEngine,
) -> None:
    plans = slid(runner, ["a/0", "b/0"], 3)
    Failing(runner.model.layers[2], lambda count: count == 1, MEMORY)
    answer = runner.run([request(runner, "a/0", 3, plans["a/0"])])[0]
    assert answer.error is None
    assert [one.stream for one in runner.memory()] == ["a/0"]
    assert runner.held("b/0") is None


def test_repeated_out_of_memory_is_a_device_that_failed(runner: TransformersEngine) -> None:
    plans = slid(runner, ["a/0", "b/0"], 3)
    Failing(runner.model.layers[2], lambda count: True, MEMORY)
    batch = [request(runner, name, 3, plans[name]) for name in ("a/0", "b/0")]
    with pytest.raises(DeviceError, match="out of memory"):
        runner.run(batch)
    with pytest.raises(DeviceError, match="restart the process"):
        runner.run([])


def test_a_device_error_raises_at_once_and_for_good(runner: TransformersEngine) -> None:
    plans = slid(runner, ["a/0", "b/0"], 3)
    layer = Failing(runner.model.layers[0], lambda count: count == 1, DEVICE)
    batch = [request(runner, name, 3, plans[name]) for name in ("a/0", "b/0")]
    with pytest.raises(DeviceError, match="device-side assert"):
        runner.run(batch)
    with pytest.raises(DeviceError):
        runner.run(batch)
    assert layer.count == 1


@pytest.mark.parametrize(
    ("error", "fault"),
    [
        (torch.OutOfMemoryError(MEMORY), Fault.MEMORY),
        (MemoryError(), Fault.MEMORY),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to"), Fault.MEMORY),
        (RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling cublasCreate"), Fault.MEMORY),
        (RuntimeError(DEVICE), Fault.DEVICE),
        (torch.AcceleratorError(DEVICE), Fault.DEVICE),
        (RuntimeError("Worker failed with error 'NCCL error: unhandled system error'"), Fault.DEVICE),
        (ValueError("the window reuses row 7 of 3"), Fault.WORK),
        (IndexError("index out of range in self"), Fault.WORK),
    ],
)
def test_exceptions_are_told_apart(error: Exception, fault: Fault) -> None:
    assert fault_of(error) is fault
    outer = RuntimeError("a step failed")
    outer.__cause__ = error
    assert fault_of(outer) is fault


# Out of memory at any operation, with a disk tier.

STREAMS = ("a/0", "b/0", "c/0")


def tight(tmp_path: Path, streams: float) -> TransformersEngine:
    """An engine whose budget holds the KV of so many windows; the others go to disk."""
    wide = engine(FAMILY)
    slid(wide, ["a/0"], 3)
    size = wide.kv("a/0").device_bytes
    wide.close_stream("a/0")
    return load_engine(checkpoint(FAMILY), budget_bytes=int(streams * size), spill_dir=tmp_path)


def right_answers(streams: Sequence[str], window: int) -> list[list[float]]:
    """Of the undisturbed engine."""
    other = engine(FAMILY)
    plans = slid(other, streams, window)
    out = [logits(answer) for answer in other.run([request(other, s, window, plans[s]) for s in streams])]
    for stream in streams:
        other.close_stream(stream)
    return out


def close(answers: Sequence[WindowAnswer], wanted: Sequence[list[float]]) -> bool:
    return all(
        logits(answer) == pytest.approx(want, abs=2e-5)
        for answer, want in zip(answers, wanted, strict=True)
        if answer.error is None
    )


@pytest.mark.long
@pytest.mark.parametrize(
    "count",
    [1, pytest.param(3, marks=pytest.mark.long), 10_000],
    ids=["one operation", "three", "until the end"],
)
def test_out_of_memory_anywhere_in_a_batch_that_spills_and_restores(tmp_path: Path, count: int) -> None:
    """Every answer is right or an error of its stream, whichever operation fails: spilling, restoring, moving
    KV, layers. Memory that stays short for a window alone fails the device, by name."""
    wanted = right_answers(STREAMS, 3)
    runner = tight(tmp_path, 1.2)

    def disturbed(place: int) -> tuple[list[WindowAnswer], int]:
        """The answers of a batch (none where the device failed), and its operations."""
        plans = slid(runner, STREAMS, 3)
        batch = [request(runner, stream, 3, plans[stream]) for stream in STREAMS]
        with OutOfMemoryAt(place, count) as injected:
            try:
                answers = runner.run(batch)
            except DeviceError as error:
                return [], int("out of memory" in str(error))
            finally:
                runner._broken = None  # the device of this test is well
        return answers, injected.operations

    _, total = disturbed(0)
    answered = devices = 0
    places = 12 if count == 1 else 6
    for place in sampled(total, places):
        for stream in STREAMS:
            runner.close_stream(stream)
        answers, facts = disturbed(place)
        if not answers:
            assert facts == 1, "a device that failed is named with its cause"
            devices += 1
            continue
        assert all(isinstance(answer.error, StreamLostError) for answer in answers if answer.error)
        assert close(answers, wanted), place
        answered += sum(answer.error is None for answer in answers)
    runner.close()
    assert devices == 0 or count > 1
    assert answered >= 3 * places * 0.8 or count > 1


@pytest.mark.slow
def test_a_window_spilled_to_make_room_within_its_batch_is_read_back(tmp_path: Path) -> None:
    """Three windows have moved their rows when memory ends; the first then runs with no other KV beside it.
    The others' rows were on disk: they are read back, not taken for zeros."""
    wanted = right_answers(STREAMS, 3)
    for without_spill in (False, True):
        runner = load_engine(checkpoint(FAMILY), spill_dir=None if without_spill else tmp_path)
        plans = slid(runner, STREAMS, 3)
        Failing(runner.model.layers[2], lambda count: count <= 2, MEMORY)
        answers = runner.run([request(runner, stream, 3, plans[stream]) for stream in STREAMS])
        assert answers[0].error is None
        assert close(answers, wanted)
        assert [answer.error is None for answer in answers] == [True, not without_spill, not without_spill]
        runner.close()


def test_a_key_window_reads_nothing_back(tmp_path: Path) -> None:
    """What it discards is not needed: a file that cannot be read costs it nothing."""
    runner = tight(tmp_path, 1.2)
    slid(runner, ["a/0"], 3)
    slid(runner, ["b/0"], 3)
    (file,) = tmp_path.rglob("*.kv")
    file.write_bytes(b"damaged")
    runner.run([request(runner, "a/0", 3, None)])[0].unwrap()
    assert not file.exists()
    runner.close()


@pytest.mark.long
def test_a_group_that_ran_out_of_memory_can_be_given_again() -> None:
    """Room for a recording's KV is made layer by layer; failing half way, it is made for the rest later."""
    how = PrefillSettings(group_frames=2)
    shown = oracle.frames(FAMILY, 6)
    groups = list(grouped(shown, how.group_frames))
    plans = GroupPlanner(engine(FAMILY).layout, how).plans("r", shown)

    def prefill(place: int) -> tuple[list[float], int]:
        """The logits where operation `place` of the second group fails first; and its operations."""
        run = GroupPrefill(engine(FAMILY), how, questions=QUESTIONS)
        run.add(plans[0], groups[0])
        before = (run.kv.rows, run.kv.times_us.copy(), run.last)
        total = 0
        if place:
            with pytest.raises(torch.OutOfMemoryError), OutOfMemoryAt(place):
                run.add(plans[1], groups[1])
            assert (run.kv.rows, run.kv.times_us, run.last) == before
            run.add(plans[1], groups[1])
        else:
            total = operations(lambda: run.add(plans[1], groups[1]))
        run.add(plans[2], groups[2])
        answers = run.ask(QUESTIONS)[0]
        return [one.answer.yes_logit - one.answer.no_logit for one in answers], total

    wanted, total = prefill(0)
    for place in sampled(total, 30):
        assert prefill(place)[0] == pytest.approx(wanted, abs=1e-5), place
