"""`python -m lookout.services.controller`: copies Kubernetes resources into their topics."""

from __future__ import annotations

import signal
import sys
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

from confluent_kafka import KafkaException
from kubernetes.leaderelection import electionconfig, leaderelection

from lookout.errors import StartupError
from lookout.rules import watch_fault
from lookout.rules.notifications import notification_fault
from lookout.runtime.kafka_clients import Producer
from lookout.runtime.observe import Health, Metrics, Probes, logs
from lookout.runtime.worker import load_settings
from lookout.runtime.worker.tables import Table, tell_left_out
from lookout.services.controller.activity import ActivityFollower
from lookout.services.controller.agents import AgentReports
from lookout.services.controller.cluster import (
    API_ERRORS,
    CAMERA,
    NOTIFICATION,
    RECORDING,
    WATCH,
    Kind,
    Resources,
    connect,
    in_words,
)
from lookout.services.controller.credential import Credential
from lookout.services.controller.events import Events
from lookout.services.controller.lease import Lease
from lookout.services.controller.lost_pods import LostPods
from lookout.services.controller.metrics import resource_numbers
from lookout.services.controller.reconcile import Publish, Reconciler
from lookout.services.controller.recordings import JobAnswers, RecordingJobs
from lookout.services.controller.rounds import RoundError
from lookout.services.controller.settings import ControllerSettings
from lookout.services.controller.statuses import StatusQueue
from lookout.text import visible
from lookout.wire import CAMERAS, NOTIFICATIONS, RECORDINGS, WATCHES, headers
from lookout.wire.limits import ALL_WATCHES, NOTIFICATIONS as MOST_NOTIFICATIONS

STOPPED, FAILED, MISCONFIGURED, REPLACED = 0, 1, 2, 3
_SEND_S = 30.0
_SHORTEST_ROUND_S = 0.5
_ROUND_S = 1.0
_PODS_S = 3.0
#: DNS name of the fleet's certificate, unless the settings have another
_FLEET_NAME = "lookout.fleet.internal"
#: a process that neither finishes a round nor reads the lease for this long counts as hung; a round may wait
#: for Kafka and the Kubernetes API
_STALL_S = 300.0
#: number of cameras' reports to read per round
_REPORTS = 500
_ROUND_ERRORS = (*API_ERRORS, KafkaException, RoundError, StartupError)


class Controller:
    """The leader's work: rounds of reconciling, which changes and timers start.

    Attributes:
        leads: Whether `lead` was called. Once it was, each round is a heartbeat for the liveness probe;
            before that, each read of the lease is.
    """

    def __init__(self, settings: ControllerSettings, health: Health, metrics: Metrics) -> None:
        self._settings = settings
        self._metrics = metrics
        self._health = health
        self._wake = threading.Event()
        self._stopped = threading.Event()
        self._look_at_credential = 0.0
        self._look_at_all = 0.0
        self._look_at_pods = 0.0
        self._log = logs.get("controller")
        self.leads = False

    def stop(self) -> None:
        """Stop after the current round."""
        self._stopped.set()
        self._wake.set()

    def lead(self) -> None:
        """Reconcile until `stop`."""
        settings = self._settings
        self.leads = True
        self._health.allow(settings.start_timeout_s)
        followed, tables = _followed(settings)
        for table in tables.values():
            tell_left_out(table, self._health, self._metrics)
            table.start(settings.start_timeout_s)
        events = Events(settings.namespace)
        resources = Resources(settings.namespace, events.changed)
        producer = Producer(
            settings.kafka(**{"enable.idempotence": True}), logger=logs.client_logger("controller")
        )
        reports = AgentReports(settings)

        def publish(topic: str, key: str, value: bytes | None) -> None:
            _send(producer, tables[topic], key, value)

        activity = ActivityFollower(settings, lambda watch: reconciler.mark_news(WATCH, watch))
        reconciler = Reconciler(
            resources,
            lambda topic: tables[topic].view(),
            publish,
            activity.status,
            reports.status,
            status_s=settings.status_s,
            status_writes_s=settings.status_writes_s,
            round_s=settings.round_s,
        )

        jobs, answers = _recording_jobs(settings, resources, tables, publish, reconciler.statuses)

        def changed(kind: Kind, name: str) -> None:
            rounds = jobs if kind is RECORDING else reconciler
            rounds.mark(kind, name)
            self._wake.set()

        self._follow_activity(activity, resources)
        if settings.recordings:
            answers.start()
        for kind in followed:
            arguments = (kind, changed, self._stopped, self._tell_fault)
            threading.Thread(target=resources.follow, args=arguments, daemon=True).start()
        credential = _credential(settings)
        lost = LostPods(settings.namespace, settings.pods, events.lost_pod) if settings.pods else None
        self._health.clear("leader")
        self._log.info("leading", namespace=settings.namespace)
        while self._goes_on():
            self._read_reports(reports, resources, reconciler)
            self._round(reconciler, jobs, credential, lost)
        activity.stop()
        if settings.recordings:
            answers.stop()

    def _goes_on(self) -> bool:
        """Wait for the next round; return False after `stop`."""
        self._health.beat()
        self._stopped.wait(_SHORTEST_ROUND_S)
        self._wake.wait(_ROUND_S - _SHORTEST_ROUND_S)
        self._wake.clear()
        return not self._stopped.is_set()

    def _follow_activity(self, activity: ActivityFollower, resources: Resources) -> None:
        self._metrics.show(
            lambda: resource_numbers(resources.known(CAMERA), resources.known(WATCH), activity.unanswered_s)
        )
        activity.start()

    def _tell_fault(self, kind: Kind, why: str) -> None:
        """Report the service as not ready while the resources of a kind cannot be read. An empty `why` ends
        this.
        """
        if why:
            self._health.block(kind.plural, why[:200])
        else:
            self._health.clear(kind.plural)

    def _read_reports(self, reports: AgentReports, resources: Resources, reconciler: Reconciler) -> None:
        """Read the next agents' reports, and mark the cameras whose reports changed."""
        states, numbers = reports.read(reports.next(resources.names(CAMERA), _REPORTS))
        for name in states:
            reconciler.mark(CAMERA, name)
        for name in numbers:
            reconciler.mark_news(CAMERA, name)

    def _round(
        self,
        reconciler: Reconciler,
        jobs: RecordingJobs,
        credential: Credential | None,
        lost: LostPods | None,
    ) -> None:
        """Do a round's four tasks. A task that fails does not stop the other tasks."""
        is_full = time.monotonic() >= self._look_at_all
        if is_full:
            self._look_at_all = time.monotonic() + self._settings.resync_s
        failures = []
        attempts: dict[str, Callable[[], None]] = {
            "certificate": lambda: self._renew(credential),
            "pods of lost nodes": lambda: self._remove_lost(lost),
            "cameras, watches and notifications": reconciler.reconcile if is_full else reconciler.work_off,
            "recordings": jobs.reconcile if is_full else jobs.work_off,
        }
        for name, attempt in attempts.items():
            try:
                attempt()
            except _ROUND_ERRORS as error:
                failures.append(f"{name}: {in_words(error)}")
        if not failures:
            self._health.clear("reconcile")
            return
        self._health.block("reconcile", failures[0][:200])
        self._log.warning("a round failed; trying again", error="; ".join(failures)[:500])
        # A fixed pause without back-off, because the next change of a resource may fix the failure.
        self._stopped.wait(2.0)
        self._wake.set()

    def _remove_lost(self, lost: LostPods | None) -> None:
        if lost is not None and time.monotonic() >= self._look_at_pods:
            self._look_at_pods = time.monotonic() + _PODS_S
            lost.remove()

    def _renew(self, credential: Credential | None) -> None:
        if credential is None or time.monotonic() < self._look_at_credential:
            return
        if change := credential.ensure():
            self._log.info("the fleet's certificate was written", done=change)
        # Set only on success, so that the next round retries a failure.
        self._look_at_credential = time.monotonic() + self._settings.resync_s


def _followed(settings: ControllerSettings) -> tuple[list[Kind], dict[str, Table]]:
    """Return the kinds of resources to follow, and the tables of their topics by topic."""
    kinds = [CAMERA, WATCH]
    tables = [
        Table(settings, CAMERAS.name),
        Table(settings, WATCHES.name, check=watch_fault, limit=ALL_WATCHES),
    ]
    if settings.recordings:
        kinds.append(RECORDING)
        tables.append(Table(settings, RECORDINGS.name))
    if settings.notifications:
        kinds.append(NOTIFICATION)
        tables.append(Table(settings, NOTIFICATIONS.name, check=notification_fault, limit=MOST_NOTIFICATIONS))
    return kinds, {table.topic: table for table in tables}


def _recording_jobs(
    settings: ControllerSettings,
    resources: Resources,
    tables: Mapping[str, Table],
    publish: Publish,
    statuses: StatusQueue,
) -> tuple[RecordingJobs, JobAnswers]:
    """Make the objects that follow Recording resources and their jobs' answers."""

    def answered(job: str) -> None:
        jobs.mark_job(job)

    def request(job: str) -> bytes | None:
        requests = tables.get(RECORDINGS.name)
        return requests.newest(job) if requests is not None else None

    answers = JobAnswers(settings, answered)
    jobs = RecordingJobs(resources, request, publish, answers.status, statuses, round_s=settings.round_s)
    return jobs, answers


def _credential(settings: ControllerSettings) -> Credential | None:
    if settings.credential is None:
        return None
    return Credential(
        settings.namespace,
        settings.credential,
        settings.grpc_tls_name or _FLEET_NAME,
        settings.credential_days,
    )


def _send(producer: Producer, table: Table, key: str, value: bytes | None) -> None:
    """Write a record; return when Kafka has confirmed it and the table contains it."""
    failed: list[Any] = []
    offsets: list[int] = []

    def delivered(error: Any, message: Any) -> None:
        (failed if error is not None else offsets).append(error if error is not None else message.offset())

    owner = list(headers.encode({headers.ACTOR: headers.KUBERNETES}))
    producer.produce(table.topic, value, key=key, headers=owner, on_delivery=delivered)
    if producer.flush(_SEND_S) or failed:
        raise OSError(f"{table.topic} did not accept {key}: {failed[0] if failed else 'no answer'}")
    table.reach(offsets[0] + 1)


def main() -> int:
    """Wait for the lease, lead until SIGTERM or until the lease is lost, and return the exit code."""
    try:
        settings = load_settings(ControllerSettings)
        connect(settings.kubeconfig)
    except StartupError as error:
        sys.stderr.write(visible(f"lookout controller: {error}\n"))
        return MISCONFIGURED
    logs.setup("controller", settings.instance, settings.log_level)
    health = Health(stall_s=_STALL_S)
    health.clear("worker")
    metrics = Metrics("controller")
    probes = Probes(metrics, health, settings.metrics_port, settings.host)
    probes.start()
    controller = Controller(settings, health, metrics)
    code = [STOPPED]
    done = threading.Event()

    def stop(_number: int, _frame: Any) -> None:
        controller.stop()
        done.set()

    signal.signal(signal.SIGTERM, stop)
    signal.signal(signal.SIGINT, stop)

    def replaced() -> None:
        code[0] = REPLACED
        done.set()

    def lead() -> None:
        try:
            controller.lead()
        except StartupError as error:
            logs.get("controller").error("elected leader but cannot start", error=str(error))
            code[0] = MISCONFIGURED
            raise
        finally:
            done.set()

    def looked() -> None:
        if not controller.leads:
            health.beat()

    # A call may take a sixth of the lease, so that the two calls of a renewal that begins at its deadline
    # (2/3) end before the lease does.
    lease = Lease(settings.lease, settings.namespace, settings.instance, health, settings.lease_s / 6)
    lease.looked = looked
    election = electionconfig.Config(
        lease,
        lease_duration=settings.lease_s,
        renew_deadline=settings.lease_s * 2 // 3,
        retry_period=max(1, settings.lease_s // 6),
        onstarted_leading=lead,
        onstopped_leading=replaced,
    )
    threading.Thread(target=leaderelection.LeaderElection(election).run, name="lease", daemon=True).start()
    done.wait()
    controller.stop()
    logs.get("controller").info("stopped", code=code[0])
    return code[0]


if __name__ == "__main__":
    sys.exit(main())
