"""How Kafka, Redis, gRPC and foreign hosts are reached safely."""

from lookout.net.call_limits import CallLimits, PeerBytes
from lookout.net.connections import (
    Connections,
    GrpcSecurity,
    KafkaSecurity,
    RedisSecurity,
    load_connections,
    public_url,
    without_security,
)
from lookout.net.grpc_security import Channels
from lookout.net.server import GrpcServer

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
    "public_url",
    "without_security",
]
