"""One flipped bit, or an end cut off, anywhere in a memory's folder: named, or without effect on answers."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from lookout.past.memory import DamagedMemoryError, HistoryError, MemoryFolder
from lookout.past.memory.packing import records
from lookout.past.memory.shelf import entries, place_of, remove, trim
from tests.unit.past.memory.records import SHAPE, SMALL, block, memory, prefix, scene_of, state

SEED = 11
BLOCKS = 14


def _feed(folder: MemoryFolder, first: int, last: int) -> None:
    for index in range(first, last):
        folder.add(block(index, seed=SEED, scene=scene_of(index, SEED)))


def _states() -> list[list[object]]:
    """The memory after every number of blocks."""
    history = memory()
    out = [state(history)]
    for index in range(BLOCKS):
        history.add(block(index, seed=SEED, scene=scene_of(index, SEED)))
        out.append(state(history))
    return out


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder as a killed process leaves it: a checkpoint of ten blocks, and four records since."""
    path = tmp_path_factory.mktemp("memories") / "gate" / "000000"
    folder = MemoryFolder.create(path, SHAPE, prefix(), SMALL, about={"camera": "gate"}, every=99)
    _feed(folder, 0, 6)
    folder.checkpoint()
    _feed(folder, 6, 10)
    folder.checkpoint()
    _feed(folder, 10, BLOCKS)
    folder._release()
    return path


@pytest.fixture(scope="module")
def states() -> list[list[object]]:
    return _states()


NAMES = ("meta.bin", "meta.copy.bin", "index", "slabs", "records")


def _file(folder: Path, name: str) -> Path:
    return max(path for path in folder.iterdir() if path.name.startswith(name))


def _places(size: int, seed: int, count: int) -> Iterator[int]:
    """Bytes of a file: its first forty, where the lengths and checksums are, and others drawn at random."""
    yield from range(0, min(size, 40), 3)
    yield from np.random.default_rng(seed).integers(0, size, count).tolist()


def _opened(path: Path) -> tuple[list[object] | None, str]:
    """The memory that opening gives, or the error."""
    try:
        return state(MemoryFolder.open(path, owner=False).memory), ""
    except DamagedMemoryError as error:
        return None, str(error)


def _times(folder: MemoryFolder) -> set[int]:
    return set(folder.memory.table.times_us.all.tolist())


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_a_flipped_bit_is_named_or_changes_nothing(
    whole: Path, states: list[list[object]], tmp_path: Path, name: str
) -> None:
    path = tmp_path / "folder"
    shutil.copytree(whole, path)
    file = _file(path, name)
    sound = file.read_bytes()
    named = 0
    for number, place in enumerate(_places(len(sound), 5, 12)):
        flipped = bytearray(sound)
        flipped[place] ^= 1 << (number % 8)
        file.write_bytes(flipped)
        opened, error = _opened(path)
        if opened is None:
            named += 1
            assert str(file) in error, place
            assert file.read_bytes() == bytes(flipped), "opening changes nothing"
        else:
            assert opened == states[-1], place
    assert (named > 0) == (name in {"index", "slabs", "records"})


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_an_end_cut_off_is_named_or_changes_nothing(
    whole: Path, states: list[list[object]], tmp_path: Path, name: str
) -> None:
    path = tmp_path / "folder"
    shutil.copytree(whole, path)
    file = _file(path, name)
    sound = file.read_bytes()
    for place in _places(len(sound), 6, 12):
        file.write_bytes(sound[:place])
        opened, error = _opened(path)
        if opened is None:
            assert str(file) in error, place
        else:
            # A log that ends early is what a killed process leaves: its whole records count.
            assert opened in (states[10:] if name == "records" else states[-1:]), place


@pytest.mark.slow
@pytest.mark.parametrize("number", range(4))
def test_a_damaged_record_costs_itself_alone(whole: Path, tmp_path: Path, number: int) -> None:
    path = tmp_path / "folder"
    shutil.copytree(whole, path)
    file = _file(path, "records")
    sound = file.read_bytes()
    record = list(records(memoryview(sound), ""))[number]
    for offset in (0, 2, 6, 10, 17, 25, 400, record.end - record.begin - 1):
        damaged = bytearray(sound)
        damaged[record.begin + offset] ^= 4
        file.write_bytes(damaged)
        with pytest.raises(DamagedMemoryError, match=r"records-.* are damaged.*lookout memory repair"):
            MemoryFolder.open(path)
        opened = MemoryFolder.open(path, owner=False, salvage=True)
        assert len(opened.damage) == 1
        lost = set(block(10 + number, seed=SEED).times_us.tolist())
        every = {time for index in range(BLOCKS) for time in block(index, seed=SEED).times_us.tolist()}
        assert _times(opened) == every - lost


def test_a_salvaged_folder_is_whole_again_and_goes_on(whole: Path, tmp_path: Path) -> None:
    path = tmp_path / "folder"
    shutil.copytree(whole, path)
    for name in ("records", "slabs", "meta.bin"):
        file = _file(path, name)
        damaged = bytearray(file.read_bytes())
        damaged[len(damaged) // 3] ^= 1
        file.write_bytes(damaged)
    with MemoryFolder.open(path, salvage=True) as opened:
        assert len(opened.damage) == 2
        assert "the KV of" in opened.damage[0]
        assert "of the stream, is lost" in opened.damage[0]
        _feed(opened, BLOCKS, BLOCKS + 6)
        after = state(opened.memory)
        clusters = [c for layer in range(SHAPE.layers) for c in opened.memory.clusters(layer)]
        ids = {cluster.id for cluster in clusters}
        assert all(cluster.owner in {-1, *ids} for cluster in clusters)
        assert {number for number, _ in opened.memory.residency.order()} <= ids
    again = MemoryFolder.open(path)
    assert state(again.memory) == after
    assert again.damage == []
    again.close()


def test_an_index_that_is_damaged_costs_the_checkpoint_and_not_the_records_since(
    whole: Path, tmp_path: Path
) -> None:
    path = tmp_path / "folder"
    shutil.copytree(whole, path)
    _file(path, "index").write_bytes(b"no index")
    with pytest.raises(DamagedMemoryError, match=r"index-.*everything before the records"):
        MemoryFolder.open(path)
    with MemoryFolder.open(path, salvage=True) as opened:
        kept = {time for index in range(10, BLOCKS) for time in block(index, seed=SEED).times_us.tolist()}
        assert _times(opened) == kept


def test_an_index_torn_beside_the_one_before_costs_nothing(whole: Path, tmp_path: Path) -> None:
    """As a release before 0.3 left it, which wrote the index in place; and a log that no record came to."""
    path = tmp_path / "folder"
    shutil.copytree(whole, path)
    sound = _file(path, "index").read_bytes()
    expected = state(MemoryFolder.open(path, owner=False).memory)
    (path / "records-00000003.log").touch()
    for size in (0, 30, len(sound) - 1):
        (path / "index-00000003.bin").write_bytes(sound[:size])
        assert state(MemoryFolder.open(path, owner=False).memory) == expected
    with MemoryFolder.open(path) as opened:
        _feed(opened, BLOCKS, BLOCKS + 1)
        after = state(opened.memory)
        assert [file.name for file in path.glob("index-*")] == ["index-00000004.bin"]
    assert state(MemoryFolder.open(path, owner=False).memory) == after


def test_damage_of_one_camera_leaves_the_others_alone(whole: Path, tmp_path: Path) -> None:
    for camera in ("gate", "dock", "yard"):
        shutil.copytree(whole, place_of(tmp_path, camera, 0))
    for name in ("meta.bin", "meta.copy.bin"):
        (place_of(tmp_path, "dock", 0) / name).write_bytes(b"no memory")
    index = _file(place_of(tmp_path, "yard", 0), "index")
    index.write_bytes(index.read_bytes()[:-1])
    shelf = {entry.path.parent.name: entry for entry in entries(tmp_path)}
    assert set(shelf) == {"gate", "dock", "yard"}
    assert [bool(shelf[camera].damage) for camera in ("gate", "dock", "yard")] == [False, True, False]
    assert "meta.bin" in shelf["dock"].damage
    # What cannot be read can be removed, and a limit of age reaches the others.
    with pytest.raises(HistoryError, match=r"index-.*damaged"):
        trim(tmp_path, max_age_s=3.0, now_s=shelf["gate"].fed_s)
    held = MemoryFolder.open(place_of(tmp_path, "gate", 0))
    assert held.memory.covered_from_us == max(held.memory.table.times_us.all) - 3_000_000
    held.close()
    remove(tmp_path, "dock")
    assert not place_of(tmp_path, "dock", 0).exists()


def test_nobody_else_may_read_a_memory(tmp_path: Path) -> None:
    path = tmp_path / "memories" / "gate" / "000000"
    folder = MemoryFolder.create(path, SHAPE, prefix(), SMALL, every=4)
    _feed(folder, 0, 10)
    folder.close()
    for parent in (path, path.parent, path.parent.parent):
        assert parent.stat().st_mode & 0o777 == 0o700
    for file in path.iterdir():
        assert file.stat().st_mode & 0o777 == 0o600, file


@pytest.mark.parametrize("name", NAMES)
def test_a_device_in_a_file_s_place_is_not_read(whole: Path, tmp_path: Path, name: str) -> None:
    """A copy of a stranger's folder may hold a link to what never ends."""
    path = tmp_path / "folder"
    shutil.copytree(whole, path)
    file = _file(path, name)
    file.unlink()
    file.symlink_to("/dev/zero")
    with contextlib.suppress(HistoryError, OSError):  # what is there twice is read from its other place
        MemoryFolder.open(path, owner=False)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("other", NAMES)
def test_a_file_in_another_one_s_place_is_one_error_or_none(
    whole: Path, tmp_path: Path, name: str, other: str
) -> None:
    """Every file is intact by its own checksum."""
    path = tmp_path / "folder"
    shutil.copytree(whole, path)
    shutil.copy(_file(whole, other), _file(path, name))
    with contextlib.suppress(HistoryError):
        MemoryFolder.open(path, owner=False)
