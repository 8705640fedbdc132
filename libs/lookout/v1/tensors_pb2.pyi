from lookout.v1 import bounds_pb2 as _bounds_pb2
from lookout.v1 import frames_pb2 as _frames_pb2
from lookout.v1 import lineage_pb2 as _lineage_pb2
from lookout.v1 import recordings_pb2 as _recordings_pb2
from lookout.v1 import tokens_pb2 as _tokens_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class RowRange(_message.Message):
    __slots__ = ("start", "stop")
    START_FIELD_NUMBER: _ClassVar[int]
    STOP_FIELD_NUMBER: _ClassVar[int]
    start: int
    stop: int
    def __init__(self, start: _Optional[int] = ..., stop: _Optional[int] = ...) -> None: ...

class GetTensorRequest(_message.Message):
    __slots__ = ("ref", "rows")
    REF_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    ref: _lineage_pb2.TensorRef
    rows: _containers.RepeatedCompositeFieldContainer[RowRange]
    def __init__(self, ref: _Optional[_Union[_lineage_pb2.TensorRef, _Mapping]] = ..., rows: _Optional[_Iterable[_Union[RowRange, _Mapping]]] = ...) -> None: ...

class GetTensorResponse(_message.Message):
    __slots__ = ("header", "chunk")
    HEADER_FIELD_NUMBER: _ClassVar[int]
    CHUNK_FIELD_NUMBER: _ClassVar[int]
    header: TensorHeader
    chunk: bytes
    def __init__(self, header: _Optional[_Union[TensorHeader, _Mapping]] = ..., chunk: _Optional[bytes] = ...) -> None: ...

class MaterializeTensorRequest(_message.Message):
    __slots__ = ("ref", "rows", "frames", "tokens", "part")
    REF_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    FRAMES_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    PART_FIELD_NUMBER: _ClassVar[int]
    ref: _lineage_pb2.TensorRef
    rows: _containers.RepeatedCompositeFieldContainer[RowRange]
    frames: _frames_pb2.FramesRecord
    tokens: _tokens_pb2.TokensRecord
    part: _recordings_pb2.RecordingPart
    def __init__(self, ref: _Optional[_Union[_lineage_pb2.TensorRef, _Mapping]] = ..., rows: _Optional[_Iterable[_Union[RowRange, _Mapping]]] = ..., frames: _Optional[_Union[_frames_pb2.FramesRecord, _Mapping]] = ..., tokens: _Optional[_Union[_tokens_pb2.TokensRecord, _Mapping]] = ..., part: _Optional[_Union[_recordings_pb2.RecordingPart, _Mapping]] = ...) -> None: ...

class MaterializeTensorResponse(_message.Message):
    __slots__ = ("header", "chunk")
    HEADER_FIELD_NUMBER: _ClassVar[int]
    CHUNK_FIELD_NUMBER: _ClassVar[int]
    header: TensorHeader
    chunk: bytes
    def __init__(self, header: _Optional[_Union[TensorHeader, _Mapping]] = ..., chunk: _Optional[bytes] = ...) -> None: ...

class TensorHeader(_message.Message):
    __slots__ = ("shape", "dtype", "length", "crc32c")
    SHAPE_FIELD_NUMBER: _ClassVar[int]
    DTYPE_FIELD_NUMBER: _ClassVar[int]
    LENGTH_FIELD_NUMBER: _ClassVar[int]
    CRC32C_FIELD_NUMBER: _ClassVar[int]
    shape: _containers.RepeatedScalarFieldContainer[int]
    dtype: str
    length: int
    crc32c: int
    def __init__(self, shape: _Optional[_Iterable[int]] = ..., dtype: _Optional[str] = ..., length: _Optional[int] = ..., crc32c: _Optional[int] = ...) -> None: ...
