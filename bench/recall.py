"""Questions about the past over the real wire: `make bench-recall`.

Holders are processes of their own, as prefill's pods are; this process asks. Ratios of one run: first token
over the wire by first token in one process over the same chapters, at lengths of history and numbers of
holders, with prediction and without; round trips a layer; what writing a block costs beside computing its
window; and what questions cost windows that are computed at the same time.

`write_share` is that of the model that comes with Lookout, over a film, with everything that writing does:
what a fleet costs as it is installed. A window of that model costs hardly more than keeping books about its
block, so the share of one layer of a 7B's shape stands beside it (`write_share_7b`), and, since a GPU
computes such a model while a CPU writes, the cores that writing takes for a camera of two samples a second
(`write_cores_7b`: seconds of all layers' writing by seconds of stream).

Ratios are of medians over rounds, with a 95 % interval of bootstrapped rounds; `stages` are shares of the
first token in one process: finding the chapters, reading index ranges, reading slabs, and the rest.

Both sides of a ratio are timed in turns, so that other work of the machine meets both, and both begin with
nothing in memory but the model: this process reads the heads of the chapters, as `lookout ask` does, and asks
holders for theirs. `--cameras 1000`: a cheap pass over so many cameras (`bench/recall_cameras.py`).
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import statistics
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from importlib.resources import files
from itertools import groupby
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import numpy as np
import redis
import torch

from bench.memory.shape import TOKENS, layer_of_7b
from bench.memory.streams import FRAMES
from bench.recall_processes import Holding, asking
from bench.recall_question import QUESTION, RETRIEVAL
from bench.shapes import QWEN_7B
from lookout.local import RedisServer
from lookout.models import TINY, window_defaults
from lookout.models.engines import Question, WindowRequest
from lookout.models.engines.born import born_block, prefix_of
from lookout.models.engines.transformers import TransformersEngine, load_engine
from lookout.models.engines.transformers.memory import ask
from lookout.models.families import load_tower
from lookout.models.presets import DEFAULT, preset_of
from lookout.models.windows import Planner, StrideBlock
from lookout.past.memory import (
    BornBlock,
    Keep,
    KVShape,
    MemoryFolder,
    MemorySettings,
    Past,
    Prefix,
    RangeCache,
)
from lookout.past.memory.catalogue import scenes_bytes
from lookout.past.memory.chapters import Born, ChapterFolder, ChapterRules
from lookout.past.memory.past import fetch_from
from lookout.services.prefill.settings import PrefillSettings
from lookout.services.recall.asking import Asked, Asker
from lookout.streams import segment_frames, stream_blocks
from tests.chapters_world import World

LENGTHS = (60, 240)
"""Blocks of a history."""
HOLDERS = (1, 2, 4)
ROUNDS = 15
LIVE_ROUNDS, PHASE = 24, 12
"""Rounds of one phase of each kind, in turns which comes first; windows of a phase."""
PHASES = ("alone", "yielding", "beside")
"""No question; questions whose reads give way to windows; questions whose reads do not."""
DRAWS = 1000
"""Of the bootstrap."""
PAUSE_S = 0.03
STEP_US = 500_000
"""Two samples a second, as the product takes them."""
FILM = "room"


def film() -> list[StrideBlock]:
    """The blocks of a film, pruned and encoded as the product does it."""
    (path,) = (Path(str(files("watchbench"))) / "films").glob(f"{FILM}-*.mp4")
    tower, sampling, rules = load_tower(TINY), window_defaults(TINY), preset_of(DEFAULT)
    frames = segment_frames(path, tower.grid, sampling.step_us, rules.masks, window_us=sampling.window_us)
    _, members = next(groupby(frames, lambda frame: frame.stream))
    blocks = stream_blocks(
        "gate/1",
        (member.frame for member in members),
        tower,
        rules.masks,
        samples=sampling.block_samples,
        step_us=sampling.step_us,
        window_blocks=sampling.window_blocks,
    )
    return [member.block for member in blocks][:-1]  # the last one is cut short


def history(blocks: Sequence[StrideBlock]) -> Iterator[StrideBlock]:
    """A film again and again: a camera that sees the same place all day."""
    stride_us = window_defaults(TINY).stride_us
    for index in range(1 << 30):
        turn, number = divmod(index, len(blocks))
        shift = turn * len(blocks) * stride_us
        frames = tuple(
            replace(
                frame,
                time_us=frame.time_us + shift,
                slot_us=frame.slot_us + shift,
                last_us=frame.last_us + shift,
            )
            for frame in blocks[number].frames
        )
        yield replace(blocks[number], index=index, frames=frames)


class Windows:
    """Windows of a history, each computed when it is asked for."""

    def __init__(self, engine: TransformersEngine, blocks: Sequence[StrideBlock]) -> None:
        self._engine, self._blocks = engine, history(blocks)
        settings = preset_of(DEFAULT).windows.sampled(window_defaults(TINY))
        self._planner, self._size = Planner(engine.layout, settings), settings.blocks
        self._recent: list[StrideBlock] = []
        self._plan: Any = None
        self.cpu_s = self.wall_s = 0.0
        """Of the newest window."""

    def next(self) -> tuple[Born, bool]:
        """Compute the next window: its newest block, and whether it continues the window before."""
        self._recent = [*self._recent, next(self._blocks)][-self._size :]
        wall, cpu = time.perf_counter(), time.thread_time()
        self._plan = self._planner.plan(self._recent, self._plan)
        request = WindowRequest(self._plan, self._recent, [Question("q", QUESTION.text)])
        self._engine.run([request])[0].unwrap()
        self.wall_s, self.cpu_s = time.perf_counter() - wall, time.thread_time() - cpu
        block = born_block(self._engine, self._plan, self._recent[-1])
        whole = len(self._recent) == self._size
        born = Born("gate", 1, block, prefix_of(self._engine, self._plan), 0)
        return born, whole and self._plan.parent is not None

    def close(self) -> None:
        """Free the stream's KV."""
        self._engine.close_stream("gate/1")


def chapters_of(engine: TransformersEngine, root: Path) -> ChapterFolder:
    """A folder of chapters of the model."""
    return ChapterFolder(
        root,
        ChapterRules(Keep(seconds=1e12)),
        engine.kv_shape,
        settings=MemorySettings(window=window_defaults(TINY).window_blocks),
        bias=engine.key_bias,
        about={"model_digest": "tiny", "stride_us": window_defaults(TINY).stride_us},
    )


def write(
    engine: TransformersEngine, root: Path, blocks: Sequence[StrideBlock], count: int, chapters: int
) -> tuple[ChapterFolder, float]:
    """Chapters of a history; and the CPU time of writing by that of computing, over incremental windows.

    Writing is everything beyond the window: copying the newest block's KV, clustering, and the disk.
    """
    folder, windows = chapters_of(engine, root), Windows(engine, blocks)
    computed = written = 0.0
    for index in range(count):
        begun = time.thread_time()
        born, incremental = windows.next()
        folder.add(born)
        if incremental:
            computed += windows.cpu_s
            written += time.thread_time() - begun - windows.cpu_s
        if (index + 1) % (count // chapters) == 0:
            folder.seal("gate")
    windows.close()
    return folder, written / computed


def writing_at_7b(root: Path) -> dict[str, float]:
    """CPU time of writing a block, disk included, by that of computing its rows, in one layer of a 7B's
    shape; and by the time that the block shows, for all layers.

    Both grow with the layers. Weights are random; keys of a place in the frame resemble each other from frame
    to frame, as those of a fixed camera do. Rows that a window computes beside its newest block are left out.
    """
    model = layer_of_7b()
    width, rows = model.kv_heads * model.head_dim, TOKENS * FRAMES
    draw = torch.Generator().manual_seed(3)
    scene = torch.randn(TOKENS, width, generator=draw).repeat(FRAMES, 1)
    look = torch.randn(1, 64, generator=draw).expand(FRAMES, -1)
    frame, places = np.repeat(np.arange(FRAMES), TOKENS), np.tile(np.arange(TOKENS), FRAMES)[None]
    step = np.array([TOKENS], np.int64)
    nothing = torch.zeros(1, model.kv_heads, 0, model.head_dim, dtype=torch.bfloat16)
    folder = MemoryFolder.create(
        root,
        KVShape(1, model.kv_heads, model.head_dim, 1, torch.bfloat16),
        Prefix(np.zeros((1, 0), np.int64), nothing, nothing),
        MemorySettings(window=window_defaults(TINY).window_blocks),
    )
    written = []
    for index in range(60):
        keys, values = (
            (scene + 0.25 * torch.randn(rows, width, generator=draw))
            .view(rows, model.kv_heads, model.head_dim)
            .transpose(0, 1)
            .to(torch.bfloat16)[None]
            .contiguous()
            for _ in range(2)
        )
        times = (index * FRAMES + np.arange(FRAMES)) * STEP_US
        seen = look + 0.05 * torch.randn(look.shape, generator=draw)
        block = BornBlock("gate/1", index, times, seen, frame, places, step, step, keys, values)
        begun = time.thread_time()
        folder.add(block)
        written.append(time.thread_time() - begun)
    folder.close()
    hidden = torch.randn(1, rows, model.hidden, generator=draw).to(torch.bfloat16)
    still = torch.ones(1, rows, model.head_dim, dtype=torch.bfloat16)
    begun = time.thread_time()
    with torch.inference_mode():
        model.layers[0](hidden, position_embeddings=(still, torch.zeros_like(still)))
    computed, mean = time.thread_time() - begun, statistics.mean(written[20:])
    shown_s = FRAMES * STEP_US / 1e6
    return {
        "write_share_7b": round(mean / computed, 4),
        "write_cores_7b": round(mean * QWEN_7B.layers / shown_s, 3),
    }


def in_one_process(engine: TransformersEngine, folder: ChapterFolder) -> None:
    """A question over the chapters where they lie, every range read again."""
    reading = [folder.read(facts.name) for facts in folder.chapters("gate")]
    fetch = fetch_from({chapter.name: files for chapter, files in reading})
    past = Past([chapter for chapter, _ in reading], RangeCache(fetch, 1 << 30), RETRIEVAL)
    ask(engine, past, QUESTION.text)


def over_wire(
    engine: TransformersEngine, folder: ChapterFolder, url: str, holders: int
) -> Iterator[dict[str, Any]]:
    """First token over holders by that in one process, without prediction and with it."""
    with ExitStack() as stack:
        root = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        _hold(folder, root, url, holders, stack)
        sources = World(root, url, stack).sources()
        local: list[float] = []
        cold: dict[bool, list[float]] = {False: [], True: []}
        again: dict[bool, list[float]] = {False: [], True: []}
        asked: dict[bool, list[Asked]] = {False: [], True: []}
        for _ in range(ROUNDS + 1):  # the first one warms up
            local.append(_seconds(lambda: in_one_process(engine, folder)))
            for foresee in (False, True):
                asker = Asker(engine, sources, retrieval=RETRIEVAL, foresee=foresee)
                begun = time.perf_counter()
                asked[foresee].append(asker.ask("gate", QUESTION))
                cold[foresee].append(time.perf_counter() - begun)
                again[foresee].append(_seconds(lambda asker=asker: asker.ask("gate", QUESTION)))
        for foresee, answers in asked.items():
            traffic = answers[-1].traffic
            yield {
                "holders": holders,
                "foresee": foresee,
                "vs_local": _ratio(cold[foresee][1:], local[1:]),
                "interval": interval(cold[foresee][1:], local[1:]),
                "again_vs_local": _ratio(again[foresee][1:], local[1:]),
                "stages": _stages(answers[1:], cold[foresee][1:], statistics.median(local[1:])),
                "bytes": traffic.fetched_bytes,
                # The scenes of all layers come in one round trip before the first layer.
                "trips": (traffic.calls - 1) / len(engine.model.layers),
            }


def _stages(answers: Sequence[Asked], spent: Sequence[float], unit: float) -> dict[str, float]:
    """Where the first token's time went, in the first token of one process."""
    parts = {
        "find": [answer.list_s for answer in answers],
        "index": [answer.answer.cost.retrieve_s for answer in answers],
        "slabs": [answer.answer.cost.move_s for answer in answers],
    }
    parts["rest"] = [total - sum(own) for total, *own in zip(spent, *parts.values(), strict=True)]
    return {name: round(statistics.median(seconds) / unit, 3) for name, seconds in parts.items()}


def _hold(folder: ChapterFolder, root: Path, url: str, holders: int, stack: ExitStack) -> None:
    """Processes that hold every so-manieth chapter each; the directory knows no others."""
    with redis.Redis.from_url(url) as client:
        client.flushall()
    begun = []
    for number in range(holders):
        own = root / str(number)
        for facts in folder.chapters("gate")[number::holders]:
            shutil.copytree(facts.path, own / facts.path.parent.name / facts.path.name)
        begun.append(stack.enter_context(Holding(own, url, f"prefill-{number}")))
    for holder in begun:
        holder.ready()


def _short(value: Any) -> Any:
    return round(value, 3) if isinstance(value, float) else value


def _seconds(call: Any) -> float:
    begun = time.perf_counter()
    call()
    return time.perf_counter() - begun


def _ratio(above: Sequence[float], below: Sequence[float]) -> float:
    """Of medians over rounds."""
    return statistics.median(above) / statistics.median(below)


def interval(above: Sequence[Any], below: Sequence[Any], of: Any = _ratio) -> list[float]:
    """95 % of a ratio over bootstrapped rounds: both sides of a round are drawn together."""
    draw = np.random.default_rng(0)
    drawn = [
        of([above[pick] for pick in picks], [below[pick] for pick in picks])
        for picks in draw.integers(len(above), size=(DRAWS, len(above))).tolist()
    ]
    return [round(float(end), 3) for end in np.quantile(drawn, (0.025, 0.975))]


def p95_ratio(above: Sequence[Sequence[float]], below: Sequence[Sequence[float]]) -> float:
    """Of the 95th percentiles of all windows of some rounds."""
    return float(np.quantile(np.concatenate(above), 0.95) / np.quantile(np.concatenate(below), 0.95))


def live_latency(
    engine: TransformersEngine, folder: ChapterFolder, blocks: Sequence[StrideBlock]
) -> dict[str, Any]:
    """95th percentile of incremental windows with ten questions a second, by that without any.

    This process holds the chapters and computes windows, as prefill does; a process asks, as recall does.
    The chapter that is written meanwhile is asked too. Reads give way to windows, as prefill's do, and in a
    third kind of phase they do not.
    """
    with ExitStack() as stack:
        root = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        idle, yield_s = threading.Event(), PrefillSettings.model_fields["memory_yield_s"].default
        holder = World(root, None, stack).hold(folder, give_way=lambda: idle.wait(yield_s))
        enter = stack.enter_context(_lane(folder))
        windows = Windows(engine, blocks)
        stack.callback(windows.close)
        asker = stack.enter_context(asking(holder.address))
        spent: dict[str, list[list[float]]] = {kind: [] for kind in PHASES}
        reads = dict.fromkeys(PHASES, 0)
        for number in range(LIVE_ROUNDS + 1):  # the first one warms up
            for place in range(len(PHASES)):
                kind = PHASES[(number + place) % len(PHASES)]
                os.kill(asker, signal.SIGSTOP if kind == "alone" else signal.SIGCONT)
                calls, windows_s = holder.service.calls, []
                for _ in range(PHASE):
                    if kind == "yielding":
                        idle.clear()
                    born, incremental = windows.next()
                    idle.set()
                    enter.put(born)
                    if incremental:
                        windows_s.append(windows.wall_s)
                    time.sleep(PAUSE_S)
                spent[kind].append(windows_s)
                reads[kind] += holder.service.calls - calls
        os.kill(asker, signal.SIGCONT)
        off, on, beside = (spent[kind][1:] for kind in PHASES)
        count = len(spent["yielding"]) * PHASE
        return {
            "latency_with_asks": round(p95_ratio(on, off), 3),
            "latency_interval": interval(on, off, p95_ratio),
            "latency_median": round(_ratio(np.concatenate(on).tolist(), np.concatenate(off).tolist()), 3),
            "latency_without_yielding": round(p95_ratio(beside, off), 3),
            "without_yielding_interval": interval(beside, off, p95_ratio),
            # A question that is not answered in a tenth of a second holds the next one up.
            "reads_a_window": round(reads["yielding"] / count, 1),
            "reads_without_yielding": round(reads["beside"] / count, 1),
        }


@contextmanager
def _lane(folder: ChapterFolder) -> Iterator[SimpleQueue[Born | None]]:
    """A thread that writes blocks into chapters, as prefill's lanes do."""
    queue: SimpleQueue[Born | None] = SimpleQueue()

    def run() -> None:
        while (born := queue.get()) is not None:
            folder.add(born)

    thread = threading.Thread(target=run, name="lane")
    thread.start()
    try:
        yield queue
    finally:
        queue.put(None)
        thread.join()


def main() -> None:
    """Print a table, then one line of JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--cameras", type=int, default=0, help="a cheap pass over so many cameras instead")
    cameras = parser.parse_args().cameras
    torch.set_num_threads(1)
    engine = load_engine(TINY, budget_bytes=1 << 30)
    blocks = film()
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as scratch, RedisServer() as server:
        server.start()
        if cameras:
            from bench.recall_cameras import cheap_passes

            folder, _ = write(engine, Path(scratch) / "one", blocks, 60, 1)
            print(json.dumps(cheap_passes(engine, folder, server.url, cameras)))
            return
        for length in LENGTHS:
            folder, share = write(engine, Path(scratch) / str(length), blocks, length, 4)
            for holders in HOLDERS if length == max(LENGTHS) else HOLDERS[:1]:
                for row in over_wire(engine, folder, server.url, holders):
                    rows.append({"blocks": length, **{key: _short(value) for key, value in row.items()}})
                    print(json.dumps(rows[-1]), flush=True)
        latency = live_latency(engine, folder, blocks)
        at_7b = writing_at_7b(Path(scratch) / "7b")
    shape = engine.kv_shape
    longest = [row for row in rows if row["blocks"] == max(LENGTHS)]
    # Without prediction, as recall is set on a CPU.
    by_holders = {row["holders"]: row for row in longest if not row["foresee"]}
    result: dict[str, Any] = {
        "ttft_vs_local": by_holders[1]["vs_local"],
        "ttft_interval": by_holders[1]["interval"],
        "ttft_2_holders": by_holders[2]["vs_local"],
        "ttft_2_interval": by_holders[2]["interval"],
        "roundtrips_per_layer": max(row["trips"] for row in rows if not row["foresee"]),
        "redis_bytes_camera_hour": scenes_bytes(3600 * 2 // 16, shape) * shape.layers,
        "write_share": round(share, 3),
        **at_7b,
        **latency,
        "rows": rows,
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main()
