"""A question on the past before it is enabled: the incidents there would have been, how often, the cost."""

from lookout.backtest.clips import clip_backtest
from lookout.backtest.fleet import fleet_backtest
from lookout.backtest.results import Backtest, PastIncident
from lookout.backtest.windows import PastWindows

__all__ = ["Backtest", "PastIncident", "PastWindows", "clip_backtest", "fleet_backtest"]
