"""Applies the topics' records to the history, in the transaction that stores their offsets."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import sqlalchemy
from confluent_kafka import Message
from sqlalchemy import Connection

from lookout.past.erasures.fence import Fence
from lookout.rules import RuleError, read_watch
from lookout.rules.triage import Triage, triage_of
from lookout.runtime.store.mask_signing import MaskSigner
from lookout.runtime.worker.record_reader import record_of
from lookout.services.gateway.history.database import Database, new_key
from lookout.services.gateway.history.erasing import erase
from lookout.services.gateway.history.series import SeriesBook
from lookout.services.gateway.history.tables import (
    ACTS,
    AUDIT,
    DOCUMENTS,
    EVENTS,
    FACTS,
    INCIDENTS,
    LETTERS,
    QUESTIONS,
    REQUESTS,
    SOURCES,
    VERSIONS,
    WANTED,
)
from lookout.services.gateway.history.verdict_rows import read_row
from lookout.services.gateway.history.views import incident_view
from lookout.v1.access_pb2 import ApiToken, AuditEntry
from lookout.v1.actions_pb2 import IncidentAction
from lookout.v1.alerts_pb2 import Alert
from lookout.v1.cameras_pb2 import Camera
from lookout.v1.erasures_pb2 import Erasure
from lookout.v1.gateway_pb2 import DeadLetterView, Event, JobView
from lookout.v1.labels_pb2 import Label
from lookout.v1.masks_pb2 import CameraMasks
from lookout.v1.notifications_pb2 import Notification
from lookout.v1.recordings_pb2 import RecordingAnswers, RecordingJob
from lookout.v1.state_pb2 import Checkpoint
from lookout.v1.watches_pb2 import Watch
from lookout.wire import (
    ACCESS,
    ACTIONS,
    ALERTS,
    ANSWERS,
    AUDIT as AUDIT_TOPIC,
    CAMERAS,
    ERASURES,
    LABELS,
    MASKS,
    NOTIFICATIONS,
    NOTIFY,
    PIPELINE,
    RECORDING_FLOWS,
    RECORDINGS,
    VERDICTS,
    WATCHES,
    Stage,
    WireError,
    from_json,
    headers,
    is_camera_id,
    key_text,
    received,
    stable_id,
    tenant_of,
    to_json,
)

#: topics that are read to their ends first, because they say who may read what, and what was erased or masked
TABLES: Final = (
    ACCESS.name,
    ERASURES.name,
    MASKS.name,
    WATCHES.name,
    CAMERAS.name,
    LABELS.name,
    NOTIFICATIONS.name,
)
DECODE_STATE: Final = PIPELINE[Stage.DECODE].state.name
DEAD_LETTERS: Final = tuple(
    dict.fromkeys(flow.dead_letters.name for flow in (*PIPELINE.values(), *RECORDING_FLOWS, NOTIFY))
)
STREAMS: Final = (
    ALERTS.name,
    ACTIONS.name,
    RECORDINGS.name,
    ANSWERS.name,
    AUDIT_TOPIC.name,
    DECODE_STATE,
    VERDICTS.name,
    *DEAD_LETTERS,
)
EVENT_NUMBER: Final = "event"
#: age in milliseconds above which a record is not sent to followers of events
_EVENT_AGE_MS: Final = 7 * 86_400_000
_KEY_CHARS: Final = 600


@dataclass(slots=True)
class Batch:
    """The state of one transaction.

    Attributes:
        connection: The transaction's connection.
        number: The newest event's number.
    """

    connection: Connection
    number: int


class Records:
    """Writes records into the history's tables.

    Args:
        database: The history's database.
        masks: Checks that the fleet signed a mask; None: all masks are accepted.
    """

    def __init__(self, database: Database, masks: MaskSigner | None = None) -> None:
        self._database = database
        self._mask_signer = masks or MaskSigner(None)
        self.book = SeriesBook(database)
        self._fence: Fence | None = None
        self._takers: dict[str, Callable[[Batch, Message], None]] = {
            VERDICTS.name: self._verdict,
            ALERTS.name: self._alert,
            ACTIONS.name: self._action,
            WATCHES.name: self._watch,
            CAMERAS.name: self._camera,
            LABELS.name: self._label,
            ERASURES.name: self._erasure,
            ACCESS.name: self._document,
            NOTIFICATIONS.name: self._document,
            MASKS.name: self._masks,
            RECORDINGS.name: self._job,
            ANSWERS.name: self._job,
            AUDIT_TOPIC.name: self._audit,
            DECODE_STATE: self._state,
            **dict.fromkeys(DEAD_LETTERS, self._letter),
        }

    def begin(self, connection: Connection) -> Batch:
        """Begin a transaction."""
        number = self._database.fact(connection, EVENT_NUMBER)
        return Batch(connection, int(number or 0))

    def take(self, batch: Batch, message: Message) -> None:
        """Apply a record to the history."""
        taker = self._takers[str(message.topic())]
        taker(batch, message)
        if taker != self._verdict:
            self._remember_request(batch, message)

    def end(self, batch: Batch) -> None:
        """Write the transaction's sums, before it is committed."""
        self.book.write(batch.connection)
        batch.connection.execute(
            self._database.upsert(FACTS), {"name": EVENT_NUMBER, "value": str(batch.number)}
        )

    def forget(self) -> None:
        """Drop the in-memory state, which a failed transaction may have changed."""
        self.book.forget()
        self._fence = None

    def _verdict(self, batch: Batch, message: Message) -> None:
        row = read_row(message.value() or b"", key_text(message.key()), message.timestamp()[1])
        if row is None:
            return
        fence = self._erased(batch.connection)
        if fence.of(row.camera) and fence.hides(row.camera, row.start_ms * 1000, row.end_ms * 1000):
            return
        self.book.count(batch.connection, row, (message.partition() or 0, message.offset() or 0))

    def _alert(self, batch: Batch, message: Message) -> None:
        alert = _read(message, Alert)
        if alert is None or self._hidden(batch, alert):
            return
        connection, tenant = batch.connection, tenant_of(alert.tenant)
        if alert.kind == Alert.KIND_TEST:
            return
        if alert.kind == Alert.KIND_REPORT:
            self._reported(connection, reported_fact(tenant), alert.end.ToMilliseconds())
            return
        known = connection.scalar(
            sqlalchemy.select(INCIDENTS.c.alert).where(INCIDENTS.c.id == alert.incident)
        )
        alert = _with_opinion(alert, known)
        if alert is None:
            return
        camera = self.book.camera(connection, tenant, alert.camera)
        triage = self._triage(connection, alert)
        connection.execute(
            self._database.upsert(INCIDENTS),
            {
                "id": alert.incident,
                "camera": camera,
                "watch": alert.watch,
                "question": self._question(connection, alert.question),
                "start_ms": alert.start.ToMilliseconds(),
                "end_ms": alert.end.ToMilliseconds(),
                "closed": alert.kind == Alert.KIND_CLOSED,
                "peak": alert.peak,
                "state": triage.state,
                "assignee": triage.assignee,
                "right": triage.right,
                "notes": triage.notes,
                "alert": to_json(alert),
            },
        )
        self._want(connection, alert, message.timestamp()[1])
        view = incident_view(alert, triage, tenant=tenant)
        self._tell(batch, message, Event(kind="incident", camera=alert.camera, tenant=tenant, incident=view))

    def _reported(self, connection: Connection, name: str, end_ms: int) -> None:
        """Note that a scheduled report was written, so that it is not written again."""
        newest = max(end_ms, int(self._database.fact(connection, name) or 0))
        connection.execute(self._database.upsert(FACTS), {"name": name, "value": str(newest)})

    def _want(self, connection: Connection, alert: Alert, written_ms: int) -> None:
        """Mark a closed incident's evidence to be kept, if its watch (in the incident's version) asks for
        that.
        """
        if alert.kind != Alert.KIND_CLOSED or written_ms < time.time() * 1000 - _EVENT_AGE_MS:
            return
        query = sqlalchemy.select(VERSIONS.c.body).where(
            VERSIONS.c.watch == alert.watch, VERSIONS.c.version == alert.watch_version
        )
        bodies = connection.scalars(query.order_by(VERSIONS.c.offset.desc()).limit(1)).all()
        if bodies and from_json(bodies[0], Watch).keep:
            row = {"incident": alert.incident, "watch": alert.watch, "time_ms": written_ms}
            connection.execute(self._database.insert_new(WANTED), row)

    def _action(self, batch: Batch, message: Message) -> None:
        act = _read(message, IncidentAction)
        if act is None or self._hidden(batch, act):
            return
        stored = batch.connection.scalar(
            self._database.insert_new(ACTS).returning(ACTS.c.id),
            {
                "offset": message.offset(),
                "id": act.id,
                "incident": act.incident,
                "time_ms": act.time.ToMilliseconds(),
                "body": to_json(act),
            },
        )
        if stored is None:  # a copy of an action that was already read
            return
        view = self._refresh(batch.connection, act.incident)
        event = Event(kind="action", camera=act.camera, tenant=tenant_of(act.tenant), action=act)
        if view is not None:
            event.incident.CopyFrom(view)
        self._tell(batch, message, event)

    def _refresh(self, connection: Connection, incident: str) -> Any:
        """Recompute an incident's triage state; return its view, None if its alert was not read yet."""
        row = connection.execute(
            sqlalchemy.select(INCIDENTS.c.alert).where(INCIDENTS.c.id == incident)
        ).one_or_none()
        if row is None:
            return None
        alert = from_json(row.alert, Alert)
        triage = self._triage(connection, alert)
        connection.execute(
            INCIDENTS.update()
            .where(INCIDENTS.c.id == incident)
            .values(state=triage.state, assignee=triage.assignee, right=triage.right, notes=triage.notes)
        )
        return incident_view(alert, triage, tenant=alert.tenant)

    def _triage(self, connection: Connection, alert: Alert) -> Triage:
        """Return an incident's triage state. Whether the incident was right comes from its label or from
        actions on it, whichever is later.
        """
        bodies = connection.scalars(
            sqlalchemy.select(ACTS.c.body).where(ACTS.c.incident == alert.incident).order_by(ACTS.c.offset)
        )
        triage = triage_of(from_json(body, IncidentAction) for body in bodies)
        key = f"{alert.camera}/{alert.watch}/{alert.incident}"[:_KEY_CHARS]
        body = connection.scalar(
            sqlalchemy.select(DOCUMENTS.c.body).where(
                DOCUMENTS.c.topic == LABELS.name, DOCUMENTS.c.key == key
            )
        )
        if body is None:
            return triage
        label = from_json(body, Label)
        if label.labelled.ToMilliseconds() < triage.said_ms:
            return triage
        return Triage(triage.state, triage.assignee, label.right, triage.said_ms, triage.notes)

    def _label(self, batch: Batch, message: Message) -> None:
        self._document(batch, message)
        incident = key_text(message.key()).rpartition("/")[2]
        view = self._refresh(batch.connection, incident)
        if view is not None:
            event = Event(kind="incident", camera=view.camera, tenant=view.tenant, incident=view)
            self._tell(batch, message, event)

    def _watch(self, batch: Batch, message: Message) -> None:
        key, value = key_text(message.key()), message.value()
        if value is None:
            self._document(batch, message)
            self._version(batch, message, Watch(id=key[:200]), removed=True)
            return
        try:
            watch, _ = read_watch(key, value)
        except RuleError as error:
            self._note_fault(batch, WATCHES.name, key, error)
            return
        self._put(batch, message, to_json(watch), watch.tenant, "")
        self._version(batch, message, watch)
        self._tell(batch, message, Event(kind="watch", tenant=watch.tenant, watch=watch))

    def _version(self, batch: Batch, message: Message, watch: Watch, *, removed: bool = False) -> None:
        """Store a watch's version; a removal is stored with version -1 and no body."""
        row = {
            "watch": watch.id,
            "offset": message.offset(),
            "version": -1 if removed else watch.version,
            "active_ms": watch.active_from.ToMilliseconds(),
            "body": b"" if removed else to_json(watch),
            "actor": (headers.text(record_of(message).headers, headers.ACTOR) or "")[:200],
            "written_ms": message.timestamp()[1],
        }
        batch.connection.execute(self._database.upsert(VERSIONS), row)

    def _camera(self, batch: Batch, message: Message) -> None:
        """Store a camera's record, and from when on agents are supposed to pull the camera or not."""
        self._document(batch, message)
        source = Camera() if message.value() is None else _read(message, Camera)
        if source is not None:
            row = {
                "camera": key_text(message.key())[:200],
                "offset": message.offset(),
                "written_ms": message.timestamp()[1],
                "tenant": tenant_of(source.tenant),
                "pulled": bool(source.url),
            }
            batch.connection.execute(self._database.upsert(SOURCES), row)

    def _document(self, batch: Batch, message: Message) -> None:
        """Store a record of a compacted topic unchanged; ignore a record that the topic's parser rejects."""
        value = message.value()
        if value is None:
            self._delete(batch, message)
            return
        parsed = _read(message, _KINDS[str(message.topic())])
        if parsed is None:
            return
        tenant = getattr(parsed, "tenant", "") or ""
        self._put(batch, message, to_json(parsed), tenant, getattr(parsed, "camera", ""))

    def _masks(self, batch: Batch, message: Message) -> None:
        """Store a camera's masks. If a record cannot be used, the previous masks stay in force."""
        key, value = key_text(message.key()), message.value()
        query = sqlalchemy.select(DOCUMENTS.c.body).where(
            DOCUMENTS.c.topic == MASKS.name, DOCUMENTS.c.key == key[:_KEY_CHARS]
        )
        body = batch.connection.scalar(query)
        before = None if body is None else from_json(body, CameraMasks)
        try:
            masks = self._mask_signer.read(key, value, before)
        except RuleError as error:
            self._note_fault(batch, MASKS.name, key, error)
        else:
            self._put(batch, message, to_json(masks), "", key)

    def _erasure(self, batch: Batch, message: Message) -> None:
        value, key = message.value(), key_text(message.key())
        if value is None:
            self._delete(batch, message)
            return
        self._put(batch, message, value, "", "")
        if "@" in key:  # the key belongs to a confirmation or a member, not to an erasure
            return
        erasure = _read(message, Erasure)
        if erasure is not None:
            self._fence = None
            self.book.write(batch.connection)
            self.book.forget()
            erase(batch.connection, erasure)

    def _job(self, batch: Batch, message: Message) -> None:
        value, key = message.value(), key_text(message.key())
        if value is None:
            self._delete(batch, message)
            return
        is_request = message.topic() == RECORDINGS.name
        parsed = _read(message, RecordingJob if is_request else RecordingAnswers)
        if parsed is None:
            return
        tenant = parsed.tenant if isinstance(parsed, RecordingJob) else self._tenant_of_job(batch, key)
        self._put(batch, message, to_json(parsed), tenant, "")
        view = JobView()
        if isinstance(parsed, RecordingJob):
            view.request.CopyFrom(parsed)
        else:  # the event has only the progress; clients fetch the answers themselves
            view.answers.id, view.answers.state = parsed.id, parsed.state
            view.answers.parts, view.answers.done = parsed.parts, parsed.done
        self._tell(batch, message, Event(kind="job", tenant=tenant_of(tenant), job=view))

    def _tenant_of_job(self, batch: Batch, key: str) -> str:
        query = sqlalchemy.select(DOCUMENTS.c.tenant).where(
            DOCUMENTS.c.topic == RECORDINGS.name, DOCUMENTS.c.key == key[:_KEY_CHARS]
        )
        return batch.connection.scalar(query) or ""

    def _audit(self, batch: Batch, message: Message) -> None:
        entry = _read(message, AuditEntry)
        if entry is not None:
            batch.connection.execute(
                self._database.insert_new(AUDIT),
                {
                    "offset": message.offset(),
                    "time_ms": message.timestamp()[1],
                    "actor": entry.actor,
                    "action": entry.action,
                    "body": to_json(entry),
                },
            )

    def _state(self, batch: Batch, message: Message) -> None:
        """Store when a camera was last heard. This comes from decode's checkpoint, which also exists for
        cameras that no watch covers.
        """
        camera, checkpoint = record_of(message).camera, _read(message, Checkpoint)
        if checkpoint is None or not is_camera_id(camera):
            return
        state = checkpoint.decode
        heard_ms = state.arrived_ms or state.last_arrival_ms
        if not heard_ms:
            return
        fence = self._erased(batch.connection)
        if not fence.ends(camera, heard_ms):
            self.book.seen(batch.connection, tenant_of(state.labels.tenant), camera, heard_ms)

    def _letter(self, batch: Batch, message: Message) -> None:
        written_us, camera = message.timestamp()[1] * 1000, key_text(message.key())
        erasures = self._erased(batch.connection).of(camera)
        if any(written_us <= erasure.requested_us for erasure in erasures):
            return  # written before the erasure; `erase` removed the records that were already read
        pairs = record_of(message).headers
        view = DeadLetterView(
            topic=str(message.topic()),
            partition=message.partition() or 0,
            offset=message.offset() or 0,
            key=camera[:_KEY_CHARS],
            stage=headers.text(pairs, headers.STAGE) or "",
            reason=headers.text(pairs, headers.REASON) or "",
            detail=(headers.text(pairs, headers.DETAIL) or "")[:1000],
            source_topic=headers.text(pairs, headers.SOURCE_TOPIC) or "",
            source_partition=headers.number(pairs, headers.SOURCE_PARTITION) or 0,
            source_offset=headers.number(pairs, headers.SOURCE_OFFSET) or 0,
            records=headers.number(pairs, headers.RECORDS) or 1,
            tenant=tenant_of(headers.text(pairs, headers.TENANT) or ""),
        )
        view.time.FromMilliseconds(message.timestamp()[1])
        batch.connection.execute(
            self._database.insert_new(LETTERS),
            {
                "topic": view.topic,
                "partition": view.partition,
                "offset": view.offset,
                "time_ms": message.timestamp()[1],
                "tenant": view.tenant,
                "key": view.key,
                "body": to_json(view),
            },
        )
        self._tell(
            batch,
            message,
            Event(kind="dead-letter", camera=view.key[:200], tenant=view.tenant, dead_letter=view),
        )

    def _tell(self, batch: Batch, message: Message, event: Event) -> None:
        """Store an event with the next number, unless it is too old for followers."""
        written_ms = message.timestamp()[1]
        if written_ms < time.time() * 1000 - _EVENT_AGE_MS:
            return
        batch.number += 1
        event.time.FromMilliseconds(written_ms)
        row = {
            "number": batch.number,
            "time_ms": written_ms,
            "kind": event.kind,
            "tenant": event.tenant,
            "camera": event.camera,
            "body": to_json(event),
        }
        batch.connection.execute(EVENTS.insert(), row)

    def _put(self, batch: Batch, message: Message, body: bytes, tenant: str, camera: str) -> None:
        batch.connection.execute(
            self._database.upsert(DOCUMENTS),
            {
                "topic": message.topic(),
                "key": key_text(message.key())[:_KEY_CHARS],
                "tenant": tenant,
                "camera": camera,
                "written_ms": message.timestamp()[1],
                "body": body,
                "fault": "",
                "owner": (headers.text(record_of(message).headers, headers.ACTOR) or "")[:200],
            },
        )

    def _note_fault(self, batch: Batch, topic: str, key: str, error: RuleError) -> None:
        """Store why a key's newest record cannot be used; the key's previous record stays in force."""
        batch.connection.execute(
            DOCUMENTS.update()
            .where(DOCUMENTS.c.topic == topic, DOCUMENTS.c.key == key[:_KEY_CHARS])
            .values(fault=str(error))
        )

    def _delete(self, batch: Batch, message: Message) -> None:
        batch.connection.execute(
            DOCUMENTS.delete().where(
                DOCUMENTS.c.topic == message.topic(),
                DOCUMENTS.c.key == key_text(message.key())[:_KEY_CHARS],
            )
        )

    def _question(self, connection: Connection, text: str) -> int:
        query = sqlalchemy.select(QUESTIONS.c.key).where(QUESTIONS.c.text == text)
        key = connection.scalar(query)
        if key is None:
            key = new_key(connection.execute(QUESTIONS.insert().values(text=text)))
        return int(key)

    def _remember_request(self, batch: Batch, message: Message) -> None:
        pairs = record_of(message).headers
        key = headers.text(pairs, headers.REQUEST_KEY)
        if key is None or len(key) > 128:
            return
        batch.connection.execute(
            self._database.insert_new(REQUESTS),
            {
                "key": key,
                "actor": (headers.text(pairs, headers.ACTOR) or "")[:200],
                "topic": message.topic(),
                "partition": message.partition(),
                "offset": message.offset(),
                "record": key_text(message.key())[:_KEY_CHARS],
                "time_ms": message.timestamp()[1],
            },
        )

    def _hidden(self, batch: Batch, record: Alert | IncidentAction) -> bool:
        fence = self._erased(batch.connection)
        span = record.start.ToMicroseconds(), record.end.ToMicroseconds()
        return fence.hides(record.camera, *span) is not None

    def _erased(self, connection: Connection) -> Fence:
        if self._fence is None:
            self._fence = erased(connection)
        return self._fence


def reported_fact(tenant: str) -> str:
    """Return the name of the fact that holds the end of a tenant's newest scheduled report (Unix
    milliseconds).
    """
    return f"reported/{stable_id(tenant)[:32]}"


def erased(connection: Connection) -> Fence:
    """Return the erasures that the history knows."""
    rows = connection.execute(
        sqlalchemy.select(DOCUMENTS.c.key, DOCUMENTS.c.body).where(DOCUMENTS.c.topic == ERASURES.name)
    )
    erasures = []
    for row in rows:
        if "@" not in row.key:
            try:
                erasures.append(from_json(row.body, Erasure))
            except WireError:
                continue
    return Fence(erasures)


_KINDS: Final[dict[str, type[Any]]] = {
    CAMERAS.name: Camera,
    LABELS.name: Label,
    ACCESS.name: ApiToken,
    NOTIFICATIONS.name: Notification,
}


def _read(message: Message, kind: type[Any]) -> Any:
    """Return the message in a record; None if it is invalid."""
    try:
        return received(kind, record_of(message))
    except WireError:
        return None


def _with_opinion(alert: Alert, known: bytes | None) -> Alert | None:
    """Return an incident's newest alert with its second model's opinion.

    Args:
        alert: The alert that was read. If it only carries an opinion, the previous alert gets the opinion
            and stays the newest.
        known: The incident's newest alert so far; None: no alert was read.

    Returns:
        The incident's newest alert now; None if the opinion is about an unknown incident.
    """
    before = None if known is None else from_json(known, Alert)
    if alert.kind == Alert.KIND_OPINION:
        if before is not None:
            before.opinion.CopyFrom(alert.opinion)
        return before
    if before is not None and before.HasField("opinion"):
        alert.opinion.CopyFrom(before.opinion)
    return alert
