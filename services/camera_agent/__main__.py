"""`python -m lookout.services.camera_agent`: reads cameras.v1, writes camera.segments.v1."""

from __future__ import annotations

import signal
import sys
import threading
from typing import Any

from lookout.errors import StartupError
from lookout.rules.masks import Masks
from lookout.runtime.kafka_clients import Producer
from lookout.runtime.observe import Health, Metrics, Probes, logs
from lookout.runtime.store.mask_signing import DELETED, MaskSigner, SignedMasks
from lookout.runtime.worker import load_settings
from lookout.runtime.worker.startup import check_kafka, check_open_files, check_redis
from lookout.runtime.worker.tables import Table, tell_left_out
from lookout.services.camera_agent.agent import Agent, Numbers, camera_fault, room
from lookout.services.camera_agent.leases import Leases
from lookout.services.camera_agent.masking import Masking
from lookout.services.camera_agent.settings import AgentSettings
from lookout.text import visible
from lookout.wire import CAMERAS, MASKS, MAX_MESSAGE_BYTES, SEGMENTS

STOPPED, MISCONFIGURED = 0, 2


def main() -> int:
    """Pull cameras until SIGTERM. Returns the exit code."""
    try:
        settings = load_settings(AgentSettings)
        logs.setup("camera-agent", settings.instance, settings.log_level)
        check_open_files()
        check_kafka(settings, (CAMERAS, MASKS, SEGMENTS))
        check_redis(settings)
        table = Table(settings, CAMERAS.name, check=camera_fault)
        table.start(settings.start_timeout_s)
        signed = SignedMasks(MaskSigner.of(settings))
        masks = Table(settings, MASKS.name, check=signed.take, kept=1, deletion_fault=DELETED)
        masks.start(settings.start_timeout_s)
    except StartupError as error:
        sys.stderr.write(visible(f"lookout camera-agent: {error}\n"))
        return MISCONFIGURED
    health, metrics = Health(settings.stall_s), Metrics("camera-agent")
    for each in (table, masks):
        tell_left_out(each, health, metrics)
    probes = Probes(metrics, health, settings.metrics_port, settings.host)
    probes.start()
    stopped = threading.Event()

    def stop(_number: int, _frame: Any) -> None:
        stopped.set()

    signal.signal(signal.SIGTERM, stop)
    signal.signal(signal.SIGINT, stop)
    producer = Producer(
        settings.kafka(
            **{
                "enable.idempotence": True,
                "message.max.bytes": MAX_MESSAGE_BYTES,
                "queue.buffering.max.kbytes": settings.buffer_bytes // 1024,
                "delivery.timeout.ms": 120_000,
            }
        ),
        logger=logs.client_logger("segments"),
    )
    timeout_s = min(2.0, settings.camera_lease_s / 5)
    client = settings.redis_client(
        settings.redis_url, socket_timeout=timeout_s, socket_connect_timeout=timeout_s
    )
    leases = Leases(client, settings.instance, settings.camera_lease_s, room())
    masking = Masking(Masks(signed.newest), settings.segment_bytes)
    numbers = Numbers.register(metrics.registry)
    agent = Agent(settings, table, leases, producer, numbers, masking=masking)
    health.clear("worker")
    while not stopped.is_set():
        health.beat()
        agent.step()
        producer.poll(0)
        stopped.wait(settings.camera_lease_s / 5)
    agent.close()
    table.stop()
    masks.stop()
    probes.stop()
    return STOPPED


if __name__ == "__main__":
    sys.exit(main())
