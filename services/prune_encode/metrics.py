"""Prune-encode's metrics for Prometheus."""

from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, Metric

from lookout.services.prune_encode.encoder import Encoder

#: events counted in `lookout_events_total`
EVENTS = {
    "blocks": "stride blocks written",
    "empty_blocks": "blocks without a frame",
    "frames": "frames in blocks",
    "lost_frames": "frames whose pixels were not available",
    "patches": "patches of the frames",
    "patches_encoded": "patches that went through the vision tower",
    "tokens": "tokens kept",
    "over_quota": "blocks left out because their camera used up its quota",
    "stale": "records of epochs that had ended",
}
#: why its input becomes a dead letter, in `lookout_dead_letters_total`
REASONS = {
    "bad-frames": "a record of frames that contradicts itself",
    "wrong-input": "frames decoded for another model's input",
}


def tower_numbers(encoder: Encoder) -> Iterator[Metric]:
    """Yield the metrics of the vision tower's work."""
    yield CounterMetricFamily("lookout_tower_batches", "batches of the vision tower", value=encoder.batches)
    yield CounterMetricFamily(
        "lookout_tower_patches", "temporal patches encoded by the vision tower", value=encoder.frames
    )
