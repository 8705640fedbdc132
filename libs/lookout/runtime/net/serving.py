"""Asks a service by gRPC whether it serves."""

from __future__ import annotations

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc


def serving_fault(channel: grpc.Channel, timeout_s: float) -> str | None:
    """Why a service does not serve calls; None: it does.

    Args:
        channel: To the service.
        timeout_s: Seconds until it must have answered.
    """
    stub = health_pb2_grpc.HealthStub(channel)
    try:
        answer = stub.Check(health_pb2.HealthCheckRequest(), timeout=timeout_s)
    except grpc.RpcError as error:
        return f"{error.code().name.lower()}: {error.details()}"
    if answer.status == health_pb2.HealthCheckResponse.SERVING:
        return None
    return "it does not serve calls yet"
