"""A whole fleet on one machine: real Kafka and Redis without an installation.

Addresses of running fleets are imported at once, all else when it is first named: commands that only look for
a fleet need no server."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lookout.lazy import lazy_names
from lookout.local.addresses import RECALL, FleetAddress, running_fleets
from lookout.local.processes import Child, LocalError, PortTakenError, free_ports, guarded

if TYPE_CHECKING:
    from lookout.local.fleet import Fleet, Service
    from lookout.local.kafka import KafkaServer
    from lookout.local.redis import RedisServer
    from lookout.local.topics import create_topics, reconcile_topics

_LAZY = {
    "Fleet": "fleet",
    "KafkaServer": "kafka",
    "RedisServer": "redis",
    "Service": "fleet",
    "create_topics": "topics",
    "reconcile_topics": "topics",
}

__all__ = [
    "RECALL",
    "Child",
    "Fleet",
    "FleetAddress",
    "KafkaServer",
    "LocalError",
    "PortTakenError",
    "RedisServer",
    "Service",
    "create_topics",
    "free_ports",
    "guarded",
    "reconcile_topics",
    "running_fleets",
]


__getattr__ = lazy_names(__name__, _LAZY)
