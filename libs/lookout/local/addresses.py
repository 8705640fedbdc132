"""Addresses of running local fleets. Imports no server, because commands need the addresses quickly."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import platformdirs

from lookout.disk import is_own
from lookout.local.processes import is_held


def cache_folder() -> Path:
    """Return the folder for Lookout's downloads: LOOKOUT_CACHE, else a folder in the user's cache folder."""
    given = os.environ.get("LOOKOUT_CACHE")
    return Path(given) if given else Path(platformdirs.user_cache_dir("lookout"))


RECALL = "recall"
"""The service that answers questions about the past. It reads no topic and is not a stage of the pipeline."""
GATEWAY = "gateway"
"""The HTTP API; it reads topics without a consumer group."""
CAMERA_AGENT = "camera-agent"
"""The service that pulls cameras; it reads `cameras.v1` without a consumer group."""
CAMERA_SECRETS = "camera-secrets"
"""A local fleet's folder with the user names and passwords of its cameras."""
NOTIFY_SECRETS = "notify-secrets"
"""A local fleet's folder with keys, passwords and Apprise URLs for notifications."""
LINK_KEY = "link-key"
"""A local fleet's file with the key that signs links."""
PUSH_KEY = "push-key"
"""A local fleet's file with the private key for Web Push."""
RECORDINGS_ROLES = {"recordings-plan": "plan", "recordings": "parts", "recordings-reduce": "reduce"}
"""The services that answer jobs about recordings, each with its module's argument."""
RECORDINGS_DECODE = "recordings-decode"
"""The service that decodes parts of recordings in advance; it reads no topic."""
PLAN_SETTINGS = ("reuse", "key_every", "max_damage")
"""Settings that back-tests and prefill share (`lookout.runtime.worker.WindowPlanSettings`)."""


@dataclass(frozen=True, slots=True)
class FleetAddress:
    """Where a running local fleet can be reached. It is written to the cache folder, where other commands
    find it.

    `security` has the settings with which clients reach the fleet's own Kafka and Redis (without the LOOKOUT_
    prefix); passwords are in files to which it refers. `gateway` is the URL of the HTTP API, and
    `sign_in_file` the file with the secret of its next sign-in link. `model` is the folder of the fleet's
    checkpoint; empty: unknown.
    """

    bootstrap: str
    redis_url: str
    folder: str
    pid: int
    metrics: dict[str, int]
    grpc: dict[str, int]
    own_kafka: bool = True
    own_redis: bool = True
    grpc_token_file: str | None = None
    security: dict[str, str] = field(default_factory=dict)
    gateway: str | None = None
    sign_in_file: str | None = None
    model: str = ""

    def sign_in_link(self) -> str | None:
        """Return a sign-in link that works once; None if no gateway runs.

        Raises:
            OSError: The file with the link's secret cannot be read.
        """
        if self.gateway is None or self.sign_in_file is None:
            return None
        return f"{self.gateway}/sign-in/{Path(self.sign_in_file).read_text()}"

    def environment(self) -> dict[str, str]:
        """Return `security` as environment variables."""
        return {f"LOOKOUT_{name.upper()}": value for name, value in self.security.items()}


def kafka_login(security: Mapping[str, str]) -> dict[str, str]:
    """Return librdkafka options from the settings of a local Kafka; empty if it needs no password. They equal
    those of `KafkaSecurity.kafka_security`, but without the slow imports for validating settings.

    Raises:
        OSError: The file with the password cannot be read.
    """
    if "kafka_password_file" not in security:
        return {}
    return {
        "security.protocol": security["kafka_protocol"],
        "sasl.mechanism": security["kafka_mechanism"],
        "sasl.username": security["kafka_username"],
        "sasl.password": Path(security["kafka_password_file"]).read_text(),
    }


def running_fleets() -> list[FleetAddress]:
    """Return the addresses of this user's running fleets, newest first.

    Several users may share the cache folder. Other users' files are ignored, because they could refer to a
    broker that takes this user's footage.
    """
    running: list[tuple[float, FleetAddress]] = []
    for path in announcements().glob("*.json"):
        if not is_own(path):
            continue
        try:
            if is_held(path):
                running.append((path.stat().st_mtime, FleetAddress(**json.loads(path.read_text()))))
            else:
                path.unlink(missing_ok=True)
        except (OSError, ValueError, TypeError):
            continue
    return [address for _, address in sorted(running, key=lambda entry: -entry[0])]


def announcements() -> Path:
    """Return the folder with one file per running fleet of this user."""
    return cache_folder() / "fleets"


def announcement() -> Path:
    """Return the file to which this process writes its fleet's address."""
    return announcements() / f"{os.getpid()}.json"
