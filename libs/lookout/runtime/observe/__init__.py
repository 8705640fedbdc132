"""Observability of a running service: health, metrics, logs and traces."""

from lookout.runtime.observe.health import Health as Health
from lookout.runtime.observe.limited_log import LimitedLog as LimitedLog
from lookout.runtime.observe.metrics import Metrics as Metrics, Probes as Probes
from lookout.runtime.observe.tracing import traced as traced
