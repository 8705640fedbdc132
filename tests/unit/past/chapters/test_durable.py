"""The durable tier: whole chapters or none, read by ranges, kept for as long as the rules say."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from threading import Thread
from typing import Any

import obstore
import pytest

from lookout.past.chapters.durable import LEAN, MANIFEST, DurableTier, Uploader
from lookout.past.memory import HistoryError, Keep
from lookout.past.memory.chapters import ChapterFolder, ChapterRules
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
    """Whatever file the upload reached, its manifest comes last."""
    tier = stored(tmp_path / "tier", two)
    (first, second) = sorted((tmp_path / "tier" / "gate").iterdir())
    (first / MANIFEST).unlink()
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
    files = len(list(facts.path.glob("*.bin"))) + 1  # and the head without its prefix
    for calls in range(files):
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


def test_heads_of_one_prefix_bring_it_once(
    world: World, two: ChapterFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import obstore

    stored(tmp_path / "tier", two)
    read: list[str] = []
    get = obstore.get

    def noted(store: object, path: str) -> object:
        read.append(path.rpartition("/")[2])
        return get(store, path)  # type: ignore[arg-type]

    monkeypatch.setattr("obstore.get", noted)
    tier = DurableTier(str(tmp_path / "tier"))
    assert over(world, tier) == facts(in_one_process(two))
    assert [name.split("-")[0] for name in read if name != MANIFEST] == ["head", "lean"]
    one, other = tier.listing("gate")
    assert one.head.prefix is other.head.prefix

    # A head that an earlier release stored is read as before; a damaged one costs its chapter alone.
    for path in (tmp_path / "tier").rglob(LEAN):
        path.unlink()
    assert len(list(DurableTier(str(tmp_path / "tier")).listing("gate"))) == 1
    for path in (tmp_path / "tier").rglob(MANIFEST):
        manifest = json.loads(path.read_text())
        del manifest["prefix"], manifest["files"][LEAN]
        path.write_text(json.dumps(manifest))
    assert over(world, DurableTier(str(tmp_path / "tier"))) == facts(in_one_process(two))


def test_damage_in_the_tier_answers_nothing(world: World, two: ChapterFolder, tmp_path: Path) -> None:
    tier = stored(tmp_path / "tier", two)
    for path in (tmp_path / "tier").rglob("slabs-*.bin"):
        path.write_bytes(bytes(b ^ 1 for b in path.read_bytes()))
    with pytest.raises(HistoryError, match="no holder has it, nor the durable tier"):
        over(world, tier)
    for path in (tmp_path / "tier").rglob(MANIFEST):
        path.write_text(json.dumps({"format": 1}))
    assert list(tier.listing("gate")) == []


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
    heads = list((tmp_path / "tier" / "gate" / facts.path.name).glob("head-*"))
    assert len(heads) == 1


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


@pytest.mark.parametrize("change", [{"camera": 5}, {"files": ["head"], "head": "head"}, {"begin_us": None}])
def test_a_manifest_of_another_form_is_left_out_and_erased_whole(
    two: ChapterFolder, tmp_path: Path, change: dict[str, Any]
) -> None:
    """Its erasure waited for ever for an upload; some ended the thread that uploads."""
    tier = stored(tmp_path / "tier", two)
    path = min((tmp_path / "tier").rglob(MANIFEST))
    path.write_text(json.dumps({**json.loads(path.read_text()), **change}))
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


HOSTILE: dict[str, dict[str, Any]] = {
    "version without end": {"version": float("inf")},
    "half a surrogate pair": {"camera": "\ud800"},
    "head elsewhere": {"head": "../../x"},
    "files elsewhere": {"files": {"../../x": {"bytes": 1, "checksum": "00"}}, "head": "../../x"},
    "name of another camera": {"name": "yard/1-000000-aaaaaaaa"},
    "another chapter's name": {"name": "gate/1-000000-aaaaaaaa"},
    "times of another kind": {"begin_us": "now", "end_us": None},
    "negative": {"bytes": -1},
    "boolean": {"version": True},
}


@pytest.mark.parametrize("what", [*HOSTILE, "list", "nested", "empty"])
def test_a_hostile_manifest_costs_its_own_chapter_only(
    world: World, two: ChapterFolder, tmp_path: Path, what: str
) -> None:
    tier = stored(tmp_path / "tier", two)
    own = sorted((tmp_path / "tier" / "gate").glob(f"*/{MANIFEST}"))[0]
    for camera in ("yard", "gate"):  # a manifest of a camera that nobody has, and one beside honest ones
        place = tmp_path / "tier" / camera / "1-000000-bbbbbbbb"
        shutil.copytree(own.parent, place)
        if what in HOSTILE:
            fields = {**json.loads(own.read_text()), **HOSTILE[what]}
            (place / MANIFEST).write_text(json.dumps(fields).replace("Infinity", "1e999"))
        else:
            raw = {"list": b"[1]", "nested": b"[" * 100_000, "empty": b""}[what]
            (place / MANIFEST).write_bytes(raw)
    assert over(world, tier) == facts(in_one_process(two))
    assert {manifest["camera"] for manifest in tier.manifests()} == {"gate"}
    uploader = Uploader(tier, two)
    uploader.round()
    assert (uploader.uploaded, uploader.failed) == (0, 0)
    assert tier.erase("gate", 0, 1 << 52) > 0
    assert not [path for path in (tmp_path / "tier" / "gate").rglob("*") if path.is_file()]


def test_a_head_with_a_right_checksum_that_is_another_chapters_is_left_out(
    world: World, two: ChapterFolder, tmp_path: Path
) -> None:
    tier = stored(tmp_path / "tier", two)
    first, second = sorted((tmp_path / "tier" / "gate").glob(f"*/{MANIFEST}"))
    other, own = json.loads(second.read_text()), json.loads(first.read_text())
    (first.parent / other["head"]).write_bytes((second.parent / other["head"]).read_bytes())
    (first.parent / LEAN).write_bytes((second.parent / LEAN).read_bytes())
    own["head"], own["files"] = other["head"], {**own["files"], **other["files"]}
    first.write_text(json.dumps(own))
    assert [chapter.name for chapter in DurableTier(tier.url).listing("gate")] == [other["name"]]
