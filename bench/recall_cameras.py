"""A question to many cameras: what the first pass over all of them costs, by their number.

One camera's chapters are copied for all others under names of their own; their data is the same file, so
that a thousand cameras fit on any disk. Caches go by the chapter's name, so nothing of one serves another.
"""

from __future__ import annotations

import os
import tempfile
import time
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import redis

from bench.recall_processes import Holding
from lookout.models.engines.transformers import TransformersEngine
from lookout.past.memory.catalogue import head_path
from lookout.past.memory.chapters import ChapterFolder, read_sealed
from lookout.past.memory.shelf import folder_name
from lookout.services.recall.asking import Asked, Asker, PastQuestion
from lookout.services.recall.settings import RecallSettings
from tests.chapters_world import World

QUESTION = PastQuestion(
    "Is anyone lying on the ground?", frames=RecallSettings.model_fields["cheap_frames"].default
)
TOGETHER = RecallSettings.model_fields["together"].default
"""Cameras of one pass."""


def cheap_passes(engine: TransformersEngine, folder: ChapterFolder, url: str, cameras: int) -> dict[str, Any]:
    """A pass over a tenth of the cameras and one over all, each the first of its process and then again.

    Times are CPU time of the process that asks, in questions to one camera over the wire with nothing cached.
    """
    few, all_of_them = (_passes(engine, folder, url, count) for count in (max(1, cameras // 10), cameras))
    return {
        "cameras": cameras,
        **all_of_them,
        # Of all cameras by those of a tenth: 1 is flat.
        "growth_per_camera": round(all_of_them["first"] / few["first"], 3),
        "again_growth_per_camera": round(all_of_them["again"] / few["again"], 3),
        "a_tenth": few,
    }


def _passes(engine: TransformersEngine, folder: ChapterFolder, url: str, cameras: int) -> dict[str, Any]:
    with ExitStack() as stack:
        root = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        for number in range(cameras):
            copied(folder, root, f"yard-{number}")
        client = stack.enter_context(redis.Redis.from_url(url))
        client.flushall()
        empty = _used(client)
        stack.enter_context(Holding(root, url, "prefill-0")).ready()
        redis_bytes = _used(client) - empty
        sources = World(root, url, stack).sources()
        single = min(_pass(Asker(engine, sources), "yard-0")["s"] for _ in range(5))
        asker = Asker(engine, sources)
        first, again = _pass(asker, "yard-*"), _pass(asker, "yard-*")
        return {
            "first": round(first["s"] / cameras / single, 3),
            "again": round(again["s"] / cameras / single, 3),
            "find_share": round(first["find_s"] / first["s"], 3),
            "bytes_per_camera": round(first["bytes"] / cameras),
            "again_bytes_per_camera": round(again["bytes"] / cameras),
            "head_bytes_per_camera": round(first["head_bytes"] / cameras),
            "redis_bytes_per_camera": round(redis_bytes / cameras),
        }


def _pass(asker: Asker, pattern: str) -> dict[str, float]:
    begun = time.process_time()
    past = asker.find(pattern, QUESTION)
    find_s = time.process_time() - begun
    names, asked = list(past), list[Asked]()
    for first in range(0, len(names), TOGETHER):
        answers = asker.ask_many({name: past[name] for name in names[first : first + TOGETHER]}, QUESTION)
        asked += [answer for answer in answers.values() if isinstance(answer, Asked)]
    spent = time.process_time() - begun
    heads = sum(
        len(chapter.head.packed(whole=False)) for resolved in past.values() for chapter in resolved.chapters
    )
    return {
        "s": spent,
        "find_s": find_s,
        "bytes": sum(answer.traffic.fetched_bytes for answer in asked),
        "head_bytes": heads,
    }


def copied(folder: ChapterFolder, root: Path, camera: str) -> None:
    """The chapters of a folder's camera as another camera's; only their heads are written."""
    for facts in folder.chapters():
        head = read_sealed(facts.path)[0].head
        name = f"{camera}/{facts.path.name}"
        path = root / folder_name(camera) / facts.path.name
        path.mkdir(parents=True)
        own = head_path(facts.path, head.version)
        for file in facts.path.iterdir():
            if file != own:
                os.link(file, path / file.name)
        about = {**head.about, "camera": camera, "chapter": name}
        head_path(path, head.version).write_bytes(replace(head, about=about).packed())


def _used(client: redis.Redis) -> int:
    return int(client.info("memory")["used_memory"])  # type: ignore[index]
