"""Clusters that the tests do not build: one that a context of kubectl names, or one of kind or k3d.

Steps that need nodes of our own are left out there.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.cluster.cluster import Cluster
from tests.cluster.tools import BIN, CACHE, ToolError, say
from tests.cluster.world import LABEL

NAME = "lookout-test"
_FOLDERS = "its volumes are folders of our own nodes"
_ENFORCED = "our own enforcement of policies works in our own nodes"
_OUTSIDE = "it runs programs on a network beside our own nodes"
#: steps that need nodes of our own, and why
OWN_NODES = {
    "autoscaling": _OUTSIDE,
    "brokers": _FOLDERS,
    "bundle": "it imports archives into a node",
    "cameras": _OUTSIDE,
    "canary": _FOLDERS,
    "changes": f"it drains a node, and {_FOLDERS}",
    "gateway": _ENFORCED,
    "notify": _ENFORCED,
    "models": _FOLDERS,
    "nodes": "it kills a node",
    "policies": _ENFORCED,
    "recordings": _FOLDERS,
    "upgrades": f"it deletes definitions, and {_FOLDERS}",
    "versions": "it deletes definitions",
}
#: steps that change what all users of a cluster share
EVERYBODYS = {"extensions": "it installs and deletes the definitions of other operators"}


class ExistingCluster(Cluster):
    """A cluster that is there: no node of it is started, ended or touched.

    Args:
        context: Of kubectl's configuration.
        pushed: Where images were pushed before, so that the cluster pulls them; empty: they are loaded
            into the nodes with kind or k3d.
        kubeconfig: A file instead of the user's configuration.
    """

    prefix = ()

    def __init__(self, context: str, pushed: str = "", kubeconfig: Path | None = None) -> None:
        super().__init__()
        self.context = context
        self.pushed = pushed
        self._kubeconfig = kubeconfig
        self._begun = time.time_ns()
        self._address = ""

    @property
    def address(self) -> str:
        """A node's address: ports of services are reached there."""
        if not self._address:
            found: dict[str, str] = {}
            for node in self.get("nodes")["items"]:
                for entry in node["status"]["addresses"]:
                    found.setdefault(entry["type"], entry["address"])
            self._address = found.get("ExternalIP") or found.get("InternalIP") or ""
            if not self._address:
                raise ToolError(f"no node of {self.context} has an address")
        return self._address

    def left_out(self) -> Mapping[str, str]:
        """Return the steps that cannot run here, and why."""
        return {**OWN_NODES, **EVERYBODYS}

    def up(self) -> None:
        """Start nothing: it is there."""

    def down(self) -> None:
        """Leave it as it is."""

    def join(self) -> bool:
        """Use it as it is.

        Raises:
            ToolError: It does not answer.
        """
        say(f"the cluster of context {self.context} is used, at {self.address}")
        return True

    def check_programs(self) -> None:
        """Check that what the steps run is there, and say what will happen.

        Raises:
            ToolError: A program is missing, or images have no way into the nodes.
        """
        for name in ("kubectl", "helm"):
            self.program(name)
        if shutil.which("kcat") is None:
            raise ToolError("kcat is not on PATH: the steps publish and read with it")
        if not self.pushed:
            load_command(self.context, ())

    def check_namespaces(self, names: Sequence[str]) -> None:
        """Check that no namespace that the tests use is somebody else's.

        Raises:
            ToolError: One is.
        """
        there = set(self._names()) - set(self.namespaces())
        if taken := sorted(there & set(names)):
            raise ToolError(f"the namespace {taken[0]} of {self.context} was not made by these tests")

    def namespaces(self) -> list[str]:
        """Return the namespaces that the tests made and did not remove."""
        return self._names("--selector", LABEL)

    def load_changed(self, images: Sequence[str]) -> None:
        """Bring images into the nodes, unless they are pulled.

        Raises:
            ToolError: There is no way to do that here.
        """
        if not images:
            return
        if self.pushed:
            say(f"the cluster pulls {' '.join(images)}")
        else:
            run(load_command(self.context, images))

    def image_layers(self, name: str) -> str:
        """Return what tells an image from its predecessors; one that was pushed is new in each run."""
        if self.pushed:
            return f"{name} {self._begun}"
        return run(["docker", "image", "inspect", "--format", "{{json .RootFS.Layers}}", name]).strip()

    def program(self, name: str) -> list[str]:
        """Return the words that begin a command line of kubectl or helm.

        Raises:
            ToolError: It is neither on PATH nor built.
        """
        option = {"kubectl": "--context", "helm": "--kube-context"}[name]
        built = {"kubectl": [str(BIN / "kube"), "kubectl"], "helm": [str(BIN / "helm")]}[name]
        words = [path] if (path := shutil.which(name)) else built
        if not Path(words[0]).exists():
            raise ToolError(f"{name} is not on PATH: a cluster that is there needs kubectl, helm and kcat")
        return [*words, option, self.context]

    def environment(self) -> dict[str, str]:
        """Return the environment for helm and kubectl: the user's, with caches of our own."""
        home = CACHE / "home"
        chosen = {"KUBECONFIG": str(self._kubeconfig)} if self._kubeconfig else {}
        folders = {f"HELM_{kind}_HOME": str(home / "helm") for kind in ("CACHE", "CONFIG", "DATA")}
        return {**os.environ, "KUBECACHEDIR": str(home / "kube"), **folders, **chosen}

    def _names(self, *options: str) -> list[str]:
        return self.kubectl("get", "namespaces", *options, "-o", "jsonpath={.items[*].metadata.name}").split()


class MadeCluster(ExistingCluster):
    """A cluster of kind or k3d: made at the start, removed at the end; the user's kubeconfig stays as it is.

    Args:
        program: ``kind`` or ``k3d``.
    """

    def __init__(self, program: str) -> None:
        super().__init__(f"{program}-{NAME}", kubeconfig=CACHE / f"{program}.kubeconfig")
        self._program = program

    def left_out(self) -> Mapping[str, str]:
        """Return the steps that cannot run here; definitions are nobody else's."""
        return OWN_NODES

    def join(self) -> bool:
        """Return whether one is left of a run that kept it."""
        file = self._kubeconfig
        return file is not None and file.exists() and bool(self.kubectl("get", "nodes", check=False).strip())

    def up(self) -> None:
        """Make it and wait until it is ready.

        Raises:
            ToolError: The program failed.
        """
        self.down()
        file = str(self._kubeconfig)
        CACHE.mkdir(parents=True, exist_ok=True)
        if self._program == "kind":
            run(["kind", "create", "cluster", "--name", NAME, "--kubeconfig", file, "--wait", "180s"])
        else:
            alone = ("--kubeconfig-update-default=false", "--kubeconfig-switch-context=false")
            run(["k3d", "cluster", "create", NAME, "--wait", "--timeout", "180s", *alone])
            Path(file).write_text(run(["k3d", "kubeconfig", "get", NAME]))

    def down(self) -> None:
        """Remove it; one that is not there is no error for kind, and none for k3d once it is looked for."""
        if self._program == "kind":
            run(["kind", "delete", "cluster", "--name", NAME, "--kubeconfig", str(self._kubeconfig)])
        elif NAME in run(["k3d", "cluster", "list", "--no-headers"]).split():
            run(["k3d", "cluster", "delete", NAME])
        if self._kubeconfig:
            self._kubeconfig.unlink(missing_ok=True)


def choose(context: str | None, pushed: str, *, own_nodes: bool) -> Cluster:
    """Return the cluster to use: the context's; one of kind or k3d where Docker works; one of our own.

    Args:
        context: Of kubectl; None: none was given.
        pushed: Prefix of images that were pushed before.
        own_nodes: Never kind or k3d.
    """
    if context:
        return ExistingCluster(context, pushed)
    program = None if own_nodes else maker()
    return MadeCluster(program) if program else Cluster()


def maker() -> str | None:
    """Return kind or k3d where it is installed and Docker's daemon answers."""
    program = next((name for name in ("kind", "k3d") if shutil.which(name)), None)
    if program is None or shutil.which("docker") is None:
        return None
    answer = subprocess.run(["docker", "info"], check=False, capture_output=True)
    return program if answer.returncode == 0 else None


def load_command(context: str, images: Sequence[str]) -> list[str]:
    """Return the command that brings images of Docker into a cluster's nodes.

    Raises:
        ToolError: The context is not one of kind or k3d, or the program is not there.
    """
    program, _, name = context.partition("-")
    if program not in ("kind", "k3d") or shutil.which(program) is None:
        raise ToolError(
            f"images cannot be loaded into the nodes of {context}: push them, and give --image-prefix"
        )
    if program == "kind":
        return ["kind", "load", "docker-image", *images, "--name", name]
    return ["k3d", "image", "import", *images, "--cluster", name]


def run(command: Sequence[str]) -> str:
    """Run a program and return what it prints.

    Raises:
        ToolError: It failed; the end of its output is in the message.
    """
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    if done.returncode:
        tail = (done.stderr or done.stdout).strip()[-1500:]
        raise ToolError(f"{' '.join(command[:4])} ended with code {done.returncode}:\n{tail}")
    return done.stdout
