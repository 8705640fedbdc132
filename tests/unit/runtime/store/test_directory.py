"""Leases, epochs, wipes and outages of the directory, on a real Redis."""

from collections.abc import Callable

import pytest

from lookout.local import RedisServer
from lookout.runtime.store import DirectoryDownError, entry_of
from lookout.v1.lineage_pb2 import STAGE_FRAMES, STAGE_TOKENS
from tests.eventually import eventually

from .conftest import Fleet, data, ref


def test_one_entry_for_each_segment_and_stage(fleet: Fleet) -> None:
    pod, directory = fleet.pod("a"), fleet.directory()
    first, second = pod.store.put(ref("x", 5), data(1)), pod.store.put(ref("y", 5), data(2))
    assert entry_of(first) == entry_of(second) == "lookout:{cam%7B1%7D}:1:camera.segments.v1/0/5"
    [holder] = directory.find(first)
    assert (holder.pod, holder.address, holder.epoch) == ("a", pod.address, pod.announcer.epoch)
    assert 0 < directory.client.pttl(entry_of(first)) <= 600_000  # type: ignore[operator]
    pod.store.drop(first)
    assert directory.find(second) == [holder]
    pod.store.drop(second)
    assert directory.find(second) == []


def test_several_pods_hold_one_entry(fleet: Fleet) -> None:
    pods = [fleet.pod(name) for name in "abc"]
    for pod in pods:
        pod.store.put(ref("x"), data(1))
    directory = fleet.directory()
    assert {holder.pod for holder in directory.find(ref("x"))} == set("abc")
    assert directory.replicas(STAGE_FRAMES) == sorted(pod.address for pod in pods)
    assert directory.replicas(STAGE_TOKENS) == []
    pods[0].announcer.stop()
    assert {holder.pod for holder in directory.find(ref("x"))} == set("bc")
    assert pods[0].address not in directory.replicas(STAGE_FRAMES)


def test_a_lease_that_expires_hides_its_holder_until_it_is_back(fleet: Fleet) -> None:
    pod, directory = fleet.pod("a", lease=False), fleet.directory()
    pod.announcer.renew()
    pod.store.put(ref("x"), data(1))
    assert directory.find(ref("x"))
    before = pod.announcer.epoch
    pod.announcer.directory.settings = fleet.settings.model_copy(update={"lease_s": 0.2})
    pod.announcer.renew()
    assert pod.announcer.epoch == before
    eventually(lambda: directory.find(ref("x")) == [])
    assert directory.client.hlen(entry_of(ref("x"))) == 0
    pod.announcer.directory.settings = fleet.settings
    pod.announcer.renew()
    assert pod.announcer.epoch > before
    assert [holder.epoch for holder in directory.find(ref("x"))] == [pod.announcer.epoch]


@pytest.mark.slow
def test_the_lease_is_renewed_while_the_pod_lives(fleet_of: Callable[..., Fleet]) -> None:
    fleet = fleet_of(lease_s=3.0)
    pod, directory = fleet.pod("a"), fleet.directory()
    pod.store.put(ref("x"), data(1))
    epoch, lease = pod.announcer.epoch, f"lookout:{{pods:{STAGE_FRAMES}}}:lease:a"
    left: list[int] = []

    def renewed() -> bool:
        left.append(directory.client.pttl(lease))  # type: ignore[arg-type]
        return left[-1] > left[0] - 100 and len(left) > 1 and min(left) < left[-1] - 100

    eventually(renewed)
    assert pod.announcer.epoch == epoch
    assert directory.find(ref("x"))


def test_an_entry_of_an_earlier_epoch_is_not_believed(fleet: Fleet) -> None:
    old, directory = fleet.pod("a", lease=False), fleet.directory()
    old.announcer.renew()
    old.store.put(ref("x"), data(1))
    new = fleet.pod("a")  # the pod was started again under its name, with an empty store
    assert new.announcer.epoch > old.announcer.epoch
    assert directory.find(ref("x")) == []
    old.announcer.renew()  # the one before still runs, and must not take the name back
    assert old.announcer.epoch == 0
    assert old.announcer.renew()
    assert old.announcer.epoch == 0
    new.store.put(ref("x"), data(1))
    assert [holder.epoch for holder in directory.find(ref("x"))] == [new.announcer.epoch]


def test_a_late_writer_of_an_old_epoch_changes_nothing(fleet: Fleet) -> None:
    old, directory = fleet.pod("a", lease=False), fleet.directory()
    old.announcer.renew()
    old.store.put(ref("x"), data(1))
    new = fleet.pod("a")
    new.store.put(ref("x"), data(1))
    old.announcer.held(entry_of(ref("x")))
    assert [holder.epoch for holder in directory.find(ref("x"))] == [new.announcer.epoch]
    old.announcer.dropped(entry_of(ref("x")))
    assert len(directory.find(ref("x"))) == 1


def test_after_a_wipe_everything_is_announced_again(fleet_of: Callable[..., Fleet]) -> None:
    fleet = fleet_of(lease_s=0.5)
    pods, directory = [fleet.pod("a"), fleet.pod("b")], fleet.directory()
    for n in range(600):
        pods[n % 2].store.put(ref(f"x{n}", n), data(n, 1, 4))
    epochs = [pod.announcer.epoch for pod in pods]
    with pods[0].announcer._claiming, pods[1].announcer._claiming:  # neither announces in between
        directory.client.flushall()
        assert directory.find(ref("x0", 0)) == []
    eventually(lambda: all(directory.find(ref(f"x{n}", n)) for n in (0, 1, 598, 599)))
    assert all(pod.announcer.epoch > epoch for pod, epoch in zip(pods, epochs, strict=True))
    assert sum(1 for _ in directory.client.scan_iter("lookout:{cam*")) == 600


def test_a_lost_entry_comes_back(fleet_of: Callable[..., Fleet]) -> None:
    fleet = fleet_of(lease_s=0.3, entry_s=0.6)
    pod, directory = fleet.pod("a"), fleet.directory()
    pod.store.put(ref("x"), data(1))
    directory.client.delete(entry_of(ref("x")))
    eventually(lambda: bool(directory.find(ref("x"))))


def test_redis_away_is_said_and_healed(fleet_of: Callable[..., Fleet], redis_server: RedisServer) -> None:
    fleet = fleet_of(lease_s=0.5)
    pod, directory = fleet.pod("a"), fleet.directory()
    pod.store.put(ref("x", 1), data(1))
    addresses = directory.replicas(STAGE_FRAMES)
    redis_server.kill()
    with pytest.raises(DirectoryDownError, match="does not answer"):
        directory.find(ref("x", 1))
    with pytest.raises(DirectoryDownError, match="a moment ago"):
        directory.find(ref("x", 1))
    assert directory.replicas(STAGE_FRAMES) == addresses == [pod.address]
    pod.store.put(ref("y", 2), data(2))  # nothing to say it to: no error
    redis_server.start()

    def healed() -> bool:
        try:
            return all(directory.find(each) for each in (ref("x", 1), ref("y", 2)))
        except DirectoryDownError:
            return False

    eventually(healed)


def test_a_call_that_runs_while_the_process_ends_is_no_internal_error(fleet: Fleet) -> None:
    """As redis-py fails where another thread closes the connection that it reads."""

    def read_closed() -> None:
        raise ValueError("I/O operation on closed file.")

    directory = fleet.directory()
    with pytest.raises(ValueError, match="closed file"):
        directory.asking(read_closed)
    directory.close()
    with pytest.raises(DirectoryDownError, match="this process is ending"):
        directory.asking(read_closed)
