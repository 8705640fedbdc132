"""KEDA's operator and metrics server beside a test cluster, built from KEDA's Go module.

Of KEDA's seventy scalers the one for Prometheus is built and the others are left out, which saves most of the
build; the rest of KEDA is as released.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import yaml

from tests.cluster import tools
from tests.cluster.cluster import OUTSIDE, OUTSIDE_ADDRESS, STATE, Cluster
from tests.cluster.pki import Authority, Subject
from tests.cluster.tools import BIN, CACHE, DEFINITIONS, ToolError, say

#: of certificates and of the files that operator, metrics server and the step share
FOLDER = STATE / "keda"
_VERSION = DEFINITIONS["keda"].version
_STAMP = CACHE / "built" / "keda"
_PROGRAMS = {"keda-operator": "./cmd/operator", "keda-adapter": "./cmd/adapter"}
_NAMESPACE = "keda"
_API_PORT, _GRPC_PORT, _METRICS_PORT = 6444, 9666, 18080
_GROUP, _GROUP_VERSION = "external.metrics.k8s.io", "v1beta1"
_SCALER = "prometheus"
#: what other files of KEDA use of the scalers that are left out
_REST = """package scalers

import v2 "k8s.io/api/autoscaling/v2"

var externalMetricType = v2.MetricSourceType("External")
"""


def build() -> None:
    """Build operator and metrics server into the cache, if they are missing: minutes of CPU the first time.

    Raises:
        ToolError: Go is missing, or the build fails.
    """
    if not missing():
        return
    if shutil.which("go") is None:
        raise ToolError("KEDA is built from its Go module: install Go 1.26 or newer")
    BIN.mkdir(parents=True, exist_ok=True)
    with tools.go_trees():
        environment = tools.go_environment()
        source = _source(environment)
        leave_one_scaler(source)
        for program, package in _PROGRAMS.items():
            say(f"building {program} {_VERSION} with its scaler {_SCALER} ...")
            command = ["go", "build", "-ldflags", "-s -w", "-o", str(BIN / program), package]
            tools.call(command, environment, source)
    _STAMP.parent.mkdir(exist_ok=True)
    _STAMP.write_text(_VERSION)


def missing() -> list[str]:
    """Return the programs that are not built in this version."""
    built = _STAMP.exists() and _STAMP.read_text() == _VERSION
    return [name for name in _PROGRAMS if not built or not (BIN / name).exists()]


def _source(environment: dict[str, str]) -> Path:
    """Return a writable copy of KEDA's module."""
    module = f"{DEFINITIONS['keda'].module}@v{_VERSION}"
    download = subprocess.run(
        ["go", "mod", "download", "-json", module],
        env=environment,
        check=False,
        capture_output=True,
        text=True,
    )
    if download.returncode:
        raise ToolError(f"{module} cannot be fetched: {(download.stdout or download.stderr)[-500:]}")
    source = CACHE / "go" / "keda"
    shutil.rmtree(source, ignore_errors=True)
    shutil.copytree(json.loads(download.stdout)["Dir"], source)
    subprocess.run(["chmod", "-R", "u+w", str(source)], check=True)
    return source


def leave_one_scaler(source: Path) -> None:
    """Delete every scaler but the one for Prometheus from KEDA's source.

    Args:
        source: KEDA's source tree, writable.

    Raises:
        ToolError: This version of KEDA chooses its scalers in another way.
    """
    builder = source / "pkg" / "scaling" / "scalers_builder.go"
    text = builder.read_text()
    cases = re.search(r'\n\tcase ".*?(?=\n\tdefault:)', text, re.DOTALL)
    case = cases and re.search(rf'\n\tcase "{_SCALER}":\n.*?(?=\n\tcase |\Z)', cases[0], re.DOTALL)
    if not cases or not case:
        raise ToolError(f"KEDA {_VERSION} chooses its scalers in another way than {builder.name} did")
    builder.write_text(text[: cases.start()] + case[0] + text[cases.end() :])
    for path in (source / "pkg" / "scalers").glob("*.go"):
        if path.name not in ("scaler.go", f"{_SCALER}_scaler.go"):
            path.unlink()
    (source / "pkg" / "scalers" / "rest.go").write_text(_REST)


@contextmanager
def running(cluster: Cluster) -> Iterator[None]:
    """Run operator and metrics server on the network beside the nodes, with KEDA's definitions installed."""
    authority = Authority(FOLDER)
    authority.issue(Subject("tls", "keda", dns=("keda",), addresses=(OUTSIDE_ADDRESS,)))
    files = [str(path) for path in tools.definitions("keda")]
    processes: list[subprocess.Popen[bytes]] = []
    try:
        for file in files:
            cluster.kubectl("apply", "--server-side", "-f", file)
        cluster.kubectl("wait", "--for=condition=Established", "crd/scaledobjects.keda.sh", "--timeout=60s")
        cluster.apply(_objects())
        for program, options in _options(cluster).items():
            processes.append(_begin(cluster, program, options))
        # Until then the autoscaler has no metric and leaves the pods as they are.
        service = f"apiservice/{_GROUP_VERSION}.{_GROUP}"
        try:
            cluster.kubectl("wait", "--for=condition=Available", service, "--timeout=120s")
        except ToolError as error:
            tails = {program: (FOLDER / f"{program}.log").read_text()[-800:] for program in _PROGRAMS}
            raise ToolError(f"KEDA's metrics server did not come up: {error}\n{tails}") from error
        yield
    finally:
        cluster.kubectl("delete", "-f", "-", "--ignore-not-found", stdin=_objects(), check=False)
        for process in processes:
            process.terminate()
            process.wait()
        for file in files:
            cluster.kubectl("delete", "-f", file, "--ignore-not-found", "--timeout=60s", check=False)


def _options(cluster: Cluster) -> dict[str, list[str]]:
    kubeconfig = cluster.kubeconfig
    return {
        "keda-operator": [
            f"--cert-dir={FOLDER}",
            f"--metrics-service-bind-address={OUTSIDE_ADDRESS}:{_GRPC_PORT}",
            f"--metrics-bind-address=:{_METRICS_PORT}",
            "--enable-webhook-patching=false",
            "--enable-apiservice-patching=false",
        ],
        "keda-adapter": [
            f"--cert-dir={FOLDER}",
            f"--tls-cert-file={FOLDER}/tls.crt",
            f"--tls-private-key-file={FOLDER}/tls.key",
            f"--secure-port={_API_PORT}",
            f"--metrics-service-address={OUTSIDE_ADDRESS}:{_GRPC_PORT}",
            "--metrics-service-grpc-authority=keda",
            f"--kubeconfig={kubeconfig}",
            f"--lister-kubeconfig={kubeconfig}",
            f"--authentication-kubeconfig={kubeconfig}",
            f"--authorization-kubeconfig={kubeconfig}",
        ],
    }


def _begin(cluster: Cluster, program: str, options: list[str]) -> subprocess.Popen[bytes]:
    names = {"WATCH_NAMESPACE": "", "POD_NAMESPACE": _NAMESPACE, "KEDA_CLUSTER_OBJECT_NAMESPACE": _NAMESPACE}
    with (FOLDER / f"{program}.log").open("wb") as log:
        return subprocess.Popen(
            ["ip", "netns", "exec", OUTSIDE, str(BIN / program), *options],
            env={**cluster.environment(), **names},
            stdout=log,
            stderr=log,
        )


def _objects() -> str:
    """The namespace, and the address at which the API server asks for external metrics."""
    metadata = {"name": "keda-metrics-apiserver", "namespace": _NAMESPACE}
    port = {"name": "https", "port": 443, "targetPort": _API_PORT}
    slices = {"kubernetes.io/service-name": metadata["name"]}
    service = {
        "group": _GROUP,
        "version": _GROUP_VERSION,
        "service": metadata,
        "insecureSkipTLSVerify": True,
        "groupPriorityMinimum": 100,
        "versionPriority": 100,
    }
    return yaml.safe_dump_all(
        [
            {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": _NAMESPACE}},
            {"apiVersion": "v1", "kind": "Service", "metadata": metadata, "spec": {"ports": [port]}},
            {
                "apiVersion": "discovery.k8s.io/v1",
                "kind": "EndpointSlice",
                "metadata": {**metadata, "labels": slices},
                "addressType": "IPv4",
                "ports": [{"name": "https", "port": _API_PORT, "protocol": "TCP"}],
                "endpoints": [{"addresses": [OUTSIDE_ADDRESS], "conditions": {"ready": True}}],
            },
            {
                "apiVersion": "apiregistration.k8s.io/v1",
                "kind": "APIService",
                "metadata": {"name": f"{_GROUP_VERSION}.{_GROUP}"},
                "spec": service,
            },
        ]
    )
