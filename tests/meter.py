"""The memory that a computation's tensors need."""

from __future__ import annotations

import weakref
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class Meter(TorchDispatchMode):
    """The most bytes of tensors alive at once among those made under it."""

    def __init__(self) -> None:
        super().__init__()
        self.alive = self.peak = 0
        self.seen: set[int] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        for each in tree_leaves(out):
            if isinstance(each, torch.Tensor):
                self.take(each)
        return out

    def take(self, tensor: torch.Tensor) -> None:
        storage = tensor.untyped_storage()
        name = storage._cdata
        if name in self.seen:
            return
        size = storage.nbytes()
        self.seen.add(name)
        self.alive += size
        self.peak = max(self.peak, self.alive)

        def gone() -> None:
            self.alive -= size
            self.seen.discard(name)

        weakref.finalize(storage, gone)
