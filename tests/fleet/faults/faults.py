"""What is done to a running fleet. Each function returns when the fault is over; `fleet.supervise` heals."""

from __future__ import annotations

import os
import random
import resource
import signal
import time
from collections.abc import Callable

import redis
from confluent_kafka import Producer

from lookout.local import Fleet, KafkaServer, Service
from lookout.wire import Stage
from tests.fleet.faults.scarce import SCARCE, shortage

Fault = Callable[[Fleet, random.Random], str]
SESSION_S = 6.0
LEASE_S = 3.0
PATIENCE_S = 180.0
FENCED_S = 20.0


def supervised_for(fleet: Fleet, seconds: float) -> list[str]:
    """Let time pass, starting again what died."""
    news = []
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        news += fleet.supervise()
        time.sleep(0.05)
    return news


def kill(stage: Stage) -> Fault:
    """SIGKILL one service, at whatever instruction it is."""

    def fault(fleet: Fleet, chance: random.Random) -> str:
        service = _of(fleet, stage)
        supervised_for(fleet, chance.uniform(0.0, 1.0))
        if service.pid is not None:
            os.kill(service.pid, signal.SIGKILL)
        return f"killed {service.name}"

    return fault


def kill_all(fleet: Fleet, chance: random.Random) -> str:
    """SIGKILL every service at once."""
    supervised_for(fleet, chance.uniform(0.0, 1.0))
    for service in fleet.services:
        if service.pid is not None:
            os.kill(service.pid, signal.SIGKILL)
    return "killed every service"


def wipe_redis(fleet: Fleet, chance: random.Random) -> str:
    """The directory forgets everything."""
    supervised_for(fleet, chance.uniform(0.0, 0.5))
    client = redis.Redis.from_url(fleet.redis_url)
    client.flushall()
    client.close()
    return "wiped Redis"


def stop_redis(fleet: Fleet, chance: random.Random) -> str:
    """The directory is away for a while."""
    server = fleet._redis
    assert server is not None
    server.stop()
    time.sleep(chance.uniform(0.5, 2.0))
    server.start()
    return "stopped and started Redis"


def expire_lease(stage: Stage) -> Fault:
    """A pod freezes until its lease is over, then continues: what it says it holds is not believed."""
    return _freeze(stage, "lease", LEASE_S)


def freeze(stage: Stage) -> Fault:
    """A service freezes past its session: it loses its partitions, and finds out when it wakes."""
    return _freeze(stage, "session", SESSION_S)


def _freeze(stage: Stage, what: str, seconds: float) -> Fault:
    def fault(fleet: Fleet, chance: random.Random) -> str:
        service = _of(fleet, stage)
        pid = service.pid
        if pid is None:
            return f"{service.name} was down"
        os.kill(pid, signal.SIGSTOP)
        try:
            time.sleep(seconds + chance.uniform(0.5, 2.0))
        finally:
            os.kill(pid, signal.SIGCONT)
        return f"froze {service.name} past its {what}"

    return fault


def stop_broker(fleet: Fleet, chance: random.Random) -> str:
    """Kafka stops in good order and starts again."""
    return _interrupt(fleet, chance, "stopped", KafkaServer.stop)


def kill_broker(fleet: Fleet, chance: random.Random) -> str:
    """Kafka dies and starts again on the same data."""
    return _interrupt(fleet, chance, "killed", KafkaServer.kill)


def _interrupt(fleet: Fleet, chance: random.Random, what: str, end: Callable[[KafkaServer], None]) -> str:
    server = fleet._kafka
    assert server is not None
    end(server)
    time.sleep(chance.uniform(0.5, 3.0))
    server.start()
    return f"{what} and started Kafka"


def second_instance(stage: Stage) -> Fault:
    """A second process takes a service's name: the first is a zombie now, is fenced and ends."""

    def fault(fleet: Fleet, chance: random.Random) -> str:
        first = _of(fleet, stage)
        second = Service(stage, fleet.folder / "second", first._environment)
        deadline = time.monotonic() + PATIENCE_S
        while not first.ready() and time.monotonic() < deadline:
            supervised_for(fleet, 0.2)
        second.start()
        try:
            while first.pid is not None and time.monotonic() < deadline:
                time.sleep(0.05)
            ended = first.pid is None
            tended_alone(second, chance.uniform(0.5, 1.5))
        finally:
            second.stop(patience=15.0)
        return f"a second {first.name} came, the first {'ended' if ended else 'STAYED'}"

    return fault


def fence(stage: Stage) -> Fault:
    """Another client takes a service's transactional id: a zombie now, it ends at its next commit."""

    def fault(fleet: Fleet, chance: random.Random) -> str:
        service, begun = _of(fleet, stage), time.monotonic()
        while not service.ready() and time.monotonic() - begun < PATIENCE_S:
            supervised_for(fleet, 0.2)
        pid, begun = service.pid, time.monotonic()
        identity = f"{stage.value}.{service.name}"
        usurper = Producer(
            {"bootstrap.servers": fleet.bootstrap, "transactional.id": identity, "log_level": 0}
        )
        usurper.init_transactions(60.0)
        while service.pid == pid and time.monotonic() - begun < FENCED_S:
            supervised_for(fleet, 0.1)
        return f"fenced {service.name}, it {'had nothing to commit' if service.pid == pid else 'ended'}"

    return fault


def fill_disk(stage: Stage) -> Fault:
    """No file of a service grows for a while, its log neither, as on a full disk."""

    def fault(fleet: Fleet, chance: random.Random) -> str:
        service = _of(fleet, stage)
        pid = service.pid
        if pid is None:
            return f"{service.name} was down"
        _, hard = resource.prlimit(pid, resource.RLIMIT_FSIZE)
        resource.prlimit(pid, resource.RLIMIT_FSIZE, (0, hard))
        try:
            supervised_for(fleet, chance.uniform(2.0, 5.0))
        finally:
            if service.pid == pid:
                resource.prlimit(pid, resource.RLIMIT_FSIZE, (hard, hard))
        return f"filled the disk of {service.name}, it {'stayed' if service.pid == pid else 'ended'}"

    return fault


def exhaust_memory(stage: Stage) -> Fault:
    """Every call of a model runs out of memory for a while, at one of its operations."""

    def fault(fleet: Fleet, chance: random.Random) -> str:
        service = _of(fleet, stage)
        pid, file = service.pid, shortage(fleet.folder, stage)
        file.touch()
        try:
            supervised_for(fleet, chance.uniform(2.0, 5.0))
        finally:
            file.unlink()
        return f"exhausted the memory of {service.name}, it {'stayed' if service.pid == pid else 'ended'}"

    return fault


def tended_alone(service: Service, seconds: float) -> None:
    """Let a process work for a while."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline and service.pid is not None:
        time.sleep(0.05)


def _of(fleet: Fleet, stage: Stage) -> Service:
    return next(service for service in fleet.services if service.stage is stage)


EVERY: tuple[Fault, ...] = (
    *(kill(stage) for stage in Stage),
    wipe_redis,
    *(kill(stage) for stage in Stage),
    expire_lease(Stage.PRUNE_ENCODE),
    expire_lease(Stage.DECODE),
    stop_broker,
    kill_all,
    stop_redis,
    second_instance(Stage.DECODE),
    second_instance(Stage.ALERTS),
    *(fence(stage) for stage in Stage),
    freeze(Stage.PREFILL),
    kill_broker,
    *(fill_disk(stage) for stage in Stage),
    *(exhaust_memory(stage) for stage in (*SCARCE, *SCARCE)),
    *(kill(stage) for stage in Stage),
)
FEW: tuple[Fault, ...] = (
    kill(Stage.DECODE),
    wipe_redis,
    kill(Stage.PREFILL),
    fence(Stage.PRUNE_ENCODE),
    stop_broker,
    kill(Stage.ALERTS),
    kill(Stage.PRUNE_ENCODE),
    fill_disk(Stage.PREFILL),
    exhaust_memory(Stage.PREFILL),
)
