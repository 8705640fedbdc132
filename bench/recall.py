"""Questions about the past over the real wire: `make bench-recall`.

One process holds the chapters of a camera, cut over holders that serve them by gRPC; the same process asks.
Ratios of one run: first token over the wire by first token in one process over the same chapters, at lengths
of history and numbers of holders, with prediction and without; round trips a layer; what writing a block
costs beside computing its window; and what questions cost windows that are computed at the same time.
"""

from __future__ import annotations

import json
import os
import shutil
import statistics
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import torch

from lookout.engines import Question, WindowRequest
from lookout.engines.born import born_block, prefix_of
from lookout.engines.transformers import TransformersEngine, load_engine
from lookout.engines.transformers.memory import ask
from lookout.local import RedisServer
from lookout.memory import Keep, MemorySettings, Past, RangeCache, RetrievalSettings
from lookout.memory.catalogue import scenes_bytes
from lookout.memory.chapters import Born, ChapterFolder, ChapterRules
from lookout.memory.past import fetch_from
from lookout.models import TINY
from lookout.services.recall.asking import Asker, PastQuestion
from lookout.windows import EncodedFrame, Planner, StrideBlock, WindowSettings
from tests.chapters_world import World

STRIDE_FRAMES, WINDOW, GRID = 4, 10, (8, 8)
LENGTHS = (60, 240)
"""Blocks of 2 s: two and eight minutes."""
HOLDERS = (1, 2, 4)
REPEATS = 5
QUESTION = PastQuestion("Is anyone lying on the ground?", frames=64)
RETRIEVAL = RetrievalSettings(frames=64)


def history(engine: TransformersEngine, count: int) -> list[StrideBlock]:
    """Blocks of one stream with random tokens; about 30 of a frame's 64 are kept."""
    return [_block(index, engine.model.hidden) for index in range(count)]


def _block(index: int, hidden: int) -> StrideBlock:
    draw = np.random.default_rng([3, index])
    frames = []
    for number in range(STRIDE_FRAMES):
        keep = np.ones(GRID, bool) if number == 0 else draw.random(GRID) < 0.3
        tokens = torch.from_numpy(draw.standard_normal((int(keep.sum()), hidden)).astype(np.float32))
        frames.append(EncodedFrame(index * 2_000_000 + number * 500_000, number == 0, keep, tokens, None))
    return StrideBlock("gate/1", index, tuple(frames))


def write(engine: TransformersEngine, root: Path, count: int, chapters: int) -> tuple[ChapterFolder, float]:
    """Chapters of a history; and the CPU time of writing by that of an incremental window, medians."""
    folder = ChapterFolder(
        root,
        ChapterRules(Keep(seconds=1e12)),
        engine.kv_shape,
        settings=MemorySettings(window=WINDOW),
        bias=engine.key_bias,
        about={"model_digest": "tiny", "stride_us": 2_000_000},
    )
    planner = Planner(engine.layout, WindowSettings(blocks=WINDOW, key_every=30))
    plan, windows, writes = None, [], []
    blocks = history(engine, count)
    for index, newest in enumerate(blocks):
        window = blocks[max(0, index - WINDOW + 1) : index + 1]
        plan = planner.plan(window, plan)
        begun = time.thread_time()
        engine.run([WindowRequest(plan, window, [Question("q", QUESTION.text)])])[0].unwrap()
        computed = time.thread_time()
        born = Born("gate", 1, born_block(engine, plan, newest), prefix_of(engine, plan), 0)
        folder.add(born)
        if plan.parent is not None and index > 2 * WINDOW:
            windows.append(computed - begun)
            writes.append(time.thread_time() - computed)
        if (index + 1) % (count // chapters) == 0:
            folder.seal("gate")
    engine.close_stream("gate/1")
    return folder, statistics.median(writes) / statistics.median(windows)


def median_s(ask_once: Callable[[], Any]) -> float:
    """Median seconds of a few turns, the first left out."""
    spent = []
    for _ in range(REPEATS + 1):
        begun = time.perf_counter()
        ask_once()
        spent.append(time.perf_counter() - begun)
    return statistics.median(spent[1:])


def in_one_process(engine: TransformersEngine, folder: ChapterFolder) -> float:
    """Seconds of a question over the chapters where they lie, every range read again."""
    reading = [folder.read(facts.name) for facts in folder.chapters("gate")]
    fetch = fetch_from({chapter.name: files for chapter, files in reading})

    def once() -> None:
        past = Past([chapter for chapter, _ in reading], RangeCache(fetch, 1 << 30), RETRIEVAL)
        ask(engine, past, QUESTION.text)

    return median_s(once)


def over_wire(
    engine: TransformersEngine, folder: ChapterFolder, url: str, holders: int, foresee: bool
) -> dict[str, float]:
    """Seconds of a question over holders, nothing cached; bytes and round trips; and of the same question
    again."""
    with ExitStack() as stack:
        root = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        world = World(root, url, stack)
        names = [facts.name for facts in folder.chapters("gate")]
        for number in range(holders):
            own = root / str(number)
            for facts in folder.chapters("gate"):
                if names.index(facts.name) % holders == number:
                    shutil.copytree(facts.path, own / facts.path.parent.name / facts.path.name)
            world.hold(ChapterFolder(own, ChapterRules(Keep(seconds=1e12)), engine.kv_shape))
        sources = world.sources()
        last: list[Any] = []

        def once(asker: Asker | None = None) -> None:
            fresh = Asker(engine, sources, retrieval=RETRIEVAL, foresee=foresee)
            last[:] = [(asker or fresh).ask("gate", QUESTION)]

        cold = median_s(once)
        asked = last[0]
        kept = Asker(engine, sources, retrieval=RETRIEVAL, foresee=foresee)
        again = median_s(lambda: once(kept))
        layers = len(engine.model.layers)
        return {
            "s": cold,
            "again_s": again,
            "bytes": asked.traffic.fetched_bytes,
            # Of one question: the scenes of all layers come in one round trip before the first layer.
            "trips": (asked.traffic.calls - 1) / layers,
            "cached": last[0].traffic.present,
        }


def live_latency(engine: TransformersEngine, folder: ChapterFolder, asks: bool) -> float:
    """95th percentile of seconds of incremental windows, with ten questions a second beside them or none.

    Questions run in a process of their own, as recall does, and read the chapters over gRPC.
    """
    with ExitStack() as stack:
        root = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        world = World(root, None, stack)
        holder = world.hold(folder)
        ended = threading.Event()
        if asks:
            asker = stack.enter_context(_Questions(holder.address))
            stack.callback(asker.stop)
        planner = Planner(engine.layout, WindowSettings(blocks=WINDOW, key_every=30))
        blocks, plan, spent = history(engine, 120), None, []
        for index in range(len(blocks)):
            window = blocks[max(0, index - WINDOW + 1) : index + 1]
            plan = planner.plan(window, plan)
            begun = time.perf_counter()
            engine.run([WindowRequest(plan, window, [Question("q", QUESTION.text)])])[0].unwrap()
            if plan.parent is not None and index > 2 * WINDOW:
                spent.append(time.perf_counter() - begun)
            time.sleep(0.03)
        engine.close_stream("gate/1")
        ended.set()
        return statistics.quantiles(spent, n=20)[-1]


class _Questions:
    """A process that asks ten questions a second."""

    def __init__(self, address: str) -> None:
        import subprocess
        import sys

        self._process = subprocess.Popen(
            [sys.executable, "-m", "bench.recall_questions", address],
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            stdout=subprocess.PIPE,
        )

    def __enter__(self) -> _Questions:
        assert self._process.stdout is not None
        self._process.stdout.readline()  # it has answered once
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        """End it."""
        self._process.kill()
        self._process.wait()


def main() -> None:
    """Print a table, then one line of JSON."""
    torch.set_num_threads(1)
    engine = load_engine(TINY, budget_bytes=1 << 30)
    rows: list[dict[str, Any]] = []
    shares: list[float] = []
    with tempfile.TemporaryDirectory() as scratch, RedisServer() as server:
        server.start()
        for length in LENGTHS:
            folder, share = write(engine, Path(scratch) / str(length), length, 4)
            shares.append(share)
            local = in_one_process(engine, folder)
            for holders in HOLDERS:
                for foresee in (False, True):
                    figures = over_wire(engine, folder, server.url, holders, foresee)
                    row: dict[str, Any] = {"blocks": length, "holders": holders, "foresee": foresee}
                    row |= {"vs_local": figures["s"] / local, "again_vs_local": figures["again_s"] / local}
                    rows.append({**row, "bytes": figures["bytes"], "trips": figures["trips"]})
                    print(json.dumps(rows[-1]), flush=True)
        latency = live_latency(engine, folder, True) / live_latency(engine, folder, False)
    shape = engine.kv_shape
    longest = [row for row in rows if row["blocks"] == max(LENGTHS)]
    by_holders = {row["holders"]: row["vs_local"] for row in longest if not row["foresee"]}
    result: dict[str, Any] = {
        "ttft_vs_local": round(by_holders[1], 3),
        "ttft_2_holders": round(by_holders[2], 3),
        "roundtrips_per_layer": round(max(row["trips"] for row in rows if not row["foresee"]), 2),
        "redis_bytes_camera_hour": scenes_bytes(3600 * 2 // 16, shape) * shape.layers,
        "write_share": round(max(shares), 3),
        "latency_with_asks": round(latency, 3),
        "rows": [{key: round(value, 3) for key, value in row.items()} for row in rows],
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main()
