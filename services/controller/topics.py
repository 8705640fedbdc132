"""`python -m lookout.services.controller.topics`: creates an installation's topics and rejects wrong ones.

The chart runs this as a job before the services start. On existing topics it changes only the settings in
`_CHANGED`, so that an upgrade can use an older release's topics. Changing these loses no records, and they
are not the owner's choice.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import (
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewTopic,
    ResourceType,
    TopicMetadata,
)
from tenacity import (
    RetryCallState,
    Retrying,
    retry_if_exception_type,
    retry_if_result,
    stop_after_delay,
    wait_fixed,
)

from lookout.errors import StartupError
from lookout.runtime.kafka_clients import AdminClient
from lookout.runtime.worker import load_settings
from lookout.services.controller.settings import ControllerSettings
from lookout.text import visible
from lookout.wire import Topic, all_topics, camera_topics, canary_topics, prefixed

#: exit codes. FAILED: a later attempt may succeed. MISCONFIGURED: no attempt can succeed
FAILED, MISCONFIGURED = 1, 2
_CALL_S = 10.0
_PAUSE_S = 2.0
#: number of rejected connections to tolerate, since a broker that has just started may not know its users yet
_REFUSALS = 3
#: settings of existing topics that the job changes to match the topic table
_CHANGED = ("compression.type",)
_CONFIRMED_S = 60.0
HOUR_MS = 3_600_000


@dataclass(frozen=True)
class Wishes:
    """The owner's choices for topics; everything else comes from the topic table.

    Attributes:
        partitions: Number of partitions of the cameras' topics.
        replication: Number of copies of each partition.
        retention_hours: Hours of retention, by topic.
        local_hours: Hours on the brokers' disks, by topic with tiered storage.
        canary: Whether there is a canary, which has its own topics.
    """

    partitions: int
    replication: int
    retention_hours: Mapping[str, float] = field(default_factory=dict)
    local_hours: Mapping[str, float] = field(default_factory=dict)
    canary: bool = False

    @property
    def topics(self) -> tuple[Topic, ...]:
        """The topics that must exist."""
        return (*all_topics(), *(canary_topics() if self.canary else ()))

    def settings(self, topic: Topic) -> dict[str, str]:
        """Return the Kafka settings of a topic that follow from the owner's hours.

        Raises:
            StartupError: Hours are given for a compacted topic, which has no retention.
        """
        settings = {}
        if (hours := self.local_hours.get(topic.name)) is not None:
            try:
                settings = topic.tiered(hours)
            except ValueError as error:
                raise StartupError(str(error)) from error
        if (hours := self.retention_hours.get(topic.name)) is not None:
            if topic.compacted:
                raise StartupError(f"{topic.name}: a compacted topic has no retention; give no hours for it")
            settings["retention.ms"] = str(round(hours * HOUR_MS))
        return settings


class NoAnswerError(StartupError):
    """Kafka does not answer at the moment."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Create and check the topics; print one line per problem to standard error; return the exit code."""
    options = _parser().parse_args(arguments)
    try:
        wishes = Wishes(
            options.partitions,
            options.replication,
            _hours("--retention-hours", options.retention_hours),
            _hours("--tiered-local-hours", options.tiered_local_hours),
            options.canary,
        )
        refused: list[str] = []
        settings = load_settings(ControllerSettings)
        admin = _client(settings, refused)
        existing = _wait_for_brokers(admin, settings.bootstrap, options.wait_s, refused)
        if options.check:
            _refuse_missing(existing, wishes)
        created = _create(admin, existing, wishes)
        changed = [] if options.check else _change(admin, existing, wishes)
        problems = _problems(admin, existing, wishes)
    except NoAnswerError as error:
        return _say([str(error)], FAILED)
    except StartupError as error:
        return _say([str(error)], MISCONFIGURED)
    for name in created:
        print(visible(f"created {name}"), flush=True)
    for phrase in changed:
        print(visible(f"changed {phrase}"), flush=True)
    return _say(problems, MISCONFIGURED)


def _say(problems: Sequence[str], code: int) -> int:
    for problem in problems:
        sys.stderr.write(visible(f"lookout topics: {problem}\n"))
    return code if problems else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description="Create Lookout's topics, update those of an older release, and reject wrong ones."
    )
    parser.add_argument(
        "--partitions", type=int, required=True, help="number of partitions of every pipeline topic"
    )
    parser.add_argument("--replication", type=int, required=True, help="number of copies of each partition")
    parser.add_argument(
        "--check", action="store_true", help="create and change nothing; missing topics are an error"
    )
    parser.add_argument("--canary", action="store_true", help="also create the topics of a canary")
    parser.add_argument("--wait-s", type=float, default=300.0, help="seconds that Kafka may take to answer")
    parser.add_argument(
        "--retention-hours", type=_retention, action="append", default=[], metavar="TOPIC=HOURS"
    )
    parser.add_argument(
        "--tiered-local-hours",
        type=_retention,
        action="append",
        default=[],
        metavar="TOPIC=HOURS",
        help="keep records older than this in the brokers' remote storage",
    )
    return parser


def _hours(option: str, pairs: Sequence[tuple[str, float]]) -> dict[str, float]:
    """Return hours by topic.

    Raises:
        StartupError: A topic does not exist.
    """
    hours = {prefixed(name): number for name, number in pairs}
    if unknown := sorted(set(hours) - {topic.name for topic in all_topics()}):
        raise StartupError(f"{option}: unknown topic {', '.join(unknown)}")
    return hours


def _retention(text: str) -> tuple[str, float]:
    name, _, hours = text.partition("=")
    try:
        return name, float(hours)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not TOPIC=HOURS") from None


def _note(refused: list[str], error: KafkaError) -> None:
    """Store an error if retrying cannot fix it: a wrong password or an untrusted certificate."""
    if error.code() in (KafkaError._AUTHENTICATION, KafkaError._SSL):
        refused.append(error.str())


def _client(settings: ControllerSettings, refused: list[str]) -> AdminClient:
    """Return a client that passes its errors to `_note`.

    Raises:
        StartupError: librdkafka does not know an option or its value.
    """
    try:
        return AdminClient(settings.kafka(error_cb=partial(_note, refused)))
    except KafkaException as error:
        raise StartupError(f"LOOKOUT_KAFKA_OPTIONS: {error.args[0].str()}") from error


def _wait_for_brokers(
    admin: AdminClient, bootstrap: str, patience_s: float, refused: Sequence[str] = ()
) -> dict[str, TopicMetadata]:
    """Wait until Kafka answers; return the existing topics.

    Raises:
        NoAnswerError: Kafka does not answer within `patience_s`. The first failure is printed at once, since
            helm may give up earlier.
        StartupError: Kafka rejects the connection.
    """
    reasons: list[str] = []

    def ask() -> dict[str, TopicMetadata]:
        try:
            return dict(admin.list_topics(timeout=_CALL_S).topics)
        except KafkaException as error:
            admin.poll(0)  # librdkafka calls `_note` only within `poll`
            if len(refused) >= _REFUSALS:
                raise StartupError(f"Kafka rejects the connection: {refused[-1]}") from error
            raise NoAnswerError(f"{bootstrap}: Kafka does not answer: {error.args[0].str()}") from error

    def tell(state: RetryCallState) -> None:
        if not reasons and state.outcome is not None:
            reasons.append(f"{state.outcome.exception()}; trying again for up to {patience_s:g} s")
            _say(reasons, FAILED)

    tries = Retrying(
        stop=stop_after_delay(patience_s),
        wait=wait_fixed(_PAUSE_S),
        retry=retry_if_exception_type(NoAnswerError),
        before_sleep=tell,
        reraise=True,
    )
    return tries(ask)


def _refuse_missing(existing: Mapping[str, TopicMetadata], wishes: Wishes) -> None:
    if missing := sorted({topic.name for topic in wishes.topics} - set(existing)):
        raise StartupError(f"topics are missing: {', '.join(missing)}")


def _create(admin: AdminClient, existing: Mapping[str, TopicMetadata], wishes: Wishes) -> list[str]:
    new_topics = [
        NewTopic(
            topic.name,
            num_partitions=wishes.partitions if topic.pipeline else 1,
            replication_factor=wishes.replication,
            config=configuration(topic, wishes),
        )
        for topic in wishes.topics
        if topic.name not in existing
    ]
    if not new_topics:
        return []
    created = []
    for name, future in admin.create_topics(new_topics, operation_timeout=60.0, request_timeout=60.0).items():
        try:
            future.result()
            created.append(name)
        except KafkaException as error:
            if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
                raise _failure(f"cannot create {name}", error) from error
    return created


def _failure(what: str, error: KafkaException) -> StartupError:
    kind = NoAnswerError if error.args[0].retriable() else StartupError
    return kind(f"{what}: {error.args[0].str()}")


def configuration(topic: Topic, wishes: Wishes) -> dict[str, str]:
    """Return a new topic's settings: those of the topic table, the owner's hours, and two in-sync replicas if
    there are three or more replicas.

    Raises:
        StartupError: Hours are given for a compacted topic.
    """
    in_sync = {"min.insync.replicas": "2"} if wishes.replication >= 3 else {}
    return {**topic.config(), **wishes.settings(topic), **in_sync}


def _problems(admin: AdminClient, existing: Mapping[str, TopicMetadata], wishes: Wishes) -> list[str]:
    """Return what is wrong with the topics that already existed, as sentences."""
    topics = [topic for topic in wishes.topics if topic.name in existing]
    if not topics:
        return []
    complaints = []
    for topic in topics:
        count = len(existing[topic.name].partitions)
        if topic in (*camera_topics(), *canary_topics()) and count != wishes.partitions:
            advice = ": add some with `lookout topics grow`" if count < wishes.partitions else ""
            complaints.append(
                f"{topic.name} has {count} partitions, but topics.partitions is {wishes.partitions}{advice}"
            )
        copies = min(len(partition.replicas) for partition in existing[topic.name].partitions.values())
        if copies < wishes.replication:
            complaints.append(
                f"{topic.name} has {copies} copies, but topics.replication is {wishes.replication}: add "
                "copies with kafka-reassign-partitions.sh, or lower topics.replication"
            )
    settings = _settings(admin, topics)
    for topic in topics:
        complaints += topic.complaints(settings[topic.name])
        complaints += _not_granted(topic, wishes.settings(topic), settings[topic.name])
    return complaints


def _settings(admin: AdminClient, topics: Sequence[Topic]) -> dict[str, dict[str, str]]:
    """Return these topics' settings on the brokers, by topic.

    Raises:
        StartupError: Kafka does not return them.
    """
    resources = [ConfigResource(ResourceType.TOPIC, topic.name) for topic in topics]
    settings = {}
    for resource, future in admin.describe_configs(resources, request_timeout=_CALL_S).items():
        try:
            settings[resource.name] = {name: entry.value for name, entry in future.result().items()}
        except KafkaException as error:
            raise _failure(f"cannot read the settings of {resource.name}", error) from error
    return settings


def _change(admin: AdminClient, existing: Mapping[str, TopicMetadata], wishes: Wishes) -> list[str]:
    """Change the settings `_CHANGED` of existing topics to match the topic table; return a phrase per
    change.

    Raises:
        StartupError: Kafka rejects the change.
        NoAnswerError: Kafka does not report the new values in time.
    """
    topics = [topic for topic in wishes.topics if topic.name in existing]
    differences = _differences(admin, topics)
    if not differences:
        return []
    resources = [
        ConfigResource(
            ResourceType.TOPIC,
            name,
            incremental_configs=[
                ConfigEntry(key, wanted, incremental_operation=AlterConfigOpType.SET)
                for key, (_, wanted) in changes.items()
            ],
        )
        for name, changes in differences.items()
    ]
    for resource, future in admin.incremental_alter_configs(resources, request_timeout=_CALL_S).items():
        try:
            future.result()
        except KafkaException as error:
            changes = ",".join(f"{key}={wanted}" for key, (_, wanted) in differences[resource.name].items())
            raise _failure(
                f"cannot change {resource.name} (you can do so with {_alter(resource.name, changes)})", error
            ) from error
    # A broker confirms a change shortly before it reports the new value, so wait for the value.
    confirmed = Retrying(
        stop=stop_after_delay(_CONFIRMED_S),
        wait=wait_fixed(0.1),
        retry=retry_if_result(bool),
        retry_error_callback=lambda state: state.outcome.result() if state.outcome else {},
    )
    if hidden := confirmed(_differences, admin, topics):
        raise NoAnswerError(f"Kafka does not report the new settings of {', '.join(hidden)}")
    return [
        f"{name} {key}: {before} to {wanted}"
        for name, changes in differences.items()
        for key, (before, wanted) in changes.items()
    ]


def _differences(admin: AdminClient, topics: Sequence[Topic]) -> dict[str, dict[str, tuple[str, str]]]:
    """Return the settings in `_CHANGED` that differ, by topic: the broker's value and the topic table's."""
    if not topics:
        return {}
    settings = _settings(admin, topics)
    differences = {
        topic.name: {
            key: (settings[topic.name].get(key, ""), topic.config()[key])
            for key in _CHANGED
            if settings[topic.name].get(key) != topic.config()[key]
        }
        for topic in topics
    }
    return {name: changes for name, changes in differences.items() if changes}


def _alter(topic: str, settings: str) -> str:
    return f"kafka-configs.sh --alter --entity-type topics --entity-name {topic} --add-config {settings}"


def _not_granted(topic: Topic, wanted: Mapping[str, str], actual: Mapping[str, str]) -> list[str]:
    """Return a sentence for each setting that the owner's hours ask for but that an existing topic lacks."""
    values = {
        "retention.ms": "topics.retentionHours",
        "local.retention.ms": "topics.tieredLocalHours",
        "remote.storage.enable": "topics.tieredLocalHours",
    }
    complaints = []
    for key, value in wanted.items():
        if (given := actual.get(key, "")) != value:
            where = ", on brokers that have it" if key == "remote.storage.enable" else ""
            complaints.append(
                f"{topic.name} has {key}={given}, but {values[key]} asks for {value}; this job does not "
                f"change the hours of existing topics: run {_alter(topic.name, f'{key}={value}')}{where}"
            )
    return complaints


if __name__ == "__main__":
    sys.exit(main())
