import datetime

from google.protobuf import timestamp_pb2 as _timestamp_pb2
from lookout.v1 import alerts_pb2 as _alerts_pb2
from lookout.v1 import bounds_pb2 as _bounds_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class ClipFacts(_message.Message):
    __slots__ = ("camera", "codec", "media_type", "width", "height", "frames", "bytes", "seconds", "spans", "masked")
    CAMERA_FIELD_NUMBER: _ClassVar[int]
    CODEC_FIELD_NUMBER: _ClassVar[int]
    MEDIA_TYPE_FIELD_NUMBER: _ClassVar[int]
    WIDTH_FIELD_NUMBER: _ClassVar[int]
    HEIGHT_FIELD_NUMBER: _ClassVar[int]
    FRAMES_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    SECONDS_FIELD_NUMBER: _ClassVar[int]
    SPANS_FIELD_NUMBER: _ClassVar[int]
    MASKED_FIELD_NUMBER: _ClassVar[int]
    camera: str
    codec: str
    media_type: str
    width: int
    height: int
    frames: int
    bytes: int
    seconds: float
    spans: _containers.RepeatedCompositeFieldContainer[ClipSpan]
    masked: bool
    def __init__(self, camera: _Optional[str] = ..., codec: _Optional[str] = ..., media_type: _Optional[str] = ..., width: _Optional[int] = ..., height: _Optional[int] = ..., frames: _Optional[int] = ..., bytes: _Optional[int] = ..., seconds: _Optional[float] = ..., spans: _Optional[_Iterable[_Union[ClipSpan, _Mapping]]] = ..., masked: _Optional[bool] = ...) -> None: ...

class ClipSpan(_message.Message):
    __slots__ = ("at_s", "start", "end")
    AT_S_FIELD_NUMBER: _ClassVar[int]
    START_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    at_s: float
    start: _timestamp_pb2.Timestamp
    end: _timestamp_pb2.Timestamp
    def __init__(self, at_s: _Optional[float] = ..., start: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., end: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ...) -> None: ...

class KeptEvidence(_message.Message):
    __slots__ = ("incident", "camera", "tenants", "kept_by", "kept", "start", "end", "complete", "picture", "clip", "bytes", "alert", "masks")
    INCIDENT_FIELD_NUMBER: _ClassVar[int]
    CAMERA_FIELD_NUMBER: _ClassVar[int]
    TENANTS_FIELD_NUMBER: _ClassVar[int]
    KEPT_BY_FIELD_NUMBER: _ClassVar[int]
    KEPT_FIELD_NUMBER: _ClassVar[int]
    START_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    COMPLETE_FIELD_NUMBER: _ClassVar[int]
    PICTURE_FIELD_NUMBER: _ClassVar[int]
    CLIP_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    ALERT_FIELD_NUMBER: _ClassVar[int]
    MASKS_FIELD_NUMBER: _ClassVar[int]
    incident: str
    camera: str
    tenants: _containers.RepeatedScalarFieldContainer[str]
    kept_by: str
    kept: _timestamp_pb2.Timestamp
    start: _timestamp_pb2.Timestamp
    end: _timestamp_pb2.Timestamp
    complete: bool
    picture: bool
    clip: ClipFacts
    bytes: int
    alert: _alerts_pb2.Alert
    masks: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, incident: _Optional[str] = ..., camera: _Optional[str] = ..., tenants: _Optional[_Iterable[str]] = ..., kept_by: _Optional[str] = ..., kept: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., start: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., end: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., complete: _Optional[bool] = ..., picture: _Optional[bool] = ..., clip: _Optional[_Union[ClipFacts, _Mapping]] = ..., bytes: _Optional[int] = ..., alert: _Optional[_Union[_alerts_pb2.Alert, _Mapping]] = ..., masks: _Optional[_Iterable[str]] = ...) -> None: ...
