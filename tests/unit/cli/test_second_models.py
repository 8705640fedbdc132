"""A watch that names a second model: refused before it is written, if notify answers."""

from __future__ import annotations

import pytest

from lookout.administration.second_models import check_second_model, second_models
from lookout.administration.watches import WatchError, checked
from lookout.runtime.net import GrpcServer, without_security
from lookout.v1.notifications_pb2 import ListSecondModelsRequest, ListSecondModelsResponse, SecondModel
from lookout.v1.notifications_pb2_grpc import NotifyServiceServicer, add_NotifyServiceServicer_to_server
from lookout.v1.watches_pb2 import Watch


class Known(NotifyServiceServicer):
    """A fake notify that knows two second models."""

    def ListSecondModels(self, request: ListSecondModelsRequest, context: object) -> ListSecondModelsResponse:
        return ListSecondModelsResponse(models=[SecondModel(name=name) for name in ("large", "hosted")])


def test_a_second_model_that_notify_does_not_know_is_refused() -> None:
    security = without_security()
    server = GrpcServer("127.0.0.1", 0)
    server.add(lambda added: add_NotifyServiceServicer_to_server(Known(), added))  # type: ignore[no-untyped-call]
    server.start()
    address = f"127.0.0.1:{server.port}"
    watch = Watch(id="fall", question="Is it?", verify=True, verify_with="hosted")
    check_second_model(watch, security, address)
    watch.verify_with = "hostd"
    with pytest.raises(WatchError, match=r"no second model is called 'hostd'; .* has: hosted, large"):
        check_second_model(watch, security, address)
    server.stop(0)
    # Nobody answers: people are told of the incident with the reason.
    assert second_models(security, address) is None
    check_second_model(watch, security, address)


def test_a_second_model_without_verify_is_refused() -> None:
    with pytest.raises(WatchError, match="set verify too"):
        checked(Watch(id="fall", question="Is it?", verify_with="hosted"))
