"""``python -m tests.cluster.in_image STORAGE CONTAINER MODULE``: a service in a container of buildah's.

Settings of the environment go along; a `Fleet` runs it as one of its services. STORAGE is buildah's
configuration: a fleet's services do not get this command's setting of where it is.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Container, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from lookout.local.fleet import service_module
from lookout.models import TINY
from lookout.wire import Stage
from tests.cluster import workshop
from tests.cluster.cluster import Cluster

USER = "10001:10001"
PACKAGES = "opt/lookout/lib/python3.11/site-packages"
PATIENCE_S = 300.0
#: what buildah prints last when a program fails
_BUILDAH = ("subprocess exited with status", "Error: exit status")
#: stages that load a checkpoint
MODELS = (Stage.PRUNE_ENCODE, Stage.PREFILL)


class Here(Cluster):
    """This machine, without a cluster."""

    prefix = ()


@contextmanager
def containers(images: Mapping[str, str]) -> Iterator[dict[str, str]]:
    """A container of each image, by the same keys; removed afterwards, with what still runs in them."""
    names = {key: workshop.buildah("from", "--pull-never", image).strip() for key, image in images.items()}
    roots = [str(mounted(name)) for name in names.values()]
    try:
        yield names
    finally:
        for process in Path("/proc").glob("[0-9]*"):
            try:
                if str((process / "root").readlink()) in roots:
                    os.kill(int(process.name), 9)
            except OSError:
                continue
        for name in names.values():
            workshop.buildah("rm", name)


def model_folder(stage: str, images: Container[str]) -> str:
    """Where a stage finds the tiny checkpoint: in its image, if it runs in one, or on this machine."""
    return f"/{PACKAGES}/lookout/models/tiny" if stage in images else str(TINY)


def mounted(container: str) -> Path:
    """Where a container's files are on this machine."""
    return Path(workshop.buildah("mount", container).strip())


def described(container: str) -> dict[str, int | str]:
    """Megabytes of an image's files, and the commit that it was built from."""
    said = subprocess.run(["du", "-xsm", str(mounted(container))], check=True, capture_output=True, text=True)
    label = '{{index .OCIv1.Config.Labels "org.opencontainers.image.revision"}}'
    revision = workshop.buildah("inspect", "--format", label, container).strip()
    return {"megabytes": int(said.stdout.split()[0]), "commit": revision}


def service(container: str, stage: str) -> tuple[str, ...]:
    """What `python -m` runs as a service of a `Fleet`, so that a stage runs in a container."""
    storage = workshop.environment()["CONTAINERS_STORAGE_CONF"]
    return "tests.cluster.in_image", storage, container, service_module(stage)


def run(
    container: str, words: Sequence[str], settings: Mapping[str, str], *options: str
) -> subprocess.CompletedProcess[str]:
    """Run words in a container and return what they said.

    Raises:
        subprocess.TimeoutExpired: They did not end by themselves.
    """
    return subprocess.run(
        command(container, words, settings, *options),
        env=workshop.environment(),
        check=False,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
    )


def ending(done: subprocess.CompletedProcess[str]) -> str:
    """How a program in a container ended: its exit code and its last line."""
    printed = (done.stdout + done.stderr).strip().splitlines()
    lines = [line for line in printed if not line.startswith(_BUILDAH)]
    return f"exit code {done.returncode}: {lines[-1][-300:] if lines else ''}"


def command(container: str, words: Sequence[str], settings: Mapping[str, str], *options: str) -> list[str]:
    """The command line of buildah that runs words in a container as its images' user."""
    given = [word for name, value in settings.items() for word in ("--env", f"{name}={value}")]
    return [
        "buildah",
        "run",
        "--isolation",
        "chroot",
        "--user",
        USER,
        *given,
        *options,
        container,
        "--",
        *words,
    ]


def main() -> None:
    """Become the service."""
    storage, container, *module = sys.argv[1:]
    settings = {name: value for name, value in os.environ.items() if name.startswith(("LOOKOUT_", "OMP_"))}
    environment = {**os.environ, "CONTAINERS_STORAGE_CONF": storage}
    os.execvpe("buildah", command(container, ["python", "-m", *module], settings), environment)


if __name__ == "__main__":
    main()
