"""Back-tests a question on the past: which incidents it would have opened, and what it costs.

The model's libraries are loaded only when a question is first asked, because joining the parts of a job does
not need them.
"""

from typing import TYPE_CHECKING

from lookout.lazy import lazy_names

if TYPE_CHECKING:
    from lookout.past.backtests.clips import clip_backtest as clip_backtest, clip_cameras as clip_cameras
    from lookout.past.backtests.results import (
        Backtest as Backtest,
        PastIncident as PastIncident,
        PastOutcome as PastOutcome,
    )
    from lookout.past.backtests.windows import PastWindows as PastWindows

__getattr__ = lazy_names(__name__)
