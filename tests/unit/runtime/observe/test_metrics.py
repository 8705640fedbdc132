"""Probes and metrics over HTTP."""

from __future__ import annotations

import json
import socket
import threading
import urllib.error
import urllib.request

import pytest
from prometheus_client import generate_latest

from lookout.runtime.observe import Health, Metrics, Probes
from tests.local_http import open_local


def get(port: int, path: str) -> tuple[int, str]:
    try:
        with open_local(f"http://127.0.0.1:{port}{path}") as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def test_probes_follow_health_and_metrics_are_served() -> None:
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
        accept = {"Accept": "application/openmetrics-text; version=1.0.0"}
        asked = urllib.request.Request(f"http://127.0.0.1:{probes.port}/metrics", headers=accept)
        with open_local(asked) as answer:
            assert answer.headers["Content-Type"].startswith("application/openmetrics-text")
            assert answer.read().endswith(b"# EOF\n")
    finally:
        probes.stop()


def test_a_last_number_is_read_before_the_end_where_somebody_reads() -> None:
    """A process that was fenced waits for one more read of /metrics; without a reader it does not wait."""
    metrics = Metrics("decode")
    metrics.begin(["frames"])
    probes = Probes(metrics, Health(), 0, "127.0.0.1")
    probes.start()
    waiting = threading.Thread(target=probes.wait_for_scrape, args=(600.0,), daemon=True)
    try:
        probes.wait_for_scrape(600.0)
        assert 'lookout_events_total{event="frames",stage="decode"} 0.0' in get(probes.port, "/metrics")[1]
        metrics.fenced.labels("decode").inc()
        waiting.start()
        assert waiting.is_alive()
        while waiting.is_alive():
            assert 'lookout_fenced_total{stage="decode"} 1.0' in get(probes.port, "/metrics")[1]
    finally:
        probes.stop()


def test_series_are_there_before_their_first_count() -> None:
    """`increase()` of a series that appears with its first count is 0."""
    metrics = Metrics("decode")
    metrics.begin(["frames"], ["no-keyframe"])
    text = generate_latest(metrics.registry).decode()
    for series in (
        'lookout_events_total{event="frames",stage="decode"}',
        'lookout_dead_letters_total{reason="no-keyframe",stage="decode"}',
        'lookout_retries_total{kind="device",stage="decode"}',
        'lookout_transactions_total{outcome="aborted",stage="decode"}',
        'lookout_fenced_total{stage="decode"}',
        'lookout_lost_offsets_total{stage="decode"}',
    ):
        assert f"{series} 0.0" in text


@pytest.mark.skipif(not socket.has_dualstack_ipv6(), reason="this machine has no IPv6")
@pytest.mark.parametrize(("host", "addresses"), [("0.0.0.0", ("127.0.0.1", "[::1]")), ("::1", ("[::1]",))])
def test_a_pod_is_probed_at_the_address_that_it_has(host: str, addresses: tuple[str, ...]) -> None:
    """In a cluster of IPv6 alone pods have no other one; all addresses are of both families."""
    probes = Probes(Metrics("decode"), Health(), 0, host)
    probes.start()
    try:
        for address in addresses:
            with open_local(f"http://{address}:{probes.port}/livez", timeout=10) as answer:
                assert answer.status == 200
    finally:
        probes.stop()


def test_a_proxy_of_the_environment_is_not_asked_for_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Benches and tests ask services here; with `http_proxy` set they asked a proxy, which cannot."""
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    probes = Probes(Metrics("decode"), Health(), 0)
    probes.start()
    try:
        assert get(probes.port, "/livez")[0] == 200
    finally:
        probes.stop()
