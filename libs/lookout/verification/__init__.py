"""Committed verdicts computed again, out of the records in Kafka."""

from lookout.verification.fleet import FleetReplay, fleet_replay
from lookout.verification.replay import Finding, Kind, Replayer
from lookout.verification.spread import rerun_spread
from lookout.verification.tokens import TokensFromKafka
from lookout.verification.verify import Tally, verify

__all__ = [
    "Finding",
    "FleetReplay",
    "Kind",
    "Replayer",
    "Tally",
    "TokensFromKafka",
    "fleet_replay",
    "rerun_spread",
    "verify",
]
