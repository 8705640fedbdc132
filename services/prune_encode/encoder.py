"""Frames of different cameras that wait at the same time share one batch of the vision tower."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from lookout.models.vision import FrameInput, FrameTokens, Tower
from lookout.runtime.store import Array
from lookout.runtime.worker import BatchingThread, Supervisor


@dataclass(frozen=True, slots=True)
class Encoded:
    """Tokens of a block's frames one after another, as the store keeps them.

    tokens: [kept, hidden]; deepstack: [levels, kept, hidden], or None; dtype: the store's name of both
    (bfloat16 travels as its bits).
    """

    tokens: Array
    deepstack: Array | None
    dtype: str


class Encoder:
    """The vision tower on a thread of its own. `encode` may be called from any thread.

    A batch that fails runs again in halves, so that it fits a device with less memory, and one camera's fault
    stays its own.

    Args:
        tower: Encodes the frames.
        limit: Frames of a batch; one request may have more.
        supervisor: Told when the thread dies.
        busy: Told the seconds of each batch.
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
        """Frames encoded since the start."""
        self._limit = limit
        self._thread: BatchingThread[Sequence[FrameInput], list[FrameTokens]] = BatchingThread(
            "tower", self._compute, choose=self._choose, halve=True, supervisor=supervisor, busy=busy
        )

    @property
    def batches(self) -> int:
        """Batches run since the start."""
        return self._thread.batches

    def encode(self, frames: Sequence[FrameInput]) -> Encoded:
        """Tokens of the kept groups of all frames.

        Raises:
            TransientError: The service ends.
            Exception: What the tower raises.
        """
        return _joined(self._thread.ask(frames))

    def close(self) -> None:
        """Finish the running batch and refuse what waits."""
        self._thread.close()

    def _choose(self, waiting: Sequence[Sequence[FrameInput]]) -> list[int]:
        """In order of arrival, until the batch is full."""
        batch: list[int] = []
        frames = 0
        for index, job in enumerate(waiting):
            if frames >= self._limit:
                break
            # A block's frames stay together, so a batch may be larger than the limit by all but one of
            # them.
            batch.append(index)
            frames += len(job)
        return batch

    def _compute(self, batch: list[Sequence[FrameInput]]) -> list[list[FrameTokens]]:
        tokens = self.tower.encode([frame for frames in batch for frame in frames])
        self.frames += len(tokens)
        parts: list[list[FrameTokens]] = []
        for frames in batch:
            parts.append(tokens[: len(frames)])
            tokens = tokens[len(frames) :]
        return parts


def _joined(frames: Sequence[FrameTokens]) -> Encoded:
    tokens, dtype = _array(torch.cat([frame.tokens for frame in frames]))
    levels = [frame.deepstack for frame in frames if frame.deepstack is not None]
    deep = _array(torch.cat(levels, dim=1))[0] if levels else None
    return Encoded(tokens, deep, dtype)


def _array(tensor: torch.Tensor) -> tuple[Array, str]:
    """A host array and the store's name of its type; bfloat16 as its bits."""
    host = tensor.detach().cpu().contiguous()
    if host.dtype is torch.bfloat16:
        return np.asarray(host.view(torch.uint16).numpy()), "bfloat16"
    array = np.asarray(host.numpy())
    return array, array.dtype.name
