"""Notifications in people's own browsers (Web Push)."""

from __future__ import annotations

from typing import Annotated, Final

from fastapi import APIRouter, Depends, Path, Request
from starlette.responses import Response

from lookout.rules.notifications import check_notification
from lookout.services.gateway.guard import Viewer
from lookout.services.gateway.history import queries
from lookout.services.gateway.messages import answer, body_of, route
from lookout.services.gateway.parts import Parts, parts_of
from lookout.services.gateway.principal import Principal
from lookout.services.gateway.problems import ProblemError, not_found
from lookout.services.gateway.routes.notifications import check_place, deliver_test, view_of
from lookout.services.gateway.writes import Asked, entry
from lookout.v1.gateway_pb2 import NotificationView, PushView
from lookout.v1.notifications_pb2 import Notification, TryNotificationResponse
from lookout.wire import NOTIFICATIONS, stable_id, to_json

router = APIRouter(prefix="/v1/push", tags=["notifications"])
_Id = Annotated[str, Path(max_length=200)]
_PREFIX: Final = "browser-"


@router.get("", **route(PushView))
def get_push(request: Request, principal: Viewer) -> Response:
    """Return the key with which a browser subscribes, and the caller's browsers."""
    parts = parts_of(request)
    return answer(PushView(key=_key(parts), notifications=_own(parts, principal)))


@router.put("", **route(NotificationView, takes=Notification))
def put_push(
    request: Request,
    principal: Viewer,
    asked: Asked,
    target: Annotated[Notification, Depends(body_of(Notification))],
) -> Response:
    """Subscribe one of the caller's browsers to incidents of the cameras that the caller may see. `push` is
    the subscription that the browser created.
    """
    parts = parts_of(request)
    _key(parts)
    target.push.person = principal.actor
    target.id = f"{_PREFIX}{stable_id(principal.actor, target.push.endpoint)[:24]}"
    _limit(target, principal)
    check_notification(target)
    check_place(parts, target.id)
    with parts.writes.once(principal, asked, NOTIFICATIONS.name) as written:
        if written is None:
            audit = entry("push.write", target.id, tenant=target.tenant)
            parts.writes.write(principal, asked, NOTIFICATIONS.name, {target.id: to_json(target)}, audit)
    return answer(_one(parts, principal, target.id))


@router.post("/{identity}/test", **route(TryNotificationResponse))
def try_push(request: Request, principal: Viewer, asked: Asked, identity: _Id) -> Response:
    """Show a test message in one of the caller's browsers."""
    parts = parts_of(request)
    _one(parts, principal, identity)
    return answer(deliver_test(parts, principal, asked, identity))


@router.delete("/{identity}", **route(None, status=204))
def remove_push(request: Request, principal: Viewer, asked: Asked, identity: _Id) -> Response:
    """Stop notifying one of the caller's browsers."""
    parts = parts_of(request)
    with parts.writes.once(principal, asked, NOTIFICATIONS.name) as written:
        if written is None:
            _one(parts, principal, identity)
            parts.writes.write(
                principal, asked, NOTIFICATIONS.name, {identity: None}, entry("push.remove", identity)
            )
    return Response(status_code=204)


def _key(parts: Parts) -> str:
    if parts.push_key is None:
        raise ProblemError(
            404, "this fleet does not notify browsers: set LOOKOUT_PUSH_KEY_FILE for gateway and notify"
        )
    return parts.push_key


def _limit(target: Notification, principal: Principal) -> None:
    """Limit a notification to what its person may see.

    Raises:
        ProblemError: The notification covers more than the person may see, or names no tenant although
            the person sees several tenants, which one notification cannot express.
    """
    if principal.cameras:
        if target.cameras and not set(target.cameras) <= set(principal.cameras):
            raise ProblemError(
                403, "cameras: choose cameras that you may see; give none for all cameras that you may see"
            )
        if not target.cameras:
            target.cameras.extend(principal.cameras)
    if not principal.tenants:
        return
    if not target.tenant and len(principal.tenants) == 1:
        target.tenant = principal.tenants[0]
    if not target.tenant or not principal.sees_tenant(target.tenant):
        raise ProblemError(403, f"tenant: choose one of {', '.join(principal.tenants)[:200]}")


def _own(parts: Parts, principal: Principal) -> list[NotificationView]:
    with parts.database.reading() as connection:
        views = [view_of(row) for row in queries.documents(connection, NOTIFICATIONS.name)]
    return [view for view in views if view.notification.push.person == principal.actor]


def _one(parts: Parts, principal: Principal, identity: str) -> NotificationView:
    for view in _own(parts, principal):
        if view.notification.id == identity:
            return view
    raise not_found("browser", identity)
