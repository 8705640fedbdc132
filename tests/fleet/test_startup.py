"""Start-up checks against a real broker and a real Redis."""

from __future__ import annotations

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from lookout.errors import StartupError
from lookout.runtime.worker import ServiceSettings
from lookout.runtime.worker.startup import check_digest, check_kafka, check_redis
from lookout.wire import SEGMENTS, Topic

pytestmark = pytest.mark.fleet


def settings(bootstrap: str, **more: object) -> ServiceSettings:
    values: dict[str, object] = {"mode": "local", "bootstrap": bootstrap, "start_timeout_s": 1.0, **more}
    return ServiceSettings(**values)  # type: ignore[arg-type]


def create(bootstrap: str, name: str, partitions: int, config: dict[str, str]) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    (future,) = admin.create_topics(
        [NewTopic(name, partitions, 1, config=config)], operation_timeout=30
    ).values()
    future.result()


def test_topics_as_the_wire_says_pass(kafka: str, prefix: str) -> None:
    topics = [Topic(f"{prefix}a", "bytes"), Topic(f"{prefix}b", "bytes", retention_ms=None)]
    for topic in topics:
        create(kafka, topic.name, 3, topic.config())
    assert check_kafka(settings(kafka, start_timeout_s=120.0), topics) == 3


def test_a_missing_topic_is_named(kafka: str, prefix: str) -> None:
    with pytest.raises(StartupError, match=rf"LOOKOUT_BOOTSTRAP=.*no topic {prefix}gone"):
        check_kafka(settings(kafka), [Topic(f"{prefix}gone", "bytes")])


def test_partition_counts_must_agree(kafka: str, prefix: str) -> None:
    topics = [Topic(f"{prefix}a", "bytes"), Topic(f"{prefix}b", "bytes")]
    for partitions, topic in zip((2, 1), topics, strict=True):  # what is written has fewer than the source
        create(kafka, topic.name, partitions, topic.config())
    with pytest.raises(StartupError, match="one partition count"):
        check_kafka(settings(kafka, start_timeout_s=120.0), topics)


def test_wrong_configuration_is_named(kafka: str, prefix: str) -> None:
    topic = Topic(f"{prefix}big", "bytes", retention_ms=None, max_message_bytes=17 << 20)
    create(kafka, topic.name, 1, {"cleanup.policy": "delete", "max.message.bytes": "1000000"})
    with pytest.raises(
        StartupError, match=r"cleanup.policy=delete, must be compact.*max.message.bytes=1000000"
    ):
        check_kafka(settings(kafka, start_timeout_s=120.0), [topic])


def test_the_topic_table_s_settings_are_asked_for(kafka: str, prefix: str) -> None:
    topic = Topic(f"{prefix}w", "bytes", retention_ms=None, broker_time=True, keep_replaced_ms=1000)
    create(kafka, topic.name, 1, {"cleanup.policy": "compact"})
    with pytest.raises(
        StartupError,
        match=r"type=CreateTime, must be LogAppendTime.*min.compaction.lag.ms=0, must be 1000",
    ):
        check_kafka(settings(kafka, start_timeout_s=120.0), [topic])


def test_retention_must_outlast_an_outage(kafka: str, monkeypatch: pytest.MonkeyPatch, prefix: str) -> None:
    topic = Topic(f"{prefix}segments", "bytes", retention_ms=60_000)
    monkeypatch.setattr("lookout.runtime.worker.startup.REREAD", {topic.name, SEGMENTS.name})
    create(kafka, topic.name, 1, topic.config())
    with pytest.raises(StartupError, match=r"retention.ms=60000 .*LOOKOUT_OUTAGE_S"):
        check_kafka(settings(kafka, start_timeout_s=120.0), [topic])


def test_what_does_not_answer_is_named(redis_url: str) -> None:
    with pytest.raises(StartupError, match=r"LOOKOUT_BOOTSTRAP=127.0.0.1:1: Kafka is not usable"):
        check_kafka(settings("127.0.0.1:1"), [])
    with pytest.raises(StartupError, match=r"LOOKOUT_REDIS_URL=redis://127.0.0.1:1/0: Redis is not usable"):
        check_redis(settings("127.0.0.1:1", redis_url="redis://127.0.0.1:1/0"))
    with pytest.raises(StartupError, match=r"LOOKOUT_REDIS_URL=\(not a URL\)"):
        check_redis(settings("127.0.0.1:1", redis_url="nonsense"))
    check_redis(settings("127.0.0.1:1", redis_url=redis_url, start_timeout_s=120.0))


def test_a_model_of_another_digest_is_refused() -> None:
    check_digest(settings("127.0.0.1:1"), "abc")
    with pytest.raises(StartupError, match="LOOKOUT_MODEL_DIGEST=abd"):
        check_digest(settings("127.0.0.1:1", model_digest="abd"), "abc")
