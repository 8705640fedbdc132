"""The Dockerfiles hold together, for GPUs too, which nothing here can run; every requirement has a hash."""

from __future__ import annotations

import ctypes
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[3]
FILES = {"Dockerfile": "CPU", "gpu.Dockerfile": "GPU"}
#: images; each has a group of pyproject.toml and a locked list of the same name
IMAGES = (
    *("alerts", "camera-agent", "controller", "decode", "decode-gpu", "gateway"),
    *("notify", "prefill", "prefill-gpu", "recordings", "tryout"),
)


@dataclass
class Stage:
    """One stage of a Dockerfile: what it is made from, and its instructions."""

    base: str
    lines: list[str] = field(default_factory=list)


def stages(text: str) -> dict[str, Stage]:
    """Return the stages by name, with continued lines joined and comments left out."""
    kept = [line for line in text.splitlines() if not line.lstrip().startswith("#")]
    found: dict[str, Stage] = {}
    name = ""
    for line in "\n".join(kept).replace("\\\n", " ").splitlines():
        if match := re.fullmatch(r"FROM (\S+) AS (\S+)", line.strip()):
            name = match.group(2)
            found[name] = Stage(match.group(1))
        elif name and line.strip():
            found[name].lines.append(" ".join(line.split()))
    return found


def loaded(name: str) -> ModuleType:
    """A script of docker/ as a module."""
    spec = importlib.util.spec_from_file_location(f"{name}_script", ROOT / f"docker/{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def build() -> ModuleType:
    return loaded("build")


@pytest.mark.parametrize("file", FILES)
def test_every_stage_is_made_from_what_exists(file: str) -> None:
    found = stages((ROOT / "docker" / file).read_text())
    seen: set[str] = set()
    for name, stage in found.items():
        assert stage.base == "${PYTHON_IMAGE}" or stage.base in seen, f"{name} FROM {stage.base}"
        for line in stage.lines:
            if copied := re.match(r"COPY (?:--from=(\S+) )?(.+) \S+$", line):
                if copied.group(1):
                    assert copied.group(1) in seen, f"{name}: {line}"
                else:
                    missing = [each for each in copied.group(2).split() if not (ROOT / each).exists()]
                    assert not missing, f"{name}: {line}"
        seen.add(name)


@pytest.mark.parametrize(
    "name",
    [
        "python:3.11",
        "python:3.11@sha256:",
        f"python@sha256:{'0' * 63}",
        f"python@sha256:{'g' * 64}",
        f"python@md5:{'0' * 64}",
        f"python@sha256:{'0' * 64} other",
    ],
)
def test_a_release_is_built_on_a_digest_alone(
    build: ModuleType, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setenv("LOOKOUT_PYTHON_IMAGE", name)
    assert build.base_image() == name
    with pytest.raises(SystemExit, match=r"needs the digest of its base image.*docker/base\.lock"):
        build.base_image(release=True)
    pinned = f"docker.io/library/python:3.11-slim-bookworm@sha256:{'0' * 64}"
    monkeypatch.setenv("LOOKOUT_PYTHON_IMAGE", pinned)
    assert build.base_image(release=True) == pinned


@pytest.mark.parametrize("file", FILES)
def test_the_base_image_is_named_in_one_place(
    build: ModuleType, monkeypatch: pytest.MonkeyPatch, file: str
) -> None:
    monkeypatch.delenv("LOOKOUT_PYTHON_IMAGE", raising=False)
    (default,) = re.findall(r"(?m)^ARG PYTHON_IMAGE=(\S+)$", (ROOT / "docker" / file).read_text())
    assert build.base_image().partition("@")[0] == default


@pytest.mark.parametrize("file", FILES)
def test_what_ships_is_not_root_and_checks_its_health(build: ModuleType, file: str) -> None:
    found = stages((ROOT / "docker" / file).read_text())
    for target in getattr(build, FILES[file]):
        chain, name = [], target
        while name in found:
            chain += found[name].lines
            name = found[name].base
        assert "USER 10001:10001" in chain, target
        assert any(line.startswith("HEALTHCHECK") for line in chain), target
        assert any(line.startswith("ENTRYPOINT") for line in found[target].lines), target
        assert any("org.opencontainers.image.title" in line for line in found[target].lines), target


@pytest.mark.parametrize(
    "path", sorted((ROOT / "docker/requirements").glob("*.txt")), ids=lambda path: path.stem
)
def test_every_requirement_is_locked_with_hashes(path: Path) -> None:
    entries = re.split(r"\n(?=\S)", path.read_text())
    locked = [entry for entry in entries if not entry.startswith("#") and entry.strip()]
    assert locked
    for entry in locked:
        assert re.match(r"[A-Za-z0-9._\[\],-]+==\S+", entry), entry[:80]
        assert re.search(r"--hash=sha256:[0-9a-f]{64}", entry), entry[:80]


@pytest.mark.slow
def test_the_bill_of_materials_lists_every_package_of_an_image_without_network(tmp_path: Path) -> None:
    recipe = re.search(r"(?m)^sbom:.*\n((?:\t.*\n)+)", (ROOT / "Makefile").read_text())
    assert recipe is not None
    assert (
        "$(BIN)/python -W ignore -m cyclonedx_py requirements" in recipe[1]
    )  # of the lock: a tool that is fetched needs network
    locked, written = ROOT / "docker/requirements/camera-agent.txt", tmp_path / "sbom.json"
    command = [sys.executable, "-W", "ignore", "-m", "cyclonedx_py", "requirements", locked, "-o", written]
    nowhere = {**os.environ, "HTTPS_PROXY": "http://127.0.0.1:1", "HTTP_PROXY": "http://127.0.0.1:1"}
    subprocess.run([*command, "--no-validate"], check=True, capture_output=True, env=nowhere)
    components = json.loads(written.read_text())["components"]
    listed = {
        (component["name"], component["version"]): [
            entry["content"] for place in component["externalReferences"] for entry in place["hashes"]
        ]
        for component in components
    }
    hashes = {
        tuple(entry.split()[0].split("==")): re.findall(r"--hash=sha256:([0-9a-f]{64})", entry)
        for entry in re.split(r"\n(?=\S)", locked.read_text())
        if "==" in entry.split("\n")[0]
    }
    assert listed == hashes


@pytest.mark.parametrize("file", FILES)
def test_nothing_is_installed_without_hashes(file: str) -> None:
    """Lookout's own code is built by what is installed already, not by what the build would download."""
    scripts = [line for path in (ROOT / "docker").glob("*.sh") for line in path.read_text().splitlines()]
    found = stages((ROOT / "docker" / file).read_text()) | {"scripts": Stage("", scripts)}
    for name, stage in found.items():
        for line in stage.lines:
            if re.search(r"\bpip install\b", line):
                own = "--no-deps" in line and "--no-build-isolation" in line
                assert "--require-hashes" in line or own, f"{name}: {line}"


def test_every_locked_list_belongs_to_an_image() -> None:
    text = "".join((ROOT / "docker" / file).read_text() for file in FILES)
    unused = [path.name for path in (ROOT / "docker/requirements").glob("*.txt") if path.name not in text]
    assert not unused


def direct(group: str) -> set[str]:
    """Names that a dependency group asks for, those of the groups it includes too."""
    groups = tomllib.loads((ROOT / "pyproject.toml").read_text())["dependency-groups"]
    wanted: list[str] = []
    left = [group]
    while left:
        for entry in groups[left.pop()]:
            if isinstance(entry, dict):
                left.append(entry["include-group"])
            else:
                wanted.append(entry)
    return {re.split(r"[<>=\[ ;]", entry)[0].lower() for entry in wanted}


@pytest.mark.parametrize("image", IMAGES)
def test_a_locked_list_holds_what_its_image_needs(image: str) -> None:
    text = (ROOT / f"docker/requirements/{image}.txt").read_text()
    locked = set(re.findall(r"^([A-Za-z0-9._-]+)(?:\[.*\])?==", text, re.MULTILINE))
    assert direct(image) <= {name.lower() for name in locked}


#: services by the locked list of their image
SERVICES = {
    "alerts": ["alerts"],
    "camera-agent": ["camera_agent"],
    "controller": ["controller", "controller.topics", "controller.credential", "controller.release"],
    "decode": ["decode"],
    "gateway": ["gateway"],
    "notify": [
        "notify",
        *(f"notify.channels.{name}_channel" for name in ("apprise", "mqtt", "push")),
    ],
    "prefill": ["prune_encode", "prefill"],
    "recordings": ["recordings", "recall"],
}
#: imports services where packages that are not in a list cannot be imported
IMPORTING = """
import importlib, importlib.metadata, re, sys
from importlib.machinery import PathFinder
locked = {re.sub("[-_.]+", "-", name).lower() for name in sys.argv[1].split(",")}
installed = importlib.metadata.packages_distributions()
foreign = {
    package
    for package, names in installed.items()
    if package != "lookout" and not {re.sub("[-_.]+", "-", name).lower() for name in names} & locked
}
class Present(PathFinder):
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        return None if name in foreign else PathFinder.find_spec(name, path, target)
sys.meta_path = [Present if finder is PathFinder else finder for finder in sys.meta_path]
for module in sys.argv[2].split(","):
    importlib.import_module(f"lookout.{module}")
"""
#: what `lookout model serve` imports, and when it loads a checkpoint
SECOND_CHECKPOINT = [
    "cli.app",
    "cli.model_command",
    "cli.model_serve",
    "streams.session",
    "video.sandbox.child",
]


@pytest.mark.slow
@pytest.mark.parametrize(
    "image",
    [
        # The one with most imports in every run; a process for each.
        image if image == "prefill" else pytest.param(image, marks=pytest.mark.long)
        for image in SERVICES
    ],
)
def test_a_service_imports_nothing_that_its_image_lacks(image: str) -> None:
    modules = [f"services.{service}" + ("" if "." in service else ".__main__") for service in SERVICES[image]]
    check_imports(image, modules)


@pytest.mark.long
@pytest.mark.parametrize("image", ["recordings", "prefill-gpu"])
def test_an_image_of_the_chart_can_serve_a_second_checkpoint(image: str) -> None:
    check_imports(image, SECOND_CHECKPOINT)


def check_imports(image: str, modules: list[str]) -> None:
    """Import modules with nothing but what an image installs."""
    text = (ROOT / f"docker/requirements/{image}.txt").read_text()
    locked = re.findall(r"^([A-Za-z0-9._-]+)(?:\[.*\])?==", text, re.MULTILINE)
    child = subprocess.run(
        [sys.executable, "-c", IMPORTING, ",".join(locked), ",".join(modules)],
        check=False,
        capture_output=True,
        text=True,
    )
    assert child.returncode == 0, child.stderr[-2000:]


def test_what_is_installed_without_bytecode_is_compiled_when_it_is_slim(tmp_path: Path) -> None:
    """Nobody can write in an image: a pod would compile torch at every start."""
    text = (ROOT / "docker/Dockerfile").read_text()
    assert re.search(r"ENV .*UV_COMPILE_BYTECODE=1", text)
    for stage in stages(text).values():
        for line in stage.lines:
            assert "UV_COMPILE_BYTECODE=0" not in line or line.endswith("python /build/slim_torch.py")
    slim = loaded("slim_torch")
    for name, code in (("good", "x = 1\n"), ("template", "x = {{ y }\n")):
        (tmp_path / f"{name}.py").write_text(code)
    slim.compile_bytecode(tmp_path)
    assert [path.name.partition(".")[0] for path in (tmp_path / "__pycache__").iterdir()] == ["good"]
    assert "compile_bytecode(packages)" in (ROOT / "docker/slim_torch.py").read_text()


@pytest.mark.skipif(not all(map(shutil.which, ("gcc", "as", "ld", "nm"))), reason="no compiler is installed")
def test_a_library_that_a_cpu_does_not_need_becomes_a_small_one(tmp_path: Path) -> None:
    slim, library = loaded("slim_torch"), tmp_path / "libwhole.so"
    source = b"int used(void) { return 7; } int other(void) { return 8; }"
    compiler = ["gcc", "-shared", "-fPIC", "-x", "c", "-", "-o", str(library)]
    subprocess.run(compiler, input=source, check=True)
    slim.replace(library, {"used", "elsewhere"})
    small = ctypes.CDLL(str(library))
    assert small.used() == 1
    assert not hasattr(small, "other")


def test_libraries_are_replaced_for_every_processor_of_a_release() -> None:
    """What is removed is linked with what is replaced: torch cannot be imported with one of the two alone."""
    machines = {"amd64": "x86_64", "arm64": "aarch64"}
    assert set(loaded("slim_torch").RETURNS_1) == {machines[each] for each in loaded("oci").ARCHITECTURES}
