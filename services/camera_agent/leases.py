"""Decides which agent pulls which camera, by bounded rendezvous hashing and one lease per camera in Redis.

Every agent computes the same assignment from the list of live agents and their room. An agent takes the
leases of its cameras when they are free, renews them while it pulls, and releases the lease of a camera that
is now assigned to another agent. A segment is published only while the camera's lease is valid by this
process's clock.
"""

from __future__ import annotations

import hashlib
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from importlib import resources
from itertools import islice
from typing import Any

import redis

from lookout.runtime.net.redis_errors import REDIS_ERRORS
from lookout.runtime.net.redis_values import Kind, text_of, with_types
from lookout.wire import CAMERA_REPORT, REDIS_KEYS

AGENTS = REDIS_KEYS + "{agents}:alive"
#: how many cameras each agent has room for
ROOMS = REDIS_KEYS + "{agents}:rooms"
LEASE = REDIS_KEYS + "{{{camera}}}:agent"

_TIME = "return redis.call('TIME')"
#: room of an agent without a memory limit
UNBOUNDED = 1 << 31
#: commands per pipeline; Redis serves other clients between two scripts, but not during one
_BATCH = 200


def _script(name: str) -> str:
    return resources.files("lookout.services.camera_agent").joinpath("scripts", f"{name}.lua").read_text()


def preferred(camera: str, agents: Iterable[str]) -> str | None:
    """Return the agent that should pull a camera; None if there are no agents. It is the agent whose name,
    hashed with the camera's, gives the highest number.
    """
    return max(agents, key=lambda agent: _weight(camera, agent), default=None)


def _weight(camera: str, agent: str) -> bytes:
    return hashlib.blake2b(f"{camera}\0{agent}".encode(), digest_size=8).digest()


def _batches(cameras: Iterable[str]) -> Iterator[list[str]]:
    remaining = iter(cameras)
    while batch := list(islice(remaining, _BATCH)):
        yield batch


def _queue(pipeline: Any, script: str, key: str, *arguments: str | int) -> None:
    """Add a script to a pipeline. The full text is sent (EVAL), because EVALSHA does not work in the
    pipelines of a Redis cluster.
    """
    pipeline.execute_command("EVAL", script, 1, key, *arguments)


def _room(text: str | None) -> int:
    """Parse the room that an agent announced. Agents of an earlier release announce no room and count as
    unbounded.
    """
    return int(text) if text is not None and text.isdecimal() else UNBOUNDED


class Preferences:
    """The assignment of cameras to agents, kept up to date as cameras and agents come and go.

    A new agent costs one hash per camera; when an agent leaves, only the cameras that preferred it are hashed
    again. Comparing every camera with every agent would take half a second for ten thousand cameras and fifty
    agents. Second and later choices are computed only if more cameras prefer an agent than it has room for.
    Then the agent keeps the cameras with the highest hashes, and each of the other cameras tries the agent
    that it prefers next. This is deferred acceptance. Cameras and agents rank by the hash of the pair, so the
    outcome is unique and every agent computes the same one.

    Args:
        agent: The agent whose cameras `own` returns.
    """

    def __init__(self, agent: str) -> None:
        self._agent = agent
        self._rooms: dict[str, int] = {}
        self._preferred: dict[str, str | None] = {}
        self._crowds: dict[str | None, set[str]] = defaultdict(set)  # cameras by preferred agent
        self._settled: tuple[set[str], set[str]] | None = None

    @property
    def own(self) -> set[str]:
        """The agent's cameras."""
        return self._settle()[0]

    @property
    def left_out(self) -> set[str]:
        """Cameras whose first choice is this agent and for which no agent has room."""
        return self._settle()[1]

    def add(self, camera: str) -> None:
        """Add a camera that some agent should pull."""
        if camera not in self._preferred:
            self._set(camera, preferred(camera, self._rooms))

    def remove(self, camera: str) -> None:
        """Remove a camera that no agent should pull."""
        if camera in self._preferred:
            self._crowds[self._preferred.pop(camera)].discard(camera)
            self._settled = None

    def update_agents(self, rooms: Mapping[str, int]) -> None:
        """Set the live agents, each with the number of cameras that it has room for."""
        if rooms == self._rooms:
            return
        absent, new = self._rooms.keys() - rooms.keys(), rooms.keys() - self._rooms.keys()
        self._rooms, self._settled = dict(rooms), None
        if absent:
            for camera, agent in list(self._preferred.items()):
                if agent in absent:
                    self._set(camera, preferred(camera, rooms))
        if new:
            for camera, agent in list(self._preferred.items()):
                rivals = new if agent is None or agent in new else {agent, *new}
                self._set(camera, preferred(camera, rivals))

    def _set(self, camera: str, agent: str | None) -> None:
        self._crowds[self._preferred.get(camera)].discard(camera)
        self._preferred[camera] = agent
        self._crowds[agent].add(camera)
        self._settled = None

    def _settle(self) -> tuple[set[str], set[str]]:
        """Return this agent's cameras, and the cameras whose first choice is this agent but that no agent has
        room for.
        """
        if self._settled is None:
            taken = {agent: set(self._crowds[agent]) for agent in self._rooms}
            # By camera: the agents that it has not tried yet, with the most preferred one last.
            choices: dict[str, list[str]] = {}
            left_out: set[str] = set()
            while full := [agent for agent, room in self._rooms.items() if len(taken[agent]) > room]:
                for agent in full:
                    cameras = sorted(taken[agent], key=lambda camera: _weight(camera, agent))
                    for camera in cameras[: len(cameras) - self._rooms[agent]]:
                        taken[agent].discard(camera)
                        if camera not in choices:
                            ranked = sorted(self._rooms, key=lambda rival: _weight(camera, rival))
                            choices[camera] = ranked[:-1]
                        if choices[camera]:
                            taken[choices[camera].pop()].add(camera)
                        else:
                            left_out.add(camera)
            own = taken.get(self._agent, set())
            self._settled = own, left_out & self._crowds[self._agent]
        return self._settled


class Leases:
    """The leases of one agent. Call `refresh` at least three times per `lease_s`. Any thread may call
    `holds`; everything else is for one thread.

    Args:
        client: A Redis client whose timeouts are well below `lease_s`.
        agent: This agent's unique name.
        lease_s: Seconds after which a lease that is not renewed expires.
        room: How many cameras this agent has room for; the number may change.
    """

    def __init__(self, client: redis.Redis, agent: str, lease_s: float, room: int = UNBOUNDED) -> None:
        self._client = client
        self._agent = agent
        self._lease_s, self.room = lease_s, room
        self._held: dict[str, float] = {}
        self._preferences = Preferences(agent)
        self._take, self._report = _script("take"), _script("report")
        self._give = client.register_script(_script("give_back"))

    @property
    def left_out(self) -> set[str]:
        """Cameras for which no agent has room and which this agent must report as their first choice."""
        return self._preferences.left_out

    def holds(self, camera: str) -> bool:
        """Return whether this agent may publish a camera's segments now."""
        return time.monotonic() < self._held.get(camera, 0.0)

    def add(self, camera: str) -> None:
        """Add a camera; `refresh` takes its lease if the camera is assigned to this agent."""
        self._preferences.add(camera)

    def remove(self, camera: str) -> None:
        """Remove a camera; the next `refresh` releases its lease."""
        self._preferences.remove(camera)

    def refresh(self) -> set[str]:
        """Renew, take and release leases; return the cameras to pull. Without Redis, no lease is taken or
        renewed.

        A lease's time is counted by the local clock from before the request, so it never ends later here than
        in Redis.
        """
        begun = time.monotonic()
        own = self._preferences.own
        try:
            self._preferences.update_agents(self._living())
            own = self._preferences.own
            for camera in self._held.keys() - own:
                self.give_back(camera)
            self._renew(own, begun)
        except REDIS_ERRORS:
            pass
        self._held = {camera: until for camera, until in self._held.items() if time.monotonic() < until}
        return self._held.keys() & own

    def give_back(self, camera: str) -> None:
        """Release a camera's lease, so that another agent can take it at once."""
        self._held.pop(camera, None)
        self._give(keys=[LEASE.format(camera=camera)], args=[self._agent])
        self._client.delete(CAMERA_REPORT.format(camera=camera))

    def leave(self) -> None:
        """Release all leases when the agent stops."""
        try:
            self._client.zrem(AGENTS, self._agent)
            self._client.hdel(ROOMS, self._agent)
            for camera in list(self._held):
                self.give_back(camera)
        except REDIS_ERRORS:
            self._held.clear()

    def tell(self, reports: Mapping[str, Mapping[str, str | int]]) -> None:
        """Write cameras' reports. A report that is not written again within two lease times expires."""
        life_ms = round(self._lease_s * 2000)
        for cameras in _batches(reports):
            with self._client.pipeline(transaction=False) as pipeline:
                for camera in cameras:
                    fields = [part for field in reports[camera].items() for part in field]
                    _queue(pipeline, self._report, CAMERA_REPORT.format(camera=camera), life_ms, *fields)
                pipeline.execute()

    def _living(self) -> dict[str, int]:
        """Announce this agent; return the live agents, by Redis's clock, each with its room."""
        # A script on this key, because each node of a Redis cluster has its own clock.
        seconds, micros = self._client.eval(_TIME, 1, AGENTS)  # type: ignore[misc]
        now = int(seconds) + int(micros) / 1e6
        kinds: dict[str, Kind] = {AGENTS: "zset", ROOMS: "hash"}

        def announce() -> None:
            self._client.hset(ROOMS, self._agent, str(self.room))
            self._client.zadd(AGENTS, {self._agent: now})

        with_types(self._client, kinds, announce)
        self._client.zremrangebyscore(AGENTS, "-inf", now - 10 * self._lease_s)
        members: Any = self._client.zrangebyscore(AGENTS, now - self._lease_s, "+inf")
        names = [name for member in members if (name := text_of(member)) is not None]
        rooms: Any = self._client.hmget(ROOMS, names) if names else []
        return {name: _room(text_of(room)) for name, room in zip(names, rooms, strict=True)}

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
