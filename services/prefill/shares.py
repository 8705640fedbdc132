"""Shares prefill's device between tenants."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from prometheus_client.core import GaugeMetricFamily, Metric

from lookout.models.engines import WindowRequest
from lookout.runtime.fairness import FairShares
from lookout.runtime.tenants import TenantUsage
from lookout.wire import DEFAULT_TENANT

#: number of rows that a question is assumed to add to a window
_QUESTION_ROWS = 16


def rows_of(request: WindowRequest) -> int:
    """Return the number of rows by which a window is charged for its batch's time."""
    return request.plan.computed + _QUESTION_ROWS * len(request.questions)


class DeviceShares:
    """Orders windows by their tenants' shares of the device, and charges tenants for them. Thread-safe.

    Args:
        shares: Each tenant's measured work.
        usage: Counts each tenant's device seconds.
    """

    def __init__(self, shares: FairShares, usage: TenantUsage) -> None:
        self._shares, self._usage = shares, usage
        self._tenants: dict[str, str] = {}

    def note(self, camera: str, tenant: str) -> None:
        """Record a camera's tenant."""
        self._tenants[camera] = tenant

    def forget(self, camera: str) -> None:
        """Forget a camera that now belongs to another worker."""
        self._tenants.pop(camera, None)

    def order(self, waiting: Sequence[WindowRequest]) -> list[int]:
        """Return the indices of waiting windows in the order in which to compute them."""
        return self._shares.order([self._tenant(request) for request in waiting])

    def charge(self, requests: Sequence[WindowRequest], seconds: float) -> None:
        """Charge a batch's seconds to its tenants, in proportion to their rows."""
        rows = Counter[str]()
        for request in requests:
            rows[self._tenant(request)] += rows_of(request)
        total = rows.total() or 1
        work = {tenant: seconds * count / total for tenant, count in rows.items()}
        self._shares.charge(work, len(requests))
        for tenant, used in work.items():
            self._usage.add(tenant, "device_s", used)

    def excess(self, tenant: str, *, alone: bool = False) -> str | None:
        """Describe how far a tenant is above its fair share; None if it is not, or no other tenant uses the
        device.

        Args:
            tenant: The tenant's name.
            alone: Count only this device, as if it were the only one in the fleet.
        """
        part = self._shares.part(tenant, alone=alone)
        # The tolerance covers rounding, by which equal shares may differ.
        if part is None or part.share <= part.fair * (1 + 1e-9):
            return None
        where = "this device" if alone or not self._shares.together else "the devices of all instances"
        return (
            f"tenant {tenant!r} has {part.share:.1%} of {where}, but its fair share among the {part.owners} "
            f"tenants of this instance is {part.fair:.1%}: add prefill pods, or raise the tenant's weight in "
            "LOOKOUT_TENANT_QUOTAS"
        )

    def numbers(self, tenant_limit: int = 1000) -> dict[str, float]:
        """Return the tenants with the largest recent shares, each with its share."""
        shares = sorted(self._shares.shares().items(), key=lambda item: -item[1])
        return dict(shares[:tenant_limit])

    def _tenant(self, request: WindowRequest) -> str:
        return self._tenants.get(request.plan.stream.rpartition("/")[0], DEFAULT_TENANT)


def share_numbers(shares: Mapping[str, float]) -> Iterator[Metric]:
    """Yield the metric of the tenants' shares."""
    family = GaugeMetricFamily(
        "lookout_tenant_device_share",
        "a tenant's recent share of this instance's device",
        labels=["tenant"],
    )
    for tenant, share in shares.items():
        family.add_metric([tenant], share)
    yield family
