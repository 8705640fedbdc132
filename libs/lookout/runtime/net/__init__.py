"""Secure connections to Kafka, Redis, gRPC services and foreign hosts.

Connection settings are imported at once, names that need gRPC on first use: commands that only read Kafka
need no server.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lookout.lazy import lazy_names
from lookout.runtime.net.connections import (
    Connections as Connections,
    GrpcSecurity as GrpcSecurity,
    KafkaSecurity as KafkaSecurity,
    RedisSecurity as RedisSecurity,
    load_connections as load_connections,
    without_security as without_security,
)

if TYPE_CHECKING:
    from lookout.runtime.net.call_limits import CallLimits as CallLimits, PeerBytes as PeerBytes
    from lookout.runtime.net.grpc_security import Channels as Channels
    from lookout.runtime.net.server import GrpcServer as GrpcServer

__getattr__ = lazy_names(__name__)
