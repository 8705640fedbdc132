"""The fault of each rule of the chart, caused on a running fleet while its metrics are recorded."""

from __future__ import annotations

import os
import resource
import signal
import threading
from collections.abc import Callable, Iterator
from typing import Final

from confluent_kafka import Producer

from lookout.local import Service
from lookout.services.controller.cluster import CAMERA, WATCH
from lookout.wire import PIPELINE, SEGMENTS, VERDICTS, WATCHES, Stage, headers
from tests.eventually import eventually
from tests.fleet.alarms.replay import INTERVAL_S, Case, Scrape
from tests.fleet.alarms.world import CAMERAS, QUOTA_BYTES, RECORDED_S, SMALL_TENANT, World

#: nobody is at this address
NOWHERE: Final = "rtsp://192.0.2.1/stream"
_UNANSWERED: Final = "LookoutWatchesUnanswered"
#: of faults that hold prefill up, or give it much at once: what waited is answered late
_LATE: Final = "LookoutSlowAnswers"
_STATE: Final = PIPELINE[Stage.ALERTS].state.name

Cause = Callable[[World], Iterator[Case]]


def _lasting(
    fault: str, rules: str, scrapes: list[Scrape], also: str = "", every_s: int = INTERVAL_S
) -> Case:
    return Case(fault, frozenset(rules.split()), frozenset(also.split()), scrapes, True, every_s)


def _over(world: World, fault: str, rules: str, scrapes: list[Scrape], also: str = "") -> Case:
    """A fault that has ended: the last scrape is one of a fleet that works again."""
    eventually(world.settled, every=1.0)
    return Case(fault, frozenset(rules.split()), frozenset(also.split()), [*scrapes, world.scrape()], False)


def quiet(world: World) -> Iterator[Case]:
    """Nothing is wrong."""
    yield _lasting("none", "", world.record(20.0))


def unreadable_segments(world: World) -> Iterator[Case]:
    """Bytes that are no video."""
    before = world.record(0.0)
    world.send(SEGMENTS.name, "broken", b"no video")
    scrapes = world.recorded_until(lambda: world.value("lookout_dead_letters_total", stage="decode") > 0)
    yield _over(world, "a camera sends bytes that are no video", "LookoutDeadLetters", before + scrapes)


def too_much(world: World) -> Iterator[Case]:
    """A camera over its quota, then a tenant over its own."""
    before = world.record(0.0)
    data = b"".join(world.piece(CAMERAS[0], number).data for number in range(20))
    for _ in range(QUOTA_BYTES // len(data) + 5):
        world.send(SEGMENTS.name, "greedy", data)
    scrapes = world.recorded_until(
        lambda: world.value("lookout_events_total", stage="decode", event="over_quota") > 1
    )
    fault = "a camera sends more than its quota"
    yield _over(world, fault, "LookoutOverQuota", before + scrapes, also=f"LookoutDeadLetters {_LATE}")
    before = world.record(0.0)
    owner = list(headers.encode({headers.TENANT: SMALL_TENANT}))
    for number in range(6):
        world.send(SEGMENTS.name, "other", world.piece(CAMERAS[0], number).data, headers=owner)
    scrapes = world.recorded_until(lambda: world.value("lookout_tenant_refused_total") > 0)
    fault = "a tenant sends more than its quota"
    yield _over(
        world,
        fault,
        "LookoutTenantRefused",
        before + scrapes,
        also=f"LookoutOverQuota LookoutDeadLetters {_LATE}",
    )


def unusable_watch(world: World) -> Iterator[Case]:
    """A row of watches.v1 that nobody can read."""
    before = world.record(0.0)
    world.send(WATCHES.name, "broken", b"no watch")
    scrapes = world.recorded_until(lambda: world.value("lookout_left_out_rows") > 0, 6.0)
    world.send(WATCHES.name, "broken", None)
    yield _lasting("a watch that cannot be read", "LookoutRowsLeftOut", before + scrapes)


def taken_name(world: World) -> Iterator[Case]:
    """A second process takes the name of another."""
    before = world.record(0.0)
    first = world.service(Stage.ALERTS)
    second = Service(Stage.ALERTS, world.fleet.folder / "second", first._environment)
    second.start()
    try:
        scrapes = world.recorded_until(lambda: world.value("lookout_fenced_total") > 0 or first.restarts)
    finally:
        second.stop(15.0)
    yield _over(world, "a second process with the same name", "LookoutFenced", before + scrapes)


def slow_stage(world: World) -> Iterator[Case]:
    """A stage with too little CPU falls behind; when it has enough again, its answers are late."""
    before = world.record(0.0)
    answered = world.value("lookout_latency_seconds_bucket", stage="prefill", le="+Inf")
    with world.slow(Stage.PREFILL):
        eventually(lambda: world.value("lookout_lag_seconds", stage="prefill") > 75, every=2.0)
        scrapes = world.record(8.0)
    fault = "prefill has a twentieth of its CPU"
    yield _lasting(fault, "LookoutStageBehind", before + scrapes, also="LookoutSlowAnswers")
    late = world.recorded_until(
        lambda: world.value("lookout_latency_seconds_bucket", stage="prefill", le="+Inf") > answered + 5
    )
    fault = "prefill has its CPU again, and answers what waited"
    yield _over(world, fault, "LookoutSlowAnswers", before + late, also="LookoutStageBehind")


def no_broker(world: World) -> Iterator[Case]:
    """Kafka stops."""
    before = world.record(0.0)
    server = world.fleet._kafka
    assert server is not None
    assert server.pid is not None
    os.kill(server.pid, signal.SIGSTOP)
    try:
        eventually(lambda: world.value("lookout_ready", stage="alerts") == 0, every=1.0)
        scrapes = [world.scrape() for _ in range(4)]
    finally:
        os.kill(server.pid, signal.SIGCONT)
    yield _lasting("Kafka does not answer", "LookoutNotReady", before + scrapes, also="LookoutStageBehind")


def lost_records(world: World) -> Iterator[Case]:
    """Retention removes what a stage has not read."""
    before = world.record(0.0)
    with world.stopped(Stage.ALERTS):
        answered = world.value("lookout_events_total", stage="prefill", event="answered")
        eventually(
            lambda: world.value("lookout_events_total", stage="prefill", event="answered") > answered + 3,
            every=1.0,
        )
        world.forget(VERDICTS.name)
    scrapes = world.recorded_until(lambda: world.value("lookout_lost_offsets_total") > 0)
    fault = "retention removed records before alerts had read them"
    yield _over(world, fault, "LookoutRecordsLost", before + scrapes)


def damaged_state(world: World) -> Iterator[Case]:
    """A checkpoint that cannot be read."""
    before = world.record(0.0)
    with world.stopped(Stage.ALERTS):
        for partition, key in set(world.rows(_STATE)):
            world.send(_STATE, key.decode(), b"no checkpoint", partition=partition)
    scrapes = world.recorded_until(lambda: world.value("lookout_checkpoints_unreadable_total") > 0, 4.0)
    fault = "checkpoints of alerts are damaged"
    yield _over(world, fault, "LookoutStateLost", before + scrapes, also="LookoutDeadLetters")


def open_transaction(world: World) -> Iterator[Case]:
    """A transaction over the state of a stage stays open."""
    other = Producer(
        {
            "bootstrap.servers": world.fleet.bootstrap,
            "transactional.id": "hanging",
            "transaction.timeout.ms": 600_000,
        }
    )
    before = world.record(0.0)
    with world.stopped(Stage.ALERTS):
        other.init_transactions(60.0)
        other.begin_transaction()
        for partition in range(2):
            other.produce(_STATE, b"", key="nobody", partition=partition)
        assert other.flush(60.0) == 0
    scrapes = world.recorded_until(lambda: world.value("lookout_takeovers_waiting") > 0, 6.0)
    other.abort_transaction(60.0)
    fault = "a transaction over the checkpoints of alerts stays open"
    yield _lasting(fault, "LookoutTakeoverStuck", before + scrapes, also="LookoutNotReady LookoutStageBehind")


def refused_outputs(world: World) -> Iterator[Case]:
    """Kafka takes no verdict."""
    before = world.record(0.0)
    with world.limited(VERDICTS.name, 300):
        scrapes = world.recorded_until(
            lambda: world.value("lookout_transactions_total", stage="prefill", outcome="aborted") > 0, 30.0
        )
    fault = "Kafka rejects what prefill writes"
    yield _lasting(
        fault,
        "LookoutCommitsAbort",
        before + scrapes,
        also="LookoutDeadLetters LookoutNoAnswers LookoutStageBehind",
    )


def lost_pictures(world: World) -> Iterator[Case]:
    """Tensors are gone, and the segments from which they could be made again as well."""
    before = world.record(0.0)
    with world.stopped(Stage.PREFILL):
        blocks = world.value("lookout_events_total", stage="prune-encode", event="blocks")
        eventually(
            lambda: world.value("lookout_events_total", stage="prune-encode", event="blocks") > blocks + 12,
            every=1.0,
        )
        for stage in (Stage.DECODE, Stage.PRUNE_ENCODE):
            pid = world.service(stage).pid
            assert pid is not None
            os.kill(pid, signal.SIGKILL)
        world.forget(SEGMENTS.name)
        services = [world.service(stage) for stage in (Stage.DECODE, Stage.PRUNE_ENCODE)]
        world.recorded_until(lambda: all(service.ready() for service in services))
    scrapes = world.recorded_until(
        lambda: world.value("lookout_events_total", stage="prefill", event="degraded") > 0, 4.0
    )
    # The service was away: what lasts are the windows without an answer.
    fault = "pictures are lost, and their segments as well"
    yield _lasting(
        fault,
        "LookoutNoAnswers",
        before + scrapes,
        also="LookoutStageBehind LookoutSlowAnswers LookoutDeadLetters",
    )


def failing_device(world: World) -> Iterator[Case]:
    """A device fails for longer than the service bears with it."""
    before = world.record(0.0)
    prefill, file = world.service(Stage.PREFILL), world.folder / "device"
    restarts = prefill.restarts
    file.touch()
    try:
        scrapes = world.recorded_until(lambda: prefill.restarts > restarts)
    finally:
        file.unlink()
    fault = (
        "prefill's device fails (a fake fault, at the model's call); its process ends and is started again"
    )
    also = f"LookoutNotReady LookoutStageBehind {_LATE}"
    yield _over(world, fault, "LookoutDeviceFails", before + scrapes, also=also)


def full_disk(world: World) -> Iterator[Case]:
    """No file of prefill grows."""
    before = world.record(0.0)
    pid = world.service(Stage.PREFILL).pid
    assert pid is not None
    _, hard = resource.prlimit(pid, resource.RLIMIT_FSIZE)
    resource.prlimit(pid, resource.RLIMIT_FSIZE, (0, hard))
    try:
        scrapes = world.recorded_until(lambda: world.value("lookout_memory_lost_blocks_total") > 0, 8.0)
    finally:
        resource.prlimit(pid, resource.RLIMIT_FSIZE, (hard, hard))
    fault = "the disk of prefill is full"
    yield _lasting(fault, "LookoutBlocksForgotten", before + scrapes, also="LookoutChaptersNotStored")


def tier_away(world: World) -> Iterator[Case]:
    """The durable tier is away: chapters stay, questions find no holder, an erasure stays open."""
    before = world.record(0.0)
    with world.tier_away():
        failures = world.value("lookout_memory_upload_failures_total")
        scrapes = world.recorded_until(
            lambda: world.value("lookout_memory_upload_failures_total") > failures + 3
        )
        # An upload is tried for a minute, which must not become seven when it is played.
        fault, rules = "the durable tier is away", "LookoutChaptersNotStored"
        yield _lasting(fault, rules, before + scrapes, every_s=RECORDED_S)
        before = world.record(0.0)
        pid = world.service(Stage.PREFILL).pid
        assert pid is not None
        os.kill(pid, signal.SIGSTOP)
        try:
            address = f"127.0.0.1:{world.service('recall').grpc_port}"
            words = ("ask", "--fleet", "Is a person in view?", "--camera", CAMERAS[0], "--recall", address)
            asking = threading.Thread(target=lambda: print(world.command(*words)))
            asking.start()
            eventually(lambda: world.value("lookout_recall_asks_total", end="failed") > 0, every=1.0)
        finally:
            os.kill(pid, signal.SIGCONT)
        asking.join()
        fault = "a question about the past, while the pod that remembers and the durable tier are away"
        also = "LookoutChaptersNotStored"
        late = f"{also} {_LATE}"
        yield _over(world, fault, "LookoutQuestionsFail", before + world.record(2.0), also=late)
        before = world.record(0.0)
        print(world.command("erase", "--camera", CAMERAS[1], "--yes", "--wait", "0"))
        scrapes = world.recorded_until(lambda: world.value("lookout_erasures_open") > 0, 6.0)
        yield _lasting(
            "an erasure, while the durable tier is away", "LookoutErasureOpen", before + scrapes, also=also
        )
    eventually(lambda: world.value("lookout_erasures_open") == 0, every=1.0)


def resources(world: World) -> Iterator[Case]:
    """Camera and Watch resources that do not do what they are for."""
    before = world.record(0.0)
    world.api.create(CAMERA, ["dead"], {"url": NOWHERE})
    scrapes = world.recorded_until(
        lambda: world.value("lookout_cameras_not_streaming", reason="Reconnecting") > 0, 6.0
    )
    yield _lasting("nobody answers at a camera's address", "LookoutCamerasNotStreaming", before + scrapes)
    before = world.record(0.0)
    rule = {"threshold": 0.5}
    world.api.create(
        WATCH, ["blind"], {"question": "Is a person in view?", "cameras": ["dead"], "rule": rule}
    )
    scrapes = world.recorded_until(lambda: world.value("lookout_watches_unanswered") > 0, 6.0)
    fault = "a watch of a camera without pictures (ten minutes are shortened to seconds)"
    yield _lasting(fault, _UNANSWERED, before + scrapes, also="LookoutCamerasNotStreaming")


def absent_stages(world: World) -> Iterator[Case]:
    """One stage after the other ends, and none comes back."""
    ended: list[str] = []
    before = world.record(0.0)
    for service in reversed(list(world.fleet.services)):
        service.stop(20.0)
        world.fleet.services.remove(service)
        scrapes = [world.scrape(), world.scrape()]
        earlier = " ".join(f"LookoutStageAbsent/{stage}" for stage in ended)
        also = f"{earlier} LookoutStageBehind LookoutNotReady LookoutCamerasNotStreaming {_UNANSWERED}"
        rule = f"LookoutStageAbsent/{service.stage}"
        yield _lasting(f"{service.stage} has no process", rule, before + scrapes, also=also)
        ended.append(service.stage)


CAUSES: Final[tuple[Cause, ...]] = (
    quiet,
    unreadable_segments,
    too_much,
    unusable_watch,
    taken_name,
    lost_records,
    damaged_state,
    open_transaction,
    refused_outputs,
    lost_pictures,
    failing_device,
    full_disk,
    tier_away,
    slow_stage,
    no_broker,
    resources,
    absent_stages,
)
