"""Create the wire's topics on a broker, as the topic table says."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient, NewTopic

from lookout.local.processes import LocalError
from lookout.wire import Topic, all_topics

_TIMEOUT_S = 60.0


def create_topics(
    bootstrap: str,
    partitions: int = 4,
    *,
    topics: Iterable[Topic] | None = None,
    extra: Mapping[str, str] | None = None,
) -> list[str]:
    """Create the topics that are missing; returns their names. Existing ones are left as they are.

    Args:
        bootstrap: the broker's address.
        partitions: of every topic of the pipeline; other topics get one.
        topics: all of the topic table if not given.
        extra: topic settings added to those of the table.

    Raises:
        LocalError: the broker refused one; its reason is in the message.
    """
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 3})
    wanted = [
        NewTopic(
            topic.name,
            num_partitions=partitions if topic.pipeline else 1,
            replication_factor=1,
            config={**topic.config(), **(extra or {})},
        )
        for topic in (all_topics() if topics is None else topics)
    ]
    created = []
    try:
        pending = admin.create_topics(wanted, operation_timeout=_TIMEOUT_S, request_timeout=_TIMEOUT_S)
        for name, done in pending.items():
            if _created(name, done.exception(_TIMEOUT_S + 5)):
                created.append(name)
    except KafkaException as error:
        raise LocalError(f"cannot create topics on {bootstrap}: {error.args[0].str()}") from error
    return created


def _created(name: str, error: BaseException | None) -> bool:
    if error is None:
        return True
    if isinstance(error, KafkaException) and error.args[0].code() == KafkaError.TOPIC_ALREADY_EXISTS:
        return False
    raise LocalError(f"cannot create topic {name}: {error}") from error
