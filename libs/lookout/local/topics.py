"""Creates the topics of the topic table on a broker, and changes existing ones to match the table."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AlterConfigOpType, ConfigEntry, ConfigResource, NewTopic, ResourceType

from lookout.local.processes import LocalError
from lookout.runtime.kafka_clients import AdminClient
from lookout.wire import Topic, all_topics

_TIMEOUT_S = 60.0
_REACH_S = 20.0


def create_topics(
    bootstrap: str,
    partitions: int | None = None,
    *,
    topics: Iterable[Topic] | None = None,
    extra: Mapping[str, str] | None = None,
    security: Mapping[str, str] | None = None,
) -> list[str]:
    """Create missing topics, and return their names. Existing topics are not changed.

    Args:
        bootstrap: The broker's address.
        partitions: Partitions of every topic of the pipeline; other topics get one. None: as many as existing
            pipeline topics have, or 4 if there are none. The topics that a service reads and writes must have
            the same number.
        topics: The topics to create; None: all in the topic table.
        extra: Topic settings in addition to those in the table.
        security: librdkafka options that the broker needs.

    Raises:
        LocalError: The broker rejected a topic; the message says why.
    """
    wanted = list(all_topics() if topics is None else topics)
    admin, present = _reached(bootstrap, security or {})
    if partitions is None:
        partitions = max((present.get(topic.name, 0) for topic in wanted if topic.pipeline), default=0) or 4
    new_topics = [
        NewTopic(
            topic.name,
            num_partitions=partitions if topic.pipeline else 1,
            replication_factor=1,
            config={**topic.config(), **(extra or {})},
        )
        for topic in wanted
    ]
    created = []
    try:
        pending = admin.create_topics(new_topics, operation_timeout=_TIMEOUT_S, request_timeout=_TIMEOUT_S)
        for name, future in pending.items():
            if _created(name, future.exception(_TIMEOUT_S + 5)):
                created.append(name)
    except KafkaException as error:
        raise LocalError(f"cannot create topics on {bootstrap}: {error.args[0].str()}") from error
    return created


def _reached(bootstrap: str, security: Mapping[str, str]) -> tuple[AdminClient, dict[str, int]]:
    """Wait until a broker answers; return a client of it, and the number of partitions of each topic.

    Raises:
        LocalError: No broker answers.
    """
    complaints: list[str] = []
    admin = AdminClient(
        {
            "bootstrap.servers": bootstrap,
            "log_level": 0,
            "error_cb": lambda error: complaints.append(error.str()),
            **security,
        }
    )
    try:
        metadata = admin.list_topics(timeout=_REACH_S)
    except KafkaException as error:
        why = complaints[-1] if complaints else error.args[0].str()
        raise LocalError(
            f"Kafka at {bootstrap} does not answer ({why}): check that the address is right, that Kafka "
            "runs, and that a password is given if Kafka needs one"
        ) from error
    return admin, {name: len(topic.partitions) for name, topic in metadata.topics.items()}


def reconcile_topics(
    bootstrap: str, topics: Iterable[Topic], *, security: Mapping[str, str] | None = None
) -> list[str]:
    """Change topics that an older release created so that they match the table; return one phrase per changed
    setting.

    Retention is not changed, because it is the operator's choice.

    Args:
        bootstrap: The broker's address.
        topics: The topics; they must exist.
        security: librdkafka options that the broker needs.

    Raises:
        LocalError: The broker rejected the change; the message says why.
    """
    admin, _ = _reached(bootstrap, security or {})
    by_name = {topic.name: topic for topic in topics}
    if not by_name:
        return []
    try:
        if wrong := _complaints(admin, by_name):
            changes = [_table_settings(topic) for topic in wrong]
            for future in admin.incremental_alter_configs(changes, request_timeout=_TIMEOUT_S).values():
                future.result()
            deadline = time.monotonic() + _TIMEOUT_S
            while _complaints(admin, by_name):  # the broker confirms a change before it shows it
                if time.monotonic() > deadline:
                    raise LocalError(
                        f"{bootstrap} does not apply the new settings of {', '.join(t.name for t in wrong)}"
                    )
                time.sleep(0.05)
    except KafkaException as error:
        raise LocalError(f"cannot change topics on {bootstrap}: {error.args[0].str()}") from error
    return [phrase for phrases in wrong.values() for phrase in phrases]


def _complaints(admin: AdminClient, topics: Mapping[str, Topic]) -> dict[Topic, list[str]]:
    resources = [ConfigResource(ResourceType.TOPIC, name) for name in topics]
    differences = {}
    for resource, answer in admin.describe_configs(resources, request_timeout=_TIMEOUT_S).items():
        topic = topics[resource.name]
        actual = {name: entry.value for name, entry in answer.result().items()}
        if wrong := topic.complaints(actual):
            differences[topic] = wrong
    return differences


def _table_settings(topic: Topic) -> ConfigResource:
    settings = {name: value for name, value in topic.config().items() if name != "retention.ms"}
    entries = [
        ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET)
        for name, value in settings.items()
    ]
    return ConfigResource(ResourceType.TOPIC, topic.name, incremental_configs=entries)


def _created(name: str, error: BaseException | None) -> bool:
    if error is None:
        return True
    if isinstance(error, KafkaException) and error.args[0].code() == KafkaError.TOPIC_ALREADY_EXISTS:
        return False
    raise LocalError(f"cannot create topic {name}: {error}") from error
