import datetime

from google.protobuf import timestamp_pb2 as _timestamp_pb2
from lookout.v1 import bounds_pb2 as _bounds_pb2
from lookout.v1 import verdicts_pb2 as _verdicts_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Alert(_message.Message):
    __slots__ = ("id", "incident", "kind", "camera", "epoch", "watch", "watch_version", "question", "score", "peak", "start", "end", "windows", "reason", "evidence", "coverage", "tenant", "opinion", "untrained", "raised", "cause", "text")
    class Kind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        KIND_UNSPECIFIED: _ClassVar[Alert.Kind]
        KIND_OPENED: _ClassVar[Alert.Kind]
        KIND_UPDATED: _ClassVar[Alert.Kind]
        KIND_CLOSED: _ClassVar[Alert.Kind]
        KIND_OPINION: _ClassVar[Alert.Kind]
        KIND_REPORT: _ClassVar[Alert.Kind]
        KIND_TEST: _ClassVar[Alert.Kind]
    KIND_UNSPECIFIED: Alert.Kind
    KIND_OPENED: Alert.Kind
    KIND_UPDATED: Alert.Kind
    KIND_CLOSED: Alert.Kind
    KIND_OPINION: Alert.Kind
    KIND_REPORT: Alert.Kind
    KIND_TEST: Alert.Kind
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
    START_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    WINDOWS_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    EVIDENCE_FIELD_NUMBER: _ClassVar[int]
    COVERAGE_FIELD_NUMBER: _ClassVar[int]
    TENANT_FIELD_NUMBER: _ClassVar[int]
    OPINION_FIELD_NUMBER: _ClassVar[int]
    UNTRAINED_FIELD_NUMBER: _ClassVar[int]
    RAISED_FIELD_NUMBER: _ClassVar[int]
    CAUSE_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
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
    start: _timestamp_pb2.Timestamp
    end: _timestamp_pb2.Timestamp
    windows: int
    reason: str
    evidence: _containers.RepeatedCompositeFieldContainer[_verdicts_pb2.Evidence]
    coverage: Coverage
    tenant: str
    opinion: SecondOpinion
    untrained: bool
    raised: _timestamp_pb2.Timestamp
    cause: str
    text: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, id: _Optional[str] = ..., incident: _Optional[str] = ..., kind: _Optional[_Union[Alert.Kind, str]] = ..., camera: _Optional[str] = ..., epoch: _Optional[int] = ..., watch: _Optional[str] = ..., watch_version: _Optional[int] = ..., question: _Optional[str] = ..., score: _Optional[float] = ..., peak: _Optional[float] = ..., start: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., end: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., windows: _Optional[int] = ..., reason: _Optional[str] = ..., evidence: _Optional[_Iterable[_Union[_verdicts_pb2.Evidence, _Mapping]]] = ..., coverage: _Optional[_Union[Coverage, _Mapping]] = ..., tenant: _Optional[str] = ..., opinion: _Optional[_Union[SecondOpinion, _Mapping]] = ..., untrained: _Optional[bool] = ..., raised: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., cause: _Optional[str] = ..., text: _Optional[_Iterable[str]] = ...) -> None: ...

class SecondOpinion(_message.Message):
    __slots__ = ("answer", "reason", "text", "model", "seconds", "tokens")
    class Answer(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        ANSWER_UNSPECIFIED: _ClassVar[SecondOpinion.Answer]
        ANSWER_YES: _ClassVar[SecondOpinion.Answer]
        ANSWER_NO: _ClassVar[SecondOpinion.Answer]
        ANSWER_NONE: _ClassVar[SecondOpinion.Answer]
    ANSWER_UNSPECIFIED: SecondOpinion.Answer
    ANSWER_YES: SecondOpinion.Answer
    ANSWER_NO: SecondOpinion.Answer
    ANSWER_NONE: SecondOpinion.Answer
    ANSWER_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    SECONDS_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    answer: SecondOpinion.Answer
    reason: str
    text: str
    model: str
    seconds: float
    tokens: int
    def __init__(self, answer: _Optional[_Union[SecondOpinion.Answer, str]] = ..., reason: _Optional[str] = ..., text: _Optional[str] = ..., model: _Optional[str] = ..., seconds: _Optional[float] = ..., tokens: _Optional[int] = ...) -> None: ...

class Coverage(_message.Message):
    __slots__ = ("answered_s", "idle_s", "degraded_s", "skipped_s", "gap_s", "gated_s")
    ANSWERED_S_FIELD_NUMBER: _ClassVar[int]
    IDLE_S_FIELD_NUMBER: _ClassVar[int]
    DEGRADED_S_FIELD_NUMBER: _ClassVar[int]
    SKIPPED_S_FIELD_NUMBER: _ClassVar[int]
    GAP_S_FIELD_NUMBER: _ClassVar[int]
    GATED_S_FIELD_NUMBER: _ClassVar[int]
    answered_s: float
    idle_s: float
    degraded_s: float
    skipped_s: float
    gap_s: float
    gated_s: float
    def __init__(self, answered_s: _Optional[float] = ..., idle_s: _Optional[float] = ..., degraded_s: _Optional[float] = ..., skipped_s: _Optional[float] = ..., gap_s: _Optional[float] = ..., gated_s: _Optional[float] = ...) -> None: ...
