"""Committed verdicts computed again, out of the records in Kafka."""

from lookout.verification.fleet import FleetReplay as FleetReplay, fleet_replay as fleet_replay
from lookout.verification.replay import Kind as Kind, Replayer as Replayer
from lookout.verification.spread import rerun_spread as rerun_spread
from lookout.verification.verify import Tally as Tally, verify as verify
