from google.protobuf import descriptor_pb2 as _descriptor_pb2
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Range(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    RANGE_UNSPECIFIED: _ClassVar[Range]
    RANGE_INDEX: _ClassVar[Range]
    RANGE_TIME: _ClassVar[Range]
    RANGE_INT32: _ClassVar[Range]
    RANGE_UINT32: _ClassVar[Range]
    RANGE_UINT64: _ClassVar[Range]
    RANGE_SHARE: _ClassVar[Range]
    RANGE_SECONDS: _ClassVar[Range]
    RANGE_LENGTH_S: _ClassVar[Range]
    RANGE_OFFSET_MIN: _ClassVar[Range]
    RANGE_SIDE: _ClassVar[Range]
    RANGE_GRID: _ClassVar[Range]
RANGE_UNSPECIFIED: Range
RANGE_INDEX: Range
RANGE_TIME: Range
RANGE_INT32: Range
RANGE_UINT32: Range
RANGE_UINT64: Range
RANGE_SHARE: Range
RANGE_SECONDS: Range
RANGE_LENGTH_S: Range
RANGE_OFFSET_MIN: Range
RANGE_SIDE: Range
RANGE_GRID: Range
BOUNDS_FIELD_NUMBER: _ClassVar[int]
bounds: _descriptor.FieldDescriptor

class Bounds(_message.Message):
    __slots__ = ("range", "least", "most", "size", "count")
    RANGE_FIELD_NUMBER: _ClassVar[int]
    LEAST_FIELD_NUMBER: _ClassVar[int]
    MOST_FIELD_NUMBER: _ClassVar[int]
    SIZE_FIELD_NUMBER: _ClassVar[int]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    range: Range
    least: float
    most: float
    size: int
    count: int
    def __init__(self, range: _Optional[_Union[Range, str]] = ..., least: _Optional[float] = ..., most: _Optional[float] = ..., size: _Optional[int] = ..., count: _Optional[int] = ...) -> None: ...
