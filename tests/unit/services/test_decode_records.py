"""A decoded segment as a record."""

from __future__ import annotations

from lookout.v1.frames_pb2 import Frame
from tests.streams import segments
from tests.unit.services.decode_case import World, pieces, samples


def test_codecs_without_vectors_rest_on_luma() -> None:
    record = World().send(segments(2.0, codec="libx265")[0])[0]
    assert not record.segment.facts.has_vectors
    assert [f.basis for f in record.segment.frames] == [Frame.BASIS_NEW] + [Frame.BASIS_LUMA] * 3
    assert not any(f.motion for f in record.segment.frames)


def test_no_vectors_are_exported_where_pixels_decide() -> None:
    world = World(pruning="default")
    records = [record for piece in pieces() for record in world.send(piece)]
    assert samples(records) == list(range(16))
    frames = [frame for record in records for frame in record.segment.frames]
    assert {frame.basis for frame in frames[1:]} == {Frame.BASIS_LUMA}
    assert not any(frame.motion for frame in frames)
    assert not any(record.segment.facts.has_vectors or record.segment.facts.gather for record in records)
    # The cell a segment ends in is the next one's: what follows its last sample is not decoded.
    assert [record.segment.facts.decoded for record in records] == [16] * 4  # of 20
