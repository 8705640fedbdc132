"""Reads the topics into the history, and stores rows and offsets in the same transaction."""

from __future__ import annotations

import threading
import time
from contextlib import closing
from typing import Final

import sqlalchemy
from confluent_kafka import KafkaException, Message
from sqlalchemy import Connection

from lookout.errors import LookoutRuntimeError
from lookout.runtime.observe import logs
from lookout.runtime.observe.limited_log import LimitedLog
from lookout.runtime.store.mask_signing import MaskSigner
from lookout.runtime.worker import ServiceSettings
from lookout.runtime.worker.topic_reader import BEGINNING, End, Place, TopicReader
from lookout.services.gateway.history.database import Database
from lookout.services.gateway.history.records import STREAMS, TABLES, Records
from lookout.services.gateway.history.tables import OFFSETS
from lookout.wire import MAX_MESSAGE_BYTES

#: maximum number of records per transaction; seconds to wait for its first record, and then for further
#: records
_BATCH: Final = 10_000
_WAIT_S: Final = 0.25
_GATHER_S: Final = 0.05
_ANSWER_S: Final = 10.0
_PAUSE_S: Final = 1.0


class MovedOnError(LookoutRuntimeError):
    """Another process has stored records that this process was about to store."""


class Ingest:
    """Reads all topics into the history.

    Args:
        settings: How to reach Kafka.
        database: The history's database.
        batch: Maximum number of records per transaction.
    """

    def __init__(self, settings: ServiceSettings, database: Database, batch: int = _BATCH) -> None:
        self._settings, self._database, self._batch = settings, database, batch
        self._records = Records(database, MaskSigner.of(settings))
        self._log = LimitedLog(logs.get("history"))
        self._next: dict[Place, int] = {}
        self._stopped = threading.Event()
        self.changed = threading.Condition()
        self.caught_up = threading.Event()
        self.count = 0

    def run(self) -> None:
        """Read until `stop`; retry failures of Kafka or the database."""
        log = logs.get("history")
        while not self._stopped.is_set():
            try:
                self._follow()
            except MovedOnError as error:
                log.info("another gateway is storing the history", error=str(error))
            except (KafkaException, sqlalchemy.exc.DBAPIError) as error:
                log.warning(
                    "the history cannot be stored now; retrying", error=str(error).splitlines()[0][:300]
                )
            self._records.forget()
            self._stopped.wait(_PAUSE_S)

    def stop(self) -> None:
        """Stop after the current transaction."""
        self._stopped.set()

    def _follow(self) -> None:
        options = {
            "auto.offset.reset": "earliest",  # used if retention removed unread records
            "fetch.message.max.bytes": MAX_MESSAGE_BYTES,
            "queued.max.messages.kbytes": 64 << 10,
            "fetch.wait.max.ms": 100,
        }
        with closing(TopicReader(self._settings, "gateway", options=options)) as reader:
            self._next = self._stored()
            # Read the tables first, up to their current ends, because they say who may read and what was
            # erased.
            reader.follow(dict.fromkeys(TABLES, BEGINNING), self._next, _ANSWER_S)
            while reader.unread and not self._stopped.is_set():
                self._store(self._read(reader))
            self.caught_up.set()
            reader.follow(dict.fromkeys((*TABLES, *STREAMS), BEGINNING), self._next, _ANSWER_S)
            while not self._stopped.is_set():
                self._store(self._read(reader))

    def _read(self, reader: TopicReader) -> list[Message]:
        """Wait for a record; return it together with the records that arrive shortly after."""
        messages: list[Message] = []
        message, until = reader.next(_WAIT_S), time.monotonic() + _GATHER_S
        while message is not None and len(messages) < self._batch:
            if not isinstance(message, End):
                messages.append(message)
            message = reader.next(max(0.0, until - time.monotonic()))
        return messages

    def _store(self, messages: list[Message]) -> None:
        """Store records and their offsets, and skip only records that cannot be stored.

        Raises:
            MovedOnError: Another process has stored some of the records.
            sqlalchemy.exc.DBAPIError: The database does not answer.
        """
        if not messages:
            return
        try:
            self._store_whole(messages)
        except Exception as error:
            if not _is_of_a_record(error):
                raise
            self._records.forget()
            if len(messages) > 1:  # halve the batch to find the record that fails
                middle = len(messages) // 2
                self._store(messages[:middle])
                self._store(messages[middle:])
                return
            (message,) = messages
            self._log.error(
                message.topic(),
                "a record is skipped in the history",
                topic=message.topic(),
                partition=message.partition(),
                offset=message.offset(),
                error=repr(error),
            )
            self._store_whole(messages, skipped=True)

    def _store_whole(self, messages: list[Message], *, skipped: bool = False) -> None:
        """Store records and their offsets in one transaction; with `skipped`, store only the offsets."""
        moved: dict[Place, int] = {}
        with self._database.writing() as connection:
            batch = self._records.begin(connection)
            for message in messages:
                if not skipped:
                    self._records.take(batch, message)
                moved[str(message.topic()), message.partition() or 0] = (message.offset() or 0) + 1
            self._records.end(batch)
            for place, offset in moved.items():
                self._move(connection, place, offset)
        self._next.update(moved)
        self.count += len(messages)
        with self.changed:
            self.changed.notify_all()

    def _move(self, connection: Connection, place: Place, offset: int) -> None:
        before = self._next.get(place)
        if before is None:
            insert = self._database.insert_new(OFFSETS).returning(OFFSETS.c.next)
            row = {"topic": place[0], "partition": place[1], "next": offset}
            stored = connection.scalar(insert, row) is not None
        else:
            row_at = (
                OFFSETS.c.topic == place[0],
                OFFSETS.c.partition == place[1],
                OFFSETS.c.next == before,
            )
            stored = connection.execute(OFFSETS.update().where(*row_at).values(next=offset)).rowcount == 1
        if not stored:
            raise MovedOnError(f"{place[0]} [{place[1]}] is no longer at offset {before}")

    def _stored(self) -> dict[Place, int]:
        with self._database.reading() as connection:
            rows = connection.execute(sqlalchemy.select(OFFSETS)).all()
        return {(row.topic, row.partition): row.next for row in rows}


def _is_of_a_record(error: Exception) -> bool:
    """Return whether an error is caused by a record's content, not by the database."""
    if isinstance(error, MovedOnError):
        return False
    if isinstance(error, sqlalchemy.exc.DBAPIError):
        return isinstance(error, (sqlalchemy.exc.DataError, sqlalchemy.exc.IntegrityError))
    return True
