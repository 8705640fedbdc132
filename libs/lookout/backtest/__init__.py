"""A question on the past before it is enabled: the incidents there would have been, and what they cost."""

from lookout.backtest.clips import clip_backtest as clip_backtest
from lookout.backtest.results import Backtest as Backtest, PastIncident as PastIncident
from lookout.backtest.windows import PastWindows as PastWindows
