"""Every service reads its settings from its own process's environment, under the one prefix."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
from pathlib import Path

import pytest

from lookout.runtime.worker import ServiceSettings, load_settings

KINDS = {"decode": "DecodeSettings", "prune_encode": "PruneEncodeSettings", "prefill": "PrefillSettings"}


@pytest.mark.parametrize("service", KINDS)
def test_the_prefix_holds_whatever_a_service_mixes_in(service: str, monkeypatch: pytest.MonkeyPatch) -> None:
    kind = getattr(importlib.import_module(f"lookout.services.{service}.settings"), KINDS[service])
    assert issubclass(kind, ServiceSettings)
    monkeypatch.setenv("LOOKOUT_BOOTSTRAP", "kafka:9092")
    monkeypatch.setenv("LOOKOUT_REDIS_URL", "redis://redis:6379")
    monkeypatch.setenv("BOOTSTRAP", "other:9092")
    monkeypatch.setenv("LOOKOUT_GRPC_INSECURE", "true")
    assert load_settings(kind).bootstrap == "kafka:9092"


@pytest.mark.slow
@pytest.mark.parametrize("service", ["alerts", "camera_agent"])
def test_the_garbage_collector_never_walks_what_a_service_imported(service: str, tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(
        "import atexit, gc\natexit.register(lambda: print(gc.isenabled(), gc.get_freeze_count() > 10_000))\n"
    )
    done = subprocess.run(
        [sys.executable, "-m", f"lookout.services.{service}"],
        env={"PATH": os.environ["PATH"], "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout) == (2, "True True\n"), done.stderr
