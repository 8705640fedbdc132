"""Every field of the wire has a range, which is checked where a record is read."""

from __future__ import annotations

import json

import pytest
from google.protobuf.message import Message
from google.protobuf.timestamp_pb2 import Timestamp

from lookout.v1.frames_pb2 import FramesRecord
from lookout.v1.lineage_pb2 import Sampling
from lookout.v1.tokens_pb2 import TokensRecord
from lookout.v1.verdicts_pb2 import Verdict
from lookout.v1.watches_pb2 import Rule, Watch, Zone
from lookout.wire import WireError, check_epoch, from_bytes, from_json, to_json
from lookout.wire.ranges import LARGEST


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
    with pytest.raises(WireError, match=rf"lookout\.v1\.{field}: -?\d+ is outside"):
        from_bytes(record.SerializeToString(), type(record))


def test_a_repeated_integer_is_checked() -> None:
    record = tokens()
    record.block.embeddings.shape[:] = [4, LARGEST + 1]
    with pytest.raises(WireError, match=r"TensorRef\.shape"):
        from_bytes(record.SerializeToString(), TokensRecord)


def test_the_largest_number_is_taken_and_flops_are_not_checked() -> None:
    record = tokens(index=LARGEST, start_us=-LARGEST, flops_vision=2**55)
    assert from_bytes(record.SerializeToString(), TokensRecord) == record
    verdict = Verdict(epoch=LARGEST)
    verdict.cost.flops_dense = 2**55
    assert from_json(to_json(verdict), Verdict) == verdict


@pytest.mark.parametrize(
    ("record", "words"),
    [
        (FramesRecord(sampling=Sampling(window_blocks=2**32 - 1)), r"is outside the range 0 to 256"),
        (Verdict(activity_rows=2**32 - 1), r"Verdict.activity_rows"),
        (Verdict(p_yes=float("nan")), r"Verdict.p_yes: nan is outside the range 0 to 1"),
        (Verdict(question="x" * 1001), r"Verdict.question: 1001 characters; the limit is 1000"),
        (Verdict(start=Timestamp(seconds=2**60)), r"Verdict.start"),
        (Watch(rule=Rule(zones=[Zone()] * 21)), r"Rule.zones: 21 entries; the limit is 20"),
    ],
)  # fmt: skip
def test_a_field_outside_its_range_is_named(record: Message, words: str) -> None:
    with pytest.raises(WireError, match=words):
        from_bytes(record.SerializeToString(), type(record))


def test_an_epoch_of_the_future_is_refused() -> None:
    written_ms = 1_800_000_000_000
    check_epoch(1000 * (written_ms + 3_600_000), written_ms)
    with pytest.raises(WireError, match="after the record was written"):
        check_epoch(LARGEST, written_ms)


@pytest.mark.parametrize("number", [LARGEST + 1, str(1 << 63)])
def test_json_is_checked_too(number: int | str) -> None:
    with pytest.raises(WireError, match=r"Verdict\.epoch"):
        from_json(json.dumps({"epoch": number}).encode(), Verdict)
