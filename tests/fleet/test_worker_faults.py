"""The worker among failures, on real brokers and as real processes: nothing lost, nothing doubled."""

from __future__ import annotations

import random
import signal
import time
from collections.abc import Collection, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from lookout.errors import FencedError, StartupError
from lookout.local import KafkaServer
from lookout.runtime.worker import RecordReader, Table
from lookout.runtime.worker.transactions import Transaction
from lookout.v1.state_pb2 import Checkpoint
from tests.eventually import eventually
from tests.fleet.bench import Bench, Threaded, process, running

pytestmark = pytest.mark.fleet

CAMERAS = [f"cam-{number}" for number in range(5)]


@pytest.fixture
def bench(kafka: str, prefix: str) -> Iterator[Bench]:
    with Bench(kafka, prefix) as bench:
        yield bench


def send(bench: Bench, first: int, last: int, **more: object) -> None:
    for n in range(first, last + 1):
        for camera in CAMERAS:
            bench.send(camera, n, **more)
    bench.flush()


def test_killed_at_random_moments(bench: Bench, tmp_path: Path) -> None:
    """SIGKILL a worker process again and again while records flow; a successor of the same name continues."""
    chance = random.Random(7)
    settings = bench.settings()
    log = tmp_path / "toy.log"
    records = 40
    send(bench, 1, records, sleep=0.1)
    kills = before = 0
    worker = process(settings, log)
    try:
        while not bench.counted(CAMERAS, records):
            assert worker.poll() is None, log.read_text()
            if kills < 4 and bench.outputs():
                time.sleep(chance.uniform(0.0, 1.2))
                worker.send_signal(signal.SIGKILL)
                worker.wait()
                kills += 1
                before = log.stat().st_size
                worker = process(settings, log)
        eventually(lambda: b"partition taken over" in log.read_bytes()[before:])  # it hears signals now
        worker.send_signal(signal.SIGTERM)
        assert worker.wait(120) == 0
    finally:
        worker.kill()
        worker.wait()
    assert kills == 4
    bench.assert_counted(CAMERAS, records)


def test_a_fenced_zombie_ends(bench: Bench) -> None:
    settings = bench.settings()
    zombie = Threaded(settings)
    try:
        bench.send("cam", 1)
        bench.flush()
        eventually(lambda: zombie.count("records_total") == 1)
        usurper = Producer(
            {"bootstrap.servers": bench.bootstrap, "transactional.id": f"{settings.group}.toy-0"}
        )
        usurper.init_transactions(120.0)
        bench.send("cam", 2)
        bench.flush()
        eventually(lambda: not zombie.thread.is_alive())
        assert isinstance(zombie.error, FencedError)
        assert "LOOKOUT_INSTANCE" in str(zombie.error)
    finally:
        zombie.stop()
    with running(settings) as worker:
        eventually(lambda: worker.count("records_total") == 1)
    bench.assert_counted(["cam"], 2)


@pytest.mark.long
def test_a_namesake_takes_over_and_the_first_ends(bench: Bench) -> None:
    send(bench, 1, 20)
    first = Threaded(bench.settings())
    try:
        eventually(lambda: first.count("records_total") > 0)
        with running(bench.settings()):
            send(bench, 21, 40)
            eventually(lambda: bench.counted(CAMERAS, 40))
            eventually(lambda: not first.thread.is_alive())
            assert isinstance(first.error, FencedError)
    finally:
        first.stop()
    bench.assert_counted(CAMERAS, 40)


def test_a_namesake_ends_an_idle_worker_too(bench: Bench) -> None:
    """Nothing to commit, so no producer is fenced: the group says it."""
    first = Threaded(bench.settings())
    try:
        eventually(first.health.ready)
        with running(bench.settings()) as second:
            eventually(lambda: not first.thread.is_alive())
            assert isinstance(first.error, FencedError)
            eventually(second.health.ready)
    finally:
        first.stop()


def test_an_aborted_transaction_is_read_again(bench: Bench) -> None:
    """A record whose output Kafka refuses aborts its neighbours too: they count once all the same."""
    for n in range(1, 8):
        for camera in CAMERAS:
            bench.send(camera, n, partition=1)
    bench.send("odd", 1, partition=1, do="huge")
    for n in range(8, 15):
        for camera in CAMERAS:
            bench.send(camera, n, partition=1)
    bench.flush()
    with running(bench.settings()) as worker:
        eventually(lambda: worker.count("records_total") == 14 * len(CAMERAS) + 1)
        assert worker.given_up() >= 1
        assert worker.handler.gone
    bench.assert_counted(CAMERAS, 14)


@pytest.mark.long
def test_partitions_move_between_two_workers(bench: Bench) -> None:
    with running(bench.settings("toy-a", static_member=False)) as first:
        send(bench, 1, 30, sleep=0.01)
        eventually(lambda: first.count("records_total") > 20)
        with running(bench.settings("toy-b", static_member=False)) as second:
            eventually(lambda: second.count("takeovers_total") > 0)
            send(bench, 31, 60, sleep=0.01)
            eventually(lambda: second.count("records_total") > 20)
            eventually(lambda: bench.counted(CAMERAS, 60))
        send(bench, 61, 80)
        eventually(lambda: bench.counted(CAMERAS, 80))
        assert first.count("takeovers_total") >= bench.partitions
    bench.assert_counted(CAMERAS, 80)


class AbortedRebalance:
    """Aborts every transaction of a worker from the moment it gives partitions back until the rebalance is
    over. Each is a real one: its outputs are written before it aborts. The handler's gate opens inside the
    rebalance, so the first of them holds records of every partition.
    """

    def __init__(self, worker: Threaded) -> None:
        self._gate = worker.handler.gate
        self._gate.clear()
        self._worker = worker.worker
        self._submit = self._worker._committer.submit
        self._revoked, self._assigned = self._worker.on_revoked, self._worker.on_assigned
        self.active = False
        self.aborted: list[set[int]] = []  # partitions of each transaction
        self.kept: set[int] = set()  # partitions that stayed
        self._worker._committer.submit = self._on_submit  # type: ignore[method-assign]
        self._worker.on_revoked = self._on_revoked  # type: ignore[method-assign]
        self._worker.on_assigned = self._on_assigned  # type: ignore[method-assign]

    def _on_submit(self, transaction: Transaction) -> None:
        if self.active:
            transaction.give_up("aborted by the test")
            self.aborted.append({partition.number for partition, _ in transaction.batch})
        self._submit(transaction)

    def _on_revoked(self, numbers: Collection[int]) -> None:
        self.active = True
        self.kept |= set(self._worker._ownership.current) - set(numbers)
        self._gate.set()
        while len(self._worker._commits._due) < len(self._worker._ownership.current):
            self._worker._take(self._worker._events.get(timeout=60.0))
        self._revoked(numbers)

    def _on_assigned(self, numbers: Collection[int]) -> None:
        self.active = False
        self._assigned(numbers)


def test_transactions_that_abort_in_a_rebalance_lose_and_double_nothing(bench: Bench) -> None:
    """What was taken into a transaction is read again: by this worker where the partition stays, although the
    client is busy with the rebalance, and by the next owner where it moves.
    """
    cameras = [f"cam-{number}" for number in range(bench.partitions)]

    def send(first: int, last: int, **more: object) -> None:
        for n in range(first, last + 1):
            for partition, camera in enumerate(cameras):
                bench.send(camera, n, partition=partition, **more)
        bench.flush()

    threads = bench.partitions
    with running(bench.settings("toy-a", static_member=False, threads=threads)) as first:
        eventually(first.health.ready)
        send(1, 5)
        eventually(lambda: first.count("records_total") == 5 * bench.partitions)
        rebalance = AbortedRebalance(first)
        send(6, 60, do="gate")
        with running(bench.settings("toy-b", static_member=False)) as second:
            eventually(lambda: second.count("takeovers_total") > 0)
            eventually(lambda: bench.counted(cameras, 60))
            assert rebalance.aborted[0] == set(range(bench.partitions))
            assert 0 < len(rebalance.kept) < bench.partitions
            assert first.count("transactions_total", outcome="aborted") >= len(rebalance.aborted)
            assert second.error is None
        send(61, 70)
        eventually(lambda: bench.counted(cameras, 70))
        assert first.error is None
    bench.assert_counted(cameras, 70)


@pytest.mark.long
def test_a_slow_record_does_not_hold_a_rebalance_up(bench: Bench) -> None:
    """Revoking never waits for compute: the record in work is computed again by the next owner."""
    for partition in range(bench.partitions):
        bench.send(f"cam-{partition}", 1, partition=partition, sleep=8.0)
    bench.flush()
    with running(bench.settings("toy-a", static_member=False, threads=4)) as first:
        eventually(lambda: len(first.handler.seen) == bench.partitions)
        with running(bench.settings("toy-b", static_member=False, threads=4)) as second:
            eventually(lambda: second.handler.seen)
            assert first.count("records_total") == 0
            eventually(lambda: first.count("records_total") + second.count("records_total") == 4)
    bench.assert_counted([f"cam-{partition}" for partition in range(bench.partitions)], 1)


@pytest.mark.long
def test_kafka_stops_and_comes_back(own_kafka: KafkaServer, prefix: str, stack: ExitStack) -> None:
    """Nothing commits, not ready, not restarted; then everything continues."""
    bench = stack.enter_context(Bench(own_kafka.bootstrap, prefix))
    send(bench, 1, 10)
    with running(bench.settings()) as worker:
        eventually(lambda: worker.count("records_total") == 50)
        send(bench, 11, 40, sleep=0.02)
        eventually(lambda: worker.count("records_total") > 60)
        own_kafka.stop()
        eventually(lambda: not worker.health.ready())
        assert worker.health.alive()
        assert worker.thread.is_alive()
        own_kafka.start()
        eventually(lambda: bench.counted(CAMERAS, 40))
        eventually(worker.health.ready)
        send(bench, 41, 45)
        eventually(lambda: bench.counted(CAMERAS, 45))
    bench.assert_counted(CAMERAS, 45)


@pytest.mark.long
def test_kafka_is_away_longer_than_a_transaction_may_last(
    own_kafka: KafkaServer, prefix: str, stack: ExitStack
) -> None:
    """The broker aborts what was open and fences the producer: no other process of
    its name, so it starts again."""
    bench = stack.enter_context(Bench(own_kafka.bootstrap, prefix))
    send(bench, 1, 200)
    with running(bench.settings(transaction_timeout_s=2.0)) as worker:
        eventually(lambda: worker.count("records_total") > 10)
        own_kafka.kill()
        eventually(lambda: not worker.health.ready())
        time.sleep(4.0)
        own_kafka.start()
        eventually(lambda: bench.counted(CAMERAS, 200))
        assert worker.error is None
    bench.assert_counted(CAMERAS, 200)


def test_a_changed_configuration_is_refused_or_starts_anew(bench: Bench) -> None:
    bench.send("cam", 1, partition=0)
    bench.flush()
    with running(bench.settings()) as worker:
        eventually(lambda: worker.count("records_total") == 1)
    changed = Threaded(bench.settings(), shared={"grid": "8x8"})
    eventually(lambda: not changed.thread.is_alive())
    assert isinstance(changed.error, StartupError)
    assert "LOOKOUT_ON_CONFIG_CHANGE" in str(changed.error)
    bench.send("cam", 2, partition=0)
    bench.flush()
    again = Threaded(bench.settings(on_config_change="restart"), shared={"grid": "8x8"})
    try:
        eventually(lambda: again.count("records_total") == 1)
    finally:
        again.stop()


def test_a_forged_checkpoint_costs_its_camera_alone(bench: Bench) -> None:
    """It is the only one of the stage, and names another configuration: the stage ended at every start."""
    bench.send("cam", 1, partition=0)
    bench.flush()
    with running(bench.settings()) as worker:
        eventually(lambda: worker.count("records_total") == 1)
    forged = Checkpoint(config_digest=f"{'0' * 16}.x").SerializeToString()
    producer = Producer({"bootstrap.servers": bench.bootstrap})
    producer.produce(f"{bench.prefix}state", forged, key="cam", partition=0)
    assert producer.flush(60.0) == 0
    bench.send("cam", 2, partition=0)
    bench.flush()
    for _ in range(2):  # at the second start it is gone
        with running(bench.settings()) as worker:
            eventually(lambda worker=worker: worker.health.ready())  # type: ignore[misc]
            eventually(lambda: len(bench.outputs()["cam"]) == 2)
            eventually(lambda: len(bench.read("dlq")) == 1)
            assert worker.error is None
    (letter,) = bench.read("dlq")
    assert (letter.key(), letter.value()) == (b"cam", forged)
    assert ("lookout-reason", b"bad-checkpoint") in (letter.headers() or [])


def test_records_are_read_again_by_offset(bench: Bench) -> None:
    for n in range(1, 201):
        bench.send(f"cam-{n % 3}", n, partition=2)
    bench.flush()
    rereader = RecordReader(bench.settings())
    try:
        wanted = [3, 5, 90, 91, 180]
        records = rereader.read(f"{bench.prefix}in", 2, wanted)
        assert [record.offset for record in records] == wanted
        assert [record.camera for record in records] == [f"cam-{(offset + 1) % 3}" for offset in wanted]
        assert rereader.read(f"{bench.prefix}in", 2, []) == []
    finally:
        rereader.close()


def test_a_table_is_loaded_and_followed(bench: Bench) -> None:
    producer = Producer({"bootstrap.servers": bench.bootstrap})

    def put(key: str, value: bytes | None) -> None:
        producer.produce(f"{bench.prefix}state", value, key=key)
        producer.flush(60.0)

    put("a", b"1")
    put("b", b"2")
    put("a", b"3")
    table = Table(bench.settings(), f"{bench.prefix}state")
    table.start()
    try:
        before = table.view()
        assert dict(before.history) == {"a": (b"1", b"3"), "b": (b"2",)}
        assert (before.newest("a"), before.newest("c"), before.offset) == (b"3", None, 3)
        put("b", None)
        after = table.at_least(4)
        assert dict(after.history) == {"a": (b"1", b"3")}
        assert dict(before.history) == {"a": (b"1", b"3"), "b": (b"2",)}
    finally:
        table.stop()


@pytest.mark.long
def test_records_that_retention_removed_are_told_to_the_handler(
    own_kafka: KafkaServer, prefix: str, stack: ExitStack
) -> None:
    """On a real broker: the group has read to 3, the topic begins at 8."""
    bench = stack.enter_context(Bench(own_kafka.bootstrap, prefix, partitions=1))
    for n in (1, 2, 3):
        bench.send("cam", n, partition=0)
    bench.flush()
    with running(bench.settings()):
        eventually(lambda: bench.counted(["cam"], 3))
    for n in (4, 5, 6, 7, 8, 9):
        bench.send("cam", n, partition=0)
    bench.flush()
    admin = AdminClient({"bootstrap.servers": own_kafka.bootstrap})
    for future in admin.delete_records([TopicPartition(f"{prefix}in", 0, 7)]).values():
        future.result()
    with running(bench.settings()) as worker:
        eventually(lambda: bench.counted(["cam"], 5))
        losses = [loss.offsets if (loss := record.loss) else 0 for record in worker.handler.records]
        assert losses == [4, 4]
        eventually(lambda: worker.count("lost_offsets_total") == 4)
