"""Watches: read, write, disable, snooze, remove."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Annotated, Final

from fastapi import APIRouter, Depends, Path, Query, Request
from starlette.responses import Response

from lookout.administration import Standing, change_watch, check_crowd, check_gate, standing_of
from lookout.administration.second_models import check_second_model
from lookout.administration.watches import checked
from lookout.runtime.worker.topic_reader import read_topic
from lookout.services.gateway.guard import Operator, Viewer
from lookout.services.gateway.history import queries
from lookout.services.gateway.messages import answer, body_of, route
from lookout.services.gateway.parts import Parts, parts_of
from lookout.services.gateway.principal import Principal
from lookout.services.gateway.problems import ProblemError, not_found
from lookout.services.gateway.writes import Asked, Asking, entry
from lookout.v1.actions_pb2 import Snooze
from lookout.v1.gateway_pb2 import WatchList, WatchView
from lookout.v1.watches_pb2 import Watch
from lookout.wire import WATCHES, name_fault, to_json
from lookout.wire.topics import AHEAD_MS

router = APIRouter(prefix="/v1/watches", tags=["watches"])
_Id = Annotated[str, Path(max_length=200)]
_Body = Annotated[Watch, Depends(body_of(Watch))]
_Base = Annotated[
    int | None,
    Query(
        ge=0,
        description="the version that your change is based on; if there is a newer one, the answer is 409",
    ),
]
#: longest snooze. It must end before Kafka may remove the replaced version
_SNOOZE_MS: Final = AHEAD_MS - 3_600_000


@router.get("", **route(WatchList))
def list_watches(request: Request, principal: Viewer) -> Response:
    """List the watches that cover a camera that the caller may see."""
    with parts_of(request).database.reading() as connection:
        rows = queries.watches(connection, principal)
        owned = queries.owned(connection, WATCHES.name)
        views = [
            _view(queries.versions(connection, watch.id) or [watch], watch.id in owned) for watch in rows
        ]
    return answer(WatchList(watches=views))


@router.get("/{identity:path}", **route(WatchView))
def get_watch(request: Request, principal: Viewer, identity: _Id) -> Response:
    """Return a watch with its versions."""
    return answer(_watch(parts_of(request), principal, identity))


@router.put("/{identity:path}", **route(WatchView, takes=Watch))
def put_watch(
    request: Request, principal: Operator, asked: Asked, identity: _Id, target: _Body, base: _Base = None
) -> Response:
    """Add or change a watch. A change increases its version and closes its open incidents.

    If nothing changes, nothing is written.
    """
    target.id = identity
    return _change(parts_of(request), principal, asked, target, "watch.write", base)


@router.post("/{identity:path}/disable", **route(WatchView))
def disable(request: Request, principal: Operator, asked: Asked, identity: _Id) -> Response:
    """Stop asking a watch."""
    return _switch(parts_of(request), principal, asked, identity, disabled=True)


@router.post("/{identity:path}/enable", **route(WatchView))
def enable(request: Request, principal: Operator, asked: Asked, identity: _Id) -> Response:
    """Ask a watch again."""
    return _switch(parts_of(request), principal, asked, identity, disabled=False)


@router.post("/{identity:path}/snooze", **route(WatchView, takes=Snooze))
def snooze(
    request: Request,
    principal: Operator,
    asked: Asked,
    identity: _Id,
    target: Annotated[Snooze, Depends(body_of(Snooze))],
) -> Response:
    """Stop asking a watch until a time, after which it is asked again automatically."""
    parts = parts_of(request)
    until_ms, now_ms = target.until.ToMilliseconds(), int(time.time() * 1000)
    if not now_ms < until_ms <= now_ms + _SNOOZE_MS:
        raise ProblemError(400, "until: must be later than now, and no more than seven days ahead")
    with parts.writes.once(principal, asked, WATCHES.name) as written:
        if written is None:
            before = _own(parts, principal, identity)
            off, on = Watch(), Watch()
            off.CopyFrom(before)
            off.version, off.disabled = _standing(parts).version_after(identity), True
            off.active_from.FromMilliseconds(now_ms)
            on.CopyFrom(before)
            on.version, on.disabled = off.version + 1, False
            on.active_from.CopyFrom(target.until)
            # Two records in one batch for one partition, so that Kafka stores both or neither.
            rows = [(identity, checked(off)), (identity, checked(on))]
            places = parts.writes.write_only(principal, asked, WATCHES.name, rows)
            parts.writes.note(principal, asked, entry("watch.snooze", identity, tenant=before.tenant))
            parts.writes.await_places(places)
    return answer(_watch(parts, principal, identity))


@router.delete("/{identity:path}", **route(None, status=204))
def remove(request: Request, principal: Operator, asked: Asked, identity: _Id) -> Response:
    """Remove a watch, and close its open incidents."""
    parts = parts_of(request)
    with parts.writes.once(principal, asked, WATCHES.name) as written:
        if written is None:
            before = _own(parts, principal, identity)
            audit = entry("watch.remove", identity, tenant=before.tenant)
            parts.writes.write(principal, asked, WATCHES.name, {identity: None}, audit)
    return Response(status_code=204)


def _switch(parts: Parts, principal: Principal, asked: Asking, identity: str, *, disabled: bool) -> Response:
    target = Watch()
    target.CopyFrom(_own(parts, principal, identity))
    target.disabled = disabled
    return _change(parts, principal, asked, target, "watch.disable" if disabled else "watch.enable")


def _change(
    parts: Parts, principal: Principal, asked: Asking, target: Watch, action: str, base: int | None = None
) -> Response:
    if not principal.owns_watch(target):
        raise ProblemError(403, "cameras, tenant: the watch asks cameras that you may not see; choose yours")
    with parts.writes.once(principal, asked, WATCHES.name) as written:
        if written is None:
            standing = _standing(parts)
            if target.id in standing.watches:
                _own(parts, principal, target.id, standing.watches[target.id])
                if _is_in_force(target, standing.watches[target.id]):
                    return answer(_watch(parts, principal, target.id))
                newest = standing.watches[target.id].version
                if base is not None and base != newest:
                    raise ProblemError(
                        409,
                        f"somebody else changed this watch: its newest version is {newest}, but your change "
                        f"is based on {base}; compare the two, then save again",
                    )
            elif fault := name_fault(target.id):
                raise ProblemError(400, f"id: {fault}")
            target.version = standing.version_after(target.id)
            target.ClearField("active_from")
            if target.version > 1:  # a first version also covers footage from before it was written
                target.active_from.GetCurrentTime()
            check_crowd(target, standing.watches)
            check_gate(target, standing.watches)
            _check_second_model(parts, target, standing.watches.get(target.id))

            def write(rows: Mapping[str, bytes | None]) -> None:
                parts.writes.write(
                    principal, asked, WATCHES.name, rows, entry(action, target.id, tenant=target.tenant)
                )

            change_watch(target, lambda: _standing(parts), write)
    return answer(_watch(parts, principal, target.id))


def _is_in_force(target: Watch, before: Watch) -> bool:
    """Return whether a watch equals its newest version and that version is already in force.

    Raises:
        WatchError: The watch is invalid.
    """
    wanted = Watch()
    wanted.CopyFrom(target)
    wanted.version = before.version
    wanted.ClearField("active_from")
    if before.HasField("active_from"):
        wanted.active_from.CopyFrom(before.active_from)
    return checked(wanted) == to_json(before) and before.active_from.ToMilliseconds() <= time.time() * 1000


def _check_second_model(parts: Parts, target: Watch, before: Watch | None) -> None:
    """Check a watch's second model if it has changed. An unchanged second model is not checked, so that a
    watch can be disabled even if its model was removed.
    """
    if parts.settings.notify is not None and (before is None or before.verify_with != target.verify_with):
        check_second_model(target, parts.settings, parts.settings.notify)


def _standing(parts: Parts) -> Standing:
    """Read the current content of watches.v1."""
    messages = read_topic(parts.settings, "gateway-watches", WATCHES.name)
    return standing_of((message.key() or b"", message.value()) for message in messages)


def _own(parts: Parts, principal: Principal, identity: str, newest: Watch | None = None) -> Watch:
    """Return a watch that the caller may change."""
    with parts.database.reading() as connection:
        visible = {watch.id: watch for watch in queries.watches(connection, principal)}
        owned = queries.owned(connection, WATCHES.name)
    watch = newest or visible.get(identity)
    if watch is None or (identity not in visible and not principal.owns_watch(watch)):
        raise not_found("watch", identity)
    if not principal.owns_watch(watch):
        raise ProblemError(
            403,
            f"watch {identity} asks cameras that you may not see: ask somebody who "
            f"may see them to change the watch",
        )
    if identity in owned:
        raise ProblemError(409, f"watch {identity} is a Kubernetes resource: change it with kubectl")
    return watch


def _watch(parts: Parts, principal: Principal, identity: str) -> WatchView:
    with parts.database.reading() as connection:
        if not any(watch.id == identity for watch in queries.watches(connection, principal)):
            raise not_found("watch", identity)
        records = queries.versions(connection, identity)
        view = _view(records, identity in queries.owned(connection, WATCHES.name))
        view.authors.extend(queries.authors(connection, identity))
    view.versions.extend(records)
    return view


def _view(records: list[Watch], read_only: bool) -> WatchView:
    """Return the API's view of a watch from its records (oldest first): the newest record, and whether the
    record in force is enabled.
    """
    now_ms = time.time() * 1000
    newest = max(records, key=lambda watch: watch.version)
    active = [watch for watch in records if watch.active_from.ToMilliseconds() <= now_ms]
    present = max(active, key=lambda watch: watch.version, default=None)
    enabled = present is not None and not present.disabled
    view = WatchView(watch=newest, enabled=enabled, read_only=read_only)
    if not enabled and not newest.disabled:
        view.snoozed_until.CopyFrom(newest.active_from)
    return view
