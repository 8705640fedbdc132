"""An old kcat is named before its login is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from lookout.local.kcat import kcat_fault, kcat_library

SAYS = """kcat - Apache Kafka producer and consumer tool
Version 1.7.1 (JSON, Transactions, librdkafka {} builtin.features=gzip,ssl,sasl_scram)
"""


def fake_kcat(folder: Path, script: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A fake that takes kcat's place on PATH."""
    path = folder / "kcat"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")


@pytest.mark.parametrize("version", ["0.11.6", "1.9.2", "2.0.2", "2.6.0"])
def test_a_library_that_kafka_refuses_is_named(
    version: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_kcat(tmp_path, f"cat <<'END'\n{SAYS.format(version)}END", monkeypatch)
    fault = kcat_fault()
    assert fault is not None
    assert f"librdkafka {version}" in fault
    assert "2.6.1 or newer" in fault


@pytest.mark.parametrize("version", ["2.6.1", "2.10.0", "3.0.0"])
def test_a_library_that_kafka_takes_is_no_fault(
    version: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_kcat(tmp_path, f"cat <<'END'\n{SAYS.format(version)}END", monkeypatch)
    assert kcat_library() == tuple(map(int, version.split(".")))
    assert kcat_fault() is None


def test_nothing_is_said_where_nobody_knows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for script in ("echo kcat; exit 3", "exec /nowhere/kcat"):
        fake_kcat(tmp_path, script, monkeypatch)
        assert kcat_fault() is None
    monkeypatch.setenv("PATH", str(tmp_path / "empty"))
    assert kcat_library() is None
