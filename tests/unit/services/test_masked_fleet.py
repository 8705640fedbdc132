"""What a fleet computes, remembers and shows of a masked camera does not depend on what the mask hides."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from dataclasses import dataclass, fields
from pathlib import Path

import pytest

from lookout.administration.masks import next_masks
from lookout.rules.masks import Masks
from lookout.services.gateway.media.store import jpeg
from lookout.streams.filmed import filmed_pictures
from lookout.v1.frames_pb2 import FramesRecord
from lookout.v1.watches_pb2 import Point, Watch, Zone
from lookout.video.sandbox import SandboxPool
from lookout.wire import FRAMES, SEGMENTS, to_json
from tests.flipping import MASK
from tests.masked_decoders import Pools, decoders
from tests.one_process_fleet import OneProcessFleet
from tests.streams import segments
from tests.tiny_models import checkpoint

SAMPLING = {"fps": 2.0, "stride_s": 2.0, "window_s": 6.0}
WATCH = Watch(id="fall", version=1, question="Is anyone lying?")
#: a chapter's files that name its writing process, and the time: the rest is what they name
UNRELATED = {"owner.lock"}


@pytest.fixture(scope="module")
def pools() -> Iterator[Pools]:
    """Two decoders that differ only in what the mask hides."""
    yield from decoders()


@dataclass(frozen=True)
class Made:
    """What a fleet made of a camera, as bytes."""

    frames: list[bytes]
    pixels: list[bytes]
    tokens: list[bytes]
    embeddings: list[bytes]
    verdicts: list[bytes]
    kv: list[bytes]
    memory: dict[str, bytes]
    pictures: list[bytes]


def masks(*, masked: bool) -> Masks:
    """The mask of the camera, or none."""
    ((polygon,),) = (layer.hide for layer in MASK.layers)
    hide = Zone(points=[Point(x=x, y=y) for x, y in polygon])
    return Masks({"cam": to_json(next_masks("cam", None, [hide], [], "ann"))}.get if masked else {}.get)


def stored(fleet: OneProcessFleet, ref: object) -> bytes:
    """A tensor in the store."""
    held = fleet.store.get(ref)  # type: ignore[arg-type]
    assert held is not None
    return held.tobytes()


def pictures(
    pool: SandboxPool, fleet: OneProcessFleet, records: list[FramesRecord], hidden: Masks
) -> list[bytes]:
    """Every sampled picture, as the gateway shows it."""
    found = []
    for record, sent in zip(records, fleet.topics[SEGMENTS.name], strict=True):
        mask = hidden.shown("cam", record.labels.masks).mask
        rows = range(len(record.segment.frames))
        shown = filmed_pictures(pool, sent.value, record.segment, rows, 224, mask=mask)
        found += [jpeg(shown[row]) for row in rows]
    return found


def kv(fleet: OneProcessFleet) -> list[bytes]:
    """The KV that the engine holds of the camera."""
    (held,) = (fleet.engine.kv(entry.stream) for entry in fleet.engine.memory())
    return [layer.float().numpy().tobytes() for layer in (*held.keys, *held.values)]


def made(pool: SandboxPool, folder: Path, *, masked: bool) -> Made:
    """Play six seconds of a camera through all stages."""
    hidden = masks(masked=masked)
    fleet = OneProcessFleet(
        checkpoint("internvl"), WATCH, decoder=pool, masks=hidden, memory=folder, **SAMPLING
    )
    try:
        for data in segments(6.0):
            fleet.send(data)
        records = [FramesRecord.FromString(record.value) for record in fleet.topics[FRAMES.name]]
        tokens, verdicts = fleet.tokens, fleet.verdicts
        pixels = [stored(fleet, record.segment.pixels) for record in records]
        embeddings = [stored(fleet, record.block.embeddings) for record in tokens]
        last, shown = kv(fleet), pictures(pool, fleet, records, hidden)
    finally:
        fleet.close()
    for record in tokens:
        record.block.ClearField("tower_us")  # measured
    for verdict in verdicts:
        verdict.cost.ClearField("device_us")
    memory = {
        path.name: path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file() and path.name not in UNRELATED
    }
    return Made(
        [record.SerializeToString(deterministic=True) for record in records],
        pixels,
        [record.SerializeToString(deterministic=True) for record in tokens],
        embeddings,
        [verdict.SerializeToString(deterministic=True) for verdict in verdicts],
        last,
        memory,
        shown,
    )


@pytest.mark.slow
def test_flipping_what_is_hidden_changes_no_bit_of_anything_made_of_a_camera(
    pools: Pools, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Records, tensors, embeddings, KV, verdicts, pages of memory and pictures: each differs without the
    mask."""
    monkeypatch.setattr(uuid, "uuid4", lambda: uuid.UUID(int=0))  # of which a chapter's name is made
    shown, flipped = (
        made(pool, tmp_path / f"shown-{number}", masked=False) for number, pool in enumerate(pools)
    )
    masked, flipped_and_masked = (
        made(pool, tmp_path / f"masked-{number}", masked=True) for number, pool in enumerate(pools)
    )
    for field in fields(Made):
        found = getattr(masked, field.name)
        assert found, field.name
        assert found == getattr(flipped_and_masked, field.name), field.name
        assert getattr(shown, field.name) != getattr(flipped, field.name), field.name
