"""A release's folder alone: its images and model imported into a node without a way out, then its chart."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import time
from pathlib import Path

from tests.cluster import workshop
from tests.cluster.cluster import OUTSIDE
from tests.cluster.tools import BIN, CACHE, ToolError
from tests.cluster.world import IMAGES, NAMESPACE, RELEASE, World

_HOME = CACHE / "bundle"
_PATIENCE_S = 600.0
_CONNECT = "import socket,sys; socket.create_connection((sys.argv[1], int(sys.argv[2])), 3)"


def run(world: World) -> None:
    """Install from a release's files alone, and see one alert."""
    try:
        folder, version = make(world)
        check_cut_off(world)
        for part in ("images", "model"):
            (archive,) = (folder / part).glob("*.tar")
            said = world.cluster.load_archive(archive)
            size = archive.stat().st_size / 1e9
            world.tell(f"imported {archive.name}, {size:.2f} GB: {len(said.splitlines())} lines said")
        with world.namespace():
            install(world, folder / "charts" / f"lookout-{version}.tgz", version)
            world.cluster.helm("test", RELEASE, "--namespace", NAMESPACE, "--timeout", "180s")
            first_alert(world)
            world.uninstall()
    finally:
        shutil.rmtree(_HOME, ignore_errors=True)


def make(world: World) -> tuple[Path, str]:
    """Make the images, charts and model of a release, or take the one of `LOOKOUT_RELEASE`; where it is.

    Raises:
        ToolError: It was not made, or its sums are wrong.
    """
    if given := os.environ.get("LOOKOUT_RELEASE"):
        return _checked(world, Path(given))
    shutil.rmtree(_HOME, ignore_errors=True)
    without = [word for part in ("packages", "sbom", "docs") for word in ("--without", part)]
    images = [word for image in IMAGES for word in ("--image", image)]
    command = [sys.executable, "docker/release.py", "--anyway", "--out", str(_HOME), *without, *images]
    environment = {**workshop.environment(), "LOOKOUT_HELM": str(BIN / "helm")}
    environment = {name: value for name, value in environment.items() if name not in _NAMES}
    done = subprocess.run(
        command, cwd=workshop.ROOT, env=environment, check=False, capture_output=True, text=True
    )
    if done.returncode:
        raise ToolError(f"docker/release.py: {done.stderr[-800:]}")
    return _checked(world, Path(json.loads(done.stdout.splitlines()[-1])["folder"]))


def _checked(world: World, folder: Path) -> tuple[Path, str]:
    """Compare a release's files with its sums."""
    sums = ["sha256sum", "--check", "--quiet", "SHA256SUMS"]
    if subprocess.run(sums, cwd=folder, check=False, capture_output=True).returncode:
        raise ToolError(f"{folder}: the sums are wrong")
    count = len((folder / "SHA256SUMS").read_text().splitlines())
    world.tell(f"a release of {count} files in {', '.join(sorted(each.name for each in folder.iterdir()))}")
    return folder, folder.name


#: of the images under test, which are others than a release's
_NAMES = ("LOOKOUT_IMAGE_TAG", "LOOKOUT_IMAGE_PREFIX")


def check_cut_off(world: World) -> None:
    """This machine's own addresses answer here, and neither in the node nor where its default route ends."""
    listed = subprocess.run(
        ["ip", "-json", "-4", "address", "show", "scope", "global"],
        check=True,
        capture_output=True,
        text=True,
    )
    own = [info["local"] for each in json.loads(listed.stdout) for info in each["addr_info"]]
    if not own:
        world.tell("this machine has no address of its own: there is nothing outside to reach")
    with socket.create_server(("0.0.0.0", 0)) as server:
        port = str(server.getsockname()[1])
        for address in own:
            socket.create_connection((address, int(port)), 3).close()
            for place in ("lookout-node1", OUTSIDE):
                command = ["ip", "netns", "exec", place, sys.executable, "-c", _CONNECT, address, port]
                if subprocess.run(command, check=False, capture_output=True).returncode == 0:
                    world.wrong.append(f"{place} reaches this machine's network at {address}")
    world.tell(f"cut off: {len(own)} addresses that answer here do not answer in the node")


def install(world: World, chart: Path, version: str) -> None:
    """Install a chart's package as docs/releases.md says."""
    values = {
        "tryout.kafka.outside.host": world.cluster.address,
        "model.source": "image",
        "model.image.reference": f"localhost/lookout-model:{version}",
        "model.image.path": "tiny",
    }
    words = [word for name, value in values.items() for word in ("--set-string", f"{name}={value}")]
    where = ("--namespace", NAMESPACE, "--wait", "--timeout", "600s")
    world.cluster.helm("install", RELEASE, str(chart), *where, *words)
    spec = world.kubectl("get", f"statefulset/{RELEASE}-prefill", "-o", "jsonpath={.spec.template.spec}")
    world.check(spec, values["model.image.reference"])
    world.tell("installed, every pod is ready")


def first_alert(world: World) -> None:
    """Publish the films and wait for an alert.

    Raises:
        ToolError: None came.
    """
    client = world.client()
    world.ask(client)
    begun = time.monotonic()
    for film in world.cast:
        client.publish(f"bundle-{film.name}", film.segments)
    while not (found := client.read("bundle-")).alerts:
        if time.monotonic() - begun > _PATIENCE_S:
            raise ToolError(f"no alert came within {_PATIENCE_S:.0f} s; {found.committed} verdicts")
        time.sleep(1.0)
    world.score.alert_s = round(time.monotonic() - begun, 1)
    world.tell(f"the first alert after {world.score.alert_s} s")
