"""Three brokers and a Redis of the platform, with client certificates and passwords from existing secrets."""

from __future__ import annotations

import time
from functools import partial

from tests.cluster import storage, three_brokers
from tests.cluster.outside import ExternalClient
from tests.cluster.tools import ToolError
from tests.cluster.world import CHART, NAMESPACE, RELEASE, World, image_name, tag

#: longer than a publisher waits while a broker is away
_SILENCE_S = 60.0
#: a broker that is back copies what it missed before the next one dies
_CATCH_UP_S = 15.0


def run(world: World) -> None:
    """Play the films while a password changes and each broker is killed once; nothing is lost."""
    names = [f"broker-{number}" for number in range(three_brokers.COUNT)] + [three_brokers.REDIS_PROGRAM]
    three_brokers.provide_redis()
    storage.provide(world.cluster, names)
    try:
        with world.namespace():
            values = three_brokers.start(world.cluster, NAMESPACE, image_name("tryout"))
            world.tell("three brokers and a Redis ask for certificates and passwords")
            refuse_wrong_password(world, values)
            values += [
                "--set",
                "topics.partitions=4",
                "--set",
                "topics.retentionHours.camera\\.segments\\.v1=6",
            ]
            world.install(*values, "--set", f"decode.settings.silence_s={_SILENCE_S:.0f}")
            world.cluster.helm("test", RELEASE, "--namespace", NAMESPACE, "--timeout", "180s")
            world.tell("helm test passed")
            _play(world)
            world.uninstall()
    finally:
        storage.remove(world.cluster, names)


def _play(world: World) -> None:
    def client() -> ExternalClient:
        return ExternalClient(world.cluster, three_brokers.outside_addresses(world.cluster, NAMESPACE))

    world.ask(client())
    world.ensure_reference(client(), _SILENCE_S)

    def kill(number: int) -> str:
        said = three_brokers.kill_one(world.cluster, NAMESPACE, number)
        time.sleep(2.0)
        world.kubectl("rollout", "status", f"statefulset/{three_brokers.NAME}", "--timeout=300s")
        time.sleep(_CATCH_UP_S)
        return said

    def change() -> str:
        return three_brokers.change_password(world.cluster, NAMESPACE, pod)

    # Once the brokers are killed, who has the password from before cannot log in any more.
    pod = f"{RELEASE}-{three_brokers.OWN_USER}-0"
    begun = _process(world, pod)
    kills = [partial(kill, number) for number in range(three_brokers.COUNT)]
    world.play_during(client, "three-", [change, *kills])
    world.count(client(), "three-", _SILENCE_S)
    if (process := _process(world, pod)) != begun:
        raise ToolError(f"{pod} started again for a new password: {begun} became {process}")


def _process(world: World, pod: str) -> str:
    """Which container of a pod runs."""
    return world.kubectl("get", "pod", pod, "-o", "jsonpath={.status.containerStatuses[0].containerID}")


def refuse_wrong_password(world: World, values: list[str]) -> None:
    """An install whose Kafka password is wrong fails in its first job, and helm shows why."""
    literals = ("--from-literal=username=fleet", "--from-literal=password=wrong")
    world.kubectl("create", "secret", "generic", "wrong-user", *literals)
    options = [*values, "--set", "kafka.sasl.secret=wrong-user", "--set", f"image.tag={tag()}"]
    command = ("install", RELEASE, str(CHART), "--namespace", NAMESPACE, *options)
    said = world.cluster.helm(*command, "--wait", "--timeout", "600s", check=False)
    world.check(said, "failed pre-install", "Kafka rejects the connection")
    world.tell(f"a wrong password is refused: {said.strip()[-600:]}")
    world.cluster.helm("uninstall", RELEASE, "--namespace", NAMESPACE, "--wait", check=False)
    world.kubectl("delete", "job", "-l", "app.kubernetes.io/part-of=lookout", check=False)
