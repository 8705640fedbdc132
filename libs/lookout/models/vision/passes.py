"""Runs passes through a tower's stock layers; on a GPU in a few padded shapes, which are replayed as CUDA
graphs.

Pruning gives each pass a different number of rows, and a small pass takes as long as launching its kernels.
Padded to one of five sizes, a pass can be replayed with one call. The padding rows are one more sequence:
they attend to nothing else, nothing attends to them, and their results are dropped. Larger passes use a GPU
well without padding.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from threading import Lock
from typing import Final

import torch

from lookout.models.vision.sequences import Sequences

#: sizes of the padded shapes, in multiples of the rows of a full picture
SIZES: Final = (1, 2, 3, 5, 8)
FRAME_LIMIT: Final = 32
WINDOW_LIMIT: Final = 512
_ORDERS: Final = frozenset({"window_index"})

Tensors = Mapping[str, torch.Tensor]
Run = Callable[[Tensors, Sequence[Sequences]], tuple[torch.Tensor, ...]]


@dataclass(frozen=True, slots=True)
class _Graph:
    """A captured pass: the buffers of its inputs, boundaries and results."""

    graph: torch.cuda.CUDAGraph
    tensors: Tensors
    boundaries: tuple[torch.Tensor, ...]
    results: tuple[torch.Tensor, ...]


class Passes:
    """Runs packed rows through a tower's layers.

    Args:
        run: Computes the results of row-wise tensors within sequences. Tensors and results may have one entry
            per several rows.
        device: The tower's device.
    """

    def __init__(self, run: Run, device: torch.device) -> None:
        self._run, self._device = run, device
        self._picture = 0
        self._graphs: dict[int, _Graph] = {}
        self._lock = Lock()

    def pad(self, picture: int) -> None:
        """Pad passes from now on; `picture`: rows of a picture of which everything is kept."""
        self._picture = picture

    def __call__(self, tensors: Tensors, lengths: Sequence[Sequence[int]]) -> tuple[torch.Tensor, ...]:
        """Compute the results of all rows.

        Args:
            tensors: Inputs by name, with rows along the first axis.
            lengths: Rows of each sequence: of the frames and, if the layers have windows, of the windows.
        """
        rows = sum(lengths[0])
        size = self._size(rows, lengths)
        if size is None:
            return self._run(tensors, [Sequences.of(part, self._device) for part in lengths])
        padded = {
            name: _padded(name, tensor, tensor.shape[0] * size // rows) for name, tensor in tensors.items()
        }
        limits = (FRAME_LIMIT, WINDOW_LIMIT)
        filled = [
            [*part, size - rows, *[0] * (limit - len(part))]
            for part, limit in zip(lengths, limits, strict=False)
        ]
        if self._device.type == "cuda" and next(iter(tensors.values())).dtype != torch.float32:
            results = self._replayed(size, padded, filled)
        else:  # in float32, attention has a shape per length, so it cannot be replayed
            results = self._run(padded, [Sequences.of(part, self._device) for part in filled])
        return tuple(result[: result.shape[0] * rows // size] for result in results)

    def _size(self, rows: int, lengths: Sequence[Sequence[int]]) -> int | None:
        """Return the number of rows of the padded shape; None: the pass is not padded."""
        if len(lengths[0]) > FRAME_LIMIT or any(len(part) > WINDOW_LIMIT for part in lengths[1:]):
            return None
        return next((size * self._picture for size in SIZES if size * self._picture >= rows), None)

    def _replayed(
        self, size: int, tensors: Tensors, lengths: Sequence[Sequence[int]]
    ) -> tuple[torch.Tensor, ...]:
        with self._lock:  # a graph has one set of input buffers
            if size not in self._graphs:
                self._graphs[size] = self._captured(size, tensors, lengths)
            captured = self._graphs[size]
            for name, tensor in tensors.items():
                captured.tensors[name].copy_(tensor)
            for boundaries, part in zip(captured.boundaries, lengths, strict=True):
                boundaries.copy_(torch.tensor([0, *part]).cumsum(0))
            captured.graph.replay()
            return tuple(result.clone() for result in captured.results)

    def _captured(self, size: int, tensors: Tensors, lengths: Sequence[Sequence[int]]) -> _Graph:
        inputs = {name: tensor.clone() for name, tensor in tensors.items()}
        # The length of the longest sequence is a kernel argument, which the graph freezes, so use the
        # maximum.
        sequences = [replace(Sequences.of(part, self._device), lengths=(size,), index=()) for part in lengths]
        current = torch.cuda.current_stream(self._device)
        side = torch.cuda.Stream(self._device)  # type: ignore[no-untyped-call]
        side.wait_stream(current)
        with torch.cuda.stream(side):
            for _ in range(2):  # libraries choose and load their kernels, which a capture does not allow
                self._run(inputs, sequences)
        current.wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, capture_error_mode="thread_local"):
            results = self._run(inputs, sequences)
        return _Graph(graph, inputs, tuple(part.on_device for part in sequences), results)


def _padded(name: str, tensor: torch.Tensor, count: int) -> torch.Tensor:
    """Return a tensor padded to `count` rows: with zeros or, for a permutation, with the indices that
    follow."""
    if name in _ORDERS:
        further = torch.arange(tensor.shape[0], count, dtype=tensor.dtype, device=tensor.device)
        return torch.cat([tensor, further])
    return torch.cat([tensor, tensor.new_zeros(count - tensor.shape[0], *tensor.shape[1:])])
