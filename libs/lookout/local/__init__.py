"""A whole fleet on one machine, with a real Kafka and Redis that need no installation.

At first only the addresses of running fleets are imported. Everything else is imported on first use, because
commands that only look for a fleet need no server.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lookout.lazy import lazy_names
from lookout.local.addresses import (
    CAMERA_AGENT as CAMERA_AGENT,
    CAMERA_SECRETS as CAMERA_SECRETS,
    GATEWAY as GATEWAY,
    NOTIFY_SECRETS as NOTIFY_SECRETS,
    RECALL as RECALL,
    RECORDINGS_DECODE as RECORDINGS_DECODE,
    RECORDINGS_ROLES as RECORDINGS_ROLES,
    FleetAddress as FleetAddress,
    running_fleets as running_fleets,
)
from lookout.local.processes import (
    Child as Child,
    LocalError as LocalError,
    PortTakenError as PortTakenError,
    free_ports as free_ports,
    guarded as guarded,
)

if TYPE_CHECKING:
    from lookout.local.fleet import Fleet as Fleet, Service as Service
    from lookout.local.kafka import KafkaServer as KafkaServer
    from lookout.local.redis import RedisServer as RedisServer
    from lookout.local.topics import create_topics as create_topics, reconcile_topics as reconcile_topics

__getattr__ = lazy_names(__name__)
