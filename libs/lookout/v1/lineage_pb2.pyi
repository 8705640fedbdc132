from lookout.v1 import bounds_pb2 as _bounds_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Stage(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    STAGE_UNSPECIFIED: _ClassVar[Stage]
    STAGE_FRAMES: _ClassVar[Stage]
    STAGE_TOKENS: _ClassVar[Stage]
    STAGE_SAMPLES: _ClassVar[Stage]
    STAGE_CHAPTERS: _ClassVar[Stage]

class Cause(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    CAUSE_UNSPECIFIED: _ClassVar[Cause]
    CAUSE_NO_FRAMES: _ClassVar[Cause]
    CAUSE_SILENCE: _ClassVar[Cause]
    CAUSE_CLOCK_JUMP: _ClassVar[Cause]
    CAUSE_CLOCK_RESET: _ClassVar[Cause]
    CAUSE_CONFIGURATION: _ClassVar[Cause]
    CAUSE_LATE: _ClassVar[Cause]
    CAUSE_TWO_CAMERAS: _ClassVar[Cause]
    CAUSE_QUOTA: _ClassVar[Cause]
    CAUSE_PIXELS_LOST: _ClassVar[Cause]
    CAUSE_OVERLOAD: _ClassVar[Cause]
    CAUSE_OTHER_MODEL: _ClassVar[Cause]
    CAUSE_OTHER_SAMPLING: _ClassVar[Cause]
    CAUSE_MIXED_GRIDS: _ClassVar[Cause]
    CAUSE_DAMAGED: _ClassVar[Cause]
    CAUSE_TOKENS_LOST: _ClassVar[Cause]
    CAUSE_REJECTED: _ClassVar[Cause]
    CAUSE_ENGINE: _ClassVar[Cause]
    CAUSE_RETENTION: _ClassVar[Cause]
    CAUSE_ERASED: _ClassVar[Cause]
    CAUSE_MOVED: _ClassVar[Cause]
    CAUSE_ENDED: _ClassVar[Cause]
    CAUSE_GATE: _ClassVar[Cause]
STAGE_UNSPECIFIED: Stage
STAGE_FRAMES: Stage
STAGE_TOKENS: Stage
STAGE_SAMPLES: Stage
STAGE_CHAPTERS: Stage
CAUSE_UNSPECIFIED: Cause
CAUSE_NO_FRAMES: Cause
CAUSE_SILENCE: Cause
CAUSE_CLOCK_JUMP: Cause
CAUSE_CLOCK_RESET: Cause
CAUSE_CONFIGURATION: Cause
CAUSE_LATE: Cause
CAUSE_TWO_CAMERAS: Cause
CAUSE_QUOTA: Cause
CAUSE_PIXELS_LOST: Cause
CAUSE_OVERLOAD: Cause
CAUSE_OTHER_MODEL: Cause
CAUSE_OTHER_SAMPLING: Cause
CAUSE_MIXED_GRIDS: Cause
CAUSE_DAMAGED: Cause
CAUSE_TOKENS_LOST: Cause
CAUSE_REJECTED: Cause
CAUSE_ENGINE: Cause
CAUSE_RETENTION: Cause
CAUSE_ERASED: Cause
CAUSE_MOVED: Cause
CAUSE_ENDED: Cause
CAUSE_GATE: Cause

class RecordRef(_message.Message):
    __slots__ = ("topic", "partition", "offset")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    topic: str
    partition: int
    offset: int
    def __init__(self, topic: _Optional[str] = ..., partition: _Optional[int] = ..., offset: _Optional[int] = ...) -> None: ...

class TensorRef(_message.Message):
    __slots__ = ("id", "stage", "camera", "epoch", "config_digest", "segments", "shape", "dtype", "length", "crc32c", "input")
    ID_FIELD_NUMBER: _ClassVar[int]
    STAGE_FIELD_NUMBER: _ClassVar[int]
    CAMERA_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    CONFIG_DIGEST_FIELD_NUMBER: _ClassVar[int]
    SEGMENTS_FIELD_NUMBER: _ClassVar[int]
    SHAPE_FIELD_NUMBER: _ClassVar[int]
    DTYPE_FIELD_NUMBER: _ClassVar[int]
    LENGTH_FIELD_NUMBER: _ClassVar[int]
    CRC32C_FIELD_NUMBER: _ClassVar[int]
    INPUT_FIELD_NUMBER: _ClassVar[int]
    id: str
    stage: Stage
    camera: str
    epoch: int
    config_digest: str
    segments: _containers.RepeatedCompositeFieldContainer[RecordRef]
    shape: _containers.RepeatedScalarFieldContainer[int]
    dtype: str
    length: int
    crc32c: int
    input: RecordRef
    def __init__(self, id: _Optional[str] = ..., stage: _Optional[_Union[Stage, str]] = ..., camera: _Optional[str] = ..., epoch: _Optional[int] = ..., config_digest: _Optional[str] = ..., segments: _Optional[_Iterable[_Union[RecordRef, _Mapping]]] = ..., shape: _Optional[_Iterable[int]] = ..., dtype: _Optional[str] = ..., length: _Optional[int] = ..., crc32c: _Optional[int] = ..., input: _Optional[_Union[RecordRef, _Mapping]] = ...) -> None: ...

class Sampling(_message.Message):
    __slots__ = ("step_us", "block_samples", "window_blocks")
    STEP_US_FIELD_NUMBER: _ClassVar[int]
    BLOCK_SAMPLES_FIELD_NUMBER: _ClassVar[int]
    WINDOW_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    step_us: int
    block_samples: int
    window_blocks: int
    def __init__(self, step_us: _Optional[int] = ..., block_samples: _Optional[int] = ..., window_blocks: _Optional[int] = ...) -> None: ...

class StreamEvent(_message.Message):
    __slots__ = ("kind", "start_us", "end_us", "reason", "segment", "cause")
    class Kind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        KIND_UNSPECIFIED: _ClassVar[StreamEvent.Kind]
        KIND_GAP: _ClassVar[StreamEvent.Kind]
        KIND_LATE: _ClassVar[StreamEvent.Kind]
        KIND_SKIPPED: _ClassVar[StreamEvent.Kind]
    KIND_UNSPECIFIED: StreamEvent.Kind
    KIND_GAP: StreamEvent.Kind
    KIND_LATE: StreamEvent.Kind
    KIND_SKIPPED: StreamEvent.Kind
    KIND_FIELD_NUMBER: _ClassVar[int]
    START_US_FIELD_NUMBER: _ClassVar[int]
    END_US_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    SEGMENT_FIELD_NUMBER: _ClassVar[int]
    CAUSE_FIELD_NUMBER: _ClassVar[int]
    kind: StreamEvent.Kind
    start_us: int
    end_us: int
    reason: str
    segment: RecordRef
    cause: Cause
    def __init__(self, kind: _Optional[_Union[StreamEvent.Kind, str]] = ..., start_us: _Optional[int] = ..., end_us: _Optional[int] = ..., reason: _Optional[str] = ..., segment: _Optional[_Union[RecordRef, _Mapping]] = ..., cause: _Optional[_Union[Cause, str]] = ...) -> None: ...
