"""Chapters: written once, sealed, found again after a death, dropped when their time is over."""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from lookout.past.memory import HistoryError, Keep, MemoryFolder, Past, RangeCache, RetrievalSettings
from lookout.past.memory.catalogue import ByteRange
from lookout.past.memory.chapters import Born, ChapterFolder, ChapterRules
from lookout.past.memory.past import covered_ranges, fetch_from
from lookout.past.memory.shelf import folder_name, place_of
from tests.unit.past.memory.records import SHAPE, SMALL, block, prefix

HOUR_US = 3_600_000_000
FOREVER = ChapterRules(Keep(seconds=1e9))


def folder(root: Path, rules: ChapterRules = FOREVER, now: float = 0.0) -> ChapterFolder:
    return ChapterFolder(root, rules, SHAPE, settings=SMALL, about={"model": "m"}, clock=lambda: now)


def born(index: int, camera: str = "gate", *, epoch: int = 0, origin_us: int = 0) -> Born:
    return Born(camera, epoch, block(index, seed=epoch), prefix(), origin_us)


def feed(chapters: ChapterFolder, blocks: Sequence[int], camera: str = "gate", **more: Any) -> None:
    for index in blocks:
        chapters.add(born(index, camera, **more))


def everything(chapters: ChapterFolder, names: Sequence[str]) -> list[tuple[int, bytes]]:
    """Every clustered token of some chapters: its time and its KV, layer by layer."""
    reading = [chapters.read(name) for name in names]
    files = {chapter.name: own for chapter, own in reading}
    past = Past(
        [c for c, _ in reading], RangeCache(fetch_from(files), 1 << 30), RetrievalSettings(frames=10**6)
    )
    out = []
    for layer in range(SHAPE.layers):
        choice = past.choose(layer, torch.ones(SHAPE.width))
        rows = torch.cat(past.read(choice, layer))
        out += [
            (int(past.times_us[frame]), row.numpy().tobytes())
            for frame, row in zip(choice.frames, rows, strict=True)
        ]
    return sorted(out)


def test_a_block_enters_once(tmp_path: Path) -> None:
    chapters = folder(tmp_path)
    assert [chapters.add(born(index)) for index in (0, 1, 1, 0, 2)] == [True, True, False, False, True]
    (facts,) = chapters.chapters("gate")
    assert (facts.first_block, facts.sealed, facts.epoch) == (0, False, 0)
    chapter, _ = chapters.read(facts.name)
    assert len(chapter.head.times_us) == 9
    chapters.close()


def test_sealing_loses_no_token(tmp_path: Path) -> None:
    chapters = folder(tmp_path)
    feed(chapters, range(9))
    chapters.seal("gate")
    (facts,) = chapters.chapters("gate")
    assert facts.sealed
    tokens = everything(chapters, [facts.name])
    expected = []
    for index in range(9):
        own = block(index)
        data = torch.stack([own.keys.transpose(1, 2), own.values.transpose(1, 2)], 2)
        expected += [
            (int(own.times_us[own.frame[row]]), data[layer, row].numpy().tobytes())
            for layer in range(SHAPE.layers)
            for row in range(own.rows)
        ]
    assert tokens == sorted(expected)


@pytest.mark.parametrize("change", [{"epoch": 7}, {"origin_us": 2_000_000}])
def test_another_epoch_and_a_moved_clock_begin_a_chapter(tmp_path: Path, change: dict[str, Any]) -> None:
    chapters = folder(tmp_path)
    feed(chapters, range(3))
    feed(chapters, range(3, 5), **change)
    assert [(facts.sealed, facts.first_block) for facts in chapters.chapters()] == [(True, 0), (False, 3)]
    chapters.close()


def test_a_chapter_ends_at_a_size_and_at_an_age(tmp_path: Path) -> None:
    size = block(0).kv_bytes
    by_size = folder(tmp_path / "a", ChapterRules(Keep(seconds=1e9), seal_bytes=3 * size))
    by_age = folder(tmp_path / "b", ChapterRules(Keep(seconds=1e9), seal_s=4.0))
    for chapters in (by_size, by_age):
        feed(chapters, range(7))
        assert [facts.first_block for facts in chapters.chapters()] == [0, 3, 6]
        chapters.close()


def test_a_dead_owner_s_chapter_is_sealed_by_the_next_one(tmp_path: Path) -> None:
    chapters = folder(tmp_path / "first")
    feed(chapters, range(9))
    shutil.copytree(tmp_path / "first", tmp_path / "copy")  # as SIGKILL leaves it
    again = folder(tmp_path / "copy")
    (facts,) = again.chapters("gate")
    assert facts.sealed
    chapters.seal("gate")
    (expected,) = chapters.chapters("gate")
    assert everything(again, [facts.name]) == everything(chapters, [expected.name])
    feed(again, range(9, 11))
    assert [facts.first_block for facts in again.chapters()] == [0, 9]
    again.close()


def test_what_a_kill_left_beside_a_sealed_chapter_is_removed(tmp_path: Path) -> None:
    chapters = folder(tmp_path)
    feed(chapters, range(9))
    chapters.seal("gate")
    (facts,) = chapters.chapters()
    expected = everything(chapters, [facts.name])
    files = {path.name for path in facts.path.iterdir()}
    for name in ("slabs-00000001.bin", "catalogue-99999999.bin", "head-00000001.bin", "meta.bin", "x.part"):
        (facts.path / name).write_bytes(b"of another version")
    again = folder(tmp_path)
    assert everything(again, [facts.name]) == expected
    assert {path.name for path in facts.path.iterdir()} == files


def test_what_cannot_be_read_is_left_out_and_named(tmp_path: Path) -> None:
    chapters = folder(tmp_path)
    feed(chapters, range(3))
    feed(chapters, range(3), "yard")
    chapters.close()
    (facts,) = chapters.chapters("gate")
    for path in facts.path.glob("head-*"):
        path.write_bytes(b"damage")
    again = folder(tmp_path)
    assert [facts.camera for facts in again.chapters()] == ["yard"]
    assert list(again.left_out) == [facts.path]


def test_what_cannot_be_read_is_kept_no_longer_than_what_can(tmp_path: Path) -> None:
    chapters = folder(tmp_path)
    feed(chapters, range(3))
    facts = chapters.seal("gate")
    assert facts is not None
    for path in facts.path.glob("head-*"):
        path.write_bytes(b"damage")
        os.utime(path, (1000.0, 1000.0))
    kept = folder(tmp_path, ChapterRules(Keep(seconds=60.0)), 1059.0)
    assert kept.expire() == []
    assert list(kept.left_out) == [facts.path]
    gone = folder(tmp_path, ChapterRules(Keep(seconds=60.0)), 1061.0)
    assert not gone.left_out
    assert not facts.path.exists()


def test_the_oldest_go_first(tmp_path: Path) -> None:
    chapters = folder(tmp_path)
    for number in range(4):
        feed(chapters, range(number * 3, number * 3 + 3))
        chapters.seal("gate")
    sizes = [facts.bytes for facts in chapters.chapters()]
    ends = [facts.end_us for facts in chapters.chapters()]
    horizon = ChapterRules(Keep(seconds=10.0))
    assert len(folder(tmp_path, horizon, now=ends[1] / 1e6 + 10.1).chapters()) == 2
    assert len(folder(tmp_path, ChapterRules(Keep(bytes=sizes[3]))).chapters()) == 1
    assert len(folder(tmp_path, ChapterRules(Keep(seconds=1e9), disk_bytes=0)).chapters()) == 0
    assert not list(tmp_path.glob("*/*"))


def test_a_growing_chapter_stays_readable_at_a_version(tmp_path: Path) -> None:
    chapters = folder(tmp_path)
    feed(chapters, range(8))
    (facts,) = chapters.chapters()
    chapter, files = chapters.read(facts.name)
    feed(chapters, range(8, 11))
    assert chapters.files(facts.name, chapter.head.version) is files
    place, _ = chapter.head.scenes[0]
    assert place.checked(files.read([place])[0], "here")
    with pytest.raises(HistoryError, match="are not a record of version"):
        files.read([ByteRange("slabs", 3, 5)])
    with pytest.raises(HistoryError, match="version 1 was replaced"):
        chapters.files(facts.name, 1)
    chapters.close()


def test_erasing_leaves_no_byte(tmp_path: Path) -> None:
    chapters = folder(tmp_path)
    feed(chapters, range(12), origin_us=HOUR_US)
    times = block(4).times_us + HOUR_US
    assert chapters.erase("gate", int(times[0]), int(times[-1]) + 1) == 3
    (facts,) = chapters.chapters()
    own = block(4)
    needles = [own.keys[0, :, row].numpy().tobytes() for row in range(own.rows)]
    needles += [row.numpy().tobytes() for row in own.embeddings]
    for path in tmp_path.rglob("*"):
        if path.is_file():
            data = path.read_bytes()
            assert not any(needle in data for needle in needles), path
    chapter, _ = chapters.read(facts.name)
    assert not chapter.head.present[12:15].any()
    assert chapter.head.present.sum() == 33
    ranges = covered_ranges([chapter], None, None, 1_000_000)
    assert ranges == [
        (HOUR_US, int(times[0]) - 500_000),
        (int(times[-1]) + 500_000, HOUR_US + 35 * 500_000),
    ]
    assert chapters.erase("gate") == 33
    assert not list(tmp_path.glob("*/*"))


def test_a_chapter_that_a_full_disk_did_not_seal_is_erased_once_there_is_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was not known any more, so that its erasure was confirmed while all of it lay on the disk."""
    chapters = folder(tmp_path)
    feed(chapters, range(4))

    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("lookout.past.memory.sealed.write_file", full)
        for _ in range(2):
            with pytest.raises(HistoryError):
                chapters.erase("gate")
    assert chapters.erase("gate") > 0
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


def test_a_chapter_that_cannot_be_read_is_erased_whole(tmp_path: Path) -> None:
    chapters = folder(tmp_path)
    feed(chapters, range(4))
    facts = chapters.seal("gate")
    assert facts is not None
    for path in facts.path.glob("*.bin"):
        path.write_bytes(path.read_bytes()[:9])
    again = folder(tmp_path)
    assert (again.chapters(), len(again.left_out)) == ([], 1)
    again.erase("gate", facts.begin_us, facts.begin_us + 1)
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


def test_a_full_disk_leaves_the_chapter_readable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    chapters = folder(tmp_path)
    feed(chapters, range(8))

    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("lookout.past.memory.sealed.write_file", full)
    with pytest.raises(HistoryError, match="No space left on device"):
        chapters.seal("gate")
    monkeypatch.undo()
    again = folder(tmp_path)
    (facts,) = again.chapters()
    assert np.array_equal(again.read(facts.name)[0].head.times_us, np.arange(24) * 500_000)


@pytest.mark.parametrize("camera", ["..", ".", "a/../../b", "tür 1", "x" * 200, "ü" * 100])
def test_no_camera_s_name_leads_out_of_the_folder(tmp_path: Path, camera: str) -> None:
    chapters = folder(tmp_path / "root")
    feed(chapters, range(2), camera)
    chapters.close()
    assert [path.name for path in tmp_path.iterdir()] == ["root"]
    assert [facts.camera for facts in folder(tmp_path / "root").chapters()] == [camera]


def test_cameras_of_similar_ids_share_no_folder() -> None:
    long = "x" * 150 + "ü" * 25
    ids = ["a/b", "a_b", "a%2Fb", "a b", "..", "__", "%2E%2E", long, long[:-1] + "ö", folder_name(long)]
    assert len({folder_name(camera) for camera in ids}) == len(ids)
    assert folder_name("yard-1.north_2") == "yard-1.north_2"


def test_a_memory_of_an_earlier_release_keeps_its_place(tmp_path: Path) -> None:
    earlier = tmp_path / "a_b" / "000001"
    assert place_of(tmp_path, "a/b", 1) == tmp_path / "a%2Fb" / "000001"
    MemoryFolder.create(earlier, SHAPE, prefix(), SMALL, about={"camera": "a/b"}).close()
    assert place_of(tmp_path, "a/b", 1) == earlier
    assert place_of(tmp_path, "a b", 1) == tmp_path / "a%20b" / "000001"
