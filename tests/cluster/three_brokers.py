"""Three brokers with TLS and SCRAM, and a Redis with a password: what production brings itself."""

import base64
import secrets
from pathlib import Path
from typing import Any

import yaml

from tests.cluster import storage
from tests.cluster.cluster import STATE, Cluster
from tests.cluster.pki import Authority, Subject

NAME = "brokers"
USER = "fleet"
COUNT = 3


def start(cluster: Cluster, namespace: str, image: str) -> list[str]:
    """Start them and return the chart's values for them.

    Args:
        cluster: Where.
        namespace: Of the release that uses them.
        image: The try-out image.
    """
    authority = Authority(STATE / "brokers")
    dns = tuple(f"{NAME}-{number}.{NAME}" for number in range(COUNT))
    authority.issue(Subject("broker", NAME, dns=dns))
    files = {name: (STATE / "brokers" / name).read_bytes() for name in ("ca.crt", "broker.crt", "broker.key")}
    password = secrets.token_urlsafe(24)
    cluster.apply(
        yaml.safe_dump_all(
            [
                _secret("kafka-ca", {"ca.crt": files["ca.crt"]}),
                _secret("kafka-user", {"username": USER.encode(), "password": password.encode()}),
                _secret("kafka-broker", {"broker.pem": _pkcs8(files["broker.key"]) + files["broker.crt"]}),
                _secret("redis-user", {"password": password.encode()}),
                _scripts(),
                *_brokers(image),
                *_redis(image),
            ]
        ),
        "-n",
        namespace,
    )
    for name in (NAME, "redis"):
        cluster.kubectl("-n", namespace, "rollout", "status", f"statefulset/{name}", "--timeout=300s")
    values = {
        "tryout.enabled": "false",
        "kafka.bootstrap": "\\,".join(f"{name}:9093" for name in dns),
        "kafka.tls.enabled": "true",
        "kafka.tls.caSecret": "kafka-ca",
        "kafka.sasl.mechanism": "SCRAM-SHA-512",
        "kafka.sasl.secret": "kafka-user",
        "redis.url": "redis://redis:6379/0",
        "redis.passwordSecret": "redis-user",
    }
    return [word for name, value in values.items() for word in ("--set", f"{name}={value}")]


def outside_addresses(cluster: Cluster, namespace: str) -> str:
    """Return the brokers' addresses for clients outside; they change when a broker's pod does."""
    pods = cluster.get("-n", namespace, "pods", "-l", f"app={NAME}")["items"]
    return ",".join(f"{pod['status']['podIP']}:9094" for pod in pods if pod["status"].get("podIP"))


def kill_one(cluster: Cluster, namespace: str, number: int) -> str:
    """Kill one broker without notice; returns a sentence."""
    pod = f"pod/{NAME}-{number}"
    cluster.kubectl("-n", namespace, "delete", pod, "--grace-period=0", "--force", check=False)
    return f"killed {pod} of three brokers"


def _secret(name: str, files: dict[str, bytes]) -> dict[str, Any]:
    data = {key: base64.b64encode(value).decode() for key, value in files.items()}
    return {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name}, "data": data}


def _pkcs8(key: bytes) -> bytes:
    """Kafka reads PKCS #8 keys only."""
    from cryptography.hazmat.primitives import serialization as form

    loaded = form.load_pem_private_key(key, None)
    return loaded.private_bytes(form.Encoding.PEM, form.PrivateFormat.PKCS8, form.NoEncryption())


def _scripts() -> dict[str, Any]:
    text = (Path(__file__).parent / "broker.py").read_text()
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": NAME}, "data": {"broker.py": text}}


def _field(name: str, path: str) -> dict[str, Any]:
    return {"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}}


def _stateful(name: str, replicas: int, pod: dict[str, Any], volumes: list[dict[str, Any]]) -> dict[str, Any]:
    security = {
        "runAsNonRoot": True,
        "runAsUser": 10001,
        "fsGroup": 10001,
        "seccompProfile": {"type": "RuntimeDefault"},
    }
    pod["securityContext"] = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
    template = {
        "metadata": {"labels": {"app": name}},
        "spec": {"securityContext": security, "containers": [pod], "volumes": volumes},
    }
    return {
        "apiVersion": "apps/v1",
        "kind": "StatefulSet",
        "metadata": {"name": name},
        "spec": {
            "replicas": replicas,
            "serviceName": name,
            "podManagementPolicy": "Parallel",
            "selector": {"matchLabels": {"app": name}},
            "template": template,
        },
    }


def _service(name: str, port: int) -> dict[str, Any]:
    spec = {
        "clusterIP": "None",
        "publishNotReadyAddresses": True,
        "selector": {"app": name},
        "ports": [{"port": port}],
    }
    return {"apiVersion": "v1", "kind": "Service", "metadata": {"name": name}, "spec": spec}


def _brokers(image: str) -> list[dict[str, Any]]:
    pod = {
        "name": "kafka",
        "image": image,
        "imagePullPolicy": "IfNotPresent",
        "command": ["python", "/scripts/broker.py"],
        "env": [
            _field("NODE_ID", "metadata.labels['apps.kubernetes.io/pod-index']"),
            _field("POD_IP", "status.podIP"),
            {"name": "SERVICE", "value": NAME},
            {"name": "CERTIFICATE", "value": "/certificate/broker.pem"},
            {"name": "PASSWORD", "valueFrom": {"secretKeyRef": {"name": "kafka-user", "key": "password"}}},
        ],
        "readinessProbe": {"tcpSocket": {"port": 9093}, "periodSeconds": 2},
        "resources": {"requests": {"cpu": "50m", "memory": "512Mi"}, "limits": {"memory": "1Gi"}},
        "volumeMounts": [
            {"name": "scripts", "mountPath": "/scripts"},
            {"name": "certificate", "mountPath": "/certificate"},
            {"name": "data", "mountPath": "/data"},
            {"name": "tmp", "mountPath": "/tmp"},
        ],
    }
    volumes = [
        {"name": "scripts", "configMap": {"name": NAME}},
        {"name": "certificate", "secret": {"secretName": "kafka-broker"}},
        {"name": "tmp", "emptyDir": {}},
    ]
    made = _stateful(NAME, COUNT, pod, volumes)
    claim = {
        "accessModes": ["ReadWriteOnce"],
        "storageClassName": storage.CLASS,
        "resources": {"requests": {"storage": "1Gi"}},
    }
    made["spec"]["volumeClaimTemplates"] = [{"metadata": {"name": "data"}, "spec": claim}]
    return [made, _service(NAME, 9093)]


def _redis(image: str) -> list[dict[str, Any]]:
    start = (
        "import os; from lookout.local.redis import find_redis_server as f; "
        "os.execv(f(), ['redis-server', '--requirepass', os.environ['PASSWORD'], '--save', ''])"
    )
    pod = {
        "name": "redis",
        "image": image,
        "imagePullPolicy": "IfNotPresent",
        "command": ["python", "-c", start],
        "env": [
            {"name": "PASSWORD", "valueFrom": {"secretKeyRef": {"name": "redis-user", "key": "password"}}}
        ],
        "readinessProbe": {"tcpSocket": {"port": 6379}, "periodSeconds": 2},
        "resources": {"requests": {"cpu": "10m", "memory": "32Mi"}, "limits": {"memory": "256Mi"}},
        "volumeMounts": [{"name": "tmp", "mountPath": "/tmp"}],
    }
    return [_stateful("redis", 1, pod, [{"name": "tmp", "emptyDir": {}}]), _service("redis", 6379)]
