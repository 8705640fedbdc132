"""Token records as prune-encode writes them, over random embeddings: a world for prefill's tests."""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np

from lookout.runtime.net import GrpcServer
from lookout.runtime.store import Array, Node, StoreSettings
from lookout.v1.lineage_pb2 import STAGE_TOKENS, RecordRef, StreamEvent, TensorRef
from lookout.v1.tokens_pb2 import BlockFrame, StrideBlock, TemporalPatch, TokensRecord

STRIDE_S = 2
STRIDE_US = STRIDE_S * 1_000_000
SAMPLES = 4
GRID = 4
HIDDEN = 128  # of the tiny model's language half
WALL_US = 1_700_000_000_000_000


def keep_masks(camera: str, epoch: int, index: int) -> np.ndarray:
    """bool [frames, rows, cols]: the first frame whole, the others where something moves."""
    draw = np.random.default_rng(zlib.crc32(f"{camera}/{epoch}/{index}".encode()))
    keep = draw.random((SAMPLES, GRID, GRID)) < 0.3
    keep[0] = True
    return keep


def embeddings(ref: TensorRef) -> Array:
    """What any replica of the stage makes of a reference: a pure function of its id and shape."""
    draw = np.random.default_rng(zlib.crc32(ref.id.encode()))
    return draw.standard_normal(tuple(ref.shape)).astype(np.float32)


def resize(ref: TensorRef, tokens: int) -> None:
    """Let a reference be of another number of tokens."""
    ref.shape[0], ref.length = tokens, tokens * HIDDEN * 4


def tensor_ref(camera: str, epoch: int, index: int, tokens: int) -> TensorRef:
    source = RecordRef(topic="frames.v1", partition=0, offset=max(0, index))
    return TensorRef(
        id=f"tokens/{camera}/{epoch}/{index}/test",
        stage=STAGE_TOKENS,
        camera=camera,
        epoch=epoch,
        config_digest="test",
        segments=[RecordRef(topic="camera.segments.v1", partition=0, offset=max(0, index))],
        shape=[tokens, HIDDEN],
        dtype="float32",
        length=tokens * HIDDEN * 4,
        input=source,
    )


def block_record(
    camera: str,
    index: int,
    *,
    epoch: int = 0,
    empty: bool = False,
    model: str = "",
    still: bool = False,
    luma: int = 100,
) -> TokensRecord:
    """One stride block; `empty`: a hole in the stream; `still`: nothing moves in it, and its anchor looks as
    in every still block but for its `luma`."""
    block = StrideBlock(
        index=index,
        start_us=index * STRIDE_US,
        end_us=(index + 1) * STRIDE_US,
        group_rows=GRID,
        group_cols=GRID,
        model_digest=model,
        inputs=[RecordRef(topic="frames.v1", partition=0, offset=index)],
    )
    if not empty:
        keep = keep_masks(camera, epoch, index)
        if still:
            keep[1:] = False
        for number, mask in enumerate(keep):
            time_us = index * STRIDE_US + number * STRIDE_US // SAMPLES
            block.frames.append(BlockFrame(time_us=time_us, sample=index * SAMPLES + number, row=number))
            block.patches.append(
                TemporalPatch(
                    frames=[number],
                    anchor=number == 0,
                    keep=np.packbits(mask.reshape(-1), bitorder="little").tobytes(),
                    kept=int(mask.sum()),
                )
            )
        block.embeddings.CopyFrom(tensor_ref(camera, epoch, -1 if still else index, int(keep.sum())))
        block.anchor_luma = bytes([luma]) * (4 * GRID * GRID)
        block.patches_total = SAMPLES * GRID * GRID * 4
        block.patches_encoded = int(keep.sum()) * 4
        block.flops_vision_dense = 1000 * block.patches_total
        block.flops_vision = 1000 * block.patches_encoded
    return TokensRecord(camera=camera, epoch=epoch, wall_offset_us=WALL_US + epoch * 10**9, block=block)


def event_record(
    camera: str,
    kind: StreamEvent.Kind,
    *,
    epoch: int = 0,
    at: int = 0,
    reason: str = "silence",
) -> TokensRecord:
    """An event of a stream at the start of stride `at`."""
    event = StreamEvent(kind=kind, start_us=at * STRIDE_US, end_us=at * STRIDE_US, reason=reason)
    return TokensRecord(camera=camera, epoch=epoch, wall_offset_us=WALL_US + epoch * 10**9, event=event)


def stream(camera: str, blocks: int, *, epoch: int = 0, holes: Sequence[int] = ()) -> list[TokensRecord]:
    """A camera's blocks in order, then the gap that ends it."""
    records = [block_record(camera, k, epoch=epoch, empty=k in holes) for k in range(blocks)]
    return [*records, event_record(camera, StreamEvent.KIND_GAP, epoch=epoch, at=blocks)]


@contextmanager
def encoder(redis_url: str, lease_s: float = StoreSettings().lease_s) -> Iterator[tuple[Node, str]]:
    """What prefill sees of prune-encode: a pod that holds tokens, or makes them again; its address."""
    node = Node(StoreSettings(lease_s=lease_s), redis_url)
    node.store.makes(STAGE_TOKENS, lambda ref, record: embeddings(ref))
    server = GrpcServer("127.0.0.1", 0)
    server.add(node.service.register, node.service.NAME)
    server.start()
    address = f"127.0.0.1:{server.port}"
    node.join(STAGE_TOKENS, "prune-encode-0", address)
    try:
        yield node, address
    finally:
        node.close()
        server.stop(0)
