"""Probes and metrics over HTTP."""

from __future__ import annotations

import json
import urllib.error
import urllib.request

from lookout.runtime import (
    Health,
    Metrics,
    Probes,
)


def get(port: int, path: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}") as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def test_probes_and_metrics() -> None:
    health, metrics = Health(), Metrics("decode")
    metrics.records.labels("decode").inc(3)
    probes = Probes(metrics, health, 0, "127.0.0.1")
    probes.start()
    try:
        assert get(probes.port, "/livez")[0] == 200
        code, text = get(probes.port, "/readyz")
        assert (code, json.loads(text)["waiting_for"]) == (503, {"worker": "starting"})
        health.clear("worker")
        assert get(probes.port, "/readyz")[0] == 200
        text = get(probes.port, "/metrics")[1]
        assert 'lookout_records_total{stage="decode"} 3.0' in text
        assert 'lookout_ready{stage="decode"} 1.0' in text
        assert get(probes.port, "/other")[0] == 404
    finally:
        probes.stop()
