"""Every service reads its settings from its own process's environment, under the one prefix."""

from __future__ import annotations

import importlib

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
