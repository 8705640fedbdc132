import datetime

from google.protobuf import timestamp_pb2 as _timestamp_pb2
from lookout.v1 import bounds_pb2 as _bounds_pb2
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Label(_message.Message):
    __slots__ = ("camera", "watch", "incident", "right", "question", "start", "end", "labelled", "labelled_by")
    CAMERA_FIELD_NUMBER: _ClassVar[int]
    WATCH_FIELD_NUMBER: _ClassVar[int]
    INCIDENT_FIELD_NUMBER: _ClassVar[int]
    RIGHT_FIELD_NUMBER: _ClassVar[int]
    QUESTION_FIELD_NUMBER: _ClassVar[int]
    START_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    LABELLED_FIELD_NUMBER: _ClassVar[int]
    LABELLED_BY_FIELD_NUMBER: _ClassVar[int]
    camera: str
    watch: str
    incident: str
    right: bool
    question: str
    start: _timestamp_pb2.Timestamp
    end: _timestamp_pb2.Timestamp
    labelled: _timestamp_pb2.Timestamp
    labelled_by: str
    def __init__(self, camera: _Optional[str] = ..., watch: _Optional[str] = ..., incident: _Optional[str] = ..., right: _Optional[bool] = ..., question: _Optional[str] = ..., start: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., end: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., labelled: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., labelled_by: _Optional[str] = ...) -> None: ...
