"""What a reader asks Kafka again by itself; the consumer is a fake, since no broker moves a group at will."""

from __future__ import annotations

import pytest
from confluent_kafka import KafkaError, KafkaException, TopicPartition

from lookout.runtime.worker.settings import ServiceSettings
from lookout.runtime.worker.topic_reader import TopicReader


class FakeConsumer:
    """Answers with these errors first, then with offset 7 of each partition."""

    def __init__(self, *codes: int) -> None:
        self.codes = list(codes)

    def committed(self, places: list[TopicPartition], timeout: float) -> list[TopicPartition]:
        if self.codes:
            raise KafkaException(KafkaError(self.codes.pop(0)))
        return [TopicPartition(place.topic, place.partition, 7) for place in places]

    def close(self) -> None: ...


def reader(*codes: int) -> TopicReader:
    reader = TopicReader(ServiceSettings(mode="local"), "test")
    reader._consumer = FakeConsumer(*codes)  # type: ignore[assignment]
    return reader


@pytest.mark.parametrize(
    "code",
    [
        KafkaError.NOT_COORDINATOR,
        KafkaError.COORDINATOR_NOT_AVAILABLE,
        KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
    ],
)
def test_a_coordinator_that_moves_is_asked_again(code: int) -> None:
    assert reader(code, code).committed("in", [0, 2], 30.0) == {0: 7, 2: 7}


def test_a_coordinator_that_never_settles_is_an_error_in_time() -> None:
    with pytest.raises(KafkaException, match="NOT_COORDINATOR"):
        reader(*[KafkaError.NOT_COORDINATOR] * 50).committed("in", [0], 0.2)


def test_another_refusal_is_an_error_at_once() -> None:
    consumer = reader(KafkaError.GROUP_AUTHORIZATION_FAILED, KafkaError.NOT_COORDINATOR)
    with pytest.raises(KafkaException, match="GROUP_AUTHORIZATION_FAILED"):
        consumer.committed("in", [0], 30.0)
