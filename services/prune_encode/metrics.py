"""Prune-encode's numbers for Prometheus, read when asked for."""

from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from lookout.services.prune_encode.encoder import Encoder
from lookout.store import TensorStore


class Numbers(Collector):
    """What the vision tower ran, and what the store holds."""

    def __init__(self, encoder: Encoder, store: TensorStore) -> None:
        self._encoder = encoder
        self._store = store

    def collect(self) -> Iterator[CounterMetricFamily | GaugeMetricFamily]:
        """The numbers now."""
        yield CounterMetricFamily(
            "lookout_tower_batches", "batches of the vision tower", value=self._encoder.batches
        )
        yield CounterMetricFamily(
            "lookout_tower_patches",
            "temporal patches encoded by the vision tower",
            value=self._encoder.frames,
        )
        stats = self._store.stats()
        yield GaugeMetricFamily(
            "lookout_store_pinned_bytes", "bytes that the next stage has not read", value=stats.pinned_bytes
        )
        yield CounterMetricFamily(
            "lookout_store_materialized", "tensors made again on request", value=stats.materialized
        )
