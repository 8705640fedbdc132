"""The Tiltfile runs under a real Starlark interpreter; Tilt's own functions are fakes that only note calls.

Tilt itself is not in the registries that tests use.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

starlark = pytest.importorskip("starlark", reason="starlark-pyo3 is not installed")

ROOT = Path(__file__).parents[3]
FUNCTIONS = (
    "allow_k8s_contexts",
    "docker_build",
    "docker_build_with_restart",
    "fall_back_on",
    "k8s_resource",
    "k8s_yaml",
    "local_resource",
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
    text = (
        (ROOT / "Tiltfile")
        .read_text()
        .replace(
            "load('ext://restart_process', 'docker_build_with_restart')",
            "config = struct(define_string=_define_string, parse=_parse)",
        )
    )
    # Top-level loops are Tilt's dialect of Starlark.
    dialect = starlark.Dialect.extended()
    dialect.enable_top_level_stmt = True
    starlark.eval(module, starlark.parse("Tiltfile", text, dialect=dialect), globals_)
    return calls


def test_every_service_is_built_and_updated_live() -> None:
    calls = run()
    images = {arguments[0] for arguments, _ in calls["docker_build_with_restart"]}
    services = {path.parent.name.replace("_", "-") for path in (ROOT / "services").glob("*/__main__.py")}
    assert images == {f"localhost/lookout-{name}" for name in services}
    for _, options in calls["docker_build_with_restart"]:
        assert options["live_update"]
        for path in options["only"]:
            assert (ROOT / path).exists(), path
    assert calls["helm"][0][0] == ("charts/lookout",)
    dockerfile = (ROOT / "docker/Dockerfile").read_text()
    for _, options in (*calls["docker_build_with_restart"], *calls["docker_build"]):
        assert f" AS {options['target']}\n" in dockerfile
