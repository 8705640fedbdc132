"""A range is erased from chapters, the durable tier, Redis and tensors; killed at any step it continues."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lookout.local import RedisServer
from lookout.past.chapters import ChapterAnnouncer
from lookout.past.chapters.announcing import scenes_key
from lookout.past.chapters.directory_keys import chapters_key
from lookout.past.chapters.durable import DurableTier, Uploader
from lookout.past.chapters.landmarks import CAMERAS
from lookout.past.erasures import Eraser, Step, new_erasure, read_log
from lookout.past.memory import HistoryError
from lookout.past.memory.chapters import ChapterFolder
from lookout.runtime.store import StoreSettings, TensorStore
from lookout.services.prefill.remembering import Captures, ChapterLanes
from lookout.services.recall.asking import Asker, NothingRememberedError, PastQuestion
from lookout.v1.erasures_pb2 import Erasure
from lookout.v1.lineage_pb2 import STAGE_FRAMES, TensorRef
from lookout.wire import to_json
from tests.chapters_world import World, engine, fill, folder, holding, played, rows_of

QUESTION = PastQuestion("Is anyone lying?", words=3, frames=5)


class Killed(BaseException):
    """Stands for the end of the process."""


class Topic:
    """A compacted topic in memory."""

    def __init__(self) -> None:
        self.rows: list[tuple[str, bytes | None]] = []

    def publish(self, key: str, value: bytes | None) -> None:
        self.rows.append((key, value))

    def read(self) -> Any:
        return read_log(self.rows)


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two sealed chapters of five blocks."""
    root = tmp_path_factory.mktemp("source")
    chapters = folder(root)
    for number in range(2):
        fill(chapters, range(number * 5, number * 5 + 5), seed=number)
        chapters.seal("gate")
    chapters.close()
    return root


@pytest.fixture
def world(tmp_path: Path, redis_server: RedisServer) -> Iterator[World]:
    with ExitStack() as stack:
        made = World(tmp_path, redis_server.url, stack)
        made.client().flushall()
        yield made


class Holder:
    """What a prefill process has of a camera, opened again after every kill."""

    def __init__(self, world: World, root: Path, tensors: TensorStore | None = None) -> None:
        self.chapters = folder(root / "memory")
        self.uploader = Uploader(DurableTier(str(root / "tier")), self.chapters)
        self.announcer = ChapterAnnouncer(world.directory(), world.client(), self.chapters, "prefill-0")
        self.tensors = tensors or TensorStore(StoreSettings(spool=root / "spool", memory_bytes=1))

    def steps(self) -> dict[str, Step]:
        def span(request: Erasure) -> tuple[str, int, int]:
            return request.camera, request.begin_us, request.end_us

        return {
            "chapters": lambda request: self.chapters.erase(*span(request)),
            "durable tier": lambda request: self.uploader.erase(*span(request)),
            "directory": lambda request: self.announcer.erase(request.camera),
            "tensors": lambda request: self.tensors.forget_camera(request.camera),
        }


def uploaded(tmp_path: Path, source: Path) -> tuple[ChapterFolder, DurableTier]:
    """A holder's chapters, and the tier that has all that are sealed."""
    shutil.copytree(source, tmp_path / "memory")
    whole = folder(tmp_path / "memory")
    tier = DurableTier(str(tmp_path / "tier"))
    Uploader(tier, whole).round()
    return whole, tier


def in_redis(world: World) -> bytes:
    client = world.client()
    values = [b"".join(client.hgetall(key).values()) for key in client.keys("*:scenes:*")]
    return b"".join(values)


def erasing(topic: Topic, steps: Mapping[str, Step]) -> Eraser:
    return Eraser(topic.read, topic.publish, "prefill-0", "prefill", steps, clock=lambda: 1.0)


def killed_in(step: Step, before: bool) -> Step:
    def stopped(request: Erasure) -> int:
        if not before:
            step(request)
        raise Killed

    return stopped


@pytest.mark.slow
@pytest.mark.parametrize("where", ["chapters", "durable tier", "directory", "tensors", "confirmation"])
@pytest.mark.parametrize("before", [True, False])
def test_killed_at_any_step_it_continues_and_no_byte_is_left(
    world: World, tmp_path: Path, source: Path, where: str, before: bool
) -> None:
    shutil.copytree(source, tmp_path / "memory")
    holder = Holder(world, tmp_path)
    holder.uploader.round()
    holder.announcer.announce()
    pixels = np.arange(64, dtype=np.uint8)
    ref = TensorRef(id="pixels", camera="gate", stage=STAGE_FRAMES)
    holder.tensors.put(ref, pixels)
    (first, second) = holder.chapters.chapters("gate")
    begin, end = first.begin_us + 4_000_000, second.begin_us + 1  # the end of one, the beginning of the other
    lost = rows_of(holder.chapters, begin, end)
    stays = rows_of(holder.chapters, end + 8_000_000, second.end_us + 1)
    assert holding(tmp_path, lost[:1])
    assert holding(tmp_path, [pixels.tobytes()])
    assert in_redis(world)

    topic = Topic()
    request = new_erasure("gate", begin, end, second.end_us, "me")
    topic.publish(request.id, to_json(request))
    steps = holder.steps()
    publish: Callable[[str, bytes | None], None] = topic.publish
    if where == "confirmation":

        def publish(key: str, value: bytes | None) -> None:
            if not before:
                topic.publish(key, value)
            raise Killed
    else:
        steps[where] = killed_in(steps[where], before)
    with pytest.raises(Killed):
        Eraser(topic.read, publish, "prefill-0", "prefill", steps).round()

    again = Holder(world, tmp_path)
    eraser = erasing(topic, again.steps())
    eraser.join()
    assert (eraser.failed, topic.read().open_at(request.id)) == (0, [])
    assert holding(tmp_path, lost) == []
    assert holding(tmp_path, [pixels.tobytes()]) == []
    assert all(holding(tmp_path / place, [row]) for place in ("memory", "tier") for row in stays)
    assert eraser.round() == 0  # once
    # Redis has scenes of the new versions only.
    client = world.client()
    versions = {facts.name: str(facts.version).encode() for facts in again.chapters.chapters("gate")}
    for name in client.hkeys(chapters_key("gate")):
        assert client.hget(scenes_key("gate", name.decode()), "version") == versions[name.decode()]


def test_a_whole_camera_leaves_no_file_and_no_key(world: World, tmp_path: Path, source: Path) -> None:
    shutil.copytree(source, tmp_path / "memory")
    holder = Holder(world, tmp_path)
    fill(holder.chapters, range(3), "yard", seed=5)
    holder.chapters.seal("yard")
    holder.uploader.round()
    holder.announcer.announce()
    topic = Topic()
    request = new_erasure("gate", None, None, holder.chapters.chapters("gate")[-1].end_us + 1, "me")
    topic.publish(request.id, to_json(request))
    erasing(topic, holder.steps()).join()
    assert [facts.camera for facts in holder.chapters.chapters()] == ["yard"]
    assert {path.parts[-3] for path in tmp_path.rglob("head-*.bin")} == {"yard"}
    keys = set(world.client().keys("*")) - {CAMERAS.encode()}
    assert {key.partition(b"{")[2].partition(b"}")[0] for key in keys} == {b"yard"}
    assert world.client().zrange(CAMERAS, 0, -1) == [b"yard"]


def test_a_chapter_that_only_the_tier_has_is_written_again_and_answers_as_its_holder_would(
    world: World, tmp_path: Path, source: Path
) -> None:
    whole, tier = uploaded(tmp_path, source)
    (first, second) = whole.chapters("gate")
    begin, end = first.begin_us + 4_000_000, first.begin_us + 12_000_000
    lost = rows_of(whole, begin, end)
    frames = whole.erase("gate", begin, end)
    assert frames == tier.erase("gate", begin, end) > 0
    assert tier.erase("gate", begin, end) == 0
    assert holding(tmp_path, lost) == []
    by_name = {facts.path.name: facts.path for facts in whole.chapters("gate")}
    for name, path in by_name.items():
        stored = tmp_path / "tier" / "gate" / name
        for file in path.glob("*.bin"):
            assert (stored / file.name).read_bytes() == file.read_bytes()
    assert second.version == whole.chapters("gate")[1].version  # it has nothing of the range


def test_a_half_uploaded_chapter_keeps_an_erasure_from_being_confirmed(
    world: World, tmp_path: Path, source: Path
) -> None:
    whole, tier = uploaded(tmp_path, source)
    (head,) = (tmp_path / "tier" / "gate" / whole.chapters("gate")[0].path.name).glob("head-*")
    head.unlink()
    with pytest.raises(HistoryError, match="is incomplete"):
        tier.erase("gate", 0, 1 << 61)


def test_a_step_that_fails_is_run_again_and_nothing_is_confirmed_before() -> None:
    topic = Topic()
    request = new_erasure("gate", None, None, 100, "me")
    topic.publish(request.id, to_json(request))
    fails = [True]

    def away(_request: Erasure) -> int:
        if fails[0]:
            raise HistoryError("the tier is away")
        return 3

    eraser = erasing(topic, {"tier": away})
    eraser.join()
    assert [member.instance for member in topic.read().open_at(request.id)] == ["prefill-0"]
    fails[0] = False
    assert eraser.round() == 1
    (confirmation,) = topic.read().confirmations[request.id].values()
    assert [(part.what, part.count) for part in confirmation.parts] == [("tier", 3)]


def test_a_block_of_an_erased_time_is_not_taken_in_when_it_comes_late(tmp_path: Path) -> None:
    from lookout.past.erasures import Fence

    blocks = played(range(4))
    times = [int(born.block.times_us[0]) + born.origin_us for born in blocks]
    fence = Fence([Erasure(id="e-1", camera="gate", begin_us=times[1], end_us=times[2])])
    lanes = ChapterLanes(Captures(engine(), 500_000), folder(tmp_path), fence=fence)
    for born in blocks:
        lanes.enter(born)
    assert lanes.erase("gate", times[3], times[3] + 1) > 0  # behind the blocks that wait
    lanes.close()
    (facts,) = lanes.folder.chapters("gate")
    chapter, _ = lanes.folder.read(facts.name)
    assert not chapter.holds(times[1], times[2])
    assert not chapter.holds(times[3], times[3] + 1)
    assert chapter.holds(times[0], times[1])


def test_recall_reads_no_chapter_that_still_has_an_erased_range(
    world: World, tmp_path: Path, source: Path
) -> None:
    from lookout.past.erasures import Fence

    shutil.copytree(source, tmp_path / "memory")
    chapters = folder(tmp_path / "memory")
    holder = world.hold(chapters)
    (first, second) = chapters.chapters("gate")
    request = Erasure(id="e-1", camera="gate", begin_us=first.begin_us, end_us=first.begin_us + 1)
    asker = Asker(engine(), world.sources(), model_digest="m1", fence=Fence([request]))
    asked = asker.ask("gate", QUESTION)
    assert [chapter.name for chapter in asked.chapters] == [second.name]
    assert asked.missing == (f"{first.name}: erasure e-1 has not been carried out there yet",)
    assert asker.erase("gate") > 0
    prefix = chapters.read(second.name)[0].head.prefix  # the model's, which is nobody's past
    assert asker.cache.bytes == prefix.length
    chapters.erase("gate", request.begin_us, request.end_us)
    assert asker.ask("gate", QUESTION).missing == ()
    holder.kill()
    with pytest.raises(NothingRememberedError):
        asker.ask("yard", QUESTION)
