"""Write everything that a release ships into a folder: ``python docker/release.py [--key KEY]``.

It holds wheels and source archives, the charts as packages and as OCI artifacts (a layout that ``skopeo copy
oci:`` or ``oras cp --from-oci-layout`` pushes), lists of packages, the docs as a site, the images as
archives, and ``SHA256SUMS`` over all of them, signed with the key. `make release` makes first what is only
copied here.

Environment:
    LOOKOUT_HELM: the helm to use, if it is not on the path.
    All of docker/build.py, for the images.
"""

import argparse
import gzip
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Callable
from pathlib import Path

from build import CPU, ROOT, builder, image_name, version

CHARTS = ("lookout", "lookout-crds")
#: what helm calls the parts of a chart in a registry
_CONFIG, _CONTENT = (
    "application/vnd.cncf.helm.config.v1+json",
    "application/vnd.cncf.helm.chart.content.v1.tar+gzip",
)
_MANIFEST = "application/vnd.oci.image.manifest.v1+json"


def run(*command: str) -> str:
    """Run a program in the repository; what it prints.

    Raises:
        SystemExit: It failed, or it is not installed.
    """
    try:
        done = subprocess.run(command, cwd=ROOT, check=False, capture_output=True, text=True)
    except FileNotFoundError:
        raise SystemExit(f"docker/release.py: {command[0]} is not installed") from None
    if done.returncode:
        raise SystemExit(
            f"docker/release.py: {' '.join(command)}: {(done.stderr or done.stdout).strip()[-1500:]}"
        )
    return done.stdout


def check_clean() -> None:
    """Refuse to release what no commit has.

    Raises:
        SystemExit: Files differ from the commit.
    """
    if changed := run("git", "status", "--porcelain").splitlines():
        names = ", ".join(line[3:] for line in changed[:5])
        raise SystemExit(
            f"docker/release.py: {len(changed)} files are not as in the commit ({names}): commit or remove "
            "them, or give --anyway to try it"
        )


def packages(out: Path) -> None:
    """Wheels and source archives."""
    for folder in (ROOT, ROOT / "libs" / "watchbench"):
        run(sys.executable, "-m", "uv", "build", "--quiet", "--out-dir", str(out), str(folder))
    (out / ".gitignore").unlink(missing_ok=True)


def charts(out: Path) -> None:
    """Packages of the charts, and one OCI layout with both."""
    helm = os.environ.get("LOOKOUT_HELM") or "helm"
    out.mkdir(parents=True)
    manifests = []
    for name in CHARTS:
        run(helm, "package", str(ROOT / "charts" / name), "--destination", str(out))
        manifests.append(_artifact(out / "oci", name, out / f"{name}-{version()}.tgz"))
    _write(out / "oci" / "index.json", {"schemaVersion": 2, "manifests": manifests})
    _write(out / "oci" / "oci-layout", {"imageLayoutVersion": "1.0.0"})


def _artifact(layout: Path, name: str, package: Path) -> dict[str, object]:
    """Put a chart into an OCI layout, as `helm push` would into a registry; its entry of the index."""
    with tarfile.open(package) as chart:
        about = chart.extractfile(f"{name}/Chart.yaml")
        assert about is not None
        fields = dict(line.split(": ", 1) for line in about.read().decode().splitlines() if ": " in line)
    config = {key: fields[key].strip("\"' ") for key in ("apiVersion", "name", "version", "description")}
    manifest = {
        "schemaVersion": 2,
        "mediaType": _MANIFEST,
        "config": _blob(layout, _CONFIG, json.dumps(config).encode()),
        "layers": [_blob(layout, _CONTENT, package.read_bytes())],
        "annotations": {
            "org.opencontainers.image.title": name,
            "org.opencontainers.image.version": version(),
        },
    }
    entry = _blob(layout, _MANIFEST, json.dumps(manifest).encode())
    return {**entry, "annotations": {"org.opencontainers.image.ref.name": f"{name}-{version()}"}}


def _blob(layout: Path, media: str, data: bytes) -> dict[str, object]:
    digest = hashlib.sha256(data).hexdigest()
    place = layout / "blobs" / "sha256" / digest
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_bytes(data)
    return {"mediaType": media, "digest": f"sha256:{digest}", "size": len(data)}


def _write(path: Path, value: object) -> None:
    path.write_text(json.dumps(value))


def lists(out: Path) -> None:
    """What each image installs (`make sbom`)."""
    shutil.copytree(ROOT / "out" / "sbom", out)


def site(out: Path) -> None:
    """The docs (`make docs`), as one archive whose bytes follow from the pages."""
    out.mkdir(parents=True)

    def plain(entry: tarfile.TarInfo) -> tarfile.TarInfo:
        entry.mtime, entry.uid, entry.gid, entry.uname, entry.gname = 0, 0, 0, "", ""
        return entry

    with (
        (out / f"docs-{version()}.tar.gz").open("wb") as file,
        gzip.GzipFile("", "wb", fileobj=file, mtime=0) as packed,
        tarfile.open(fileobj=packed, mode="w") as archive,
    ):
        for path in sorted((ROOT / "out" / "site").rglob("*")):
            archive.add(path, path.relative_to(ROOT / "out"), recursive=False, filter=plain)


def images(out: Path) -> None:
    """Images as archives, which `docker load` and `ctr images import` read; on a pinned base alone."""
    run(sys.executable, "docker/build.py", "--release")
    out.mkdir(parents=True)
    program = builder()
    for target in CPU:
        place = out / f"lookout-{target}-{version()}.tar"
        if program == "buildah":
            run("buildah", "push", image_name(target), f"docker-archive:{place}:{image_name(target)}")
        else:
            run(program, "save", "--output", str(place), image_name(target))


def sums(folder: Path) -> int:
    """Write SHA256SUMS; how many files it names."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    lines = []
    for path in files:
        with path.open("rb") as file:
            lines.append(f"{hashlib.file_digest(file, 'sha256').hexdigest()}  {path.relative_to(folder)}\n")
    (folder / "SHA256SUMS").write_text("".join(lines))
    return len(files)


PARTS: dict[str, Callable[[Path], None]] = {
    "packages": packages,
    "charts": charts,
    "sbom": lists,
    "docs": site,
    "images": images,
}


def main() -> None:
    """Write the folder and print what it holds as JSON."""
    parser = argparse.ArgumentParser(description="Write everything that a release ships into a folder.")
    parser.add_argument("--out", type=Path, default=ROOT / "out" / "release", help="the folder")
    parser.add_argument("--key", type=Path, help="private key (PEM) that signs SHA256SUMS, with openssl")
    parser.add_argument("--without", action="append", default=[], choices=[*PARTS], help="leave a part out")
    parser.add_argument("--anyway", action="store_true", help="also where files differ from the commit")
    parser.add_argument("--version", action="version", version=version())
    options = parser.parse_args()
    if not options.anyway:
        check_clean()
    folder = options.out / version()
    if folder.exists():
        raise SystemExit(f"docker/release.py: {folder} is there already: remove it first")
    for name, make in PARTS.items():
        if name not in options.without:
            make(folder / name)
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
