"""Committed verdicts computed again, out of the records in Kafka."""

from lookout.verification.replay import Finding, Kind, Replayer
from lookout.verification.spread import rerun_spread
from lookout.verification.tokens import TokensFromKafka
from lookout.verification.verify import Tally, verify

__all__ = ["Finding", "Kind", "Replayer", "Tally", "TokensFromKafka", "rerun_spread", "verify"]
