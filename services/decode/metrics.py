"""Decode's numbers for Prometheus, read when asked for."""

from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from lookout.store import TensorStore


class Numbers(Collector):
    """What the store holds."""

    def __init__(self, store: TensorStore) -> None:
        self._store = store

    def collect(self) -> Iterator[CounterMetricFamily | GaugeMetricFamily]:
        """The numbers now."""
        stats = self._store.stats()
        yield GaugeMetricFamily(
            "lookout_store_pinned_bytes", "bytes that the next stage has not read", value=stats.pinned_bytes
        )
        yield CounterMetricFamily(
            "lookout_store_materialized", "tensors made again on request", value=stats.materialized
        )
