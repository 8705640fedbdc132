"""Quotas of tenants, as an operator writes them."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Final, Literal, TypeVar, get_args

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from lookout.runtime.net.setting_faults import fault_text
from lookout.text import clean
from lookout.wire import WireError, check_tenant

Kind = Literal["bytes", "cameras", "questions", "device_s", "searched"]
KINDS: Final[tuple[Kind, ...]] = get_args(Kind)
#: the name that stands for tenants without a quota of their own
OTHERS: Final = "*"
#: what each quota counts, in words for people
NOUNS: Final[dict[Kind, str]] = {
    "bytes": "bytes of segments",
    "cameras": "cameras",
    "questions": "questions about windows",
    "device_s": "seconds of the device",
    "searched": "windows of searches",
}


class TenantQuota(BaseModel):
    """What one tenant may use in an interval, on all instances together. None: no limit; 0: nothing."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    bytes: int | None = Field(default=None, ge=0, description="bytes of segments")
    cameras: int | None = Field(default=None, ge=0, description="cameras that send")
    questions: int | None = Field(default=None, ge=0, description="questions that windows are asked")
    device_s: float | None = Field(
        default=None, ge=0, allow_inf_nan=False, description="seconds of prefill's devices"
    )
    searched: int | None = Field(default=None, ge=0, description="windows that searches compute")
    weight: float = Field(
        default=1.0, gt=0, le=1000, allow_inf_nan=False, description="part of a device that is short"
    )

    def limit(self, kind: Kind) -> float | None:
        """Return the limit for a kind; None: no limit."""
        value: float | None = getattr(self, kind)
        return value


Quota = TypeVar("Quota", bound=BaseModel)


@dataclass(frozen=True, slots=True)
class Quotas:
    """Quotas by tenant. `default` applies to tenants without a quota of their own."""

    named: dict[str, TenantQuota] = field(default_factory=dict)
    default: TenantQuota = field(default_factory=TenantQuota)

    def of(self, tenant: str) -> TenantQuota:
        """Return a tenant's quota."""
        return self.named.get(tenant, self.default)

    def weight(self, tenant: str) -> float:
        """Return a tenant's weight in the competition for a device."""
        return self.of(tenant).weight

    @property
    def any(self) -> bool:
        """Whether anything is limited."""
        quotas = (self.default, *self.named.values())
        return any(quota.limit(kind) is not None for quota in quotas for kind in KINDS)


def read_quotas(text: str) -> Quotas:
    """Parse quotas from JSON: `{"acme": {"bytes": 1000000000, "weight": 2}, "*": {"cameras": 100}}`.

    Args:
        text: The JSON; empty: no quotas.

    Raises:
        ValueError: The JSON is invalid; the text names the tenant and the field.
    """
    quotas = read_by_tenant(text, TenantQuota)
    default = quotas.pop(OTHERS, TenantQuota())
    return Quotas(quotas, default)


def read_by_tenant(text: str, kind: type[Quota]) -> dict[str, Quota]:
    """Parse settings by tenant from JSON.

    Args:
        text: An object with a field for each tenant, and `*` for tenants that it does not name; empty: none.
        kind: The model of each field's value.

    Returns:
        The values by tenant name, or `*`.

    Raises:
        ValueError: The JSON is invalid; the text names the tenant and the field.
    """
    if not text.strip():
        return {}
    try:
        written = json.loads(text, object_pairs_hook=_once)
    except (json.JSONDecodeError, RecursionError) as error:
        raise ValueError(f"not valid JSON: {clean(str(error), 100)}") from None
    except ValueError as error:  # a number of thousands of digits, or a name that occurs twice
        raise ValueError(clean(str(error), 100)) from None
    if not isinstance(written, dict):
        raise ValueError('it must be an object, such as {"acme": {...}, "*": {...}}')
    return {_tenant(name): _quota(name, value, kind) for name, value in written.items()}


def _once(pairs: list[tuple[str, object]]) -> dict[str, object]:
    """Make a JSON object of its pairs.

    Raises:
        ValueError: A name occurs twice, so one of its values would be lost.
    """
    names = [name for name, _ in pairs]
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise ValueError(f"{clean(twice, 40)} occurs twice")
    return dict(pairs)


def _tenant(name: str) -> str:
    if not name:
        raise ValueError(
            f"a tenant's name is empty: give a name, or {OTHERS} for all tenants that are not named"
        )
    try:
        return name if name == OTHERS else check_tenant(name)
    except WireError as error:
        raise ValueError(str(error)) from None


def _quota(tenant: str, value: object, kind: type[Quota]) -> Quota:
    try:
        return kind.model_validate(value)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join([clean(tenant, 40), *(str(part) for part in first["loc"])])
        suffix = "" if first["type"] == "extra_forbidden" else f", not {clean(repr(first['input']), 60)}"
        raise ValueError(f"{where}: {fault_text(first)}{suffix}") from None
