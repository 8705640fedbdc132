"""Prefill's numbers for Prometheus, read when asked for."""

from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily
from prometheus_client.registry import Collector

from lookout.services.prefill.batcher import Batcher
from lookout.services.prefill.handler import PrefillHandler

__all__ = ["Numbers"]


class Numbers(Collector):
    """Outcomes by kind, and how many windows shared a batch."""

    def __init__(self, handler: PrefillHandler, batcher: Batcher) -> None:
        self._handler = handler
        self._batcher = batcher

    def collect(self) -> Iterator[CounterMetricFamily]:
        """The numbers now."""
        outcomes = CounterMetricFamily("lookout_windows", "outcomes by kind", labels=["outcome"])
        for name, count in sorted(self._handler.counts.items()):
            outcomes.add_metric([name.removeprefix("OUTCOME_").lower()], count)
        yield outcomes
        yield CounterMetricFamily("lookout_engine_batches", "batches run", value=self._batcher.batches)
        yield CounterMetricFamily("lookout_engine_windows", "windows in batches", value=self._batcher.windows)
