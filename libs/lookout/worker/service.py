"""A service: settings, checks, servers, worker, signals. A service's `__main__` is one call of `main`."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Generic, NoReturn, TypeVar

from lookout.errors import DeviceFailedError, FencedError, StartupError
from lookout.net.server import GrpcServer
from lookout.observe import logs, tracing
from lookout.observe.health import Health
from lookout.observe.metrics import Metrics, Probes
from lookout.wire import INPUT, OUTPUT, Stage, dead_letters, state_topic
from lookout.worker.offsets import Downstream
from lookout.worker.record_reader import RecordReader
from lookout.worker.records import Handler
from lookout.worker.settings import ServiceSettings, load_settings
from lookout.worker.startup import check_kafka, check_open_files, check_redis
from lookout.worker.supervision import Supervisor
from lookout.worker.tables import Check, Table, tell_left_out
from lookout.worker.transactions import Topics
from lookout.worker.worker import Worker

T = TypeVar("T", bound=ServiceSettings)

#: a process that was fenced is done: it may wait so long for its number to be read
LAST_SCRAPE_S = 60.0
STOPPED, FAILED, MISCONFIGURED, FENCED, DEVICE_FAILED = 0, 1, 2, 3, 4


@dataclass(slots=True)
class Context(Generic[T]):
    """What a service may build on; made before its handler, closed after it."""

    stage: Stage
    settings: T
    metrics: Metrics
    health: Health
    grpc: GrpcServer
    rereader: RecordReader
    probes: Probes
    supervisor: Supervisor = field(default_factory=Supervisor)
    _closers: list[Callable[[], None]] = field(default_factory=list)

    @property
    def address(self) -> str:
        """host:port at which peers reach this instance."""
        return self.settings.address(self.grpc.port)

    def table(self, topic: str, *, check: Check | None = None, limit: int | None = None) -> Table:
        """A compacted topic, read to its end and then followed.

        Rows that cannot be used are named in /readyz and counted in `lookout_left_out_rows`.

        Args:
            topic: Its name.
            check: Why a value cannot be used; None: every value can.
            limit: Most keys; None: any number.
        """
        table = Table(self.settings, topic, check=check, limit=limit)
        tell_left_out(table, self.health, self.metrics)
        table.start(self.settings.start_timeout_s, self.supervisor)
        self.on_close(table.stop)
        return table

    def downstream(self, stage: Stage, changed: Callable[[Any], None] | None = None) -> Downstream:
        """What `stage` has read of its input (its group must have its default name)."""
        watcher = Downstream(self.settings, stage.value, INPUT[stage].name, changed)
        watcher.start(self.supervisor)
        self.on_close(watcher.stop)
        return watcher

    def on_close(self, close: Callable[[], None]) -> None:
        """Called at the end, last added first."""
        self._closers.append(close)

    def close(self) -> None:
        """Undo everything."""
        while self._closers:
            self._closers.pop()()


def main(stage: Stage, kind: type[T], make_handler: Callable[[Context[T]], Handler[Any]]) -> NoReturn:
    """Run the service of `stage` and exit: 0 stopped, 1 failed, 2 misconfigured, 3 fenced by a process of the
    same name, 4 the device failed.
    """
    try:
        settings = load_settings(kind)
    except StartupError as error:
        sys.stderr.write(f"lookout {stage.value}: {error}\n")
        sys.exit(MISCONFIGURED)
    end_process(run_service(stage, settings, make_handler))


def end_process(code: int) -> NoReturn:
    """Exit, although a compute thread may still be busy: what it does can no longer count."""
    sys.stderr.flush()
    if any(not each.daemon for each in threading.enumerate() if each is not threading.main_thread()):
        os._exit(code)
    sys.exit(code)


def run_service(stage: Stage, settings: T, make_handler: Callable[[Context[T]], Handler[Any]]) -> int:
    """Check, start, work until SIGTERM or SIGINT; the exit code. Call it on the main thread."""
    logs.setup(stage.value, settings.instance, settings.log_level, settings.log_human)
    tracing.setup(stage.value, settings.instance, settings.otlp_endpoint)
    log = logs.get("service")
    context: Context[T] | None = None
    try:
        context = _open(stage, settings)
        handler = make_handler(context)
        worker = Worker(
            settings,
            stage.value,
            topics_of(stage),
            handler,
            metrics=context.metrics,
            health=context.health,
            supervisor=context.supervisor,
        )
        _serve(context)
        _on_signals(worker, log)
        log.info("started", grpc=context.address, config_digest=handler.config_digest)
        worker.run()
        log.info("stopped")
        return STOPPED
    except StartupError as error:
        log.error("cannot start", error=str(error))
        return MISCONFIGURED
    except FencedError as error:
        log.error("fenced", error=str(error))
        if context is not None:
            context.metrics.fenced.labels(stage.value).inc()
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


def topics_of(stage: Stage) -> Topics:
    """A stage's topics, from the wire's table."""
    source = INPUT[stage]
    letters = dead_letters(source)
    return Topics(source.name, state_topic(stage).name, letters.name, letters.max_message_bytes)


def _open(stage: Stage, settings: T) -> Context[T]:
    source = INPUT[stage]
    check_open_files()
    check_kafka(settings, (source, OUTPUT[stage], state_topic(stage), dead_letters(source)))
    check_redis(settings)
    metrics = Metrics(stage.value)
    health = Health(settings.stall_s)
    try:
        probes = Probes(metrics, health, settings.metrics_port, settings.host)
    except OSError as error:
        raise StartupError(f"LOOKOUT_METRICS_PORT={settings.metrics_port}: {error.strerror}") from error
    context = Context(
        stage,
        settings,
        metrics,
        health,
        GrpcServer(settings.host, settings.grpc_port, security=settings),
        RecordReader(settings),
        probes,
    )
    context.on_close(context.rereader.close)
    health.allow(settings.load_limit_s)
    probes.start()
    context.on_close(probes.stop)
    logs.get("service").info("metrics", port=probes.port)
    return context


def _serve(context: Context[T]) -> None:
    """Start gRPC; its health service follows readiness."""
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


def _on_signals(worker: Worker, log: Any) -> None:
    def stop(number: int, _frame: Any) -> None:
        log.info("stopping", signal=signal.Signals(number).name)
        worker.stop()

    signal.signal(signal.SIGTERM, stop)
    signal.signal(signal.SIGINT, stop)
