"""The cost of a training plan: FLOPs and operations of its steps, and minutes on one accelerator."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Final

from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

H100_FLOPS: Final = 67e12
LAUNCH_S: Final = 10e-6
UTILISATION: Final = 0.05
"""Assumed: float32 FLOP/s of an H100 SXM, seconds to launch a small kernel, and the share of the FLOP/s that
matrices this small reach."""

Cost = tuple[int, int]
"""FLOPs and number of operations."""


class Operations(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts the operations given to the device. On an accelerator each takes at least one launch."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += 1
        return func(*args, **(kwargs or {}))


def counted(loss: Callable[[], Tensor]) -> Cost:
    """Count the FLOPs and operations of a loss, forward and backward."""
    operations = Operations()
    with FlopCounterMode(display=False) as flops, operations:
        loss().backward()  # type: ignore[no-untyped-call]
    return flops.get_total_flops(), operations.count


def summed(steps: int, parts: Iterable[tuple[float, Cost]]) -> dict[str, float]:
    """Add up the cost of all steps.

    Args:
        steps: Number of steps of the plan.
        parts: For each kind of step, or part of a step: how often it occurs, and its cost.
    """
    flops = operations = 0.0
    for count, (of_flops, of_operations) in parts:
        flops, operations = flops + count * of_flops, operations + count * of_operations
    return {"steps": steps, "flops": flops, "operations_a_step": round(operations / max(1, steps))}


def on_h100(cost: dict[str, float]) -> dict[str, object]:
    """Add the minutes on an H100 to a cost: those for arithmetic or for launches, whichever is more.

    Updates are assumed to take as many launches again.
    """
    arithmetic = cost["flops"] / (H100_FLOPS * UTILISATION)
    launches = cost["steps"] * 2 * cost["operations_a_step"] * LAUNCH_S
    minutes = round(max(arithmetic, launches) / 60, 1)
    assumed = f"float32, {UTILISATION:.0%} of {H100_FLOPS:.0e} FLOP/s, {LAUNCH_S:g} s a launch; drawing apart"
    return cost | {"h100_minutes": minutes, "assumed": assumed}
