"""Checks the references in messages: to records of one topic in the message's own partition, and to tensors
of one stage.

A forged reference could choose what a stage reads, waits for and recomputes. So references are checked when
their message is read (`wire.door`), and later code may follow them. `tests/unit/wire/test_references.py`
fails if a message has a reference that is missing here.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any, Final

from google.protobuf.message import Message

from lookout.errors import LookoutError
from lookout.v1.alerts_pb2 import Alert
from lookout.v1.frames_pb2 import FramesRecord
from lookout.v1.lineage_pb2 import (
    STAGE_FRAMES,
    STAGE_SAMPLES,
    STAGE_TOKENS,
    RecordRef,
    TensorRef,
)
from lookout.v1.tokens_pb2 import TokensRecord
from lookout.v1.verdicts_pb2 import Verdict
from lookout.wire import topics
from lookout.wire.topics import Topic

#: topic of the records to which a field refers
RECORDS: Final[dict[str, Topic]] = {
    "SegmentFrames.segment": topics.SEGMENTS,
    "StreamEvent.segment": topics.SEGMENTS,
    "StrideBlock.inputs": topics.FRAMES,
    "TensorRef.segments": topics.SEGMENTS,
    "Evidence.record": topics.FRAMES,
    "Quota.first_left_out": topics.SEGMENTS,
}
#: stage of the tensors to which a field refers
TENSORS: Final[dict[str, int]] = {
    "SegmentFrames.pixels": STAGE_FRAMES,
    "StrideBlock.embeddings": STAGE_TOKENS,
    "StrideBlock.deepstack": STAGE_TOKENS,
}
#: by stage: the topic of the record from which a tensor was made (`TensorRef.input`)
INPUTS: Final[dict[int, Topic]] = {
    STAGE_FRAMES: topics.SEGMENTS,
    STAGE_TOKENS: topics.FRAMES,
    STAGE_SAMPLES: topics.RECORDING_PARTS,
}
#: bytes per number, for the dtypes that stages write
_WIDTHS: Final = {"uint8": 1, "float16": 2, "bfloat16": 2, "float32": 4, "float64": 8}


class BadReferenceError(LookoutError, ValueError):
    """A message refers to a record or tensor that it cannot have been made from."""


@dataclass(frozen=True, slots=True)
class _Owner:
    """The message whose references are checked. `partition`: the only partition to which they may refer;
    None: any.
    """

    camera: str
    epoch: int
    partition: int | None


_Check = Callable[[Message, _Owner], None]


def check_references(message: Message, partition: int | None = None) -> None:
    """Check every reference of a message.

    Args:
        message: The message of a record.
        partition: The record's partition. Each stage writes to the partition number from which it read, so
            references of camera records stay within it. None: unknown.

    Raises:
        BadReferenceError: A reference is to a record of another topic or partition or with an invalid offset;
            or to a tensor of another stage, camera or epoch, or one whose size does not match its shape.
    """
    checks = _checks(message.DESCRIPTOR)
    if not checks:
        return
    owner = _Owner(
        getattr(message, "camera", ""),
        getattr(message, "epoch", 0),
        partition if isinstance(message, FramesRecord | TokensRecord | Verdict | Alert) else None,
    )
    for check in checks:
        check(message, owner)


def check_frames(record: FramesRecord) -> None:
    """Check that a record has one row of pixels for each of its frames.

    Raises:
        BadReferenceError: The numbers differ.
    """
    segment = record.segment
    if segment.pixels.shape and segment.pixels.shape[0] != len(segment.frames):
        raise BadReferenceError(
            f"SegmentFrames.pixels: {segment.pixels.shape[0]} rows, but the record has "
            f"{len(segment.frames)} frames"
        )


@cache
def _checks(kind: Any) -> tuple[_Check, ...]:
    checks: list[_Check] = []
    for field in kind.fields:
        if field.message_type is None:
            continue
        path = f"{kind.name}.{field.name}"
        if field.message_type is RecordRef.DESCRIPTOR:
            checks.append(_records(path, field))
        elif field.message_type is TensorRef.DESCRIPTOR:
            checks.append(_tensor(path, field))
        elif inner := _checks(field.message_type):
            checks.append(_inner(field, inner))
    return tuple(checks)


def _each(message: Message, field: Any) -> Any:
    if field.is_repeated:
        return getattr(message, field.name)
    return (getattr(message, field.name),) if message.HasField(field.name) else ()


def _inner(field: Any, checks: tuple[_Check, ...]) -> _Check:
    def check(message: Message, owner: _Owner) -> None:
        for inner in _each(message, field):
            for one in checks:
                one(inner, owner)

    return check


def _records(path: str, field: Any) -> _Check:
    topic = RECORDS[path]

    def check(message: Message, owner: _Owner) -> None:
        for at in _each(message, field):
            _check_record(path, at, topic, owner.partition)

    return check


def _tensor(path: str, field: Any) -> _Check:
    stage = TENSORS[path]

    def check(message: Message, owner: _Owner) -> None:
        for ref in _each(message, field):
            if ref.stage != stage:
                raise BadReferenceError(f"{path}: the tensor belongs to stage {ref.stage}, not {stage}")
            if ref.camera != owner.camera or ref.epoch != owner.epoch:
                raise BadReferenceError(
                    f"{path}: the tensor belongs to camera {ref.camera!r}, epoch {ref.epoch}, but the "
                    f"record to camera {owner.camera!r}, epoch {owner.epoch}"
                )
            if ref.HasField("input"):
                _check_record("TensorRef.input", ref.input, INPUTS[stage], owner.partition)
            for segment in ref.segments:
                _check_record("TensorRef.segments", segment, topics.SEGMENTS, owner.partition)
            _check_size(ref)

    return check


def _check_record(path: str, at: RecordRef, topic: Topic, partition: int | None) -> None:
    if at.topic != topic.name:
        raise BadReferenceError(f"{path}: the record is in {at.topic!r}, not {topic.name}")
    if at.partition < 0 or (partition is not None and at.partition != partition):
        raise BadReferenceError(f"{path}: the record is in partition {at.partition}, not {partition}")
    if at.offset < 0:
        raise BadReferenceError(f"{path}: {at.offset} is not a valid offset")


def _check_size(ref: TensorRef) -> None:
    """Check that a tensor has an id unless it is empty, and as many bytes as its shape needs."""
    if not ref.id and (ref.shape or ref.length):
        raise BadReferenceError("the tensor has no id")
    if not ref.shape:
        return
    width = _WIDTHS.get(ref.dtype)
    if width is None:
        raise BadReferenceError(f"{ref.id}: tensors of dtype {ref.dtype!r} cannot be sent")
    if math.prod(ref.shape) * width != ref.length:
        raise BadReferenceError(
            f"{ref.id}: {ref.length} bytes do not match {ref.dtype} of shape {list(ref.shape)}"
        )
