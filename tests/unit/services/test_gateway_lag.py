"""What a message in place of a record says about lag."""

from __future__ import annotations

import pytest
from confluent_kafka import KafkaError

from lookout.services.gateway import fleet_state


class _Message:
    """Stands in for a message of the client, which only Kafka makes."""

    def __init__(self, code: int | None) -> None:
        self._error = None if code is None else KafkaError(code)

    def error(self) -> KafkaError | None:
        """As of the client."""
        return self._error


@pytest.mark.parametrize(
    ("code", "end"),
    [(None, False), (KafkaError._PARTITION_EOF, True), (KafkaError.TOPIC_AUTHORIZATION_FAILED, False)],
)
def test_only_the_end_of_a_partition_means_that_nothing_remains(code: int | None, end: bool) -> None:
    assert fleet_state._is_end(_Message(code)) is end  # type: ignore[arg-type]
