"""A real Apache Kafka with one node on this machine, for tests, the demo and `lookout up`."""

from __future__ import annotations

import contextlib
import logging
import socket
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from confluent_kafka import KafkaException

from lookout.disk import private_folder, replace_file
from lookout.local.formatting import META, format_data
from lookout.local.jars import kafka_class_path
from lookout.local.java import Java, find_java
from lookout.local.passwords import CLIENTS, INTERNAL, KafkaAccounts
from lookout.local.processes import Child, LocalError, PortTakenError, free_ports
from lookout.local.server import HOST, LocalServer
from lookout.local.startup_cache import startup_cache, write_startup_cache
from lookout.runtime.kafka_clients import AdminClient

_START_S = 120.0
_WRITE_S = 240.0  # time limit for writing Java's cache, which takes seconds on an idle machine
_FENCE_S = 10.0  # time limit for noticing that a broker is gone, which takes a second, or more under load
_QUIET = logging.getLogger("lookout.local.kafka")
_QUIET.addHandler(logging.NullHandler())
_QUIET.propagate = False

# A single node needs the replication settings. The session timeout is long, so that a starved broker is not
# taken for dead; after a kill, `_end_session` ends the session. Quick transaction expiry lets tests see
# abandoned transactions. An idle broker should cost little, so it rarely cleans and sends heartbeats.
_PROPERTIES = {
    "process.roles": "broker,controller",
    "node.id": "1",
    "controller.listener.names": "CONTROLLER",
    "offsets.topic.replication.factor": "1",
    "offsets.topic.num.partitions": "4",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "transaction.state.log.num.partitions": "4",
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "500",
    "group.initial.rebalance.delay.ms": "0",
    "group.min.session.timeout.ms": "1000",
    "auto.create.topics.enable": "false",
    "broker.session.timeout.ms": "30000",
    "broker.heartbeat.interval.ms": "500",
    "log.cleaner.backoff.ms": "5000",
    "metadata.max.idle.interval.ms": "5000",
    # Kafka's default of 128 MiB would be half of this broker's heap.
    "log.cleaner.dedupe.buffer.size": "16777216",
}


@dataclass(frozen=True, slots=True)
class KafkaListener:
    """An additional address of a broker. It listens at `port` on every interface; clients connect to
    `advertised`.
    """

    name: str
    port: int
    advertised: str


class KafkaServer(LocalServer):
    """A broker that can be started, stopped, killed and started again on the same data and address.

    Args:
        folder: Folder for data and log; None: a temporary folder that `close` removes.
        port: The client port; None: a free port.
        properties: Broker properties that are added to the defaults or replace them.
        listeners: Ports of additional listeners by name; `properties` must say how they are secured.
        heap_mb: Size of the Java heap; 256 MB suffices for messages of 16 MB.
        java_options: Java options in addition to the usual ones.
        outside: Addresses for clients on other machines, without encryption.
        passwords: Whether every client must know the password in the folder (`accounts`); not possible with
            additional listeners.
    """

    name = "Kafka"

    def __init__(
        self,
        folder: Path | None = None,
        *,
        port: int | None = None,
        properties: Mapping[str, str] | None = None,
        listeners: Mapping[str, int] | None = None,
        outside: Sequence[KafkaListener] = (),
        heap_mb: int = 256,
        java_options: Sequence[str] = (),
        passwords: bool = False,
    ) -> None:
        super().__init__(folder, port=port)
        if passwords and (listeners or outside):
            raise ValueError("passwords work only with listeners on this machine: give no others")
        self.accounts = KafkaAccounts(self.folder) if passwords else None
        self._java_options = tuple(java_options)
        self._properties = dict(properties or {})
        self._listeners = dict(listeners or {})
        self._outside = tuple(outside)
        self._heap_mb = heap_mb
        self._internal_port = 0

    @property
    def bootstrap(self) -> str:
        """The address for clients; it does not change after the first start."""
        return f"{HOST}:{self.port}"

    @property
    def _data(self) -> Path:
        return self.folder / "data"

    @property
    def _meta(self) -> Path:
        return self._data / META

    def _launch(self) -> Child:
        if self.accounts is not None:
            self.accounts.renew()
            (self._internal_port,) = free_ports(1, HOST)
        config = self._write_config()
        if not self._meta.is_file():
            self._format(config)
        elif not (self._data / ".kafka_cleanshutdown").is_file():
            self._end_session()
        java, *options = self._jvm
        return Child([java, *self._java_options, *options, "kafka.Kafka", str(config)], self.log)

    @cached_property
    def _jvm(self) -> list[str]:
        """Return the command that starts Java. Java is looked up once, so a restart needs nothing else."""
        return _jvm(find_java(), self.folder / "tmp", self._heap_mb)

    def _end_session(self) -> None:
        """Start the controller alone until it has recorded that the killed broker is gone.

        Without this, a broker restarts with metadata that says it still leads its partitions. It begins to
        complete its open transactions, and only then learns that it leads no partition. Kafka up to 4.3
        (KRaftMetadataCache, leader -1) then treats the transactions' partitions as deleted and skips the
        commit markers, so committed transactions stay open for ever.
        """
        config = self._write_config(
            "fence.properties",
            {
                "process.roles": "controller",
                "broker.session.timeout.ms": "300",
                "metadata.max.idle.interval.ms": "50",
            },
        )
        log = self.folder / "fence.log"
        log.unlink(missing_ok=True)
        controller = Child([*self._jvm, "-Dlog4j2.level=INFO", "kafka.Kafka", str(config)], log)
        try:
            if _await_line(controller, "Becoming the active controller", _START_S):
                # This line is absent if the broker was killed before it began.
                _await_line(controller, "Fencing broker", _FENCE_S)
                # The log mentions the change before the metadata contains it.
                self._await_metadata(controller)
            if not controller.alive:
                raise _why_it_died(controller)
        finally:
            controller.stop()

    def _await_metadata(self, controller: Child) -> None:
        """Wait for four more writes to the metadata log; an idle controller writes once per interval."""
        writes = 4
        deadline = time.monotonic() + _START_S
        size = self._metadata_bytes()
        while writes > 0 and controller.alive and time.monotonic() < deadline:
            time.sleep(0.02)
            if (now := self._metadata_bytes()) != size:
                writes, size = writes - 1, now

    def _metadata_bytes(self) -> int:
        return sum(log.stat().st_size for log in (self._data / "__cluster_metadata-0").glob("*.log"))

    def _format(self, config: Path) -> None:
        def run(cluster: str) -> None:
            process = subprocess.run(
                [*self._jvm, "kafka.tools.StorageTool", "format", "-t", cluster, "-c", str(config)],
                capture_output=True,
                text=True,
                check=False,
            )
            if process.returncode:
                raise LocalError(
                    f"cannot prepare Kafka's folder {self.folder}: {process.stderr or process.stdout}"
                )

        node = {**_PROPERTIES, **self._properties}["node.id"]
        format_data(self._data, node, run)

    def _write_config(self, name: str = "server.properties", more: Mapping[str, str] | None = None) -> Path:
        private_folder(self.folder / "tmp")
        (controller,) = free_ports(1, HOST)
        properties = {
            **_PROPERTIES,
            "controller.quorum.voters": f"1@{HOST}:{controller}",
            "log.dirs": str(self._data),
            **(self.accounts.broker_properties() if self.accounts else {}),
            **self._properties,
            **(more or {}),
        }
        clients: dict[str, int] = {}
        if "broker" in properties["process.roles"]:
            clients = self._client_listeners()
            properties["advertised.listeners"] = _listed(clients)
        properties["listeners"] = _listed({"CONTROLLER": controller, **clients})
        if clients and self._outside:
            _listen_outside(properties, self._outside, ("CONTROLLER", *clients))
        path = self.folder / name
        replace_file(path, "".join(f"{name}={value}\n" for name, value in properties.items()).encode())
        return path

    def _client_listeners(self) -> dict[str, int]:
        if self.accounts is not None:
            return {CLIENTS: self.port, INTERNAL: self._internal_port}
        return {"PLAINTEXT": self.port, **self._listeners}

    def _await_ready(self, child: Child) -> None:
        deadline = time.monotonic() + _START_S
        if self.accounts is None:
            self._await_answer(child, self.port, {}, deadline)
            return
        admin = self._await_answer(child, self._internal_port, self.accounts.internal_login(), deadline)
        try:
            self.accounts.open_to_clients(admin)
        except KafkaException as error:
            raise LocalError(f"Kafka did not accept its clients' password: {error.args[0].str()}") from error
        # The broker confirms a password shortly before applying it.
        self._await_answer(child, self.port, self.accounts.login(), deadline)
        self.accounts.write_properties(self.bootstrap)

    def _await_answer(
        self, child: Child, port: int, login: Mapping[str, str], deadline: float
    ) -> AdminClient:
        facts = dict(line.split("=", 1) for line in self._meta.read_text().splitlines() if "=" in line)
        options = {
            "bootstrap.servers": f"{HOST}:{port}",
            "log_level": 0,
            "reconnect.backoff.max.ms": 200,
            **login,
        }
        admin: AdminClient | None = None
        while time.monotonic() < deadline:
            if not child.alive:
                raise _why_it_died(child)
            if not _accepts(port):
                time.sleep(0.05)
                continue
            admin = admin or AdminClient(options, logger=_QUIET)
            # The cluster id proves that this broker answers, and not another broker that took the port.
            with contextlib.suppress(KafkaException):
                if admin.list_topics(timeout=2.0).cluster_id == facts["cluster.id"]:
                    return admin
        raise LocalError(f"Kafka did not answer on {HOST}:{port} within {_START_S:.0f} s:\n{child.tail()}")


def _why_it_died(child: Child) -> LocalError:
    lines = child.tail(40)
    if "Address already in use" in lines or "BindException" in lines:
        return PortTakenError("Kafka lost a port to another process while it was starting")
    return LocalError(f"Kafka ended with code {child.exit_code} while starting; the end of its log:\n{lines}")


def _await_line(child: Child, words: str, patience: float) -> bool:
    """Wait for a line that contains `words` in the log. Return whether it appeared before the process ended
    or the time was over.
    """
    deadline = time.monotonic() + patience
    while time.monotonic() < deadline and child.alive:
        if words in child.log.read_text(errors="replace"):
            return True
        time.sleep(0.05)
    return False


def quicken_broker() -> None:
    """Write Java's startup cache for the broker unless it exists; worthwhile if many brokers will be
    started.
    """

    def run(options: list[str]) -> None:
        with KafkaServer(java_options=options) as server:
            server.stop(_WRITE_S)  # Java writes the cache when the broker ends

    write_startup_cache(find_java(), run)


def _jvm(java: Java, scratch: Path, heap_mb: int) -> list[str]:
    cache = startup_cache(java)
    return [
        str(java.path),
        f"-Xmx{heap_mb}m",
        # With one garbage-collector thread and only the fast compiler, a small broker starts twice as fast.
        "-XX:+UseSerialGC",
        "-XX:TieredStopAtLevel=1",
        "-XX:-UsePerfData",
        f"-Djava.io.tmpdir={scratch}",
        "-Dlog4j2.level=WARN",
        *(["--sun-misc-unsafe-memory-access=allow"] if java.major >= 23 else []),
        *([f"-XX:AOTCache={cache}", "-Xlog:aot=off", "-Xlog:cds=off"] if cache is not None else []),
        "-cp",
        kafka_class_path(),
    ]


def _listed(listeners: Mapping[str, int]) -> str:
    return ",".join(f"{name}://{HOST}:{port}" for name, port in listeners.items())


def _listen_outside(properties: dict[str, str], outside: Sequence[KafkaListener], own: Sequence[str]) -> None:
    """Add listeners for clients on other machines; the broker's own listeners stay on this machine."""
    for listener in outside:
        properties["listeners"] += f",{listener.name}://0.0.0.0:{listener.port}"
        properties["advertised.listeners"] += f",{listener.name}://{listener.advertised}"
    properties["inter.broker.listener.name"] = "PLAINTEXT"
    protocols = ",".join(f"{name}:PLAINTEXT" for name in (*own, *(listener.name for listener in outside)))
    properties.setdefault("listener.security.protocol.map", protocols)


def _accepts(port: int) -> bool:
    try:
        socket.create_connection((HOST, port), 1.0).close()
    except OSError:
        return False
    return True
