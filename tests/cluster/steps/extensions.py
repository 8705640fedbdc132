"""Objects for KEDA, cert-manager and the Prometheus operator against the schemas that these bring."""

from __future__ import annotations

import contextlib
from collections import Counter

import yaml

from tests.cluster import chart
from tests.cluster.tools import DEFINITIONS, ToolError, definitions
from tests.cluster.world import NAMESPACE, World

KINDS = {"ScaledObject": 5, "Certificate": 2, "Issuer": 2, "PodMonitor": 1, "PrometheusRule": 1}
#: mistakes that the schemas must find: kind, a path and a value
MISTAKES = (
    ("ScaledObject", ("spec", "minReplicaCount"), "one"),
    ("Certificate", ("spec", "dnsName"), "elsewhere"),
    ("PrometheusRule", ("spec", "groups", 0, "rules", 0, "expr"), None),
    ("PodMonitor", ("spec", "podMetricsEndpoints", 0, "interval"), "soon"),
)


def run(world: World) -> None:
    """Install the definitions, render everything that needs them, let the API server judge, remove them."""
    files = [str(path) for name in DEFINITIONS for path in definitions(name)]
    try:
        for file in files:
            world.cluster.kubectl("apply", "--server-side", "-f", file)
        for crd in (
            "scaledobjects.keda.sh",
            "certificates.cert-manager.io",
            "podmonitors.monitoring.coreos.com",
        ):
            world.cluster.kubectl("wait", "--for=condition=Established", f"crd/{crd}", "--timeout=60s")
        world.tell(f"definitions of {', '.join(DEFINITIONS)}: {len(files)}")
        manifests = chart.render(chart.EXTENDED, chart.API_VERSIONS)
        found = Counter(each["kind"] for each in yaml.safe_load_all(manifests) if each)
        if {kind: found[kind] for kind in KINDS} != KINDS:
            world.wrong.append(f"rendered {dict(found)}, expected at least {KINDS}")
        with world.namespace():
            world.wrong += chart.complaints(world.cluster, NAMESPACE, manifests)
            for kind, path, value in MISTAKES:
                if not chart.complaints(world.cluster, NAMESPACE, _spoilt(manifests, kind, path, value)):
                    world.wrong.append(f"the schema of {kind} does not see {path}={value}")
        world.tell(
            f"accepted by the API server: {', '.join(f'{count} {kind}' for kind, count in KINDS.items())}"
        )
    finally:
        for file in files:
            with contextlib.suppress(ToolError):
                world.cluster.kubectl("delete", "-f", file, "--ignore-not-found", "--timeout=60s")


def _spoilt(manifests: str, kind: str, path: tuple[str | int, ...], value: object) -> str:
    """Return the first object of a kind with one wrong value (None: without it)."""
    found = next(each for each in yaml.safe_load_all(manifests) if each and each["kind"] == kind)
    inner = found
    for part in path[:-1]:
        inner = inner[part]
    if value is None:
        del inner[path[-1]]
    else:
        inner[path[-1]] = value
    return yaml.safe_dump(found)
