"""Cameras that play in a loop, as fast as the fleet takes them."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import Self

from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition

from lookout.wire import SEGMENTS, VERDICTS, Stage
from tests.fleet.faults.footage import Piece, pieces

STRIDE_S = 2.0
#: segments that decode has not read yet; more would only fill Kafka
AHEAD = 24
WALL_MS = 1_700_000_000_000


class Load:
    """Publishes on one thread and counts outcomes on another, until it is closed."""

    def __init__(self, bootstrap: str, cameras: int, film_s: int) -> None:
        self._bootstrap = bootstrap
        self._films = [pieces(f"cam-{n:02d}", n, film_s, STRIDE_S) for n in range(cameras)]
        self._film_s = film_s
        self._stop = threading.Event()
        self._threads = [
            threading.Thread(target=self._keep_failure, args=(each,), daemon=True)
            for each in (self._publish, self._count)
        ]
        self._failure: Exception | None = None
        self.published = 0
        self.outcomes = 0

    def __enter__(self) -> Self:
        for each in self._threads:
            each.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        for each in self._threads:
            each.join(30.0)

    def check(self) -> None:
        """Raises:
        RuntimeError: publishing or counting has stopped with an error. Without load a soak shows nothing.
        """
        if self._failure is not None:
            raise RuntimeError(f"the load stopped: {self._failure}") from self._failure

    def _keep_failure(self, target: Callable[[], None]) -> None:
        try:
            target()
        except Exception as error:  # raised again by `check`, on the thread that measures
            self._failure = error

    def _publish(self) -> None:
        producer = Producer(
            {"bootstrap.servers": self._bootstrap, "enable.idempotence": True, "log_level": 0}
        )
        group = Consumer(
            {"bootstrap.servers": self._bootstrap, "group.id": Stage.DECODE.value, "log_level": 0}
        )
        try:
            turn = 0
            while not self._stop.is_set():
                for at in range(len(self._films[0])):
                    for film in self._films:
                        self._send(producer, film[at % len(film)], turn)
                    producer.flush(30.0)
                    while not self._stop.is_set() and not self._wants_more(group):
                        time.sleep(0.1)
                    if self._stop.is_set():
                        return
                turn += 1
        finally:
            group.close()

    def _send(self, producer: Producer, piece: Piece, turn: int) -> None:
        at = WALL_MS + round((turn * (self._film_s + 60) + piece.start_s) * 1000)
        producer.produce(SEGMENTS.name, piece.data, key=piece.camera, headers={"captured-at": str(at)})
        self.published += 1

    def _wants_more(self, group: Consumer) -> bool:
        try:
            return self._unread(group) <= AHEAD
        except KafkaException:  # a busy broker answers late; ask again
            return False

    def _unread(self, group: Consumer) -> int:
        """Segments behind decode's committed offsets."""
        partitions = group.list_topics(SEGMENTS.name, timeout=10.0).topics[SEGMENTS.name].partitions
        found = group.committed([TopicPartition(SEGMENTS.name, each) for each in partitions], timeout=10.0)
        unread = 0
        for each in found:
            low, high = group.get_watermark_offsets(each, timeout=10.0)
            unread += high - (each.offset if each.offset >= 0 else low)
        return unread

    def _count(self) -> None:
        consumer = Consumer(
            {
                "bootstrap.servers": self._bootstrap,
                "group.id": "soak",
                "isolation.level": "read_committed",
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
                "log_level": 0,
            }
        )
        consumer.subscribe([VERDICTS.name])
        try:
            while not self._stop.is_set():
                found = consumer.consume(100, 0.5)
                self.outcomes += sum(each.error() is None for each in found)
        finally:
            consumer.close()
