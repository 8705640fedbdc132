"""OCI layouts: folders of blobs that are named by their digests. Registries, nodes and builders read them."""

import hashlib
import json
import tarfile
from pathlib import Path
from typing import Any

Entry = dict[str, Any]

MANIFEST = "application/vnd.oci.image.manifest.v1+json"
_INDEX = "application/vnd.oci.image.index.v1+json"
#: processor architectures that images are made for
ARCHITECTURES = ("amd64", "arm64")
#: media types of an image's configuration and layers
_IMAGE, _LAYER = "application/vnd.oci.image.config.v1+json", "application/vnd.oci.image.layer.v1.tar"
#: media types that helm uses for the parts of a chart
_CHART, _CHART_FILES = (
    "application/vnd.cncf.helm.config.v1+json",
    "application/vnd.cncf.helm.chart.content.v1.tar+gzip",
)
_NAME = "org.opencontainers.image.ref.name"


def blob(layout: Path, media: str, data: bytes) -> Entry:
    """Put bytes into a layout; return the descriptor with which a manifest refers to them."""
    digest = hashlib.sha256(data).hexdigest()
    place = _place(layout, digest)
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_bytes(data)
    return {"mediaType": media, "digest": f"sha256:{digest}", "size": len(data)}


def chart(layout: Path, name: str, version: str, package: Path) -> Entry:
    """Put a chart's package into a layout, as `helm push` does; return its entry for the index."""
    with tarfile.open(package) as packed:
        about = packed.extractfile(f"{name}/Chart.yaml")
        assert about is not None
        fields = dict(line.split(": ", 1) for line in about.read().decode().splitlines() if ": " in line)
    config = {key: fields[key].strip("\"' ") for key in ("apiVersion", "name", "version", "description")}
    manifest = {
        "schemaVersion": 2,
        "mediaType": MANIFEST,
        "config": blob(layout, _CHART, json.dumps(config).encode()),
        "layers": [blob(layout, _CHART_FILES, package.read_bytes())],
        "annotations": {"org.opencontainers.image.title": name, "org.opencontainers.image.version": version},
    }
    entry = blob(layout, MANIFEST, json.dumps(manifest).encode())
    return {**entry, "annotations": {_NAME: f"{name}-{version}"}}


def files_image(layout: Path, name: str, folder: Path) -> Entry:
    """Put an image with only the files of a folder into a layout; return its entry for the index.

    The folder keeps its name in the image. Everybody may read the files; times and owners are left out, so
    the same files always give the same image.
    """
    blobs = layout / "blobs" / "sha256"
    blobs.mkdir(parents=True, exist_ok=True)
    part = blobs / "part"
    with tarfile.open(part, "w", dereference=True) as files:
        for path in (folder, *sorted(each for each in folder.rglob("*") if "__pycache__" not in each.parts)):
            files.add(path, Path(folder.name) / path.relative_to(folder), recursive=False, filter=plain)
    with part.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    layer = {"mediaType": _LAYER, "digest": f"sha256:{digest}", "size": part.stat().st_size}
    part.rename(_place(layout, digest))
    manifests = []
    for architecture in ARCHITECTURES:
        system = {"architecture": architecture, "os": "linux"}
        config = {**system, "config": {}, "rootfs": {"type": "layers", "diff_ids": [layer["digest"]]}}
        manifest = {
            "schemaVersion": 2,
            "mediaType": MANIFEST,
            "config": blob(layout, _IMAGE, json.dumps(config).encode()),
            "layers": [layer],
        }
        manifests.append({**blob(layout, MANIFEST, json.dumps(manifest).encode()), "platform": system})
    both = {"schemaVersion": 2, "mediaType": _INDEX, "manifests": manifests}
    return {**blob(layout, _INDEX, json.dumps(both).encode()), "annotations": {_NAME: name}}


def index(layout: Path, entries: list[Entry]) -> None:
    """Write the files that turn a folder of blobs into a layout."""
    (layout / "index.json").write_text(json.dumps({"schemaVersion": 2, "manifests": entries}))
    (layout / "oci-layout").write_text(json.dumps({"imageLayoutVersion": "1.0.0"}))


def pack(layout: Path, archive: Path) -> None:
    """Write a layout of images as one archive, which nodes, `docker load` and skopeo can read."""
    manifests = json.loads((layout / "index.json").read_text())["manifests"]
    (layout / "manifest.json").write_text(json.dumps([_for_docker(layout, entry) for entry in manifests]))
    with tarfile.open(archive, "w") as packed:
        for path in sorted(each for each in layout.rglob("*") if each.is_file()):
            packed.add(path, path.relative_to(layout), filter=plain)


def _for_docker(layout: Path, entry: Entry) -> Entry:
    """Return an image's entry in Docker's own format, which knows one processor: the names of its blobs."""
    manifest = json.loads(_place(layout, entry["digest"]).read_text())
    if "manifests" in manifest:
        manifest = json.loads(_place(layout, manifest["manifests"][0]["digest"]).read_text())
    return {
        "Config": _inside(manifest["config"]["digest"]),
        "RepoTags": [entry["annotations"][_NAME]],
        "Layers": [_inside(layer["digest"]) for layer in manifest["layers"]],
    }


def _inside(digest: str) -> str:
    return "blobs/" + digest.replace(":", "/")


def _place(layout: Path, digest: str) -> Path:
    return layout / "blobs" / "sha256" / digest.removeprefix("sha256:")


def plain(entry: tarfile.TarInfo) -> tarfile.TarInfo:
    """Remove from an archive's entry what differs between machines."""
    entry.mtime, entry.uid, entry.gid, entry.uname, entry.gname = 0, 0, 0, "", ""
    entry.mode = 0o755 if entry.isdir() or entry.mode & 0o100 else 0o644
    return entry
