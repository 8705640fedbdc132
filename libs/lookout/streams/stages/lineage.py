"""Checks the record from which a stage recomputes a lost tensor."""

from __future__ import annotations

from typing import TypeVar

from google.protobuf.message import Message

from lookout.errors import RecordsGoneError
from lookout.past.erasures import Fence, check_fence
from lookout.runtime.store import LineageBrokenError
from lookout.runtime.worker import Record, RecordSource
from lookout.v1.frames_pb2 import FramesRecord
from lookout.v1.lineage_pb2 import RecordRef, TensorRef
from lookout.v1.tokens_pb2 import TokensRecord

M = TypeVar("M", FramesRecord, TokensRecord)


def check_lineage(ref: TensorRef, record: Message, kind: type[M], body: str, fence: Fence) -> M:
    """Check and return the record from which a tensor can be recomputed.

    Args:
        ref: Reference to the tensor.
        record: The record that came with the request.
        kind: Type of the stage's messages.
        body: Name of the message's field with the tensors, `start_us` and `end_us`.
        fence: Erased times.

    Raises:
        LineageBrokenError: The record has another type or camera, or its time was erased.
    """
    if not isinstance(record, kind) or not record.HasField(body):  # type: ignore[arg-type]
        raise LineageBrokenError(
            f"{ref.id}: the record that came with the request is not a {kind.__name__} with a {body}"
        )
    if record.camera != ref.camera:
        raise LineageBrokenError(f"{ref.id}: the record that came with the request belongs to another camera")
    span = getattr(record, body)
    check_fence(fence, ref, record.wall_offset_us, span.start_us, span.end_us)
    return record


def lineage_record(records: RecordSource, at: RecordRef, ref: TensorRef) -> Record:
    """Return one of the records from which a tensor is computed, read from Kafka again.

    Args:
        records: Reads records.
        at: Topic, partition and offset of the record.
        ref: Reference to the tensor.

    Raises:
        LineageBrokenError: The record no longer exists, or belongs to another camera.
        TransientError: Kafka does not answer in time.
    """
    try:
        (record,) = records.read(at.topic, at.partition, [at.offset])
    except RecordsGoneError as error:
        raise LineageBrokenError(f"{ref.id}: {error}") from error
    if record.camera != ref.camera:
        raise LineageBrokenError(f"{ref.id}: the record at offset {at.offset} belongs to another camera")
    return record
