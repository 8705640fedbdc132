"""Two releases side by side, each a tenant in a namespace of its own."""

from __future__ import annotations

from tests.cluster.world import CHART, World, tag

_SECOND, _PORT = "second", 30095
#: so that two releases fit into a node of two cores
_REQUESTS = {"decode": "100m", "pruneEncode": "100m", "prefill": "100m", "tryout.kafka": "100m"}


def refuse_third(world: World) -> None:
    """A namespace has one tenant."""
    options = ("--namespace", _SECOND, "--set", f"image.tag={tag()}")
    said = world.cluster.helm("install", "third", str(CHART), *options, check=False)
    world.check(said, f"the namespace {_SECOND} has the release other")


def refuse_other_prefix(world: World) -> None:
    """A release keeps the prefix of its topics."""
    options = ("--namespace", _SECOND, "--reuse-values", "--set", "kafka.prefix=site-a.")
    said = world.cluster.helm("upgrade", "other", str(CHART), *options, check=False)
    world.check(said, "kafka.prefix: the release runs with the prefix")


def run(world: World) -> None:
    """Both get the films of their own; uninstalling one leaves the other alone."""
    small = [
        word for part, cpu in _REQUESTS.items() for word in ("--set", f"{part}.resources.requests.cpu={cpu}")
    ]
    with world.namespace(_SECOND):
        # the second one as a user that the images do not know
        world.install(*small, "--set", "runAsUser=20002", name="other", namespace=_SECOND, outside_port=_PORT)
        refuse_third(world)
        refuse_other_prefix(world)
        with world.release(*small):
            first, second = world.client(), world.client(_PORT)
            world.ask(first)
            world.ask(second)
            world.ensure_reference(first)
            world.play(lambda: first, "first-")
            world.play(lambda: second, "second-")
            world.count(first, "first-")
            world.count(second, "second-")
            mixed = [len(first.read("second-").verdicts), len(second.read("first-").verdicts)]
            if any(mixed):
                world.wrong.append(f"verdicts in the other release's topics: {mixed}")
        world.tell("the first release is gone")
        world.one_film(second, "after-")
        world.uninstall("other", _SECOND)
