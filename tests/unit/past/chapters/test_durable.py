"""The durable tier: whole chapters or none, read by ranges, kept for as long as the rules say."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from threading import Thread
from typing import Any, cast

import obstore
import pytest

from lookout.past.chapters.durable import DurableTier, Uploader
from lookout.past.memory import HistoryError, Keep
from lookout.past.memory.catalogue import Head
from lookout.past.memory.chapters import ChapterFolder, ChapterRules
from lookout.past.memory.files import newest_head
from lookout.past.memory.sealed import read_head
from lookout.services.recall.asking import Asker
from tests.chapters_world import LITTLE, QUESTION, World, engine, facts, fill, folder, in_one_process


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> ChapterFolder:
    chapters = folder(tmp_path_factory.mktemp("two"))
    fill(chapters, range(6))
    chapters.seal("gate")
    fill(chapters, range(6, 11), seed=4)
    chapters.seal("gate")
    return chapters


def head_of(place: Path) -> Path:
    head = newest_head(place)
    assert head is not None
    return head


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    with ExitStack() as stack:
        yield World(tmp_path, None, stack)


def stored(root: Path, chapters: ChapterFolder) -> DurableTier:
    tier = DurableTier(str(root))
    uploader = Uploader(tier, chapters)
    uploader.round()
    assert (uploader.uploaded, uploader.failed) == (len(chapters.chapters()), 0)
    uploader.round()
    assert uploader.uploaded == len(chapters.chapters())  # once
    again = Uploader(tier, chapters)
    again.round()
    assert again.uploaded == 0
    return tier


def over(world: World, tier: DurableTier, **more: object) -> object:
    sources = world.sources(directory=False, durable=tier)
    asked = Asker(engine(), sources, model_digest="m1", retrieval=LITTLE).ask("gate", QUESTION)
    return facts(asked.answer)


def test_the_tier_alone_answers_as_the_holder(world: World, two: ChapterFolder, tmp_path: Path) -> None:
    assert over(world, stored(tmp_path / "tier", two)) == facts(in_one_process(two))


def test_a_holder_that_dies_is_replaced_by_the_tier(world: World, two: ChapterFolder, tmp_path: Path) -> None:
    tier = stored(tmp_path / "tier", two)
    holder = world.hold(two)
    assert over(world, tier) == facts(in_one_process(two))
    assert holder.service.calls > 0
    read_before = holder.service.calls
    holder.kill()
    assert over(world, tier) == facts(in_one_process(two))
    assert holder.service.calls == read_before


def test_a_half_uploaded_chapter_is_invisible_and_cleaned(two: ChapterFolder, tmp_path: Path) -> None:
    """Whatever file the upload reached, its head comes last."""
    tier = stored(tmp_path / "tier", two)
    (first, second) = sorted((tmp_path / "tier" / "gate").iterdir())
    head_of(first).unlink()
    assert [chapter.name for chapter in tier.listing("gate")] == [f"gate/{second.name}"]
    assert tier.clean() == 0  # an upload may be under way
    old = DurableTier(str(tmp_path / "tier"), clock=lambda: os.stat(second).st_mtime + 7200)
    assert old.clean() == 1
    assert [path for path in first.glob("*") if path.is_file()] == []
    assert len(list(tier.listing("*"))) == 1


def test_an_upload_that_fails_anywhere_leaves_no_chapter(
    two: ChapterFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import obstore

    put = obstore.put
    (facts, *_) = two.chapters()
    for calls in range(len(list(facts.path.glob("*.bin")))):
        left = [calls]

        def fails(*words: object, left: list[int] = left) -> object:
            left[0] -= 1
            if left[0] < 0:
                raise OSError("the network is away")
            return put(*words)  # type: ignore[arg-type]

        tier = DurableTier(str(tmp_path / f"tier-{calls}"))
        monkeypatch.setattr("obstore.put", fails)
        with pytest.raises(HistoryError, match="could not be stored: the network is away"):
            tier.upload(facts)
        monkeypatch.setattr("obstore.put", put)
        assert list(tier.listing("*")) == []
        tier.upload(facts)
        assert [chapter.name for chapter in tier.listing("*")] == [facts.name]


def test_a_head_is_read_once_and_the_prefix_of_all_chapters_once(
    world: World, two: ChapterFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stored(tmp_path / "tier", two)
    read: list[str] = []
    for name in ("get", "get_ranges"):
        real = getattr(obstore, name)

        def noted(store: object, path: str, real: Any = real, **more: object) -> object:
            read.append(path.rpartition("/")[2])
            return real(store, path, **more)

        monkeypatch.setattr(obstore, name, noted)
    tier = DurableTier(str(tmp_path / "tier"))
    for _ in range(2):
        assert over(world, tier) == facts(in_one_process(two))
    assert sum(name.startswith("head") for name in read) == 2
    read.clear()
    asking = Asker(
        engine(), world.sources(directory=False, durable=tier), model_digest="m1", retrieval=LITTLE
    )
    for seconds in (0, 1):
        asking.ask("gate", replace(QUESTION, since_us=two.chapters()[0].begin_us + seconds * 1_000_000))
    assert read.count("prefix.bin") == 1


def test_damage_in_the_tier_answers_nothing(world: World, two: ChapterFolder, tmp_path: Path) -> None:
    tier = stored(tmp_path / "tier", two)
    for path in (tmp_path / "tier").rglob("slabs-*.bin"):
        path.write_bytes(bytes(b ^ 1 for b in path.read_bytes()))
    with pytest.raises(HistoryError, match="neither a holder nor the durable tier has it"):
        over(world, tier)
    for path in (tmp_path / "tier").rglob("head-*"):
        path.write_bytes(b"no head")
    assert list(DurableTier(tier.url).listing("gate")) == []


def test_a_new_version_replaces_the_old_one(two: ChapterFolder, tmp_path: Path) -> None:
    shutil.copytree(two.root, tmp_path / "own")
    chapters = folder(tmp_path / "own")
    tier = DurableTier(str(tmp_path / "tier"))
    uploader = Uploader(tier, chapters)
    uploader.round()
    (facts, *_) = chapters.chapters()
    chapters.erase("gate", facts.begin_us, facts.begin_us + 1_500_000)
    uploader.round()
    erased = {chapter.name: chapter for chapter in tier.listing("gate")}[facts.name]
    assert not erased.head.present[:2].any()
    files = {path.name for path in facts.path.glob("*.bin")}
    assert {path.name for path in (tmp_path / "tier" / "gate" / facts.path.name).iterdir()} == files


def test_the_tier_forgets_as_the_rules_say(two: ChapterFolder, tmp_path: Path) -> None:
    stored(tmp_path / "tier", two)
    ends = [facts.end_us for facts in two.chapters()]
    now = ends[0] / 1e6 + 10.5
    tier = DurableTier(str(tmp_path / "tier"), clock=lambda: now)
    assert tier.expire(["gate"], Keep(seconds=10.0)) == 1
    assert tier.expire(["gate", "yard"], Keep(bytes=1 << 40)) == 0
    assert tier.expire(["gate"], Keep(bytes=1)) == 1
    assert list(tier.listing("*")) == []


def test_a_camera_whose_id_has_a_star_stands_for_itself(two: ChapterFolder, tmp_path: Path) -> None:
    """The chapters of all others were erased, and forgotten, with those of a camera that is called `*`."""
    tier = stored(tmp_path / "tier", two)
    for camera in ("*", "g*"):
        assert tier.erase(camera, 0, 1 << 61) == 0
        assert tier.expire([camera], Keep(bytes=1)) == 0
    assert len(list(tier.listing("*"))) == 2


def test_an_erasure_waits_for_an_upload_that_has_begun(
    two: ChapterFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The upload went on with bytes that it had read before, and left them in the tier."""
    shutil.copytree(two.root, tmp_path / "own")
    chapters = folder(tmp_path / "own")
    uploader = Uploader(DurableTier(str(tmp_path / "tier")), chapters)
    eraser = Thread(target=lambda: (chapters.erase("gate"), uploader.erase("gate", 0, 1 << 61)))
    put = obstore.put

    def slow(*words: Any, **more: Any) -> Any:
        monkeypatch.setattr(obstore, "put", put)
        eraser.start()
        eraser.join(1.0)  # as far as it comes
        return put(*words, **more)

    monkeypatch.setattr(obstore, "put", slow)
    uploader.round()
    eraser.join()
    assert [path for path in (tmp_path / "tier").rglob("*") if path.is_file()] == []


@pytest.mark.parametrize("data", [b"", b"no head", b"LKM2" + bytes(90)])
def test_a_head_that_cannot_be_read_is_left_out_and_erased_whole(
    two: ChapterFolder, tmp_path: Path, data: bytes
) -> None:
    """Its erasure waited for ever for an upload; some ended the thread that uploads."""
    tier = stored(tmp_path / "tier", two)
    path = min((tmp_path / "tier").rglob("head-*"))
    path.write_bytes(data)
    tier = DurableTier(tier.url)
    assert len(list(tier.listing("*"))) == 1
    tier.erase("gate", 0, 1)
    assert not path.parent.exists() or list(path.parent.iterdir()) == []
    assert len(list(tier.listing("*"))) == 1


def test_what_is_known_of_uploads_does_not_grow(two: ChapterFolder, tmp_path: Path) -> None:
    shutil.copytree(two.root, tmp_path / "own")
    chapters = folder(tmp_path / "own")
    uploader = Uploader(DurableTier(str(tmp_path / "tier")), chapters)
    uploader.round()
    chapters.erase("gate")
    fill(chapters, range(2), "yard")
    chapters.seal("yard")
    uploader.round()
    assert set(uploader._stored or ()) == {facts.name for facts in chapters.chapters()}


def test_what_the_pod_dropped_stays_in_the_tier(two: ChapterFolder, tmp_path: Path) -> None:
    shutil.copytree(two.root, tmp_path / "own")
    tier = stored(tmp_path / "tier", two)
    assert not folder(tmp_path / "own", ChapterRules(Keep(seconds=1e12), disk_bytes=0)).chapters()
    assert len(list(tier.listing("gate"))) == 2


@pytest.mark.parametrize("camera", ["..", "a/b", "tür 1", "ü" * 100])
def test_any_camera_s_id_can_be_stored(tmp_path: Path, camera: str) -> None:
    chapters = folder(tmp_path / "own")
    fill(chapters, range(2), camera)
    chapters.seal(camera)
    tier = stored(tmp_path / "tier", chapters)
    assert [chapter.head.about["camera"] for chapter in tier.listing(camera)] == [camera]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["own", "tier"]


def test_an_address_that_cannot_be_used_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for url in ("nonsense://x", str(tmp_path / "file" / "below")):
        with pytest.raises(HistoryError, match="the durable tier cannot be opened"):
            DurableTier(url)


def about(**facts: object) -> Callable[[Head], Head]:
    return lambda head: replace(head, about={**head.about, **facts})


HOSTILE: dict[str, Callable[[Head], Head]] = {
    "a number for a camera": about(camera=5),
    "half a surrogate pair": about(camera="\ud800"),
    "chapter of another camera": about(chapter="yard/1-000000-aaaaaaaa"),
    "another chapter's name": about(chapter="gate/1-000000-aaaaaaaa"),
    "no epoch": about(epoch=None),
    "a clock without end": about(origin_us=float("inf")),
    "another version": lambda head: replace(head, version=head.version + 1),
    "a path for a version": lambda head: replace(head, version=cast(int, "../../x")),
    "files elsewhere": lambda head: replace(head, slabs="../../x", catalogue="../../y", version=1 << 60),
    "no frames": lambda head: replace(head, times_us=head.times_us[:0], present=head.present[:0]),
    "too few layers": lambda head: replace(head, scenes=head.scenes[:1]),
}


@pytest.mark.parametrize("what", HOSTILE)
def test_a_hostile_head_costs_its_own_chapter_only(
    world: World, two: ChapterFolder, tmp_path: Path, what: str
) -> None:
    tier = stored(tmp_path / "tier", two)
    own = min((tmp_path / "tier" / "gate").glob("*/head-*"))
    for camera in ("yard", "gate"):  # one that has nothing else, and one with intact chapters
        place = tmp_path / "tier" / camera / "1-000000-bbbbbbbb"
        shutil.copytree(own.parent, place)
        (place / own.name).write_bytes(HOSTILE[what](read_head(own.parent)).packed())
    assert over(world, tier) == facts(in_one_process(two))
    assert {chapter.head.about["camera"] for chapter in tier.listing("*")} == {"gate"}
    uploader = Uploader(tier, two)
    uploader.round()
    assert (uploader.uploaded, uploader.failed) == (0, 0)
    assert tier.erase("gate", 0, 1 << 52) > 0
    assert not [path for path in (tmp_path / "tier" / "gate").rglob("*") if path.is_file()]
