"""Decides what prefill skips when it falls behind; every skipped outcome gives the reason."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from lookout.runtime.worker import Record
from lookout.services.prefill.settings import PrefillSettings
from lookout.v1.watches_pb2 import Watch
from lookout.wire import priority_name

#: factors on the ages (from the settings) after which windows are skipped, by priority; the camera's and the
#: watches' priorities each contribute one factor
PATIENCE = {Watch.PRIORITY_LOW: 0.5, Watch.PRIORITY_NORMAL: 1.0, Watch.PRIORITY_HIGH: 2.0}


@dataclass(frozen=True, slots=True)
class Standing:
    """How long a window may wait, as a factor on the ages in the settings, and why.

    Attributes:
        share: The factor: below 1 the window is skipped earlier than others, above 1 later.
        classes: Descriptions of the priorities that led to the factor.
    """

    share: float = 1.0
    classes: tuple[str, ...] = ()

    @classmethod
    def of(cls, camera: Watch.Priority, watches: Sequence[Watch]) -> "Standing":
        """Return the standing of a window, given its camera's priority and its watches.

        The watches' highest priority counts, because computing the window costs more than one question.
        """
        normal = Watch.PRIORITY_NORMAL
        highest = max((watch.priority or normal for watch in watches), default=normal)
        standing = cls()
        for priority, name in ((camera or normal, "camera"), (highest, "watch")):
            share = PATIENCE.get(priority, 1.0)
            if share != 1.0:
                text = f"{name} of {priority_name(priority)} priority"
                standing = cls(standing.share * share, (*standing.classes, text))
        return standing


#: once a window is this many times the age, its tenant's share of this device alone counts too. A tenant
#: with little work elsewhere may send more to one device than the device can compute, and the windows would
#: wait for ever
_ALONE = 2.0
#: fractions of `skip_after_s` from which every second window is skipped, and from which descriptions and
#: audits are skipped
_THIN, _SHED = 1 / 2, 1 / 4
#: describes how far a tenant is above its fair share of all devices (False) or of this device alone (True);
#: None: it is not
Excess = Callable[[bool], str | None]


class OverloadPolicy:
    """Decides what to skip by a record's age.

    Skips first what users need least: descriptions and audits, then every second window, then all windows. A
    camera's low priority halves the ages for its windows, and its high priority doubles them; the highest
    priority among its watches does the same once more. If tenants share the device, old windows of tenants
    above their fair share are skipped.
    """

    def __init__(self, settings: PrefillSettings, clock: Callable[[], float] = time.time) -> None:
        self._settings = settings
        self._clock = clock

    def sheds(self, record: Record) -> bool:
        """Return whether the window is computed without descriptions and audit."""
        return self._is_older(record, self._after(_SHED))

    @property
    def shed_reason(self) -> str:
        """The reason in a verdict without a description."""
        return f"overload: older than {self._after(_SHED):g} s, not described"

    def skips(self, record: Record, window: int, standing: Standing, excess: Excess) -> str | None:
        """Return why the window is not answered; None if it is.

        Args:
            record: The record of the window's newest block.
            window: The window's number.
            standing: The standing of the window's camera and watches.
            excess: Describes by how much the window's tenant is above its fair share.
        """
        fair_s = self._settings.tenant_fair_after_s
        for alone, limit_s in ((False, fair_s), (True, _ALONE * fair_s)):
            if self._is_older(record, limit_s) and (why := excess(alone)) is not None:
                return f"overload: older than {limit_s:g} s, and {why}"
        of_class = "".join(f", {name}" for name in standing.classes)
        skip_s, thin_s = (self._after(share, standing.share) for share in (1, _THIN))
        if self._is_older(record, skip_s):
            return f"overload: older than {skip_s:g} s{of_class}"
        if window % 2 and self._is_older(record, thin_s):
            return f"overload: older than {thin_s:g} s, every second window{of_class}"
        return None

    def _after(self, share: float, standing: float = 1.0) -> float | None:
        """Return `skip_after_s` times both factors; None: never skip."""
        skip_after_s = self._settings.skip_after_s
        return None if skip_after_s is None else share * standing * skip_after_s

    def _is_older(self, record: Record, limit: float | None) -> bool:
        # The age by Kafka's time stamp, because cameras' clocks may be wrong.
        return limit is not None and self._clock() - record.timestamp_ms / 1000 > limit
