"""A Redis Cluster of three nodes: a camera is in one slot, and a lost node costs time and never an answer."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from lookout.errors import StartupError
from lookout.past.chapters.announcing import scenes_key
from lookout.past.chapters.directory_keys import chapters_key
from lookout.past.chapters.landmarks import LandmarkReader
from lookout.runtime.net import without_security
from lookout.runtime.net.redis_errors import REDIS_ERRORS
from lookout.runtime.store import Announcer, TensorStore
from lookout.runtime.store.labels import entry_of
from lookout.services.camera_agent.leases import Leases
from lookout.services.recall.asking import Asker
from lookout.v1.lineage_pb2 import STAGE_FRAMES, RecordRef, TensorRef
from lookout.wire import CAMERA_REPORT
from tests.changed_settings import store_settings
from tests.chapters_world import QUESTION, World, engine, fill, folder
from tests.redis_cluster import RedisCluster

CAMERAS = ("gate", "yard", "hall", "dock", "ramp")
SECURITY = without_security().model_copy(update={"redis_cluster": True})


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[RedisCluster]:
    with RedisCluster(tmp_path / "nodes") as cluster:
        yield cluster


@pytest.fixture
def world(tmp_path: Path, cluster: RedisCluster) -> Iterator[World]:
    with ExitStack() as stack:
        settings = store_settings(redis_retry_s=0.01, redis_timeout_s=2.0)
        yield World(tmp_path, cluster.url, stack, security=SECURITY, settings=settings)


def slots_of(cluster: RedisCluster) -> dict[str, set[int]]:
    """The slots of every camera's keys, by the hash tag."""
    out: dict[str, set[int]] = defaultdict(set)
    for node in cluster.nodes:
        with cluster.client(node) as client:
            for key in client.keys("lookout:*"):  # type: ignore[union-attr]
                tag = key.partition(b"{")[2].partition(b"}")[0].decode()
                out[tag].add(int(client.execute_command("CLUSTER KEYSLOT", key)))
    return out


@pytest.mark.slow
def test_cameras_spread_over_nodes_and_a_lost_node_costs_no_answer(
    tmp_path: Path, cluster: RedisCluster, world: World
) -> None:
    chapters = folder(tmp_path / "chapters")
    for number, camera in enumerate(CAMERAS):
        fill(chapters, range(4), camera, seed=number)
        chapters.seal(camera)
    holder = world.hold(chapters)
    slots = slots_of(cluster)
    assert all(len(slots[camera]) == 1 for camera in CAMERAS)
    assert len({next(iter(slots[camera])) for camera in CAMERAS}) == len(CAMERAS)
    client = world.client()
    (facts,) = chapters.chapters("gate")
    assert client.hexists(chapters_key("gate"), facts.name)
    assert client.exists(scenes_key("gate", facts.name))
    pasts = LandmarkReader(world.directory(), client, "m1").pasts(["*"]).cameras
    assert sorted(pasts) == sorted(CAMERAS)
    assert all(past.landmarks for past in pasts.values())

    sources = world.sources()
    answers = {
        camera: Asker(engine(), sources, model_digest="m1").ask(camera, QUESTION) for camera in CAMERAS
    }
    layers = len(engine().model.layers)
    assert sources.from_redis == layers * len(CAMERAS)

    cluster.nodes[2].close()
    for camera in CAMERAS:
        again = Asker(engine(), sources, model_digest="m1").ask(camera, QUESTION)
        assert again.answer.yes_logit == answers[camera].answer.yes_logit
        assert again.missing == ()
    assert holder.announcer is not None
    holder.announcer.announce()  # cameras of the lost node are announced when it is back


@pytest.mark.slow
def test_tensors_are_found_through_a_cluster(world: World) -> None:
    store = TensorStore(world.settings)
    directory = world.directory()
    holdings = Announcer(directory, STAGE_FRAMES, "decode-0", "127.0.0.1:1", store.lines)
    holdings.start()
    world.stack.callback(holdings.stop)
    references = [
        TensorRef(
            id=f"t{number}",
            camera=camera,
            stage=STAGE_FRAMES,
            input=RecordRef(topic="camera.segments.v1", offset=number),
        )
        for number, camera in enumerate(CAMERAS)
    ]
    for reference in references:
        holdings.held(entry_of(reference))
    assert [[holder.pod for holder in directory.find(reference)] for reference in references] == [
        ["decode-0"]
    ] * len(CAMERAS)
    assert directory.replicas(STAGE_FRAMES) == ["127.0.0.1:1"]
    holdings.dropped(entry_of(references[0]))
    assert directory.find(references[0]) == []


@pytest.mark.slow
def test_leases_of_cameras_are_taken_in_a_cluster(world: World) -> None:
    client = world.client()
    leases = Leases(client, "agent-0", 10.0)
    for camera in CAMERAS:
        leases.add(camera)
    assert leases.refresh() == set(CAMERAS)
    leases.tell({camera: {"state": "streaming"} for camera in CAMERAS})
    assert client.hget(CAMERA_REPORT.format(camera="gate"), "state") == b"streaming"
    leases.leave()
    successor = Leases(client, "agent-1", 10.0)
    successor.add("gate")
    assert successor.refresh() == {"gate"}


def test_a_cluster_that_is_away_is_an_error_of_redis() -> None:
    with pytest.raises(REDIS_ERRORS):
        SECURITY.redis_client("redis://127.0.0.1:1/0", socket_connect_timeout=0.2)
    with pytest.raises(StartupError, match="must have the form redis://host:port/db"):
        SECURITY.redis_client("http://127.0.0.1:1")
