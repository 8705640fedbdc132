"""`python -m bench.relive_processes`: one of three real prefill processes is killed.

Beside what `bench.relive` simulates. Real: Kafka, Redis, prefill with a tiny model, SIGKILL, the session that
runs out. Recorded before: the tokens, which this process holds as prune-encode does and publishes as cameras
would, a block every stride. The simulation gets the same number of processes, cameras and partitions, and the
share of its time that a process computed before the kill, as prefill counts it. Ends with one line of JSON.
"""

from __future__ import annotations

import argparse
import heapq
import json
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from confluent_kafka import Consumer, KafkaException, Message, Producer
from confluent_kafka.admin import AdminClient
from prometheus_client.parser import text_string_to_metric_families

from bench.relive import STRIDE_S, relive
from lookout.local import KafkaServer, RedisServer, create_topics, free_ports, guarded
from lookout.models.digest import folder_digest
from lookout.runtime.store import Node
from lookout.v1.watches_pb2 import Watch
from lookout.wire import TOKENS, VERDICTS, WATCHES, to_json
from tests.prefill_world import block_record, embeddings, encoder
from tests.tiny_models import checkpoint

_GROUP = "prefill"
_START_S, _LONGEST_S = 300.0, 240.0
#: a camera is behind whose oldest complete window waits longer, as in the simulation
_BEHIND_S = 2 * STRIDE_S
_WATCH = Watch(id="fall", version=1, question="Is anyone lying?")


@dataclass(frozen=True, slots=True)
class Window:
    """A window's life, in seconds of the monotonic clock."""

    complete_s: float
    decided_s: float


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pods", type=int, default=3)
    parser.add_argument("--cameras", type=int, default=45)
    parser.add_argument("--partitions", type=int, default=15)
    parser.add_argument("--seconds", type=float, default=60.0, help="of play before the kill")
    given = parser.parse_args(arguments)
    figures = measure(given.pods, given.cameras, given.partitions, given.seconds)
    print(json.dumps(figures), flush=True)


def measure(pods: int, cameras: int, partitions: int, seconds: float) -> dict[str, float | int | None]:
    """Play, kill one process, wait until no camera is behind, and compare with the simulation.

    Args:
        pods: Prefill processes.
        cameras: Of all of them, the same number in each partition.
        partitions: Of the topics.
        seconds: Of play before the kill, once every camera has an outcome.

    Raises:
        OSError: A process ended by itself, or the cameras are not live before the kill.
    """
    names = camera_names(cameras, partitions)
    with Fleet(pods, partitions) as fleet, Play(fleet.bootstrap, fleet.node, names) as play:
        play.until(lambda: len(play.outcomes()) == cameras, "the first outcomes")
        fleet.busy_s()
        begun, before = time.monotonic(), fleet.busy_s()
        time.sleep(seconds)
        busy = (fleet.busy_s() - before) / pods / (time.monotonic() - begun)
        waits = play.waits(begun)
        print(f"before: busy {busy:.2f}, outcomes after {statistics.median(waits):.2f} s", flush=True)
        lost = play.of_partitions(fleet.partitions_of(0))
        killed = fleet.kill(0)
        play.until(lambda: play.live(killed, lost), f"the {len(lost)} cameras of the killed process")
        first, caught_up = play.first_s(killed, lost), play.caught_up_s(killed)
    expected = relive(pods, cameras, partitions, busy=busy)
    return {
        "pods": pods,
        "cameras": cameras,
        "partitions": partitions,
        "busy": round(busy, 3),
        "wait_s": round(statistics.median(waits), 2),
        "lost_cameras": len(lost),
        "first_outcomes_s": round(first, 1),
        "first_outcomes_s_simulated": None if expected is None else round(expected.first_s, 1),
        "relive_s": round(caught_up, 1),
        "relive_s_simulated": None if expected is None else round(expected.caught_up_s, 1),
        "load": round(os.getloadavg()[0], 1),
    }


def camera_names(cameras: int, partitions: int) -> list[str]:
    """Names that Kafka's default partitioner spreads evenly over the partitions."""
    rooms = [cameras // partitions + (number < cameras % partitions) for number in range(partitions)]
    names, number = list[str](), 0
    while len(names) < cameras:
        name = f"camera-{number:04d}"
        number += 1
        partition = zlib.crc32(name.encode()) % partitions
        if rooms[partition]:
            rooms[partition] -= 1
            names.append(name)
    return names


class Fleet:
    """Kafka, Redis, what holds the tokens, and prefill processes."""

    def __init__(self, pods: int, partitions: int) -> None:
        with ExitStack() as stack:
            self.folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            self.bootstrap = stack.enter_context(KafkaServer()).bootstrap
            redis_url = stack.enter_context(RedisServer()).url
            create_topics(self.bootstrap, partitions)
            self.node, address = stack.enter_context(encoder(redis_url))
            self._ports = free_ports(pods)
            self._processes = [
                stack.enter_context(self._prefill(number, redis_url, address)) for number in range(pods)
            ]
            self._wait(partitions)
            self._stack = stack.pop_all()

    def __enter__(self) -> Fleet:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    @contextmanager
    def _prefill(self, number: int, redis_url: str, address: str) -> Iterator[subprocess.Popen[bytes]]:
        settings = {
            "OMP_NUM_THREADS": "1",
            "LOOKOUT_BOOTSTRAP": self.bootstrap,
            "LOOKOUT_REDIS_URL": redis_url,
            "LOOKOUT_INSTANCE": f"prefill-{number}",
            "LOOKOUT_HOST": "127.0.0.1",
            "LOOKOUT_METRICS_PORT": str(self._ports[number]),
            "LOOKOUT_MODEL_DIR": str(checkpoint("internvl")),
            "LOOKOUT_MODEL_DIGEST": folder_digest(checkpoint("internvl")),
            "LOOKOUT_STRIDE_S": f"{STRIDE_S:g}",
            "LOOKOUT_TOKEN_REPLICAS": address,
            "LOOKOUT_STATIC_MEMBER": "true",  # its name tells which process has which partitions
        }
        inherited = {name: text for name, text in os.environ.items() if not name.startswith("LOOKOUT_")}
        with (self.folder / f"prefill-{number}.log").open("wb") as log:
            process = subprocess.Popen(
                guarded([sys.executable, "-m", "lookout.services.prefill"]),
                env={**inherited, **settings},
                stdout=log,
                stderr=log,
            )
        try:
            yield process
        finally:
            process.kill()
            process.wait()

    def _wait(self, partitions: int) -> None:
        """Wait until the processes share the partitions evenly."""
        deadline = time.monotonic() + _START_S
        count = len(self._processes)
        while True:
            self.check()
            shares = [len(self.partitions_of(number)) for number in range(count)]
            if sum(shares) == partitions and max(shares) - min(shares) <= 1:
                return
            if time.monotonic() > deadline:
                text = (self.folder / "prefill-0.log").read_text()[-800:]
                raise OSError(f"the processes have {shares} of {partitions} partitions: {text}")
            time.sleep(1.0)

    def check(self, without: int | None = None) -> None:
        """Check that the processes run.

        Raises:
            OSError: One has ended; the message holds the end of its log.
        """
        for number, process in enumerate(self._processes):
            if number != without and process.poll() is not None:
                text = (self.folder / f"prefill-{number}.log").read_text()[-800:]
                raise OSError(f"prefill-{number} ended with code {process.returncode}: {text}")

    def partitions_of(self, number: int) -> set[int]:
        """Return the partitions that a process reads."""
        admin = AdminClient({"bootstrap.servers": self.bootstrap})
        try:
            group = admin.describe_consumer_groups([_GROUP])[_GROUP].result(20.0)
        except (KafkaException, TimeoutError):  # nobody coordinates the group until the first one has joined
            return set()
        for member in group.members:
            if str(member.group_instance_id or "").startswith(f"{_GROUP}.prefill-{number}."):
                return {each.partition for each in member.assignment.topic_partitions}
        return set()

    def busy_s(self) -> float:
        """Return the seconds that all processes have computed so far."""
        return sum(_counter(port, "lookout_busy_seconds_total") for port in self._ports)

    def kill(self, number: int) -> float:
        """Kill a process without notice and return when."""
        self._processes[number].send_signal(signal.SIGKILL)
        return time.monotonic()


class Play:
    """Publishes a block of every camera each stride, and reads what is committed.

    Args:
        bootstrap: Kafka's address.
        node: Holds the tokens.
        cameras: Their names.
    """

    def __init__(self, bootstrap: str, node: Node, cameras: Sequence[str]) -> None:
        self._bootstrap, self._node, self._cameras = bootstrap, node, cameras
        self._lock = threading.Lock()
        self._complete: dict[tuple[str, int], float] = {}
        self._decided: dict[tuple[str, int], float] = {}
        self._partitions: dict[str, int] = {}
        self._over = threading.Event()
        self._threads = [threading.Thread(target=work) for work in (self._publish, self._read)]

    def __enter__(self) -> Play:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join()

    def _publish(self) -> None:
        producer = Producer({"bootstrap.servers": self._bootstrap, "linger.ms": 5})
        producer.produce(WATCHES.name, to_json(_WATCH), _WATCH.id)
        producer.flush()
        draw, begun = random.Random(0), time.monotonic()
        due = [(begun + draw.uniform(0, STRIDE_S), camera, 0) for camera in self._cameras]
        heapq.heapify(due)
        while not self._over.is_set():
            at, camera, index = heapq.heappop(due)
            self._over.wait(max(0.0, at - time.monotonic()))
            record = block_record(camera, index)
            self._node.store.put(record.block.embeddings, embeddings(record.block.embeddings))
            with self._lock:
                self._complete[camera, index] = time.monotonic()
            producer.produce(TOKENS.name, record.SerializeToString(), camera, on_delivery=self._delivered)
            producer.poll(0)
            heapq.heappush(due, (at + STRIDE_S, camera, index + 1))
        producer.flush(10.0)

    def _delivered(self, error: object, message: Message) -> None:
        if error is None:
            self._partitions[(message.key() or b"").decode()] = message.partition() or 0

    def _read(self) -> None:
        settings = {"isolation.level": "read_committed", "auto.offset.reset": "earliest", "group.id": "bench"}
        consumer = Consumer({"bootstrap.servers": self._bootstrap, **settings})
        consumer.subscribe([VERDICTS.name])
        while not self._over.is_set():
            message = consumer.poll(0.2)
            if message is None or message.error() is not None:
                continue
            verdict = json.loads(message.value() or b"{}")
            with self._lock:
                self._decided.setdefault((verdict["camera"], int(verdict.get("window", 0))), time.monotonic())
        consumer.close()

    def until(self, done: Callable[[], bool], what: str) -> None:
        """Wait until something is true.

        Raises:
            OSError: It takes too long.
        """
        deadline = time.monotonic() + _LONGEST_S
        while not done():
            if time.monotonic() > deadline:
                raise OSError(f"{what}: not within {_LONGEST_S:.0f} s; {self.behind()}")
            time.sleep(0.5)

    def of_partitions(self, partitions: set[int]) -> list[str]:
        """Return the cameras of some partitions."""
        return [camera for camera in self._cameras if self._partitions[camera] in partitions]

    def outcomes(self) -> set[str]:
        """Return the cameras that have an outcome."""
        with self._lock:
            return {camera for camera, _ in self._decided}

    def waits(self, since: float) -> list[float]:
        """Return how long windows waited for their outcomes that were complete after a moment."""
        return [
            window.decided_s - window.complete_s for window in self._windows() if window.complete_s > since
        ]

    def live(self, killed: float, lost: Sequence[str]) -> bool:
        """Whether the lost cameras have outcomes again, and no camera is behind, for ten strides."""
        now = time.monotonic()
        left = self._waiting().values()
        if any(at < now - _BEHIND_S for at in left) or now < killed + 10 * STRIDE_S:
            return False
        return now > self.caught_up_s(killed) + killed + 10 * STRIDE_S and self.first_s(killed, lost) < float(
            "inf"
        )

    def behind(self) -> str:
        """Say who is behind: a partition that nobody reads keeps its cameras waiting, a slow machine all."""
        now = time.monotonic()
        late = {key: at for key, at in self._waiting().items() if at < now - _BEHIND_S}
        cameras = {camera for camera, _ in late}
        partitions = ", ".join(map(str, sorted({self._partitions.get(camera, -1) for camera in cameras})))
        text = f"{len(cameras)} of {len(self._cameras)} cameras wait"
        if late:
            text += f" (partitions {partitions}), the longest for {now - min(late.values()):.0f} s"
        ended = self.caught_up_s(0.0)
        return text + (f"; the last late outcome {now - ended:.0f} s ago" if ended else "")

    def _waiting(self) -> dict[tuple[str, int], float]:
        """When windows without an outcome were complete.

        A window that a process takes before it has read the watch has no outcome and waits for none: those
        before a camera's first outcome are left out.
        """
        with self._lock:
            first = dict[str, int]()
            for camera, window in self._decided:
                first[camera] = min(window, first.get(camera, window))
            return {
                (camera, window): at
                for (camera, window), at in self._complete.items()
                if (camera, window) not in self._decided and window >= first.get(camera, 0)
            }

    def first_s(self, killed: float, lost: Sequence[str]) -> float:
        """Seconds from the kill until each lost camera has an outcome of another process.

        What the killed process had committed is read within a moment of the kill.
        """
        with self._lock:
            firsts = [
                min(
                    (at for (name, _), at in self._decided.items() if name == camera and at > killed + 1.0),
                    default=float("inf"),
                )
                for camera in lost
            ]
        return max(firsts) - killed

    def caught_up_s(self, killed: float) -> float:
        """Seconds from the kill until the last outcome of a window that had waited too long."""
        late = [
            window.decided_s for window in self._windows() if window.decided_s - window.complete_s > _BEHIND_S
        ]
        return max((at - killed for at in late if at > killed), default=0.0)

    def _windows(self) -> list[Window]:
        with self._lock:
            both = self._complete.keys() & self._decided.keys()
            return [Window(self._complete[key], self._decided[key]) for key in both]


def _counter(port: int, name: str) -> float:
    """Return the sum of a counter's series."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=20.0) as answer:
        families = text_string_to_metric_families(answer.read().decode())
    return sum(sample.value for family in families for sample in family.samples if sample.name == name)


if __name__ == "__main__":
    main()
