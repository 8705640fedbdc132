"""Checks before a service starts that its dependencies answer, and that its topics are configured as the wire
format requires."""

from __future__ import annotations

import resource
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from confluent_kafka.admin import ConfigResource, ResourceType, TopicMetadata

from lookout.errors import StartupError
from lookout.models.digest import is_vision_half, tower_digest
from lookout.models.errors import ModelError
from lookout.runtime.kafka_clients import AdminClient
from lookout.runtime.net.redis_errors import REDIS_ERRORS
from lookout.runtime.observe import logs
from lookout.runtime.worker.retry import CALL_S, NotReadyError, retry_until
from lookout.runtime.worker.settings import ServiceSettings
from lookout.text import public_url
from lookout.wire import FRAMES, SEGMENTS, TOKENS, Topic

OPEN_FILES = 512
"""Minimum number of open files and connections that a process needs. With 128, Kafka clients cannot
connect."""
MOST_FILES = 65536
"""Value to which the soft limit is raised. Kafka clients with many partitions, and the JVM, need more than
1024."""

#: topics that takeovers read again, so they must outlive the longest outage
REREAD = frozenset({SEGMENTS.name, FRAMES.name, TOKENS.name})


def check_open_files() -> None:
    """Raise the soft limit of open files as far as allowed, and check that it is high enough.

    If it is too low, connections fail later with errors that seem to be Kafka's.

    Raises:
        StartupError: The hard limit is too low.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    unlimited = resource.RLIM_INFINITY
    limit = MOST_FILES if hard == unlimited else min(hard, MOST_FILES)
    if soft != unlimited and soft < limit:
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
    # Check the hard limit, because the soft limit was raised to it.
    if hard != unlimited and hard < OPEN_FILES:
        raise StartupError(
            f"this process may open only {hard} files, but needs {OPEN_FILES}; raise the limit with "
            f"ulimit -n {OPEN_FILES}"
        )


def check_kafka(settings: ServiceSettings, topics: Iterable[Topic]) -> int:
    """Check the topics, and return the number of partitions of the first pipeline topic among them, which is
    the service's input; 0 if there is none.

    Raises:
        StartupError: Kafka does not answer, or a topic is missing or wrongly configured; the message names
            the topic or setting.
    """
    admin = AdminClient(settings.kafka(), logger=logs.client_logger("startup"))
    required = {topic.name: topic for topic in topics}

    def ask() -> dict[str, TopicMetadata]:
        existing = admin.list_topics(timeout=CALL_S).topics
        missing = sorted(set(required) - set(existing))
        if missing:
            raise NotReadyError(
                f"Kafka has no topic {', '.join(missing)}; create the topics listed in docs/wire.md"
            )
        return dict(existing)

    unusable = f"LOOKOUT_BOOTSTRAP={settings.bootstrap}: Kafka is not usable"
    existing = retry_until(ask, settings, unusable)
    counts = {name: len(existing[name].partitions) for name, topic in required.items() if topic.pipeline}
    source = next(iter(counts.values()), 0)
    # Outputs may have more partitions than the input, because they grow first when partitions are added.
    if counts and min(counts.values()) < source:
        raise StartupError(
            f"the pipeline's topics must share one partition count, but have {counts}; if adding partitions "
            "was interrupted, complete it with `lookout topics grow`"
        )
    problems = _problems(
        settings, required, retry_until(lambda: _configs(admin, required), settings, unusable)
    )
    if problems:
        raise StartupError("wrong topic configuration: " + "; ".join(problems))
    return source


def check_redis(settings: ServiceSettings) -> None:
    """Check that Redis answers.

    Raises:
        StartupError: Redis does not answer in time, or its settings are wrong.
    """

    def ask() -> None:
        try:
            with settings.redis_client(
                settings.redis_url, socket_timeout=2.0, socket_connect_timeout=2.0
            ) as client:
                client.ping()
        except REDIS_ERRORS as error:
            raise NotReadyError(str(error)) from error

    where = public_url(settings.redis_url)
    retry_until(ask, settings, f"LOOKOUT_REDIS_URL={where}: Redis is not usable")


def model_folder(folder: Path | None) -> Path:
    """Return the folder of a checkpoint after checking that it exists. Its files are not read.

    Raises:
        StartupError: The folder is not set or does not exist.
    """
    if folder is None or not folder.is_dir():
        raise StartupError(f"LOOKOUT_MODEL_DIR={folder}: give the folder of a model's checkpoint")
    return folder


def checked_model(
    settings: ServiceSettings, folder: Path | None, *, tower_only: bool = False
) -> tuple[Path, str]:
    """Return a model's folder and digest after checking that it is the configured model.

    Args:
        settings: The service's settings.
        folder: The checkpoint's folder.
        tower_only: Whether the service uses only the vision tower, so that the vision half of a checkpoint is
            enough.

    Raises:
        StartupError: The folder does not exist, or contains another model or only the vision half of one.
    """
    folder = model_folder(folder)
    if not tower_only and is_vision_half(folder):
        raise StartupError(
            f"LOOKOUT_MODEL_DIR={folder} contains only the vision half of a checkpoint; give the complete one"
        )
    try:
        digest = tower_digest(folder)
    except ModelError as error:
        raise StartupError(f"LOOKOUT_MODEL_DIR={folder}: {error}") from error
    check_digest(settings, digest)
    return folder, digest


@contextmanager
def loading(folder: Path, what: str = "the model") -> Iterator[None]:
    """Turn errors while a model loads into a StartupError that names the model's folder.

    Raises:
        StartupError: The block raised an OSError, ValueError or RuntimeError.
    """
    try:
        yield
    except (OSError, ValueError, RuntimeError) as error:
        raise StartupError(f"LOOKOUT_MODEL_DIR={folder}: {what} does not load: {error}") from error


def check_digest(settings: ServiceSettings, actual: str) -> None:
    """Check that a model's digest is the one in the setting `model_digest`, if that is set.

    Raises:
        StartupError: The digests differ.
    """
    if settings.model_digest is not None and settings.model_digest != actual:
        raise StartupError(
            f"LOOKOUT_MODEL_DIGEST={settings.model_digest}, but the model in "
            f"LOOKOUT_MODEL_DIR={settings.model_dir} has digest {actual}; correct one of the two settings"
        )


def _configs(admin: AdminClient, wanted: Iterable[str]) -> dict[str, dict[str, str]]:
    resources = [ConfigResource(ResourceType.TOPIC, name) for name in wanted]
    futures = admin.describe_configs(resources, request_timeout=CALL_S)
    return {
        resource.name: {name: entry.value for name, entry in future.result().items()}
        for resource, future in futures.items()
    }


def _problems(
    settings: ServiceSettings, wanted: dict[str, Topic], configs: dict[str, dict[str, str]]
) -> list[str]:
    problems = []
    for name, topic in wanted.items():
        have = configs[name]
        problems += topic.complaints(have)
        retention = int(have.get("retention.ms", -1))
        needed = int(settings.retention_needed_s * 1000)
        if name in REREAD and 0 <= retention < needed:
            problems.append(
                f"{name}: retention.ms={retention} is too short; it must be at least {needed} ms "
                f"(LOOKOUT_WINDOW_S + LOOKOUT_OUTAGE_S + {settings.retention_margin_s:g} s)"
            )
    return problems
