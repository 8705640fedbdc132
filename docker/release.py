"""Write everything that a release ships into a folder: ``python docker/release.py [--key KEY]``.

The folder holds wheels and source archives, the charts as packages and as OCI artifacts (a layout that
``skopeo copy oci:`` or ``oras cp --from-oci-layout`` pushes), lists of packages, the docs as a site, the
images as one archive per processor, a model as another archive, and ``SHA256SUMS`` over all of them, signed
with the key. `make release` first makes the parts that this program only copies.

Environment:
    LOOKOUT_HELM: the helm program to use, if it is not on the path.
    All variables of docker/build.py, for the images.
"""

import argparse
import gzip
import hashlib
import json
import os
import platform
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path

import oci
from build import CPU, ROOT, builder, image_name, version

CHARTS = ("lookout", "lookout-crds")
#: the checkpoint that is used where no other one is named
TINY = ROOT / "libs/lookout/models/tiny"


def run(*command: str, environment: Mapping[str, str] | None = None) -> str:
    """Run a program in the repository and return what it prints.

    Raises:
        SystemExit: It failed, or it is not installed.
    """
    try:
        done = subprocess.run(command, cwd=ROOT, env=environment, check=False, capture_output=True, text=True)
    except FileNotFoundError:
        raise SystemExit(f"docker/release.py: {command[0]} is not installed") from None
    if done.returncode:
        raise SystemExit(
            f"docker/release.py: {' '.join(command)}: {(done.stderr or done.stdout).strip()[-1500:]}"
        )
    return done.stdout


def check_clean() -> None:
    """Refuse to release files that differ from the commit.

    Raises:
        SystemExit: Files differ from the commit.
    """
    if changed := run("git", "status", "--porcelain").splitlines():
        names = ", ".join(line[3:] for line in changed[:5])
        raise SystemExit(
            f"docker/release.py: {len(changed)} files differ from the commit ({names}): commit or remove "
            "them, or use --anyway for a trial"
        )


def packages(out: Path, options: argparse.Namespace) -> None:
    """Build wheels and source archives."""
    for folder in (ROOT, ROOT / "libs" / "watchbench"):
        run(sys.executable, "-m", "uv", "build", "--quiet", "--out-dir", str(out), str(folder))
    (out / ".gitignore").unlink(missing_ok=True)


def charts(out: Path, options: argparse.Namespace) -> None:
    """Package the charts, and write one OCI layout with both."""
    helm = os.environ.get("LOOKOUT_HELM") or "helm"
    out.mkdir(parents=True)
    entries = []
    for name in CHARTS:
        run(helm, "package", str(ROOT / "charts" / name), "--destination", str(out))
        entries.append(oci.chart(out / "oci", name, version(), out / f"{name}-{version()}.tgz"))
    oci.index(out / "oci", entries)


def lists(out: Path, options: argparse.Namespace) -> None:
    """Copy the lists of what each image installs (`make sbom`)."""
    shutil.copytree(ROOT / "out" / "sbom", out)


def site(out: Path, options: argparse.Namespace) -> None:
    """Pack the docs (`make docs`) into one archive; the same pages always give the same bytes."""
    out.mkdir(parents=True)

    with (
        (out / f"docs-{version()}.tar.gz").open("wb") as file,
        gzip.GzipFile("", "wb", fileobj=file, mtime=0) as packed,
        tarfile.open(fileobj=packed, mode="w") as archive,
    ):
        for path in sorted((ROOT / "out" / "site").rglob("*")):
            archive.add(path, path.relative_to(ROOT / "out"), recursive=False, filter=oci.plain)


def images(out: Path, options: argparse.Namespace) -> None:
    """Write one archive of all images per processor; it holds layers that images share only once."""
    out.mkdir(parents=True)
    for arch in options.arch or [_own_architecture()]:
        _build(options, arch)
        _save(
            out / f"lookout-images-{version()}-{arch}.tar",
            [image_name(each) for each in options.image or CPU],
        )


def _own_architecture() -> str:
    machine = platform.machine()
    return {"x86_64": "amd64", "aarch64": "arm64"}.get(machine, machine)


def _build(options: argparse.Namespace, arch: str) -> None:
    """Build the images, on a pinned base unless `--anyway` is given."""
    environment = dict(os.environ)
    if arch != _own_architecture():
        given = environment.get("LOOKOUT_BUILD_OPTIONS", "")
        environment["LOOKOUT_BUILD_OPTIONS"] = f"{given} --platform linux/{arch}"
    pinned = [] if options.anyway else ["--release"]
    run(sys.executable, "docker/build.py", *pinned, *(options.image or CPU), environment=environment)


def _save(archive: Path, names: list[str]) -> None:
    """Write images into one archive."""
    if (program := builder()) == "buildah":
        with tempfile.TemporaryDirectory(dir=archive.parent) as folder:
            for name in names:
                run("buildah", "push", name, f"oci:{folder}:{name}")
            oci.pack(Path(folder), archive)
    else:
        several = ["--multi-image-archive"] if program == "podman" else []
        run(program, "save", *several, "--output", str(archive), *names)


def model(out: Path, options: argparse.Namespace) -> None:
    """Write a checkpoint as the archive of an image, for `model.source=image`."""
    out.mkdir(parents=True)
    with tempfile.TemporaryDirectory(dir=out) as folder:
        layout = Path(folder)
        oci.index(layout, [oci.files_image(layout, image_name("model"), options.model.resolve())])
        oci.pack(layout, out / f"lookout-model-{version()}.tar")


def sums(folder: Path) -> int:
    """Write SHA256SUMS; return the number of files that it names."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    lines = []
    for path in files:
        with path.open("rb") as file:
            lines.append(f"{hashlib.file_digest(file, 'sha256').hexdigest()}  {path.relative_to(folder)}\n")
    (folder / "SHA256SUMS").write_text("".join(lines))
    return len(files)


PARTS: dict[str, Callable[[Path, argparse.Namespace], None]] = {
    "packages": packages,
    "charts": charts,
    "sbom": lists,
    "docs": site,
    "images": images,
    "model": model,
}


def main() -> None:
    """Write the folder and print what it holds as JSON."""
    parser = argparse.ArgumentParser(description="Write everything that a release ships into a folder.")
    parser.add_argument("--out", type=Path, default=ROOT / "out" / "release", help="folder for releases")
    parser.add_argument("--key", type=Path, help="private key (PEM) to sign SHA256SUMS with")
    parser.add_argument("--without", action="append", default=[], choices=[*PARTS], help="leave a part out")
    parser.add_argument("--image", action="append", choices=CPU, help="release this image; default: all")
    parser.add_argument(
        "--arch",
        action="append",
        choices=oci.ARCHITECTURES,
        help="processor of the images; default: this one",
    )
    parser.add_argument("--model", type=Path, default=TINY, help="folder of the checkpoint; default: tiny")
    parser.add_argument(
        "--anyway",
        action="store_true",
        help="for a trial: files may differ from the commit, and the base image needs no digest",
    )
    parser.add_argument("--version", action="version", version=version())
    options = parser.parse_args()
    if not options.anyway:
        check_clean()
    if not (options.model / "config.json").is_file():
        raise SystemExit(f"docker/release.py: --model {options.model}: not a folder with a config.json")
    folder = options.out / version()
    if folder.exists():
        raise SystemExit(f"docker/release.py: {folder} already exists: remove it first")
    for name, make in PARTS.items():
        if name not in options.without:
            make(folder / name, options)
    count = sums(folder)
    if options.key is not None:
        listed = folder / "SHA256SUMS"
        signature = ("-rawin", "-in", str(listed), "-out", f"{listed}.sig")
        run("openssl", "pkeyutl", "-sign", "-inkey", str(options.key), *signature)
    facts = {"folder": str(folder), "files": count, "signed": options.key is not None}
    print(
        json.dumps({**facts, "left_out": options.without, "commit": run("git", "rev-parse", "HEAD").strip()})
    )


if __name__ == "__main__":
    main()
