"""A real API server for custom resources alone, built of Kubernetes' own modules."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Self

import urllib3
import yaml

from lookout.services.controller.cluster import CAMERA, FINALIZER, GROUP, VERSION, WATCH, Kind
from tests.cluster.tools import build_api_server

ROOT = Path(__file__).parents[1]
CRDS = ROOT / "charts/lookout/crds"
NAMESPACE = "cameras"
_PATIENCE_S = 600.0
_THREADS = 8


class ApiServer:
    """Kubernetes' API server for custom resources alone, with Lookout's definitions."""

    def __init__(self, folder: Path) -> None:
        self._log = (folder / "api.log").open("w")
        self._process = subprocess.Popen(
            [str(build_api_server()), str(folder)], stdout=subprocess.PIPE, stderr=self._log, text=True
        )
        assert self._process.stdout is not None
        self.url = self._process.stdout.readline().strip()
        authority = str(folder / "apiserver.crt")
        self._http = urllib3.PoolManager(
            maxsize=_THREADS,
            ca_certs=authority,
            retries=urllib3.Retry(5, backoff_factor=0.5, status_forcelist=[429]),
        )
        for definition in _definitions():
            self._ask("POST", "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", definition)
        self.kubeconfig = folder / "kubeconfig"
        named = {"cluster": "api", "user": "anybody", "namespace": NAMESPACE}
        cluster = {"server": self.url, "certificate-authority": authority}
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "api",
            "contexts": [{"name": "api", "context": named}],
            "clusters": [{"name": "api", "cluster": cluster}],
            "users": [{"name": "anybody", "user": {}}],
        }
        self.kubeconfig.write_text(json.dumps(config))
        for kind in (CAMERA, WATCH):
            until(lambda kind=kind: self.list(kind, 1) is not None, f"resources {kind.plural}")  # type: ignore[misc]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        self._process.wait()
        assert self._process.stdout is not None
        self._process.stdout.close()
        self._http.clear()
        self._log.close()

    def create(self, kind: Kind, names: Sequence[str], spec: Mapping[str, Any]) -> list[dict[str, Any]]:
        """Create resources as the controller leaves them, with its finalizer."""

        def one(name: str) -> dict[str, Any]:
            body = {
                "apiVersion": f"{GROUP}/{VERSION}",
                "kind": kind.name,
                "metadata": {"name": name, "finalizers": [FINALIZER]},
                "spec": dict(spec),
            }
            return self._ask("POST", _path(kind), body)

        with ThreadPoolExecutor(_THREADS) as pool:
            return list(pool.map(one, names))

    def list(self, kind: Kind, limit: int = 0) -> dict[str, Any] | None:
        """Resources of a kind; None while the server does not know the kind yet."""
        try:
            return self._ask("GET", f"{_path(kind)}?limit={limit}")
        except OSError:
            return None

    def _ask(self, method: str, path: str, body: Any = None) -> dict[str, Any]:
        answer = self._http.request(method, self.url + path, json=body, timeout=30.0)
        if answer.status >= 300:
            raise OSError(f"{method} {path}: {answer.status} {answer.data[:300]!r}")
        body: dict[str, Any] = answer.json()
        return body


def _definitions() -> list[Any]:
    return [yaml.safe_load(path.read_text()) for path in sorted(CRDS.glob("*.yaml"))]


def _path(kind: Kind) -> str:
    return f"/apis/{GROUP}/{VERSION}/namespaces/{NAMESPACE}/{kind.plural}"


def until(condition: Callable[[], bool], what: str, patience_s: float = _PATIENCE_S) -> None:
    """Wait for a condition.

    Raises:
        TimeoutError: It does not come.
    """
    deadline = time.monotonic() + patience_s
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"{what}: nothing after {patience_s:g} s")
        time.sleep(0.5)
