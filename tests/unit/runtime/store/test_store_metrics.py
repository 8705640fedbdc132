"""The store's numbers for Prometheus."""

from lookout.runtime.observe import Metrics
from lookout.runtime.store import Unread, store_numbers
from tests.unit.runtime.store.store_case import kib, ref, store


def test_a_store_reports_its_bytes_reads_and_unread_time() -> None:
    kept, metrics = store(1 << 16), Metrics("decode")
    metrics.show(lambda: store_numbers(kept))
    registry = metrics.registry
    kept.put(ref("a"), kib(1), Unread(0, 4.0))
    kept.get(ref("a"))
    kept.get(ref("b"))
    assert registry.get_sample_value("lookout_store_bytes", {"tier": "memory"}) == 1024
    assert registry.get_sample_value("lookout_store_unread_seconds") == 4.0
    assert registry.get_sample_value("lookout_store_reads_total", {"outcome": "hit"}) == 1
    assert registry.get_sample_value("lookout_store_reads_total", {"outcome": "miss"}) == 1
