import datetime

from google.protobuf import timestamp_pb2 as _timestamp_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class ClipFacts(_message.Message):
    __slots__ = ("camera", "codec", "media_type", "width", "height", "frames", "bytes", "seconds", "spans")
    CAMERA_FIELD_NUMBER: _ClassVar[int]
    CODEC_FIELD_NUMBER: _ClassVar[int]
    MEDIA_TYPE_FIELD_NUMBER: _ClassVar[int]
    WIDTH_FIELD_NUMBER: _ClassVar[int]
    HEIGHT_FIELD_NUMBER: _ClassVar[int]
    FRAMES_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    SECONDS_FIELD_NUMBER: _ClassVar[int]
    SPANS_FIELD_NUMBER: _ClassVar[int]
    camera: str
    codec: str
    media_type: str
    width: int
    height: int
    frames: int
    bytes: int
    seconds: float
    spans: _containers.RepeatedCompositeFieldContainer[ClipSpan]
    def __init__(self, camera: _Optional[str] = ..., codec: _Optional[str] = ..., media_type: _Optional[str] = ..., width: _Optional[int] = ..., height: _Optional[int] = ..., frames: _Optional[int] = ..., bytes: _Optional[int] = ..., seconds: _Optional[float] = ..., spans: _Optional[_Iterable[_Union[ClipSpan, _Mapping]]] = ...) -> None: ...

class ClipSpan(_message.Message):
    __slots__ = ("at_s", "start", "end")
    AT_S_FIELD_NUMBER: _ClassVar[int]
    START_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    at_s: float
    start: _timestamp_pb2.Timestamp
    end: _timestamp_pb2.Timestamp
    def __init__(self, at_s: _Optional[float] = ..., start: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., end: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ...) -> None: ...
