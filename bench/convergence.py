"""`python -m bench.convergence`: how a controller starts with ten thousand cameras that it does not know yet.

It runs a real API server (with custom resources only), Kafka and Redis, and the real controller without
leader election, with the chart's limits on writes. A script writes what agents would report. The resources
exist when the controller starts, as after an installation or a restore. The last line is JSON:

- `publish_s`: seconds until `cameras.v1` has every camera. `statuses_s`: seconds until every resource has a
  status.
- `peak_mib`: most memory that the process used meanwhile. `limit_mib`: its pod's limit.
- `cores`, `writes_s`: CPU cores and writes per second over the following `--seconds`, while one camera in a
  hundred fails or returns every minute.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Final

import psutil
import redis
import yaml

from lookout.local import KafkaServer, RedisServer, create_topics
from lookout.runtime.worker import ServiceSettings
from lookout.runtime.worker.tables import Table
from lookout.services.controller.cluster import CAMERA
from lookout.wire import CAMERA_REPORT, CAMERAS
from tests.api_server import NAMESPACE, ApiServer

VALUES: Final = Path(__file__).parents[1] / "charts/lookout/values.yaml"
PARTITIONS: Final = 12
AGENTS: Final = 50
ADDRESS: Final = "rtsp://192.0.2.1/stream"  # nothing lives there, and nobody connects
_REPORT_S: Final = 10.0  # between two reports of a camera
_PERIOD_S: Final = 0.5
_PATIENCE_S: Final = 3600.0


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--cameras", type=int, default=10_000)
    parser.add_argument(
        "--seconds", type=float, default=60.0, help="over which the load afterwards is measured"
    )
    options = parser.parse_args(arguments)
    names = [f"camera-{number:05d}" for number in range(options.cameras)]
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        api = stack.enter_context(ApiServer(folder))
        api.create(CAMERA, names, {"url": ADDRESS}, followed=False)
        print(f"{len(names)} cameras are resources", flush=True)
        kafka, store = stack.enter_context(KafkaServer()), stack.enter_context(RedisServer())
        create_topics(kafka.bootstrap, PARTITIONS)
        stack.enter_context(reports(store.url, names))
        environment = {
            "LOOKOUT_MODE": "local",
            "LOOKOUT_INSTANCE": "first",
            "LOOKOUT_BOOTSTRAP": kafka.bootstrap,
            "LOOKOUT_REDIS_URL": store.url,
            "LOOKOUT_NAMESPACE": NAMESPACE,
            "KUBECONFIG": str(api.kubeconfig),
        }
        settings = ServiceSettings(mode="local", instance="bench", bootstrap=kafka.bootstrap)
        table = Table(settings, CAMERAS.name)
        table.start()
        figures = first_round(api, table, environment, folder / "controller.log", options.seconds)
    print(json.dumps({"cameras": options.cameras, **figures, "limit_mib": limit_mib()}))


def first_round(
    api: ApiServer, table: Table, environment: dict[str, str], log: Path, seconds: float
) -> dict[str, float]:
    """Start a controller and wait until it has published and reported everything."""
    listing = api.list(CAMERA) or {"items": []}
    count, begun = len(listing["items"]), time.monotonic()
    with controller(environment, log) as process:

        def wait(condition: Callable[[], bool], what: str) -> float:
            while not condition():
                if not process.is_running() or time.monotonic() - begun > _PATIENCE_S:
                    raise RuntimeError(f"{what} did not happen: {log.read_text()[-800:]}")
                time.sleep(1.0)
            print(f"{what} after {time.monotonic() - begun:.0f} s", flush=True)
            return round(time.monotonic() - begun, 1)

        published = wait(lambda: len(table.view().history) >= count, "every camera is published")
        reported = wait(lambda: reported_cameras(api) >= count, "every status is written")
        peak = re.search(r"VmHWM:\s+(\d+)", Path(f"/proc/{process.pid}/status").read_text())
        assert peak is not None
        writes, busy, at = version(api), cpu_s(process), time.monotonic()
        time.sleep(seconds)
        spent = time.monotonic() - at
        return {
            "publish_s": published,
            "statuses_s": reported,
            "peak_mib": round(int(peak[1]) / 1024),
            "cores": round((cpu_s(process) - busy) / spent, 4),
            "writes_s": round((version(api) - writes) / spent, 1),
        }


@contextmanager
def controller(environment: dict[str, str], log: Path) -> Iterator[psutil.Process]:
    """The controller as its leader runs it: the API server has no leases."""
    with log.open("w") as stream:
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.fleet.alarms.services", "controller", str(log.parent)],
            env=os.environ | environment,
            stdout=stream,
            stderr=stream,
        )
        try:
            yield psutil.Process(process.pid)
        finally:
            process.terminate()
            process.wait()


@contextmanager
def reports(url: str, cameras: Sequence[str]) -> Iterator[None]:
    """A fake of the agents: each camera is reported every ten seconds; some break or come back."""
    draw, stopped, broken = random.Random(1), threading.Event(), set[str]()

    def report(client: redis.Redis, begin: int, count: int) -> None:
        now = time.time()
        with client.pipeline(transaction=False) as pipeline:
            for number in range(begin, begin + count):
                name = cameras[number % len(cameras)]
                if draw.random() < _REPORT_S / 60 / 100:
                    broken.symmetric_difference_update({name})
                fields: dict[Any, Any] = {
                    "agent": f"agent-{number % AGENTS}",
                    "state": "connecting" if name in broken else "streaming",
                    "error": "Connection refused" if name in broken else "",
                    "segments": number // len(cameras) * 3,
                    "last_ms": int(now * 1000),
                }
                pipeline.hset(CAMERA_REPORT.format(camera=name), mapping=fields)
            pipeline.execute()

    def run() -> None:
        at, count = 0, max(1, round(len(cameras) * _PERIOD_S / _REPORT_S))
        with redis.Redis.from_url(url) as client:
            while not stopped.wait(_PERIOD_S):
                report(client, at, count)
                at += count

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        stopped.set()
        thread.join()


def reported_cameras(api: ApiServer) -> int:
    """How many cameras have a status."""
    time.sleep(2.0)  # listing them all costs the server a second
    listing = api.list(CAMERA) or {"items": []}
    return sum(bool(item.get("status", {}).get("conditions")) for item in listing["items"])


def version(api: ApiServer) -> int:
    """How often anything was written to the API server's store."""
    listing = api.list(CAMERA, 1) or {}
    return int(listing["metadata"]["resourceVersion"])


def cpu_s(process: psutil.Process) -> float:
    """CPU seconds of a process so far."""
    times = process.cpu_times()
    return float(times.user + times.system)


def limit_mib() -> int:
    """Memory that the chart gives the controller's pod."""
    limit = str(yaml.safe_load(VALUES.read_text())["controller"]["resources"]["limits"]["memory"])
    return int(limit.removesuffix("Mi"))


if __name__ == "__main__":
    main()
