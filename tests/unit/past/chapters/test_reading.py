"""Answers over the wire equal those in one process, to the bit, whoever holds the chapters and dies."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from queue import SimpleQueue
from threading import Event, Thread
from typing import Any

import grpc
import pytest

from lookout.local import RedisServer
from lookout.models.engines.transformers.memory import ask
from lookout.past.chapters import MemoryLimits, reading, service
from lookout.past.chapters.announcing import scenes_key
from lookout.past.chapters.directory_keys import chapters_key
from lookout.past.chapters.reading import Holders
from lookout.past.chapters.service import is_meant, split_calls
from lookout.past.erasures import Fence
from lookout.past.memory import Chapter, HistoryError, Past, RangeCache
from lookout.past.memory.catalogue import ByteRange, Head
from lookout.past.memory.chapters import ChapterFolder
from lookout.past.memory.past import ChapterRange, fetch_from
from lookout.past.memory.ranking import landmarks_of
from lookout.services.recall.asking import Asked, Asker, NothingRememberedError, PastQuestion
from lookout.v1 import memory_pb2_grpc
from lookout.v1.erasures_pb2 import Erasure
from lookout.v1.memory_pb2 import ReadSlabsRequest, ReadSlabsResponse
from tests.chapters_world import (
    LITTLE,
    QUESTION,
    Holder,
    PartOfFolder,
    World,
    engine,
    facts,
    fill,
    folder,
    in_one_process,
    played,
)

TEXT = QUESTION.text


@pytest.fixture(scope="module")
def redis_server() -> Iterator[RedisServer]:
    with RedisServer() as server:
        yield server


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ChapterFolder]:
    """Two sealed chapters of an epoch and one of the next that grows."""
    chapters = folder(tmp_path_factory.mktemp("three"))
    fill(chapters, range(7))
    chapters.seal("gate")
    fill(chapters, range(7, 13), seed=4)
    chapters.seal("gate")
    fill(chapters, range(6), epoch=2, seed=5)
    yield chapters
    chapters.close()


@pytest.fixture
def world(tmp_path: Path, redis_server: RedisServer) -> Iterator[World]:
    redis_server.start()
    with ExitStack() as stack:
        made = World(tmp_path, redis_server.url, stack)
        made.client().flushall()
        yield made


def asker(world: World, *, foresee: bool = True, **more: object) -> Asker:
    return Asker(engine(), world.sources(**more), model_digest="m1", retrieval=LITTLE, foresee=foresee)  # type: ignore[arg-type]


def split(world: World, three: ChapterFolder, where: Sequence[int]) -> list[Holder]:
    """The sealed chapters over holders; the one that grows stays where it is."""
    names = [chapter.name for chapter in three.chapters() if chapter.sealed]
    holders = []
    for number in sorted(set(where)):
        own = [name for name, home in zip(names, where, strict=True) if home == number]
        holders.append(world.hold(world.copies(three, own)))
    return [*holders, growing(world, three)]


def growing(world: World, three: ChapterFolder) -> Holder:
    """A holder of the chapter that grows alone."""
    return world.hold(
        PartOfFolder(three, [chapter.name for chapter in three.chapters() if not chapter.sealed])
    )


@pytest.mark.slow
@pytest.mark.parametrize("where", list(itertools.product((0, 1), repeat=2)))
@pytest.mark.parametrize("foresee", [pytest.param(False, marks=pytest.mark.long), True])
def test_every_split_over_holders_answers_alike(
    world: World, three: ChapterFolder, where: Sequence[int], foresee: bool
) -> None:
    split(world, three, where)
    asked = asker(world, foresee=foresee).ask("gate", QUESTION)
    assert facts(asked.answer) == facts(in_one_process(three))
    assert (len(asked.chapters), asked.missing, asked.tries) == (3, (), 1)


@pytest.mark.slow
def test_a_holder_that_came_back_is_asked_at_once(world: World, three: ChapterFolder) -> None:
    holder = world.hold(three)
    reader = Holders(read_s=10.0, list_s=10.0)
    world.stack.callback(reader.close)
    holder.kill()
    for _ in range(6):  # gRPC's pause before the next connection grows with every failure
        with pytest.raises(HistoryError, match="UNAVAILABLE"):
            reader.listing(holder.address, "gate", None, None)
    world.hold(three, address=holder.address)
    assert len(reader.listing(holder.address, "gate", None, None)) == 3


def test_a_message_holds_many_ranges(
    world: World, three: ChapterFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    facts = three.chapters("gate")[0]
    chapter, files = three.read(facts.name)
    small = ByteRange(chapter.head.catalogue, 0, 16)
    places = [part for place, _ in chapter.head.scenes for part in (small, small, place)]
    expected = files.read(places)
    longest = max(map(len, expected))
    for limit in ("CHUNK_BYTES", "BATCH_BYTES"):  # some ranges are longer than a message
        monkeypatch.setattr(service, limit, longest - 1)
    holder = world.hold(three)
    request = ReadSlabsRequest()
    part = request.chapters.add(name=facts.name, version=facts.version)
    for place in places:
        part.ranges.add(file=place.file, offset=place.offset, length=place.length)
    with grpc.insecure_channel(holder.address) as channel:
        stub = memory_pb2_grpc.MemoryServiceStub(channel)  # type: ignore[no-untyped-call]
        kinds = {message.WhichOneof("part") for message in stub.ReadSlabs(request)}
        assert kinds == {"batch", "header", "chunk"}
        with pytest.raises(grpc.RpcError, match=r"INVALID_ARGUMENT.*do not fit in one message"):
            stub.ReadBatch(request)
    reader = Holders()
    world.stack.callback(reader.close)
    assert reader.read(holder.address, [(chapter, place) for place in places]) == expected


def test_the_prefix_of_all_chapters_comes_once(three: ChapterFolder) -> None:
    reading = [three.read(facts.name) for facts in three.chapters()]
    fetch, asked = fetch_from({chapter.name: files for chapter, files in reading}), list[str]()

    def noted(requests: Sequence[ChapterRange]) -> list[bytes]:
        asked.extend(place.file for _, place in requests)
        return fetch(requests)

    cache = RangeCache(noted, 1 << 30)
    pasts = [Past([chapter], cache, LITTLE) for chapter, _ in reading]
    assert asked.count("prefix.bin") == 1
    assert all(past.prefix is pasts[0].prefix for past in pasts)


@pytest.mark.slow
@pytest.mark.parametrize("state", ["whole", "wiped", "down", "lying", "none"])
def test_redis_costs_time_and_never_an_answer(
    world: World, three: ChapterFolder, redis_server: RedisServer, state: str
) -> None:
    split(world, three, (0, 1))
    asking = asker(world, directory=state != "none")
    sources = asking._sources
    asking.ask("gate", QUESTION)  # a directory that answered once remembers the holders
    layers = len(engine().model.layers)
    if state == "whole":
        assert sources.from_redis == 2 * layers
    client = world.client()
    if state == "wiped":
        client.flushall()
    if state == "lying":
        for chapter in three.chapters():
            client.hset(scenes_key("gate", chapter.name), "0", b"x" * 640)
            client.hset(chapters_key("gate"), chapter.name, b'{"pod": 7}')
    if state == "down":
        redis_server.stop()
    again = Asker(engine(), sources, model_digest="m1", retrieval=LITTLE)
    asked = again.ask("gate", QUESTION)
    assert facts(asked.answer) == facts(in_one_process(three))
    assert asked.missing == ()


@pytest.mark.slow
def test_a_full_redis_leaves_scenes_out(tmp_path: Path, three: ChapterFolder) -> None:
    with RedisServer(max_memory_mb=3) as server, ExitStack() as stack:
        server.start()
        world = World(tmp_path, server.url, stack)
        client = world.client()
        for number in range(400):
            client.set(f"other:{number}", bytes(8000))  # without an expiry: nothing of it gives way
            if client.info("memory")["used_memory"] > 2_900_000:
                break
        holders = split(world, three, (0, 0))
        # Leases need Redis too: holders are found by their configured addresses.
        asked = asker(world, replicas=[holder.address for holder in holders]).ask("gate", QUESTION)
        assert facts(asked.answer) == facts(in_one_process(three))


def test_a_camera_s_budget_keeps_the_newest_scenes(world: World, three: ChapterFolder) -> None:
    sealed = [chapter for chapter in three.chapters() if chapter.sealed]
    sizes = [sum(place.length for place, _ in three.read(chapter.name)[0].head.scenes) for chapter in sealed]
    landmarks = [landmarks_of(*three.read(chapter.name)).packed() for chapter in three.chapters()]
    world.hold(three, camera_bytes=sum(map(len, landmarks)) + sizes[1])
    client = world.client()
    assert not client.exists(scenes_key("gate", sealed[0].name))
    assert client.exists(scenes_key("gate", sealed[1].name))
    asked = asker(world).ask("gate", QUESTION)
    assert facts(asked.answer) == facts(in_one_process(three))


def test_what_is_gone_is_taken_out_of_redis(world: World, tmp_path: Path) -> None:
    chapters = folder(tmp_path / "own")
    fill(chapters, range(5))
    chapters.seal("gate")
    holder = world.hold(chapters)
    (chapter,) = chapters.chapters()
    client = world.client()
    assert client.exists(chapters_key("gate"), scenes_key("gate", chapter.name)) == 2
    chapters.erase("gate")
    assert holder.announcer is not None
    holder.announcer.announce()
    assert client.exists(chapters_key("gate"), scenes_key("gate", chapter.name)) == 0


def test_a_killed_holder_changes_covered_alone(world: World, three: ChapterFolder) -> None:
    first, *_ = split(world, three, (0, 1))
    asking = asker(world)
    whole = asking.ask("gate", QUESTION)
    first.kill()
    asked = Asker(engine(), asking._sources, model_digest="m1", retrieval=LITTLE).ask("gate", QUESTION)
    alone = [chapter for chapter in three.chapters() if chapter.name != _names(first)[0]]
    reading = [three.read(chapter.name) for chapter in alone]
    files = {chapter.name: own for chapter, own in reading}
    past = Past([chapter for chapter, _ in reading], RangeCache(fetch_from(files), 1 << 30), LITTLE)
    assert facts(asked.answer) == facts(ask(engine(), past, TEXT, describe=3))
    assert len(whole.covered) == len(asked.covered) == 2
    assert asked.covered[0][0] > whole.covered[0][0]
    assert any(first.address in text for text in asked.missing)
    assert any(_names(first)[0] in text for text in asked.missing)  # Redis still knows of it


@pytest.mark.slow
def test_a_holder_that_dies_at_any_call_is_replaced(world: World, three: ChapterFolder) -> None:
    """Two holders have everything sealed; one of them stops after each number of calls in turn."""
    names = [chapter.name for chapter in three.chapters() if chapter.sealed]
    dying = world.hold(world.copies(three, names))
    world.hold(world.copies(three, names))
    growing(world, three)
    expected = facts(in_one_process(three))
    sources = world.sources(directory=False)
    read = sources._holders.read
    for calls in range(12):
        left = [calls]

        def dies(address: str, requests: Sequence[ChapterRange], left: list[int] = left) -> list[bytes]:
            if address == dying.address:
                left[0] -= 1
                if left[0] < 0:
                    raise HistoryError(f"{address}: killed")
            return read(address, requests)

        sources._holders.read = dies  # type: ignore[method-assign]
        asked = Asker(engine(), sources, model_digest="m1", retrieval=LITTLE).ask("gate", QUESTION)
        assert facts(asked.answer) == expected, calls
        assert asked.missing == ()


def test_a_chapter_that_nobody_else_has_is_left_out_on_the_way(world: World, three: ChapterFolder) -> None:
    first, *_ = split(world, three, (0, 1))
    sources = world.sources(directory=False)
    read = sources._holders.read

    def dies(address: str, requests: Sequence[ChapterRange]) -> list[bytes]:
        if address == first.address and any(place.file.startswith("slabs") for _, place in requests):
            raise HistoryError(f"{address}: killed")
        return read(address, requests)

    sources._holders.read = dies  # type: ignore[method-assign]
    asked: Asked = Asker(engine(), sources, model_digest="m1", retrieval=LITTLE).ask("gate", QUESTION)
    assert len(asked.chapters) == 2
    assert asked.tries > 1
    assert any("neither a holder nor the durable tier has it" in text for text in asked.missing)


def test_a_holder_that_lies_is_no_source(world: World, three: ChapterFolder) -> None:
    names = [chapter.name for chapter in three.chapters() if chapter.sealed]
    lying = world.copies(three, names)
    for path in lying.root.rglob("*.bin"):
        if path.name.startswith(("slabs", "catalogue")):
            path.write_bytes(bytes(b ^ 1 for b in path.read_bytes()))
    world.hold(lying)
    world.hold(world.copies(three, names))
    growing(world, three)
    asked = asker(world).ask("gate", QUESTION)
    assert facts(asked.answer) == facts(in_one_process(three))


def without_epoch(head: Head) -> Head:
    return replace(head, about={name: value for name, value in head.about.items() if name != "epoch"})


def with_short_present(head: Head) -> Head:
    return replace(head, present=head.present[:-1])


def with_more_scenes(head: Head) -> Head:
    return replace(head, scenes=tuple((place, count + 7) for place, count in head.scenes))


@pytest.mark.parametrize("lie", [without_epoch, with_short_present, with_more_scenes])
def test_a_head_that_is_made_up_costs_its_chapters_alone(
    world: World, three: ChapterFolder, lie: Callable[[Head], Head]
) -> None:
    names = [chapter.name for chapter in three.chapters() if chapter.sealed]

    class Lying(PartOfFolder):
        def read(self, name: str) -> Any:
            chapter, files = super().read(name)
            return replace(chapter, head=lie(chapter.head)), files

    world.hold(Lying(three, names[:1]))
    world.hold(world.copies(three, names[1:]))
    growing(world, three)
    asked = asker(world).ask("gate", QUESTION)
    assert [chapter.name for chapter in asked.chapters] == [c.name for c in three.chapters()][1:]
    assert asked.missing


def test_many_chapters_come_in_pages_of_whole_cameras(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One call for all would outlast any time limit."""
    chapters = folder(tmp_path / "many")
    for camera, parts in (("a", 1), ("b", 3), ("c", 1), ("d", 1)):
        for part in range(parts):
            fill(chapters, range(part * 3, part * 3 + 3), camera)
            chapters.seal(camera)
    holder = world.hold(chapters)
    reader = Holders(read_s=10.0, list_s=10.0)
    world.stack.callback(reader.close)
    names = [chapter.name for chapter in chapters.chapters()]
    calls: list[str] = []
    page = reader._page

    def counted(*words: Any) -> list[Chapter]:
        calls.append(words[-1])
        return page(*words)

    monkeypatch.setattr(reader, "_page", counted)
    for size, afters in ((2, ["", "b", "d"]), (3, ["", "b"]), (100, [""])):
        monkeypatch.setattr(reading, "PAGE", size)
        calls.clear()
        assert [chapter.name for chapter in reader.listing(holder.address, "*", None, None)] == names
        assert calls == afters
    # One that sends everything in every page does not keep the reader busy for ever.
    everything = reader.listing(holder.address, "*", None, None)
    monkeypatch.setattr(reading, "PAGE", 2)
    monkeypatch.setattr(reader, "_page", lambda *_: everything)
    assert [chapter.name for chapter in reader.listing(holder.address, "*", None, None)] == names
    chapters.close()


def test_a_holder_that_never_ends_an_answer_is_cut_off(
    world: World, three: ChapterFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    def endless(*_: object) -> Iterator[ReadSlabsResponse]:
        while True:
            yield ReadSlabsResponse(chunk=bytes(1 << 16))

    monkeypatch.setattr(service.MemoryService, "ReadSlabs", endless)
    monkeypatch.setattr(service, "BATCH_BYTES", 1)
    holder = world.hold(three)
    reader = Holders(read_s=60.0, list_s=10.0)
    world.stack.callback(reader.close)
    (chapter, *_) = reader.listing(holder.address, "gate", None, None)
    with pytest.raises(HistoryError, match="more bytes than were requested"):
        reader.read(holder.address, [(chapter, chapter.head.scenes[0][0])])


def test_what_is_erased_while_a_question_waits_is_not_read(world: World, three: ChapterFolder) -> None:
    world.hold(three)
    asking = asker(world)
    first, *others = three.chapters()
    erasure = Erasure(id="e-1", camera="gate", begin_us=first.begin_us, end_us=first.begin_us + 1)
    find, asked = asking.find, SimpleQueue[Asked]()
    waits = Event()

    def finds(*words: Any) -> Any:
        resolved = find(*words)
        waits.set()
        return resolved

    asking.find = finds  # type: ignore[method-assign]
    with asking._turn:
        thread = Thread(target=lambda: asked.put(asking.ask("gate", QUESTION)))
        thread.start()
        waits.wait(30)
        asking._fence = Fence([erasure])
    answer = asked.get(timeout=60)
    thread.join()
    assert [chapter.name for chapter in answer.chapters] == [chapter.name for chapter in others]
    assert any("e-1 has not been carried out" in text for text in answer.missing)


def test_what_was_on_its_way_when_a_camera_was_erased_is_not_kept(three: ChapterFolder) -> None:
    chapter, files = three.read(three.chapters()[0].name)
    place, _ = chapter.head.scenes[0]

    def fetch(requests: Sequence[ChapterRange]) -> list[bytes]:
        cache.forget_camera("gate")
        return files.read([place for _, place in requests])

    cache = RangeCache(fetch, 1 << 20)
    assert cache.get([(chapter, place)]) == files.read([place])
    assert cache.bytes == 0


@pytest.mark.slow
def test_a_growing_chapter_may_grow_while_it_is_asked(world: World, tmp_path: Path) -> None:
    chapters = folder(tmp_path / "own")
    fill(chapters, range(7))
    world.hold(chapters)
    expected = facts(in_one_process(chapters))
    sources = world.sources()
    read, later = sources._holders.read, played(range(7, 9), seed=2)

    def grows(address: str, requests: Sequence[ChapterRange]) -> list[bytes]:
        if later:
            chapters.add(later.pop(0))
        return read(address, requests)

    sources._holders.read = grows  # type: ignore[method-assign]
    asked = Asker(engine(), sources, model_digest="m1", retrieval=LITTLE).ask("gate", QUESTION)
    assert facts(asked.answer) == expected
    assert not later
    chapters.close()


def test_chapters_of_another_model_are_named(world: World, three: ChapterFolder) -> None:
    world.hold(three)
    asking = Asker(engine(), world.sources(), model_digest="m2", retrieval=LITTLE)
    with pytest.raises(NothingRememberedError, match="computed by another model, m1"):
        asking.ask("gate", QUESTION)


def test_a_time_without_a_frame_is_an_error(world: World, three: ChapterFolder) -> None:
    world.hold(three)
    with pytest.raises(NothingRememberedError, match="camera gate: nothing is remembered"):
        asker(world).ask("gate", PastQuestion(TEXT, since_us=1, until_us=2))
    with pytest.raises(NothingRememberedError, match="camera yard"):
        asker(world).ask("yard", QUESTION)


def test_a_call_has_limits(world: World, three: ChapterFolder) -> None:
    holder = world.hold(three, limits=MemoryLimits(ranges=2, call_bytes=100))
    sources = world.sources()
    (chapter, *_) = three.chapters()
    head = three.read(chapter.name)[0]
    places = [(head, place) for place, _ in head.head.scenes]
    with pytest.raises(HistoryError, match="exceed the limit of a call"):
        sources._holders.read(holder.address, places)
    with pytest.raises(HistoryError, match="is not a file of"):
        sources._holders.read(holder.address, [(head, ByteRange("../meta.bin", 0, 10))])
    with pytest.raises(HistoryError, match="is not a file of"):
        sources._holders.read(holder.address, [(head, ByteRange("meta\0.bin", 0, 10))])
    assert split_calls([60, 60, 10, 10, 10], MemoryLimits(ranges=2, call_bytes=100)) == [
        slice(0, 1),
        slice(1, 3),
        slice(3, 5),
    ]
    assert split_calls([], MemoryLimits()) == []


def test_patterns_name_cameras() -> None:
    assert is_meant("yard-1", "yard-*")
    assert not is_meant("gate", "yard-*")
    assert is_meant("a[1]", "a[1]")
    assert is_meant("a[1]b", "a[1]*")
    assert not is_meant("a1b", "a[1]*")


def _names(holder: Holder) -> list[str]:
    return [chapter.name for chapter in holder.folder.chapters()]


def test_reads_give_way_to_what_comes_first(world: World, three: ChapterFolder) -> None:
    """Every chapter that is listed and every message of ranges waits until the holder has time."""
    waits, free = SimpleQueue[bool](), Event()

    def give_way() -> None:
        waits.put(free.is_set())
        assert free.wait(120)

    holder = world.hold(three, give_way=give_way)
    answers: list[Asked] = []
    thread = Thread(target=lambda: answers.append(asker(world).ask("gate", QUESTION)))
    thread.start()
    assert not waits.get(timeout=120)
    assert waits.empty()  # nothing is read meanwhile
    free.set()
    thread.join()
    assert facts(answers[0].answer) == facts(in_one_process(three))
    assert waits.qsize() + 1 >= len(three.chapters()) + holder.service.calls
