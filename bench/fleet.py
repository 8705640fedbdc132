"""A fleet of real servers and services into which cameras are played, and what it costs.

The fleet has a real Kafka, a real Redis and four services. The vision tower and the engine may be replaced by
constants (`bench.constant`), so that only the fleet's own work costs anything.
"""

from __future__ import annotations

import shutil
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import psutil
from confluent_kafka import Consumer, Producer
from prometheus_client.parser import text_string_to_metric_families
from tqdm import tqdm

from lookout.local import Fleet
from lookout.v1.watches_pb2 import Rule, Watch
from lookout.wire import SEGMENTS, VERDICTS, WATCHES, Stage, headers, to_json
from tests.fleet.faults.footage import Piece
from tests.local_http import open_local

ROOT = Path(__file__).resolve().parents[1]
MODEL = ROOT / "libs/lookout/models/tiny"
PARTITIONS = 64
PATIENCE_S = 900.0
RECORDS = "lookout_records_total"
TRANSACTIONS = "lookout_transactions_total"
STRIDE_S, WINDOW_S = 2.0, 10.0
WALL_MS = 1_700_000_000_000


@dataclass(slots=True)
class Run:
    """One size at one pace."""

    cameras: int
    seconds: float  # of wall clock
    camera_seconds: float
    cpu_s: dict[str, float]  # by process
    rss_mb: dict[str, float]
    records: dict[str, float]  # committed, by stage
    transactions: float
    segment_bytes: int
    latencies_s: list[float] = field(default_factory=list)
    stored_bytes: dict[str, float] = field(default_factory=dict)  # by topic, on the broker's disk

    @property
    def cpu_ms(self) -> float:
        """CPU milliseconds of a camera-second, all processes."""
        return 1000 * sum(self.cpu_s.values()) / self.camera_seconds

    @property
    def capacity(self) -> float:
        """Camera-seconds a second."""
        return self.camera_seconds / self.seconds


#: services whose models are constants
CONSTANTS: dict[Stage, Sequence[str]] = {
    stage: ("bench.constant", stage.value) for stage in (Stage.PRUNE_ENCODE, Stage.PREFILL)
}


@contextmanager
def fleet(
    folder: Path, partitions: int, modules: Mapping[Stage, Sequence[str]] = CONSTANTS
) -> Iterator[Fleet]:
    """A fleet of the tiny model, or with other `modules` in place of services."""
    model = folder / "model"
    shutil.copytree(MODEL, model)
    settings = {"model_dir": str(model), "stride_s": str(STRIDE_S), "window_s": str(WINDOW_S)}
    with Fleet(
        folder / "fleet",
        partitions=partitions,
        settings=settings,
        stage_settings={Stage.DECODE: {"silence_s": "86400"}},
        modules=modules,
        python_path=ROOT,
        open_servers=True,
    ) as running:
        _watch(running.bootstrap)
        yield running


def measure(
    running: Fleet, films: Sequence[Sequence[Piece]], prefix: str, cameras: int, pace: float | None = None
) -> Run:
    """Play `cameras` once; `pace` in camera-seconds a second, None: as fast as it goes."""
    seconds = len(films[0]) * STRIDE_S
    outcomes = _Outcomes(running.bootstrap, prefix, cameras * len(films[0]))
    before, cpu_before, stored_before = _scrape(running), cpu_seconds(running), _stored(running)
    begun = time.monotonic()
    publisher = threading.Thread(
        target=_publish, args=(running.bootstrap, films, prefix, cameras, pace), daemon=True
    )
    publisher.start()
    speed = "as fast as it goes" if pace is None else f"{pace:.0f} camera-seconds a second"
    label = f"{cameras} cameras, {speed}"
    with tqdm(total=outcomes.expected, desc=label, unit="window") as bar:
        while not outcomes.done:
            bar.update(outcomes.count - bar.n)
            if time.monotonic() - begun > PATIENCE_S:
                got = f"{outcomes.count} of {outcomes.expected} outcomes"
                raise SystemExit(f"{label}: {got} in {PATIENCE_S:g} s")
            time.sleep(0.1)
        bar.update(outcomes.count - bar.n)
    took = outcomes.last_at - begun
    cpu_after, after, stored = cpu_seconds(running), _scrape(running), _stored(running)
    outcomes.close()
    return Run(
        cameras,
        took,
        cameras * seconds,
        {name: cpu_after[name] - cpu_before.get(name, 0.0) for name in cpu_after},
        {name: psutil.Process(pid).memory_info().rss / 1e6 for name, pid in running.pids().items()},
        _difference(before, after, RECORDS),
        sum(_difference(before, after, TRANSACTIONS).values()),
        sum(len(piece.data) for number in range(cameras) for piece in films[number % len(films)]),
        outcomes.latencies_s,
        {topic: size - stored_before.get(topic, 0.0) for topic, size in stored.items()},
    )


class _Outcomes:
    """Verdicts as a consumer gets them, committed only."""

    def __init__(self, bootstrap: str, prefix: str, expected: int) -> None:
        self.expected = expected
        self.count = 0
        self.last_at = 0.0
        self.latencies_s: list[float] = []
        self._prefix = prefix.encode()
        self._stop = threading.Event()
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._read, args=(bootstrap, prefix), daemon=True)
        self._thread.start()
        if not self._ready.wait(60.0):
            raise SystemExit("no consumer of verdicts within a minute")

    @property
    def done(self) -> bool:
        return self.count >= self.expected

    def close(self) -> None:
        self._stop.set()
        self._thread.join(30.0)

    def _read(self, bootstrap: str, prefix: str) -> None:
        consumer = Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": f"bench-{prefix}",
                "isolation.level": "read_committed",
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
                "log_level": 0,
            }
        )
        consumer.subscribe([VERDICTS.name], on_assign=lambda *_: self._ready.set())
        while not self._stop.is_set():
            message = consumer.poll(0.2)
            if message is None or message.error() is not None:
                continue
            if not (message.key() or b"").startswith(self._prefix):
                continue
            self.count += 1
            self.last_at = time.monotonic()
            arrived = headers.text(message.headers(), headers.ARRIVED)
            if arrived is not None:
                self.latencies_s.append(time.time() - int(arrived) / 1000)
        consumer.close()


def _publish(
    bootstrap: str, films: Sequence[Sequence[Piece]], prefix: str, cameras: int, pace: float | None
) -> None:
    """Every camera's segments in the order of their time; cameras begin spread over one stride."""
    producer = Producer(
        {"bootstrap.servers": bootstrap, "enable.idempotence": True, "linger.ms": 5, "log_level": 0}
    )
    partitions = len(producer.list_topics(SEGMENTS.name, timeout=30.0).topics[SEGMENTS.name].partitions)
    begun = time.monotonic()
    sent = 0
    for at in range(len(films[0])):
        for camera in range(cameras):
            piece = films[camera % len(films)][at]
            if pace is not None:
                time.sleep(max(0.0, begun + sent * STRIDE_S / pace - time.monotonic()))
            wall_ms = WALL_MS + round(piece.start_s * 1000)
            while True:
                try:
                    producer.produce(
                        SEGMENTS.name,
                        piece.data,
                        key=f"{prefix}{camera:04d}",
                        partition=camera % partitions,
                        headers={headers.CAPTURED_AT: str(wall_ms)},
                    )
                    break
                except BufferError:
                    producer.poll(0.1)
            producer.poll(0)
            sent += 1
    producer.flush(300.0)


def _watch(bootstrap: str) -> None:
    producer = Producer({"bootstrap.servers": bootstrap})
    rule = Rule(threshold=0.5, k=1, n=1)
    watch = Watch(id="watch-0", version=1, question="Is a person in view?", rule=rule)
    watch.active_from.FromMilliseconds(1)
    producer.produce(WATCHES.name, to_json(watch), key=watch.id)
    assert producer.flush(30.0) == 0
    time.sleep(2.0)  # the table is followed, not asked


def cpu_seconds(running: Fleet) -> dict[str, float]:
    """CPU seconds of every process and its children, those that ended included."""
    found = {}
    for name, pid in running.pids().items():
        family = [psutil.Process(pid), *psutil.Process(pid).children(recursive=True)]
        total = 0.0
        for each in family:
            with suppress(psutil.Error):
                times = each.cpu_times()
                total += times.user + times.system + times.children_user + times.children_system
        found[name] = total
    return found


def _stored(running: Fleet) -> dict[str, float]:
    """Bytes of every topic on the broker's disk."""
    found: Counter[str] = Counter()
    for folder in (running.folder / "kafka/data").iterdir():
        if folder.is_dir():
            with suppress(FileNotFoundError):  # the cleaner may take one away meanwhile
                found[folder.name.rpartition("-")[0]] += sum(
                    log.stat().st_size for log in folder.glob("*.log")
                )
    return dict(found)


def _scrape(running: Fleet) -> dict[str, dict[str, float]]:
    """Counters of every service: name of the counter, name of the service, value."""
    found: dict[str, dict[str, float]] = {RECORDS: {}, TRANSACTIONS: {}}
    for name, port in running.address.metrics.items():
        with open_local(f"http://127.0.0.1:{port}/metrics", timeout=30.0) as answer:
            text = answer.read().decode()
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                if sample.name in found and sample.labels.get("outcome", "committed") == "committed":
                    found[sample.name][name] = found[sample.name].get(name, 0.0) + sample.value
    return found


def _difference(
    before: dict[str, dict[str, float]], after: dict[str, dict[str, float]], name: str
) -> dict[str, float]:
    return {each: value - before[name].get(each, 0.0) for each, value in after[name].items()}
