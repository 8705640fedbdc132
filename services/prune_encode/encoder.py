"""Batches the waiting frames of different cameras for the vision tower."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from lookout.models.vision import FrameInput, FrameTokens, Tower
from lookout.runtime.store import Array
from lookout.runtime.worker import BatchingThread, Supervisor


@dataclass(frozen=True, slots=True)
class Encoded:
    """The concatenated tokens of a block's frames, in the store's format.

    `tokens`: [kept, hidden]. `deepstack`: [levels, kept, hidden], or None. `dtype`: the store's name for the
    type of both (bfloat16 is stored as its bits). `seconds`: the block's share of its batch's time, in
    proportion to tokens.
    """

    tokens: Array
    deepstack: Array | None
    dtype: str
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class _Timed:
    """The tokens of a block's frames, and the block's share of the batch's seconds."""

    frames: list[FrameTokens]
    seconds: float


class Encoder:
    """Runs the vision tower on a separate thread. `encode` may be called from any thread.

    A batch that fails is retried in halves. These may fit in memory, and one camera's fault does not affect
    the others.

    Args:
        tower: Encodes the frames.
        limit: Maximum number of frames per batch; a single request may have more.
        supervisor: Is notified if the thread dies.
        busy: Called after each batch with the seconds that it took.
    """

    def __init__(
        self,
        tower: Tower,
        limit: int,
        supervisor: Supervisor | None = None,
        busy: Callable[[float], object] | None = None,
    ) -> None:
        self.tower = tower
        self.frames = 0
        """Number of frames encoded since the start."""
        self._limit = limit
        self._thread: BatchingThread[Sequence[FrameInput], _Timed] = BatchingThread(
            "tower", self._compute, choose=self._choose, halve=True, supervisor=supervisor, busy=busy
        )

    @property
    def batches(self) -> int:
        """Number of batches run since the start."""
        return self._thread.batches

    def encode(self, frames: Sequence[FrameInput]) -> Encoded:
        """Encode frames; return the tokens of all their kept groups.

        Raises:
            TransientError: The service is stopping.
            Exception: Whatever the tower raised.
        """
        timed = self._thread.ask(frames)
        return _joined(timed.frames, timed.seconds)

    def close(self) -> None:
        """Finish the running batch, reject the waiting requests, and end the thread."""
        self._thread.close()

    def _choose(self, waiting: Sequence[Sequence[FrameInput]]) -> list[int]:
        """Return the indices of the requests for the next batch, in order of arrival until it is full."""
        batch: list[int] = []
        frames = 0
        for index, job in enumerate(waiting):
            if frames >= self._limit:
                break
            # A block's frames stay together, so a batch may exceed the limit by one frame less than a block.
            batch.append(index)
            frames += len(job)
        return batch

    def _compute(self, batch: list[Sequence[FrameInput]]) -> list[_Timed]:
        begun = time.perf_counter()
        tokens = self.tower.encode([frame for frames in batch for frame in frames])
        if any(frame.tokens.is_cuda for frame in tokens):
            torch.cuda.synchronize()  # because CUDA calls return before the work is done
        seconds = time.perf_counter() - begun
        self.frames += len(tokens)
        total = _count(tokens)
        parts: list[_Timed] = []
        for frames in batch:
            part, tokens = tokens[: len(frames)], tokens[len(frames) :]
            parts.append(_Timed(part, seconds * _count(part) / total if total else seconds / len(batch)))
        return parts


def _count(frames: Sequence[FrameTokens]) -> int:
    return sum(len(frame.tokens) for frame in frames)


def _joined(frames: Sequence[FrameTokens], seconds: float) -> Encoded:
    tokens, dtype = _array(torch.cat([frame.tokens for frame in frames]))
    levels = [frame.deepstack for frame in frames if frame.deepstack is not None]
    deep = _array(torch.cat(levels, dim=1))[0] if levels else None
    return Encoded(tokens, deep, dtype, seconds)


def _array(tensor: torch.Tensor) -> tuple[Array, str]:
    """Copy a tensor to a host array; return it and the store's name for its type. bfloat16 becomes its
    bits.
    """
    host = tensor.detach().cpu().contiguous()
    if host.dtype is torch.bfloat16:
        return np.asarray(host.view(torch.uint16).numpy()), "bfloat16"
    array = np.asarray(host.numpy())
    return array, array.dtype.name
