"""`python -m bench.fleet`: what the fleet costs without a model, at 10, 100 and 1 000 cameras.

A real Kafka, Redis and four services; the vision tower and the engine are constants that say so
(`bench.constant`). Each size has a fleet of its own, which is warm before it is measured: as fast as it
goes (CPU, records and transactions a second, capacity), then at half that pace (latency). Where the cameras
of a size are soon played, more of them are, so many at a time, until there is enough to measure. Ends with
one line of JSON; `flat` is the CPU of a camera-second with the most cameras over that with the fewest.

What each run measured is kept in `--out`. With `--resume` runs that are there are not made again, so that the
sizes can be measured one call at a time.
"""

from __future__ import annotations

import argparse
import json
import logging
import shutil
import statistics
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import psutil
from confluent_kafka import Consumer, Producer
from prometheus_client.parser import text_string_to_metric_families
from tqdm import tqdm

from lookout.local import Fleet
from lookout.v1.watches_pb2 import Rule, Watch
from lookout.wire import SEGMENTS, VERDICTS, WATCHES, Stage, headers, to_json
from tests.fleet.faults.footage import Piece, pieces
from tests.local_http import open_local

ROOT = Path(__file__).resolve().parents[1]
MODEL = ROOT / "libs/lookout/models/tiny"
PARTITIONS = 64
STRIDE_S, WINDOW_S = 2.0, 10.0
FILMS = 8  # different ones; cameras share them
WALL_MS = 1_700_000_000_000
PATIENCE_S = 900.0
#: camera-seconds before a fleet counts as warm (a Java virtual machine compiles while it works), and at least
#: measured
WARM, ENOUGH = 2000.0, 2000.0
#: camera-seconds at half pace, at most: enough verdicts for a 95th percentile
PACED = 4000.0
#: counters that are told per second and core
RECORDS = "lookout_records_total"
TRANSACTIONS = "lookout_transactions_total"


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


def together(runs: Sequence[Run]) -> Run:
    """Runs of one size as one."""

    def added(values: Iterable[dict[str, float]]) -> dict[str, float]:
        total: Counter[str] = Counter()
        for each in values:
            total.update(each)
        return dict(total)

    return Run(
        runs[0].cameras,
        sum(each.seconds for each in runs),
        sum(each.camera_seconds for each in runs),
        added(each.cpu_s for each in runs),
        runs[-1].rss_mb,
        added(each.records for each in runs),
        sum(each.transactions for each in runs),
        sum(each.segment_bytes for each in runs),
        [latency for each in runs for latency in each.latencies_s],
        added(each.stored_bytes for each in runs),
    )


def repeated(
    running: Fleet,
    films: Sequence[Sequence[Piece]],
    name: str,
    cameras: int,
    *,
    at_least: float,
    pace: float | None = None,
) -> Run:
    """Play `cameras` again under other names until there are `at_least` camera-seconds."""
    runs: list[Run] = []
    while sum(each.camera_seconds for each in runs) < at_least:
        runs.append(measure(running, films, f"{name}-{len(runs)}-", cameras, pace))
    return together(runs)


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


def report(fast: Run, paced: Run | None) -> dict[str, Any]:
    """What one size comes to."""
    latencies = sorted(paced.latencies_s) if paced is not None else []
    return {
        "cpu_ms": round(fast.cpu_ms, 2),
        "latency_ms": [
            round(1000 * statistics.median(latencies)),
            round(1000 * latencies[int(0.95 * (len(latencies) - 1))]),
        ]
        if latencies
        else None,
        "transactions_s": round((paced or fast).transactions / (paced or fast).seconds, 1),
        "capacity": round(fast.capacity, 1),
        "cpu_ms_by_process": {
            name: round(1000 * cpu / fast.camera_seconds, 2) for name, cpu in sorted(fast.cpu_s.items())
        },
        "records_s_core": {
            name: round(count / fast.cpu_s[name], 1)
            for name, count in sorted(fast.records.items())
            if fast.cpu_s.get(name)
        },
        "rss_mb": {name: round(each) for name, each in sorted(fast.rss_mb.items())},
        "cameras_a_core": {
            name: round(fast.camera_seconds / cpu) for name, cpu in sorted(fast.cpu_s.items()) if cpu
        },
        "stored_bytes_a_camera_second": {
            topic: round(size / fast.camera_seconds)
            for topic, size in sorted(fast.stored_bytes.items())
            if size >= fast.camera_seconds
        },
        "segment_bytes_a_camera_second": round(fast.segment_bytes / fast.camera_seconds),
    }


@dataclass(frozen=True, slots=True)
class Kept:
    """The runs of one size as files in a folder."""

    folder: Path

    def read(self, name: str) -> Run | None:
        path = self.folder / f"{name}.json"
        return Run(**json.loads(path.read_text())) if path.exists() else None

    def write(self, name: str, run: Run) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        (self.folder / f"{name}.json").write_text(json.dumps(asdict(run)))

    def forget(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)


def _one_size(
    cameras: int, films: Sequence[Sequence[Piece]], partitions: int, kept: Kept, *, latency: bool
) -> tuple[Run, Run | None]:
    """The runs of one size that are not kept yet, on a fleet of its own."""
    fast, paced = kept.read("fast"), kept.read("paced")
    with (
        tempfile.TemporaryDirectory(prefix="lookout-bench-") as scratch,
        fleet(Path(scratch), partitions) as running,
    ):
        repeated(running, films, "warm", min(100, cameras), at_least=WARM)
        if fast is None:
            fast = repeated(running, films, "fast", cameras, at_least=ENOUGH)
            kept.write("fast", fast)
        if paced is None and latency:
            short = [film[: max(2, int(PACED / STRIDE_S / cameras))] for film in films]
            paced = repeated(running, short, "paced", cameras, at_least=ENOUGH / 2, pace=fast.capacity / 2)
            kept.write("paced", paced)
    return fast, paced


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--cameras", type=int, nargs="+", default=[10, 100, 1000])
    parser.add_argument("--seconds", type=int, default=20, help="of video of a camera")
    parser.add_argument("--partitions", type=int, default=PARTITIONS)
    parser.add_argument("--no-latency", action="store_true", help="leave the runs at half pace out")
    parser.add_argument("--out", type=Path, default=ROOT / "out/bench-fleet", help="folder of the results")
    parser.add_argument("--resume", action="store_true", help="keep the results that are there")
    given = parser.parse_args()
    logging.disable(logging.CRITICAL)
    films = [pieces("film", seed, given.seconds, STRIDE_S) for seed in range(FILMS)]
    found: dict[str, dict[str, Any]] = {}
    for cameras in given.cameras:
        kept = Kept(given.out / f"{cameras}-cameras-{given.seconds}-s-{given.partitions}-partitions")
        if not given.resume:
            kept.forget()
        fast, paced = kept.read("fast"), kept.read("paced")
        if fast is None or (paced is None and not given.no_latency):
            fast, paced = _one_size(cameras, films, given.partitions, kept, latency=not given.no_latency)
        found[str(cameras)] = report(fast, paced)
        sys.stderr.write(f"{cameras} cameras: {json.dumps(found[str(cameras)])}\n")
    costs = [found[str(cameras)]["cpu_ms"] for cameras in given.cameras]
    short = {
        cameras: {name: each[name] for name in ("cpu_ms", "latency_ms", "transactions_s")}
        for cameras, each in found.items()
    }
    sys.stdout.write(json.dumps({"cameras": short, "flat": round(costs[-1] / costs[0], 2)}) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
