"""What a message in place of a record says about lag."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from confluent_kafka import KafkaError, KafkaException

from lookout.runtime.worker.topic_reader import End, Place
from lookout.services.gateway import fleet_state
from lookout.v1.gateway_pb2 import LagRow


class _Message:
    """Stands in for a record of the client, which only Kafka makes."""

    def topic(self) -> str:
        """As of the client."""
        return "frames.v1"

    def partition(self) -> int:
        """As of the client."""
        return 0


class _Reader:
    """Stands in for a reader of one partition to which Kafka answers in this way."""

    def __init__(self, answer: object) -> None:
        self._answer = answer
        self.starts: Mapping[Place, int] = {}

    def read_places(self, starts: Mapping[Place, int]) -> None:
        """As of `TopicReader`."""
        self.starts = starts

    def next(self, timeout_s: float) -> object:
        """As of `TopicReader`."""
        if isinstance(self._answer, Exception):
            raise self._answer
        return self._answer


@pytest.mark.parametrize(
    ("answer", "lag"),
    [
        (_Message(), 5),
        (End("frames.v1", 0, 12), 0),
        (KafkaException(KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED)), 5),
    ],
)
def test_only_the_end_of_a_partition_means_that_nothing_remains(answer: object, lag: int) -> None:
    row, reader = LagRow(topic="frames.v1", partition=0, committed=7, end=12, lag=5), _Reader(answer)
    fleet_state._read_one(reader, {("frames.v1", 0): row})  # type: ignore[arg-type]
    assert row.lag == lag
    assert reader.starts == {("frames.v1", 0): 7}
