"""Prune-encode's numbers for Prometheus."""

from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, Metric

from lookout.services.prune_encode.encoder import Encoder


def tower_numbers(encoder: Encoder) -> Iterator[Metric]:
    """What the vision tower ran so far."""
    yield CounterMetricFamily("lookout_tower_batches", "batches of the vision tower", value=encoder.batches)
    yield CounterMetricFamily(
        "lookout_tower_patches", "temporal patches encoded by the vision tower", value=encoder.frames
    )
