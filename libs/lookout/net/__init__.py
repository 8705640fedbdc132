"""How Kafka, Redis, gRPC and foreign hosts are reached safely.

Connection settings are imported at once, what needs gRPC when it is first named: commands that only read
Kafka need no server.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lookout.lazy import lazy_names
from lookout.net.connections import (
    Connections,
    GrpcSecurity,
    KafkaSecurity,
    RedisSecurity,
    load_connections,
    without_security,
)

if TYPE_CHECKING:
    from lookout.net.call_limits import CallLimits, PeerBytes
    from lookout.net.grpc_security import Channels
    from lookout.net.server import GrpcServer

_LAZY = {
    "CallLimits": "call_limits",
    "Channels": "grpc_security",
    "GrpcServer": "server",
    "PeerBytes": "call_limits",
}

__all__ = [
    "CallLimits",
    "Channels",
    "Connections",
    "GrpcSecurity",
    "GrpcServer",
    "KafkaSecurity",
    "PeerBytes",
    "RedisSecurity",
    "load_connections",
    "without_security",
]


__getattr__ = lazy_names(__name__, _LAZY)
