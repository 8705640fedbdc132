"""Asks the notify service which second models a watch may name."""

from __future__ import annotations

from typing import Any, Final

import grpc

from lookout.administration.watches import WatchError
from lookout.rules import second_model_fault
from lookout.runtime.net import Channels, GrpcSecurity
from lookout.v1.notifications_pb2 import ListSecondModelsRequest, ListSecondModelsResponse
from lookout.v1.notifications_pb2_grpc import NotifyServiceStub
from lookout.v1.watches_pb2 import Watch

_ANSWER_S: Final = 3.0


def second_models(security: GrpcSecurity, address: str) -> ListSecondModelsResponse | None:
    """Return which second models notify knows; None if it does not answer.

    Args:
        security: Settings with which services call one another.
        address: Address of notify, host:port.
    """
    with Channels(security).open(address) as channel:
        stub: Any = NotifyServiceStub(channel)  # type: ignore[no-untyped-call]
        models: ListSecondModelsResponse
        try:
            models = stub.ListSecondModels(ListSecondModelsRequest(), timeout=_ANSWER_S)
        except grpc.RpcError:
            return None
    return models


def check_second_model(watch: Watch, security: GrpcSecurity, address: str) -> None:
    """Check that the second model that a watch names exists. If notify does not answer, the check passes;
    people are then notified without a second opinion, and told why.

    Raises:
        WatchError: The model does not exist; the text lists the existing ones.
    """
    response = second_models(security, address) if watch.verify_with else None
    names = [] if response is None else [model.name for model in response.models]
    if response is not None and (fault := second_model_fault(watch.verify_with, names)):
        raise WatchError(f"verify_with: {fault}")
