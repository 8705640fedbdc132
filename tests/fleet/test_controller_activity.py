"""What the controller follows in Kafka for the status of resources, on a real broker."""

from __future__ import annotations

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewPartitions

from lookout.local import KafkaServer, create_topics
from lookout.runtime.worker import ServiceSettings, topic_reader
from lookout.services.controller.activity import ActivityFollower
from lookout.v1.verdicts_pb2 import Verdict
from lookout.wire import VERDICTS, to_json
from tests.eventually import eventually

pytestmark = pytest.mark.fleet


@pytest.mark.long
def test_verdicts_are_followed_over_an_outage_and_in_partitions_that_are_added(
    own_kafka: KafkaServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Kafka is away when the controller begins to lead: it was asked once, and its answer was waited for."""
    monkeypatch.setattr(topic_reader, "LOOK_S", 1.0)
    create_topics(own_kafka.bootstrap, 2)
    own_kafka.stop()
    settings = ServiceSettings(mode="local", instance="one", bootstrap=own_kafka.bootstrap)  # type: ignore[arg-type]
    activity = ActivityFollower(settings, lambda _: None)
    activity.start()
    own_kafka.start()
    producer = Producer({"bootstrap.servers": own_kafka.bootstrap})

    def shown(watch: str, partition: int) -> bool:
        """Whether a verdict that is written now is followed: it may still be written too early."""
        verdict = Verdict(camera="gate", watch=watch, watch_version=1, outcome=Verdict.OUTCOME_ANSWERED)
        verdict.end.FromMilliseconds(1_700_000_000_000)
        producer.produce(VERDICTS.name, to_json(verdict), partition=partition)
        assert producer.flush(60.0) == 0
        return "lastVerdict" in activity.status(watch, 0)

    try:
        eventually(lambda: shown("fall", 0), every=0.2)
        admin = AdminClient({"bootstrap.servers": own_kafka.bootstrap})
        admin.create_partitions([NewPartitions(VERDICTS.name, 3)])[VERDICTS.name].result()
        eventually(lambda: len(producer.list_topics(VERDICTS.name).topics[VERDICTS.name].partitions) == 3)
        eventually(lambda: shown("crowd", 2), every=0.2)
    finally:
        activity.stop()
