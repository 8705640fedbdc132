"""A real single-node Apache Kafka for one machine: tests, the demo, `lookout up`."""

from __future__ import annotations

import contextlib
import logging
import socket
import subprocess
import time
import uuid
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from lookout.local.jars import kafka_class_path
from lookout.local.java import Java, find_java
from lookout.local.processes import Child, LocalError, PortTakenError, free_ports
from lookout.local.server import HOST, LocalServer

_START_S = 120.0
_QUIET = logging.getLogger("lookout.local.kafka")
_QUIET.addHandler(logging.NullHandler())
_QUIET.propagate = False

# One node needs the replication settings; short sessions let a killed broker come back in two seconds instead
# of twelve; quick cleaning and transaction expiry let tests see compaction and abandoned transactions.
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
    "broker.session.timeout.ms": "1500",
    "broker.heartbeat.interval.ms": "300",
    "log.cleaner.backoff.ms": "200",
    "log.cleaner.dedupe.buffer.size": "16777216",
}


class KafkaServer(LocalServer):
    """A broker that can be started, stopped, killed and started again on the same data and the same address.

    Args:
        folder: where its data and log live; a temporary folder, removed by `close`, if not given.
        port: the client port; a free one if not given.
        properties: broker properties added to (or replacing) the defaults.
        heap_mb: the Java heap; 256 MB serves 16 MB messages.
    """

    name = "Kafka"

    def __init__(
        self,
        folder: Path | None = None,
        *,
        port: int | None = None,
        properties: Mapping[str, str] | None = None,
        heap_mb: int = 256,
    ) -> None:
        super().__init__(folder, port=port)
        self._properties = dict(properties or {})
        self._heap_mb = heap_mb

    @property
    def bootstrap(self) -> str:
        """The address for clients; fixed from the first start on."""
        return f"{HOST}:{self.port}"

    @property
    def _meta(self) -> Path:
        return self.folder / "data" / "meta.properties"

    def _launch(self) -> Child:
        config = self._write_config()
        if not self._meta.is_file():
            self._format(self._jvm, config)
        return Child([*self._jvm, "kafka.Kafka", str(config)], self.log)

    @cached_property
    def _jvm(self) -> list[str]:
        """How Java is called; looked up once, so that a restart needs nothing but the broker itself."""
        java = find_java()
        flags = _jvm_flags(java, self.folder / "tmp", self._heap_mb)
        return [str(java.path), *flags, "-cp", kafka_class_path()]

    def _format(self, jvm: Sequence[str], config: Path) -> None:
        # A random base64 id may start with '-', which the tool takes for an option.
        cluster_id = "L" + uuid.uuid4().hex[:21]
        done = subprocess.run(
            [*jvm, "kafka.tools.StorageTool", "format", "-t", cluster_id, "-c", str(config)],
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            raise LocalError(f"cannot prepare Kafka's folder {self.folder}: {done.stderr or done.stdout}")

    def _write_config(self) -> Path:
        (self.folder / "tmp").mkdir(parents=True, exist_ok=True)
        (controller,) = free_ports(1, HOST)
        properties = {
            **_PROPERTIES,
            "controller.quorum.voters": f"1@{HOST}:{controller}",
            "listeners": f"PLAINTEXT://{HOST}:{self.port},CONTROLLER://{HOST}:{controller}",
            "advertised.listeners": f"PLAINTEXT://{HOST}:{self.port}",
            "log.dirs": str(self.folder / "data"),
            **self._properties,
        }
        path = self.folder / "server.properties"
        path.write_text("".join(f"{name}={value}\n" for name, value in properties.items()))
        return path

    def _await_ready(self, child: Child) -> None:
        facts = dict(line.split("=", 1) for line in self._meta.read_text().splitlines() if "=" in line)
        deadline = time.monotonic() + _START_S
        admin: AdminClient | None = None
        while time.monotonic() < deadline:
            if not child.alive:
                raise _why_it_died(child)
            if not _accepts(self.port):
                time.sleep(0.05)
                continue
            admin = admin or AdminClient({"bootstrap.servers": self.bootstrap, "log_level": 0}, logger=_QUIET)
            # The cluster id proves that this broker answers, and not another one on a port it just lost.
            with contextlib.suppress(KafkaException):
                if admin.list_topics(timeout=2.0).cluster_id == facts["cluster.id"]:
                    return
        raise LocalError(f"Kafka did not answer on {self.bootstrap} within {_START_S:.0f} s:\n{child.tail()}")


def _why_it_died(child: Child) -> LocalError:
    said = child.tail(40)
    if "Address already in use" in said or "BindException" in said:
        return PortTakenError("Kafka lost a port to another process while it was starting")
    return LocalError(f"Kafka ended with code {child.exit_code} while starting; its log ends:\n{said}")


def _jvm_flags(java: Java, scratch: Path, heap_mb: int) -> list[str]:
    return [
        f"-Xmx{heap_mb}m",
        # One collector thread and the quick compiler only: a broker this small starts twice as fast.
        "-XX:+UseSerialGC",
        "-XX:TieredStopAtLevel=1",
        "-XX:-UsePerfData",
        f"-Djava.io.tmpdir={scratch}",
        "-Dlog4j2.level=WARN",
        *(["--sun-misc-unsafe-memory-access=allow"] if java.major >= 23 else []),
    ]


def _accepts(port: int) -> bool:
    try:
        socket.create_connection((HOST, port), 1.0).close()
    except OSError:
        return False
    return True
