"""What a running service shows: health, metrics, logs and traces."""

from lookout.observe.health import Health
from lookout.observe.limited_log import LimitedLog
from lookout.observe.metrics import Metrics, Probes
from lookout.observe.tracing import traced

__all__ = [
    "Health",
    "LimitedLog",
    "Metrics",
    "Probes",
    "traced",
]
