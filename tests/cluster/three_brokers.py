"""Three brokers and a Redis with TLS, client certificates and passwords: what production brings itself."""

import base64
import json
import secrets
import shutil
import time
from pathlib import Path
from typing import Any

import yaml

from tests.cluster import storage
from tests.cluster.cluster import STATE, Cluster
from tests.cluster.pki import Authority, Subject
from tests.cluster.tools import ToolError
from tests.tls_redis import tls_redis

NAME = "brokers"
#: the user of the release, and the one that a part of it has for its own
USER, OWN_USER = "fleet", "decode"
COUNT = 3
#: the volume with Redis' program: the one of the try-out image is built without TLS
REDIS_PROGRAM = "redis-program"
_REDIS_PORT = 6380
#: kubelet looks at secrets once a minute, and caches them as long
_SECRET_S = 240.0
#: what a broker's pod runs to change a password, which comes from its input
_CHANGE = """
import os, sys
from confluent_kafka.admin import (
    AdminClient, ScramCredentialInfo, ScramMechanism, UserScramCredentialUpsertion
)
admin = AdminClient({{"bootstrap.servers": os.environ["POD_IP"] + ":9094"}})
details = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_512, 4096)
change = UserScramCredentialUpsertion("{user}", details, sys.stdin.read().encode())
for done in admin.alter_user_scram_credentials([change]).values():
    done.result(60)
"""


def start(cluster: Cluster, namespace: str, image: str) -> list[str]:
    """Start them and return the chart's values for them.

    Args:
        cluster: Where.
        namespace: Of the release that uses them.
        image: The try-out image.
    """
    authority = Authority(STATE / "brokers")
    dns = tuple(f"{NAME}-{number}.{NAME}" for number in range(COUNT))
    for subject in (Subject("broker", NAME, dns=dns), Subject("redis", "redis", dns=("redis",))):
        authority.issue(subject)
    authority.issue(Subject("client", USER))
    authority.issue(Subject("decode", OWN_USER))
    files = {path.name: path.read_bytes() for path in (STATE / "brokers").iterdir()}
    users = {name: secrets.token_urlsafe(24).encode() for name in (USER, OWN_USER)}
    # The brokers' claims name no volume: they would take any one that is free.
    cluster.apply(storage.claim(REDIS_PROGRAM), "-n", namespace)
    bound = ("--for=jsonpath={.status.phase}=Bound", f"pvc/{REDIS_PROGRAM}", "--timeout=60s")
    cluster.kubectl("-n", namespace, "wait", *bound)
    broker = {"broker.pem": _pkcs8(files["broker.key"]) + files["broker.crt"], "ca.crt": files["ca.crt"]}
    cluster.apply(
        yaml.safe_dump_all(
            [
                _secret("authority", {"ca.crt": files["ca.crt"]}),
                *(
                    _secret(f"{name}-user", {"username": name.encode(), "password": password})
                    for name, password in users.items()
                ),
                _secret("fleet-client", _pair(files, "client")),
                _secret("decode-client", _pair(files, "decode")),
                _secret("kafka-broker", broker),
                _secret("redis-server", {**_pair(files, "redis"), "ca.crt": files["ca.crt"]}),
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
        "kafka.tls.caSecret": "authority",
        "kafka.tls.clientSecret": "fleet-client",
        "kafka.sasl.mechanism": "SCRAM-SHA-512",
        "kafka.sasl.secret": "fleet-user",
        "kafka.sasl.secrets.decode": f"{OWN_USER}-user",
        "kafka.tls.clientSecrets.decode": "decode-client",
        "redis.url": f"rediss://redis:{_REDIS_PORT}/0",
        "redis.passwordSecret": "fleet-user",
        "redis.caSecret": "authority",
        "redis.clientSecret": "fleet-client",
    }
    return [word for name, value in values.items() for word in ("--set", f"{name}={value}")]


def provide_redis() -> None:
    """Copy a Redis that speaks TLS into the folder behind its volume.

    Raises:
        ToolError: There is none on this machine.
    """
    programs = tls_redis()
    if programs is None:
        raise ToolError("no Redis with TLS: it comes from Debian's packages")
    target = storage.folder(REDIS_PROGRAM)
    shutil.copytree(programs, target, dirs_exist_ok=True)
    target.chmod(0o755)


def outside_addresses(cluster: Cluster, namespace: str) -> str:
    """Return the brokers' addresses for clients outside; they change when a broker's pod does."""
    pods = cluster.get("-n", namespace, "pods", "-l", f"app={NAME}")["items"]
    return ",".join(f"{pod['status']['podIP']}:9094" for pod in pods if pod["status"].get("podIP"))


def kill_one(cluster: Cluster, namespace: str, number: int) -> str:
    """Kill one broker without notice; returns a sentence."""
    pod = f"pod/{NAME}-{number}"
    cluster.kubectl("-n", namespace, "delete", pod, "--grace-period=0", "--force", check=False)
    return f"killed {pod} of three brokers"


def change_password(cluster: Cluster, namespace: str, pod: str) -> str:
    """Give the user of one part another password; returns a sentence.

    First its secret, which kubelet brings into the pod within two minutes, then the brokers: they refuse the
    password before from then on.

    Args:
        cluster: Where.
        namespace: Of the brokers.
        pod: Of the part, which reads the secret as a file.

    Raises:
        ToolError: The pod does not see the secret change.
    """
    password = secrets.token_urlsafe(24)
    data = {"password": base64.b64encode(password.encode()).decode()}
    patch = ("--type=merge", "-p", json.dumps({"data": data}))
    cluster.kubectl("-n", namespace, "patch", "secret", f"{OWN_USER}-user", *patch)
    file = "/etc/lookout/kafka-user/password"
    deadline = time.monotonic() + _SECRET_S
    while cluster.kubectl("-n", namespace, "exec", pod, "--", "cat", file) != password:
        if time.monotonic() > deadline:
            raise ToolError(f"{pod} has the password from before after {_SECRET_S:.0f} s")
        time.sleep(2.0)
    told = ("python", "-c", _CHANGE.format(user=OWN_USER))
    cluster.kubectl("-n", namespace, "exec", "-i", f"{NAME}-0", "--", *told, stdin=password)
    return f"the brokers know another password of {OWN_USER} only, the one that {pod} has as a file now"


def _secret(name: str, files: dict[str, bytes]) -> dict[str, Any]:
    data = {key: base64.b64encode(value).decode() for key, value in files.items()}
    return {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name}, "data": data}


def _pair(files: dict[str, bytes], name: str) -> dict[str, bytes]:
    """Certificate and key under the names of a secret of type kubernetes.io/tls."""
    return {"tls.crt": files[f"{name}.crt"], "tls.key": files[f"{name}.key"]}


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
            {"name": "USERS", "value": "/users"},
        ],
        "readinessProbe": {"tcpSocket": {"port": 9093}, "periodSeconds": 2},
        "resources": {"requests": {"cpu": "50m", "memory": "512Mi"}, "limits": {"memory": "1Gi"}},
        "volumeMounts": [
            {"name": "scripts", "mountPath": "/scripts"},
            {"name": "certificate", "mountPath": "/certificate"},
            *(
                {"name": f"{name}-user", "mountPath": f"/users/{name}", "readOnly": True}
                for name in (USER, OWN_USER)
            ),
            {"name": "data", "mountPath": "/data"},
            {"name": "tmp", "mountPath": "/tmp"},
        ],
    }
    volumes = [
        {"name": "scripts", "configMap": {"name": NAME}},
        {"name": "certificate", "secret": {"secretName": "kafka-broker"}},
        *({"name": f"{name}-user", "secret": {"secretName": f"{name}-user"}} for name in (USER, OWN_USER)),
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
    tls = {"cert": "tls.crt", "key": "tls.key", "ca-cert": "ca.crt"}
    options = " ".join(f"--tls-{name}-file /certificate/{file}" for name, file in tls.items())
    start = f"exec /program/redis-server --port 0 --tls-port {_REDIS_PORT} {options} --save ''"
    pod = {
        "name": "redis",
        "image": image,
        "imagePullPolicy": "IfNotPresent",
        "command": ["sh", "-c", f'{start} --requirepass "$PASSWORD"'],
        "env": [
            {"name": "PASSWORD", "valueFrom": {"secretKeyRef": {"name": "fleet-user", "key": "password"}}}
        ],
        "readinessProbe": {"tcpSocket": {"port": _REDIS_PORT}, "periodSeconds": 2},
        "resources": {"requests": {"cpu": "10m", "memory": "32Mi"}, "limits": {"memory": "256Mi"}},
        "volumeMounts": [
            {"name": "program", "mountPath": "/program"},
            {"name": "certificate", "mountPath": "/certificate"},
            {"name": "tmp", "mountPath": "/tmp"},
        ],
        "workingDir": "/tmp",
    }
    volumes = [
        {"name": "program", "persistentVolumeClaim": {"claimName": REDIS_PROGRAM}},
        {"name": "certificate", "secret": {"secretName": "redis-server"}},
        {"name": "tmp", "emptyDir": {}},
    ]
    return [_stateful("redis", 1, pod, volumes), _service("redis", _REDIS_PORT)]
