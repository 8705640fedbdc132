"""What replayed chains are good for: a question on the past before it is enabled, and lost chapters."""

from lookout.backtest.chapters import Rebuilt, born_again, rebuild_chapters
from lookout.backtest.clips import clip_backtest
from lookout.backtest.fleet import fleet_backtest
from lookout.backtest.results import Backtest, PastIncident
from lookout.backtest.windows import PastWindows

__all__ = [
    "Backtest",
    "PastIncident",
    "PastWindows",
    "Rebuilt",
    "born_again",
    "clip_backtest",
    "fleet_backtest",
    "rebuild_chapters",
]
