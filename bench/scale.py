"""`python -m bench.scale`: what controller and agents cost at ten thousand cameras, and a lost pod.

A real API server (custom resources alone), Kafka and Redis; the controller and one agent are the services.
The other agents' reports and the verdicts are written by a script. Cameras are at addresses that the agent
may not reach: its leases, table and reports are measured, streams are not. A lost pod (`bench.relive`) and
the autoscaler (the replay of its tests) are simulations. Ends with one line of JSON.
"""

from __future__ import annotations

import argparse
import json
import random
import time
from collections.abc import Sequence
from typing import Any

from bench.relive import BEFORE, relive_s, waited_s
from bench.scale_world import ELSEWHERE, NAMESPACE, FakeAgents, FakeVerdicts, World, until
from lookout.services.camera_agent.leases import LEASE
from lookout.services.controller.cluster import CAMERA, WATCH
from tests.unit.charts.test_autoscaling import HOUR, chart_rule, replay, turns

CONTROLLER, AGENT = "bench.scale_controller", "lookout.services.camera_agent"
#: of the topics in the simulation: the chart's default, others, and docs/kubernetes.md's advice for ten pods
PARTITIONS, ADVISED = (12, 20, 40), 120
#: seconds between two verdicts of a camera
EVERY_S = 4.0


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cameras", type=int, default=10_000)
    parser.add_argument("--watches", type=int, default=100)
    parser.add_argument("--agents", type=int, default=50)
    parser.add_argument("--seconds", type=float, default=60.0, help="over which each service is measured")
    options = parser.parse_args(arguments)
    with World(options.cameras, options.watches) as world:
        print(f"{options.cameras} cameras and {options.watches} watches are resources", flush=True)
        agent = agent_cores(world, options.agents, options.seconds)
        print(f"an agent: {agent:.4f} cores", flush=True)
        figures = controller(world, options.agents, options.seconds)
    print(json.dumps({f"relive_s_1000_{name}": seconds for name, seconds in other_losses().items()}))
    print(
        json.dumps(
            {
                "cameras": options.cameras,
                **figures,
                "agent_idle_cores": round(agent, 4),
                **lost_pod(),
                "autoscale_oscillations": oscillations(),
            }
        )
    )


def lost_pod() -> dict[str, float | None]:
    """Seconds until no camera is behind after one of ten pods was killed, at 1 000 cameras: a simulation.

    `before`: one key window a batch, as prefill had it.
    """
    return {
        "relive_s_1000": _rounded(relive_s(10, 1000, ADVISED)),
        "relive_s_1000_before": _rounded(relive_s(10, 1000, ADVISED, key_limit=BEFORE)),
    }


def other_losses() -> dict[str, float | None]:
    """The same of a planned restart, of static members, and of fewer partitions.

    Of 12 and 20 partitions the pods that take some over have more than they can compute: null.
    """
    return {
        "planned": _rounded(relive_s(10, 1000, ADVISED, notice_s=0.0)),
        "planned_before": _rounded(relive_s(10, 1000, ADVISED, key_limit=BEFORE, notice_s=0.0)),
        "static_load_40_s": _rounded(waited_s(10, 1000, 40.0)),
        **{f"{number}_partitions": _rounded(relive_s(10, 1000, number)) for number in PARTITIONS},
    }


def _rounded(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds, 1)


def oscillations() -> int:
    """How often the chart's autoscaling turns back under loads that do not: a simulation."""
    draw = random.Random(1)
    rise = [1 + 7 * step / (2 * HOUR) for step in range(2 * HOUR)]
    loads = [[load] * 3 * HOUR for load in (0.3, 1.0, 3.2, 6.9, 10.0)]
    loads += [
        [5 * draw.uniform(0.85, 1.15) for _ in range(6 * HOUR)],
        [*rise, *[8.0] * HOUR, *reversed(rise)],
    ]
    # Adding pods for what waited at the start and taking them away is one turn that the load asks for.
    return sum(max(0, turns(replay(chart_rule, load, pods=2)[0]) - 1) for load in loads)


def agent_cores(world: World, agents: int, seconds: float) -> float:
    """CPU cores of one of `agents` agents, once it has its share of the cameras."""
    with (
        FakeAgents(world.client, agents),
        world.service(AGENT, "agent-0", camera_networks=ELSEWHERE) as agent,
    ):
        share = len(world.cameras) / agents

        def settled() -> bool:
            agent.cpu_s()
            held = sum(1 for _ in world.client.scan_iter(LEASE.format(camera="*"), count=1000))
            return 0.5 * share < held < 2 * share

        until(settled, "the agent's leases")
        time.sleep(min(seconds, 45.0))  # cameras that cannot be reached are tried ever more seldom
        return agent.cores(seconds)


def controller(world: World, agents: int, seconds: float) -> dict[str, Any]:
    """CPU cores of the controller and its writes a second, while all cameras stream."""
    with FakeAgents(world.client, agents, world.cameras):
        # All statuses are written once, without the limit, as they are in a fleet that has run for a while.
        with world.service(CONTROLLER, "first", namespace=NAMESPACE, status_writes_s="1000") as first:

            def all_written() -> bool:
                first.cpu_s()
                for kind in (CAMERA, WATCH):
                    listing = world.api.list(kind) or {"items": [{}]}
                    if not all(item.get("status", {}).get("conditions") for item in listing["items"]):
                        time.sleep(3.0)
                        return False
                return True

            until(all_written, "the first statuses")
        print("all statuses are written once", flush=True)
        settings = {"bootstrap.servers": world.kafka.bootstrap}
        with (
            FakeVerdicts(settings, world.cameras, world.watches, EVERY_S),
            world.service(CONTROLLER, "second", namespace=NAMESPACE) as second,
        ):
            until(lambda: second.cpu_s() > 0 and "leading" in second.log.read_text(), "the second controller")
            time.sleep(min(seconds, 45.0))
            before = world.api.writes()
            cores = second.cores(seconds)
            writes = (world.api.writes() - before) / seconds
    return {"controller_cores": round(cores, 4), "status_writes_s": round(writes, 1)}


if __name__ == "__main__":
    main()
