"""Fetches clusters before the layer that needs them, and fetches the clusters that were not predicted.

A prediction only decides when a cluster is moved to the device. Which clusters are read is decided by the
layer's own query, and missing clusters are fetched before attention begins. An answer is therefore bit for
bit the same with and without prefetching.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from enum import StrEnum
from types import TracebackType

import torch

from lookout.past.memory.clusters import Cluster
from lookout.past.memory.errors import HistoryError

Move = Callable[[Cluster], torch.Tensor]


class Predictor(StrEnum):
    """How the next layer's clusters are predicted.

    Attributes:
        NONE: Nothing is fetched ahead.
        RESIDUAL: The next layer's norm and query projection are applied to the state after the current
            layer's attention. Clusters move while the current layer's feed-forward part is computed.
    """

    NONE = "none"
    RESIDUAL = "residual"


@dataclass(frozen=True, slots=True)
class Transfer:
    """What one layer moved to the device.

    Attributes:
        early_bytes: Bytes of needed clusters that were predicted.
        early_copies: Number of needed clusters that were predicted.
        late_bytes: Bytes of needed clusters that were not predicted.
        late_copies: Number of needed clusters that were not predicted.
        wasted_bytes: Bytes of clusters that were predicted but not needed.
        wasted_copies: Number of clusters that were predicted but not needed.
        resident_bytes: Bytes of needed clusters that were on the device already.
        needed: Number of clusters that the layer read.
        foreseen: Number of needed clusters that were predicted, including resident ones.
        chance: Share of the needed clusters that a random prediction of the same size would contain.
    """

    early_bytes: int = 0
    early_copies: int = 0
    late_bytes: int = 0
    late_copies: int = 0
    wasted_bytes: int = 0
    wasted_copies: int = 0
    resident_bytes: int = 0
    needed: int = 0
    foreseen: int = 0
    chance: float = 0.0


class Prefetcher:
    """Moves clusters to the device for one answer. Predicted clusters are moved on a separate thread.

    Args:
        move: Moves a cluster's KV to the device and returns it.
        resident: Returns whether the cluster with an id is on the device.
        ahead: Whether predicted clusters are moved ahead.
    """

    def __init__(self, move: Move, resident: Callable[[int], bool], *, ahead: bool = True) -> None:
        self._move, self._resident = move, resident
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="prefetch") if ahead else None
        self._moving: dict[int, dict[int, tuple[Cluster, Future[torch.Tensor] | None]]] = {}

    def __enter__(self) -> Prefetcher:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._pool is not None:
            self._pool.shutdown(wait=True, cancel_futures=True)

    def foresee(self, layer: int, clusters: Sequence[Cluster]) -> None:
        """Begin to move the clusters that `layer` will probably need."""
        if self._pool is None:
            return
        self._moving[layer] = {
            cluster.id: (
                cluster,
                None if self._resident(cluster.id) else self._pool.submit(self._move, cluster),
            )
            for cluster in clusters
        }

    def complete(
        self, layer: int, clusters: Sequence[Cluster], candidates: int
    ) -> tuple[list[torch.Tensor], Transfer]:
        """Return the KV of the clusters that `layer` needs, in the order of `clusters`, and what was moved.

        Clusters that were not predicted are moved now. `candidates` is the number of clusters among which the
        layer chose.

        Raises:
            HistoryError: a cluster could not be moved.
        """
        foreseen = self._moving.pop(layer, {})
        early = [0, 0]
        late = [0, 0]
        resident = 0
        out: list[torch.Tensor] = []
        for cluster in clusters:
            size = cluster.slab.bytes
            future = foreseen[cluster.id][1] if cluster.id in foreseen else None
            try:
                if self._resident(cluster.id):
                    resident += size
                    out.append(self._move(cluster))
                elif future is not None:
                    early = [early[0] + size, early[1] + 1]
                    out.append(future.result())
                else:
                    late = [late[0] + size, late[1] + 1]
                    out.append(self._move(cluster))
            except (OSError, RuntimeError) as error:
                raise HistoryError(f"layer {layer}: cluster {cluster.id} cannot be read: {error}") from error
        needed = {cluster.id for cluster in clusters}
        wasted = [
            c.slab.bytes for c, future in foreseen.values() if future is not None and c.id not in needed
        ]
        guessed = len(needed & foreseen.keys())
        return out, Transfer(
            early_bytes=early[0],
            early_copies=early[1],
            late_bytes=late[0],
            late_copies=late[1],
            wasted_bytes=sum(wasted),
            wasted_copies=len(wasted),
            resident_bytes=resident,
            needed=len(needed),
            foreseen=guessed,
            chance=min(1.0, len(foreseen) / max(1, candidates)),
        )
