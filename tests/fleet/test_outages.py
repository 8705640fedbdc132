"""Servers that freeze, stall or fill up, and clocks that are set: nothing is lost, doubled, or hangs."""

from __future__ import annotations

import os
import select
import signal
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from queue import SimpleQueue

import pytest
import redis
from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient
from structlog.testing import capture_logs

from lookout.errors import FencedError, TransientError
from lookout.local import KafkaServer, RedisServer, create_topics, free_ports
from lookout.local.kafka import KafkaListener
from lookout.rules import watch_fault
from lookout.runtime.store.directory import Announcer, Directory
from lookout.runtime.store.errors import DirectoryDownError
from lookout.runtime.store.labels import entry_of
from lookout.runtime.worker import Output, Result, Table
from lookout.runtime.worker.partitions import Partition
from lookout.runtime.worker.polling import static_name
from lookout.runtime.worker.records import Slot
from lookout.runtime.worker.refusals import Refusals
from lookout.runtime.worker.tables import REACH_S, ShorterTopicError
from lookout.runtime.worker.transactions import Committer, Ended, Topics, Transaction, TransactionResult
from lookout.services.prefill.watches import Watches
from lookout.v1.lineage_pb2 import STAGE_FRAMES, TensorRef
from lookout.v1.watches_pb2 import Watch
from lookout.wire import Topic, to_json
from lookout.wire.limits import ALL_WATCHES, CAMERA_WATCHES
from tests.acceptor import Acceptor
from tests.changed_settings import store_settings
from tests.eventually import eventually
from tests.fleet.bench import Bench, process, running

pytestmark = pytest.mark.fleet

CAMERAS = [f"cam-{number}" for number in range(3)]
APART_S = 12.0  # until clients have given up a first connection; they make the next at different times
FROZEN_S = 6.0  # longer than a session of these workers
REF = TensorRef(id="t", stage=STAGE_FRAMES, camera="gate", epoch=5)
REF.input.topic, REF.input.partition, REF.input.offset = "camera.segments.v1", 0, 3


def send(bench: Bench, first: int, last: int) -> None:
    """Records of every camera."""
    for n in range(first, last + 1):
        for camera in CAMERAS:
            bench.send(camera, n)
    bench.flush()


@pytest.mark.long
def test_a_frozen_broker_that_goes_on_costs_nothing(
    own_kafka: KafkaServer, prefix: str, stack: ExitStack
) -> None:
    """SIGSTOP keeps every connection open and answers none: no error tells a client that it is away."""
    bench = stack.enter_context(Bench(own_kafka.bootstrap, prefix))
    assert own_kafka.pid is not None
    with running(bench.settings()) as worker:
        send(bench, 1, 20)
        eventually(lambda: worker.count("records_total") > 10)
        for _ in range(2):
            os.kill(own_kafka.pid, signal.SIGSTOP)
            try:
                time.sleep(FROZEN_S)
            finally:
                os.kill(own_kafka.pid, signal.SIGCONT)
            time.sleep(1.0)
        send(bench, 21, 40)
        eventually(lambda: worker.error is not None or bench.counted(CAMERAS, 40))
        assert worker.error is None
    bench.assert_counted(CAMERAS, 40)


@pytest.mark.long
def test_a_worker_fenced_after_a_standstill_joins_again(
    own_kafka: KafkaServer, prefix: str, stack: ExitStack
) -> None:
    """A broker that goes on can read a worker's join twice; a like-named member stands for it."""
    bench = stack.enter_context(Bench(own_kafka.bootstrap, prefix))
    assert own_kafka.pid is not None
    with running(bench.settings()) as worker:
        send(bench, 1, 20)
        eventually(lambda: worker.count("records_total") > 10)
        os.kill(own_kafka.pid, signal.SIGSTOP)
        try:
            time.sleep(FROZEN_S)
        finally:
            os.kill(own_kafka.pid, signal.SIGCONT)
        settings, topic = bench.settings(), f"{prefix}in"
        echo = Consumer(
            {
                "bootstrap.servers": own_kafka.bootstrap,
                "group.id": settings.group,
                "group.instance.id": static_name(settings, topic, f"{settings.group}.{settings.instance}"),
                "partition.assignment.strategy": "cooperative-sticky",
                "session.timeout.ms": 6000,
                "enable.auto.commit": False,  # an offset of its own would hide a record from the worker
            }
        )
        joined: list[object] = []
        try:
            echo.subscribe([topic], on_assign=lambda _, places: joined.extend(places))
            eventually(lambda: echo.poll(0.1) is not None or joined)
        finally:
            echo.close()  # a static member leaves without a word
        send(bench, 21, 40)
        eventually(lambda: worker.error is not None or bench.counted(CAMERAS, 40))
        assert worker.error is None
    bench.assert_counted(CAMERAS, 40)


@pytest.mark.long
def test_clients_that_were_given_up_during_a_standstill_stand_for_nobody_else(
    own_kafka: KafkaServer, prefix: str, stack: ExitStack
) -> None:
    """Each of them was asking for the identity of the process, and fences the client in use by getting it."""
    bench = stack.enter_context(Bench(own_kafka.bootstrap, prefix))
    ends: SimpleQueue[Ended] = SimpleQueue()
    before = set(threading.enumerate())
    committer = Committer(
        bench.settings(),
        "toy",
        f"{prefix}toy-0",
        Topics(f"{prefix}in", f"{prefix}state", f"{prefix}dlq"),
        refusals=Refusals(),
        digest=lambda: "toy-1",
        ended=ends.put,
    )
    stack.callback(committer.close)

    def begin() -> Transaction:
        slot = Slot("gate", None, result=Result(outputs=(Output(f"{prefix}dlq", "gate", b"1"),)))
        transaction = Transaction([(Partition(0, loaded=True), [slot])], None)
        committer.submit(transaction)
        return transaction

    def run() -> TransactionResult:
        begin()
        ended = ends.get(timeout=120.0)
        assert ended.error is None
        return ended.outcome

    def threads() -> list[threading.Thread]:
        return [each for each in threading.enumerate() if each.name == "transactions" and each not in before]

    assert run() is TransactionResult.COMMITTED
    assert own_kafka.pid is not None
    os.kill(own_kafka.pid, signal.SIGSTOP)
    try:
        with capture_logs() as lines:
            transaction = begin()
            unknown = "the outcome of a transaction is unknown"
            eventually(lambda: any(line["event"] == unknown for line in lines))
        for _ in range(4):
            committer.replace(transaction)
        time.sleep(APART_S)
        committer.outage()
    finally:
        os.kill(own_kafka.pid, signal.SIGCONT)
    assert ends.get(timeout=120.0).outcome is TransactionResult.UNKNOWN
    while len(threads()) > 1:
        run()
    eventually(lambda: run() is TransactionResult.COMMITTED)
    # Now that the last of them is gone, a client that gets the identity is another process's.
    usurper = Producer({"bootstrap.servers": own_kafka.bootstrap, "transactional.id": committer.identity})
    usurper.init_transactions(120.0)
    begin()
    assert isinstance(ends.get(timeout=120.0).error, FencedError)


class StallingLine:
    """A line to a server that can stop to carry bytes without closing a connection."""

    def __init__(self, port: int, target: int) -> None:
        self._target = target
        self._open = threading.Event()
        self._open.set()
        self._acceptor = Acceptor(self._carry, port=port, silence_s=600.0)

    def stall(self, seconds: float) -> None:
        """Carry nothing for so long."""
        self._open.clear()
        time.sleep(seconds)
        self._open.set()

    def close(self) -> None:
        """Take no connections any more."""
        self._open.set()
        self._acceptor.close()

    def _carry(self, client: socket.socket) -> None:
        with socket.create_connection(("127.0.0.1", self._target)) as server:
            other = {client: server, server: client}
            while True:
                ready, _, _ = select.select(list(other), [], [])
                self._open.wait()
                for source in ready:
                    data = source.recv(65536)
                    if not data:
                        return
                    other[source].sendall(data)


@pytest.fixture
def stalling() -> Iterator[tuple[str, StallingLine]]:
    """A broker whose only address leads over a line that can stall."""
    line_port, behind = free_ports(2)
    listener = KafkaListener("STALLING", behind, f"127.0.0.1:{line_port}")
    with KafkaServer(outside=[listener]) as server:
        line = StallingLine(line_port, behind)
        yield f"127.0.0.1:{line_port}", line
        line.close()
        assert server.alive


@pytest.mark.long
def test_a_network_that_stalls_costs_nothing(
    stalling: tuple[str, StallingLine], prefix: str, stack: ExitStack
) -> None:
    address, line = stalling
    bench = stack.enter_context(Bench(address, prefix))
    with running(bench.settings()) as worker:
        send(bench, 1, 20)
        eventually(lambda: worker.count("records_total") > 10)
        for seconds in (1.0, FROZEN_S):
            line.stall(seconds)
            time.sleep(0.5)
        send(bench, 21, 40)
        eventually(lambda: bench.counted(CAMERAS, 40))
        assert worker.error is None
    bench.assert_counted(CAMERAS, 40)


def fill(client: redis.Redis, size: int) -> None:
    """Write values of so many bytes until the server has no memory left for one."""
    for number in range(10_000):
        client.set(f"x{size} {number}", bytes(size))


def test_a_redis_without_memory_is_a_directory_that_is_away() -> None:
    """Strangers' keys without an expiry are never evicted: writes fail until somebody removes them."""
    with RedisServer(max_memory_mb=3) as server, redis.Redis.from_url(server.url) as stranger:
        directory = Directory(server.url, store_settings(redis_retry_s=0.1))
        announcer = Announcer(directory, STAGE_FRAMES, "pod", "127.0.0.1:9", lambda: [entry_of(REF)])
        assert announcer.renew()
        for size in (10_000, 100):  # until there is no room for a lease either
            with pytest.raises(redis.ResponseError, match="maxmemory"):
                fill(stranger, size)
        assert not announcer.renew()
        assert announcer.epoch == 0
        try:
            found = directory.find(REF)  # reading still works; what was evicted is asked for by lineage
            assert [holder.pod for holder in found] in ([], ["pod"])
        except DirectoryDownError:
            pass
        stranger.flushall()
        eventually(announcer.renew)
        assert [holder.pod for holder in directory.find(REF)] == ["pod"]
        directory.close()


CLOCK = """
import os, time
_time, _time_ns = time.time, time.time_ns
def _step():
    try:
        return float(open(os.environ["CLOCK_STEP"]).read() or 0)
    except OSError:
        return 0.0
time.time = lambda: _time() + _step()
time.time_ns = lambda: _time_ns() + int(_step() * 1e9)
"""


def test_clock_steps_of_a_day_both_ways_cost_nothing(
    kafka: str, prefix: str, stack: ExitStack, tmp_path: Path
) -> None:
    """The wall clock of a running process; Kafka's and the monotonic one go on."""
    bench = stack.enter_context(Bench(kafka, prefix))
    (tmp_path / "sitecustomize.py").write_text(CLOCK)
    step = tmp_path / "step"
    log = tmp_path / "log"
    worker = process(bench.settings(), log, PYTHONPATH=str(tmp_path), CLOCK_STEP=str(step))
    try:
        sent = 0
        for seconds in (0, 86_400, 0, -86_400, 0):
            step.write_text(str(seconds))
            send(bench, sent + 1, sent + 10)
            sent += 10
            eventually(lambda sent=sent: bench.counted(CAMERAS, sent))  # type: ignore[misc]
        assert worker.poll() is None, log.read_text()
    finally:
        worker.kill()
        worker.wait()
    bench.assert_counted(CAMERAS, sent)
    assert bench.read("dlq") == []


def test_a_table_of_a_topic_that_was_made_again_has_what_the_new_one_has(
    kafka: str, prefix: str, stack: ExitStack
) -> None:
    """Deleted watches were asked on, and no command could remove them: their records were there no more."""
    bench = stack.enter_context(Bench(kafka, prefix, partitions=1))
    topic = Topic(f"{prefix}again.v1", "rows", pipeline=False, retention_ms=None)
    admin, producer = AdminClient({"bootstrap.servers": kafka}), Producer({"bootstrap.servers": kafka})

    def write(*keys: str) -> None:
        for key in keys:
            producer.produce(topic.name, b"value", key=key)
        assert producer.flush(60.0) == 0

    create_topics(kafka, topics=[topic])
    write("a", "b", "c")
    table = Table(bench.settings(), topic.name)
    table.start()
    stack.callback(table.stop)
    assert table.changes() == {"a", "b", "c"}
    for rows in ((), ("d",)):
        admin.delete_topics([topic.name])[topic.name].result(60.0)
        eventually(lambda: topic.name not in admin.list_topics(timeout=10.0).topics)
        create_topics(kafka, topics=[topic])
        write(*rows)
        eventually(lambda rows=rows: set(table.view().history) == set(rows))  # type: ignore[misc]
    assert table.changes() == {"a", "b", "c", "d"}
    assert (table.view().offset, table.past("a"), [row.offset for row in table.past("d")]) == (1, (), [0])
    write("e")
    eventually(lambda: set(table.view().history) == {"d", "e"})
    with pytest.raises(ShorterTopicError, match="up to offset 3"):
        table.reach(3, timeout_s=0.1)
    # A camera whose checkpoint is of the topic before was never loaded again: its records were dead letters.
    assert set(table.at_least(3, timeout_s=0.1).history) == {"d", "e"}


@pytest.mark.long
def test_ten_thousand_watches_are_followed_and_what_is_beyond_is_named(
    kafka: str, prefix: str, stack: ExitStack
) -> None:
    """One camera is asked 256 of them; a row beyond the limit is left out, and says so."""
    bench = stack.enter_context(Bench(kafka, prefix, partitions=1))
    producer = Producer({"bootstrap.servers": kafka})
    for number in range(ALL_WATCHES + 5):
        watch = Watch(id=f"w{number:05d}", version=1, question="Is anyone there?", cameras=["gate"])
        producer.produce(f"{prefix}state", to_json(watch), key=watch.id)
        producer.poll(0)
    assert producer.flush(60.0) == 0
    table = Table(bench.settings(), f"{prefix}state", check=watch_fault, limit=ALL_WATCHES)
    with capture_logs() as lines:
        table.start()
    # The same rows at every start: one line for all of them.
    (line,) = [line for line in lines if line["log_level"] == "error"]
    assert (line["rows"], len(line["first"])) == (5, 5)
    try:
        assert len(table.view().history) == ALL_WATCHES
        assert sorted(table.left_out().reasons) == [f"w{ALL_WATCHES + n:05d}" for n in range(5)]
        watches = Watches(table.view)
        active = watches.active("gate", 1_700_000_000_000).watches
        assert [watch.id for watch in active] == [f"w{n:05d}" for n in range(CAMERA_WATCHES)]
        assert watches.active("yard", 1_700_000_000_000).watches == ()
        with pytest.raises(TransientError, match="a record needs 2147483648") as caught:
            table.reach(1 << 31, timeout_s=0.1)
        assert caught.value.give_up_s == REACH_S  # and not an hour, in which its partition commits nothing
    finally:
        table.stop()
