"""Notifications: who is told of incidents, and how."""

from __future__ import annotations

from typing import Annotated, Any, Final

import grpc
from fastapi import APIRouter, Depends, Path, Request
from starlette.responses import Response

from lookout.rules.notifications import check_notification
from lookout.runtime.net import Channels
from lookout.services.gateway.guard import Administrator
from lookout.services.gateway.history import queries
from lookout.services.gateway.messages import answer, body_of, route
from lookout.services.gateway.parts import Parts, parts_of
from lookout.services.gateway.principal import Principal
from lookout.services.gateway.problems import ProblemError, not_found
from lookout.services.gateway.writes import Asked, Asking, entry
from lookout.v1.gateway_pb2 import NotificationList, NotificationView
from lookout.v1.notifications_pb2 import (
    DeliveryState,
    ListDeliveriesRequest,
    Notification,
    TryNotificationRequest,
    TryNotificationResponse,
)
from lookout.v1.notifications_pb2_grpc import NotifyServiceStub
from lookout.wire import NOTIFICATIONS, from_json, headers, to_json
from lookout.wire.limits import NOTIFICATIONS as MOST

router = APIRouter(prefix="/v1/notifications", tags=["notifications"])
_Id = Annotated[str, Path(max_length=200)]
#: time limit of a test in seconds, including the target's answer and a picture
_TEST_S: Final = 45.0
_STATES_S: Final = 3.0


@router.get("", **route(NotificationList))
def list_notifications(request: Request, principal: Administrator) -> Response:
    """List notifications. They contain no secrets: these are in files that only the notify service reads."""
    _check_unlimited(principal)
    with parts_of(request).database.reading() as connection:
        rows = queries.documents(connection, NOTIFICATIONS.name)
    views = [view_of(row) for row in rows]
    states = _deliveries(parts_of(request))
    for view in views:
        if (state := states.get(view.notification.id)) is not None:
            view.delivery.CopyFrom(state)
    return answer(NotificationList(notifications=views))


@router.get("/{identity:path}", **route(NotificationView))
def get_notification(request: Request, principal: Administrator, identity: _Id) -> Response:
    """Return a notification."""
    _check_unlimited(principal)
    return answer(_one(parts_of(request), identity))


@router.put("/{identity:path}", **route(NotificationView, takes=Notification))
def put_notification(
    request: Request,
    principal: Administrator,
    asked: Asked,
    identity: _Id,
    target: Annotated[Notification, Depends(body_of(Notification))],
) -> Response:
    """Add or change a notification. Further messages about open incidents still go to whoever was told of
    these incidents.
    """
    _check_unlimited(principal)
    parts = parts_of(request)
    target.id = identity
    check_notification(target)
    check_place(parts, identity)
    with parts.writes.once(principal, asked, NOTIFICATIONS.name) as written:
        if written is None:
            audit = entry("notification.write", identity, tenant=target.tenant)
            parts.writes.write(principal, asked, NOTIFICATIONS.name, {identity: to_json(target)}, audit)
    return answer(_one(parts, identity))


@router.delete("/{identity:path}", **route(None, status=204))
def remove_notification(request: Request, principal: Administrator, asked: Asked, identity: _Id) -> Response:
    """Remove a notification. Messages that were not delivered yet are dropped."""
    _check_unlimited(principal)
    parts = parts_of(request)
    with parts.writes.once(principal, asked, NOTIFICATIONS.name) as written:
        if written is None:
            check_place(parts, _one(parts, identity).notification.id)
            audit = entry("notification.remove", identity)
            parts.writes.write(principal, asked, NOTIFICATIONS.name, {identity: None}, audit)
    return Response(status_code=204)


@router.post("/{identity:path}/test", **route(TryNotificationResponse))
def try_notification(request: Request, principal: Administrator, asked: Asked, identity: _Id) -> Response:
    """Deliver a test message at once, whatever the notification's rules are."""
    _check_unlimited(principal)
    parts = parts_of(request)
    _one(parts, identity)
    return answer(deliver_test(parts, principal, asked, identity))


def deliver_test(parts: Parts, principal: Principal, asked: Asking, identity: str) -> TryNotificationResponse:
    """Have the notify service deliver a test message.

    Raises:
        ProblemError: There is no notify service, or it does not answer.
    """
    if parts.settings.notify is None:
        raise ProblemError(
            404, "this fleet does not deliver notifications: run notify, and set LOOKOUT_NOTIFY"
        )
    parts.writes.note(principal, asked, entry("notification.test", identity))
    with Channels(parts.settings).open(parts.settings.notify) as channel:
        stub: Any = NotifyServiceStub(channel)  # type: ignore[no-untyped-call]
        try:
            outcome: TryNotificationResponse = stub.TryNotification(
                TryNotificationRequest(notification=identity), timeout=_TEST_S
            )
        except grpc.RpcError as error:
            raise ProblemError(503, f"notify at {parts.settings.notify}: {error.details()}") from error
    return outcome


def _deliveries(parts: Parts) -> dict[str, DeliveryState]:
    """Return the state of deliveries, by notification; empty if notify does not answer."""
    if parts.settings.notify is None:
        return {}
    with Channels(parts.settings).open(parts.settings.notify) as channel:
        stub: Any = NotifyServiceStub(channel)  # type: ignore[no-untyped-call]
        try:
            response = stub.ListDeliveries(ListDeliveriesRequest(), timeout=_STATES_S)
        except grpc.RpcError:
            return {}
    return {state.notification: state for state in response.states}


def _check_unlimited(principal: Principal) -> None:
    if not principal.unlimited:
        raise ProblemError(403, "notifications need an administrator of every camera and tenant")


def check_place(parts: Parts, identity: str) -> None:
    """Raise ProblemError if the gateway may not write a notification, or if there are too many."""
    with parts.database.reading() as connection:
        rows = {row.key: row for row in queries.documents(connection, NOTIFICATIONS.name)}
    if identity in rows and rows[identity].owner == headers.KUBERNETES:
        raise ProblemError(409, f"notification {identity} is a Kubernetes resource: change it with kubectl")
    if identity not in rows and len(rows) >= MOST:
        raise ProblemError(
            409, f"there are already {len(rows)} notifications, which is the limit: remove some first"
        )


def _one(parts: Parts, identity: str) -> NotificationView:
    with parts.database.reading() as connection:
        row = queries.document(connection, NOTIFICATIONS.name, identity)
    if row is None:
        raise not_found("notification", identity)
    return view_of(row)


def view_of(row: Any) -> NotificationView:
    """Return the API's view of a row of notifications.v1."""
    notification = from_json(row.body, Notification)
    return NotificationView(notification=notification, read_only=row.owner == headers.KUBERNETES)
