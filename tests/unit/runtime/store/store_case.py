"""Stores and tensors for the store's tests."""

from pathlib import Path

import numpy as np

from lookout.runtime.store import TensorStore
from lookout.v1.lineage_pb2 import STAGE_FRAMES, RecordRef, TensorRef
from tests.changed_settings import store_settings


def ref(name: str, offset: int = 0, camera: str = "cam") -> TensorRef:
    source = RecordRef(topic="camera.segments.v1", partition=0, offset=offset)
    return TensorRef(id=name, stage=STAGE_FRAMES, camera=camera, input=source, segments=[source])


def kib(seed: int, n: int = 1) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 255, (n, 1024), dtype=np.uint8)


def store(memory: int, disk: int = 0, spool: Path | None = None, **more: float) -> TensorStore:
    unread = {"unread_bytes": memory + (disk if spool else 0), "camera_bytes": 1 << 27} | more
    return TensorStore(
        store_settings(memory_bytes=memory, disk_bytes=disk, spool=spool, reserve_bytes=4096, **unread)
    )
