"""Prune-encode's metrics for Prometheus."""

from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, Metric

from lookout.services.prune_encode.encoder import Encoder

#: events counted in `lookout_events_total`
EVENTS = {
    "blocks": "stride blocks written",
    "empty_blocks": "blocks without a frame",
    "frames": "frames in stride blocks",
    "lost_frames": "frames omitted from blocks because their pixels were not available",
    "patches": "patches in the frames",
    "patches_encoded": "patches that the vision tower encoded",
    "tokens": "tokens kept",
    "over_quota": "blocks skipped because their camera had used up its quota",
    "stale": "records of epochs that had already ended",
}
#: why a record becomes a dead letter, counted in `lookout_dead_letters_total`
REASONS = {
    "bad-frames": "a frames record that contradicts itself",
    "wrong-input": "frames that were decoded for another model's input",
}


def tower_numbers(encoder: Encoder) -> Iterator[Metric]:
    """Yield the metrics of the vision tower's work."""
    yield CounterMetricFamily(
        "lookout_tower_batches", "batches that the vision tower ran", value=encoder.batches
    )
    yield CounterMetricFamily(
        "lookout_tower_patches", "temporal patches encoded by the vision tower", value=encoder.frames
    )
