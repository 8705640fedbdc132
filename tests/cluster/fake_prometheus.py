"""A fake Prometheus over a simulated stage.

``python -m tests.cluster.fake_prometheus SPEED PORT LOADS NAMESPACE/STATEFULSET OUT``.
Load and backlog are simulated, SPEED times faster than real time; the pods are those that Kubernetes says are
ready. A line of OUT is one step of the autoscaler's clock: pods wanted, pods ready, simulated seconds of lag.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlparse

from kubernetes import client, config

from tests.unit.charts.test_autoscaling import STEP_S, TWOFOLD, VALUES, Stage


def main() -> None:
    """Serve until the loads are over."""
    speed, port, loads, target, out = sys.argv[1:]
    stage = Stage()
    config.load_kube_config()
    apps = client.AppsV1Api()
    server = ThreadingHTTPServer(("", int(port)), _handler(stage))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    pause = STEP_S / float(speed)
    begun = time.monotonic()
    with Path(out).open("w") as lines:
        for step, load in enumerate(json.loads(Path(loads).read_text())):
            wanted, stage.pods = _pods(apps, target)
            stage.work(load)
            lines.write(json.dumps([wanted, stage.pods, round(stage.lag_s, 2)]) + "\n")
            lines.flush()
            time.sleep(max(0.0, begun + (step + 1) * pause - time.monotonic()))
    server.shutdown()


def _pods(apps: client.AppsV1Api, target: str) -> tuple[int, int]:
    """Pods that a StatefulSet of `namespace/name` wants, and those that are ready."""
    namespace, name = target.split("/")
    stateful_set = apps.read_namespaced_stateful_set(name, namespace)
    return stateful_set.spec.replicas, stateful_set.status.ready_replicas or 0


def _handler(stage: Stage) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            query = parse_qs(urlparse(self.path).query).get("query", [""])[0]
            sample: dict[str, Any] = {"metric": {}, "value": [time.time(), str(answer(stage, query))]}
            data = {"resultType": "vector", "result": [sample]}
            body = json.dumps({"status": "success", "data": data}).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Nobody reads it."""

    return Handler


def answer(stage: Stage, query: str) -> float:
    """What Prometheus would answer to one of the chart's queries.

    Raises:
        ValueError: The chart asks something else.
    """
    if "lookout_busy_seconds_total" in query:
        return sum(stage.busy) / max(len(stage.busy), 1)
    if "lookout_lag_seconds" in query:
        return min(stage.lag_s / VALUES["lagSeconds"], TWOFOLD)
    raise ValueError(query)


if __name__ == "__main__":
    main()
