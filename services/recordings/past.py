"""Runs parts of back-tests."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager

from lookout.errors import TransientError
from lookout.models import listed_questions
from lookout.models.windows import Planner, StrideBlock
from lookout.past.backtests import PastWindows
from lookout.past.backtests.answers import Hidden
from lookout.past.backtests.jobs import run_part
from lookout.recordings.analysis import Analyzer
from lookout.runtime.store import LineageBrokenError, Node, StoreError, TensorClient
from lookout.runtime.worker.topic_reader import tried_again
from lookout.services.recordings.settings import RecordingsSettings
from lookout.streams.chains import KafkaPartition, PartitionLog, load_block, plan_digest, windows_of
from lookout.v1.lineage_pb2 import STAGE_SAMPLES, STAGE_TOKENS
from lookout.v1.recordings_pb2 import BacktestOutcome, BacktestPart
from lookout.v1.tokens_pb2 import TokensRecord

Log = Callable[[int], AbstractContextManager[PartitionLog]]


class PastParts:
    """Asks about windows of the past, with tokens from their holders or recomputed by prune-encode.

    Args:
        settings: How windows are planned.
        analyzer: Runs the model.
        model_digest: The model's digest.
        client: Fetches tokens.
        log: Opens a partition of tokens.v1 or verdicts.v1.
        hidden: Returns the erasures in force now.
    """

    def __init__(
        self,
        settings: RecordingsSettings,
        analyzer: Analyzer,
        model_digest: str,
        client: TensorClient,
        *,
        log: Log,
        hidden: Callable[[], Hidden],
    ) -> None:
        self._settings, self._analyzer, self._digest = settings, analyzer, model_digest
        self._client, self._log, self._hidden = client, log, hidden

    def run(self, part: BacktestPart, check: Callable[[], object]) -> BacktestOutcome:
        """Answer a part's windows.

        Args:
            part: The part.
            check: Called before every window; an exception from it ends the part.

        Raises:
            JobError: The outcome does not fit into a record.
            TransientError: Tokens or records are not available now.
        """
        engine = self._analyzer.engine
        planner = Planner(engine.layout, windows_of(self._settings))
        listed = listed_questions(self._analyzer.folder)
        windows = PastWindows(self._settings, engine, planner, self._load, self._digest, listed)
        began = time.perf_counter()
        with tried_again(), self._log(part.partition) as log:
            outcome = run_part(
                part,
                log,
                windows,
                plan_digest=plan_digest(planner, reuse=self._settings.reuse),
                check=check,
                hidden=self._hidden,
            )
        if self._settings.device != "cpu":
            outcome.cost.device_s = time.perf_counter() - began
        return outcome

    def _load(self, record: TokensRecord) -> StrideBlock:
        try:
            return load_block(record, self._client, self._settings.step_us).block
        except LineageBrokenError:
            raise
        except StoreError as error:
            raise TransientError(str(error)) from error


def kafka_log(settings: RecordingsSettings) -> Log:
    """Return a function that opens a partition of the fleet's topics."""
    return lambda partition: KafkaPartition(settings, partition)


def tensor_node(settings: RecordingsSettings) -> Node:
    """Set up access to tokens and pixels, from their holders or from pods that can recompute them."""
    replicas: dict[int, Sequence[str]] = {
        STAGE_TOKENS: settings.token_replicas,
        STAGE_SAMPLES: settings.samples_replicas,
    }
    return Node(settings.store, settings.redis_url, replicas=replicas, security=settings)
