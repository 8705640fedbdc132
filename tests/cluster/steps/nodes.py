"""A node dies without a drain: its pods start on the other one, and every camera is live again."""

from __future__ import annotations

import time

from tests.cluster.steps.watches import until
from tests.cluster.tools import ToolError
from tests.cluster.world import LONG_SILENCE_S, RELEASE, STAGES, World

LIVE_S = 120.0
"""Seconds after which every camera must have verdicts of what it sent since."""
#: what was committed when the node died can be read by then
_COMMITTED_S = 5.0
_LOST, _KEPT = "node2", "node1"
_PREFIX = "lost-"


def run(world: World) -> None:
    """The stages and the controller run on one node, Kafka and Redis on the other, which stays."""
    world.cluster.kubectl("cordon", _LOST)
    with world.release("--set", f"decode.settings.silence_s={LONG_SILENCE_S:.0f}"):
        client = world.client()
        world.ask(client)
        world.ensure_reference(client, LONG_SILENCE_S)
        move(world)
        world.play_during(lambda: client, _PREFIX, [lambda: lose(world)])
        world.count(client, _PREFIX, LONG_SILENCE_S)
        world.check(world.kubectl("get", "events", "--field-selector", "reason=NodeLost"), "is lost")
        # Kubernetes removes the pods of a node that does not exist: those of Deployments were left there.
        world.cluster.kubectl("delete", "node", _LOST)
        world.cluster.forget_node()


def move(world: World) -> None:
    """Have the stages and the controller start again on the node that will be lost."""
    world.cluster.kubectl("uncordon", _LOST)
    world.cluster.kubectl("cordon", _KEPT)
    labels = f"app.kubernetes.io/component in ({','.join((*STAGES, 'controller'))})"
    world.kubectl("delete", "pods", "-l", labels)
    for stage in STAGES:
        world.kubectl("rollout", "status", f"statefulset/{RELEASE}-{stage}", "--timeout=300s")
    world.kubectl("rollout", "status", f"deployment/{RELEASE}-controller", "--timeout=300s")
    world.cluster.kubectl("uncordon", _KEPT)
    places = world.kubectl("get", "pods", "-l", labels, "-o", "jsonpath={.items[*].spec.nodeName}").split()
    if set(places) != {_LOST}:
        raise ToolError(f"the stages run on {places}, not on {_LOST} alone")


def lose(world: World) -> str:
    """Kill the node's kubelet, runtime and pods at once, and wait until every camera has later verdicts."""
    client = world.client()
    cameras = {f"{_PREFIX}{film.name}" for film in world.cast}

    def answered(known: frozenset[str] = frozenset()) -> set[str]:
        return {each["camera"] for each in client.read(_PREFIX).verdicts if each["id"] not in known}

    until("every camera has verdicts", answered, cameras.__eq__)
    world.cluster.kill_node(int(_LOST.removeprefix("node")))
    begun = time.monotonic()
    time.sleep(_COMMITTED_S)
    before = frozenset(each["id"] for each in client.read(_PREFIX).verdicts)
    until("every camera is live again", lambda: answered(before), cameras.__eq__)
    after = time.monotonic() - begun
    if after > LIVE_S:
        world.wrong.append(f"the cameras were live {after:.0f} s after {_LOST} was lost")
    return f"{_LOST} was lost; every camera had verdicts {after:.0f} s later"
