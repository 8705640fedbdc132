"""One of three brokers, run inside the try-out image: format once, then become Kafka.

Environment: NODE_ID, POD_IP, SERVICE (headless service of the brokers), USERS (a folder for each user, with
the files username and password), CERTIFICATE (PEM file with key and chain; ca.crt of the clients' authority
lies beside it).
"""

import os
import subprocess
from pathlib import Path

from lookout.local.jars import kafka_class_path
from lookout.local.java import find_java

DATA = Path("/data")
CLUSTER_ID = "LookoutTestCluster00AA"
BROKERS = 3


def main() -> None:
    """Write the configuration, format the folder the first time, run."""
    node, service = int(os.environ["NODE_ID"]), os.environ["SERVICE"]
    name = os.environ["HOSTNAME"].rpartition("-")[0]
    hosts = [f"{name}-{number}.{service}" for number in range(BROKERS)]
    listeners = {
        "CONTROLLER": ("9091", None, "PLAINTEXT"),
        "BROKERS": ("9092", hosts[node], "PLAINTEXT"),
        "CLIENTS": ("9093", hosts[node], "SASL_SSL"),
        "OUTSIDE": ("9094", os.environ["POD_IP"], "PLAINTEXT"),
    }
    properties = {
        "process.roles": "broker,controller",
        "node.id": str(node),
        "controller.quorum.voters": ",".join(f"{number}@{host}:9091" for number, host in enumerate(hosts)),
        "controller.listener.names": "CONTROLLER",
        "inter.broker.listener.name": "BROKERS",
        "listeners": ",".join(f"{each}://0.0.0.0:{port}" for each, (port, _, _) in listeners.items()),
        "advertised.listeners": ",".join(
            f"{each}://{host}:{port}" for each, (port, host, _) in listeners.items() if host
        ),
        "listener.security.protocol.map": ",".join(
            f"{each}:{protocol}" for each, (_, _, protocol) in listeners.items()
        ),
        "sasl.enabled.mechanisms": "SCRAM-SHA-512",
        "listener.name.clients.scram-sha-512.sasl.jaas.config": (
            "org.apache.kafka.common.security.scram.ScramLoginModule required;"
        ),
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": os.environ["CERTIFICATE"],
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": str(Path(os.environ["CERTIFICATE"]).with_name("ca.crt")),
        "listener.name.clients.ssl.client.auth": "required",
        "log.dirs": str(DATA / "log"),
        "auto.create.topics.enable": "false",
        "default.replication.factor": "3",
        "min.insync.replicas": "2",
        "offsets.topic.replication.factor": "3",
        "offsets.topic.num.partitions": "4",
        "transaction.state.log.replication.factor": "3",
        "transaction.state.log.min.isr": "2",
        "transaction.state.log.num.partitions": "4",
        "group.initial.rebalance.delay.ms": "0",
        "message.max.bytes": "17825792",
    }
    config = DATA / "server.properties"
    config.write_text("".join(f"{key}={value}\n" for key, value in properties.items()))
    java = [str(find_java().path), "-Xmx320m", "-XX:+UseSerialGC", "-Djava.io.tmpdir=/tmp"]
    java += ["-Dlog4j2.level=WARN", "-cp", kafka_class_path()]
    if not (DATA / "log" / "meta.properties").exists():
        command = ["kafka.tools.StorageTool", "format", "-t", CLUSTER_ID, "-c", str(config)]
        for user in sorted(Path(os.environ["USERS"]).iterdir()):
            name, password = ((user / file).read_text() for file in ("username", "password"))
            command += ["--add-scram", f"SCRAM-SHA-512=[name={name},password={password}]"]
        subprocess.run([*java, *command], check=True)
    os.execv(java[0], [*java, "kafka.Kafka", str(config)])


if __name__ == "__main__":
    main()
