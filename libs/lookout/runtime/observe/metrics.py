"""Prometheus metrics of a stage, and the HTTP server for metrics and probes."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final
from wsgiref.simple_server import WSGIRequestHandler, make_server

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, make_wsgi_app
from prometheus_client.core import Metric
from prometheus_client.exposition import ThreadingWSGIServer
from prometheus_client.registry import Collector

from lookout.runtime.observe.health import Health

if TYPE_CHECKING:
    from wsgiref.types import StartResponse, WSGIEnvironment

#: `wait_for_scrape` waits only if a scraper's last request is at most this many seconds old
SCRAPED_WITHIN_S = 120.0
#: label values: how transactions end, and the kinds of failures that are retried
OUTCOMES: Final = ("committed", "aborted", "unknown", "failed")
FAILURES: Final = ("transient", "device", "unknown")
_SECONDS = (0.005, 0.02, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)


class _Numbers(Collector):
    """Metrics that are computed at each scrape."""

    def __init__(self, read: Callable[[], Iterable[Metric]]) -> None:
        self._read = read

    def collect(self) -> Iterable[Metric]:
        return self._read()


class Metrics:
    """The metrics of a worker. Handlers may add their own to `registry` (prefix `lookout_`)."""

    def __init__(self, stage: str) -> None:
        self.stage = stage
        self.registry = CollectorRegistry()
        self.records = self._counter("records", "input records committed")
        self.outputs = self._counter("outputs", "output records committed", "topic")
        self.dead_letters = self._counter("dead_letters", "dead letters committed", "reason")
        self.events = self._counter(
            "events", "events that handlers count; added when they are committed", "event"
        )
        self.fenced = self._counter(
            "fenced", "times that a process ended because another process had the same LOOKOUT_INSTANCE"
        )
        self.forgotten = self._counter(
            "cameras_forgotten", "cameras forgotten because they sent nothing for days"
        )
        self.unreadable = self._counter(
            "checkpoints_unreadable", "cameras started without their checkpoint, because it could not be used"
        )
        self.lost_offsets = self._counter(
            "lost_offsets", "offsets that retention removed before this stage had read them"
        )
        self.transactions = self._counter(
            "transactions", "transactions, by outcome: committed, aborted, unknown or failed", "outcome"
        )
        self.retries = self._counter(
            "retries", "retries, by kind of failure: transient, device or unknown", "kind"
        )
        self.takeovers = self._counter("takeovers", "partitions taken over")
        self.handle_seconds = self._histogram(
            "handle_seconds", "seconds that the handler took for one record"
        )
        self.busy_seconds = self._counter(
            "busy_seconds", "seconds spent computing, summed over the computations that run in parallel"
        )
        self.slots = self._gauge("compute_slots", "computations that this process can run in parallel")
        self.commit_seconds = self._histogram("commit_seconds", "duration of a transaction in seconds")
        self.wait_seconds = self._histogram("wait_seconds", "seconds from reading a record to its commit")
        self.latency_seconds = self._histogram(
            "latency_seconds", "seconds from a segment's arrival in Kafka to this stage's commit"
        )
        self.lag = self._gauge("lag_records", "records not yet committed by this stage", "partition")
        self.lag_seconds = self._gauge(
            "lag_seconds",
            "age in seconds of the oldest record not yet committed by this stage",
            "partition",
        )
        self.in_flight = self._gauge("in_flight_records", "records read but not yet committed")
        self.in_flight_bytes = self._gauge("in_flight_bytes", "bytes read but not yet committed")
        self.partitions = self._gauge("partitions", "partitions assigned to this process")
        self.cameras = self._gauge("cameras", "cameras with a checkpoint in this process's partitions")
        self.taking_over = self._gauge(
            "takeovers_waiting", "partitions assigned to this process that it has not taken over yet"
        )
        self.paused = self._gauge("paused_partitions", "partitions paused because too much is in flight")
        self.left_out = self._gauge(
            "left_out_rows",
            "records of a compacted topic that are skipped because they cannot be used",
            "topic",
        )
        self.ready = self._gauge("ready", "1 if the service is ready, otherwise 0")

    def begin(self, events: Iterable[str], reasons: Iterable[str] = ()) -> None:
        """Create the series of everything that may be counted, so that the first count shows as an increase.

        Args:
            events: Values of the `event` label of `events`.
            reasons: Values of the `reason` label of `dead_letters`.
        """
        self.fenced.labels(self.stage)
        self.forgotten.labels(self.stage)
        self.unreadable.labels(self.stage)
        self.lost_offsets.labels(self.stage)
        for event in events:
            self.events.labels(self.stage, event)
        for reason in reasons:
            self.dead_letters.labels(self.stage, reason)
        for outcome in OUTCOMES:
            self.transactions.labels(self.stage, outcome)
        for kind in FAILURES:
            self.retries.labels(self.stage, kind)

    def computing(self, slots: int = 1) -> Callable[[float], None]:
        """Return a function that adds a computation's seconds to the sum of computing time.

        Autoscaling divides the sum by the slots, which gives the stage's load in pods.

        Args:
            slots: Number of computations that this process can run at a time.
        """
        self.slots.labels(self.stage).set(slots)
        return self.busy_seconds.labels(self.stage).inc

    def partition_gone(self, number: int) -> None:
        """Drop a partition's series, because another process owns the partition now."""
        for gauge in (self.lag, self.lag_seconds):
            with suppress(KeyError):
                gauge.remove(self.stage, str(number))

    def show(self, read: Callable[[], Iterable[Metric]]) -> None:
        """Also expose the metrics that `read` returns, which is called at each scrape."""
        self.registry.register(_Numbers(read))

    def _counter(self, name: str, text: str, *labels: str) -> Counter:
        return Counter(f"lookout_{name}", text, ("stage", *labels), registry=self.registry)

    def _gauge(self, name: str, text: str, *labels: str) -> Gauge:
        return Gauge(f"lookout_{name}", text, ("stage", *labels), registry=self.registry)

    def _histogram(self, name: str, text: str, *labels: str) -> Histogram:
        return Histogram(
            f"lookout_{name}", text, ("stage", *labels), registry=self.registry, buckets=_SECONDS
        )


_ALL = "0.0.0.0"


class Probes:
    """HTTP server on `host:port` for /metrics, /livez and /readyz.

    Port 0: any free port. Host 0.0.0.0: all addresses, IPv6 included.
    """

    def __init__(self, metrics: Metrics, health: Health, port: int, host: str = "0.0.0.0") -> None:
        self._scraped = threading.Condition()
        self._begun, self._answered, self._scraped_at = 0, 0, float("-inf")
        self._metrics, self._health = metrics, health
        self._exposition = make_wsgi_app(metrics.registry)
        kind = _Ipv6Server if ":" in host or (host == _ALL and socket.has_dualstack_ipv6()) else _Ipv4Server
        self._server = make_server(host, port, self._answer, kind, _SilentHandler)
        self.port: int = self._server.server_address[1]
        self._thread = threading.Thread(target=self._server.serve_forever, name="probes", daemon=True)

    def start(self) -> None:
        """Serve on a separate thread."""
        self._thread.start()

    def wait_for_scrape(self, seconds: float) -> None:
        """Wait until /metrics is scraped once more, for at most `seconds`; return at once if nobody scrapes
        it.
        """
        with self._scraped:
            if time.monotonic() - self._scraped_at > SCRAPED_WITHIN_S:
                return
            before = self._begun
            self._scraped.wait_for(lambda: self._answered > before, seconds)

    def stop(self) -> None:
        """Close the port."""
        self._server.shutdown()
        self._server.server_close()

    def _answer(self, request: WSGIEnvironment, start: StartResponse) -> Iterable[bytes]:
        match request["PATH_INFO"]:
            case "/metrics":
                return self._scrape(request, start)
            case "/livez":
                alive = self._health.alive()
                text = "alive\n" if alive else "the polling thread hangs\n"
                return _text(start, 200 if alive else 503, text)
            case "/readyz":
                ready = self._health.ready()
                state = {"ready": ready, "waiting_for": self._health.blockers(), **self._health.notes()}
                return _text(start, 200 if ready else 503, json.dumps(state), "application/json")
            case _:
                return _text(start, 404, "/metrics, /livez or /readyz\n")

    def _scrape(self, request: WSGIEnvironment, start: StartResponse) -> Iterator[bytes]:
        """Answer a scrape of /metrics. The scrape counts once its answer is sent, which is when WSGI asks for
        the next part.
        """
        with self._scraped:
            self._begun, self._scraped_at = self._begun + 1, time.monotonic()
            number = self._begun
        self._metrics.ready.labels(self._metrics.stage).set(self._health.ready())
        yield from self._exposition(request, start)
        with self._scraped:
            self._answered = max(self._answered, number)
            self._scraped.notify_all()


def _text(start: StartResponse, code: int, text: str, kind: str = "text/plain") -> list[bytes]:
    body = text.encode()
    start(
        f"{code} {HTTPStatus(code).phrase}",
        [("Content-Type", kind), ("Content-Length", str(len(body)))],
    )
    return [body]


class _Ipv4Server(ThreadingWSGIServer):
    address_family = socket.AF_INET


class _Ipv6Server(ThreadingWSGIServer):
    """Listens on IPv4 and IPv6 if the host is 0.0.0.0, as gRPC does, because a pod may have only an IPv6
    address.
    """

    address_family = socket.AF_INET6

    def server_bind(self) -> None:
        if self.server_address[0] == _ALL:
            self.socket.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
            self.server_address = ("::", self.server_address[1])
        super().server_bind()


class _SilentHandler(WSGIRequestHandler):
    def log_message(self, format: str, *args: Any) -> None:
        """Log nothing, because probes are too frequent."""
