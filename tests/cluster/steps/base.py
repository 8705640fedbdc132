"""What a client does first: install, test, publish, read alerts; then pods die, and it is uninstalled."""

from __future__ import annotations

from tests.cluster.steps import watches
from tests.cluster.world import NAMESPACE, RELEASE, World, kill_pod


def run(world: World) -> None:
    """Alerts undisturbed, then the same outcomes while pods are killed."""
    with world.release():
        world.cluster.helm("test", RELEASE, "--namespace", NAMESPACE, "--timeout", "180s")
        world.tell("helm test passed")
        client = world.client()
        world.ask(client)
        world.undisturbed(client)
        kills = {index: lambda: kill_pod(world) for index in range(3, world.pieces, 4)}
        world.play(lambda: client, "storm-", kills, pause_s=0.8)
        world.count(client, "storm-")
        watches.wrong_resources(world)
        watches.accepted_resources(world)
