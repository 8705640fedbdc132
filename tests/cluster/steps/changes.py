"""The films once more while the release is scaled, evicted, restarted, upgraded, drained and rolled back."""

from __future__ import annotations

import base64
import json
import time
from functools import partial

from cryptography import x509

from tests.cluster import storage
from tests.cluster.tools import ToolError
from tests.cluster.world import LONG_SILENCE_S, NAMESPACE, NEXT, RELEASE, STAGES, World, tag

#: certificates live about six minutes, so that some are replaced meanwhile
_SHORT_DAYS = 0.004
_CERTIFICATE_S = 360.0
#: between two pieces of a film, so that each change meets some
_PAUSE_S = 15.0


def run(world: World) -> None:
    """Play among changes; the outcomes stay the same."""
    storage.provide(world.cluster, ["kafka"])
    try:
        with world.release(
            *("--set", "tryout.kafka.storage.size=5Gi"),
            *("--set", f"tryout.kafka.storage.className={storage.CLASS}"),
            # helm takes a broken number after --set for text
            *("--set-json", f"grpc.days={_SHORT_DAYS}"),
            *("--set", f"decode.settings.silence_s={LONG_SILENCE_S:.0f}"),
        ):
            _changes(world)
    finally:
        storage.remove(world.cluster, ["kafka"])


def _changes(world: World) -> None:
    client = world.client()
    world.ask(client)
    world.ensure_reference(client, LONG_SILENCE_S)
    before = serial(world)
    steps = (scale_out, evict, restart_redis, upgrade, restart_kafka, drain, roll_back, scale_in)
    world.play_during(lambda: client, "changes-", [partial(step, world) for step in steps], _PAUSE_S)
    world.count(client, "changes-", LONG_SILENCE_S)
    deadline = time.monotonic() + _CERTIFICATE_S
    while serial(world) == before:
        if time.monotonic() > deadline:
            raise ToolError(f"the certificate of {_SHORT_DAYS} days was not replaced")
        time.sleep(5.0)
    world.tell("the controller replaced the fleet's certificate")
    restarts = world.kubectl(
        "get", "pods", "-o", "jsonpath={.items[*].status.containerStatuses[*].restartCount}"
    )
    world.tell(f"restarts of containers meanwhile: {restarts}")


def wait(world: World, stage: str) -> None:
    """Wait until every pod of a stage is ready."""
    world.kubectl("rollout", "status", f"statefulset/{RELEASE}-{stage}", "--timeout=300s")


def scale_out(world: World) -> str:
    """Prefill from one pod to three."""
    world.upgrade("--set", "prefill.replicas=3")
    return "scaled prefill to 3"


def scale_in(world: World) -> str:
    """And back."""
    world.upgrade("--set", "prefill.replicas=1")
    return "scaled prefill back to 1"


def restart_kafka(world: World) -> str:
    """The lone broker's pod dies without notice; its data stays on its volume."""
    world.kubectl("delete", f"pod/{RELEASE}-tryout-kafka-0", "--grace-period=0", "--force", check=False)
    time.sleep(2.0)
    wait(world, "tryout-kafka")
    return "killed Kafka; it is back"


def restart_redis(world: World) -> str:
    """Redis comes back empty."""
    world.kubectl("delete", f"pod/{RELEASE}-tryout-redis-0")
    wait(world, "tryout-redis")
    return "restarted Redis"


def upgrade(world: World) -> str:
    """Roll every pod to other images."""
    world.upgrade("--set", f"image.tag={tag()}{NEXT}")
    return f"upgraded to images {tag()}{NEXT}"


def evict(world: World) -> str:
    """A pod of each stage leaves by the eviction API; a second one of prefill may not go beside the first."""
    for stage in sorted(STAGES, key="prefill".__eq__):
        world.check(_evict(world, f"{RELEASE}-{stage}-0"), "Success")
    refusal = _evict(world, f"{RELEASE}-prefill-1")
    world.check(refusal, "disruption budget")
    for stage in STAGES:
        wait(world, stage)
    return f"evicted a pod of {', '.join(STAGES)}; a second one of prefill: {refusal.strip()[-100:]}"


def _evict(world: World, pod: str) -> str:
    """Ask for the eviction of a pod; returns what the API server says."""
    metadata = {"name": pod, "namespace": NAMESPACE}
    eviction = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": metadata}
    path = f"/api/v1/namespaces/{NAMESPACE}/pods/{pod}/eviction"
    return world.kubectl("create", "--raw", path, "-f", "-", stdin=json.dumps(eviction), check=False)


def roll_back(world: World) -> str:
    """Back to the images before."""
    world.cluster.helm("rollback", RELEASE, "--namespace", NAMESPACE, "--wait", "--timeout", "600s")
    return "rolled back"


def drain(world: World) -> str:
    """Empty the second node and let it back in."""
    options = ("--ignore-daemonsets", "--delete-emptydir-data", "--timeout=600s")
    said = world.cluster.kubectl("drain", "node2", *options)
    time.sleep(5.0)
    world.cluster.kubectl("uncordon", "node2")
    return f"drained node2: {said.count('evicted')} pods evicted"


def serial(world: World) -> int:
    """Return the serial number of the fleet's certificate."""
    path = "jsonpath={.data.tls\\.crt}"
    text = world.kubectl("get", "secret", f"{RELEASE}-grpc", "-o", path)
    return x509.load_pem_x509_certificate(base64.b64decode(text)).serial_number
