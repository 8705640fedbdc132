"""A canary answers every camera with another model while pods are killed; then it is promoted."""

from __future__ import annotations

import json
import sys
from functools import partial
from pathlib import Path

from safetensors.torch import load_file, save_file

from tests.cluster import storage
from tests.cluster.outside import ExternalClient
from tests.cluster.steps.models import copy_model
from tests.cluster.world import RELEASE, World, kill_pod

_CLAIM = "canary"
_STAGES = ("canary-prune-encode", "canary-prefill")
_LEAST_WINDOWS = 100
#: the other model differs from the bundled one in each weight, by this factor
_FACTOR = 1.03
#: so near are both models that they rarely disagree
_DIFFER = 0.1
_REQUESTS = {"pruneEncode": "100m", "prefill": "100m"}


def run(world: World) -> None:
    """Try a model, kill pods of both, compare, promote."""
    write_model(storage.folder(_CLAIM) / "new")
    storage.provide(world.cluster, [_CLAIM])
    try:
        with world.namespace():
            world.kubectl("apply", "-f", "-", stdin=storage.claim(_CLAIM))
            requests = [
                word
                for part, cpu in _REQUESTS.items()
                for word in ("--set", f"canary.{part}.resources.requests.cpu={cpu}")
            ]
            share = ("--set-json", "canary.share=1")
            world.install("--set", "canary.enabled=true", *share, *requests, *_model("canary.model"))
            _try(world)
            world.upgrade("--set", "canary.enabled=false", *_model("model"))
            _promoted(world)
            world.uninstall()
    finally:
        storage.remove(world.cluster, [_CLAIM])


def write_model(target: Path) -> None:
    """Write a checkpoint like the bundled one with other weights."""
    copy_model(target)
    weights = load_file(target / "model.safetensors")
    changed = {name: _FACTOR * weight for name, weight in weights.items()}
    save_file(changed, target / "model.safetensors", {"format": "pt"})
    (target / "model.safetensors").chmod(0o644)  # pods are another user


def _model(where: str) -> list[str]:
    values = {"source": "volume", "volume.claim": _CLAIM, "volume.path": "new"}
    return [word for name, value in values.items() for word in ("--set", f"{where}.{name}={value}")]


def _try(world: World) -> None:
    """The fleet's outcomes are what they are without a canary, and the canary has one for each."""
    client = world.client()
    world.ask(client)
    world.ensure_reference(client)
    third = world.pieces // 3
    kills = {third: partial(kill_pod, world, _STAGES), 2 * third: partial(kill_pod, world)}
    world.play(lambda: client, "tried-", kills)
    world.count(client, "tried-")
    compared = compare(world, client)
    world.tell(f"the canary: {compared['decision']}: {compared['why']}")
    answered = compared["pairs"] + compared["partial"] + compared["gained"] + compared["neither"]
    lost = compared["missing"] or compared["doubled"] or compared["unanswered"]
    if compared["decision"] != "promote" or lost or answered < _LEAST_WINDOWS:
        world.wrong.append(f"the comparison says {json.dumps(compared)[:600]}")


def compare(world: World, client: ExternalClient) -> dict[str, object]:
    """Return what `lookout canary` says outside the cluster."""
    words = ("canary", "--json", "--camera", "tried-*", "--windows", str(_LEAST_WINDOWS))
    command = (sys.executable, "-m", "lookout.cli", *words, "--differ", str(_DIFFER))
    said: dict[str, object] = json.loads(world.cluster.outside(*command, "-b", client.bootstrap))
    return said


def _promoted(world: World) -> None:
    """The release answers with the new model, and the canary's pods are gone."""
    folder = world.kubectl(
        *("get", f"statefulset/{RELEASE}-prefill", "-o"),
        "jsonpath={.spec.template.spec.containers[0].env[?(@.name=='LOOKOUT_MODEL_DIR')].value}",
    )
    world.check(folder, "/model/new")
    for stage in _STAGES:
        label = f"app.kubernetes.io/component={stage}"
        world.kubectl("wait", "--for=delete", "pod", "-l", label, "--timeout=120s")
    world.one_film(world.client(), "promoted-")
    world.tell("the new model is the release's, and the canary's pods are gone")
