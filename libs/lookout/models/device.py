"""What a device offers a model: a data type and free memory."""

from __future__ import annotations

import os
from functools import cache
from typing import TYPE_CHECKING, Literal

from lookout.cores import usable_cores
from lookout.models.errors import ModelError

if TYPE_CHECKING:
    import torch

Dtype = Literal["auto", "float32", "bfloat16", "float16"]
#: CUDA's compute capability from which on bfloat16 is computed natively (Ampere)
_BFLOAT16 = (8, 0)


def check_device(device: str) -> None:
    """Refuse a device that this machine does not have.

    Raises:
        ModelError: torch cannot place a model on it.
    """
    import torch

    try:
        if torch.device(device).type == "meta":  # tensors without values
            raise RuntimeError("Expected one of")
        torch.empty(1, device=device)
    except (RuntimeError, AssertionError) as error:
        why = str(error).splitlines()[0].partition(". ")[0]
        if why.startswith("Expected one of"):  # torch names every device that it was ever built for
            why = "it is not one of cpu, cuda, cuda:0"
        raise ModelError(f"a model cannot run on {device!r}: {why}") from None


def limit_threads() -> None:
    """Give torch no more threads than this process may use cores: torch knows its affinity, but no CPU limit
    of a container. OMP_NUM_THREADS has the last word."""
    import torch

    if "OMP_NUM_THREADS" not in os.environ and torch.get_num_threads() > (cores := usable_cores()):
        torch.set_num_threads(cores)
    _compute_in_forks()


@cache
def _compute_in_forks() -> None:
    """A forked process has none of the threads of torch's OpenMP, and would wait for them for ever: it
    computes on one thread, as a worker of torch's DataLoader does."""
    from torch._C import set_num_threads  # vLLM puts one that does nothing in the place of torch's public one

    os.register_at_fork(after_in_child=lambda: set_num_threads(1))


def default_dtype(device: str) -> str:
    """The data type of a model on `device`: float32 on the CPU, where the answers of every engine are equal;
    bfloat16 on a GPU that computes it, else float16, because float32 would take twice the memory and a
    multiple of the time there.
    """
    if not device.startswith("cuda"):
        return "float32"
    import torch

    if not torch.cuda.is_available():
        return "float32"  # loading the model says what is wrong with the device
    return "bfloat16" if torch.cuda.get_device_capability(device) >= _BFLOAT16 else "float16"


def dtype_of(dtype: torch.dtype | str | None, device: str | torch.device) -> torch.dtype:
    """A data type by its name; None or "auto": `default_dtype` of the device."""
    import torch

    if dtype is None or dtype == "auto":
        dtype = default_dtype(str(device))
    chosen: torch.dtype = getattr(torch, dtype) if isinstance(dtype, str) else dtype
    return chosen


def engine_device(engine: str, device: str) -> str:
    """Where an engine's model runs: vLLM takes the device that its wheel was built for."""
    if engine == "transformers":
        return device
    import torch

    return "cuda" if torch.cuda.is_available() else "cpu"


def free_bytes(device: str) -> int | None:
    """Memory of a GPU that nothing uses; None: `device` is not a GPU of this machine."""
    if not device.startswith("cuda"):
        return None
    import torch

    return int(torch.cuda.mem_get_info(device)[0]) if torch.cuda.is_available() else None
