"""The resource definitions get a second version: served, then stored, then alone. Nothing is lost."""

from __future__ import annotations

import json
import re
import runpy
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.cluster import workshop
from tests.cluster.steps.watches import until
from tests.cluster.world import CHART, NAMESPACE, World

_DERIVE = workshop.ROOT / "charts" / "derive.py"
_PAGE = workshop.ROOT / "docs" / "releases.md"
_OLD, _NEW = "v1", "v2"
#: one resource of each kind
SPECS: Mapping[str, dict[str, object]] = {
    "cameras": {"url": "rtsp://192.0.2.1/stream", "paused": True},
    "watches": {"question": "Is it dark?", "minYes": 2, "ofLast": 3, "cameras": ["yard-*"]},
    "recordings": {"recordings": ["file:///recordings/a.mp4"], "questions": ["Is it dark?"], "fps": 1.5},
    "notifications": {"webhook": {"url": "https://example.com/hook", "secrets": ["hook"]}},
}
_KINDS = {"cameras": "Camera", "watches": "Watch", "recordings": "Recording", "notifications": "Notification"}
_CRDS = [f"{plural}.lookout.dev" for plural in SPECS]


def run(world: World) -> None:
    """Go the way of docs/releases.md, with real resources."""
    world.cluster.kubectl("delete", "crd", *_CRDS, "--ignore-not-found", "--timeout=120s")
    try:
        with world.namespace():
            _define(world, {_OLD: True})
            for plural in SPECS:
                _create(world, plural, _OLD, "old")
                _write_status(world, plural, _OLD, "old")
            _define(world, {_OLD: True, _NEW: False})
            _both(world)
            _define(world, {_OLD: False, _NEW: True})
            _go(world)
            world.kubectl("delete", ",".join(SPECS), "--all", "--timeout=60s")
    finally:
        # Helm installs the chart's definitions only if the cluster has none.
        world.cluster.kubectl("delete", "crd", *_CRDS, "--ignore-not-found", "--timeout=120s")


def _define(world: World, stored: Mapping[str, bool]) -> None:
    """Apply the definitions with these versions, as charts/derive.py would write them."""
    world.cluster.apply("---\n".join(definitions(stored)))
    for plural in SPECS:
        for version in stored:
            until(
                f"{plural} are served in {version}",
                lambda plural=plural, version=version: world.kubectl(  # type: ignore[misc]
                    "get", f"{plural}.{version}.lookout.dev", check=False
                ),
                lambda said: "the server" not in said,
            )
    world.tell(f"versions, and whether they are stored: {dict(stored)}")


def definitions(stored: Mapping[str, bool]) -> list[str]:
    """Return the chart's definitions in these versions."""
    derive = runpy.run_path(str(_DERIVE))
    versions = [derive["Version"](name, stored=kept) for name, kept in stored.items()]
    files = sorted((CHART / "crds").glob("*.yaml"))
    return [derive["versioned"](path.read_text(), versions) for path in files]


def migration(page: Path = _PAGE) -> str:
    """Return the lines of the page on releases that store every resource in the new version."""
    found = re.search(r"```sh\n(for kind in .*?)```", page.read_text(), re.DOTALL)
    assert found is not None, f"{page} shows no migration"
    return found[1]


def _create(world: World, plural: str, version: str, name: str) -> None:
    resource = {
        "apiVersion": f"lookout.dev/{version}",
        "kind": _KINDS[plural],
        "metadata": {"name": name},
        "spec": SPECS[plural],
    }
    world.check(world.kubectl("apply", "-f", "-", stdin=json.dumps(resource), check=False), "created")


def _write_status(world: World, plural: str, version: str, name: str) -> None:
    """Write as the controller does, which knows one version."""
    condition = {
        "type": "Accepted",
        "status": "True",
        "reason": version,
        "message": "",
        "observedGeneration": 1,
    }
    condition["lastTransitionTime"] = "2026-01-01T00:00:00Z"
    patch = json.dumps({"status": {"conditions": [condition]}})
    where = (f"{plural}.{version}.lookout.dev", name)
    world.kubectl("patch", *where, "--subresource=status", "--type=merge", "--patch", patch)


def _read(world: World, version: str) -> dict[str, Any]:
    """What every resource says in a version, its name and the version itself aside."""
    found = {}
    for plural in SPECS:
        for item in world.cluster.get("-n", NAMESPACE, f"{plural}.{version}.lookout.dev")["items"]:
            world.check(item["apiVersion"], f"lookout.dev/{version}")
            found[f"{plural}/{item['metadata']['name']}"] = [item["spec"], item.get("status")]
    return found


def _both(world: World) -> None:
    """A resource of either version is the same in both, also after a client of the other one wrote it."""
    for plural in SPECS:
        _create(world, plural, _NEW, "new")
        _write_status(world, plural, _OLD, "new")
        _write_status(world, plural, _NEW, "old")
    _same(world, _read(world, _OLD), _read(world, _NEW))
    said = world.kubectl("get", f"watches.{_OLD}.lookout.dev")
    world.tell(f"{len(_read(world, _NEW))} resources are the same in both versions:\n{said}")


def _same(world: World, before: Mapping[str, Any], after: Mapping[str, Any]) -> None:
    if before != after or len(before) != 2 * len(SPECS):
        world.wrong.append(f"resources differ: {json.dumps(before)[:300]} and {json.dumps(after)[:300]}")


def _go(world: World) -> None:
    """The first version is refused its end while it is stored; after the migration it goes."""
    before = _read(world, _OLD)
    alone = "---\n".join(definitions({_NEW: True}))
    refused = world.cluster.kubectl("apply", "-f", "-", stdin=alone, check=False)
    world.check(refused, "must remain in spec.versions until a storage migration")
    words = " ".join(world.cluster.program("kubectl"))
    said = world.cluster.outside("sh", "-euc", f'kubectl() {{ {words} "$@"; }}\n{migration()}')
    world.tell(f"migrated: {' / '.join(said.split(chr(10))[:4])} ...")
    stored = world.cluster.kubectl("get", "crd", *_CRDS, "-o", "jsonpath={.items[*].status.storedVersions}")
    world.check(stored, *[f'["{_NEW}"]'] * len(SPECS))
    _define(world, {_NEW: True})
    _same(world, before, _read(world, _NEW))
    group = json.loads(world.cluster.kubectl("get", "--raw", "/apis/lookout.dev"))
    if (served := [version["version"] for version in group["versions"]]) != [_NEW]:
        world.wrong.append(f"the API server still serves {served}")
    world.tell(f"{_OLD} is gone; every resource is as it was")
