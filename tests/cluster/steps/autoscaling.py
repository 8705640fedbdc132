"""The chart's ScaledObject, followed by KEDA and Kubernetes' autoscaler, sixty times faster than real time.

Load and backlog are simulated (`tests.cluster.fake_prometheus`); pods are real and sleep.
"""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import yaml

from tests.cluster import keda, workshop
from tests.cluster.cluster import OUTSIDE, OUTSIDE_ADDRESS
from tests.cluster.tools import ToolError
from tests.cluster.world import CHART, RELEASE, World
from tests.unit.charts.test_autoscaling import HOUR, STEP_S, chart_rule, replay, turns

_NAMESPACE, _TARGET, _PORT = "scaled", f"{RELEASE}-prefill", 19090
#: windows of the autoscaler's behavior are whole seconds: 60 s become one, its period of 15 s a quarter
SPEED = 60
#: pods before the autoscaler is turned on, which carry the load of that time
_BEFORE = 4
_MOST = 12
_LOW, _HIGH = 2.5, 7.0


def run(world: World) -> None:
    """Load stays, rises, stays and falls: pods follow it up once and down once."""
    keda.build()
    rise = [_LOW + (_HIGH - _LOW) * step / HOUR for step in range(HOUR)]
    loads = [*[_LOW] * (HOUR // 4), *rise, *[_HIGH] * (HOUR // 2), *reversed(rise), *[_LOW] * HOUR]
    with world.namespace(_NAMESPACE), keda.running(world.cluster):
        world.cluster.apply(yaml.safe_dump_all(_pods()), "-n", _NAMESPACE)
        ready = ("rollout", "status", f"statefulset/{_TARGET}", "--timeout=120s")
        world.cluster.kubectl("-n", _NAMESPACE, *ready)
        scaled, replicas = rendered(world)
        if replicas != _BEFORE:
            world.wrong.append(f"turning autoscaling on sets {_BEFORE} running pods to {replicas}")
        world.cluster.apply(yaml.safe_dump(scaled), "-n", _NAMESPACE)
        rows = _simulate(world, loads)
        world.tell(world.cluster.kubectl("-n", _NAMESPACE, "get", "hpa,scaledobject"))
        world.cluster.kubectl("-n", _NAMESPACE, "delete", "scaledobject", _TARGET, "--timeout=60s")
    judge(world, loads, rows)


def rendered(world: World) -> tuple[dict[str, Any], int]:
    """Render the chart beside the running pods.

    Returns:
        Its ScaledObject of prefill with windows that are `SPEED` times shorter, and the replicas of prefill's
        StatefulSet.
    """
    # A dry run of the server looks up the pods that run.
    manifests = world.cluster.helm(
        *("template", RELEASE, str(CHART), "--namespace", _NAMESPACE, "--dry-run=server"),
        *("--set", f"monitoring.prometheusAddress=http://{OUTSIDE_ADDRESS}:{_PORT}"),
        *("--set", "prefill.autoscaling.enabled=true"),
        *("--set", f"prefill.autoscaling.maxReplicas={_MOST}"),
    )
    by_kind = {
        item["kind"]: item
        for item in yaml.safe_load_all(manifests)
        if item and item["metadata"]["name"] == _TARGET
    }
    scaled: dict[str, Any] = by_kind["ScaledObject"]
    behavior = scaled["spec"]["advanced"]["horizontalPodAutoscalerConfig"]["behavior"]
    for rules in behavior.values():
        rules["stabilizationWindowSeconds"] //= SPEED
        for policy in rules["policies"]:
            policy["periodSeconds"] //= SPEED
    scaled["metadata"]["namespace"] = _NAMESPACE
    return scaled, by_kind["StatefulSet"]["spec"]["replicas"]


def judge(world: World, loads: list[float], rows: list[tuple[int, int, float]]) -> None:
    """Compare with the replay of the autoscaler's arithmetic."""
    wanted, lags = [row[0] for row in rows], [row[2] for row in rows]
    expected, _ = replay(chart_rule, loads, pods=_BEFORE)
    quarter, top = HOUR // 4, HOUR // 4 + HOUR + HOUR // 2
    world.tell(f"pods every ten minutes: {wanted[:: HOUR // 6]}; by arithmetic: {expected[:: HOUR // 6]}")
    world.tell(f"the longest lag is {max(lags):.0f} s of the simulation's time")
    if min(wanted[:quarter]) < _BEFORE:
        world.wrong.append(f"turning autoscaling on took pods away that were busy: {wanted[:quarter]}")
    if turns(wanted) > 1:
        world.wrong.append(f"the number of pods turned {turns(wanted)} times: {wanted}")
    if lags[top - 1] > 0:
        world.wrong.append(f"the pods do not carry the load at its top: {lags[top - 1]} s behind")
    for name, step in (("top", top - 1), ("end", len(rows) - 1)):
        if abs(wanted[step] - expected[step]) > 1:
            world.wrong.append(f"{wanted[step]} pods at the {name}, {expected[step]} by arithmetic")


def _simulate(world: World, loads: list[float]) -> list[tuple[int, int, float]]:
    given, out = keda.FOLDER / "loads.json", keda.FOLDER / "steps.jsonl"
    given.write_text(json.dumps(loads))
    words = (str(SPEED), str(_PORT), str(given), f"{_NAMESPACE}/{_TARGET}", str(out))
    process = subprocess.run(
        ["ip", "netns", "exec", OUTSIDE, sys.executable, "-m", "tests.cluster.fake_prometheus", *words],
        env=world.cluster.environment(),
        cwd=workshop.ROOT,
        check=False,
        capture_output=True,
        text=True,
        timeout=60 + 2 * len(loads) * STEP_S / SPEED,
    )
    if process.returncode:
        raise ToolError(f"the fake Prometheus ended: {process.stderr[-800:]}")
    return [tuple(json.loads(line)) for line in out.read_text().splitlines()]


def _pods() -> list[dict[str, Any]]:
    """A StatefulSet of pods that sleep."""
    labels = {"app": _TARGET}
    security = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
    container = {
        "name": "pause",
        "image": workshop.PAUSE_IMAGE,
        "imagePullPolicy": "Never",
        "resources": {"requests": {"cpu": "1m", "memory": "1Mi"}},
        "securityContext": security,
    }
    pod = {
        "terminationGracePeriodSeconds": 0,
        "securityContext": {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}},
        "containers": [container],
    }
    spec = {
        "replicas": _BEFORE,
        "serviceName": _TARGET,
        "podManagementPolicy": "Parallel",
        "selector": {"matchLabels": labels},
        "template": {"metadata": {"labels": labels}, "spec": pod},
    }
    # What helm looks for before it takes an object for its release's own.
    metadata = {
        "name": _TARGET,
        "labels": {"app.kubernetes.io/managed-by": "Helm"},
        "annotations": {"meta.helm.sh/release-name": RELEASE, "meta.helm.sh/release-namespace": _NAMESPACE},
    }
    return [{"apiVersion": "apps/v1", "kind": "StatefulSet", "metadata": metadata, "spec": spec}]
