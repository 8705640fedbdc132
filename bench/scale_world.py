"""What `bench.scale` measures in: a real API server, Kafka and Redis, and what plays the rest of the fleet.

Agents and verdicts of ten thousand cameras are written by a script (`FakeAgents`, `FakeVerdicts`); controller
and agent that are measured are the services.
"""

from __future__ import annotations

import json
import random
import subprocess
import sys
import tempfile
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Self

import psutil
import redis
import urllib3
import yaml
from confluent_kafka import Producer

from lookout.local import KafkaServer, RedisServer, create_topics
from lookout.services.camera_agent.leases import AGENTS, REPORT
from lookout.services.controller.cluster import CAMERA, FINALIZER, GROUP, VERSION, WATCH, Kind
from lookout.services.controller.convert import camera as camera_record
from lookout.v1.verdicts_pb2 import Verdict
from lookout.wire import CAMERAS, VERDICTS, to_json
from tests.cluster.tools import build_api_server

ROOT = Path(__file__).parents[1]
CRDS = ROOT / "charts/lookout/crds"
NAMESPACE = "cameras"
PARTITIONS = 12
#: no camera lives there, and the agent that is measured may not go there
ADDRESS, ELSEWHERE = "rtsp://192.0.2.1/stream", "198.51.100.0/24"
_PATIENCE_S = 600.0
_THREADS = 8
_PERIOD_S = 0.5  # of what plays the fleet


class ApiServer:
    """Kubernetes' API server for custom resources alone, with Lookout's definitions."""

    def __init__(self, folder: Path) -> None:
        self._log = (folder / "api.log").open("w")
        self._process = subprocess.Popen(
            [str(build_api_server()), str(folder)], stdout=subprocess.PIPE, stderr=self._log, text=True
        )
        assert self._process.stdout is not None
        self.url = self._process.stdout.readline().strip()
        authority = str(folder / "apiserver.crt")
        self._http = urllib3.PoolManager(
            maxsize=_THREADS,
            ca_certs=authority,
            retries=urllib3.Retry(5, backoff_factor=0.5, status_forcelist=[429]),
        )
        for definition in _definitions():
            self._ask("POST", "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", definition)
        self.kubeconfig = folder / "kubeconfig"
        named = {"cluster": "api", "user": "anybody", "namespace": NAMESPACE}
        cluster = {"server": self.url, "certificate-authority": authority}
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "api",
            "contexts": [{"name": "api", "context": named}],
            "clusters": [{"name": "api", "cluster": cluster}],
            "users": [{"name": "anybody", "user": {}}],
        }
        self.kubeconfig.write_text(json.dumps(config))
        for kind in (CAMERA, WATCH):
            until(lambda kind=kind: self.list(kind, 1) is not None, f"resources {kind.plural}")  # type: ignore[misc]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        self._process.wait()
        assert self._process.stdout is not None
        self._process.stdout.close()
        self._http.clear()
        self._log.close()

    def create(self, kind: Kind, names: Sequence[str], spec: Mapping[str, Any]) -> list[dict[str, Any]]:
        """Create resources as the controller leaves them: with its finalizer."""

        def one(name: str) -> dict[str, Any]:
            body = {
                "apiVersion": f"{GROUP}/{VERSION}",
                "kind": kind.name,
                "metadata": {"name": name, "finalizers": [FINALIZER]},
                "spec": dict(spec),
            }
            return self._ask("POST", _path(kind), body)

        with ThreadPoolExecutor(_THREADS) as pool:
            return list(pool.map(one, names))

    def list(self, kind: Kind, limit: int = 0) -> dict[str, Any] | None:
        """Resources of a kind; None while the server does not know the kind yet."""
        try:
            return self._ask("GET", f"{_path(kind)}?limit={limit}")
        except OSError:
            return None

    def writes(self) -> int:
        """How often anything was written to the store."""
        listing = self._ask("GET", f"{_path(WATCH)}?limit=1")
        return int(listing["metadata"]["resourceVersion"])

    def _ask(self, method: str, path: str, body: Any = None) -> dict[str, Any]:
        answer = self._http.request(method, self.url + path, json=body, timeout=30.0)
        if answer.status >= 300:
            raise OSError(f"{method} {path}: {answer.status} {answer.data[:300]!r}")
        body: dict[str, Any] = answer.json()
        return body


def _definitions() -> list[Any]:
    return [yaml.safe_load(path.read_text()) for path in sorted(CRDS.glob("*.yaml"))]


def _path(kind: Kind) -> str:
    return f"/apis/{GROUP}/{VERSION}/namespaces/{NAMESPACE}/{kind.plural}"


class Player(ABC):
    """A part of the fleet that a script plays, on a thread of its own."""

    def __init__(self) -> None:
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopped.set()
        self._thread.join()

    @abstractmethod
    def turn(self) -> None:
        """What is done every half second."""

    def _run(self) -> None:
        while not self._stopped.wait(_PERIOD_S):
            self.turn()


class FakeAgents(Player):
    """A fake of the agents: they live, and each camera is reported once a lease of ten seconds.

    A camera in a hundred breaks or comes back every minute.
    """

    def __init__(self, client: redis.Redis, agents: int, cameras: Sequence[str] = ()) -> None:
        super().__init__()
        self._client, self._agents, self._cameras = client, agents, cameras
        self._draw, self._at, self._segments = random.Random(1), 0, 0
        self._broken: set[str] = set()

    def turn(self) -> None:
        """The agents live, and a part of the cameras is reported."""
        now = time.time()
        self._client.zadd(AGENTS, {f"agent-{number}": now for number in range(1, self._agents)})
        count = max(1, round(len(self._cameras) * _PERIOD_S / 10)) if self._cameras else 0
        with self._client.pipeline(transaction=False) as pipeline:
            for number in range(self._at, self._at + count):
                name = self._cameras[number % len(self._cameras)]
                if self._draw.random() < 1 / 600:
                    self._broken ^= {name}
                fields: dict[Any, Any] = {
                    "agent": f"agent-{number % self._agents}",
                    "state": "connecting" if name in self._broken else "streaming",
                    "error": "Connection refused" if name in self._broken else "",
                    "segments": number // len(self._cameras) * 3,
                    "last_ms": int(now * 1000),
                }
                pipeline.hset(REPORT.format(camera=name), mapping=fields)
            pipeline.execute()
        self._at += count


class FakeVerdicts(Player):
    """A fake of prefill: a verdict of each camera every `every_s` seconds, on one of the watches."""

    def __init__(
        self, settings: Mapping[str, Any], cameras: Sequence[str], watches: Sequence[str], every_s: float
    ) -> None:
        super().__init__()
        self._producer = Producer(dict(settings))
        self._cameras, self._every_s, self._at = cameras, every_s, 0
        verdict = Verdict(camera="CAMERA", watch="WATCH", outcome=Verdict.OUTCOME_ANSWERED, p_yes=0.1)
        verdict.watch_version = int(time.time()) + 10
        verdict.rule.threshold, verdict.model_digest = 0.5, "0" * 64
        verdict.end.GetCurrentTime()
        text = to_json(verdict).decode()
        self._texts = [text.replace("WATCH", name) for name in watches]

    def turn(self) -> None:
        """Write the verdicts of half a second."""
        for number in range(self._at, self._at + round(len(self._cameras) * _PERIOD_S / self._every_s)):
            camera = self._cameras[number % len(self._cameras)]
            text = self._texts[number % len(self._texts)].replace("CAMERA", camera)
            self._producer.produce(VERDICTS.name, text.encode(), key=camera)
            self._producer.poll(0)
        self._at = number + 1


class World:
    """The servers, and services on them."""

    def __init__(self, cameras: int, watches: int) -> None:
        self._stack = ExitStack()
        enter = self._stack.enter_context
        try:
            self.folder = Path(enter(tempfile.TemporaryDirectory()))
            self.api = enter(ApiServer(self.folder))
            self.kafka = enter(KafkaServer())
            self.redis = enter(RedisServer())
            self.client = enter(redis.Redis.from_url(self.redis.url))
            create_topics(self.kafka.bootstrap, PARTITIONS)
            self.cameras = [f"camera-{number:05d}" for number in range(cameras)]
            self.watches = [f"watch-{number:03d}" for number in range(watches)]
            self._fill()
        except BaseException:
            self._stack.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def _fill(self) -> None:
        """Create all resources, and write the records that the controller would write for cameras."""
        resources = self.api.create(CAMERA, self.cameras, {"url": ADDRESS})
        self.api.create(WATCH, self.watches, {"question": "Is anyone lying on the ground?"})
        producer = Producer({"bootstrap.servers": self.kafka.bootstrap})
        for resource in resources:
            record = camera_record(resource)
            producer.produce(CAMERAS.name, to_json(record), key=record.id)
            producer.poll(0)
        if producer.flush(60.0):
            raise OSError("Kafka did not take the cameras")

    def service(self, module: str, instance: str, **settings: str) -> Service:
        """Start a service on these servers; its `with` block ends it."""
        environment = {
            "LOOKOUT_MODE": "local",
            "LOOKOUT_HOST": "127.0.0.1",
            "LOOKOUT_INSTANCE": instance,
            "LOOKOUT_BOOTSTRAP": self.kafka.bootstrap,
            "LOOKOUT_REDIS_URL": self.redis.url,
            "KUBECONFIG": str(self.api.kubeconfig),
            "PATH": "/usr/bin:/bin",
            **{f"LOOKOUT_{name.upper()}": value for name, value in settings.items()},
        }
        return Service(module, environment, self.folder / f"{instance}.log")


class Service:
    """A running service."""

    def __init__(self, module: str, environment: Mapping[str, str], log: Path) -> None:
        self.log = log
        with log.open("w") as stream:
            self._process = subprocess.Popen(
                [sys.executable, "-m", module], env=dict(environment), stdout=stream, stderr=stream
            )
        self._usage = psutil.Process(self._process.pid)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        self._process.wait()

    def cpu_s(self) -> float:
        """CPU seconds so far, its children's included.

        Raises:
            OSError: It has ended; the message holds the end of its log.
        """
        if (code := self._process.poll()) is not None:
            raise OSError(f"the service ended with code {code}: {self.log.read_text()[-800:]}")
        times = self._usage.cpu_times()
        return times.user + times.system + times.children_user + times.children_system

    def cores(self, seconds: float) -> float:
        """CPU cores used over so many seconds from now."""
        begun, before = time.monotonic(), self.cpu_s()
        time.sleep(seconds)
        return (self.cpu_s() - before) / (time.monotonic() - begun)


def until(condition: Callable[[], bool], what: str, patience_s: float = _PATIENCE_S) -> None:
    """Wait for a condition.

    Raises:
        TimeoutError: It does not come.
    """
    deadline = time.monotonic() + patience_s
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"{what}: nothing after {patience_s:g} s")
        time.sleep(0.5)
