"""A holder of tensors as a process: `python -m tests.fleet.store_holder REDIS_URL NAME SPOOL PORT`.

It holds the tensors of its share from the start and makes any other on request;
it prints a line when it serves.
"""

from __future__ import annotations

import sys
import threading
from pathlib import Path

import numpy as np
from google.protobuf.message import Message

from lookout.runtime.net import GrpcServer
from lookout.runtime.store import Array, Node, StoreSettings
from lookout.v1.frames_pb2 import FramesRecord
from lookout.v1.lineage_pb2 import STAGE_FRAMES, RecordRef, TensorRef

TENSORS = 24
SHAPE = (9, 64, 64, 3)
BYTES = 9 * 64 * 64 * 3


def tensor_ref(n: int) -> TensorRef:
    source = RecordRef(topic="camera.segments.v1", partition=0, offset=n)
    camera = f"camera-{n % 4}"
    return TensorRef(
        id=f"frames/{n}",
        stage=STAGE_FRAMES,
        camera=camera,
        segments=[source],
        input=source,
        shape=SHAPE,
        dtype="uint8",
        length=BYTES,
    )


def record_of(ref: TensorRef) -> FramesRecord:
    """The record that names a tensor: a holder makes none from another."""
    record = FramesRecord(camera=ref.camera)
    record.segment.pixels.CopyFrom(ref)
    for _ in range(ref.shape[0]):
        record.segment.frames.add()
    return record


def make(ref: TensorRef, record: Message | None = None) -> Array:
    """A pure function of the reference."""
    return np.random.default_rng(ref.input.offset).integers(0, 255, SHAPE, dtype=np.uint8)


def main() -> None:
    redis_url, name, spool, port = sys.argv[1:]
    # Room for few in memory: most are read from disk, with their checksums.
    settings = StoreSettings(
        memory_bytes=3 * BYTES, disk_bytes=64 * BYTES, spool=Path(spool), unread_bytes=60 * BYTES, lease_s=1.0
    )
    node = Node(settings, redis_url)
    node.store.makes(STAGE_FRAMES, make)
    server = GrpcServer("127.0.0.1", int(port))
    server.add(node.service.register, node.service.NAME)
    server.start()
    for n in range(TENSORS):
        if n % 2 == int(name[-1]):
            node.store.put(tensor_ref(n), make(tensor_ref(n)))
    node.join(STAGE_FRAMES, name, f"127.0.0.1:{port}")
    print("serving", flush=True)
    threading.Event().wait()


if __name__ == "__main__":
    main()
