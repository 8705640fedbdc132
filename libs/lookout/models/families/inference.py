"""Loads the stock models without the parts of torch and transformers that only training and sharding use.

Importing a stock model imports torch's compiler, sharded tensors and the losses of detectors (scipy,
torchvision): 1 000 modules and 170 MB that a service never uses. transformers skips most of them if scipy,
torchvision and torch.distributed seem not to be installed, so it is told that. It imports the compiler in any
case, for its decorators, so a stand-in takes the compiler's place meanwhile.
"""

from __future__ import annotations

import contextlib
import importlib
import sys
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any, Final

#: the checks that transformers makes before it imports these parts
_UNUSED: Final = ("is_torch_distributed_available", "is_scipy_available", "is_torchvision_available")
_COMPILER: Final = "torch._dynamo"
_TRACING: Final = "torch._dynamo._trace_wrapped_higher_order_op"


@contextlib.contextmanager
def inference_only() -> Iterator[None]:
    """Load models for inference only within this context.

    For services and commands: afterwards, nothing in the process may train, compile or shard a transformers
    model. If the stock models are already imported, this changes nothing.
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


class _Compiler(ModuleType):
    """Stands in for the compiler while functions are marked for it; any other use imports the real one."""

    disable = allow_in_graph = assume_constant_result = staticmethod(lambda *given, **_: _unmarked(*given))

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") and name != "__path__":  # the import system looks for some of these
            raise AttributeError(name)
        self.leave()
        return getattr(importlib.import_module(_COMPILER), name)

    def enter(self) -> None:
        """Take the compiler's place."""
        import torch

        tracing = ModuleType(_TRACING)
        tracing.TransformGetItemToIndex = _index_mode  # type: ignore[attr-defined]
        sys.modules.update({_COMPILER: self, _TRACING: tracing})
        torch._dynamo = self  # type: ignore[assignment]

    def leave(self) -> None:
        """Give the compiler's place back, unless that was already done."""
        import torch

        if sys.modules.get(_COMPILER) is self:
            del sys.modules[_COMPILER], sys.modules[_TRACING], torch._dynamo


@contextlib.contextmanager
def _without_compiler() -> Iterator[None]:
    """Let functions be marked for a compiler that is not imported. torch marks its own functions when they
    are first called, as happens when a model is built."""
    if _COMPILER in sys.modules:
        yield
        return
    compiler = _Compiler(_COMPILER)
    compiler.enter()
    try:
        yield
    finally:
        compiler.leave()


def _unmarked(function: Callable[..., Any] | None = None, *_: object, **__: object) -> Any:
    """A decorator, with or without arguments, that returns its function unchanged."""
    return function if function is not None else _unmarked


def _index_mode() -> Any:
    """Return the mode in which masks are indexed by tensors: the stock one, which needs the compiler."""
    return importlib.import_module(_TRACING).TransformGetItemToIndex()
