"""Camera and Watch resources: wrong ones, what `kubectl get` shows, a leader that dies."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, TypeVar

from tests.cluster.outside import QUESTIONS
from tests.cluster.tools import ToolError
from tests.cluster.world import World

T = TypeVar("T")
_PATIENCE_S = 180.0
LEASE = "lookout-controller"
#: resources that must be refused, by words of the refusal
WRONG_WATCHES: dict[str, dict[str, object]] = {
    "unknown field": {"question": "Is it?", "treshold": 0.5},
    "clearThreshold must not exceed": {"question": "Is it?", "threshold": 0.3, "clearThreshold": 0.6},
    "minYes must not exceed": {"question": "Is it?", "minYes": 3, "ofLast": 2},
    "question is blank": {"question": "   "},
    "Required value": {"threshold": 0.5},
}
WRONG_URLS = ("http://camera/stream", "rtsp://user:secret@camera/stream", "rtsp://", "camera")


def run(world: World) -> None:
    """Two controllers; a Watch is followed, the leader dies, the other one continues."""
    with world.release("--set", "controller.replicas=2"):
        wrong_resources(world)
        client = world.client()
        world.check(
            world.apply("Watch", "person", {"question": QUESTIONS["person"], "threshold": 0.5}), "created"
        )
        world.kubectl("wait", "--for=condition=Accepted", "watch/person", "--timeout=60s")
        time.sleep(2.0)
        film = world.cast[0]
        client.publish(f"followed-{film.name}", film.segments)
        shown = until(
            "a Watch shows verdict and coverage",
            lambda: status(world, "watch/person"),
            lambda found: "lastVerdict" in found and "coverage" in found,
        )
        world.tell(
            f"status: {shown['lastVerdict']}, coverage {shown['coverage']}, open {shown['openIncidents']}"
        )
        until(
            "a Watch shows its open incident",
            lambda: status(world, "watch/person"),
            lambda found: bool(found.get("incident")),
        )
        world.tell("kubectl get watches:\n" + world.kubectl("get", "watches"))
        lose_leader(world)
        world.check(world.kubectl("delete", "watch/person", "--timeout=60s"), "deleted")
        world.tell("a Watch was deleted: its finalizer went with the record")
        tell_events(world)
        turn_off(world)


def tell_events(world: World) -> None:
    """A Watch that the controller refuses has an event, and another one once it is corrected."""
    spec: dict[str, object] = {"question": QUESTIONS["person"]}
    wrong = {**spec, "schedule": [{"start": "08:00", "end": "09:00", "timeZone": "Nowhere/Land"}]}
    for given in (wrong, spec):
        world.apply("Watch", "described", given)
        wanted = str(given is spec)
        world.kubectl("wait", f"--for=condition=Accepted={wanted}", "watch/described", "--timeout=60s")
    described = until(
        "kubectl describe shows both events",
        lambda: world.kubectl("describe", "watch/described"),
        lambda text: "no longer Invalid" in text,
    )
    world.check(described, "Warning")
    world.tell("events:" + described.rpartition("Events:")[2])
    world.check(world.kubectl("delete", "watch/described", "--timeout=60s"), "deleted")


def lose_leader(world: World) -> None:
    """Kill the controller that leads; the other one takes the lease and accepts a new resource."""
    before = holder(world)
    begun = time.monotonic()
    world.kubectl("delete", f"pod/{before}", "--grace-period=0", "--force")
    world.apply("Watch", "later", {"question": QUESTIONS["lying"], "cameras": ["followed-*"]})
    world.kubectl("wait", "--for=condition=Accepted", "watch/later", "--timeout=120s")
    after = holder(world)
    if after == before:
        world.wrong.append(f"{before} was killed and still leads")
    world.tell(
        f"{before} was killed; {after} leads and accepted a Watch after {time.monotonic() - begun:.0f} s"
    )


def turn_off(world: World) -> None:
    """An upgrade without the controller lets go of the resources: they can be deleted."""
    world.upgrade("--set", "controller.enabled=false")
    world.check(world.kubectl("delete", "watch/later", "--timeout=60s", check=False), "deleted")
    world.tell("the controller was turned off, and a Watch was deleted without it")


def holder(world: World) -> str:
    """Return the pod that holds the leader's lease."""
    return world.kubectl("get", f"lease/{LEASE}", "-o", "jsonpath={.spec.holderIdentity}").strip()


def status(world: World, resource: str) -> dict[str, Any]:
    """Return a resource's status."""
    return dict(world.cluster.get("-n", "cameras", resource).get("status", {}))


def until(what: str, ask: Callable[[], T], done: Callable[[T], bool]) -> T:
    """Ask until an answer is right.

    Raises:
        ToolError: It took too long; the last answer is in the message.
    """
    deadline = time.monotonic() + _PATIENCE_S
    while not done(found := ask()):
        if time.monotonic() > deadline:
            raise ToolError(f"{what}: not within {_PATIENCE_S:.0f} s; the last answer is {found}")
        time.sleep(1.0)
    return found


def wrong_resources(world: World) -> None:
    """Apply resources that must be refused."""
    for words, spec in WRONG_WATCHES.items():
        world.check(world.apply("Watch", "wrong", spec), words)
    for url in WRONG_URLS:
        world.check(world.apply("Camera", "wrong", {"url": url}), "url")
    if "wrong" in world.kubectl("get", "watches,cameras", check=False):
        world.wrong.append("a wrong resource was accepted")
    world.tell(f"{len(WRONG_WATCHES) + len(WRONG_URLS)} wrong resources refused")


def accepted_resources(world: World) -> None:
    """Apply right ones and leave them to the uninstallation."""
    world.apply("Watch", "resource", {"question": QUESTIONS["person"], "cameras": ["undisturbed-*"]})
    world.apply("Camera", "resource", {"url": "rtsp://192.0.2.1/stream", "paused": True})
    for kind in ("watch", "camera"):
        said = world.kubectl(
            "wait", "--for=condition=Accepted", f"{kind}/resource", "--timeout=60s", check=False
        )
        world.check(said, "condition met")
    world.tell("resources:\n" + world.kubectl("get", "watches,cameras"))
