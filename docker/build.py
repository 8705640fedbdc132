"""Build the images: ``python docker/build.py [--release] [TARGET...]``, with docker, podman or buildah.

``--release`` refuses a base image that is not pinned by its digest.

Environment:
    LOOKOUT_BUILDER: the program to build with; by default the first of the three that works.
    LOOKOUT_BUILD_OPTIONS: further options for its ``build`` command. LOOKOUT_IMAGE_PREFIX: the prefix of
    every image's name; ``localhost/`` by default. LOOKOUT_IMAGE_TAG: the tag; the project's version by
    default. LOOKOUT_PYTHON_IMAGE: the base image; by default the one that ``docker/base.lock`` names.
    LOOKOUT_BUILD_LOGS: a folder for the program's output, one file per target.
"""

import json
import os
import re
import shutil
import subprocess
import sys
import time
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
CPU = (
    "alerts",
    "notify",
    "decode",
    "prune-encode",
    "prefill",
    "recall",
    "recordings",
    "gateway",
    "controller",
    "camera-agent",
    "tryout",
)
GPU = ("prefill-gpu", "prune-encode-gpu", "decode-gpu")


def builder() -> str:
    """Return the program that builds images on this machine.

    Raises:
        SystemExit: None of them works.
    """
    if given := os.environ.get("LOOKOUT_BUILDER"):
        return given
    for name in ("docker", "podman", "buildah"):
        if (
            shutil.which(name)
            and subprocess.run([name, "info"], check=False, capture_output=True).returncode == 0
        ):
            return name
    raise SystemExit("docker/build.py: none of docker, podman and buildah works here; install one of them")


def base_image(*, release: bool = False) -> str:
    """Return the name of the base image of all images.

    Args:
        release: refuse an image that is named by a tag alone, because the tag may later name another image.

    Raises:
        SystemExit: No image is named, or a release needs its digest and has none.
    """
    lines = (ROOT / "docker" / "base.lock").read_text().splitlines()
    locked = dict(line.split("=", 1) for line in lines if line and not line.startswith("#"))
    name = os.environ.get("LOOKOUT_PYTHON_IMAGE") or locked.get("PYTHON_IMAGE", "").strip()
    if not name:
        raise SystemExit("docker/build.py: docker/base.lock names no PYTHON_IMAGE")
    if release and not re.fullmatch(r"\S+@sha256:[0-9a-f]{64}", name):
        raise SystemExit(
            f"docker/build.py: a release needs the digest of its base image, but {name} has none: write it "
            "to docker/base.lock as NAME:TAG@sha256:..., or give it in LOOKOUT_PYTHON_IMAGE"
        )
    return name


def image_name(target: str) -> str:
    """Return the full name of a target's image."""
    prefix = os.environ.get("LOOKOUT_IMAGE_PREFIX", "localhost/")
    tag = os.environ.get("LOOKOUT_IMAGE_TAG") or version()
    return f"{prefix}lookout-{target}:{tag}"


def version() -> str:
    """Return the project's version."""
    return str(tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"])


def build(target: str, program: str, base: str) -> None:
    """Build one image on a base image."""
    dockerfile = "gpu.Dockerfile" if target in GPU else "Dockerfile"
    command = [program, "build", *os.environ.get("LOOKOUT_BUILD_OPTIONS", "").split()]
    if program == "buildah":
        command += ["--layers", "--format", "docker"]
    command += ["--target", target, "--tag", image_name(target)]
    command += ["--build-arg", f"PYTHON_IMAGE={base}"]
    facts = {"version": version(), "revision": _revision(), "base.name": base}
    for name, value in facts.items():
        command += ["--label", f"org.opencontainers.image.{name}={value}"]
    command += ["--file", str(ROOT / "docker" / dockerfile), str(ROOT)]
    done = subprocess.run(command, check=False, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if folder := os.environ.get("LOOKOUT_BUILD_LOGS"):
        Path(folder).mkdir(parents=True, exist_ok=True)
        (Path(folder) / f"{target}.log").write_text(done.stdout)
    if done.returncode:
        tail = "\n".join(done.stdout.splitlines()[-25:])
        raise SystemExit(f"docker/build.py: {image_name(target)} was not built:\n{tail}")


def layers(target: str, program: str) -> list[tuple[str, float]]:
    """Return the layers of an image, the largest first: each one's instruction and its size in megabytes."""
    if program == "buildah":
        return _buildah_layers(target)
    line = "{{.Size}}\t{{.CreatedBy}}"
    done = subprocess.run(
        [program, "history", "--human=false", "--no-trunc", "--format", line, image_name(target)],
        check=True,
        capture_output=True,
        text=True,
    )
    rows = [row.split("\t", 1) for row in done.stdout.splitlines()]
    found = [(_instruction(text), float(size) / 1e6) for size, text in rows if size.isdigit()]
    return sorted(found, key=lambda each: -each[1])


def _buildah_layers(target: str) -> list[tuple[str, float]]:
    name = image_name(target)
    container = subprocess.run(
        ["buildah", "from", "--pull-never", name], check=True, capture_output=True, text=True
    )
    try:
        mounted = subprocess.run(
            ["buildah", "mount", container.stdout.strip()], check=True, capture_output=True, text=True
        )
        root = Path(mounted.stdout.strip())
        code = root / "opt/lookout/lib/python3.11/site-packages"
        parts = {path.name: _megabytes(path) for path in code.iterdir() if path.is_dir()}
        whole, dependencies = _megabytes(root), _megabytes(root / "opt/lookout")
        parts["Python and Debian"] = whole - dependencies
        parts["whole image"] = whole
        return sorted(parts.items(), key=lambda each: -each[1])
    finally:
        subprocess.run(["buildah", "rm", container.stdout.strip()], check=True, capture_output=True)


def _megabytes(folder: Path) -> float:
    done = subprocess.run(["du", "-xsk", str(folder)], check=True, capture_output=True, text=True)
    return int(done.stdout.split()[0]) / 1000


def _instruction(text: str) -> str:
    return re.sub(r"\s+", " ", text)[:60]


def _revision() -> str:
    done = subprocess.run(
        ["git", "-C", str(ROOT), "rev-parse", "--short=12", "HEAD"],
        check=False,
        capture_output=True,
        text=True,
    )
    return done.stdout.strip() or "unknown"


def main() -> None:
    """Build the requested images; print the size of each image and its largest parts."""
    release = "--release" in sys.argv[1:]
    targets = [word for word in sys.argv[1:] if word != "--release"] or list(CPU)
    if unknown := sorted(set(targets) - {*CPU, *GPU}):
        raise SystemExit(
            f"docker/build.py: unknown image {', '.join(unknown)}; the images are {', '.join((*CPU, *GPU))}"
        )
    base = base_image(release=release)
    program = builder()
    for target in targets:
        started = time.monotonic()
        print(f"building {image_name(target)} with {program} ...", flush=True)
        build(target, program, base)
        parts = layers(target, program)
        largest = ", ".join(f"{name} {size:.0f}" for name, size in parts[:6])
        print(f"built {image_name(target)} in {time.monotonic() - started:.0f} s; MB: {largest}", flush=True)
        facts = {"image": image_name(target), "seconds": round(time.monotonic() - started, 1)}
        facts["megabytes"] = {name: round(size, 1) for name, size in parts[:12]}  # type: ignore[assignment]
        print(json.dumps(facts), flush=True)


if __name__ == "__main__":
    main()
