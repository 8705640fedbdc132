"""The stock models without the parts of torch and transformers that only training and sharding use.

Importing a stock model imports the compiler of torch, sharded tensors and the losses of detectors (scipy,
torchvision): 1 000 modules and 170 MB, although a service calls none of them. transformers leaves them out
where it does not find them; the compiler it takes for granted, for decorators.
"""

from __future__ import annotations

import contextlib
import importlib
import sys
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any, Final

#: what transformers looks for before it imports these parts
_UNUSED: Final = ("is_torch_distributed_available", "is_scipy_available", "is_torchvision_available")
_COMPILER: Final = "torch._dynamo"
_TRACING: Final = "torch._dynamo._trace_wrapped_higher_order_op"


@contextlib.contextmanager
def inference_only() -> Iterator[None]:
    """Within it a process that only infers loads its model.

    For services: nothing in the process trains, compiles or shards a model of transformers afterwards. Where
    the stock models are imported already, this changes nothing.
    """
    if "transformers.modeling_utils" in sys.modules:
        yield
        return
    from transformers import utils

    for name in _UNUSED:
        for module in (utils, utils.import_utils):
            setattr(module, name, _is_unavailable)
    with _without_compiler():
        yield


def _is_unavailable() -> bool:
    return False


@contextlib.contextmanager
def _without_compiler() -> Iterator[None]:
    """Within it, functions are marked for a compiler that is not imported. torch marks its own when they are
    first called, which building a model does."""
    import torch

    if _COMPILER in sys.modules:
        yield
        return
    compiler, tracing = ModuleType(_COMPILER), ModuleType(_TRACING)
    for name in ("disable", "allow_in_graph", "assume_constant_result"):
        setattr(compiler, name, _unmarked)
    tracing.TransformGetItemToIndex = _index_mode  # type: ignore[attr-defined]
    sys.modules.update({_COMPILER: compiler, _TRACING: tracing})
    torch._dynamo = compiler  # type: ignore[attr-defined]
    try:
        yield
    finally:
        del sys.modules[_COMPILER], sys.modules[_TRACING], torch._dynamo


def _unmarked(function: Callable[..., Any] | None = None, *_: object, **__: object) -> Any:
    """A decorator, with or without arguments, that returns its function as it is."""
    return function if function is not None else _unmarked


def _index_mode() -> Any:
    """The mode in which masks are indexed by tensors: the stock one, which needs the compiler."""
    return importlib.import_module(_TRACING).TransformGetItemToIndex()
