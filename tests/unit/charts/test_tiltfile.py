"""The Tiltfile runs under a real Starlark interpreter; Tilt's own functions are fakes that only note calls.

Tilt itself is not in the registries that tests use. What restarts a service in its container runs for real.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from lookout.local import guarded
from tests.eventually import eventually

starlark = pytest.importorskip("starlark", reason="starlark-pyo3 is not installed")

ROOT = Path(__file__).parents[3]
FUNCTIONS = (
    "allow_k8s_contexts",
    "docker_build",
    "fall_back_on",
    "k8s_resource",
    "k8s_yaml",
    "local_resource",
    "run",
    "sync",
)


def run() -> dict[str, list[tuple[tuple[Any, ...], dict[str, Any]]]]:
    """Evaluate the Tiltfile and return the calls of each of Tilt's functions."""
    calls: dict[str, list[tuple[tuple[Any, ...], dict[str, Any]]]] = {name: [] for name in FUNCTIONS}

    def note(name: str) -> Callable[..., str]:
        def noted(*arguments: Any, **options: Any) -> str:
            calls[name].append((arguments, options))
            return name

        return noted

    calls["helm"] = []
    globals_ = starlark.Globals.extended_by([starlark.LibraryExtension.StructType])
    module = starlark.Module()
    for name in (*FUNCTIONS, "helm"):
        module.add_callable(name, note(name))
    module.add_callable("_define_string", lambda *a, **k: None)
    module.add_callable("_parse", lambda: {})
    config = "config = struct(define_string=_define_string, parse=_parse)\n"
    text = config + (ROOT / "Tiltfile").read_text()
    # Top-level loops are Tilt's dialect of Starlark.
    dialect = starlark.Dialect.extended()
    dialect.enable_top_level_stmt = True
    starlark.eval(module, starlark.parse("Tiltfile", text, dialect=dialect), globals_)
    return calls


def test_every_service_is_built_and_updated_live() -> None:
    calls = run()
    images = {arguments[0]: options for arguments, options in calls["docker_build"]}
    services = {path.parent.name.replace("_", "-") for path in (ROOT / "services").glob("*/__main__.py")}
    live = {name for name, options in images.items() if "live_update" in options}
    assert live == {f"localhost/lookout-{name}" for name in services}
    assert calls["helm"][0][0] == ("charts/lookout",)
    dockerfile = (ROOT / "docker/Dockerfile").read_text()
    for name, options in images.items():
        for path in options["only"]:
            assert (ROOT / path).exists(), path
        if name in live:
            base, copy, _ = options["dockerfile_contents"].splitlines()
            assert base.removeprefix("FROM ") in images
            assert (ROOT / copy.split()[1]).exists()
        else:
            assert f" AS {options['target']}\n" in dockerfile


def test_live_updates_write_where_pods_may_write() -> None:
    places = {arguments[1] for arguments, _ in run()["sync"]}
    assert places == {"/tmp/code/lookout", "/tmp/code/lookout/services"}
    for name in ("stages", "recall", "recordings", "gateway", "notify", "controller", "camera-agent"):
        template = (ROOT / f"charts/lookout/templates/{name}.yaml").read_text()
        assert "{name: tmp, mountPath: /tmp}" in template


SERVICE = """
import pathlib, signal
from lookout.version import VERSION
# Blocked and then waited for: `pause` would miss a signal that comes just before it.
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
with open(pathlib.Path(__file__).parents[2] / "versions", "a") as file:
    print(VERSION, file=file)
signal.sigwait([signal.SIGTERM])
"""


def test_a_service_starts_again_with_the_code_that_was_written(tmp_path: Path) -> None:
    installed, code = tmp_path / "site/lookout", tmp_path / "code"
    (installed / "echo").mkdir(parents=True)
    (installed / "__init__.py").touch()
    (installed / "version.py").write_text("VERSION = 1\n")
    (installed / "echo/__main__.py").write_text(SERVICE)
    (tmp_path / "python").symlink_to(sys.executable)
    process = subprocess.Popen(
        guarded(["/bin/sh", str(ROOT / "docker/reload.sh"), "lookout.echo"]),
        env={
            "PATH": f"{tmp_path}:{os.environ['PATH']}",
            "PYTHONPATH": str(installed.parent),
            "PYTHONDONTWRITEBYTECODE": "1",
            "LOOKOUT_CODE": str(code),
        },
    )
    versions = code / "versions"
    try:
        eventually(lambda: versions.exists() and versions.read_text() == "1\n")
        (code / "lookout/version.py").write_text("VERSION = 2\n")
        os.kill(int((code / "pid").read_text()), signal.SIGTERM)
        eventually(lambda: versions.read_text() == "1\n2\n")
        (code / "lookout/version.py").write_text("VERSION = \n")  # fails until it is whole
        os.kill(int((code / "pid").read_text()), signal.SIGTERM)
        (code / "lookout/version.py").write_text("VERSION = 3\n")
        eventually(lambda: versions.read_text() == "1\n2\n3\n")
        process.terminate()
        assert process.wait(60) == 0
        child = int((code / "pid").read_text())
        with pytest.raises(ProcessLookupError):
            os.kill(child, 0)
    finally:
        process.kill()
        process.wait()
