"""Follows another group's committed offsets. A tensor store needs them, because it keeps tensors until the
next stage has read them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping

from confluent_kafka import KafkaException

from lookout.runtime.observe import logs
from lookout.runtime.worker.settings import ServiceSettings
from lookout.runtime.worker.supervision import Supervisor
from lookout.runtime.worker.topic_reader import TopicReader

ASK_S = 5.0


class Downstream:
    """Reads the committed offsets of `group` in `topic` every `every_s` seconds, on its own thread.

    After each answer, `changed` is called on that thread with the next unread offset of each partition. While
    Kafka does not answer, the last answer stays valid.
    """

    def __init__(
        self,
        settings: ServiceSettings,
        group: str,
        topic: str,
        changed: Callable[[Mapping[int, int]], None] | None = None,
        every_s: float = 1.0,
    ) -> None:
        self._reader = TopicReader(settings, "offsets", group=group)
        self._group, self._topic = group, topic
        self._changed = changed
        self._every_s = every_s
        self._offsets: Mapping[int, int] = {}
        self._stop = threading.Event()
        self._log = logs.get("offsets")
        self._thread: threading.Thread | None = None

    def start(self, supervisor: Supervisor | None = None) -> None:
        """Start reading the offsets."""
        self._thread = (supervisor or Supervisor()).start(f"offsets-{self._group}", self._follow)

    def stop(self) -> None:
        """Stop reading the offsets."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join(ASK_S)
            # The thread hangs in a call to Kafka. The client is not thread-safe, so it cannot be closed here.
            if self._thread.is_alive():
                return
        self._reader.close()

    def committed(self) -> Mapping[int, int]:
        """Return the last answer; a partition without a commit is absent."""
        return self._offsets

    def ask(self) -> Mapping[int, int]:
        """Read the offsets now.

        Raises:
            KafkaException: Kafka does not answer, or refuses.
        """
        partitions = self._reader.partitions(self._topic, ASK_S)
        self._offsets = self._reader.committed(self._topic, partitions, ASK_S)
        return self._offsets

    def _follow(self) -> None:
        warned = False
        while not self._stop.wait(self._every_s):
            try:
                answer = self.ask()
                warned = False
            except KafkaException as error:
                if not warned:
                    self._log.warning(
                        "cannot read the group's committed offsets",
                        group=self._group,
                        error=str(error.args[0]),
                    )
                warned = True
                continue
            if self._changed is not None:
                self._changed(answer)
