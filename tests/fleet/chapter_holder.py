"""A process that holds chapters: it serves, announces and stores them."""

from __future__ import annotations

import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
import torch

from lookout.past.chapters import ChapterAnnouncer, MemoryService
from lookout.past.chapters.durable import DurableTier, Uploader
from lookout.past.memory import Keep, KVShape
from lookout.past.memory.chapters import ChapterFolder, ChapterRules, read_sealed
from lookout.runtime.net import without_security
from lookout.runtime.store import Announcer, Directory, StoreSettings
from lookout.v1.lineage_pb2 import STAGE_CHAPTERS


def main(root: Path, name: str, port: int, redis_url: str, tier: str) -> None:
    """Serve the chapters of a folder until killed; a line once it does."""
    torch.set_num_threads(1)
    heads = sorted(root.glob("*/*/head-*.bin"))
    shape: KVShape = read_sealed(heads[0].parent)[0].head.shape
    chapters = ChapterFolder(root, ChapterRules(Keep(seconds=1e12)), shape)
    server = grpc.server(ThreadPoolExecutor(8), options=[("grpc.so_reuseport", 0)])
    MemoryService(chapters).register(server)
    address = f"127.0.0.1:{server.add_insecure_port(f'127.0.0.1:{port}')}"
    server.start()
    settings = StoreSettings()
    directory = Directory(redis_url, settings)
    client = without_security().redis_client(redis_url, socket_timeout=0.5, retry=None)
    Announcer(directory, STAGE_CHAPTERS, name, address, lambda: ()).start()
    ChapterAnnouncer(directory, client, chapters, name).start()
    Uploader(DurableTier(tier), chapters, round_s=0.2).start()
    print("ready", flush=True)
    threading.Event().wait()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), sys.argv[4], sys.argv[5])
