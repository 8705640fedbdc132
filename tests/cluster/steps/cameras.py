"""Camera resources against real RTSP servers outside the cluster; the agent that pulls one dies."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.cluster.cluster import OUTSIDE, OUTSIDE_ADDRESS
from tests.cluster.outside import QUESTIONS
from tests.cluster.steps.watches import status, until
from tests.cluster.tools import CACHE, ToolError
from tests.cluster.world import RELEASE, World
from tests.rtsp_camera import RtspCamera, missing_packages, repeated
from watchbench.cameras import DEMO, camera

_USER, _PASSWORD = "viewer", "p@ss/word"
_FIRST_PORT = 8554
_MINUTES_OF_FILM = 20


def run(world: World) -> None:
    """Three cameras over TCP, UDP and with a password; verdicts come; one agent dies."""
    if packages := missing_packages():
        raise ToolError(f"no RTSP server here: install the Debian packages {' '.join(packages)}")
    with servers(_film()) as (plain, udp, secured), world.namespace():
        world.kubectl(
            *("create", "secret", "generic", "yard"),
            *(f"--from-literal=username={_USER}", f"--from-literal=password={_PASSWORD}"),
            f"--from-literal=hosts={OUTSIDE_ADDRESS}",
        )
        world.install(
            *("--set", "cameraAgent.enabled=true", "--set", "cameraAgent.replicas=2"),
            *("--set", f"cameraAgent.cameraNetworks[0]={OUTSIDE_ADDRESS}/32"),
            *("--set", "cameraAgent.credentialSecrets[0]=yard"),
        )
        cameras: dict[str, dict[str, object]] = {
            "plain": {"url": plain.url, "segmentSeconds": 2},
            "udp": {"url": udp.url, "transport": "udp", "segmentSeconds": 2},
            "secured": {"url": secured.url, "segmentSeconds": 2, "credentialsSecret": "yard"},
        }
        for name, spec in cameras.items():
            world.check(world.apply("Camera", name, spec), "created")
        world.apply("Watch", "person", {"question": QUESTIONS["person"]})
        for name in cameras:
            until(f"camera {name} streams", lambda name=name: status(world, f"camera/{name}"), _streams)  # type: ignore[misc]
        world.tell("kubectl get cameras:\n" + world.kubectl("get", "cameras"))
        for name in cameras:
            found = until(
                f"three verdicts of {name}",
                lambda name=name: world.client().read(name).committed,  # type: ignore[misc]
                lambda count: count >= 3,
            )
            world.tell(f"{name}: {found} verdicts")
        say_what_is_wrong(world)
        lose_agent(world, "plain")
        reboot(world, plain, "plain")
        world.uninstall()


def say_what_is_wrong(world: World) -> None:
    """A camera at an address that nobody has: its status says so."""
    world.check(world.apply("Camera", "nowhere", {"url": "rtsp://nowhere.invalid/stream"}), "created")
    found = until(
        "the status says what is wrong",
        lambda: _streaming(status(world, "camera/nowhere")),
        lambda found: found.get("reason") == "Reconnecting",
    )
    world.check(found["message"], "cannot reach nowhere.invalid")
    world.tell(f"a camera with a wrong address: {found['message']}")


def lose_agent(world: World, name: str) -> None:
    """The agent that pulls a camera dies and does not come back: the other one continues."""
    before = status(world, f"camera/{name}")
    nodes = world.cluster.kubectl("get", "nodes", "-o", "jsonpath={.items[*].metadata.name}").split()
    world.cluster.kubectl("cordon", *nodes)
    try:
        begun = time.monotonic()
        world.kubectl("delete", f"pod/{before['agent']}", "--grace-period=0", "--force")
        after = until(
            f"camera {name} moves",
            lambda: status(world, f"camera/{name}"),
            lambda found: found.get("agent") not in ("", before["agent"]) and _streams(found),
        )
        seconds = time.monotonic() - begun
        world.tell(f"{before['agent']} died: {name} streams from {after['agent']} after {seconds:.0f} s")
    finally:
        world.cluster.kubectl("uncordon", *nodes)
    world.kubectl("rollout", "status", f"statefulset/{RELEASE}-camera-agent", "--timeout=120s")


def reboot(world: World, server: RtspCamera, name: str) -> None:
    """A camera that goes away says so in its status, and streams again once it is back."""
    server.off()
    # While a camera moves to another agent it does not stream either, and nothing is wrong.
    gone = until(
        f"{name} is gone",
        lambda: _streaming(status(world, f"camera/{name}")),
        lambda found: found.get("reason") == "Reconnecting",
    )
    said = gone["message"]
    server.on()
    until(f"{name} is back", lambda: status(world, f"camera/{name}"), _streams)
    world.tell(f"{name} rebooted; meanwhile its status said {said!r}")


def _streams(found: dict[str, Any]) -> bool:
    conditions = {each["type"]: each["status"] for each in found.get("conditions", ())}
    return conditions.get("Streaming") == "True" and int(found.get("segments", 0)) > 0


def _streaming(found: dict[str, Any]) -> dict[str, str]:
    conditions: dict[str, dict[str, str]] = {each["type"]: each for each in found.get("conditions", ())}
    return conditions.get("Streaming", {})


def _film() -> Path:
    folder = CACHE / "films" / "long"
    folder.mkdir(parents=True, exist_ok=True)
    target = folder / "camera.mp4"
    if not target.exists():
        repeated(camera(DEMO[0], CACHE / "films" / "films").path, folder / "made.mp4", 2 * _MINUTES_OF_FILM)
        (folder / "made.mp4").rename(target)
    return target


@contextmanager
def servers(film: Path) -> Iterator[list[RtspCamera]]:
    """Run three cameras beside the cluster; the last one asks for a password."""
    prefix = ("ip", "netns", "exec", OUTSIDE)
    options: list[tuple[str, ...]] = [(), (), ("--user", _USER, "--password", _PASSWORD, "--digest")]
    made = [
        RtspCamera(film, *each, address=OUTSIDE_ADDRESS, prefix=prefix, port=_FIRST_PORT + index)
        for index, each in enumerate(options)
    ]
    try:
        for each in made:
            each.on()
        yield made
    finally:
        for each in made:
            each.off()
