"""Replays a fleet's chains of windows to verify verdicts, run back-tests, and rebuild lost chapters."""

from lookout.past.verification.backtests import fleet_backtest as fleet_backtest
from lookout.past.verification.chapters import (
    Rebuilt as Rebuilt,
    born_again as born_again,
    rebuild_chapters as rebuild_chapters,
)
from lookout.past.verification.fleet import FleetReplay as FleetReplay, fleet_replay as fleet_replay
from lookout.past.verification.replay import Kind as Kind, Replayer as Replayer
from lookout.past.verification.spread import rerun_spread as rerun_spread
from lookout.past.verification.verify import Tally as Tally, verify as verify
