"""A real Redis for the directory, and stores served over gRPC on the loopback."""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass

import grpc
import numpy as np
import pytest

from lookout.local import RedisServer
from lookout.runtime.store import (
    Announcer,
    Directory,
    Peers,
    StoreSettings,
    TensorClient,
    TensorService,
    TensorStore,
)
from lookout.v1.lineage_pb2 import STAGE_FRAMES, RecordRef, TensorRef
from tests.changed_settings import store_settings


@pytest.fixture
def redis_url(redis_server: RedisServer) -> str:
    redis_server.start()
    directory = Directory(redis_server.url, StoreSettings())
    directory.client.flushall()
    directory.close()
    return redis_server.url


@dataclass
class Pod:
    """A served store with a lease."""

    store: TensorStore
    announcer: Announcer
    address: str
    server: grpc.Server


@dataclass
class Fleet:
    """Makes pods and clients that are torn down together."""

    url: str
    settings: StoreSettings
    stack: ExitStack

    def directory(self) -> Directory:
        directory = Directory(self.url, self.settings)
        self.stack.callback(directory.close)
        return directory

    def pod(self, name: str, *, stage: int = STAGE_FRAMES, lease: bool = True) -> Pod:
        store = TensorStore(self.settings)
        server = grpc.server(ThreadPoolExecutor(8))
        TensorService(store).register(server)
        address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
        server.start()
        announcer = Announcer(self.directory(), stage, name, address, store.lines)
        store.holdings = announcer
        if lease:
            announcer.start()
            self.stack.callback(announcer.stop)
        self.stack.callback(lambda: server.stop(0).wait())
        return Pod(store, announcer, address, server)

    def client(self, **more: object) -> TensorClient:
        peers = Peers(self.settings)
        self.stack.callback(peers.close)
        return TensorClient(peers, self.directory(), **more)  # type: ignore[arg-type]


@pytest.fixture
def fleet_of(redis_url: str) -> Iterator[Callable[..., Fleet]]:
    with ExitStack() as stack:
        base = {
            "memory_bytes": 1 << 24,
            "unread_bytes": 1 << 24,
            "lease_s": 30.0,
            "redis_timeout_s": 2.0,
            "redis_retry_s": 0.05,
        }
        yield lambda **more: Fleet(redis_url, store_settings(**(base | more)), stack)


@pytest.fixture
def fleet(fleet_of: Callable[..., Fleet]) -> Fleet:
    return fleet_of()


def ref(name: str, offset: int = 0, camera: str = "cam{1}") -> TensorRef:
    source = RecordRef(topic="camera.segments.v1", partition=0, offset=offset)
    return TensorRef(id=name, stage=STAGE_FRAMES, camera=camera, input=source, segments=[source])


def data(seed: int, rows: int = 8, cols: int = 1000) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((rows, cols)).astype(np.float32)
