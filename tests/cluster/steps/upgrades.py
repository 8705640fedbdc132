"""A release of version 0.2.0 becomes this one: its resource definitions, its values and its resources."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from tests import previous
from tests.cluster import storage
from tests.cluster.chart import CRD_CHART
from tests.cluster.outside import QUESTIONS
from tests.cluster.steps.watches import status, until
from tests.cluster.tools import CACHE, ToolError
from tests.cluster.world import CHART, LONG_SILENCE_S, NAMESPACE, RELEASE, World

_DEFINITIONS = "lookout-crds"
#: what the schema of 0.2.0 took, and cannot be followed
_OLD_WATCHES: dict[str, dict[str, object]] = {
    "wide": {"question": "Is it dark?", "minYes": 3, "ofLast": 100},
    "america": {
        "question": "Is it dark?",
        "schedule": [{"start": "08:00", "end": "18:00", "timeZone": "America"}],
    },
}
#: what the controller of 0.2.0 was told: its images are not built here, and today's refuse the old names
_RENAMED = {"LOOKOUT_CREDENTIAL_NAME": "LOOKOUT_GRPC_TLS_NAME"}
_OLD_CAMERA = {"url": "rtsp://192.0.2.1/stream?user=admin&password=secret", "paused": True}


def run(world: World) -> None:
    """Install the old chart, upgrade definitions and release while cameras publish."""
    _forget_definitions(world)
    storage.provide(world.cluster, ["kafka"])
    try:
        with world.namespace():
            world.install(
                *("--set", "tryout.kafka.storage.size=5Gi"),
                *("--set", f"tryout.kafka.storage.className={storage.CLASS}"),
                *("--set", f"decode.settings.silence_s={LONG_SILENCE_S:.0f}"),
                chart=previous_chart(),
            )
            _play(world)
            # Before the look at what the release leaves behind; the definitions themselves stay.
            world.cluster.helm("uninstall", _DEFINITIONS, "--namespace", NAMESPACE, "--wait")
            world.uninstall()
    finally:
        storage.remove(world.cluster, ["kafka"])


def previous_chart() -> Path:
    """Return the chart of version 0.2.0, out of the repository's history.

    Raises:
        ToolError: The history is not there, as in a shallow clone.
    """
    try:
        chart = previous.unpack(CACHE / "previous", "charts/lookout") / "charts" / "lookout"
    except FileNotFoundError as error:
        raise ToolError(str(error)) from error
    controller = chart / "templates" / "controller.yaml"
    text = controller.read_text()
    for old, new in _RENAMED.items():
        assert old in text, f"{controller} does not set {old}"
        text = text.replace(old, new)
    controller.write_text(text)
    return chart


def _forget_definitions(world: World) -> None:
    """Remove what other steps left: helm brings definitions to a cluster that has none."""
    names = [f"{kind}.lookout.dev" for kind in ("cameras", "watches", "recordings")]
    world.cluster.kubectl("delete", "crd", *names, "--ignore-not-found", "--timeout=120s")


def _play(world: World) -> None:
    client = world.client()
    world.ask(client)
    world.ensure_reference(client, LONG_SILENCE_S)
    world.apply("Watch", "ordinary", {"question": QUESTIONS["person"], "cameras": ["ordinary-*"]})
    for name, spec in _OLD_WATCHES.items():
        world.check(world.apply("Watch", name, spec), "created")
    world.check(world.apply("Camera", "leaky", _OLD_CAMERA), "created")
    steps = (upgrade_definitions, upgrade_release)
    world.play_during(lambda: client, "upgraded-", [partial(step, world) for step in steps])
    world.count(client, "upgraded-", LONG_SILENCE_S)
    old_resources(world)


def upgrade_definitions(world: World) -> str:
    """The definitions become those of this version, as a release of their own."""
    options = ("--namespace", NAMESPACE, "--take-ownership")
    world.cluster.helm("upgrade", "--install", _DEFINITIONS, str(CRD_CHART), *options)
    return "the definitions are those of this version: " + ", ".join(
        world.cluster.kubectl("get", "crd", "-o", "name").split()
    )


def upgrade_release(world: World) -> str:
    """The release becomes this version with the values it had."""
    options = ("--reset-then-reuse-values", "--skip-crds", "--wait", "--timeout", "600s")
    world.cluster.helm("upgrade", RELEASE, str(CHART), "--namespace", NAMESPACE, *options)
    return "the release is of this version"


def old_resources(world: World) -> None:
    """What can be followed is followed; what cannot says why, can be corrected and deleted."""
    for name in ("watch/wide", "watch/america", "camera/leaky"):
        refused = until(f"{name} has a status", lambda name=name: _accepted(world, name), bool)  # type: ignore[misc]
        world.tell(f"{name}: Accepted={refused.get('status')}: {refused.get('message')}")
        if refused["status"] != "False":
            world.wrong.append(f"{name} is accepted and cannot be followed")
    world.check(_accepted(world, "watch/ordinary").get("status", ""), "True")
    world.check(world.apply("Watch", "another", _OLD_WATCHES["wide"]), "ofLast")
    world.check(world.apply("Watch", "wide", {**_OLD_WATCHES["wide"], "ofLast": 10}), "configured")
    until("a corrected Watch is accepted", lambda: _accepted(world, "watch/wide"), _is_true)
    for name in ("watch/wide", "watch/america", "watch/ordinary", "camera/leaky"):
        world.check(world.kubectl("delete", name, "--timeout=60s", check=False), "deleted")
    world.tell("resources of 0.2.0 were followed or refused in words, corrected and deleted")


def _accepted(world: World, name: str) -> dict[str, str]:
    conditions: list[dict[str, str]] = status(world, name).get("conditions", [])
    return next((condition for condition in conditions if condition["type"] == "Accepted"), {})


def _is_true(condition: dict[str, str]) -> bool:
    return condition.get("status") == "True"
