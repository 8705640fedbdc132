"""`python -m bench.scale`: what controller and agents cost at ten thousand cameras, and a lost pod.

A real API server (custom resources alone), Kafka and Redis; the controller and one agent are the services.
The other agents' reports and the verdicts are written by a script. Cameras are at addresses that the agent
may not reach: its leases, table and reports are measured, streams are not. Ends with one line of JSON.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Sequence
from typing import Any

from bench.scale_world import ELSEWHERE, NAMESPACE, FakeAgents, FakeVerdicts, World, until
from lookout.services.camera_agent.leases import LEASE
from lookout.services.controller.cluster import CAMERA, WATCH

CONTROLLER, AGENT = "bench.scale_controller", "lookout.services.camera_agent"
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
    print(json.dumps({"cameras": options.cameras, **figures, "agent_idle_cores": round(agent, 4)}))


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
