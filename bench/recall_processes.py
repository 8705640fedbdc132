"""Processes of bench-recall: holders of chapters, and one that asks ten questions a second."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Self

import grpc
from redis import Redis

from lookout.past.chapters import ChapterAnnouncer, MemoryService
from lookout.past.memory import Keep
from lookout.past.memory.chapters import ChapterFolder, ChapterRules, read_sealed
from lookout.runtime.store import Announcer, Directory, StoreSettings
from lookout.v1.lineage_pb2 import STAGE_CHAPTERS

PERIOD_S = 0.1


class Holding:
    """A process that serves a folder of chapters and announces it, as prefill does."""

    def __init__(self, folder: Path, url: str, name: str) -> None:
        self._process = _started("hold", str(folder), url, name)

    def ready(self) -> str:
        """Its address, once it serves and is announced."""
        assert self._process.stdout is not None
        return self._process.stdout.readline().strip()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.communicate(timeout=60)  # it ends with its input


@contextmanager
def asking(address: str) -> Iterator[int]:
    """A process that asks a holder ten questions a second, by its id, once it has an answer."""
    process = _started("ask", address)
    try:
        assert process.stdout is not None
        process.stdout.readline()
        yield process.pid
    finally:
        process.kill()
        process.communicate()


def _started(*words: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "bench.recall_processes", *words],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def hold(folder: str, url: str, name: str) -> None:
    """Serve and announce until the input ends. It loads no model."""
    (first, *_) = Path(folder).glob("*/*/head-*.bin")
    shape = read_sealed(first.parent)[0].head.shape
    chapters = ChapterFolder(Path(folder), ChapterRules(Keep(seconds=1e12)), shape)
    server = grpc.server(ThreadPoolExecutor(8), options=[("grpc.so_reuseport", 0)])
    MemoryService(chapters).register(server)
    address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    server.start()
    with Redis.from_url(url) as client, closing(Directory(url, StoreSettings())) as directory:
        lease = Announcer(directory, STAGE_CHAPTERS, name, address, lambda: ())
        lease.start()
        ChapterAnnouncer(directory, client, chapters, name).announce()
        print(address, flush=True)
        sys.stdin.read()
        lease.stop()
    server.stop(0).wait()


def ask(address: str) -> None:
    """Ask until killed; a line once the first question is answered."""
    import torch

    from bench.recall_question import QUESTION, RETRIEVAL
    from lookout.models import TINY
    from lookout.models.engines.transformers import load_engine
    from lookout.past.chapters.reading import ChapterSources, Holders
    from lookout.services.recall.asking import Asker
    from lookout.services.recall.settings import RecallSettings

    os.nice(RecallSettings.model_fields["niceness"].default)
    torch.set_num_threads(1)
    engine = load_engine(TINY, budget_bytes=1)
    asker = Asker(engine, ChapterSources(Holders(), replicas=[address]), retrieval=RETRIEVAL)
    asker.ask("gate", QUESTION)
    print("ready", flush=True)
    while True:
        begun = time.monotonic()
        asker.ask("gate", QUESTION)
        time.sleep(max(0.0, PERIOD_S - (time.monotonic() - begun)))


if __name__ == "__main__":
    {"hold": hold, "ask": ask}[sys.argv[1]](*sys.argv[2:])
