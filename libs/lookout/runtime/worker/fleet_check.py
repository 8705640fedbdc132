"""Checks that all instances of a stage share the same settings. The settings are part of the Kafka client id,
and are compared before an instance joins the group."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Mapping

from confluent_kafka import KafkaException

from lookout.errors import StartupError
from lookout.runtime.kafka_clients import AdminClient
from lookout.runtime.observe import logs
from lookout.runtime.worker.retry import CALL_S
from lookout.runtime.worker.settings import ServiceSettings, digest

#: name of the part of a client id that identifies the installation
RELEASE = "release"
_SAFE = re.compile(r"[^A-Za-z0-9.]+")
PAUSE_S = 0.5


def client_id(stage: str, shared: Mapping[str, str], release: str = "", version: str = "") -> str:
    """Return a client id such as `decode_fps-2_grid-16x16_1.4.0`.

    It consists of the stage, the shared settings, the release if it has a name, and the version, which is not
    compared. It contains only letters, digits, `.`, `-` and `_`.
    """
    facts = {**shared, **({RELEASE: release} if release else {})}
    parts = [stage, *(f"{_safe(name)}-{_safe(value)}" for name, value in sorted(facts.items()))]
    return "_".join([*parts, *([_safe(version)] if version else [])])


def version_of(identity: str) -> str:
    """Return the version in a client id; empty if it has none, as in older releases."""
    last = identity.rpartition("_")[2]
    return last if last[:1].isdigit() else ""


def differences(ours: str, theirs: str) -> list[str]:
    """Return sentences about the shared settings in which two client ids of a stage differ. The list is empty
    if `theirs` belongs to another stage or has another format."""
    if ours == theirs or ours.partition("_")[0] != theirs.partition("_")[0]:
        return []
    own, other_facts = _facts(ours), _facts(theirs)
    if not other_facts:
        return []
    if RELEASE not in own or RELEASE not in other_facts:  # started by hand, or by an older chart
        for facts in (own, other_facts):
            facts.pop(RELEASE, None)
    return [
        f"{name} is {other_facts.get(name, 'not set')} there and {own.get(name, 'not set')} here"
        for name in sorted({*own, *other_facts})
        if own.get(name) != other_facts.get(name)
    ]


def mark(shared: Mapping[str, str], config_digest: str) -> str:
    """Return the configuration mark for checkpoints: the digest of the shared settings, then that of this
    instance's configuration."""
    return f"{digest(dict(shared))}.{config_digest}"


def is_compatible(marked: str, shared: Mapping[str, str]) -> bool:
    """Whether a checkpoint with this mark was written under the same shared settings."""
    head, dot, _ = marked.partition(".")
    return not dot or head == digest(dict(shared))


def check_group(
    settings: ServiceSettings,
    group: str,
    own: str,
    *,
    members: Callable[[], Iterable[str]] | None = None,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> None:
    """Check that all live members of the group use the same shared settings.

    A killed member stays in the group until its session ends, so a difference counts only if it persists for
    a session.

    Args:
        settings: how Kafka is reached, and how long a session lasts.
        group: the consumer group.
        own: this process's client id.
        members: returns the members' client ids; default: asks Kafka.
        clock: monotonic seconds.
        sleep: waits for a number of seconds.

    Raises:
        StartupError: a live member has other shared settings.
    """
    ask = members or _asker(settings, group)
    # One second longer than a session, so that the session of a member that was just killed has ended.
    deadline = clock() + settings.session_timeout_s + 1.0
    while True:
        lines = sorted({line for theirs in ask() for line in differences(own, theirs)})
        if not lines:
            return
        if clock() >= deadline:
            raise StartupError(
                f"the running instances of group {group!r} have other settings: {'; '.join(lines)}. "
                "Give this instance the same settings, or stop the others first. A second installation needs "
                "a different LOOKOUT_PREFIX"
            )
        sleep(PAUSE_S)


def _asker(settings: ServiceSettings, group: str) -> Callable[[], list[str]]:
    admin = AdminClient(settings.kafka(), logger=logs.client_logger("group"))

    def ask() -> list[str]:
        try:
            description = admin.describe_consumer_groups([group], request_timeout=CALL_S)[group].result()
        except KafkaException as error:
            logs.get("group").warning(
                "cannot list the members of the consumer group, whose settings are therefore not compared",
                why=str(error.args[0]),
            )
            return []
        return [str(member.client_id) for member in description.members]

    return ask


def _safe(text: str) -> str:
    return _SAFE.sub("", text)


def _facts(identity: str) -> dict[str, str]:
    return dict(fact.split("-", 1) for fact in identity.split("_")[1:] if "-" in fact)
