import datetime

from google.protobuf import timestamp_pb2 as _timestamp_pb2
from lookout.v1 import bounds_pb2 as _bounds_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Severity(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    SEVERITY_UNSPECIFIED: _ClassVar[Severity]
    SEVERITY_INFO: _ClassVar[Severity]
    SEVERITY_WARNING: _ClassVar[Severity]
    SEVERITY_CRITICAL: _ClassVar[Severity]
SEVERITY_UNSPECIFIED: Severity
SEVERITY_INFO: Severity
SEVERITY_WARNING: Severity
SEVERITY_CRITICAL: Severity

class Watch(_message.Message):
    __slots__ = ("id", "version", "question", "cameras", "active_from", "rule", "describe", "disabled", "priority", "tenant", "keep", "severity", "verify", "verify_with", "gate", "asked")
    class Priority(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        PRIORITY_UNSPECIFIED: _ClassVar[Watch.Priority]
        PRIORITY_LOW: _ClassVar[Watch.Priority]
        PRIORITY_NORMAL: _ClassVar[Watch.Priority]
        PRIORITY_HIGH: _ClassVar[Watch.Priority]
    PRIORITY_UNSPECIFIED: Watch.Priority
    PRIORITY_LOW: Watch.Priority
    PRIORITY_NORMAL: Watch.Priority
    PRIORITY_HIGH: Watch.Priority
    class Asked(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        ASKED_UNSPECIFIED: _ClassVar[Watch.Asked]
        ASKED_WINDOWS: _ClassVar[Watch.Asked]
        ASKED_STRIDES: _ClassVar[Watch.Asked]
    ASKED_UNSPECIFIED: Watch.Asked
    ASKED_WINDOWS: Watch.Asked
    ASKED_STRIDES: Watch.Asked
    ID_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    QUESTION_FIELD_NUMBER: _ClassVar[int]
    CAMERAS_FIELD_NUMBER: _ClassVar[int]
    ACTIVE_FROM_FIELD_NUMBER: _ClassVar[int]
    RULE_FIELD_NUMBER: _ClassVar[int]
    DESCRIBE_FIELD_NUMBER: _ClassVar[int]
    DISABLED_FIELD_NUMBER: _ClassVar[int]
    PRIORITY_FIELD_NUMBER: _ClassVar[int]
    TENANT_FIELD_NUMBER: _ClassVar[int]
    KEEP_FIELD_NUMBER: _ClassVar[int]
    SEVERITY_FIELD_NUMBER: _ClassVar[int]
    VERIFY_FIELD_NUMBER: _ClassVar[int]
    VERIFY_WITH_FIELD_NUMBER: _ClassVar[int]
    GATE_FIELD_NUMBER: _ClassVar[int]
    ASKED_FIELD_NUMBER: _ClassVar[int]
    id: str
    version: int
    question: str
    cameras: _containers.RepeatedScalarFieldContainer[str]
    active_from: _timestamp_pb2.Timestamp
    rule: Rule
    describe: bool
    disabled: bool
    priority: Watch.Priority
    tenant: str
    keep: bool
    severity: Severity
    verify: bool
    verify_with: str
    gate: Gate
    asked: Watch.Asked
    def __init__(self, id: _Optional[str] = ..., version: _Optional[int] = ..., question: _Optional[str] = ..., cameras: _Optional[_Iterable[str]] = ..., active_from: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., rule: _Optional[_Union[Rule, _Mapping]] = ..., describe: _Optional[bool] = ..., disabled: _Optional[bool] = ..., priority: _Optional[_Union[Watch.Priority, str]] = ..., tenant: _Optional[str] = ..., keep: _Optional[bool] = ..., severity: _Optional[_Union[Severity, str]] = ..., verify: _Optional[bool] = ..., verify_with: _Optional[str] = ..., gate: _Optional[_Union[Gate, _Mapping]] = ..., asked: _Optional[_Union[Watch.Asked, str]] = ...) -> None: ...

class Gate(_message.Message):
    __slots__ = ("watch", "motion")
    WATCH_FIELD_NUMBER: _ClassVar[int]
    MOTION_FIELD_NUMBER: _ClassVar[int]
    watch: str
    motion: bool
    def __init__(self, watch: _Optional[str] = ..., motion: _Optional[bool] = ...) -> None: ...

class Rule(_message.Message):
    __slots__ = ("threshold", "clear_threshold", "k", "n", "cooldown_s", "schedule", "zones")
    THRESHOLD_FIELD_NUMBER: _ClassVar[int]
    CLEAR_THRESHOLD_FIELD_NUMBER: _ClassVar[int]
    K_FIELD_NUMBER: _ClassVar[int]
    N_FIELD_NUMBER: _ClassVar[int]
    COOLDOWN_S_FIELD_NUMBER: _ClassVar[int]
    SCHEDULE_FIELD_NUMBER: _ClassVar[int]
    ZONES_FIELD_NUMBER: _ClassVar[int]
    threshold: float
    clear_threshold: float
    k: int
    n: int
    cooldown_s: float
    schedule: _containers.RepeatedCompositeFieldContainer[ScheduleEntry]
    zones: _containers.RepeatedCompositeFieldContainer[Zone]
    def __init__(self, threshold: _Optional[float] = ..., clear_threshold: _Optional[float] = ..., k: _Optional[int] = ..., n: _Optional[int] = ..., cooldown_s: _Optional[float] = ..., schedule: _Optional[_Iterable[_Union[ScheduleEntry, _Mapping]]] = ..., zones: _Optional[_Iterable[_Union[Zone, _Mapping]]] = ...) -> None: ...

class ScheduleEntry(_message.Message):
    __slots__ = ("weekdays", "start", "end", "time_zone")
    WEEKDAYS_FIELD_NUMBER: _ClassVar[int]
    START_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    TIME_ZONE_FIELD_NUMBER: _ClassVar[int]
    weekdays: _containers.RepeatedScalarFieldContainer[int]
    start: str
    end: str
    time_zone: str
    def __init__(self, weekdays: _Optional[_Iterable[int]] = ..., start: _Optional[str] = ..., end: _Optional[str] = ..., time_zone: _Optional[str] = ...) -> None: ...

class Zone(_message.Message):
    __slots__ = ("name", "points")
    NAME_FIELD_NUMBER: _ClassVar[int]
    POINTS_FIELD_NUMBER: _ClassVar[int]
    name: str
    points: _containers.RepeatedCompositeFieldContainer[Point]
    def __init__(self, name: _Optional[str] = ..., points: _Optional[_Iterable[_Union[Point, _Mapping]]] = ...) -> None: ...

class Point(_message.Message):
    __slots__ = ("x", "y")
    X_FIELD_NUMBER: _ClassVar[int]
    Y_FIELD_NUMBER: _ClassVar[int]
    x: float
    y: float
    def __init__(self, x: _Optional[float] = ..., y: _Optional[float] = ...) -> None: ...
