"""Frames of different cameras that wait at the same time share one batch of the vision tower."""

import threading
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from queue import Empty, SimpleQueue

import numpy as np
import torch

from lookout.store import Array
from lookout.vision import FrameInput, FrameTokens, Tower

__all__ = ["Encoded", "Encoder"]

_Item = tuple[Sequence[FrameInput], "Future[list[FrameTokens]]"]


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
    """Owns the tower's thread. `encode` may be called from any thread; it waits for no batch to fill."""

    def __init__(self, tower: Tower, limit: int) -> None:
        self.tower = tower
        self._limit = limit
        self._queue: SimpleQueue[_Item | None] = SimpleQueue()
        self._closed = False
        self.batches = 0
        self.frames = 0
        self._thread = threading.Thread(target=self._run, name="tower", daemon=True)
        self._thread.start()

    def encode(self, frames: Sequence[FrameInput]) -> Encoded:
        """Tokens of the kept groups of all frames. Raises what the tower raises."""
        if self._closed:
            raise RuntimeError("the encoder is closed")
        future: Future[list[FrameTokens]] = Future()
        self._queue.put((frames, future))
        return _joined(future.result())

    def close(self) -> None:
        """Finish the running batch and refuse what waits."""
        self._closed = True
        self._queue.put(None)
        self._thread.join(timeout=30)

    def _run(self) -> None:
        while (batch := self._next()) is not None:
            frames = [frame for each, _ in batch for frame in each]
            try:
                tokens = self.tower.encode(frames)
            except Exception:
                self._one_by_one(batch)
                continue
            self.batches += 1
            self.frames += len(frames)
            for each, future in batch:
                future.set_result(tokens[: len(each)])
                tokens = tokens[len(each) :]
        self._refuse()

    def _one_by_one(self, batch: list[_Item]) -> None:
        """A batch failed: each job alone, so that one camera's fault stays its own."""
        for frames, future in batch:
            try:
                future.set_result(self.tower.encode(frames))
            except Exception as error:
                future.set_exception(error)

    def _next(self) -> list[_Item] | None:
        """Everything that waits, up to the batch size; None at the end."""
        first = self._queue.get()
        if first is None:
            return None
        batch, size = [first], len(first[0])
        while size < self._limit:
            try:
                item = self._queue.get_nowait()
            except Empty:
                break
            if item is None:
                self._queue.put(None)
                break
            batch.append(item)
            size += len(item[0])
        return batch

    def _refuse(self) -> None:
        while True:
            try:
                item = self._queue.get_nowait()
            except Empty:
                return
            if item is not None:
                item[1].set_exception(RuntimeError("the encoder is closed"))


def _joined(frames: Sequence[FrameTokens]) -> Encoded:
    tokens, dtype = _array(torch.cat([each.tokens for each in frames]))
    levels = [each.deepstack for each in frames if each.deepstack is not None]
    deep = _array(torch.cat(levels, dim=1))[0] if levels else None
    return Encoded(tokens, deep, dtype)


def _array(tensor: torch.Tensor) -> tuple[Array, str]:
    """A host array and the store's name of its type; bfloat16 as its bits."""
    host = tensor.detach().cpu().contiguous()
    if host.dtype is torch.bfloat16:
        return np.asarray(host.view(torch.uint16).numpy()), "bfloat16"
    array = np.asarray(host.numpy())
    return array, array.dtype.name
