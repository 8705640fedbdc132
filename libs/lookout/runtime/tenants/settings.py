"""Settings of the services that count and limit what tenants use."""

from __future__ import annotations

from functools import cached_property

from pydantic import BaseModel, Field, field_validator

from lookout.runtime.tenants.quotas import Quotas, read_quotas


class TenantSettings(BaseModel):
    """Quotas of tenants. Each field is `LOOKOUT_<FIELD>`."""

    tenant_quotas: str = Field(
        "",
        max_length=1 << 20,
        description="quotas by tenant as JSON, the same for decode, prefill and recall: bytes, cameras, "
        "questions, device_s, searched and weight; * applies to every tenant that is not named; empty: no "
        "quotas",
    )
    tenant_interval_s: float = Field(
        60.0,
        ge=1,
        le=86_400,
        description="interval to which tenants' quotas apply, in seconds; a longer one allows longer bursts",
    )

    @field_validator("tenant_quotas")
    @classmethod
    def _readable(cls, text: str) -> str:
        read_quotas(text)
        return text

    @cached_property
    def quotas(self) -> Quotas:
        """The quotas."""
        return read_quotas(self.tenant_quotas)
