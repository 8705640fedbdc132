"""A store's metrics for Prometheus."""

from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from lookout.runtime.store.store import TensorStore


def store_numbers(store: TensorStore) -> Iterator[Metric]:
    """Yield the metrics of a store: what it holds now, and how its tensors were read."""
    stats, pressure = store.stats(), store.pressure()
    gauge = GaugeMetricFamily("lookout_store_bytes", "bytes of tensors in the store", labels=["tier"])
    gauge.add_metric(["memory"], stats.memory_bytes)
    gauge.add_metric(["disk"], stats.disk_bytes)
    gauge.add_metric(["reserve"], stats.reserve_bytes)
    yield gauge
    yield GaugeMetricFamily("lookout_store_tensors", "tensors in the store", value=stats.tensors)
    yield GaugeMetricFamily(
        "lookout_store_pinned_bytes",
        "bytes kept from eviction because another service has yet to read them",
        value=stats.pinned_bytes,
    )
    yield GaugeMetricFamily(
        "lookout_store_unread_bytes",
        "bytes that the next stage has not read yet; at the limit, partitions pause",
        value=pressure.unread_bytes,
    )
    yield GaugeMetricFamily(
        "lookout_store_unread_seconds",
        "longest stream time that the next stage has not read, of all cameras, in seconds",
        value=pressure.unread_seconds,
    )
    reads = CounterMetricFamily("lookout_store_reads", "reads of tensors, by outcome", labels=["outcome"])
    reads.add_metric(["hit"], stats.hits)
    reads.add_metric(["miss"], stats.misses)
    reads.add_metric(["corrupt"], stats.corrupt)
    yield reads
    yield CounterMetricFamily("lookout_store_evicted", "tensors evicted", value=stats.evicted)
    yield CounterMetricFamily(
        "lookout_store_materialized", "tensors computed again on request", value=stats.materialized
    )
