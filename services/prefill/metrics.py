"""Prefill's metrics for Prometheus."""

import json
from collections.abc import Iterable, Iterator
from threading import Lock
from typing import Final

from prometheus_client import CollectorRegistry, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from lookout.models.engines.budget import KvBudget
from lookout.services.prefill.batcher import Batcher
from lookout.services.prefill.loading import BlockCache
from lookout.wire import tenant_of

#: maximum number of pairs of camera and watch with their own time series
COUNTED: Final = 2000
REST: Final = "(others)"
"""Tenant, camera and watch of the series that holds the rest."""

#: events counted in `lookout_events_total`
EVENTS = {
    "answered": "outcomes with an answer",
    "gap": "outcomes of windows without pictures",
    "skipped": "outcomes of windows that were skipped because of overload or a quota",
    "degraded": "outcomes of windows that could not be answered",
    "gated": "outcomes of windows that were not asked because the watch's gate was closed",
    "incomplete": "outcomes of windows in which some blocks' tokens were lost or recomputed",
    "damaged": "outcomes of windows with damaged frames",
    "key": "answers from key windows",
    "full": "answers whose window continued a chain but was computed in full",
    "incremental": "answers whose window reused KV of the previous window",
    "strides": "answers from windows whose strides were each asked alone",
    "idle": "answers repeated because nothing had changed",
    "unwatched": "windows that no watch asked about",
    "stale": "records of windows that were already decided",
}
#: why a record becomes a dead letter, counted in `lookout_dead_letters_total`
REASONS = {"bad-tokens": "a stride block that contradicts itself"}


def audit_histogram(registry: CollectorRegistry) -> Histogram:
    """Register the audits' histogram: |p(yes) of the incremental answer - p(yes) of the key window|."""
    return Histogram(
        "lookout_audit_difference",
        "difference of p(yes) between a key window and its incremental answer",
        buckets=(0.0003, 0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0),
        registry=registry,
    )


def engine_numbers(batcher: Batcher, cache: BlockCache, budget: KvBudget) -> Iterator[Metric]:
    """Yield the metrics of the engine's batches, the cached blocks, and the KV held between windows."""
    yield CounterMetricFamily("lookout_engine_batches", "batches that the engine ran", value=batcher.batches)
    yield CounterMetricFamily(
        "lookout_engine_windows", "windows in the batches that the engine ran", value=batcher.windows
    )
    yield GaugeMetricFamily(
        "lookout_block_cache_bytes", "bytes of tokens of open windows, in memory", value=cache.bytes
    )
    yield GaugeMetricFamily(
        "lookout_kv_bytes", "bytes of KV that cameras hold between windows", value=budget.total
    )
    yield GaugeMetricFamily(
        "lookout_kv_limit_bytes",
        "maximum bytes of KV that cameras may hold between windows",
        value=budget.limit,
    )


class DeviceSeconds:
    """Device seconds that committed verdicts cost, by tenant, camera and watch. Thread-safe.

    A process exports the first `counted` combinations as separate series, and the rest as one sum. A camera's
    series end when another process takes the camera over.
    """

    def __init__(self, counted: int = COUNTED) -> None:
        self._counted, self._lock = counted, Lock()
        self._seconds: dict[tuple[str, str, str], float] = {}
        self._rest = 0.0

    def add(self, verdicts: Iterable[bytes | None]) -> None:
        """Add the cost of committed records of verdicts.v1."""
        for value in verdicts:
            fields = json.loads(value or b"{}")
            seconds = fields.get("cost", {}).get("device_us", 0) / 1e6
            if not seconds:
                continue
            key = (tenant_of(fields.get("tenant", "")), fields["camera"], fields["watch"])
            with self._lock:
                if key in self._seconds or len(self._seconds) < self._counted:
                    self._seconds[key] = self._seconds.get(key, 0.0) + seconds
                else:
                    self._rest += seconds

    def forget(self, camera: str) -> None:
        """Drop a camera's series, because another process counts it from now on."""
        with self._lock:
            for key in [key for key in self._seconds if key[1] == camera]:
                del self._seconds[key]

    def numbers(self) -> Iterator[Metric]:
        """Yield the metric."""
        family = CounterMetricFamily(
            "lookout_device_seconds",
            "device seconds spent on committed verdicts; at most 2000 series per process, and one more for "
            "the rest",
            labels=["tenant", "camera", "watch"],
        )
        with self._lock:
            rows = {**self._seconds, (REST, REST, REST): self._rest}
        for labels, seconds in rows.items():
            family.add_metric(labels, seconds)
        yield family
