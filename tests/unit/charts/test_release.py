"""What a release ships: charts as OCI artifacts, sums, a signature, and nothing that no commit has."""

from __future__ import annotations

import argparse
import hashlib
import io
import json
import os
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path
from types import ModuleType

import pytest
import yaml

from tests.unit.charts.test_images import ROOT, loaded


@pytest.fixture(scope="module")
def release() -> ModuleType:
    sys.path.insert(0, str(ROOT / "docker"))
    try:
        return loaded("release")
    finally:
        sys.path.remove(str(ROOT / "docker"))


def package(folder: Path, name: str) -> Path:
    """A package of one of the charts, as helm makes them."""
    path = folder / f"{name}.tgz"
    with tarfile.open(path, "w:gz") as chart:
        chart.add(ROOT / "charts" / name, name)
    return path


def blob(layout: Path, entry: dict[str, object]) -> bytes:
    """The bytes of an entry, compared with its digest and size."""
    algorithm, _, digest = str(entry["digest"]).partition(":")
    data = (layout / "blobs" / algorithm / digest).read_bytes()
    assert hashlib.new(algorithm, data).hexdigest() == digest
    assert len(data) == entry["size"]
    return data


@pytest.mark.parametrize("name", ["lookout", "lookout-crds"])
def test_a_chart_is_an_oci_artifact(release: ModuleType, tmp_path: Path, name: str) -> None:
    packed = package(tmp_path, name)
    entry = release.oci.chart(tmp_path / "oci", name, release.version(), packed)
    manifest = json.loads(blob(tmp_path / "oci", entry))
    (layer,) = manifest["layers"]
    assert blob(tmp_path / "oci", layer) == packed.read_bytes()
    about = yaml.safe_load((ROOT / "charts" / name / "Chart.yaml").read_text())
    config = json.loads(blob(tmp_path / "oci", manifest["config"]))
    assert config == {key: about[key] for key in ("apiVersion", "name", "version", "description")}
    assert entry["annotations"] == {"org.opencontainers.image.ref.name": f"{name}-{about['version']}"}


def test_a_checkpoint_is_an_image_that_everybody_reads(release: ModuleType, tmp_path: Path) -> None:
    """The same files are the same archive, for nodes and for Docker; nothing of who made it is inside."""
    archives = []
    for turn in ("one", "two"):
        folder = tmp_path / turn / "tiny"
        (folder / "part").mkdir(parents=True)
        (folder / "config.json").write_text("{}")
        (folder / "part" / "weights").write_bytes(b"w" * 70_000)
        (folder / "config.json").chmod(0o600)
        os.utime(folder / "config.json", (1, len(turn)))
        release.model(tmp_path / turn / "out", argparse.Namespace(model=folder))
        (archive,) = (tmp_path / turn / "out").iterdir()
        archives.append(archive.read_bytes())
    assert archives[0] == archives[1]
    with tarfile.open(fileobj=io.BytesIO(archives[0])) as archive:
        archive.extractall(tmp_path / "layout", filter="data")
    layout = tmp_path / "layout"
    (entry,) = json.loads((layout / "index.json").read_text())["manifests"]
    name = entry["annotations"]["org.opencontainers.image.ref.name"]
    assert name == f"localhost/lookout-model:{release.version()}"
    layers = []
    for each in json.loads(blob(layout, entry))["manifests"]:
        manifest = json.loads(blob(layout, each))
        config = json.loads(blob(layout, manifest["config"]))
        assert config["architecture"] == each["platform"]["architecture"]
        layers += manifest["layers"]
        assert config["rootfs"]["diff_ids"] == [layers[0]["digest"]]
    layer, other = layers
    assert layer == other
    with tarfile.open(fileobj=io.BytesIO(blob(layout, layer))) as files:
        assert [(each.name, oct(each.mode), each.uid) for each in files] == [
            ("tiny", "0o755", 0),
            ("tiny/config.json", "0o644", 0),
            ("tiny/part", "0o755", 0),
            ("tiny/part/weights", "0o644", 0),
        ]
    (docker,) = json.loads((layout / "manifest.json").read_text())
    assert docker["RepoTags"] == [name]
    assert (layout / docker["Layers"][0]).read_bytes() == blob(layout, layer)


def test_every_file_has_a_sum_that_changes_with_it(release: ModuleType, tmp_path: Path) -> None:
    for name in ("one", "deep/er/two"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(name)
    assert release.sums(tmp_path) == 2
    command = ["sha256sum", "--check", "--quiet", "SHA256SUMS"]
    subprocess.run(command, cwd=tmp_path, check=True)
    (tmp_path / "deep/er/two").write_text("another")
    assert subprocess.run(command, cwd=tmp_path, check=False, capture_output=True).returncode != 0


def test_what_no_commit_has_is_not_released(
    release: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    subprocess.run(["git", "init", "--quiet", str(tmp_path)], check=True)
    monkeypatch.setattr(release, "ROOT", tmp_path)
    release.check_clean()
    (tmp_path / "a file").write_text("new")
    with pytest.raises(SystemExit, match="1 files differ from the commit"):
        release.check_clean()


def test_the_site_is_the_same_archive_twice(
    release: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(release, "ROOT", tmp_path)
    monkeypatch.setattr(release, "version", lambda: "1.2.3")
    page = tmp_path / "out/site/index.html"
    page.parent.mkdir(parents=True)
    archives = []
    for turn in ("one", "two"):
        page.unlink(missing_ok=True)
        page.write_text("<p>docs</p>")
        release.site(tmp_path / turn, argparse.Namespace())
        archives.append((tmp_path / turn / "docs-1.2.3.tar.gz").read_bytes())
    assert archives[0] == archives[1]
    with tarfile.open(fileobj=io.BytesIO(archives[0])) as archive:
        assert archive.getnames() == ["site/index.html"]


@pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl is not installed")
def test_a_release_is_signed_and_is_not_written_twice(
    release: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    key, public = tmp_path / "key.pem", tmp_path / "key.pub"
    subprocess.run(["openssl", "genpkey", "-algorithm", "ed25519", "-out", str(key)], check=True)
    subprocess.run(["openssl", "pkey", "-in", str(key), "-pubout", "-out", str(public)], check=True)
    parts = [word for part in release.PARTS if part != "docs" for word in ("--without", part)]
    words = ["release.py", "--anyway", "--key", str(key), "--out", str(tmp_path / "out"), *parts]
    monkeypatch.setattr(sys, "argv", words)
    folder = tmp_path / "out" / release.version()
    folder.parent.mkdir()
    monkeypatch.setitem(
        release.PARTS, "docs", lambda out, _: (out.mkdir(parents=True), (out / "page").touch())
    )
    release.main()
    assert json.loads(capsys.readouterr().out)["signed"]
    listed = folder / "SHA256SUMS"
    check = ["openssl", "pkeyutl", "-verify", "-pubin", "-inkey", str(public), "-rawin", "-in", str(listed)]
    subprocess.run([*check, "-sigfile", f"{listed}.sig"], check=True)
    listed.write_text("another")
    assert subprocess.run([*check, "-sigfile", f"{listed}.sig"], check=False).returncode != 0
    with pytest.raises(SystemExit, match="already exists"):
        release.main()
