"""Quotas as an operator writes them."""

from __future__ import annotations

import pytest

from lookout.errors import StartupError
from lookout.runtime.tenants import TenantQuota, read_quotas
from lookout.runtime.worker import load_settings
from lookout.services.decode.settings import DecodeSettings


def test_a_tenant_without_a_quota_has_that_of_the_others() -> None:
    quotas = read_quotas('{"acme": {"bytes": 10, "weight": 2}, "*": {"cameras": 3}}')
    assert quotas.of("acme") == TenantQuota(bytes=10, weight=2)
    assert quotas.of("globex") == TenantQuota(cameras=3)
    assert (quotas.weight("acme"), quotas.weight("globex")) == (2, 1)
    assert quotas.any
    assert not read_quotas("").any
    assert not read_quotas('{"acme": {"weight": 5}}').any


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("{", "not valid JSON"),
        ("[" * 100_000, "not valid JSON"),
        ("[]", "it must be an object"),
        ('{"": {}}', "a tenant's name is empty"),
        ('{"a b": {}}', "tenant 'a b'"),
        ('{"' + "9" * 5000 + '": {}}', "63 letters"),
        ('{"acme": {"weight": -1}}', r"acme.weight: a number above 0 is expected, not -1"),
        ('{"acme": {"weight": 0}}', "acme.weight"),
        ('{"acme": {"weight": NaN}}', "acme.weight"),
        ('{"acme": {"device_s": 1e999}}', "acme.device_s"),
        ('{"acme": {"bytes": -1}}', "acme.bytes"),
        ('{"acme": {"bytes": 1.5}}', "acme.bytes"),
        ('{"acme": {"bytes": "10"}}', "acme.bytes"),
        ('{"acme": {"questions": ' + "9" * 5000 + "}}", "Exceeds the limit"),
        ('{"acme": {"gpus": 1}}', "acme.gpus"),
        ('{"acme": {}, "acme": {}}', "^acme occurs twice"),
        ('{"acme": {"bytes": 1, "bytes": 2}}', "bytes occurs twice"),
        ('{"acme": 3}', "acme: "),
        ('{"acme": null}', "acme: "),
    ],
)
def test_what_cannot_be_followed_is_refused_with_its_place(text: str, why: str) -> None:
    with pytest.raises(ValueError, match=why) as caught:
        read_quotas(text)
    assert len(str(caught.value)) < 300


def test_zero_is_a_quota() -> None:
    assert read_quotas('{"acme": {"bytes": 0}}').of("acme").limit("bytes") == 0


def test_a_service_names_the_setting() -> None:
    quotas = '{"acme": {"weight": -1}}'
    with pytest.raises(StartupError, match=r"LOOKOUT_TENANT_QUOTAS.*acme.weight"):
        load_settings(DecodeSettings, {"LOOKOUT_MODE": "local", "LOOKOUT_TENANT_QUOTAS": quotas})
