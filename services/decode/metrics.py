"""Decode's numbers for Prometheus, read when asked for."""

from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from lookout.services.decode.handler import DecodeHandler
from lookout.store import TensorStore

__all__ = ["Numbers"]


class Numbers(Collector):
    """What became of segments, and what the store holds."""

    def __init__(self, handler: DecodeHandler, store: TensorStore) -> None:
        self._handler = handler
        self._store = store

    def collect(self) -> Iterator[CounterMetricFamily | GaugeMetricFamily]:
        """The numbers now."""
        done = CounterMetricFamily(
            "lookout_decode",
            "segments and sampled frames, damaged frames, gaps, late segments",
            labels=["what"],
        )
        for what, count in sorted(self._handler.counts.items()):
            done.add_metric([what], count)
        yield done
        stats = self._store.stats()
        yield GaugeMetricFamily(
            "lookout_store_pinned_bytes", "bytes that the next stage has not read", value=stats.pinned_bytes
        )
        yield CounterMetricFamily(
            "lookout_store_materialized", "tensors made again on request", value=stats.materialized
        )
