"""Runs a service: settings, checks, servers, worker and signals. A service's `__main__` only calls `main` or
`serve`."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, NoReturn, TypeVar

from lookout.errors import DeviceFailedError, FencedError, StartupError
from lookout.runtime.net.server import GrpcServer
from lookout.runtime.observe import logs, tracing
from lookout.runtime.observe.health import Health
from lookout.runtime.observe.metrics import Metrics, Probes
from lookout.runtime.worker.offsets import Downstream
from lookout.runtime.worker.record_reader import RecordReader
from lookout.runtime.worker.records import Handler
from lookout.runtime.worker.settings import ServiceSettings, load_settings
from lookout.runtime.worker.startup import check_kafka, check_open_files, check_redis
from lookout.runtime.worker.supervision import Supervisor
from lookout.runtime.worker.tables import KEPT, Check, Table, tell_left_out
from lookout.runtime.worker.transactions import Topics
from lookout.runtime.worker.worker import Worker
from lookout.text import visible
from lookout.wire import PIPELINE, Flow, Stage, Topic

T = TypeVar("T", bound=ServiceSettings)

#: seconds that a fenced process waits for its metrics to be scraped before it ends
LAST_SCRAPE_S = 60.0
_BEAT_S = 1.0
STOPPED, FAILED, MISCONFIGURED, FENCED, DEVICE_FAILED = 0, 1, 2, 3, 4


@dataclass(slots=True)
class Context(Generic[T]):
    """What a service may use. It is created before the handler, and closed after it.

    Attributes:
        name: Name of the service.
        settings: The service's settings.
        metrics: Metrics of this process.
        health: Health of this process, as reported in /livez and /readyz.
        grpc: gRPC server of this process.
        rereader: Reads records again.
        probes: Server of /livez, /readyz and /metrics.
        partitions: Number of partitions of the pipeline's topics; 0 for a service that only answers calls.
        supervisor: Starts threads, and ends the process when one of them dies.
    """

    name: str
    settings: T
    metrics: Metrics
    health: Health
    grpc: GrpcServer
    rereader: RecordReader
    probes: Probes
    partitions: int = 0
    supervisor: Supervisor = field(default_factory=Supervisor)
    _closers: list[Callable[[], None]] = field(default_factory=list)

    @property
    def address(self) -> str:
        """host:port at which peers reach this instance's gRPC server."""
        return self.settings.address(self.grpc.port)

    def table(
        self,
        topic: str,
        *,
        check: Check | None = None,
        limit: int | None = None,
        kept: int = KEPT,
        deletion_fault: str = "",
    ) -> Table:
        """Read a compacted topic to its end, follow it, and return its table.

        Unusable rows are listed in /readyz and counted in `lookout_left_out_rows`.

        Args:
            topic: Name of the topic.
            check: Returns why a value is unusable, or None if it is usable. None: every value is usable.
            limit: Maximum number of keys; None: any number.
            kept: Number of each key's newest values to keep.
            deletion_fault: Why rows of this table cannot be deleted; a null value is then unusable for this
                reason. Empty: a null value deletes its row.
        """
        table = Table(
            self.settings, topic, check=check, limit=limit, kept=kept, deletion_fault=deletion_fault
        )
        tell_left_out(table, self.health, self.metrics)
        table.start(self.settings.start_timeout_s, self.supervisor)
        self.on_close(table.stop)
        return table

    def downstream(self, reader: Flow | Stage, changed: Callable[[Any], None] | None = None) -> Downstream:
        """Follow the committed offsets of a service in its input topic. The service's group must have its
        default name."""
        flow = flow_of(reader)
        watcher = Downstream(self.settings, flow.group, flow.source.name, changed)
        watcher.start(self.supervisor)
        self.on_close(watcher.stop)
        return watcher

    def on_close(self, close: Callable[[], None]) -> None:
        """Call `close` when the context closes. Functions are called in reverse order."""
        self._closers.append(close)

    def close(self) -> None:
        """Call everything that `on_close` registered."""
        while self._closers:
            self._closers.pop()()


MakeHandler = Callable[[Context[T]], Handler[Any]]


def main(service: Flow | Stage, kind: type[T], make_handler: MakeHandler[T]) -> NoReturn:
    """Run a service that processes records, then exit.

    Exit codes: 0 stopped, 1 failed, 2 misconfigured, 3 fenced by a process with the same name, 4 the device
    failed.

    Args:
        service: The topics that it reads and writes, such as `Flow("recorder", VERDICTS)`, or a stage of the
            pipeline.
        kind: The class of the service's settings.
        make_handler: Builds the service's handler.
    """
    flow = flow_of(service)
    _exit(flow.name, kind, lambda settings: run_service(flow, settings, make_handler))


def serve(name: str, kind: type[T], add: Callable[[Context[T]], object]) -> NoReturn:
    """Run a service that only answers gRPC calls, then exit as `main` does.

    Args:
        name: The service's name.
        kind: The class of the service's settings.
        add: Adds the service's servicers to `context.grpc`, and registers what it opens with
            `context.on_close`.
    """
    _exit(name, kind, lambda settings: run_calls(name, settings, add))


def _exit(name: str, kind: type[T], run: Callable[[T], int]) -> NoReturn:
    try:
        settings = load_settings(kind)
    except StartupError as error:
        sys.stderr.write(visible(f"lookout {name}: {error}\n"))
        sys.exit(MISCONFIGURED)
    end_process(run(settings))


def end_process(code: int) -> NoReturn:
    """Exit, even if a compute thread is still running, because its work is discarded."""
    sys.stderr.flush()
    if any(not thread.daemon for thread in threading.enumerate() if thread is not threading.main_thread()):
        # `sys.exit` would wait for the compute pool's threads, even for one that hangs in a call into C.
        os._exit(code)
    sys.exit(code)


def run_service(service: Flow | Stage, settings: T, make_handler: MakeHandler[T]) -> int:
    """Run checks, start, and work until SIGTERM or SIGINT; return the exit code. Call it on the main
    thread."""
    flow = flow_of(service)

    def work(context: Context[T]) -> None:
        begun = time.monotonic()
        handler = make_handler(context)
        worker = Worker(
            settings,
            flow.name,
            topics_of(flow),
            handler,
            metrics=context.metrics,
            health=context.health,
            supervisor=context.supervisor,
            load_s=time.monotonic() - begun,
        )
        _serve(context)
        log = logs.get("service")
        _on_signals(worker.stop, log)
        log.info("started", grpc=context.address, config_digest=handler.config_digest)
        worker.run()

    return _run(flow.name, settings, flow.topics, work)


def run_calls(name: str, settings: T, add: Callable[[Context[T]], object]) -> int:
    """Run checks, start, and answer calls until SIGTERM or SIGINT; return the exit code. Call it on the main
    thread."""

    def work(context: Context[T]) -> None:
        add(context)
        stopped = threading.Event()
        _serve(context)
        log = logs.get("service")
        _on_signals(stopped.set, log)
        context.health.beat()
        context.health.clear("worker")
        log.info("started", grpc=context.address)
        while not stopped.wait(_BEAT_S):
            context.supervisor.check()
            context.health.beat()
        context.health.block("worker", "stopping")

    return _run(name, settings, (), work)


def _run(name: str, settings: T, topics: Sequence[Topic], work: Callable[[Context[T]], None]) -> int:
    logs.setup(name, settings.instance, settings.log_level)
    tracing.setup(name, settings.instance, settings.otlp_endpoint)
    log = logs.get("service")
    context: Context[T] | None = None
    try:
        # Start the probes before the model is loaded, because Kubernetes kills a process whose /livez does
        # not answer.
        context = _open(name, settings, topics)
        work(context)
        log.info("stopped")
        return STOPPED
    except StartupError as error:
        log.error(f"cannot start: {error}", advice=True)
        return MISCONFIGURED
    except FencedError as error:
        log.error("fenced", error=str(error))
        if context is not None:
            context.metrics.fenced.labels(name).inc()
            context.health.block("worker", "fenced: it ends after the next read of /metrics")
            context.probes.wait_for_scrape(LAST_SCRAPE_S)
        return FENCED
    except DeviceFailedError as error:
        log.error("the device failed", error=str(error))
        return DEVICE_FAILED
    except Exception:
        log.exception("failed")
        return FAILED
    finally:
        if context is not None:
            context.close()


def flow_of(service: Flow | Stage) -> Flow:
    """Return the topics that a service reads and writes."""
    return service if isinstance(service, Flow) else PIPELINE[service]


def topics_of(flow: Flow) -> Topics:
    """Return the names of a service's topics."""
    letters = flow.dead_letters
    return Topics(flow.source.name, flow.state.name, letters.name, letters.max_message_bytes)


def _open(name: str, settings: T, topics: Sequence[Topic]) -> Context[T]:
    check_open_files()
    partitions = check_kafka(settings, topics) if topics else 0
    check_redis(settings)
    metrics = Metrics(name)
    health = Health(settings.stall_s)
    try:
        probes = Probes(metrics, health, settings.metrics_port, settings.host)
    except OSError as error:
        raise StartupError(f"LOOKOUT_METRICS_PORT={settings.metrics_port}: {error.strerror}") from error
    context = Context(
        name,
        settings,
        metrics,
        health,
        GrpcServer(settings.host, settings.grpc_port, security=settings),
        RecordReader(settings),
        probes,
        partitions,
    )
    context.on_close(context.rereader.close)
    health.allow(settings.load_limit_s)
    probes.start()
    context.on_close(probes.stop)
    logs.get("service").info("metrics", port=probes.port)
    return context


def _serve(context: Context[T]) -> None:
    """Start gRPC, and keep its health service in step with readiness."""
    context.grpc.start()
    context.on_close(context.grpc.stop)
    stopped = threading.Event()

    def follow() -> None:
        before: bool | None = None
        while not stopped.wait(0.2):
            if (ready := context.health.ready()) != before:
                context.grpc.serving(ready)
                before = ready

    context.supervisor.start("readiness", follow)
    context.on_close(stopped.set)


def _on_signals(stop: Callable[[], object], log: Any) -> None:
    def stopping(number: int, _frame: Any) -> None:
        log.info("stopping", signal=signal.Signals(number).name)
        stop()

    signal.signal(signal.SIGTERM, stopping)
    signal.signal(signal.SIGINT, stopping)
