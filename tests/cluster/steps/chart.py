"""The chart itself: lint, values that must be refused, security fields, the API server's opinion."""

from __future__ import annotations

from tests.cluster import chart
from tests.cluster.world import NAMESPACE, World


def run(world: World) -> None:
    """Check the chart without installing it."""
    world.wrong += chart.check()
    with world.namespace():
        world.wrong += chart.dry_run(world.cluster, NAMESPACE)
        world.wrong += chart.fixed_claims(world.cluster, NAMESPACE)
        world.wrong += chart.namespace_admin(world.cluster, NAMESPACE)
    refusals = len(chart.REFUSED) + len(chart.REFUSED_EXTENDED)
    world.tell(f"lint, {refusals} refusals, {len(chart.VARIANTS)} variants dry-run by the API server")
