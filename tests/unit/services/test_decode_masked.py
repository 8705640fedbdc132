"""What decode writes and stores of a masked camera does not depend on what the mask hides."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from lookout.administration.masks import next_masks
from lookout.pruning import Change, PrunePolicy
from lookout.v1.frames_pb2 import FramesRecord
from lookout.v1.watches_pb2 import Point, Zone
from lookout.video.sandbox import SandboxPool
from lookout.wire import to_json
from tests.flipping import MASK
from tests.masked_decoders import Pools, decoders
from tests.unit.services.decode_case import World, pieces


@pytest.fixture(scope="module")
def pools() -> Iterator[Pools]:
    """Two decoders that differ only in what the mask hides."""
    yield from decoders()


def played(pool: SandboxPool, change: Change, *, masked: bool) -> tuple[list[FramesRecord], World]:
    """The records of eight seconds, and the world with their pixels."""
    world = World(pool, policy=PrunePolicy(change=change))
    if masked:
        ((polygon,),) = (layer.hide for layer in MASK.layers)
        hide = Zone(points=[Point(x=x, y=y) for x, y in polygon])
        world.masks["yard"] = to_json(next_masks("yard", None, [hide], [], "ann"))
    return [record for piece in pieces() for record in world.send(piece)], world


@pytest.mark.slow
@pytest.mark.parametrize("change", [Change.LUMA, Change.VECTORS])
def test_flipping_what_is_hidden_changes_no_bit_of_records_and_pixels(pools: Pools, change: Change) -> None:
    shown, flipped = (played(pool, change, masked=False)[0] for pool in pools)
    assert shown != flipped
    (records, world), (flipped_records, flipped_world) = (played(pool, change, masked=True) for pool in pools)
    assert [record.SerializeToString(deterministic=True) for record in records] == [
        record.SerializeToString(deterministic=True) for record in flipped_records
    ]
    for record in records:
        ref = record.segment.pixels
        held, flipped_pixels = world.store.get(ref), flipped_world.store.get(ref)
        assert held is not None
        assert flipped_pixels is not None
        assert held.tobytes() == flipped_pixels.tobytes()
        again = flipped_world.handler.reader.materialize(ref, record)
        np.testing.assert_array_equal(again, held)
