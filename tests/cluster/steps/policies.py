"""NetworkPolicies, enforced by nft in the nodes: the fleet works, and what they do not name is refused.

The namespaces deny everything before `helm install`, as a careful platform's do.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

from tests.cluster.enforce import Enforcer
from tests.cluster.world import CHART, NAMESPACE, RELEASE, World, image_name, kill_pod, tag

_STRANGER = "client"
_DENY = """apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: deny-everything}
spec: {podSelector: {}, policyTypes: [Ingress, Egress]}
"""
_CONNECT = (
    "import socket,sys\n"
    "try:\n socket.create_connection((sys.argv[1], int(sys.argv[2])), 4).close(); print('open')\n"
    "except OSError as error: print('closed:', error)\n"
)


def run(world: World) -> None:
    """Install, play, refuse and uninstall under enforcement, in namespaces that deny everything themselves.

    Connections that no policy allows are tried with and without enforcement.
    """
    with world.namespace(), world.namespace(_STRANGER):
        world.kubectl("apply", "-f", "-", stdin=_DENY)
        with enforced(world):
            world.install("--set", "controller.replicas=1")
        world.cluster.kubectl(*("-n", _STRANGER, "apply", "-f", "-"), stdin=_pod(image_name("controller")))
        world.cluster.kubectl("-n", _STRANGER, "wait", "--for=condition=Ready", "pod/client", "--timeout=60s")
        before = {place: reach(world, *place) for place in forbidden(world)}
        world.wrong += [
            f"{place} is not even open without enforcement" for place, found in before.items() if not found
        ]
        with enforced(world) as enforcer:
            _play(world, enforcer)
            world.cluster.helm("test", RELEASE, "--namespace", NAMESPACE, "--timeout", "180s")
            fail_in_its_first_job(world)
            world.uninstall()


@contextmanager
def enforced(world: World) -> Iterator[Enforcer]:
    """Enforce policies for a while."""
    enforcer = Enforcer(world.cluster)
    try:
        world.tell(f"{enforcer.start()} rules are enforced")
        yield enforcer
    finally:
        enforcer.stop()


def fail_in_its_first_job(world: World) -> None:
    """A release in a namespace that denies everything reads another one's topics and refuses them.

    Its first job runs before the release has objects, and the last one after it never had any.
    """
    name = "tenant"
    values = {
        "image.tag": tag(),
        "tryout.enabled": "false",
        "kafka.bootstrap": f"{RELEASE}-tryout-kafka.{NAMESPACE}.svc:9092",
        "redis.url": f"redis://{RELEASE}-tryout-redis.{NAMESPACE}.svc:6379/0",
        "topics.partitions": "13",
    }
    options = [word for key, value in values.items() for word in ("--set", f"{key}={value}")]
    with world.namespace(name):
        world.cluster.kubectl("-n", name, "apply", "-f", "-", stdin=_DENY)
        said = world.cluster.helm("install", RELEASE, str(CHART), "--namespace", name, *options, check=False)
        world.check(said, "failed pre-install", "has 12 partitions, but topics.partitions is 13")
        # helm keeps a job that failed, for people to read.
        world.cluster.kubectl("-n", name, "delete", "job", "-l", "app.kubernetes.io/component=topics")
        world.uninstall(namespace=name)
    world.tell("a first job behind the namespace's own policy saw Kafka, refused its topics and left nothing")


def _play(world: World, enforcer: Enforcer) -> None:
    client = world.client()
    world.ask(client)
    world.ensure_reference(client)
    world.apply("Watch", "policed", {"question": "Is anyone there?", "cameras": ["none"]})
    world.check(
        world.kubectl("wait", "--for=condition=Accepted", "watch/policed", "--timeout=90s", check=False),
        "condition met",
    )

    kill = partial(kill_pod, world, ("prune-encode", "prefill"))
    world.play(lambda: client, "policed-", {world.pieces // 2: kill})
    world.count(client, "policed-")
    # The new pod may have tried in vain until it had its rules: from here nothing needed may be dropped.
    enforcer.reset()
    world.one_film(client, "allowed-")
    if dropped := enforcer.dropped():
        world.wrong.append(f"packets of the release itself were dropped: {dropped}")
    for place in forbidden(world):
        if reach(world, *place):
            world.wrong.append(f"{place} is reachable although no policy allows it")
    world.tell(f"refused: {', '.join(' -> '.join(map(str, place)) for place in forbidden(world))}")
    world.tell(f"dropped packets by direction and pod: {enforcer.dropped()}")


def forbidden(world: World) -> list[tuple[str, str, int]]:
    """Return connections that no policy allows: from (a component, or the client), to, port."""
    redis = address(world, "tryout-redis")
    return [
        ("alerts", address(world, "decode"), 50051),
        ("decode", address(world, "prune-encode"), 50051),
        ("alerts", address(world, "prefill"), 9090),
        ("decode", "10.96.0.1", 443),
        (_STRANGER, redis, 6379),
        (_STRANGER, address(world, "prune-encode"), 50051),
        (_STRANGER, address(world, "decode"), 9090),
    ]


def address(world: World, component: str) -> str:
    """Return the address of a component's first pod."""
    label = f"app.kubernetes.io/component={component}"
    return world.kubectl("get", "pods", "-l", label, "-o", "jsonpath={.items[0].status.podIP}").strip()


def reach(world: World, component: str, host: str, port: int) -> bool:
    """Return whether a component's pod, or the client, can open a connection."""
    space, pod = (_STRANGER, "client") if component == _STRANGER else ("cameras", f"{RELEASE}-{component}-0")
    said = world.cluster.kubectl(
        *("-n", space, "exec", pod, "--", "python", "-c", _CONNECT, host, str(port)), check=False
    )
    if "open" not in said and "closed" not in said:
        world.wrong.append(f"{component} cannot be asked: {said[-300:]}")
    return "open" in said


def _pod(image: str) -> str:
    return f"""apiVersion: v1
kind: Pod
metadata: {{name: client}}
spec:
  terminationGracePeriodSeconds: 1
  securityContext: {{runAsNonRoot: true, runAsUser: 10001, seccompProfile: {{type: RuntimeDefault}}}}
  containers:
    - name: client
      image: {image}
      imagePullPolicy: Never
      command: [python, -c, "import time; time.sleep(3600)"]
      securityContext: {{allowPrivilegeEscalation: false, capabilities: {{drop: [ALL]}}}}
"""
