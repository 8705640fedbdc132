"""What a transaction does about a partition that Kafka does not have, against librdkafka's fake broker."""

from __future__ import annotations

from queue import SimpleQueue

import pytest
from structlog.testing import capture_logs

from lookout.runtime.worker import Output, Result, ServiceSettings, load_settings
from lookout.runtime.worker.growth import added_by_hand
from lookout.runtime.worker.partitions import Partition
from lookout.runtime.worker.records import Slot
from lookout.runtime.worker.refusals import Refusals
from lookout.runtime.worker.transactions import Committer, Ended, Topics, Transaction
from tests.mock_kafka import mock_kafka

MISSING = 4  # a topic of the fake broker has four partitions


@pytest.mark.parametrize("known", [False, True], ids=["new client", "client that knows the topic"])
def test_a_missing_partition_is_named_whether_kafka_says_so_at_once_or_when_it_commits(known: bool) -> None:
    ends: SimpleQueue[Ended] = SimpleQueue()
    with mock_kafka([("out", 0, None, b"")]) as address, capture_logs() as lines:
        committer = Committer(
            load_settings(ServiceSettings, {"LOOKOUT_MODE": "local", "LOOKOUT_BOOTSTRAP": address}),
            "toy",
            "toy-0",
            Topics("in", "state", "dlq"),
            refusals=Refusals(),
            digest=lambda: "toy-1",
            ended=ends.put,
        )
        if known:
            committer._producer.list_topics("out", timeout=30.0)
        slot = Slot("gate", None, result=Result(outputs=(Output("out", "gate", b"1"),)))
        committer.submit(Transaction([(Partition(MISSING, loaded=True), [slot])], None))
        ended = ends.get(timeout=60.0)
        committer.close()
    assert not ended.outcome.committed
    assert [line["event"] for line in lines if line.get("advice")] == [added_by_hand("out", MISSING, "in")]
