"""What a running service shows: health, metrics, logs and traces."""

from lookout.observe.health import Health as Health
from lookout.observe.limited_log import LimitedLog as LimitedLog
from lookout.observe.metrics import Metrics as Metrics, Probes as Probes
from lookout.observe.tracing import traced as traced
