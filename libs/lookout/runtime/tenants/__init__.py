"""Tenants: their quotas, and counters of their use that all instances share.

A tenant is a name on cameras and jobs (`lookout.wire.tenants`).
"""

from lookout.runtime.tenants.counters import (
    AloneCounters as AloneCounters,
    Counters as Counters,
    RedisCounters as RedisCounters,
)
from lookout.runtime.tenants.fleet import (
    FleetShares as FleetShares,
    RedisWork as RedisWork,
    fleet_numbers as fleet_numbers,
    open_fleet_shares as open_fleet_shares,
)
from lookout.runtime.tenants.quotas import (
    Quotas as Quotas,
    TenantQuota as TenantQuota,
    read_by_tenant as read_by_tenant,
    read_quotas as read_quotas,
)
from lookout.runtime.tenants.settings import TenantSettings as TenantSettings
from lookout.runtime.tenants.usage import (
    TenantUsage as TenantUsage,
    open_usage as open_usage,
    tenant_numbers as tenant_numbers,
)
