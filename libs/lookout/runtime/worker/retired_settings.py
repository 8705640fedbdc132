"""Lists the removed settings, with what to do instead of each."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from lookout.runtime.net.connections import PREFIX

_POLICY: Final = "choose a policy by pruning; examples/pruning_policy.py is one with parameters of your own"

_RETIRED: Final[Mapping[str, str]] = MappingProxyType(
    {
        "accumulation": _POLICY,
        "alpha": _POLICY,
        "anchors": _POLICY,
        "camera_lease_s": "the value is fixed at 10 seconds",
        "change": _POLICY,
        "credential_name": "set grpc_tls_name",
        "credentials_any_host": "give the secret the key hosts with *",
        "decoder_memory": "it is derived from segment_pixels",
        "device_retry_s": "the value is fixed at 10 seconds",
        "kafka_key_password": "set kafka_key_password_file",
        "kubeconfig": "set KUBECONFIG",
        "log_human": "logs are plain text where stderr is a terminal",
        "luma_tau": _POLICY,
        "shed_after_s": "set skip_after_s; descriptions and audits are skipped from a quarter of it",
        "store__camera_bytes": "the value is a third of store__unread_bytes",
        "store__fetch_s": "the value is fixed at 10 seconds",
        "store__materialize_s": "the value is fixed at 60 seconds",
        "store__reserve_bytes": "the value is a quarter of store__memory_bytes",
        "tau": _POLICY,
        "tenant_fair_after_s": "the value is fixed at 20 seconds",
        "tenant_parts": "the value is two for each partition of recording.parts.v1",
        "thin_after_s": "set skip_after_s; every second window is skipped from half of it",
    }
)
"""What to do instead of each setting, by its name in lower case."""


def retired(name: str) -> str | None:
    """Return what to do instead of a removed setting (`LOOKOUT_X` or `x`); None if there was no such
    setting."""
    return _RETIRED.get(name.removeprefix(PREFIX).lower())
