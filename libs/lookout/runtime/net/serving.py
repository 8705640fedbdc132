"""A gRPC health check of another service."""

from __future__ import annotations

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc


def serving_fault(channel: grpc.Channel, timeout_s: float) -> str | None:
    """Return why a service does not serve calls; None if it serves them.

    Args:
        channel: A channel to the service.
        timeout_s: Seconds to wait for the answer.
    """
    stub = health_pb2_grpc.HealthStub(channel)
    try:
        answer = stub.Check(health_pb2.HealthCheckRequest(), timeout=timeout_s)
    except grpc.RpcError as error:
        return f"{error.code().name.lower()}: {error.details()}"
    if answer.status == health_pb2.HealthCheckResponse.SERVING:
        return None
    return "it does not serve calls yet"
