"""The steps of `python -m tests.cluster`, each with a release of its own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tests.cluster import keda
from tests.cluster.steps import (
    autoscaling,
    base,
    brokers,
    bundle,
    cameras,
    canary,
    changes,
    chart,
    extensions,
    gateway,
    memory,
    models,
    nodes,
    notify,
    policies,
    recordings,
    releases,
    upgrades,
    versions,
    watches,
)
from tests.cluster.tools import DEFINITIONS, Addition, definitions
from tests.cluster.world import World
from tests.rtsp_camera import missing_packages


@dataclass(frozen=True)
class Step:
    """One step.

    Attributes:
        run: Does it; what it finds wrong goes into the world.
        text: What it shows.
        nodes: How many nodes it needs.
        images: What it needs beside the images of every release.
        installs: Whether it installs a release, and needs those images.
        addition: What it needs beside the cluster's own programs.
    """

    run: Callable[[World], None]
    text: str
    nodes: int = 1
    images: tuple[str, ...] = ()
    installs: bool = True
    addition: Addition | None = None


STEPS = {
    "chart": Step(chart.run, "lint, refused values, security fields, server-side dry run", installs=False),
    "base": Step(base.run, "install, helm test, alerts, killed pods, resources, uninstall"),
    "watches": Step(watches.run, "kubectl get watches, wrong resources, a controller that dies"),
    "extensions": Step(
        extensions.run,
        "KEDA, cert-manager, Prometheus operator: real schemas",
        addition=Addition(lambda: [definitions(name) for name in DEFINITIONS]),
    ),
    "autoscaling": Step(
        autoscaling.run,
        "KEDA and Kubernetes' autoscaler follow a simulated load, sixty times faster than real time",
        installs=False,
        addition=Addition(keda.build, keda.missing),
    ),
    "policies": Step(policies.run, "NetworkPolicies enforced"),
    "models": Step(models.run, "the model from a volume, an image and an address"),
    "memory": Step(
        memory.run, "two holders and recall, a handover, holders that end, an erasure", images=("recall",)
    ),
    "gateway": Step(
        gateway.run, "the HTTP API: sign-in, incidents, pictures, find", images=("gateway", "recall")
    ),
    "notify": Step(
        notify.run,
        "a Notification resource: an incident reaches a webhook, a pod that is killed",
        images=("gateway", "notify"),
    ),
    "recordings": Step(
        recordings.run,
        "Recording resources: answers, refusals, a worker that dies, decode pods",
        images=("recordings",),
    ),
    "canary": Step(canary.run, "a canary with another model, killed pods, the comparison, its promotion"),
    "releases": Step(releases.run, "two releases side by side"),
    "cameras": Step(
        cameras.run,
        "RTSP cameras, an agent that dies",
        images=("camera-agent",),
        addition=Addition(packages=missing_packages),
    ),
    "brokers": Step(brokers.run, "three brokers and Redis with mutual TLS and passwords, each broker killed"),
    "upgrades": Step(
        upgrades.run,
        "a release of version 0.2.0 becomes this one while cameras publish: definitions, values, resources",
    ),
    "versions": Step(
        versions.run,
        "a second version of the definitions: served, stored, then alone",
        installs=False,
    ),
    "bundle": Step(
        bundle.run,
        "a release's folder alone installs a fleet in a node without a way out: images, chart, model",
        installs=False,
    ),
    "changes": Step(
        changes.run, "scaling, evictions, restarts, upgrade, drain, certificates, rollback", nodes=2
    ),
    # The last one: its node stays lost.
    "nodes": Step(nodes.run, "a node dies without a drain; the cameras go on from the other one", nodes=2),
}
#: what `make test-cluster` runs
FIRST = ("chart", "base")
