"""A reference names what its message can have been made from, or its message is refused."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from google.protobuf.message import Message

from lookout.v1.frames_pb2 import Frame, FramesRecord
from lookout.v1.lineage_pb2 import STAGE_CHAPTERS, STAGE_FRAMES, STAGE_TOKENS, RecordRef, TensorRef
from lookout.v1.tokens_pb2 import TokensRecord
from lookout.v1.verdicts_pb2 import Verdict
from lookout.wire import (
    FRAMES,
    SEGMENTS,
    TOKENS,
    VERDICTS,
    WireError,
    all_topics,
    message_kind,
    received,
    to_json,
)
from lookout.wire.references import RECORDS, TENSORS


@dataclass(frozen=True)
class Row:
    """A record as it was read."""

    topic: str
    value: bytes
    partition: int = 2
    camera: str = "gate"
    timestamp_ms: int = 1_700_000_000_000


def segment(partition: int = 2, offset: int = 7, topic: str = SEGMENTS.name) -> RecordRef:
    return RecordRef(topic=topic, partition=partition, offset=offset)


def tensor(stage: int, **fields: Any) -> TensorRef:
    facts = {"input": segment(), "segments": [segment()], "shape": [2, 3], "dtype": "uint8", "length": 6}
    if stage == STAGE_TOKENS:
        facts["input"] = segment(topic=FRAMES.name)
    return TensorRef(id="x/gate/5000/0/d", stage=stage, camera="gate", epoch=5000, **{**facts, **fields})


def frames() -> FramesRecord:
    record = FramesRecord(camera="gate", epoch=5000)
    record.segment.segment.CopyFrom(segment())
    record.segment.pixels.CopyFrom(tensor(STAGE_FRAMES))
    record.segment.frames.extend([Frame(), Frame()])
    return record


def tokens() -> TokensRecord:
    record = TokensRecord(camera="gate", epoch=5000)
    record.block.inputs.append(segment(topic=FRAMES.name))
    record.block.embeddings.CopyFrom(tensor(STAGE_TOKENS))
    return record


def references(kind: Any, found: set[Any]) -> Iterator[tuple[str, Any]]:
    """Every field of a message, and of those in it, that refers to a record or a tensor."""
    if kind.full_name in found:
        return
    found.add(kind.full_name)
    for field in kind.fields:
        if field.message_type is None:
            continue
        if field.message_type in (RecordRef.DESCRIPTOR, TensorRef.DESCRIPTOR):
            yield f"{kind.name}.{field.name}", field.message_type
        yield from references(field.message_type, found)


def test_every_reference_of_every_topic_has_its_rule() -> None:
    found: set[Any] = set()
    kinds = {kind for topic in all_topics() if (kind := message_kind(topic.name)) is not None}
    fields = dict(pair for kind in kinds for pair in references(kind.DESCRIPTOR, found))
    records = {path for path, kind in fields.items() if kind is RecordRef.DESCRIPTOR}
    assert records - {"TensorRef.input"} == set(RECORDS)  # an input's topic follows from the tensor's stage
    assert fields.keys() - records == set(TENSORS)


def test_an_honest_record_is_taken() -> None:
    assert received(FramesRecord, Row(FRAMES.name, frames().SerializeToString())) == frames()
    assert received(TokensRecord, Row(TOKENS.name, tokens().SerializeToString())) == tokens()


def _event(record: FramesRecord) -> RecordRef:
    record.event.segment.CopyFrom(segment())
    return record.event.segment


WRONG_PLACES: dict[str, Callable[[RecordRef], object]] = {
    "before the beginning": lambda at: setattr(at, "offset", -1),
    "partition that does not exist": lambda at: setattr(at, "partition", 4),
    "partition far away": lambda at: setattr(at, "partition", 10**9),
    "no topic": lambda at: setattr(at, "topic", ""),
    "topic that does not exist": lambda at: setattr(at, "topic", "nowhere.v1"),
    "Kafka's own topic": lambda at: setattr(at, "topic", "__consumer_offsets"),
    "the topic of another stage": lambda at: setattr(at, "topic", VERDICTS.name),
}
REFERENCES: dict[str, tuple[Callable[[], Message], Callable[[Any], RecordRef]]] = {
    "segment": (frames, lambda record: record.segment.segment),
    "event": (frames, _event),
    "pixels' input": (frames, lambda record: record.segment.pixels.input),
    "pixels' segment": (frames, lambda record: record.segment.pixels.segments[0]),
    "block's input": (tokens, lambda record: record.block.inputs[0]),
    "tokens' input": (tokens, lambda record: record.block.embeddings.input),
    "tokens' segment": (tokens, lambda record: record.block.embeddings.segments[0]),
}


@pytest.mark.parametrize("place", WRONG_PLACES)
@pytest.mark.parametrize("where", REFERENCES)
def test_a_record_that_cannot_be_its_source_is_refused(where: str, place: str) -> None:
    make, reference = REFERENCES[where]
    record = make()
    WRONG_PLACES[place](reference(record))
    topic = FRAMES if isinstance(record, FramesRecord) else TOKENS
    with pytest.raises(WireError):
        received(type(record), Row(topic.name, record.SerializeToString()))


@pytest.mark.parametrize(
    "fields",
    [
        {"stage": STAGE_TOKENS},
        {"stage": STAGE_CHAPTERS},
        {"stage": 99},
        {"camera": "another"},
        {"epoch": 4000},
        {"dtype": "object"},
        {"length": 7},
        {"shape": [2**31 - 1] * 8},
        {"id": ""},
        {"shape": [3, 2]},
    ],
    ids=str,
)
def test_a_tensor_that_is_not_its_own_is_refused(fields: dict[str, Any]) -> None:
    record = frames()
    for name, value in fields.items():
        if name == "shape":
            del record.segment.pixels.shape[:]
            record.segment.pixels.shape.extend(value)
        else:
            setattr(record.segment.pixels, name, value)
    with pytest.raises(WireError):
        received(FramesRecord, Row(FRAMES.name, record.SerializeToString()))


def test_evidence_is_in_the_partition_of_its_verdict() -> None:
    verdict = Verdict(camera="gate", epoch=5000)
    verdict.evidence.add().record.CopyFrom(segment(topic=FRAMES.name))
    assert received(Verdict, Row(VERDICTS.name, to_json(verdict))) == verdict
    verdict.evidence[0].record.partition = 3
    with pytest.raises(WireError, match="partition 3, not 2"):
        received(Verdict, Row(VERDICTS.name, to_json(verdict)))
