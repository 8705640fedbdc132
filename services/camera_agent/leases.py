"""Which agent pulls which camera: a lease a camera in the directory, spread by rendezvous hashing.

Every agent computes the same preferred agent for each camera from the list of living agents. It takes a
camera's lease if it is preferred and the lease is free, renews it while it pulls, and gives it back when
another agent is preferred. Nothing is published without a lease that is still valid by this process's clock.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Collection, Iterable, Iterator, Mapping
from importlib import resources
from itertools import islice
from typing import Any

import redis

from lookout.runtime.net.redis_errors import REDIS_ERRORS
from lookout.runtime.net.redis_values import Kind, text_of, with_types
from lookout.wire import REDIS_KEYS

AGENTS = REDIS_KEYS + "{agents}:alive"
LEASE = REDIS_KEYS + "{{{camera}}}:agent"
REPORT = REDIS_KEYS + "{{{camera}}}:report"

_TIME = "return redis.call('TIME')"
#: commands that are sent at once; Redis serves nobody else while it runs a script, but between two of them
_BATCH = 200


def _script(name: str) -> str:
    return resources.files("lookout.services.camera_agent").joinpath("scripts", f"{name}.lua").read_text()


def preferred(camera: str, agents: Iterable[str]) -> str | None:
    """Return the agent that should pull a camera: the highest hash of both names. None without agents."""
    return max(agents, key=lambda agent: _weight(camera, agent), default=None)


def _weight(camera: str, agent: str) -> bytes:
    return hashlib.blake2b(f"{camera}\0{agent}".encode(), digest_size=8).digest()


def _batches(cameras: Iterable[str]) -> Iterator[list[str]]:
    remaining = iter(cameras)
    while batch := list(islice(remaining, _BATCH)):
        yield batch


def _queue(pipeline: Any, script: str, key: str, *arguments: str | int) -> None:
    """Add a script to a pipeline, by its text: pipelines of a cluster take no digests."""
    pipeline.execute_command("EVAL", script, 1, key, *arguments)


class Preferences:
    """The preferred agent of each camera, kept up to date while cameras and agents come and go.

    An agent that comes costs one hash a camera, one that goes costs the cameras that preferred it: with ten
    thousand cameras and fifty agents, comparing all with all would take half a second.

    Args:
        agent: Whose cameras are in `own`.
    """

    def __init__(self, agent: str) -> None:
        self.own: set[str] = set()
        self._agent = agent
        self._agents: set[str] = set()
        self._preferred: dict[str, str | None] = {}

    def add(self, camera: str) -> None:
        """A camera that an agent shall pull."""
        if camera not in self._preferred:
            self._set(camera, preferred(camera, self._agents))

    def remove(self, camera: str) -> None:
        """A camera that none shall pull."""
        self._preferred.pop(camera, None)
        self.own.discard(camera)

    def update_agents(self, agents: Collection[str]) -> None:
        """Follow the list of living agents."""
        living = set(agents)
        if gone := self._agents - living:
            for camera, agent in list(self._preferred.items()):
                if agent in gone:
                    self._set(camera, preferred(camera, living))
        if (new := living - self._agents) and self._preferred:
            for camera, agent in list(self._preferred.items()):
                rivals = new if agent is None or agent in new else {agent, *new}
                self._set(camera, preferred(camera, rivals))
        self._agents = living

    def _set(self, camera: str, agent: str | None) -> None:
        self._preferred[camera] = agent
        if agent == self._agent:
            self.own.add(camera)
        else:
            self.own.discard(camera)


class Leases:
    """The leases of one agent, used by one thread, `holds` by any. Call `refresh` every third of `lease_s`.

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
        self._preferences = Preferences(agent)
        self._take, self._report = _script("take"), _script("report")
        self._give = client.register_script(_script("give_back"))

    def holds(self, camera: str) -> bool:
        """Return whether this agent may publish for a camera now."""
        return time.monotonic() < self._held.get(camera, 0.0)

    def add(self, camera: str) -> None:
        """Take a camera's lease at the next `refresh`, if this agent is preferred."""
        self._preferences.add(camera)

    def remove(self, camera: str) -> None:
        """Give a camera's lease back at the next `refresh`."""
        self._preferences.remove(camera)

    def refresh(self) -> set[str]:
        """Renew, take and give back leases; returns the cameras to pull. Without Redis nothing is taken.

        Leases run out by the local clock, counted from before the request: never later than in Redis.
        """
        begun = time.monotonic()
        own = self._preferences.own
        try:
            self._preferences.update_agents(self._living())
            for camera in self._held.keys() - own:
                self.give_back(camera)
            self._renew(own, begun)
        except REDIS_ERRORS:
            pass
        self._held = {camera: until for camera, until in self._held.items() if time.monotonic() < until}
        return self._held.keys() & own

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

    def tell(self, reports: Mapping[str, Mapping[str, str | int]]) -> None:
        """Write what is known of cameras; a report goes when it is not written again within two leases."""
        life_ms = round(self._lease_s * 2000)
        for cameras in _batches(reports):
            with self._client.pipeline(transaction=False) as pipeline:
                for camera in cameras:
                    fields = [part for field in reports[camera].items() for part in field]
                    _queue(pipeline, self._report, REPORT.format(camera=camera), life_ms, *fields)
                pipeline.execute()

    def _living(self) -> list[str]:
        """Say that this agent lives, and return all that do, by Redis's clock."""
        # By a script on the key: in a cluster each node has a clock of its own.
        seconds, micros = self._client.eval(_TIME, 1, AGENTS)  # type: ignore[misc]
        now = int(seconds) + int(micros) / 1e6
        kinds: dict[str, Kind] = {AGENTS: "zset"}
        with_types(self._client, kinds, lambda: self._client.zadd(AGENTS, {self._agent: now}))
        self._client.zremrangebyscore(AGENTS, "-inf", now - 10 * self._lease_s)
        members: Any = self._client.zrangebyscore(AGENTS, now - self._lease_s, "+inf")
        return [name for member in members if (name := text_of(member)) is not None]

    def _renew(self, cameras: Iterable[str], begun: float) -> None:
        life_ms = round(self._lease_s * 1000)
        for batch in _batches(cameras):
            with self._client.pipeline(transaction=False) as pipeline:
                for camera in batch:
                    _queue(pipeline, self._take, LEASE.format(camera=camera), self._agent, life_ms)
                answers = pipeline.execute()
            for camera, own in zip(batch, answers, strict=True):
                if own:
                    self._held[camera] = begun + self._lease_s
                else:
                    self._held.pop(camera, None)
