"""Writes changes made over the API as records, with the caller and the request's id."""

from __future__ import annotations

import re
import secrets
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass
from typing import Annotated, Final

import sqlalchemy
from fastapi import Depends, Request

from lookout.administration import Origin, RecordPlace, Writer
from lookout.administration.writing import Records
from lookout.runtime.observe import logs
from lookout.runtime.worker.topic_reader import TopicReader
from lookout.services.gateway.history.database import Database
from lookout.services.gateway.history.tables import OFFSETS, REQUESTS
from lookout.services.gateway.principal import Principal
from lookout.services.gateway.problems import ProblemError
from lookout.services.gateway.settings import GatewaySettings
from lookout.v1.access_pb2 import AuditEntry
from lookout.v1.alerts_pb2 import Alert
from lookout.wire import ALERT_TYPE, ALERTS, AUDIT, event_headers, stable_id, to_json
from lookout.wire.headers import Headers

KEY_HEADER: Final = "idempotency-key"
_KEY: Final = re.compile(r"[\x21-\x7e]{1,128}")
#: maximum seconds to wait until the history has a change; after that, the response may not show the change
#: yet
_SEEN_S: Final = 10.0
_ANSWER_S: Final = 10.0
_POLL_S: Final = 0.02


@dataclass(frozen=True, slots=True)
class Asking:
    """A request that changes something.

    Attributes:
        key: The idempotency key; a new one if the caller sent none.
        repeated: Whether the caller sent a key, so that the request may repeat an earlier one.
        address: The address that the request comes from.
    """

    key: str
    repeated: bool
    address: str


def asking(request: Request) -> Asking:
    """Read a request's idempotency key and address.

    Raises:
        ProblemError: The idempotency key is invalid.
    """
    key = request.headers.get(KEY_HEADER)
    if key is not None and not _KEY.fullmatch(key):
        raise ProblemError(400, f"{KEY_HEADER}: must have 1 to 128 printable ASCII characters")
    address = request.client.host[:64] if request.client is not None else ""
    return Asking(key or secrets.token_hex(16), key is not None, address)


Asked = Annotated[Asking, Depends(asking)]


class Writes:
    """Writes records, and waits until the history has them.

    Args:
        settings: How to reach Kafka.
        database: The history's database.
    """

    def __init__(self, settings: GatewaySettings, database: Database) -> None:
        self._settings, self._database = settings, database
        self._writer = Writer(settings.kafka(), timeout_s=15.0, logger=logs.client_logger("writes"))
        self._lock = threading.Lock()
        self._busy: dict[tuple[str, str], threading.Lock] = {}

    @contextmanager
    def once(self, principal: Principal, asked: Asking, topic: str) -> Iterator[str | None]:
        """Give the `with` block the key of the record that the same request wrote earlier; None if it wrote
        no record. While the block runs, repetitions of the request wait in this process.

        Args:
            principal: The caller.
            asked: The request.
            topic: The topic that the request writes to.
        """
        if not asked.repeated:
            yield None
            return
        name = (principal.actor, asked.key)
        with self._lock:
            lock = self._busy.setdefault(name, threading.Lock())
        try:
            with lock:
                self.await_places(self._ends(topic))
                yield self._written(principal, asked)
        finally:
            with self._lock:
                self._busy.pop(name, None)

    def write(
        self,
        principal: Principal,
        asked: Asking,
        topic: str,
        records: Mapping[str, bytes | None],
        audit: AuditEntry,
    ) -> list[RecordPlace]:
        """Write records, then an audit entry, and wait until the history has the records; return the records'
        places.

        Args:
            principal: The caller.
            asked: The request.
            topic: The records' topic.
            records: Values by key; None deletes the key's record.
            audit: The audit entry with action and subject; caller, time and address are filled in here.
        """
        places = self._writer.write(topic, records, Origin(principal.actor, asked.key))
        self.note(principal, asked, audit)
        self.await_places(places)
        return places

    def write_only(
        self, principal: Principal, asked: Asking, topic: str, records: Records
    ) -> list[RecordPlace]:
        """Write records; wait for Kafka, but not for the history."""
        return self._writer.write(topic, records, Origin(principal.actor, asked.key))

    def publish(self, topic: str, key: str, value: bytes, headers: Headers) -> list[RecordPlace]:
        """Write a record on the gateway's own behalf; wait for Kafka, but not for the history.

        Returns:
            The record's place, for `await_places`.

        Raises:
            WriteError: Kafka does not accept the record.
        """
        return self._writer.write(topic, {key: value}, more=headers)

    def tell(self, alert: Alert) -> list[RecordPlace]:
        """Write an alert on the gateway's own behalf (see `publish`)."""
        headers = event_headers(ALERT_TYPE, "gateway", alert.camera, alert.id, alert.end.ToJsonString())
        return self.publish(ALERTS.name, alert.camera, to_json(alert), headers)

    def write_beside(self, principal: Principal, topic: str, records: Records) -> None:
        """Write records as a side effect of a request, without the request's id; wait until the history has
        them.
        """
        self.await_places(self._writer.write(topic, records, Origin(principal.actor)))

    def note(self, principal: Principal, asked: Asking, audit: AuditEntry) -> None:
        """Write an audit entry, and wait for Kafka."""
        _complete(audit, principal, asked)
        self._writer.write(AUDIT.name, {audit.actor: to_json(audit)}, Origin(principal.actor, asked.key))

    def note_soon(self, principal: Principal, asked: Asking, audit: AuditEntry) -> None:
        """Write an audit entry without waiting. If Kafka rejects the entry, log it instead."""
        _complete(audit, principal, asked)

        def failed(why: str) -> None:
            logs.get("gateway").warning(
                "an entry could not be written to the audit log", entry=to_json(audit).decode(), error=why
            )

        origin = Origin(principal.actor, asked.key)
        self._writer.send(AUDIT.name, audit.actor, to_json(audit), origin, failed)

    def catch_up(self, topic: str) -> None:
        """Wait until the history has read a topic up to its current end. Needed before a change that builds
        on the newest record.

        Raises:
            ProblemError: This takes too long.
        """
        if not self.await_places(self._ends(topic)):
            raise ProblemError(503, f"the history has not read {topic} yet: try again")

    def await_places(self, places: list[RecordPlace]) -> bool:
        """Wait until the history has these records; return False if this takes too long."""
        deadline = time.monotonic() + _SEEN_S
        while places:
            places = [place for place in places if not self._has(place)]
            if time.monotonic() > deadline:
                return False
            if places:
                time.sleep(_POLL_S)
        return True

    def _has(self, place: RecordPlace) -> bool:
        query = sqlalchemy.select(OFFSETS.c.next).where(
            OFFSETS.c.topic == place.topic, OFFSETS.c.partition == place.partition
        )
        with self._database.reading() as connection:
            return (connection.scalar(query) or 0) > place.offset

    def _written(self, principal: Principal, asked: Asking) -> str | None:
        query = sqlalchemy.select(REQUESTS.c.record).where(
            REQUESTS.c.key == asked.key, REQUESTS.c.actor == principal.actor
        )
        with self._database.reading() as connection:
            record: str | None = connection.scalar(query)
        return record

    def _ends(self, topic: str) -> list[RecordPlace]:
        """Return the place of the newest record in each partition of a topic."""
        with closing(TopicReader(self._settings, "gateway-ends")) as reader:
            partitions = reader.partitions(topic, _ANSWER_S)
            begins = reader.begins(topic, partitions, _ANSWER_S)
            ends = reader.ends(topic, partitions, _ANSWER_S)
        return [RecordPlace(topic, number, end - 1) for number, end in ends.items() if end > begins[number]]


def _complete(audit: AuditEntry, principal: Principal, asked: Asking) -> None:
    """Fill in an audit entry's id, caller, time and address."""
    audit.id = stable_id("audit", principal.actor, asked.key, audit.action, audit.subject)
    audit.actor, audit.role = principal.actor, principal.role
    audit.address, audit.request = asked.address, asked.key
    audit.time.GetCurrentTime()


def entry(action: str, subject: str, *, camera: str = "", tenant: str = "") -> AuditEntry:
    """Return an audit entry with an action and its subject."""
    return AuditEntry(action=action, subject=subject[:200], camera=camera, tenant=tenant)
