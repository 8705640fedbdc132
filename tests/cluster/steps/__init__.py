"""The steps of `python -m tests.cluster`, each with a release of its own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tests.cluster.steps import (
    base,
    brokers,
    cameras,
    changes,
    chart,
    extensions,
    memory,
    models,
    policies,
    releases,
    watches,
)
from tests.cluster.world import World


@dataclass(frozen=True)
class Step:
    """One step.

    Attributes:
        run: Does it; what it finds wrong goes into the world.
        text: What it shows.
        nodes: How many nodes it needs.
        images: What it needs beside the images of every release.
    """

    run: Callable[[World], None]
    text: str
    nodes: int = 1
    images: tuple[str, ...] = ()


STEPS = {
    "chart": Step(chart.run, "lint, refused values, security fields, server-side dry run"),
    "base": Step(base.run, "install, helm test, alerts, killed pods, resources, uninstall"),
    "watches": Step(watches.run, "kubectl get watches, wrong resources, a controller that dies"),
    "extensions": Step(extensions.run, "KEDA, cert-manager, Prometheus operator: real schemas"),
    "policies": Step(policies.run, "NetworkPolicies enforced"),
    "models": Step(models.run, "the model from a volume, an image and an address"),
    "memory": Step(
        memory.run, "two holders and recall, a handover, holders that end, an erasure", images=("recall",)
    ),
    "releases": Step(releases.run, "two releases side by side"),
    "cameras": Step(cameras.run, "RTSP cameras, an agent that dies", images=("camera-agent",)),
    "brokers": Step(brokers.run, "three brokers with TLS and SCRAM, each killed"),
    "changes": Step(changes.run, "scaling, restarts, upgrade, drain, certificates, rollback", nodes=2),
}
#: what `make test-cluster` runs
FIRST = ("chart", "base")
