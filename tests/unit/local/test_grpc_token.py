"""A fleet makes a token for its gRPC calls, unless its caller says who may call."""

from __future__ import annotations

from pathlib import Path

import pytest

from lookout.local import Fleet


@pytest.mark.parametrize(
    ("settings", "own"),
    [
        ({}, True),
        ({"decode": {"grpc_reflection": "true"}}, True),
        ({"prefill": {"grpc_port": "5555"}}, True),
        ({"decode": {"grpc_token_file": "/secrets/token"}}, False),
        ({"decode": {"grpc_cert_file": "/secrets/cert.pem"}}, False),
    ],
)
def test_only_credentials_take_the_place_of_the_token(
    settings: dict[str, dict[str, str]], own: bool, tmp_path: Path
) -> None:
    fleet = Fleet(
        tmp_path / "fleet", kafka="127.0.0.1:1", redis_url="redis://127.0.0.1:1", stage_settings=settings
    )
    assert (fleet.address.grpc_token_file is not None) == own
    assert ("LOOKOUT_GRPC_TOKEN_FILE" in fleet._environment("alerts")) == own
