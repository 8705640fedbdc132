"""The fleet whose rules are tried: every service of the chart, a real Kafka, Redis and API server."""

from __future__ import annotations

import itertools
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Final

from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource
from prometheus_client.parser import text_string_to_metric_families

from lookout.local import Fleet, Service
from lookout.models import TINY
from lookout.v1.watches_pb2 import Rule, Watch
from lookout.wire import SEGMENTS, WATCHES, Stage, to_json
from tests.api_server import NAMESPACE, ApiServer
from tests.eventually import eventually
from tests.fleet.alarms.replay import NAMESPACE as RELEASE, Scrape
from tests.fleet.faults.footage import Piece, pieces
from tests.local_http import open_local

ROOT = Path(__file__).resolve().parents[3]
CAMERAS: Final = ("cam-0", "cam-1")
#: bytes that a camera may send in a minute: many times what those of the film do
QUOTA_BYTES: Final = 4 << 20
SMALL_TENANT: Final = "small"
#: seconds between two scrapes
RECORDED_S: Final = 2
_STRIDE_S, _FILM_S = 2.0, 120
_MODULE = "tests.fleet.alarms.services"


class World:
    """A running fleet with everything that has a rule, and what the faults need of it.

    Args:
        stack: Ends it.
        folder: Of all its files.
        metrics: The metrics that are recorded.
    """

    def __init__(self, stack: ExitStack, folder: Path, metrics: set[str]) -> None:
        self.folder, self._metrics = folder, metrics
        self.tier = folder / "tier"
        self.api = stack.enter_context(ApiServer(_made(folder / "api")))
        common = {
            "model_dir": str(TINY),
            "stride_s": str(_STRIDE_S),
            "window_s": "10",
            "session_timeout_s": "15",
        }
        quotas = {"tenant_quotas": json.dumps({SMALL_TENANT: {"bytes": 1000}})}
        tier = {"memory_url": str(_made(self.tier))}
        self.fleet = stack.enter_context(
            Fleet(
                folder / "fleet",
                partitions=2,
                settings=common,
                stage_settings={
                    Stage.DECODE: {"silence_s": "86400", "quota_bytes": str(QUOTA_BYTES), **quotas},
                    Stage.PREFILL: {"memory_chapter_s": "6", **tier},
                    "recall": tier,
                    "recordings": {"ahead": "2"},
                },
                modules={Stage.PREFILL: (_MODULE, "prefill", str(folder))},
                python_path=ROOT,
                open_servers=True,
                memory="2h",
                recordings=[_made(folder / "recordings")],
                gateway=True,
                cameras=True,
                notifications=True,
            )
        )
        environment = {
            **self.service("alerts")._environment,
            "LOOKOUT_NAMESPACE": NAMESPACE,
            "KUBECONFIG": str(self.api.kubeconfig),
        }
        controller = Service(
            "controller", self.fleet.folder, environment, module=(_MODULE, "controller", str(folder))
        )
        self.fleet.services.append(controller)
        controller.start()
        eventually(controller.ready)
        self.producer = Producer({"bootstrap.servers": self.fleet.bootstrap, "message.max.bytes": 17 << 20})
        self.admin = AdminClient({"bootstrap.servers": self.fleet.bootstrap})
        self.film = {
            camera: pieces(camera, number, _FILM_S, _STRIDE_S) for number, camera in enumerate(CAMERAS)
        }
        rule = Rule(threshold=0.5, k=1, n=1)
        watch = Watch(id="person", version=1, question="Is a person in view?", rule=rule)
        self.send(WATCHES.name, watch.id, to_json(watch))
        self._ended = threading.Event()
        player = threading.Thread(target=self._play)
        player.start()
        stack.callback(player.join)
        stack.callback(self._ended.set)

    def service(self, stage: str) -> Service:
        """The process of a stage."""
        (found,) = (service for service in self.fleet.services if service.stage == stage)
        return found

    def send(self, topic: str, key: str, value: bytes | None, **more: Any) -> None:
        """Write one record, and wait until Kafka has it."""
        self.producer.produce(topic, value, key=key, **more)
        assert self.producer.flush(120.0) == 0

    def record(self, seconds: float) -> list[Scrape]:
        """Scrapes of all services, every few seconds; dead services are started again meanwhile."""
        scrapes = []
        deadline = time.monotonic() + seconds
        while True:
            due = time.monotonic() + RECORDED_S
            scrapes.append(self.scrape())
            while time.monotonic() < due:
                self.fleet.supervise()
                time.sleep(0.1)
            if time.monotonic() >= deadline:
                return scrapes

    def recorded_until(self, true: Callable[[], object], more_s: float = 0.0) -> list[Scrape]:
        """Scrapes until something is true; with `more_s` only those of so many seconds from then on.

        What is repeated of a fault that lasts must not begin with a fleet that is still well.
        """
        scrapes: list[Scrape] = []
        deadline = time.monotonic() + 240.0
        while not true():
            if time.monotonic() > deadline:
                raise AssertionError(f"never came true: {true}")
            scrapes += self.record(0.0)
        return self.record(more_s) if more_s else [*scrapes, *self.record(0.0)]

    def scrape(self) -> Scrape:
        """What every service says, with the labels that Prometheus adds."""
        found: dict[str, float] = {}
        for service in self.fleet.services:
            if service.pid is None:
                continue
            try:
                with open_local(f"http://127.0.0.1:{service.metrics_port}/metrics", timeout=10.0) as answer:
                    text = answer.read().decode()
            except OSError:
                continue
            for family in text_string_to_metric_families(text):
                for sample in family.samples:
                    if sample.name in self._metrics:
                        labels = {"namespace": RELEASE, "pod": service.name, **sample.labels}
                        inside = ",".join(f'{name}="{value}"' for name, value in sorted(labels.items()))
                        found[f"{sample.name}{{{inside}}}"] = sample.value
        return found

    def value(self, metric: str, **labels: str) -> float:
        """The sum of a metric over all series with these labels."""
        wanted = [f'{name}="{value}"' for name, value in labels.items()]
        return sum(
            value
            for name, value in self.scrape().items()
            if name.startswith(f"{metric}{{") and all(label in name for label in wanted)
        )

    def settled(self) -> bool:
        """Whether every service is ready, and the pipeline as a whole is not behind.

        The lags of its stages add up: after a burst each was below 15 s, and answers still came after 31 s.
        """
        self.fleet.supervise()
        if not all(service.ready() for service in self.fleet.services):
            return False
        worst: dict[str, float] = {}
        for name, value in self.scrape().items():
            if name.startswith("lookout_lag_seconds{"):
                stage = name.partition('stage="')[2].partition('"')[0]
                worst[stage] = max(value, worst.get(stage, 0.0))
        return sum(worst.values()) < 15.0

    @contextmanager
    def stopped(self, stage: str) -> Iterator[Service]:
        """A stage without its process, which is started again at the end."""
        service = self.service(stage)
        service.stop(20.0)
        self.fleet.services.remove(service)  # nobody starts it again
        try:
            yield service
        finally:
            self.fleet.services.append(service)
            service.start()

    @contextmanager
    def slow(self, stage: str) -> Iterator[None]:
        """A stage whose process has a twentieth of its time."""
        pid = self.service(stage).pid
        assert pid is not None
        ended = threading.Event()

        def throttle() -> None:
            while not ended.is_set():
                os.kill(pid, signal.SIGSTOP)
                ended.wait(1.9)
                os.kill(pid, signal.SIGCONT)
                ended.wait(0.1)

        thread = threading.Thread(target=throttle)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()

    @contextmanager
    def tier_away(self) -> Iterator[None]:
        """The durable tier cannot be written or read: where its folder was is a file."""
        kept = self.tier.rename(self.folder / "kept")
        self.tier.touch()
        try:
            yield
        finally:
            self.tier.unlink()
            kept.rename(self.tier)

    @contextmanager
    def limited(self, topic: str, size: int) -> Iterator[None]:
        """A topic that takes no record above a size."""
        (before,) = self.admin.describe_configs([ConfigResource(ConfigResource.Type.TOPIC, topic)]).values()
        limit = before.result()["max.message.bytes"].value
        self._configure(topic, str(size))
        try:
            yield
        finally:
            self._configure(topic, limit)

    def _configure(self, topic: str, size: str) -> None:
        entry = ConfigEntry("max.message.bytes", size, incremental_operation=AlterConfigOpType.SET)
        resource = ConfigResource(ConfigResource.Type.TOPIC, topic, incremental_configs=[entry])
        self.admin.incremental_alter_configs([resource])[resource].result()

    def forget(self, topic: str) -> None:
        """Delete all records of a topic, as retention does."""
        parts = [TopicPartition(topic, number, -1) for number in range(2)]  # -1: all there are
        for future in self.admin.delete_records(parts).values():
            future.result()

    def rows(self, topic: str) -> list[tuple[int, bytes]]:
        """Partition and key of each record of a topic."""
        consumer = Consumer({"bootstrap.servers": self.fleet.bootstrap, "group.id": "alarms"})
        consumer.assign([TopicPartition(topic, number, 0) for number in range(2)])
        found = []
        while (message := consumer.poll(3.0)) is not None:
            if message.error() is None:
                found.append((message.partition(), message.key()))
        consumer.close()
        return found

    def command(self, *words: str) -> str:
        """What the command line says, whatever its exit code."""
        environment = {
            **os.environ,
            "LOOKOUT_GRPC_TOKEN_FILE": str(self.fleet.folder / "grpc-token"),
            "LOOKOUT_KAFKA": self.fleet.bootstrap,
            "LOOKOUT_RECEIPT_KEY": str(self.folder / "receipt.pem"),
        }
        command = [sys.executable, "-m", "lookout.cli", *words]
        done = subprocess.run(command, env=environment, check=False, capture_output=True, text=True)
        return done.stdout + done.stderr

    def _play(self) -> None:
        """Cameras of a film that begins again and again."""
        begun = time.monotonic()
        for number in itertools.count():
            for camera in CAMERAS:
                piece = self.piece(camera, number)
                self.producer.produce(SEGMENTS.name, piece.data, key=camera)
            self.producer.poll(0)
            if self._ended.wait(max(0.0, begun + (number + 1) * _STRIDE_S - time.monotonic())):
                return

    def piece(self, camera: str, number: int) -> Piece:
        """A segment of a camera's film."""
        return self.film[camera][number % len(self.film[camera])]


def _made(folder: Path) -> Path:
    folder.mkdir(parents=True)
    return folder
