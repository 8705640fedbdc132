"""Checks of a fleet's dependencies: Kafka with its topics and workers, and Redis."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import ConfigResource, ResourceType
from tenacity import Retrying, retry_if_exception, stop_after_delay, wait_fixed

from lookout.errors import StartupError
from lookout.runtime.kafka_clients import AdminClient, coordinator_moves, error_text
from lookout.runtime.net import RedisSecurity
from lookout.runtime.net.redis_errors import REDIS_ERRORS
from lookout.text import public_url
from lookout.wire import PIPELINE, Stage, all_topics, camera_topics

ANSWER_S: Final = 10.0
_ASK_AGAIN_S: Final = 0.2
_TRIES: Final = 4


class State(StrEnum):
    """Severity of a check's result."""

    GOOD = "ok"
    NOTE = "note"
    BAD = "bad"


@dataclass(frozen=True, slots=True)
class CheckResult:
    """The result of one check. `advice` says what to do if the state is not ok."""

    about: str
    state: State
    found: str
    advice: str = ""


def kafka_checks(
    admin: AdminClient,
    address: str,
    *,
    last_error: Callable[[], str] = str,
    advice: str = "is it up, and may this machine reach it?",
    answer_s: float = ANSWER_S,
) -> Iterator[CheckResult]:
    """Check a broker, the topics of a fleet and the workers of its stages.

    Args:
        admin: The client that asks the broker.
        address: Its bootstrap servers, for messages.
        last_error: Returns what the client library reported last; empty if nothing.
        advice: What to do if the broker does not answer.
        answer_s: Seconds to wait for each answer.
    """
    try:
        metadata = admin.list_topics(timeout=answer_s)
    except KafkaException as error:
        why = last_error() or error_text(error.args[0])
        yield CheckResult("Kafka", State.BAD, f"{address} does not answer: {why}", advice)
        return
    kafka = CheckResult("Kafka", State.GOOD, f"{address}, {len(metadata.brokers)} broker(s)")
    partitions = {name: len(topic.partitions) for name, topic in metadata.topics.items()}
    rows: list[CheckResult] = []
    try:  # before the first row is shown: it must not say that all is well if the next answer does not come
        rows.append(_tiers(admin, next(iter(metadata.brokers)), answer_s))
        rows.extend(_topics(admin, partitions, answer_s))
        rows.extend(_stages(admin, answer_s))
    except TimeoutError:
        why = f"{address} answered, then took longer than {answer_s:g} s"
        kafka = CheckResult("Kafka", State.BAD, why, "is it overloaded?")
    except KafkaException as error:
        why = f"{address} answered, then failed: {error_text(error.args[0])}"
        kafka = CheckResult("Kafka", State.BAD, why, "is it still up?")
    yield kafka
    yield from rows


def redis_check(security: Callable[[], RedisSecurity], url: str, answer_s: float = ANSWER_S) -> CheckResult:
    """Check that a Redis answers.

    Args:
        security: Returns its credentials; may raise StartupError, which becomes a bad result.
        url: Its URL.
        answer_s: Seconds to wait for the answer.
    """
    try:
        with security().redis_client(url, socket_timeout=answer_s, socket_connect_timeout=answer_s) as client:
            version = client.info("server")["redis_version"]
    except (*REDIS_ERRORS, StartupError) as error:
        advice = "without it tensors are made again: slower, marked degraded"
        return CheckResult("Redis", State.BAD, f"{public_url(url)}: {error}", advice)
    return CheckResult("Redis", State.GOOD, f"{public_url(url)}, version {version}")


def _tiers(admin: AdminClient, broker: int, answer_s: float) -> CheckResult:
    """Check whether the broker has tiered storage, with which topics can keep more than its disks hold."""
    (pending,) = admin.describe_configs([ConfigResource(ResourceType.BROKER, str(broker))]).values()
    try:
        entry = pending.result(answer_s).get("remote.log.storage.system.enable")
    except KafkaException as error:
        return CheckResult("tiered storage", State.NOTE, "unknown", error_text(error.args[0]))
    if entry is not None and entry.value == "true":
        return CheckResult("tiered storage", State.GOOD, "the broker has it (KIP-405)")
    return CheckResult(
        "tiered storage", State.NOTE, "the broker has none", "records are kept as long as its disk holds them"
    )


def _topics(admin: AdminClient, partitions: dict[str, int], answer_s: float) -> Iterator[CheckResult]:
    table = {topic.name: topic for topic in all_topics()}
    if missing := sorted(set(table) - set(partitions)):
        advice = "`lookout up` creates them here, the chart on Kubernetes"
        yield CheckResult("topics", State.BAD, f"missing: {', '.join(missing)}", advice)
    present = [topic for name, topic in table.items() if name in partitions]
    cameras = [topic for topic in camera_topics() if topic.name in partitions]
    counts = {partitions[topic.name] for topic in cameras}
    if len(counts) > 1:
        yield CheckResult(
            "partitions",
            State.BAD,
            ", ".join(f"{topic.name} {partitions[topic.name]}" for topic in cameras),
            "the cameras' topics share one partition count: `lookout topics grow` completes it",
        )
    # All requests are sent before the first answer is awaited.
    resources = [ConfigResource(ResourceType.TOPIC, topic.name) for topic in present]
    pending = admin.describe_configs(resources) if resources else {}
    settings = {
        resource.name: {entry.name: entry.value for entry in future.result(answer_s).values()}
        for resource, future in pending.items()
    }
    problems = [problem for topic in present for problem in topic.complaints(settings[topic.name])]
    for problem in problems:
        yield CheckResult(
            "topic settings", State.BAD, problem, "change it with kafka-configs.sh --alter, see docs/wire.md"
        )
    if present and not missing and not problems and len(counts) == 1:
        yield CheckResult(
            "topics", State.GOOD, f"{len(present)}, {counts.pop()} partitions each in the pipeline"
        )


def _stages(admin: AdminClient, answer_s: float) -> Iterator[CheckResult]:
    """Check that each stage has workers; a stage without one processes nothing."""
    # A new broker first creates the topic of its groups. A request that arrives meanwhile sometimes gets no
    # answer at all, so ask several times with short time-outs.
    retrying = Retrying(
        stop=stop_after_delay(answer_s),
        wait=wait_fixed(_ASK_AGAIN_S),
        retry=retry_if_exception(_may_pass),
        reraise=True,
    )
    try:
        for stage, members in retrying(_members, admin, answer_s / _TRIES).items():
            if members:
                yield CheckResult(f"stage {stage}", State.GOOD, f"{members} worker(s)")
            else:
                module = f"lookout.services.{stage.replace('-', '_')}"
                advice = f"start one: python -m {module}, or a pod of it"
                yield CheckResult(f"stage {stage}", State.BAD, "no worker", advice)
    except KafkaException as error:
        yield CheckResult("stages", State.NOTE, f"unknown: {error_text(error.args[0])}")


def _may_pass(error: BaseException) -> bool:
    """Whether the same question may be answered a moment later."""
    if isinstance(error, KafkaException) and error.args[0].code() == KafkaError._TIMED_OUT:
        return True
    return isinstance(error, TimeoutError) or coordinator_moves(error)


def _members(admin: AdminClient, answer_s: float) -> dict[Stage, int]:
    """Return the number of workers by stage."""
    groups = admin.describe_consumer_groups(
        [flow.group for flow in PIPELINE.values()], request_timeout=answer_s
    )
    return {stage: len(groups[flow.group].result(answer_s).members) for stage, flow in PIPELINE.items()}
