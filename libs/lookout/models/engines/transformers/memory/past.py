"""Reads chapters of a camera's past inside attention, and prefetches predicted clusters."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from types import TracebackType

import torch

from lookout.models.engines.transformers.memory.clock import clock
from lookout.models.engines.transformers.memory.reading import LayerContext, LayerTrace, parts_of
from lookout.past.memory import HistoryError, Past, Transfer
from lookout.past.memory.past import Choice


class PastReader:
    """Two-stage retrieval over chapters (the `Reader` of an answer).

    A prediction only decides when clusters are fetched. The layer's own query selects the clusters, and those
    that are still missing are fetched before attention begins.
    """

    def __init__(self, past: Past, traces: Sequence[LayerTrace], device: torch.device) -> None:
        self.past, self.traces, self.device = past, traces, device
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="foresee")
        self._foreseen: dict[int, frozenset[int]] = {}

    def __enter__(self) -> PastReader:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._pool.shutdown(wait=True, cancel_futures=True)

    def foresee(self, layer: int, query: torch.Tensor) -> None:
        """Start fetching what a later layer will probably need."""
        guess = query.detach().cpu().clone()
        self._pool.submit(self._fetch, layer, guess)

    def _fetch(self, layer: int, query: torch.Tensor) -> None:
        try:
            choice = self.past.choose(layer, query)
            self._foreseen[layer] = frozenset(choice.ids)
            self.past.read(choice, layer)
        except HistoryError:
            return  # the layer's own read will fail too, and raise

    def read(self, layer: int, query: torch.Tensor) -> LayerContext | None:
        """Choose clusters with the layer's own query, and return their rows in temporal order.

        Raises:
            LostChapterError: a chapter cannot be read.
        """
        trace, begun, traffic = self.traces[layer], clock(), self.past.traffic
        choice = self.past.choose(layer, query.cpu())
        chosen, before = clock(), (traffic.fetched_bytes, traffic.fetched)
        data = [part.to(self.device) for part in self.past.read(choice, layer)]
        trace.retrieve_s, trace.move_s = chosen - begun, clock() - chosen
        trace.tokens, trace.clusters, trace.scored = len(choice.frames), len(choice.slabs), choice.scored
        trace.ids = choice.ids
        trace.transfer = self._transfer(
            layer, choice, traffic.fetched_bytes - before[0], traffic.fetched - before[1]
        )
        if not data:
            return None
        frames = choice.frames
        parts = parts_of(data, choice.rows)
        return LayerContext(parts=parts, frames=frames, places=choice.places, tokens=len(frames))

    def _transfer(self, layer: int, choice: Choice, late_bytes: int, late: int) -> Transfer:
        foreseen = self._foreseen.get(layer, frozenset())
        total = sum(place.length for _, place in choice.slabs)
        return Transfer(
            early_bytes=max(0, total - late_bytes),
            early_copies=max(0, len(choice.slabs) - late),
            late_bytes=late_bytes,
            late_copies=late,
            needed=len(choice.ids),
            foreseen=len(foreseen & set(choice.ids)),
            chance=min(1.0, len(foreseen) / max(1, choice.scored)),
        )
