"""How commands that read Kafka as a stage does, verify and backtest, reach one that asks for a password."""

from __future__ import annotations

from pathlib import Path

import pytest

from lookout.cli.connect import client_options, kafka_settings
from lookout.local import FleetAddress
from lookout.services.prefill.settings import PrefillSettings
from lookout.worker import load_settings


def test_settings_of_a_local_fleet_and_of_the_environment_log_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    password = tmp_path / "password"
    password.write_text("canary")
    login = {
        "kafka_protocol": "sasl_plaintext",
        "kafka_mechanism": "SCRAM-SHA-512",
        "kafka_username": "lookout",
        "kafka_password_file": str(password),
    }
    security = {**login, "redis_password_file": str(password)}
    fleet = FleetAddress("127.0.0.1:1", "redis://127.0.0.1:2/0", str(tmp_path), 1, {}, {}, security=security)
    monkeypatch.setattr("lookout.local.addresses.running_fleets", lambda: [fleet])
    for name, value in login.items():
        monkeypatch.setenv(f"LOOKOUT_{name.upper()}", value)
    for bootstrap in (fleet.bootstrap, "127.0.0.1:3"):
        settings = load_settings(
            PrefillSettings,
            {},
            **{"mode": "local", "model_dir": tmp_path, "bootstrap": bootstrap, **kafka_settings(bootstrap)},
        )
        options = settings.kafka_security()
        assert options["sasl.password"] == "canary"
        assert options.items() <= client_options(bootstrap).items()
