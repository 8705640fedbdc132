import datetime

from google.protobuf import timestamp_pb2 as _timestamp_pb2
from lookout.v1 import bounds_pb2 as _bounds_pb2
from lookout.v1 import lineage_pb2 as _lineage_pb2
from lookout.v1 import watches_pb2 as _watches_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Verdict(_message.Message):
    __slots__ = ("id", "camera", "epoch", "window", "stream_start_s", "stream_end_s", "start", "end", "watch", "watch_version", "question", "outcome", "p_yes", "reason", "basis", "cost", "evidence", "coverage", "model_digest", "rule", "activity", "activity_rows", "activity_cols", "degraded", "description", "since_key", "audit", "key_every", "plan_digest", "damaged", "cause", "watches_offset", "tenant", "untrained", "answers")
    class Outcome(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        OUTCOME_UNSPECIFIED: _ClassVar[Verdict.Outcome]
        OUTCOME_ANSWERED: _ClassVar[Verdict.Outcome]
        OUTCOME_GAP: _ClassVar[Verdict.Outcome]
        OUTCOME_SKIPPED: _ClassVar[Verdict.Outcome]
        OUTCOME_DEGRADED: _ClassVar[Verdict.Outcome]
        OUTCOME_GATED: _ClassVar[Verdict.Outcome]
    OUTCOME_UNSPECIFIED: Verdict.Outcome
    OUTCOME_ANSWERED: Verdict.Outcome
    OUTCOME_GAP: Verdict.Outcome
    OUTCOME_SKIPPED: Verdict.Outcome
    OUTCOME_DEGRADED: Verdict.Outcome
    OUTCOME_GATED: Verdict.Outcome
    ID_FIELD_NUMBER: _ClassVar[int]
    CAMERA_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    WINDOW_FIELD_NUMBER: _ClassVar[int]
    STREAM_START_S_FIELD_NUMBER: _ClassVar[int]
    STREAM_END_S_FIELD_NUMBER: _ClassVar[int]
    START_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    WATCH_FIELD_NUMBER: _ClassVar[int]
    WATCH_VERSION_FIELD_NUMBER: _ClassVar[int]
    QUESTION_FIELD_NUMBER: _ClassVar[int]
    OUTCOME_FIELD_NUMBER: _ClassVar[int]
    P_YES_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    BASIS_FIELD_NUMBER: _ClassVar[int]
    COST_FIELD_NUMBER: _ClassVar[int]
    EVIDENCE_FIELD_NUMBER: _ClassVar[int]
    COVERAGE_FIELD_NUMBER: _ClassVar[int]
    MODEL_DIGEST_FIELD_NUMBER: _ClassVar[int]
    RULE_FIELD_NUMBER: _ClassVar[int]
    ACTIVITY_FIELD_NUMBER: _ClassVar[int]
    ACTIVITY_ROWS_FIELD_NUMBER: _ClassVar[int]
    ACTIVITY_COLS_FIELD_NUMBER: _ClassVar[int]
    DEGRADED_FIELD_NUMBER: _ClassVar[int]
    DESCRIPTION_FIELD_NUMBER: _ClassVar[int]
    SINCE_KEY_FIELD_NUMBER: _ClassVar[int]
    AUDIT_FIELD_NUMBER: _ClassVar[int]
    KEY_EVERY_FIELD_NUMBER: _ClassVar[int]
    PLAN_DIGEST_FIELD_NUMBER: _ClassVar[int]
    DAMAGED_FIELD_NUMBER: _ClassVar[int]
    CAUSE_FIELD_NUMBER: _ClassVar[int]
    WATCHES_OFFSET_FIELD_NUMBER: _ClassVar[int]
    TENANT_FIELD_NUMBER: _ClassVar[int]
    UNTRAINED_FIELD_NUMBER: _ClassVar[int]
    ANSWERS_FIELD_NUMBER: _ClassVar[int]
    id: str
    camera: str
    epoch: int
    window: int
    stream_start_s: float
    stream_end_s: float
    start: _timestamp_pb2.Timestamp
    end: _timestamp_pb2.Timestamp
    watch: str
    watch_version: int
    question: str
    outcome: Verdict.Outcome
    p_yes: float
    reason: str
    basis: str
    cost: Cost
    evidence: _containers.RepeatedCompositeFieldContainer[Evidence]
    coverage: float
    model_digest: str
    rule: _watches_pb2.Rule
    activity: bytes
    activity_rows: int
    activity_cols: int
    degraded: bool
    description: str
    since_key: int
    audit: float
    key_every: int
    plan_digest: str
    damaged: float
    cause: _lineage_pb2.Cause
    watches_offset: int
    tenant: str
    untrained: bool
    answers: _containers.RepeatedCompositeFieldContainer[AnswerShare]
    def __init__(self, id: _Optional[str] = ..., camera: _Optional[str] = ..., epoch: _Optional[int] = ..., window: _Optional[int] = ..., stream_start_s: _Optional[float] = ..., stream_end_s: _Optional[float] = ..., start: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., end: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., watch: _Optional[str] = ..., watch_version: _Optional[int] = ..., question: _Optional[str] = ..., outcome: _Optional[_Union[Verdict.Outcome, str]] = ..., p_yes: _Optional[float] = ..., reason: _Optional[str] = ..., basis: _Optional[str] = ..., cost: _Optional[_Union[Cost, _Mapping]] = ..., evidence: _Optional[_Iterable[_Union[Evidence, _Mapping]]] = ..., coverage: _Optional[float] = ..., model_digest: _Optional[str] = ..., rule: _Optional[_Union[_watches_pb2.Rule, _Mapping]] = ..., activity: _Optional[bytes] = ..., activity_rows: _Optional[int] = ..., activity_cols: _Optional[int] = ..., degraded: _Optional[bool] = ..., description: _Optional[str] = ..., since_key: _Optional[int] = ..., audit: _Optional[float] = ..., key_every: _Optional[int] = ..., plan_digest: _Optional[str] = ..., damaged: _Optional[float] = ..., cause: _Optional[_Union[_lineage_pb2.Cause, str]] = ..., watches_offset: _Optional[int] = ..., tenant: _Optional[str] = ..., untrained: _Optional[bool] = ..., answers: _Optional[_Iterable[_Union[AnswerShare, _Mapping]]] = ...) -> None: ...

class AnswerShare(_message.Message):
    __slots__ = ("answer", "p")
    ANSWER_FIELD_NUMBER: _ClassVar[int]
    P_FIELD_NUMBER: _ClassVar[int]
    answer: str
    p: float
    def __init__(self, answer: _Optional[str] = ..., p: _Optional[float] = ...) -> None: ...

class Cost(_message.Message):
    __slots__ = ("patches_total", "patches_encoded", "tokens_total", "tokens_kept", "tokens_reused", "tokens_refreshed", "tokens_text", "tokens_question", "flops_vision", "flops_prefill", "flops_question", "flops_dense", "device_us")
    PATCHES_TOTAL_FIELD_NUMBER: _ClassVar[int]
    PATCHES_ENCODED_FIELD_NUMBER: _ClassVar[int]
    TOKENS_TOTAL_FIELD_NUMBER: _ClassVar[int]
    TOKENS_KEPT_FIELD_NUMBER: _ClassVar[int]
    TOKENS_REUSED_FIELD_NUMBER: _ClassVar[int]
    TOKENS_REFRESHED_FIELD_NUMBER: _ClassVar[int]
    TOKENS_TEXT_FIELD_NUMBER: _ClassVar[int]
    TOKENS_QUESTION_FIELD_NUMBER: _ClassVar[int]
    FLOPS_VISION_FIELD_NUMBER: _ClassVar[int]
    FLOPS_PREFILL_FIELD_NUMBER: _ClassVar[int]
    FLOPS_QUESTION_FIELD_NUMBER: _ClassVar[int]
    FLOPS_DENSE_FIELD_NUMBER: _ClassVar[int]
    DEVICE_US_FIELD_NUMBER: _ClassVar[int]
    patches_total: int
    patches_encoded: int
    tokens_total: int
    tokens_kept: int
    tokens_reused: int
    tokens_refreshed: int
    tokens_text: int
    tokens_question: int
    flops_vision: int
    flops_prefill: int
    flops_question: int
    flops_dense: int
    device_us: int
    def __init__(self, patches_total: _Optional[int] = ..., patches_encoded: _Optional[int] = ..., tokens_total: _Optional[int] = ..., tokens_kept: _Optional[int] = ..., tokens_reused: _Optional[int] = ..., tokens_refreshed: _Optional[int] = ..., tokens_text: _Optional[int] = ..., tokens_question: _Optional[int] = ..., flops_vision: _Optional[int] = ..., flops_prefill: _Optional[int] = ..., flops_question: _Optional[int] = ..., flops_dense: _Optional[int] = ..., device_us: _Optional[int] = ...) -> None: ...

class Evidence(_message.Message):
    __slots__ = ("time", "record", "row")
    TIME_FIELD_NUMBER: _ClassVar[int]
    RECORD_FIELD_NUMBER: _ClassVar[int]
    ROW_FIELD_NUMBER: _ClassVar[int]
    time: _timestamp_pb2.Timestamp
    record: _lineage_pb2.RecordRef
    row: int
    def __init__(self, time: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., record: _Optional[_Union[_lineage_pb2.RecordRef, _Mapping]] = ..., row: _Optional[int] = ...) -> None: ...
