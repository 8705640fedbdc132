"""Images without Docker: a base made from Debian packages, buildah in a folder of its own, one OCI folder."""

import json
import os
import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.cluster.tools import BIN, CACHE, COREDNS, ToolError, say

ROOT = Path(__file__).resolve().parents[2]
PYTHON_IMAGE = "docker.io/library/python:3.11-slim-bookworm"
PAUSE_IMAGE = "registry.k8s.io/pause:3.10"
COREDNS_IMAGE = f"registry.k8s.io/coredns/coredns:v{COREDNS}"
HOME = CACHE / "images"
#: an OCI folder is always compressed; gigabytes of torch take minutes with the default
_QUICK = ("--compression-format", "zstd", "--compression-level", "1")
_PAUSE = """
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>
static void leave(int number) { _exit(0); }
static void reap(int number) { while (waitpid(-1, 0, WNOHANG) > 0) {} }
int main(void) { signal(SIGINT, leave); signal(SIGTERM, leave); signal(SIGCHLD, reap); for (;;) pause(); }
"""
# A virtual environment at /usr/local makes Debian's Python lie where the official image has it.
_BASE = """FROM scratch
ADD rootfs.tar /
ENV PATH=/usr/local/bin:/usr/local/sbin:/usr/sbin:/usr/bin:/sbin:/bin LANG=C.UTF-8
RUN rm -f /usr/lib/python3*/EXTERNALLY-MANAGED && python3 -m venv --copies /usr/local
CMD ["python3"]
"""
_VOLUMES = ("/etc/ssl/certs", "/etc/pip.conf")  # this machine's authorities and package index


def environment() -> dict[str, str]:
    """Return the environment in which buildah keeps everything below the cache folder."""
    home = HOME / "buildah"
    (home / "tmp").mkdir(parents=True, exist_ok=True)
    storage = home / "storage.conf"
    storage.write_text(f'[storage]\ndriver = "overlay"\ngraphroot = "{home}/graph"\nrunroot = "{home}/run"\n')
    registries = home / "registries.conf"
    registries.write_text('unqualified-search-registries = []\nshort-name-mode = "disabled"\n')
    policy = home / "policy.json"
    policy.write_text('{"default": [{"type": "insecureAcceptAnything"}]}\n')
    return {
        **os.environ,
        "BUILDAH_ISOLATION": "chroot",
        "CONTAINERS_STORAGE_CONF": str(storage),
        "CONTAINERS_REGISTRIES_CONF": str(registries),
        "LOOKOUT_BUILDER": "buildah",
        "LOOKOUT_BUILD_LOGS": str(home / "logs"),
        "LOOKOUT_BUILD_OPTIONS": " ".join(_build_options(policy)),
        "TMPDIR": str(home / "tmp"),
    }


def _build_options(policy: Path) -> list[str]:
    options = ["--signature-policy", str(policy), "--pull-never", "--network", "host"]
    for path in _VOLUMES:
        if Path(path).exists():
            options += ["--volume", f"{path}:{path}:ro"]
    return options


def buildah(*arguments: str) -> str:
    """Run buildah and return what it prints.

    Raises:
        ToolError: It failed; the end of its output is in the message.
    """
    return _run(["nice", "-n", "10", "buildah", *arguments], environment())


def have_image(name: str) -> bool:
    """Return whether buildah has an image of this name."""
    found = subprocess.run(
        ["buildah", "inspect", "--type", "image", name], env=environment(), check=False, capture_output=True
    )
    return found.returncode == 0


def image_id(name: str) -> str:
    """Return the digest of an image's configuration."""
    return buildah("images", "--no-trunc", "--format", "{{.ID}}", name).strip()


def image_layers(name: str) -> str:
    """Return the digests of an image's layers: the same for images that differ in their labels only."""
    return buildah("inspect", "--type", "image", "--format", "{{.OCIv1.RootFS.DiffIDs}}", name).strip()


def prune() -> float:
    """Remove containers and layers that no image and no stage of the latest builds uses; return GB freed.

    A stage that is only copied from has no name: the logs of the builds tell which ones the next build
    would take from the cache.
    """
    home = HOME / "buildah"
    used = set()
    for log in (home / "logs").glob("*.log"):
        used |= {
            found[:11]
            for found in re.findall(r"^--> (?:Using cache )?([0-9a-f]{11,64})", log.read_text(), re.M)
        }
    before = shutil.disk_usage(home).free
    buildah("rm", "--all")
    left = -1
    while True:
        listed = buildah(
            "images", "--all", "--filter", "dangling=true", "--no-trunc", "--format", "{{.ID}}"
        ).split()
        unused = [each for each in (line.removeprefix("sha256:") for line in listed) if each[:11] not in used]
        if not unused or len(unused) == left:
            break
        left = len(unused)
        # A layer below another one is refused until that one is gone: hence the rounds.
        subprocess.run(["buildah", "rmi", *unused], env=environment(), check=False, capture_output=True)
    return (shutil.disk_usage(home).free - before) / 1e9


def build_base() -> None:
    """Make images that a registry would give elsewhere, from Debian packages: Python's base image, pause."""
    _build_python(PYTHON_IMAGE)
    if not have_image(PAUSE_IMAGE):
        folder = HOME / "pause"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "pause.c").write_text(_PAUSE)
        _run(["gcc", "-Os", "-static", "-o", str(folder / "pause"), str(folder / "pause.c")], {**os.environ})
        build(
            folder,
            PAUSE_IMAGE,
            'FROM scratch\nCOPY pause /pause\nUSER 65535:65535\nENTRYPOINT ["/pause"]\n',
        )


def build_base_for(architecture: str) -> str:
    """Make Python's base image for another processor, whose programs the kernel can run; return its name."""
    name = f"localhost/python-{architecture}:3.11"
    _build_python(name, architecture)
    return name


def _build_python(name: str, architecture: str = "") -> None:
    if have_image(name):
        return
    say(f"making the Python base image {architecture or 'for this processor'} from Debian packages ...")
    folder = HOME / f"base{architecture}"
    folder.mkdir(parents=True, exist_ok=True)
    options = [f"--architectures={architecture}"] if architecture else []
    _run(
        [
            "mmdebstrap",
            "--variant=minbase",
            *options,
            "--include=python3,python3-venv,ca-certificates,tzdata",
            "--dpkgopt=path-exclude=/usr/share/man/*",
            "--dpkgopt=path-exclude=/usr/share/doc/*",
            "--dpkgopt=path-exclude=/usr/share/locale/*",
            "bookworm",
            str(folder / "rootfs.tar"),
        ],
        {**os.environ},
    )
    platform = [f"--platform=linux/{architecture}"] if architecture else []
    build(folder, name, _BASE, *platform)
    (folder / "rootfs.tar").unlink()


def build_base_with_headers() -> str:
    """Make a base image with Python's headers, which the official one has and ours lacks; return its name."""
    name = "localhost/python-with-headers:3.11"
    if not have_image(name):
        folder = HOME / "headers"
        folder.mkdir(parents=True, exist_ok=True)
        install = "apt-get update -qq && apt-get install -y -qq --no-install-recommends libpython3.11-dev"
        build(folder, name, f"FROM {PYTHON_IMAGE}\nRUN {install} && rm -rf /var/lib/apt/lists/*\n")
    return name


def build_coredns() -> None:
    """Make CoreDNS' image, of the program that `tools.build_programs` built."""
    if not have_image(COREDNS_IMAGE):
        text = 'FROM scratch\nCOPY coredns /coredns\nUSER 65532:65532\nENTRYPOINT ["/coredns"]\n'
        build(BIN, COREDNS_IMAGE, text)


def export(images: Sequence[str], name: str) -> Path:
    """Write images into one OCI folder, in which equal layers lie once, and return the folder.

    Images that were exported before and are not named any more leave it.
    """
    target = HOME / f"oci-{name}"
    target.mkdir(parents=True, exist_ok=True)
    policy = str(HOME / "buildah" / "policy.json")
    record = HOME / f"exported-{name}.json"
    exported: dict[str, str] = json.loads(record.read_text()) if record.exists() else {}
    for image in images:
        identity = image_id(image)
        if exported.get(image) != identity:
            options = ("--signature-policy", policy, "--quiet", *_QUICK)
            buildah("push", *options, image, f"oci:{target}:{image}")
            exported[image] = identity
    exported = {image: exported[image] for image in images}
    record.write_text(json.dumps(exported))
    _keep_only(target, set(images))
    return target


def _keep_only(folder: Path, images: set[str]) -> None:
    """Leave images and layers that are not named out of an OCI folder."""
    path = folder / "index.json"
    index = json.loads(path.read_text())
    name = "org.opencontainers.image.ref.name"
    kept = [each for each in index["manifests"] if each.get("annotations", {}).get(name) in images]
    path.write_text(json.dumps({**index, "manifests": kept}))
    blobs = folder / "blobs" / "sha256"
    used = {each["digest"] for each in kept}
    for digest in list(used):
        manifest = json.loads((blobs / digest.removeprefix("sha256:")).read_text())
        used |= {manifest["config"]["digest"], *(layer["digest"] for layer in manifest["layers"])}
    for blob in blobs.iterdir():
        if f"sha256:{blob.name}" not in used:
            blob.unlink()


def build(folder: Path, name: str, dockerfile: str, *platform: str) -> None:
    """Build an image from a Dockerfile's text and the files of a folder."""
    path = folder / "Dockerfile"
    path.write_text(dockerfile)
    options = environment()["LOOKOUT_BUILD_OPTIONS"].split()
    buildah("build", *options, *platform, "--quiet", "--tag", name, "--file", str(path), str(folder))


def _run(command: Sequence[str], env: Mapping[str, str]) -> str:
    done = subprocess.run(command, env=dict(env), check=False, capture_output=True, text=True)
    if done.returncode:
        tail = "\n".join((done.stderr or done.stdout).splitlines()[-20:])
        raise ToolError(f"{' '.join(command[:4])} ... ended with code {done.returncode}:\n{tail}")
    return done.stdout
