"""The programs a cluster needs, built from Go modules and Debian packages and kept in the user's cache.

``python -m tests.cluster.tools`` builds what is missing: about 11 minutes of CPU the first time.
"""

import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from filelock import FileLock
from platformdirs import user_cache_path

from tests.cluster import groups

CACHE = Path(os.environ.get("LOOKOUT_CLUSTER_CACHE") or user_cache_path("lookout") / "cluster")
BIN = CACHE / "bin"
KUBERNETES = "1.36.3"
COREDNS = "1.14.6"
HELM = "4.3.0"
_CONTAINERD = "2.3.7"
_CNI = "1.9.1"
_LINK = "-s -w"
#: programs that must be there, and the Debian packages that bring them
_COMMANDS = {
    "buildah": ("buildah",),
    "conntrack": ("conntrack",),
    "gcc": ("gcc", "libc6-dev"),
    "ip": ("iproute2",),
    "iptables": ("iptables",),
    "kcat": ("kcat",),
    "mmdebstrap": ("mmdebstrap",),
    "nft": ("nftables",),
    "runc": ("runc",),
}


@dataclass(frozen=True)
class GoTool:
    """A program of a public Go module."""

    name: str
    module: str
    version: str
    path: str = ""
    link: str = ""

    @property
    def package(self) -> str:
        """Return the package to build, with its version."""
        return f"{self.module}{self.path}@v{self.version}"


_CONTAINERD_MODULE = "github.com/containerd/containerd/v2"
GO_TOOLS = (
    GoTool(
        "containerd",
        _CONTAINERD_MODULE,
        _CONTAINERD,
        "/cmd/containerd",
        f"-X {_CONTAINERD_MODULE}/version.Version={_CONTAINERD}",
    ),
    GoTool("containerd-shim-runc-v2", _CONTAINERD_MODULE, _CONTAINERD, "/cmd/containerd-shim-runc-v2"),
    GoTool("ctr", _CONTAINERD_MODULE, _CONTAINERD, "/cmd/ctr"),
    *(
        GoTool(name, "github.com/containernetworking/plugins", _CNI, f"/plugins/{kind}/{name}")
        for name, kind in (
            ("bridge", "main"),
            ("loopback", "main"),
            ("portmap", "meta"),
            ("host-local", "ipam"),
        )
    ),
    GoTool("helm", "helm.sh/helm/v4", HELM, "/cmd/helm"),
    GoTool("coredns", "github.com/coredns/coredns", COREDNS),
)


@dataclass(frozen=True)
class Definitions:
    """Custom resource definitions in a public Go module."""

    module: str
    version: str
    files: str


#: what the chart makes objects for when it is installed
DEFINITIONS = {
    "keda": Definitions("github.com/kedacore/keda/v2", "2.21.0", "config/crd/bases/*.yaml"),
    "cert-manager": Definitions(
        "github.com/cert-manager/cert-manager", "1.21.2", "deploy/crds/cert-manager.io_*.yaml"
    ),
    "prometheus-operator": Definitions(
        "github.com/prometheus-operator/prometheus-operator",
        "0.85.0",
        "example/prometheus-operator-crd/monitoring.coreos.com_p*.yaml",
    ),
}


class ToolError(RuntimeError):
    """A program that the cluster needs is not available; the message says which and why."""


@dataclass(frozen=True)
class Addition:
    """What a step needs beside the cluster's own programs.

    Attributes:
        build: Builds or fetches what is missing of Go modules.
        missing: Names of programs that `build` would build.
        packages: Debian packages that are not installed.
    """

    build: Callable[[], object] = list
    missing: Callable[[], list[str]] = list
    packages: Callable[[], Sequence[str]] = tuple


@contextmanager
def go_trees() -> Iterator[None]:
    """Hold the builders' lock; what Go fetched and compiled is deleted when the outermost of these ends."""
    CACHE.mkdir(parents=True, exist_ok=True)
    lock = FileLock(str(CACHE / "tools.lock"), is_singleton=True)
    with lock:
        yield
        if lock.lock_counter == 1 and not os.environ.get("LOOKOUT_CLUSTER_KEEP_GO"):
            shutil.rmtree(CACHE / "go", ignore_errors=True)


def go_environment() -> dict[str, str]:
    """Return the environment of every Go build: static programs, own trees, at most eight at once."""
    go = CACHE / "go"
    for folder in ("tmp", "path", "build"):
        (go / folder).mkdir(parents=True, exist_ok=True)
    return {
        **os.environ,
        "CGO_ENABLED": "0",
        "GOBIN": str(BIN),
        "GOCACHE": str(go / "build"),
        "GOFLAGS": f"-p={max(2, min(8, os.cpu_count() or 2))} -buildvcs=false -trimpath -modcacherw",
        "GOPATH": str(go / "path"),
        "GOTMPDIR": str(go / "tmp"),
        "GOTOOLCHAIN": "local",
    }


def say(line: str) -> None:
    """Print one line of progress at once."""
    print(line, flush=True)


def check_host(cgroups: Path = groups.MOUNT, additions: Sequence[Addition] = ()) -> None:
    """Check that this machine can run a cluster, before anything is built for it, and say what will be
    installed.

    Args:
        cgroups: Where control groups are mounted.
        additions: What steps need beside the cluster's programs.

    Raises:
        ToolError: It cannot; the message says why.
    """
    if os.geteuid() != 0:
        raise ToolError("a cluster is made of namespaces: run as root")
    if groups.version(cgroups) is None:
        lacking = ", ".join(groups.missing(cgroups))
        raise ToolError(f"a cluster needs control groups: at {cgroups} neither version has {lacking}")
    programs = [tool.name for tool in _missing_tools()] + (["kube"] if _stamp("kube") != KUBERNETES else [])
    programs += [name for addition in additions for name in addition.missing()]
    if programs and shutil.which("go") is None:
        raise ToolError("a cluster is built from Go modules: install Go 1.26 or newer")
    plan = []
    if packages := _missing_packages(additions):
        if shutil.which("apt-get") is None:
            raise ToolError(f"a cluster needs these Debian packages: {' '.join(packages)}")
        plan.append(f"Debian packages with apt-get, on this machine: {' '.join(packages)}")
    if programs:
        plan.append(f"Go programs into {BIN}: {' '.join(programs)}")
    if plan:
        say(f"to be installed: {'; '.join(plan)}")


def _missing_tools() -> list[GoTool]:
    return [tool for tool in GO_TOOLS if _stamp(tool.name) != tool.package]


def build_all() -> None:
    """Install and build everything that is missing; what is there already is left alone."""
    check_host()
    install_packages()
    build_programs()


def build_programs(additions: Sequence[Addition] = ()) -> None:
    """Build every missing Go program of a cluster, and what steps need beside them."""
    with go_trees():
        BIN.mkdir(parents=True, exist_ok=True)
        missing = _missing_tools()
        kube_missing = _stamp("kube") != KUBERNETES
        for tool in missing:
            _timed(tool.name, lambda tool=tool: _build(tool))
            _write_stamp(tool.name, tool.package)
        if kube_missing:
            _timed("kube", _build_kube)
            _write_stamp("kube", KUBERNETES)
        for addition in additions:
            addition.build()


def build_api_server() -> Path:
    """Build the API server for custom resources alone, if it is missing: six minutes of CPU the first time.

    Raises:
        ToolError: Go is missing, or the build fails.
    """
    program = BIN / "kube-api"
    if _stamp(program.name) == KUBERNETES:
        return program
    if shutil.which("go") is None:
        raise ToolError("the API server is built from Go modules: install Go 1.26 or newer")
    with go_trees():
        BIN.mkdir(parents=True, exist_ok=True)
        _timed(program.name, _build_api_server)
        _write_stamp(program.name, KUBERNETES)
    return program


def _build_api_server() -> None:
    folder = CACHE / "go" / "api"
    folder.mkdir(parents=True, exist_ok=True)
    shutil.copy(Path(__file__).parent / "api" / "main.go", folder / "main.go")
    staged = "v0." + KUBERNETES.split(".", 1)[1]
    # Of one requirement the versions of all others follow, etcd's too.
    lines = ["module lookout.example/api", "go 1.26", f"require k8s.io/apiextensions-apiserver {staged}", ""]
    (folder / "go.mod").write_text("\n".join(lines))
    environment = {**go_environment(), "GOFLAGS": go_environment()["GOFLAGS"] + " -mod=mod"}
    call(["go", "mod", "tidy", "-e"], environment, folder)
    call(["go", "build", "-ldflags", _LINK, "-o", str(BIN / "kube-api"), "."], environment, folder)


def definitions(name: str) -> list[Path]:
    """Return the files of an extension's custom resource definitions, downloaded once.

    Raises:
        ToolError: The module cannot be fetched, or has no such files.
    """
    wanted = DEFINITIONS[name]
    folder = CACHE / "definitions" / f"{name}-{wanted.version}"
    if not folder.exists():
        if shutil.which("go") is None:
            raise ToolError(f"the definitions of {name} are in a Go module: install Go 1.26 or newer")
        say(f"downloading the definitions of {name} {wanted.version}")
        with go_trees():
            _copy_definitions(wanted, folder)
    if not (files := sorted(folder.glob("*.yaml"))):
        raise ToolError(f"{wanted.module} {wanted.version} has no {wanted.files}")
    return files


def _copy_definitions(wanted: Definitions, folder: Path) -> None:
    found = subprocess.run(
        ["go", "mod", "download", "-json", f"{wanted.module}@v{wanted.version}"],
        env=go_environment(),
        check=False,
        capture_output=True,
        text=True,
    )
    if found.returncode:
        raise ToolError(f"{wanted.module} cannot be fetched: {(found.stdout or found.stderr)[-500:]}")
    part = folder.with_suffix(".part")
    part.mkdir(parents=True, exist_ok=True)
    for path in sorted(Path(json.loads(found.stdout)["Dir"]).glob(wanted.files)):
        shutil.copy(path, part / path.name)
    part.rename(folder)


def install_packages(additions: Sequence[Addition] = ()) -> None:
    """Install the Debian packages that are missing; only root can.

    Args:
        additions: What steps need beside the cluster's programs.

    Raises:
        ToolError: A package is missing and this machine or user cannot install it.
    """
    if not (packages := _missing_packages(additions)):
        return
    if os.geteuid() != 0 or shutil.which("apt-get") is None:
        raise ToolError(f"a cluster needs root and these Debian packages: {' '.join(packages)}")
    say(f"installing Debian packages: {' '.join(packages)}")
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    for command in (["update", "-qq"], ["install", "-y", "-qq", "--no-install-recommends", *packages]):
        call(["apt-get", "-o", "DPkg::Lock::Timeout=300", *command], environment)


def _missing_packages(additions: Sequence[Addition]) -> list[str]:
    path = os.pathsep.join((os.environ.get("PATH", ""), "/usr/sbin", "/sbin"))
    missing = [packages for command, packages in _COMMANDS.items() if not shutil.which(command, path=path)]
    missing += [tuple(addition.packages()) for addition in additions]
    return [package for packages in missing for package in packages]


def _build(tool: GoTool) -> None:
    call(["go", "install", "-ldflags", f"{_LINK} {tool.link}".strip(), tool.package], go_environment())


def _build_kube() -> None:
    folder = CACHE / "go" / "kube"
    folder.mkdir(parents=True, exist_ok=True)
    environment = {**go_environment(), "GOFLAGS": go_environment()["GOFLAGS"] + " -mod=mod"}
    module = f"k8s.io/kubernetes@v{KUBERNETES}"
    found = subprocess.run(
        ["go", "mod", "download", "-json", module],
        env=environment,
        cwd=folder,
        check=True,
        capture_output=True,
        text=True,
    )
    upstream = Path(json.loads(found.stdout)["GoMod"]).read_text()
    (folder / "go.mod").write_text(kube_module(upstream, KUBERNETES))
    shutil.copy(Path(__file__).parent / "kube" / "main.go", folder / "main.go")
    call(["go", "mod", "tidy", "-e"], environment, folder)
    link = [_LINK]
    for package in ("k8s.io/component-base/version", "k8s.io/client-go/pkg/version"):
        major, minor, _ = KUBERNETES.split(".")
        facts = {
            "gitVersion": f"v{KUBERNETES}",
            "gitMajor": major,
            "gitMinor": minor,
            "gitTreeState": "clean",
            "gitCommit": "0" * 40,
            "buildDate": "2026-01-01T00:00:00Z",
        }
        link += [f"-X {package}.{name}={value}" for name, value in facts.items()]
    call(["go", "build", "-ldflags", " ".join(link), "-o", str(BIN / "kube"), "."], environment, folder)


def kube_module(upstream: str, version: str) -> str:
    """Return the go.mod of a module that imports Kubernetes' commands.

    Args:
        upstream: The text of Kubernetes' own go.mod.
        version: The release, for example ``1.36.3``; its staged modules have the same number below 0.
    """
    staged = "v0." + version.split(".", 1)[1]
    go_version = re.search(r"^go .*$", upstream, re.MULTILINE)
    debug = re.search(r"^godebug .*$|^godebug \([^)]*\)", upstream, re.MULTILINE)
    names = re.findall(r"^\s*(?:replace\s+)?(k8s\.io/[a-z-]+) => \./staging", upstream, re.MULTILINE)
    lines = ["module lookout.example/kube", "", go_version.group(0) if go_version else "go 1.26"]
    lines += [debug.group(0)] if debug else []
    lines += [f"require k8s.io/kubernetes v{version}", "replace ("]
    lines += [f"\t{name} => {name} {staged}" for name in names]
    return "\n".join([*lines, ")", ""])


def call(command: list[str], environment: dict[str, str], folder: Path | None = None) -> None:
    """Run a program of a build.

    Raises:
        ToolError: It failed; the end of its output is in the message.
    """
    done = subprocess.run(
        ["nice", "-n", "5", *command],  # at the lowest priority it gets nothing beside other work
        env=environment,
        cwd=folder,
        check=False,
        capture_output=True,
        text=True,
    )
    if done.returncode:
        tail = "\n".join((done.stderr or done.stdout).splitlines()[-15:])
        raise ToolError(f"{command[0]} {command[1]} ended with code {done.returncode}:\n{tail}")


def _timed(name: str, work: Callable[[], object]) -> None:
    started = time.monotonic()
    say(f"building {name} ...")
    work()
    say(f"built {name} in {time.monotonic() - started:.0f} s, {(BIN / name).stat().st_size / 1e6:.0f} MB")


def _stamp(name: str) -> str:
    path = CACHE / "built" / name
    return path.read_text() if path.exists() and (BIN / name).exists() else ""


def _write_stamp(name: str, version: str) -> None:
    path = CACHE / "built" / name
    path.parent.mkdir(exist_ok=True)
    path.write_text(version)


if __name__ == "__main__":
    try:
        build_all()
    except ToolError as error:
        sys.exit(f"tests.cluster.tools: {error}")
