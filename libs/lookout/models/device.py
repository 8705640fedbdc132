"""The data type and free memory that a device has for a model."""

from __future__ import annotations

import os
from functools import cache
from typing import TYPE_CHECKING, Literal

from lookout.cores import usable_cores
from lookout.models.errors import ModelError

if TYPE_CHECKING:
    import torch

Dtype = Literal["auto", "float32", "bfloat16", "float16"]
#: the lowest CUDA compute capability with native bfloat16 (Ampere)
_BFLOAT16 = (8, 0)


def check_device(device: str) -> None:
    """Check that a model can run on a device of this machine.

    Raises:
        ModelError: torch cannot place a model on it.
    """
    import torch

    try:
        if torch.device(device).type == "meta":  # a device whose tensors have no values
            raise RuntimeError("Expected one of")
        torch.empty(1, device=device)
    except (RuntimeError, AssertionError) as error:
        why = str(error).splitlines()[0].partition(". ")[0]
        if why.startswith("Expected one of"):  # torch lists every device type it knows
            why = "give cpu, cuda or cuda:0"
        raise ModelError(f"a model cannot run on {device!r}: {why}") from None


def limit_threads() -> None:
    """Limit torch's threads to the number of cores that this process may use. torch respects the process's
    CPU affinity, but not a container's CPU limit. OMP_NUM_THREADS takes precedence."""
    import torch

    if "OMP_NUM_THREADS" not in os.environ and torch.get_num_threads() > (cores := usable_cores()):
        torch.set_num_threads(cores)
    _compute_in_forks()


@cache
def _compute_in_forks() -> None:
    """Make forked processes, such as workers of torch's DataLoader, compute on one thread. A fork does not
    inherit torch's OpenMP threads and would wait for them forever."""
    from torch._C import set_num_threads  # vLLM replaces torch's public function with one that does nothing

    os.register_at_fork(after_in_child=lambda: set_num_threads(1))


def default_dtype(device: str) -> str:
    """Return the default data type of a model on `device`.

    On a CPU: float32, with which all engines give equal answers. On a GPU: bfloat16 if the GPU supports it
    natively, else float16, because float32 would take twice the memory and several times as long.
    """
    if not device.startswith("cuda"):
        return "float32"
    import torch

    if not torch.cuda.is_available():
        return "float32"  # there is no GPU; loading the model will report it
    return "bfloat16" if torch.cuda.get_device_capability(device) >= _BFLOAT16 else "float16"


def dtype_of(dtype: torch.dtype | str | None, device: str | torch.device) -> torch.dtype:
    """Return the torch data type with a name; for None and "auto", the device's `default_dtype`."""
    import torch

    if dtype is None or dtype == "auto":
        dtype = default_dtype(str(device))
    chosen: torch.dtype = getattr(torch, dtype) if isinstance(dtype, str) else dtype
    return chosen


def engine_device(engine: str, device: str) -> str:
    """Return the device on which an engine's model runs: `device`, but for vLLM the device for which its
    wheel was built."""
    if engine == "transformers":
        return device
    import torch

    return "cuda" if torch.cuda.is_available() else "cpu"


def free_bytes(device: str) -> int | None:
    """Return the free memory of a GPU in bytes; None if `device` is not a GPU of this machine."""
    if not device.startswith("cuda"):
        return None
    import torch

    return int(torch.cuda.mem_get_info(device)[0]) if torch.cuda.is_available() else None
