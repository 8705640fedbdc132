"""The feed of events. The history numbers them, so that a follower that reconnects misses no event."""

from __future__ import annotations

import asyncio
import re
import threading
from collections.abc import AsyncIterator, Callable
from typing import Any, Final, NamedTuple

import sqlalchemy

from lookout.services.gateway.history.database import GENERATION, Database
from lookout.services.gateway.history.records import EVENT_NUMBER
from lookout.services.gateway.history.tables import EVENTS
from lookout.services.gateway.principal import RECHECK_S, Principal
from lookout.services.gateway.problems import ProblemError

#: maximum number of events per read
_READ: Final = 500
#: seconds after which followers read the history even if this process has not changed it, because another
#: replica may have changed it
_ASK_S: Final = 1.0
#: seconds without an event after which a comment is sent to keep the connection open
_SILENCE_S: Final = 15.0
_ID: Final = re.compile(r"([0-9a-f]{8})-(\d{1,15})-(\d{1,15})")
#: after a rebuild of the history, events are sent again from this many milliseconds before a follower's last
#: event, because their order may differ
_AGAIN_MS: Final = 60_000


class Position(NamedTuple):
    """The last event that a follower has: its database's generation, its number and its Kafka time."""

    generation: str
    number: int
    time_ms: int

    def text(self) -> str:
        """Return the position as an event id."""
        return f"{self.generation}-{self.number}-{self.time_ms}"


class Feed:
    """Streams the history's events as they are stored.

    Args:
        database: The history's database.
        changed: Notified after each of this process's transactions.
    """

    def __init__(self, database: Database, changed: threading.Condition) -> None:
        self._database, self._changed = database, changed
        self._stopped = False
        self._followers: set[Callable[[], None]] = set()

    def run(self) -> None:
        """Wake followers whenever the history has changed, until `stop`."""
        while not self._stopped:
            with self._changed:
                self._changed.wait(_ASK_S)
            for wake in list(self._followers):
                wake()

    def stop(self) -> None:
        """End all followers."""
        self._stopped = True
        with self._changed:
            self._changed.notify_all()
        for wake in list(self._followers):
            wake()

    def begin(self, last: str | None) -> Position:
        """Return the position at which a follower starts.

        Args:
            last: The id of the follower's last event; None: start now.

        Raises:
            ProblemError: The text is not an event's id.
        """
        with self._database.reading() as connection:
            generation = self._database.fact(connection, GENERATION) or ""
            newest = int(self._database.fact(connection, EVENT_NUMBER) or 0)
            if last is None:
                return Position(generation, newest, 0)
            match = _ID.fullmatch(last)
            if match is None:
                raise ProblemError(400, "last-event-id: this is not the id of an event from /v1/events")
            position = Position(match[1], int(match[2]), int(match[3]))
            if position.generation == generation:
                return position
            # The history was rebuilt with other numbers. Some events may be sent twice, but no event is
            # missed.
            first = connection.scalar(
                sqlalchemy.select(sqlalchemy.func.min(EVENTS.c.number)).where(
                    EVENTS.c.time_ms >= position.time_ms - _AGAIN_MS
                )
            )
        return Position(generation, newest if first is None else first - 1, position.time_ms)

    def read(self, position: Position) -> list[Any]:
        """Return the next events after a position, as rows."""
        query = (
            sqlalchemy.select(EVENTS)
            .where(EVENTS.c.number > position.number)
            .order_by(EVENTS.c.number)
            .limit(_READ)
        )
        with self._database.reading() as connection:
            return list(connection.execute(query))

    async def follow(
        self, position: Position, sees: Callable[[Any], bool], holds: Callable[[], bool]
    ) -> AsyncIterator[bytes]:
        """Yield events in the format of server-sent events.

        Args:
            position: The last event that the follower has.
            sees: Returns whether the follower may see a row of the table.
            holds: Returns whether the follower's token or session is still valid; otherwise the stream ends.
        """
        loop, woken = asyncio.get_running_loop(), asyncio.Event()

        def wake() -> None:
            loop.call_soon_threadsafe(woken.set)

        self._followers.add(wake)
        silent_since = checked_at = loop.time()
        try:
            yield b"retry: 2000\n\n"
            while not self._stopped:
                woken.clear()
                if loop.time() - checked_at > RECHECK_S:
                    checked_at = loop.time()
                    if not await asyncio.to_thread(holds):
                        return
                rows = await asyncio.to_thread(self.read, position)
                for row in rows:
                    position = Position(position.generation, row.number, row.time_ms)
                    if sees(row):
                        yield _sent(row, position)
                        silent_since = loop.time()
                if len(rows) == _READ:
                    continue
                if loop.time() - silent_since > _SILENCE_S:
                    silent_since = loop.time()
                    # With this id, a follower that reconnects skips the events that it may not see.
                    yield f"id: {position.text()}\n: nothing\n\n".encode()
                try:
                    await asyncio.wait_for(woken.wait(), RECHECK_S)
                except TimeoutError:
                    continue
        finally:
            self._followers.discard(wake)


def _sent(row: Any, position: Position) -> bytes:
    identity = position.text()
    body = row.body[:-1] + (b',"id":"%s"}' % identity.encode())
    return b"id: %s\nevent: %s\ndata: %s\n\n" % (identity.encode(), row.kind.encode(), body)


def sees_event(principal: Principal) -> Callable[[Any], bool]:
    """Return a function that says whether a caller may see an event's row."""

    def sees(row: Any) -> bool:
        if row.kind == "dead-letter" and not principal.unlimited:
            return bool(row.camera) and principal.sees(row.camera, row.tenant)
        if row.kind in ("watch", "job"):
            return principal.unlimited or (
                not principal.cameras and bool(row.tenant) and principal.sees_tenant(row.tenant)
            )
        return principal.sees(row.camera, row.tenant)

    return sees
