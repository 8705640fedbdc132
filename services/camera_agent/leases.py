"""Which agent pulls which camera: a lease a camera in the directory, spread by rendezvous hashing.

Every agent computes the same preferred agent for each camera from the list of living agents. It takes a
camera's lease if it is preferred and the lease is free, renews it while it pulls, and gives it back when
another agent is preferred. Nothing is published without a lease that is still valid by this process's clock.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterable, Mapping
from importlib import resources
from typing import Any

import redis

from lookout.net.redis_errors import REDIS_ERRORS
from lookout.wire import REDIS_KEYS

AGENTS = REDIS_KEYS + "{agents}:alive"
LEASE = REDIS_KEYS + "{{{camera}}}:agent"
REPORT = REDIS_KEYS + "{{{camera}}}:report"

_TIME = "return redis.call('TIME')"


def _script(name: str) -> str:
    return resources.files("lookout.services.camera_agent").joinpath("scripts", f"{name}.lua").read_text()


def preferred(camera: str, agents: Iterable[str]) -> str | None:
    """Return the agent that should pull a camera: the highest hash of both names. None without agents."""
    return max(agents, key=lambda agent: _weight(camera, agent), default=None)


def _weight(camera: str, agent: str) -> bytes:
    return hashlib.blake2b(f"{camera}\0{agent}".encode(), digest_size=8).digest()


class Leases:
    """The leases of one agent. Call `refresh` about every third of `lease_s`, from one thread.

    Args:
        client: Redis, with time-outs well below `lease_s`.
        agent: This agent's name, unique.
        lease_s: A lease that is not renewed ends after so long.
    """

    def __init__(self, client: redis.Redis, agent: str, lease_s: float) -> None:
        self._client = client
        self._agent = agent
        self._lease_s = lease_s
        self._held: dict[str, float] = {}
        self._take = client.register_script(_script("take"))
        self._give = client.register_script(_script("give_back"))

    def holds(self, camera: str) -> bool:
        """Return whether this agent may publish for a camera now."""
        return time.monotonic() < self._held.get(camera, 0.0)

    def refresh(self, cameras: Iterable[str]) -> set[str]:
        """Renew, take and give back leases; returns the cameras to pull. Without Redis nothing changes.

        Leases run out by the local clock, counted from before the request: never later than in Redis.
        """
        begun = time.monotonic()
        names = set(cameras)
        try:
            agents = self._living()
            for camera in sorted(self._held.keys() | names):
                if camera in names and preferred(camera, agents) == self._agent:
                    self._renew(camera, begun)
                elif camera in self._held:
                    self.give_back(camera)
        except REDIS_ERRORS:
            pass
        self._held = {camera: until for camera, until in self._held.items() if time.monotonic() < until}
        return set(self._held)

    def give_back(self, camera: str) -> None:
        """Let another agent take a camera at once."""
        self._held.pop(camera, None)
        self._give(keys=[LEASE.format(camera=camera)], args=[self._agent])
        self._client.delete(REPORT.format(camera=camera))

    def leave(self) -> None:
        """Give everything back; for a stop in good order."""
        try:
            self._client.zrem(AGENTS, self._agent)
            for camera in list(self._held):
                self.give_back(camera)
        except REDIS_ERRORS:
            self._held.clear()

    def tell(self, camera: str, report: Mapping[str, str | int]) -> None:
        """Write what is known of a camera; it goes when the agent does."""
        key = REPORT.format(camera=camera)
        fields: dict[Any, Any] = {**report}
        with self._client.pipeline(transaction=True) as pipeline:
            pipeline.hset(key, mapping=fields)
            pipeline.pexpire(key, round(self._lease_s * 2000))
            pipeline.execute()

    def _living(self) -> list[str]:
        """Say that this agent lives, and return all that do, by Redis's clock."""
        # By a script on the key: in a cluster each node has a clock of its own.
        seconds, micros = self._client.eval(_TIME, 1, AGENTS)  # type: ignore[misc]
        now = int(seconds) + int(micros) / 1e6
        self._client.zadd(AGENTS, {self._agent: now})
        self._client.zremrangebyscore(AGENTS, "-inf", now - 10 * self._lease_s)
        found = self._client.zrangebyscore(AGENTS, now - self._lease_s, "+inf")
        return [member.decode() if isinstance(member, bytes) else str(member) for member in found]

    def _renew(self, camera: str, begun: float) -> None:
        key, life_ms = LEASE.format(camera=camera), round(self._lease_s * 1000)
        if self._take(keys=[key], args=[self._agent, life_ms]):
            self._held[camera] = begun + self._lease_s
        else:
            self._held.pop(camera, None)
