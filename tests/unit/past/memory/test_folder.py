"""A memory on disk survives SIGKILL at any instruction, notices damage, and forgets wholly."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from lookout.past.memory import CameraMemory, HistoryError, Keep, MemoryFolder
from lookout.past.memory.slabs import Residency
from tests.unit.past.memory.records import SHAPE, SMALL, block, memory, prefix, scene_of, state

# A process that is killed closes no file, and these tests stand for one.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")

SEED = 11


def fetched(one: CameraMemory, index: int) -> dict[int, list[int]]:
    draw = np.random.default_rng([SEED, index])
    return {
        layer: [c.id for c in one.clusters(layer) if draw.random() < 0.4] for layer in range(SHAPE.layers)
    }


def steps(count: int) -> list[Callable[[Any, CameraMemory], object]]:
    """What happens to a memory, one change each: blocks, and fetches now and then."""
    out: list[Callable[[Any, CameraMemory], object]] = []
    for index in range(count):
        told = block(index, seed=SEED, scene=scene_of(index, SEED))
        out.append(lambda one, _, told=told: one.add(told))  # type: ignore[misc]
        if index % 3 == 2:
            out.append(lambda one, held, index=index: one.settle(fetched(held, index)))  # type: ignore[misc]
    return out


def states(count: int) -> list[list[object]]:
    """The memory after every number of changes."""
    one = memory()
    out = [state(one)]
    for step in steps(count):
        step(one, one)
        out.append(state(one))
    return out


def create(folder: Path, every: int = 5) -> MemoryFolder:
    return MemoryFolder.create(folder, SHAPE, prefix(), SMALL, about={"camera": "gate"}, every=every)


def test_a_memory_opens_as_it_was_closed(tmp_path: Path) -> None:
    expected = states(14)
    with create(tmp_path) as one:
        for step in steps(14):
            step(one, one.memory)
    found = MemoryFolder.open(tmp_path)
    with pytest.raises(HistoryError, match="another process is writing"):
        MemoryFolder.open(tmp_path)
    assert state(MemoryFolder.open(tmp_path, owner=False).memory) == expected[-1]
    assert state(found.memory) == expected[-1]
    assert found.about == {"camera": "gate"}
    # And continues as the one that was never closed.
    whole = memory()
    for step in steps(18):
        step(whole, whole)
    for step in steps(18)[len(steps(14)) :]:
        step(found, found.memory)
    assert state(found.memory) == state(whole)


def test_clusters_that_outgrew_the_device_are_there_after_opening() -> None:
    one, other = Residency(10), Residency(10)
    for cluster in (1, 2):
        one.touch(cluster, 4)
    one.resize(1, 9)
    other.restore(one.order())
    assert (other.order(), other.bytes) == (one.order(), one.bytes) == ([(1, 9), (2, 4)], 13)


class Killed(BaseException):
    """Stands for SIGKILL: nothing after it runs."""


@pytest.mark.slow
def test_dying_at_any_call_loses_nothing_that_was_acknowledged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every call that changes the disk is, in turn, the last one; a write may stop half way."""
    expected = states(9)
    real = {"fsync": os.fsync, "replace": os.replace, "unlink": os.unlink}
    left = {"calls": 0}

    def dying(name: str) -> Callable[..., Any]:
        def call(*told: Any, **more: Any) -> Any:
            left["calls"] -= 1
            if left["calls"] == 0:
                raise Killed
            return real[name](*told, **more)

        return call

    for name in real:
        monkeypatch.setattr(os, name, dying(name))
    died = 0
    for calls in range(1, 400, 2):
        folder = tmp_path / str(calls)
        left["calls"] = -1
        one = create(folder)
        left["calls"] = calls
        acknowledged = 0
        try:
            for step in steps(9):
                step(one, one.memory)
                acknowledged += 1
            left["calls"] = -1
            break
        except Killed:
            died += 1
        left["calls"] = -1
        one._release()
        # What a dead process had not written out is torn off at any byte.
        for log in folder.glob("*.part"):
            log.write_bytes(log.read_bytes()[: calls * 7])
        found = state(MemoryFolder.open(folder).memory)
        assert found in expected[acknowledged : acknowledged + 2], (calls, acknowledged)
    assert died > 15


def test_a_record_cut_short_at_the_end_did_not_happen(tmp_path: Path) -> None:
    expected = states(4)
    one = create(tmp_path, every=99)
    for step in steps(4):
        step(one, one.memory)
    one._owner.close()
    log = next(tmp_path.glob("records-*.log"))
    whole = log.read_bytes()
    for cut in (1, 20, 500):
        log.write_bytes(whole[:-cut])
        assert state(MemoryFolder.open(tmp_path, owner=False).memory) == expected[-2]
        log.write_bytes(whole)
    assert state(MemoryFolder.open(tmp_path).memory) == expected[-1]


CHILD = """
import sys
from pathlib import Path
from tests.unit.past.memory.test_folder import create, steps
one = create(Path(sys.argv[1]), every=3)
for number, step in enumerate(steps(400)):
    step(one, one.memory)
    print(number + 1, flush=True)
"""


@pytest.mark.slow
@pytest.mark.parametrize("after", [pytest.param(3, marks=pytest.mark.long), 17])
def test_a_process_killed_at_work_loses_nothing_it_had_told(tmp_path: Path, after: int) -> None:
    folder = tmp_path / "memory"
    child = subprocess.Popen([sys.executable, "-c", CHILD, str(folder)], stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    told = 0
    try:
        for line in child.stdout:
            told = int(line)
            if told == after:
                time.sleep(0.002 * after)
                os.kill(child.pid, signal.SIGKILL)
                break
    finally:
        child.kill()
    told = max([told, *(int(line) for line in child.stdout)])
    child.wait()
    found = state(MemoryFolder.open(folder).memory)
    one, number = memory(), 0
    for number, step in enumerate(steps(400)):
        if number >= told and state(one) == found:
            break
        step(one, one)
    assert state(one) == found
    assert told <= number <= told + 2


def test_damage_is_noticed_and_named(tmp_path: Path) -> None:
    with create(tmp_path) as one:
        for step in steps(12):
            step(one, one.memory)
    for pattern in ("slabs-*.bin", "index-*.bin"):
        path = sorted(tmp_path.glob(pattern))[-1]
        whole = path.read_bytes()
        path.write_bytes(whole[:40] + bytes([whole[40] ^ 1]) + whole[41:])
        with pytest.raises(HistoryError, match="damaged"):
            MemoryFolder.open(tmp_path, owner=False)
        path.unlink()
        with pytest.raises(HistoryError, match="is missing"):
            MemoryFolder.open(tmp_path, owner=False)
        path.write_bytes(whole)
    MemoryFolder.open(tmp_path)
    with pytest.raises(HistoryError, match="contains no memory"):
        MemoryFolder.open(tmp_path / "nowhere")
    with pytest.raises(HistoryError, match="already contains a memory"):
        create(tmp_path)


def test_no_file_holds_anything_of_an_erased_range(tmp_path: Path) -> None:
    one = create(tmp_path)
    for step in steps(12):
        step(one, one.memory)
    begin, end = 3_000_000, 9_000_000
    frames = [f for f in range(36) if begin <= f * 500_000 < end]
    needles = []
    for frame in frames:
        told = block(frame // 3, seed=SEED, scene=scene_of(frame // 3, SEED))
        rows = np.flatnonzero(told.frame == frame % 3)
        needles += [told.keys[layer, :, row].numpy().tobytes() for layer in range(2) for row in rows]
        needles.append(told.embeddings[frame % 3].numpy().tobytes())
    held = b"".join(path.read_bytes() for path in tmp_path.iterdir())
    assert any(needle in held for needle in needles)
    assert one.forget(begin, end) == len(frames)
    held = b"".join(path.read_bytes() for path in tmp_path.iterdir())
    assert not any(needle in held for needle in needles)
    assert state(MemoryFolder.open(tmp_path, owner=False).memory) == state(one.memory)


@pytest.mark.slow
def test_files_of_dead_slabs_go(tmp_path: Path) -> None:
    one = MemoryFolder.create(
        tmp_path, SHAPE, prefix(), replace(SMALL, window=1), keep=Keep(seconds=10), every=4
    )
    sizes = []
    for step in steps(60):
        step(one, one.memory)
        sizes.append(one.disk_bytes)
    assert max(sizes[60:]) < 3 * max(sizes[20:40])


def test_slabs_are_contiguous_byte_ranges(tmp_path: Path) -> None:
    """Another process finds a cluster by file, offset and length, and needs nothing else to read it."""
    with create(tmp_path) as one:
        for step in steps(12):
            step(one, one.memory)
        one.checkpoint()
        places, clusters = dict(one._places), {c.id: c for c in one.memory.clusters(1)}
    for number, cluster in clusters.items():
        place = places[number]
        size = place.count * SHAPE.token_bytes
        data = (tmp_path / place.file).read_bytes()[place.offset : place.offset + size]
        told = torch.frombuffer(bytearray(data), dtype=torch.float32).view(-1, 2, 2, 4)
        assert torch.equal(told, cluster.slab.data)
