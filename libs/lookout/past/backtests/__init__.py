"""Tries a question on the past before it is enabled: which incidents it would have opened, and what it costs.

The model's libraries are loaded when windows are first asked: collecting the parts of a job needs none of
them.
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
