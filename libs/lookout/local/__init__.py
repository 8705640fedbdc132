"""A whole fleet on one machine: real Kafka and Redis without an installation."""

from lookout.local.fleet import Fleet, FleetAddress, Service, running_fleets
from lookout.local.kafka import KafkaServer
from lookout.local.processes import Child, LocalError, PortTakenError, free_ports, guarded
from lookout.local.redis import RedisServer
from lookout.local.topics import create_topics, reconcile_topics

__all__ = [
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
