"""Chapters of a tiny model's windows, holders that serve them, and a directory, for recall's tests."""

from __future__ import annotations

import functools
import os
import shutil
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
import torch

from lookout.models.engines import WindowRequest
from lookout.models.engines.born import born_block, prefix_of
from lookout.models.engines.transformers import TransformersEngine, load_engine
from lookout.models.engines.transformers.memory import MemoryAnswer, ask
from lookout.models.windows import Planner, WindowSettings
from lookout.past.chapters import ChapterAnnouncer, MemoryLimits, MemoryService, ScenesDirectory
from lookout.past.chapters.reading import ChapterSources, Holders
from lookout.past.memory import HistoryError, Keep, MemorySettings, Past, RangeCache, RetrievalSettings
from lookout.past.memory.chapters import Born, ChapterFolder, ChapterRules
from lookout.past.memory.past import fetch_from
from lookout.runtime.net import Connections, without_security
from lookout.runtime.store import Announcer, Directory, StoreSettings
from lookout.services.recall.asking import PastQuestion
from lookout.v1.lineage_pb2 import STAGE_CHAPTERS
from tests.changed_settings import store_settings
from tests.tiny_models import checkpoint
from tests.unit.models.engines.scenes import block

FAMILY, WINDOW = "internvl", 3
WALL_US = 1_700_000_000_000_000
SMALL = MemorySettings(
    window=WINDOW, construct=4, cluster_tokens=12, visual_frames=4, smallest=4, resident_bytes=1 << 14
)
FOREVER = ChapterRules(Keep(seconds=1e12))
LITTLE = RetrievalSettings(frames=5, span=4)
QUESTION = PastQuestion("Is anyone lying?", words=3, frames=5)


@functools.cache
def engine() -> TransformersEngine:
    """The tiny model, loaded once."""
    return load_engine(checkpoint(FAMILY), budget_bytes=1 << 30)


def in_one_process(chapters: ChapterFolder) -> MemoryAnswer:
    """What `lookout ask` answers to `QUESTION` over the chapters of `gate`."""
    reading = [chapters.read(entry.name) for entry in chapters.chapters("gate")]
    fetch = fetch_from({chapter.name: files for chapter, files in reading})
    past = Past([chapter for chapter, _ in reading], RangeCache(fetch, 1 << 30), LITTLE)
    return ask(engine(), past, QUESTION.text, describe=QUESTION.words)


def facts(answer: MemoryAnswer) -> list[object]:
    """What two answers over the same chapters have in common, to the bit."""
    return [answer.yes_logit, answer.no_logit, answer.text, answer.evidence, [t.ids for t in answer.traces]]


def folder(root: Path, rules: ChapterRules = FOREVER, *, memory: MemorySettings = SMALL) -> ChapterFolder:
    """Chapters of the tiny model in a folder."""
    return ChapterFolder(
        root,
        rules,
        engine().kv_shape,
        settings=memory,
        bias=engine().key_bias,
        about={"model_digest": "m1", "stride_us": 4_000_000},
    )


def fill(
    chapters: ChapterFolder, blocks: Iterable[int], camera: str = "gate", *, epoch: int = 1, seed: int = 9
) -> None:
    """Play windows of a stream and take their newest blocks in."""
    for born in played(blocks, camera, epoch=epoch, seed=seed):
        chapters.add(born)


def played(blocks: Iterable[int], camera: str = "gate", *, epoch: int = 1, seed: int = 9) -> list[Born]:
    """The newest blocks of a stream's windows."""
    out = []
    told, plan = engine(), None
    planner = Planner(told.layout, WindowSettings(blocks=WINDOW, key_every=4))
    history: list[Any] = []
    for index in blocks:
        history.append(block(FAMILY, f"{camera}/{epoch}", index, frames=2, seed=seed))
        window = history[-WINDOW:]
        plan = planner.plan(window, plan)
        told.run([WindowRequest(plan, window)])[0].unwrap()
        born = born_block(told, plan, window[-1])
        out.append(Born(camera, epoch, born, prefix_of(told, plan), WALL_US + epoch * 10**9))
    told.close_stream(f"{camera}/{epoch}")
    return out


ROWS = 32
"""Rows that are searched for: a search of every file for all of them takes minutes."""


def rows_of(chapters: ChapterFolder, begin_us: int, end_us: int, camera: str = "gate") -> list[bytes]:
    """Some rows of K and V that a range of time alone has, as every file has them.

    The label of a stream's first frame has attended to the prefix only: its rows are those of any such label.
    """
    rows: dict[bool, set[bytes]] = {False: set(), True: set()}
    for facts in chapters.chapters(camera):
        chapter, files = chapters.read(facts.name)
        ranges = RangeCache(fetch_from({facts.name: files}), 1 << 30)
        past = Past([chapter], ranges, RetrievalSettings(frames=10**6))
        # From the second layer on: in the first one K and V of a label are those of every such label.
        for layer in range(1, chapter.head.shape.layers):
            choice = past.choose(layer, torch.ones(chapter.head.shape.width))
            for frame, row in zip(choice.frames, torch.cat(past.read(choice, layer)), strict=True):
                rows[bool(begin_us <= past.times_us[frame] < end_us)].add(row.numpy().tobytes())
    own = rows[True] - rows[False]
    assert len(own) > len(rows[True]) // 2
    return sorted(own)[:: max(1, len(own) // ROWS)]


def holding(root: Path, needles: Sequence[bytes]) -> list[Path]:
    """The files under a folder that hold any of some bytes."""
    out = []
    for path in root.rglob("*"):
        if path.is_file():
            data = _written(path)
            if any(needle in data for needle in needles):
                out.append(path)
    return out


def _written(path: Path) -> bytes:
    """What was written of a file: Kafka's indexes are gigabytes of holes, which nobody has to search."""
    parts = []
    with path.open("rb") as file:
        end, size = 0, os.fstat(file.fileno()).st_size
        while end < size:
            try:
                begin = os.lseek(file.fileno(), end, os.SEEK_DATA)
            except OSError:  # nothing but a hole is left
                break
            end = os.lseek(file.fileno(), begin, os.SEEK_HOLE)
            parts.append(os.pread(file.fileno(), end - begin, begin))
    return bytes(4096).join(parts)


class PartOfFolder:
    """Some chapters of a folder, as the holder of these alone would have them."""

    def __init__(self, whole: ChapterFolder, names: Sequence[str]) -> None:
        self._whole, self._names = whole, frozenset(names)
        self.root = whole.root
        self.changed: Any = None

    def chapters(self, camera: str | None = None) -> list[Any]:
        """As `ChapterFolder.chapters`."""
        return [facts for facts in self._whole.chapters(camera) if facts.name in self._names]

    def read(self, name: str) -> Any:
        """As `ChapterFolder.read`."""
        return self._whole.read(self._own(name))

    def files(self, name: str, version: int) -> Any:
        """As `ChapterFolder.files`."""
        return self._whole.files(self._own(name), version)

    def _own(self, name: str) -> str:
        if name not in self._names:
            raise HistoryError(f"there is no chapter {name!r} here")
        return name


@dataclass
class Holder:
    """A pod that serves a folder of chapters."""

    folder: Any
    service: MemoryService
    address: str
    server: grpc.Server
    lease: Announcer | None = None
    announcer: ChapterAnnouncer | None = None

    def kill(self) -> None:
        """Stop answering at once; the lease stays, as that of a killed process."""
        self.server.stop(0).wait()


@dataclass
class World:
    """Holders, a directory and readers, torn down together."""

    root: Path
    url: str | None
    stack: ExitStack
    holders: list[Holder] = field(default_factory=list)
    security: Connections = field(default_factory=without_security)
    settings: StoreSettings = field(default_factory=lambda: store_settings(redis_retry_s=0.01))

    def directory(self) -> Directory:
        """A connection to Redis."""
        assert self.url is not None
        directory = Directory(self.url, self.settings, self.security)
        self.stack.callback(directory.close)
        return directory

    def client(self) -> Any:
        """Redis, with values as bytes."""
        client = self.security.redis_client(str(self.url), socket_timeout=2.0, retry=None)
        self.stack.callback(client.close)
        return client

    def hold(
        self,
        chapters: Any,
        *,
        limits: MemoryLimits | None = None,
        address: str = "127.0.0.1:0",
        give_way: Callable[[], object] | None = None,
        **more: Any,
    ) -> Holder:
        """Serve chapters, and announce them where there is a Redis."""
        server = grpc.server(ThreadPoolExecutor(8), options=[("grpc.so_reuseport", 0)])
        service = MemoryService(chapters, limits, give_way)
        service.register(server)
        address = f"127.0.0.1:{server.add_insecure_port(address)}"
        server.start()
        holder = Holder(chapters, service, address, server)
        self.stack.callback(lambda: server.stop(0).wait())
        if self.url is not None:
            name = f"prefill-{len(self.holders)}"
            holder.lease = Announcer(self.directory(), STAGE_CHAPTERS, name, address, lambda: ())
            holder.lease.start()
            self.stack.callback(holder.lease.stop)
            holder.announcer = ChapterAnnouncer(self.directory(), self.client(), chapters, name, **more)
            holder.announcer.announce()
        self.holders.append(holder)
        return holder

    def copies(self, source: ChapterFolder, names: Sequence[str]) -> ChapterFolder:
        """A folder with copies of some sealed chapters."""
        root = self.root / f"holder-{len(self.holders)}"
        for facts in source.chapters():
            if facts.name in names:
                shutil.copytree(facts.path, root / facts.path.parent.name / facts.path.name)
        return folder(root)

    def sources(self, *, directory: bool = True, **more: Any) -> ChapterSources:
        """A reader of all holders."""
        reader = Holders(read_s=10.0, list_s=5.0)
        if not directory or self.url is None:
            addresses = [holder.address for holder in self.holders]
            sources = ChapterSources(reader, replicas=addresses, **more)
        else:
            index = self.directory()
            sources = ChapterSources(reader, index, ScenesDirectory(index, self.client()), **more)
        self.stack.callback(sources.close)
        return sources
