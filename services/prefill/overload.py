"""What prefill leaves out when it falls behind; every outcome says so."""

import time
from collections.abc import Callable, Iterable

from lookout.services.prefill.settings import PrefillSettings
from lookout.v1.watches_pb2 import Watch
from lookout.worker import Record

#: how much of the settings' ages a window may have before it is left out, by its priority
PATIENCE = {Watch.PRIORITY_LOW: 0.5, Watch.PRIORITY_NORMAL: 1.0, Watch.PRIORITY_HIGH: 2.0}


def priority_of(watches: Iterable[Watch]) -> Watch.Priority:
    """The priority of a window: that of its most important watch; the window costs more than a question."""
    return max((watch.priority or Watch.PRIORITY_NORMAL for watch in watches), default=Watch.PRIORITY_NORMAL)


class OverloadPolicy:
    """Compares a record's age with the settings. What users need least is left out first:
    descriptions and audits, then every second window, then all windows; of windows, those of low priority
    at half the age and those of high priority at twice the age."""

    def __init__(self, settings: PrefillSettings, clock: Callable[[], float] = time.time) -> None:
        self._settings = settings
        self._clock = clock

    def sheds(self, record: Record) -> bool:
        """Whether the window goes without descriptions and without an audit."""
        return self._is_older(record, self._settings.shed_after_s)

    @property
    def shed_reason(self) -> str:
        """Why there is no description."""
        return f"overload: older than {self._settings.shed_after_s:g} s, not described"

    def skips(self, record: Record, window: int, priority: Watch.Priority) -> str | None:
        """Why the window is not answered; None where it is."""
        share = PATIENCE.get(priority, 1.0)
        of_class = "" if share == 1.0 else f", {Watch.Priority.Name(priority)[9:].lower()} priority"
        skip_s, thin_s = (
            None if limit_s is None else share * limit_s
            for limit_s in (self._settings.skip_after_s, self._settings.thin_after_s)
        )
        if self._is_older(record, skip_s):
            return f"overload: older than {skip_s:g} s{of_class}"
        if window % 2 and self._is_older(record, thin_s):
            return f"overload: older than {thin_s:g} s, every second window{of_class}"
        return None

    def _is_older(self, record: Record, limit: float | None) -> bool:
        # Age by Kafka's time stamp of the record: the cameras' own clocks may be wrong.
        return limit is not None and self._clock() - record.timestamp_ms / 1000 > limit
