"""What replayed chains are good for: a question on the past before it is enabled, and lost chapters."""

from lookout.backtest.chapters import (
    Rebuilt as Rebuilt,
    born_again as born_again,
    rebuild_chapters as rebuild_chapters,
)
from lookout.backtest.clips import clip_backtest as clip_backtest
from lookout.backtest.fleet import fleet_backtest as fleet_backtest
from lookout.backtest.results import Backtest as Backtest, PastIncident as PastIncident
from lookout.backtest.windows import PastWindows as PastWindows
