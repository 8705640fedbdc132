"""Tensors between real processes while holders are killed and Redis is wiped, killed and started again."""

from __future__ import annotations

import random
import subprocess
import sys
import threading
import time
from collections import Counter
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest

from lookout.local import RedisServer, free_ports, guarded
from lookout.runtime.store import Node, TensorUnavailableError
from lookout.v1.lineage_pb2 import STAGE_FRAMES
from tests.changed_settings import store_settings
from tests.eventually import eventually
from tests.fleet.store_holder import TENSORS, make, record_of, tensor_ref

pytestmark = [pytest.mark.fleet, pytest.mark.long]


class Holder:
    """A holder that can be killed and started again at its address."""

    def __init__(self, redis_url: str, name: str, folder: Path) -> None:
        (self.port,) = free_ports(1)
        self._command = [sys.executable, "-m", "tests.fleet.store_holder", redis_url, name]
        self._command += [str(folder / name), str(self.port)]
        self.start()

    def start(self) -> None:
        self._process = subprocess.Popen(guarded(self._command), stdout=subprocess.PIPE, text=True)
        assert self._process.stdout is not None
        assert "serving\n" in self._process.stdout

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()
        if self._process.stdout is not None:
            self._process.stdout.close()


class Readers:
    """Threads that fetch random tensors and rows, and compare every byte."""

    def __init__(self, node: Node) -> None:
        self.sources: Counter[str] = Counter()
        self.wrong: list[str] = []
        self.errors: list[BaseException] = []
        self.tensors = range(TENSORS)  # what they fetch
        self._node = node
        self._ended = threading.Event()
        self._threads = [threading.Thread(target=self._run, args=(seed,)) for seed in range(3)]

    def __enter__(self) -> Readers:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        for thread in self._threads:
            thread.join()

    def _run(self, seed: int) -> None:
        draw = random.Random(seed)
        while not self._ended.is_set():
            ref = tensor_ref(draw.choice(self.tensors))
            first = draw.randrange(9)
            rows = draw.choice([None, [(first, 9)], [(first, first + 1), (0, first)]])
            try:
                fetched = self._node.client.fetch(ref, record_of(ref), rows)
            except TensorUnavailableError:
                self.sources["unavailable"] += 1  # every holder is dead: a service would try again
                time.sleep(0.05)
                continue
            except BaseException as error:
                self.errors.append(error)
                return
            whole = make(ref)
            picked = [row for start, stop in rows or [(0, 9)] for row in range(start, stop)]
            if not np.array_equal(fetched.array, whole[picked]):
                self.wrong.append(ref.id)
            self.sources[fetched.source + ("/degraded" if fetched.degraded else "")] += 1
            time.sleep(0.01)

    def counted(self) -> dict[str, int]:
        """Fetches so far, by source."""
        return dict(self.sources)

    def until(self, *sources: str, since: dict[str, int] | None = None) -> None:
        """Wait for a few more of each of these than there were before a fault (`since`), or are now.

        A source that a fault feeds only for a while needs `since`: it may have ended before this is called.
        """
        before = since if since is not None else self.counted()

        def came() -> bool:
            assert self.errors == []  # a reader that has ended feeds no source
            return all(self.sources[each] >= before.get(each, 0) + 5 for each in sources)

        eventually(came)


def test_no_wrong_byte_whatever_dies(own_redis: RedisServer, tmp_path: Path) -> None:
    with ExitStack() as stack:
        holders = [Holder(own_redis.url, f"holder-{n}", tmp_path) for n in range(2)]
        for holder in holders:
            stack.callback(holder.kill)
        node = Node(store_settings(redis_retry_s=0.1, fetch_s=5.0), own_redis.url)
        stack.callback(node.close)
        with Readers(node) as readers:
            readers.until("peer")
            node.directory.client.flushall()
            readers.until("peer")  # announced again
            only = range(TENSORS, 2 * TENSORS)  # only the first holder has these
            for n in only:
                ref = tensor_ref(n)
                node.peers.materialize(f"127.0.0.1:{holders[0].port}", ref, record_of(ref))
            before = readers.counted()
            holders[0].kill()
            readers.tensors = range(2 * TENSORS)
            readers.until("peer", "made", since=before)  # the other makes what died once, then holds it
            holders[0].start()
            readers.until("peer")
            own_redis.kill()
            readers.until("made/degraded")
            holders[1].kill()
            readers.until("made/degraded")
            own_redis.start()
            readers.until("peer")
            before = readers.counted()
            for file in list((tmp_path / "holder-0").glob("*.tensor")):
                damaged = bytearray(file.read_bytes())
                damaged[len(damaged) // 2] ^= 0xFF
                file.write_bytes(damaged)
            readers.until("made", since=before)  # a broken file is a miss
            holders[1].start()
            readers.until("peer")
        assert readers.errors == []
        assert readers.wrong == []
        addresses = sorted(f"127.0.0.1:{each.port}" for each in holders)
        eventually(lambda: node.directory.replicas(STAGE_FRAMES) == addresses)
