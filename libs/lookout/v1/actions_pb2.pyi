import datetime

from google.protobuf import timestamp_pb2 as _timestamp_pb2
from lookout.v1 import bounds_pb2 as _bounds_pb2
from lookout.v1 import labels_pb2 as _labels_pb2
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class IncidentState(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    INCIDENT_STATE_UNSPECIFIED: _ClassVar[IncidentState]
    INCIDENT_STATE_NEW: _ClassVar[IncidentState]
    INCIDENT_STATE_CLAIMED: _ClassVar[IncidentState]
    INCIDENT_STATE_ACKNOWLEDGED: _ClassVar[IncidentState]
    INCIDENT_STATE_RESOLVED: _ClassVar[IncidentState]
    INCIDENT_STATE_FALSE_POSITIVE: _ClassVar[IncidentState]
    INCIDENT_STATE_REOPENED: _ClassVar[IncidentState]
INCIDENT_STATE_UNSPECIFIED: IncidentState
INCIDENT_STATE_NEW: IncidentState
INCIDENT_STATE_CLAIMED: IncidentState
INCIDENT_STATE_ACKNOWLEDGED: IncidentState
INCIDENT_STATE_RESOLVED: IncidentState
INCIDENT_STATE_FALSE_POSITIVE: IncidentState
INCIDENT_STATE_REOPENED: IncidentState

class IncidentAction(_message.Message):
    __slots__ = ("id", "incident", "kind", "actor", "time", "note", "camera", "tenant", "watch", "question", "start", "end")
    class Kind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        KIND_UNSPECIFIED: _ClassVar[IncidentAction.Kind]
        KIND_CLAIM: _ClassVar[IncidentAction.Kind]
        KIND_ACKNOWLEDGE: _ClassVar[IncidentAction.Kind]
        KIND_RESOLVE: _ClassVar[IncidentAction.Kind]
        KIND_FALSE_POSITIVE: _ClassVar[IncidentAction.Kind]
        KIND_REOPEN: _ClassVar[IncidentAction.Kind]
        KIND_NOTE: _ClassVar[IncidentAction.Kind]
        KIND_RELEASE: _ClassVar[IncidentAction.Kind]
    KIND_UNSPECIFIED: IncidentAction.Kind
    KIND_CLAIM: IncidentAction.Kind
    KIND_ACKNOWLEDGE: IncidentAction.Kind
    KIND_RESOLVE: IncidentAction.Kind
    KIND_FALSE_POSITIVE: IncidentAction.Kind
    KIND_REOPEN: IncidentAction.Kind
    KIND_NOTE: IncidentAction.Kind
    KIND_RELEASE: IncidentAction.Kind
    ID_FIELD_NUMBER: _ClassVar[int]
    INCIDENT_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    ACTOR_FIELD_NUMBER: _ClassVar[int]
    TIME_FIELD_NUMBER: _ClassVar[int]
    NOTE_FIELD_NUMBER: _ClassVar[int]
    CAMERA_FIELD_NUMBER: _ClassVar[int]
    TENANT_FIELD_NUMBER: _ClassVar[int]
    WATCH_FIELD_NUMBER: _ClassVar[int]
    QUESTION_FIELD_NUMBER: _ClassVar[int]
    START_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    id: str
    incident: str
    kind: IncidentAction.Kind
    actor: str
    time: _timestamp_pb2.Timestamp
    note: str
    camera: str
    tenant: str
    watch: str
    question: str
    start: _timestamp_pb2.Timestamp
    end: _timestamp_pb2.Timestamp
    def __init__(self, id: _Optional[str] = ..., incident: _Optional[str] = ..., kind: _Optional[_Union[IncidentAction.Kind, str]] = ..., actor: _Optional[str] = ..., time: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., note: _Optional[str] = ..., camera: _Optional[str] = ..., tenant: _Optional[str] = ..., watch: _Optional[str] = ..., question: _Optional[str] = ..., start: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., end: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ...) -> None: ...

class Snooze(_message.Message):
    __slots__ = ("until",)
    UNTIL_FIELD_NUMBER: _ClassVar[int]
    until: _timestamp_pb2.Timestamp
    def __init__(self, until: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ...) -> None: ...

class Opinion(_message.Message):
    __slots__ = ("incident", "right", "moment")
    INCIDENT_FIELD_NUMBER: _ClassVar[int]
    RIGHT_FIELD_NUMBER: _ClassVar[int]
    MOMENT_FIELD_NUMBER: _ClassVar[int]
    incident: str
    right: bool
    moment: _labels_pb2.Label
    def __init__(self, incident: _Optional[str] = ..., right: _Optional[bool] = ..., moment: _Optional[_Union[_labels_pb2.Label, _Mapping]] = ...) -> None: ...

class ErasureRequest(_message.Message):
    __slots__ = ("camera", "since", "until")
    CAMERA_FIELD_NUMBER: _ClassVar[int]
    SINCE_FIELD_NUMBER: _ClassVar[int]
    UNTIL_FIELD_NUMBER: _ClassVar[int]
    camera: str
    since: _timestamp_pb2.Timestamp
    until: _timestamp_pb2.Timestamp
    def __init__(self, camera: _Optional[str] = ..., since: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., until: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ...) -> None: ...
