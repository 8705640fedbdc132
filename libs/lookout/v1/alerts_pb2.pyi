from lookout.v1 import verdicts_pb2 as _verdicts_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Alert(_message.Message):
    __slots__ = ("id", "incident", "kind", "camera", "epoch", "watch", "watch_version", "question", "score", "peak", "start_wall_ms", "end_wall_ms", "windows", "reason", "evidence", "coverage")
    class Kind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        KIND_UNSPECIFIED: _ClassVar[Alert.Kind]
        KIND_OPENED: _ClassVar[Alert.Kind]
        KIND_UPDATED: _ClassVar[Alert.Kind]
        KIND_CLOSED: _ClassVar[Alert.Kind]
    KIND_UNSPECIFIED: Alert.Kind
    KIND_OPENED: Alert.Kind
    KIND_UPDATED: Alert.Kind
    KIND_CLOSED: Alert.Kind
    ID_FIELD_NUMBER: _ClassVar[int]
    INCIDENT_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    CAMERA_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    WATCH_FIELD_NUMBER: _ClassVar[int]
    WATCH_VERSION_FIELD_NUMBER: _ClassVar[int]
    QUESTION_FIELD_NUMBER: _ClassVar[int]
    SCORE_FIELD_NUMBER: _ClassVar[int]
    PEAK_FIELD_NUMBER: _ClassVar[int]
    START_WALL_MS_FIELD_NUMBER: _ClassVar[int]
    END_WALL_MS_FIELD_NUMBER: _ClassVar[int]
    WINDOWS_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    EVIDENCE_FIELD_NUMBER: _ClassVar[int]
    COVERAGE_FIELD_NUMBER: _ClassVar[int]
    id: str
    incident: str
    kind: Alert.Kind
    camera: str
    epoch: int
    watch: str
    watch_version: int
    question: str
    score: float
    peak: float
    start_wall_ms: int
    end_wall_ms: int
    windows: int
    reason: str
    evidence: _containers.RepeatedCompositeFieldContainer[_verdicts_pb2.Evidence]
    coverage: Coverage
    def __init__(self, id: _Optional[str] = ..., incident: _Optional[str] = ..., kind: _Optional[_Union[Alert.Kind, str]] = ..., camera: _Optional[str] = ..., epoch: _Optional[int] = ..., watch: _Optional[str] = ..., watch_version: _Optional[int] = ..., question: _Optional[str] = ..., score: _Optional[float] = ..., peak: _Optional[float] = ..., start_wall_ms: _Optional[int] = ..., end_wall_ms: _Optional[int] = ..., windows: _Optional[int] = ..., reason: _Optional[str] = ..., evidence: _Optional[_Iterable[_Union[_verdicts_pb2.Evidence, _Mapping]]] = ..., coverage: _Optional[_Union[Coverage, _Mapping]] = ...) -> None: ...

class Coverage(_message.Message):
    __slots__ = ("answered_ms", "idle_ms", "late_ms", "degraded_ms", "skipped_ms", "gap_ms")
    ANSWERED_MS_FIELD_NUMBER: _ClassVar[int]
    IDLE_MS_FIELD_NUMBER: _ClassVar[int]
    LATE_MS_FIELD_NUMBER: _ClassVar[int]
    DEGRADED_MS_FIELD_NUMBER: _ClassVar[int]
    SKIPPED_MS_FIELD_NUMBER: _ClassVar[int]
    GAP_MS_FIELD_NUMBER: _ClassVar[int]
    answered_ms: int
    idle_ms: int
    late_ms: int
    degraded_ms: int
    skipped_ms: int
    gap_ms: int
    def __init__(self, answered_ms: _Optional[int] = ..., idle_ms: _Optional[int] = ..., late_ms: _Optional[int] = ..., degraded_ms: _Optional[int] = ..., skipped_ms: _Optional[int] = ..., gap_ms: _Optional[int] = ...) -> None: ...
