"""64-bit integers beyond what a JSON number holds are refused where a record is read."""

from __future__ import annotations

import json

import pytest
from google.protobuf.message import Message

from lookout.v1.frames_pb2 import FramesRecord
from lookout.v1.tokens_pb2 import TokensRecord
from lookout.v1.verdicts_pb2 import Verdict
from lookout.wire import WireError, from_bytes, from_json, to_json
from lookout.wire.numbers import LARGEST


def tokens(**block: int) -> TokensRecord:
    """A record of one block."""
    record = TokensRecord(camera="a", epoch=1)
    for name, value in block.items():
        setattr(record.block, name, value)
    return record


def deep() -> TokensRecord:
    """A record whose frames have one number too many."""
    record = tokens()
    record.block.frames.add(sample=3)
    record.block.frames.add(sample=LARGEST + 1)
    return record


@pytest.mark.parametrize(
    ("record", "field"),
    [
        (TokensRecord(epoch=LARGEST + 1), "TokensRecord.epoch"),
        (TokensRecord(wall_offset_us=-LARGEST - 1), "TokensRecord.wall_offset_us"),
        (tokens(index=1 << 63), "StrideBlock.index"),
        (tokens(end_us=1 << 62), "StrideBlock.end_us"),
        (deep(), "BlockFrame.sample"),
        (FramesRecord(epoch=(1 << 64) - 1), "FramesRecord.epoch"),
    ],
)
def test_an_integer_beyond_the_range_is_named(record: Message, field: str) -> None:
    with pytest.raises(WireError, match=rf"lookout\.v1\.{field}: -?\d+ is beyond 2\^53"):
        from_bytes(record.SerializeToString(), type(record))


def test_a_repeated_integer_is_checked() -> None:
    record = tokens()
    record.block.embeddings.shape[:] = [4, LARGEST + 1]
    with pytest.raises(WireError, match=r"TensorRef\.shape"):
        from_bytes(record.SerializeToString(), TokensRecord)


def test_the_largest_number_is_taken_and_flops_are_not_checked() -> None:
    record = tokens(index=LARGEST, start_us=-LARGEST, flops_vision=LARGEST * 4)
    assert from_bytes(record.SerializeToString(), TokensRecord) == record
    verdict = Verdict(epoch=LARGEST)
    verdict.cost.flops_dense = LARGEST * 4
    assert from_json(to_json(verdict), Verdict) == verdict


@pytest.mark.parametrize("number", [LARGEST + 1, str(1 << 63)])
def test_json_is_checked_too(number: int | str) -> None:
    with pytest.raises(WireError, match=r"Verdict\.epoch"):
        from_json(json.dumps({"epoch": number}).encode(), Verdict)
