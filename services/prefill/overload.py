"""What prefill leaves out when it falls behind; every outcome says so."""

import time
from collections.abc import Callable

from lookout.services.prefill.settings import PrefillSettings
from lookout.worker import Record


class OverloadPolicy:
    """Compares a record's age with the settings. What users need least is left out first:
    descriptions and audits, then every second window, then all windows."""

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

    def skips(self, record: Record, window: int) -> str | None:
        """Why the window is not answered; None where it is."""
        settings = self._settings
        if self._is_older(record, settings.skip_after_s):
            return f"overload: older than {settings.skip_after_s:g} s"
        if window % 2 and self._is_older(record, settings.thin_after_s):
            return f"overload: older than {settings.thin_after_s:g} s, every second window"
        return None

    def _is_older(self, record: Record, limit: float | None) -> bool:
        # Age by Kafka's time stamp of the record: the cameras' own clocks may be wrong.
        return limit is not None and self._clock() - record.timestamp_ms / 1000 > limit
