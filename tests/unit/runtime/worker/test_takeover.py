"""Takeovers on a few threads: one that waits gives way, and checkpoints are kept in their order."""

from __future__ import annotations

import threading
from collections.abc import Callable
from queue import SimpleQueue

from lookout.runtime.worker.partitions import Partition
from lookout.runtime.worker.records import Record
from lookout.runtime.worker.takeover import NotYetError, Takeover, Takeovers, _keep
from lookout.v1.state_pb2 import Checkpoint, DecodeState


class FakeReader:
    """Partitions in `stuck` cannot be read yet; those in `broken` never."""

    stuck: set[int]
    broken: set[int]

    def take(self, partition: int) -> Takeover:
        if partition in self.broken:
            raise ValueError("no such field")
        if partition in self.stuck:
            raise NotYetError("a transaction is open")
        return Takeover(partition, partition)

    def close(self) -> None: ...


def run(
    stuck: set[int], broken: set[int], then: Callable[[Takeovers, SimpleQueue, SimpleQueue], None]
) -> None:  # type: ignore[type-arg]
    reader = FakeReader()
    reader.stuck, reader.broken = stuck, broken
    done: SimpleQueue[tuple[Partition | None, Takeover | None, Exception | None]] = SimpleQueue()
    waits: SimpleQueue[tuple[Partition, str]] = SimpleQueue()
    takeovers = Takeovers(
        lambda: reader,
        lambda *event: done.put(event),
        lambda partition, why: waits.put((partition, why)),
        threads=2,
    )
    try:
        then(takeovers, done, waits)
    finally:
        takeovers.close()


def test_partitions_that_wait_hold_no_other_even_where_they_are_more_than_the_threads() -> None:
    def then(takeovers: Takeovers, done: SimpleQueue, waits: SimpleQueue) -> None:  # type: ignore[type-arg]
        for number in range(6):
            takeovers.request(Partition(number))
        partition, takeover, error = done.get(timeout=60.0)
        assert (partition.number, takeover.offset, error) == (5, 5, None)
        partition, why = waits.get(timeout=60.0)
        assert partition.number in range(5)
        assert why == "a transaction is open"
        stuck.clear()
        assert {done.get(timeout=60.0)[0].number for _ in range(5)} == set(range(5))

    stuck = set(range(5))
    run(stuck, set(), then)


def test_a_partition_that_was_given_back_is_not_read_on() -> None:
    def then(takeovers: Takeovers, done: SimpleQueue, waits: SimpleQueue) -> None:  # type: ignore[type-arg]
        partition = Partition(0)
        takeovers.request(partition)
        waits.get(timeout=60.0)
        partition.dead = True
        stuck.clear()
        takeovers.request(Partition(1))
        assert done.get(timeout=60.0)[0].number == 1
        assert done.empty()

    stuck = {0}
    run(stuck, set(), then)


def test_an_error_that_nobody_expects_is_handed_over() -> None:
    def then(takeovers: Takeovers, done: SimpleQueue, waits: SimpleQueue) -> None:  # type: ignore[type-arg]
        takeovers.request(Partition(0))
        assert isinstance(done.get(timeout=60.0)[2], ValueError)

    run(set(), {0}, then)


def test_closing_ends_every_thread() -> None:
    run({0}, set(), lambda takeovers, done, waits: takeovers.request(Partition(0)))
    assert not [
        each for each in threading.enumerate() if each.name.startswith("takeover-") and each.is_alive()
    ]


def test_the_newest_checkpoint_of_a_camera_stands() -> None:
    """One that is no message, or whose stream begins in the future, is none."""
    takeover = Takeover(3, 5)
    good = Checkpoint(config_digest="x").SerializeToString()
    now_ms = 1_700_000_000_000
    future = Checkpoint(decode=DecodeState(epoch=1000 * (now_ms + 90 * 86_400_000))).SerializeToString()
    for offset, (key, value) in enumerate((
        ("a", good), ("b", b"\xff\xff"), ("c", b"\xff"), ("c", good), ("d", good), ("d", None),
        ("\x00owner", b"\xff"), ("e", future),
    )):  # fmt: skip
        record = Record("decode.state.v1", 3, offset, key, value or b"", timestamp_ms=now_ms)
        _keep(takeover, record, deleted=value is None)
    assert set(takeover.checkpoints) == {"a", "c"}
    assert takeover.unreadable == {"b": b"\xff\xff", "e": future}
    assert takeover.places == {"a": 0, "b": 1, "c": 3, "e": 7}
