import datetime

from google.protobuf import timestamp_pb2 as _timestamp_pb2
from lookout.v1 import bounds_pb2 as _bounds_pb2
from lookout.v1 import labels_pb2 as _labels_pb2
from lookout.v1 import verdicts_pb2 as _verdicts_pb2
from lookout.v1 import watches_pb2 as _watches_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class RecordingJob(_message.Message):
    __slots__ = ("id", "uris", "questions", "settings", "requested", "expires_s", "cancelled", "backtest", "tenant")
    ID_FIELD_NUMBER: _ClassVar[int]
    URIS_FIELD_NUMBER: _ClassVar[int]
    QUESTIONS_FIELD_NUMBER: _ClassVar[int]
    SETTINGS_FIELD_NUMBER: _ClassVar[int]
    REQUESTED_FIELD_NUMBER: _ClassVar[int]
    EXPIRES_S_FIELD_NUMBER: _ClassVar[int]
    CANCELLED_FIELD_NUMBER: _ClassVar[int]
    BACKTEST_FIELD_NUMBER: _ClassVar[int]
    TENANT_FIELD_NUMBER: _ClassVar[int]
    id: str
    uris: _containers.RepeatedScalarFieldContainer[str]
    questions: _containers.RepeatedScalarFieldContainer[str]
    settings: RecordingSettings
    requested: _timestamp_pb2.Timestamp
    expires_s: float
    cancelled: bool
    backtest: BacktestJob
    tenant: str
    def __init__(self, id: _Optional[str] = ..., uris: _Optional[_Iterable[str]] = ..., questions: _Optional[_Iterable[str]] = ..., settings: _Optional[_Union[RecordingSettings, _Mapping]] = ..., requested: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., expires_s: _Optional[float] = ..., cancelled: _Optional[bool] = ..., backtest: _Optional[_Union[BacktestJob, _Mapping]] = ..., tenant: _Optional[str] = ...) -> None: ...

class BacktestJob(_message.Message):
    __slots__ = ("watch", "since", "until", "labels")
    WATCH_FIELD_NUMBER: _ClassVar[int]
    SINCE_FIELD_NUMBER: _ClassVar[int]
    UNTIL_FIELD_NUMBER: _ClassVar[int]
    LABELS_FIELD_NUMBER: _ClassVar[int]
    watch: _watches_pb2.Watch
    since: _timestamp_pb2.Timestamp
    until: _timestamp_pb2.Timestamp
    labels: _containers.RepeatedCompositeFieldContainer[_labels_pb2.Label]
    def __init__(self, watch: _Optional[_Union[_watches_pb2.Watch, _Mapping]] = ..., since: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., until: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., labels: _Optional[_Iterable[_Union[_labels_pb2.Label, _Mapping]]] = ...) -> None: ...

class RecordingSettings(_message.Message):
    __slots__ = ("fps", "start_s", "end_s", "group_frames", "rho", "part_frames", "prune", "describe", "begins", "begins_offset_min", "policy")
    FPS_FIELD_NUMBER: _ClassVar[int]
    START_S_FIELD_NUMBER: _ClassVar[int]
    END_S_FIELD_NUMBER: _ClassVar[int]
    GROUP_FRAMES_FIELD_NUMBER: _ClassVar[int]
    RHO_FIELD_NUMBER: _ClassVar[int]
    PART_FRAMES_FIELD_NUMBER: _ClassVar[int]
    PRUNE_FIELD_NUMBER: _ClassVar[int]
    DESCRIBE_FIELD_NUMBER: _ClassVar[int]
    BEGINS_FIELD_NUMBER: _ClassVar[int]
    BEGINS_OFFSET_MIN_FIELD_NUMBER: _ClassVar[int]
    POLICY_FIELD_NUMBER: _ClassVar[int]
    fps: float
    start_s: float
    end_s: float
    group_frames: int
    rho: float
    part_frames: int
    prune: bool
    describe: int
    begins: _timestamp_pb2.Timestamp
    begins_offset_min: int
    policy: str
    def __init__(self, fps: _Optional[float] = ..., start_s: _Optional[float] = ..., end_s: _Optional[float] = ..., group_frames: _Optional[int] = ..., rho: _Optional[float] = ..., part_frames: _Optional[int] = ..., prune: _Optional[bool] = ..., describe: _Optional[int] = ..., begins: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., begins_offset_min: _Optional[int] = ..., policy: _Optional[str] = ...) -> None: ...

class RecordingPart(_message.Message):
    __slots__ = ("job", "number", "recording", "uri", "mark", "span", "questions", "settings", "expires", "home", "backtest")
    JOB_FIELD_NUMBER: _ClassVar[int]
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    RECORDING_FIELD_NUMBER: _ClassVar[int]
    URI_FIELD_NUMBER: _ClassVar[int]
    MARK_FIELD_NUMBER: _ClassVar[int]
    SPAN_FIELD_NUMBER: _ClassVar[int]
    QUESTIONS_FIELD_NUMBER: _ClassVar[int]
    SETTINGS_FIELD_NUMBER: _ClassVar[int]
    EXPIRES_FIELD_NUMBER: _ClassVar[int]
    HOME_FIELD_NUMBER: _ClassVar[int]
    BACKTEST_FIELD_NUMBER: _ClassVar[int]
    job: str
    number: int
    recording: int
    uri: str
    mark: str
    span: PartSpan
    questions: _containers.RepeatedScalarFieldContainer[str]
    settings: RecordingSettings
    expires: _timestamp_pb2.Timestamp
    home: int
    backtest: BacktestPart
    def __init__(self, job: _Optional[str] = ..., number: _Optional[int] = ..., recording: _Optional[int] = ..., uri: _Optional[str] = ..., mark: _Optional[str] = ..., span: _Optional[_Union[PartSpan, _Mapping]] = ..., questions: _Optional[_Iterable[str]] = ..., settings: _Optional[_Union[RecordingSettings, _Mapping]] = ..., expires: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., home: _Optional[int] = ..., backtest: _Optional[_Union[BacktestPart, _Mapping]] = ...) -> None: ...

class BacktestPart(_message.Message):
    __slots__ = ("job", "partition", "first", "stop", "read_from")
    JOB_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    FIRST_FIELD_NUMBER: _ClassVar[int]
    STOP_FIELD_NUMBER: _ClassVar[int]
    READ_FROM_FIELD_NUMBER: _ClassVar[int]
    job: BacktestJob
    partition: int
    first: int
    stop: int
    read_from: int
    def __init__(self, job: _Optional[_Union[BacktestJob, _Mapping]] = ..., partition: _Optional[int] = ..., first: _Optional[int] = ..., stop: _Optional[int] = ..., read_from: _Optional[int] = ...) -> None: ...

class PartSpan(_message.Message):
    __slots__ = ("number", "first", "stop", "start_s", "end_s")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    FIRST_FIELD_NUMBER: _ClassVar[int]
    STOP_FIELD_NUMBER: _ClassVar[int]
    START_S_FIELD_NUMBER: _ClassVar[int]
    END_S_FIELD_NUMBER: _ClassVar[int]
    number: int
    first: int
    stop: int
    start_s: float
    end_s: float
    def __init__(self, number: _Optional[int] = ..., first: _Optional[int] = ..., stop: _Optional[int] = ..., start_s: _Optional[float] = ..., end_s: _Optional[float] = ...) -> None: ...

class PartSamples(_message.Message):
    __slots__ = ("height", "width", "frames", "lost")
    HEIGHT_FIELD_NUMBER: _ClassVar[int]
    WIDTH_FIELD_NUMBER: _ClassVar[int]
    FRAMES_FIELD_NUMBER: _ClassVar[int]
    LOST_FIELD_NUMBER: _ClassVar[int]
    height: int
    width: int
    frames: _containers.RepeatedCompositeFieldContainer[PartSample]
    lost: _containers.RepeatedCompositeFieldContainer[LostSample]
    def __init__(self, height: _Optional[int] = ..., width: _Optional[int] = ..., frames: _Optional[_Iterable[_Union[PartSample, _Mapping]]] = ..., lost: _Optional[_Iterable[_Union[LostSample, _Mapping]]] = ...) -> None: ...

class PartSample(_message.Message):
    __slots__ = ("place", "key", "picture", "corrupt")
    PLACE_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    PICTURE_FIELD_NUMBER: _ClassVar[int]
    CORRUPT_FIELD_NUMBER: _ClassVar[int]
    place: int
    key: bool
    picture: int
    corrupt: bool
    def __init__(self, place: _Optional[int] = ..., key: _Optional[bool] = ..., picture: _Optional[int] = ..., corrupt: _Optional[bool] = ...) -> None: ...

class LostSample(_message.Message):
    __slots__ = ("place", "reason")
    PLACE_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    place: int
    reason: str
    def __init__(self, place: _Optional[int] = ..., reason: _Optional[str] = ...) -> None: ...

class RecordingOutcome(_message.Message):
    __slots__ = ("job", "plan", "part", "cancelled", "place")
    JOB_FIELD_NUMBER: _ClassVar[int]
    PLAN_FIELD_NUMBER: _ClassVar[int]
    PART_FIELD_NUMBER: _ClassVar[int]
    CANCELLED_FIELD_NUMBER: _ClassVar[int]
    PLACE_FIELD_NUMBER: _ClassVar[int]
    job: str
    plan: RecordingPlan
    part: PartOutcome
    cancelled: bool
    place: int
    def __init__(self, job: _Optional[str] = ..., plan: _Optional[_Union[RecordingPlan, _Mapping]] = ..., part: _Optional[_Union[PartOutcome, _Mapping]] = ..., cancelled: _Optional[bool] = ..., place: _Optional[int] = ...) -> None: ...

class RecordingPlan(_message.Message):
    __slots__ = ("job", "recordings", "parts", "reason", "expires", "partition_parts", "past", "seconds")
    JOB_FIELD_NUMBER: _ClassVar[int]
    RECORDINGS_FIELD_NUMBER: _ClassVar[int]
    PARTS_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    EXPIRES_FIELD_NUMBER: _ClassVar[int]
    PARTITION_PARTS_FIELD_NUMBER: _ClassVar[int]
    PAST_FIELD_NUMBER: _ClassVar[int]
    SECONDS_FIELD_NUMBER: _ClassVar[int]
    job: RecordingJob
    recordings: _containers.RepeatedCompositeFieldContainer[PlannedRecording]
    parts: int
    reason: str
    expires: _timestamp_pb2.Timestamp
    partition_parts: _containers.RepeatedScalarFieldContainer[int]
    past: _containers.RepeatedCompositeFieldContainer[BacktestPart]
    seconds: float
    def __init__(self, job: _Optional[_Union[RecordingJob, _Mapping]] = ..., recordings: _Optional[_Iterable[_Union[PlannedRecording, _Mapping]]] = ..., parts: _Optional[int] = ..., reason: _Optional[str] = ..., expires: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., partition_parts: _Optional[_Iterable[int]] = ..., past: _Optional[_Iterable[_Union[BacktestPart, _Mapping]]] = ..., seconds: _Optional[float] = ...) -> None: ...

class PlannedRecording(_message.Message):
    __slots__ = ("uri", "reason", "seconds", "frames", "parts", "gaps", "mark", "spans", "begins", "begins_offset_min")
    URI_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    SECONDS_FIELD_NUMBER: _ClassVar[int]
    FRAMES_FIELD_NUMBER: _ClassVar[int]
    PARTS_FIELD_NUMBER: _ClassVar[int]
    GAPS_FIELD_NUMBER: _ClassVar[int]
    MARK_FIELD_NUMBER: _ClassVar[int]
    SPANS_FIELD_NUMBER: _ClassVar[int]
    BEGINS_FIELD_NUMBER: _ClassVar[int]
    BEGINS_OFFSET_MIN_FIELD_NUMBER: _ClassVar[int]
    uri: str
    reason: str
    seconds: float
    frames: int
    parts: int
    gaps: _containers.RepeatedCompositeFieldContainer[RecordingGap]
    mark: str
    spans: _containers.RepeatedCompositeFieldContainer[PartSpan]
    begins: _timestamp_pb2.Timestamp
    begins_offset_min: int
    def __init__(self, uri: _Optional[str] = ..., reason: _Optional[str] = ..., seconds: _Optional[float] = ..., frames: _Optional[int] = ..., parts: _Optional[int] = ..., gaps: _Optional[_Iterable[_Union[RecordingGap, _Mapping]]] = ..., mark: _Optional[str] = ..., spans: _Optional[_Iterable[_Union[PartSpan, _Mapping]]] = ..., begins: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., begins_offset_min: _Optional[int] = ...) -> None: ...

class RecordingGap(_message.Message):
    __slots__ = ("start_us", "end_us", "samples", "reason")
    START_US_FIELD_NUMBER: _ClassVar[int]
    END_US_FIELD_NUMBER: _ClassVar[int]
    SAMPLES_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    start_us: int
    end_us: int
    samples: int
    reason: str
    def __init__(self, start_us: _Optional[int] = ..., end_us: _Optional[int] = ..., samples: _Optional[int] = ..., reason: _Optional[str] = ...) -> None: ...

class PartOutcome(_message.Message):
    __slots__ = ("number", "recording", "span", "reason", "answers", "frames", "damaged", "rows", "kept", "kv_bytes", "tokens", "tokens_total", "flops_vision", "flops_prefill", "flops_questions", "gaps", "model_digest", "backtest")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    RECORDING_FIELD_NUMBER: _ClassVar[int]
    SPAN_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    ANSWERS_FIELD_NUMBER: _ClassVar[int]
    FRAMES_FIELD_NUMBER: _ClassVar[int]
    DAMAGED_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    KEPT_FIELD_NUMBER: _ClassVar[int]
    KV_BYTES_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    TOKENS_TOTAL_FIELD_NUMBER: _ClassVar[int]
    FLOPS_VISION_FIELD_NUMBER: _ClassVar[int]
    FLOPS_PREFILL_FIELD_NUMBER: _ClassVar[int]
    FLOPS_QUESTIONS_FIELD_NUMBER: _ClassVar[int]
    GAPS_FIELD_NUMBER: _ClassVar[int]
    MODEL_DIGEST_FIELD_NUMBER: _ClassVar[int]
    BACKTEST_FIELD_NUMBER: _ClassVar[int]
    number: int
    recording: int
    span: PartSpan
    reason: str
    answers: _containers.RepeatedCompositeFieldContainer[RecordingPartAnswer]
    frames: int
    damaged: int
    rows: int
    kept: int
    kv_bytes: int
    tokens: int
    tokens_total: int
    flops_vision: int
    flops_prefill: int
    flops_questions: int
    gaps: _containers.RepeatedCompositeFieldContainer[RecordingGap]
    model_digest: str
    backtest: BacktestOutcome
    def __init__(self, number: _Optional[int] = ..., recording: _Optional[int] = ..., span: _Optional[_Union[PartSpan, _Mapping]] = ..., reason: _Optional[str] = ..., answers: _Optional[_Iterable[_Union[RecordingPartAnswer, _Mapping]]] = ..., frames: _Optional[int] = ..., damaged: _Optional[int] = ..., rows: _Optional[int] = ..., kept: _Optional[int] = ..., kv_bytes: _Optional[int] = ..., tokens: _Optional[int] = ..., tokens_total: _Optional[int] = ..., flops_vision: _Optional[int] = ..., flops_prefill: _Optional[int] = ..., flops_questions: _Optional[int] = ..., gaps: _Optional[_Iterable[_Union[RecordingGap, _Mapping]]] = ..., model_digest: _Optional[str] = ..., backtest: _Optional[_Union[BacktestOutcome, _Mapping]] = ...) -> None: ...

class BacktestOutcome(_message.Message):
    __slots__ = ("streams", "replanned", "cost", "other_tenants")
    STREAMS_FIELD_NUMBER: _ClassVar[int]
    REPLANNED_FIELD_NUMBER: _ClassVar[int]
    COST_FIELD_NUMBER: _ClassVar[int]
    OTHER_TENANTS_FIELD_NUMBER: _ClassVar[int]
    streams: _containers.RepeatedCompositeFieldContainer[PastStream]
    replanned: int
    cost: BacktestCost
    other_tenants: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, streams: _Optional[_Iterable[_Union[PastStream, _Mapping]]] = ..., replanned: _Optional[int] = ..., cost: _Optional[_Union[BacktestCost, _Mapping]] = ..., other_tenants: _Optional[_Iterable[str]] = ...) -> None: ...

class PastStream(_message.Message):
    __slots__ = ("camera", "epoch", "verdicts")
    CAMERA_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    VERDICTS_FIELD_NUMBER: _ClassVar[int]
    camera: str
    epoch: int
    verdicts: _containers.RepeatedCompositeFieldContainer[_verdicts_pb2.Verdict]
    def __init__(self, camera: _Optional[str] = ..., epoch: _Optional[int] = ..., verdicts: _Optional[_Iterable[_Union[_verdicts_pb2.Verdict, _Mapping]]] = ...) -> None: ...

class BacktestCost(_message.Message):
    __slots__ = ("flops", "flops_windows", "flops_question", "flops_dense", "cpu_s", "device_s")
    FLOPS_FIELD_NUMBER: _ClassVar[int]
    FLOPS_WINDOWS_FIELD_NUMBER: _ClassVar[int]
    FLOPS_QUESTION_FIELD_NUMBER: _ClassVar[int]
    FLOPS_DENSE_FIELD_NUMBER: _ClassVar[int]
    CPU_S_FIELD_NUMBER: _ClassVar[int]
    DEVICE_S_FIELD_NUMBER: _ClassVar[int]
    flops: int
    flops_windows: int
    flops_question: int
    flops_dense: int
    cpu_s: float
    device_s: float
    def __init__(self, flops: _Optional[int] = ..., flops_windows: _Optional[int] = ..., flops_question: _Optional[int] = ..., flops_dense: _Optional[int] = ..., cpu_s: _Optional[float] = ..., device_s: _Optional[float] = ...) -> None: ...

class RecordingPartAnswer(_message.Message):
    __slots__ = ("p_yes", "text", "moments", "answers")
    P_YES_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    MOMENTS_FIELD_NUMBER: _ClassVar[int]
    ANSWERS_FIELD_NUMBER: _ClassVar[int]
    p_yes: float
    text: str
    moments: _containers.RepeatedCompositeFieldContainer[RecordingMoment]
    answers: _containers.RepeatedCompositeFieldContainer[_verdicts_pb2.AnswerShare]
    def __init__(self, p_yes: _Optional[float] = ..., text: _Optional[str] = ..., moments: _Optional[_Iterable[_Union[RecordingMoment, _Mapping]]] = ..., answers: _Optional[_Iterable[_Union[_verdicts_pb2.AnswerShare, _Mapping]]] = ...) -> None: ...

class RecordingMoment(_message.Message):
    __slots__ = ("time_s", "share")
    TIME_S_FIELD_NUMBER: _ClassVar[int]
    SHARE_FIELD_NUMBER: _ClassVar[int]
    time_s: float
    share: float
    def __init__(self, time_s: _Optional[float] = ..., share: _Optional[float] = ...) -> None: ...

class RecordingAnswers(_message.Message):
    __slots__ = ("id", "state", "parts", "done", "reason", "updated", "recordings", "backtest")
    class State(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        STATE_UNSPECIFIED: _ClassVar[RecordingAnswers.State]
        STATE_RUNNING: _ClassVar[RecordingAnswers.State]
        STATE_DONE: _ClassVar[RecordingAnswers.State]
        STATE_REFUSED: _ClassVar[RecordingAnswers.State]
        STATE_CANCELLED: _ClassVar[RecordingAnswers.State]
        STATE_EXPIRED: _ClassVar[RecordingAnswers.State]
    STATE_UNSPECIFIED: RecordingAnswers.State
    STATE_RUNNING: RecordingAnswers.State
    STATE_DONE: RecordingAnswers.State
    STATE_REFUSED: RecordingAnswers.State
    STATE_CANCELLED: RecordingAnswers.State
    STATE_EXPIRED: RecordingAnswers.State
    ID_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    PARTS_FIELD_NUMBER: _ClassVar[int]
    DONE_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    UPDATED_FIELD_NUMBER: _ClassVar[int]
    RECORDINGS_FIELD_NUMBER: _ClassVar[int]
    BACKTEST_FIELD_NUMBER: _ClassVar[int]
    id: str
    state: RecordingAnswers.State
    parts: int
    done: int
    reason: str
    updated: _timestamp_pb2.Timestamp
    recordings: _containers.RepeatedCompositeFieldContainer[RecordingAnswer]
    backtest: BacktestAnswer
    def __init__(self, id: _Optional[str] = ..., state: _Optional[_Union[RecordingAnswers.State, str]] = ..., parts: _Optional[int] = ..., done: _Optional[int] = ..., reason: _Optional[str] = ..., updated: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., recordings: _Optional[_Iterable[_Union[RecordingAnswer, _Mapping]]] = ..., backtest: _Optional[_Union[BacktestAnswer, _Mapping]] = ...) -> None: ...

class BacktestAnswer(_message.Message):
    __slots__ = ("incidents", "incidents_total", "cameras", "watched_s", "windows", "cost", "unanswered", "replanned", "labels", "threshold", "other_tenants")
    INCIDENTS_FIELD_NUMBER: _ClassVar[int]
    INCIDENTS_TOTAL_FIELD_NUMBER: _ClassVar[int]
    CAMERAS_FIELD_NUMBER: _ClassVar[int]
    WATCHED_S_FIELD_NUMBER: _ClassVar[int]
    WINDOWS_FIELD_NUMBER: _ClassVar[int]
    COST_FIELD_NUMBER: _ClassVar[int]
    UNANSWERED_FIELD_NUMBER: _ClassVar[int]
    REPLANNED_FIELD_NUMBER: _ClassVar[int]
    LABELS_FIELD_NUMBER: _ClassVar[int]
    THRESHOLD_FIELD_NUMBER: _ClassVar[int]
    OTHER_TENANTS_FIELD_NUMBER: _ClassVar[int]
    incidents: _containers.RepeatedCompositeFieldContainer[PastIncident]
    incidents_total: int
    cameras: int
    watched_s: float
    windows: _containers.RepeatedCompositeFieldContainer[OutcomeCount]
    cost: BacktestCost
    unanswered: _containers.RepeatedCompositeFieldContainer[RecordingGap]
    replanned: int
    labels: _containers.RepeatedCompositeFieldContainer[LabelScore]
    threshold: float
    other_tenants: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, incidents: _Optional[_Iterable[_Union[PastIncident, _Mapping]]] = ..., incidents_total: _Optional[int] = ..., cameras: _Optional[int] = ..., watched_s: _Optional[float] = ..., windows: _Optional[_Iterable[_Union[OutcomeCount, _Mapping]]] = ..., cost: _Optional[_Union[BacktestCost, _Mapping]] = ..., unanswered: _Optional[_Iterable[_Union[RecordingGap, _Mapping]]] = ..., replanned: _Optional[int] = ..., labels: _Optional[_Iterable[_Union[LabelScore, _Mapping]]] = ..., threshold: _Optional[float] = ..., other_tenants: _Optional[_Iterable[str]] = ...) -> None: ...

class LabelScore(_message.Message):
    __slots__ = ("camera", "watch", "incident", "right", "score")
    CAMERA_FIELD_NUMBER: _ClassVar[int]
    WATCH_FIELD_NUMBER: _ClassVar[int]
    INCIDENT_FIELD_NUMBER: _ClassVar[int]
    RIGHT_FIELD_NUMBER: _ClassVar[int]
    SCORE_FIELD_NUMBER: _ClassVar[int]
    camera: str
    watch: str
    incident: str
    right: bool
    score: float
    def __init__(self, camera: _Optional[str] = ..., watch: _Optional[str] = ..., incident: _Optional[str] = ..., right: _Optional[bool] = ..., score: _Optional[float] = ...) -> None: ...

class PastIncident(_message.Message):
    __slots__ = ("camera", "opened", "end", "peak", "windows", "reason", "evidence", "raised", "score")
    CAMERA_FIELD_NUMBER: _ClassVar[int]
    OPENED_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    PEAK_FIELD_NUMBER: _ClassVar[int]
    WINDOWS_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    EVIDENCE_FIELD_NUMBER: _ClassVar[int]
    RAISED_FIELD_NUMBER: _ClassVar[int]
    SCORE_FIELD_NUMBER: _ClassVar[int]
    camera: str
    opened: _timestamp_pb2.Timestamp
    end: _timestamp_pb2.Timestamp
    peak: float
    windows: int
    reason: str
    evidence: _containers.RepeatedCompositeFieldContainer[_verdicts_pb2.Evidence]
    raised: _timestamp_pb2.Timestamp
    score: float
    def __init__(self, camera: _Optional[str] = ..., opened: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., end: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., peak: _Optional[float] = ..., windows: _Optional[int] = ..., reason: _Optional[str] = ..., evidence: _Optional[_Iterable[_Union[_verdicts_pb2.Evidence, _Mapping]]] = ..., raised: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., score: _Optional[float] = ...) -> None: ...

class OutcomeCount(_message.Message):
    __slots__ = ("outcome", "windows")
    OUTCOME_FIELD_NUMBER: _ClassVar[int]
    WINDOWS_FIELD_NUMBER: _ClassVar[int]
    outcome: str
    windows: int
    def __init__(self, outcome: _Optional[str] = ..., windows: _Optional[int] = ...) -> None: ...

class RecordingAnswer(_message.Message):
    __slots__ = ("uri", "reason", "seconds", "frames", "answers", "parts", "gaps", "begins", "begins_offset_min", "begins_from")
    URI_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    SECONDS_FIELD_NUMBER: _ClassVar[int]
    FRAMES_FIELD_NUMBER: _ClassVar[int]
    ANSWERS_FIELD_NUMBER: _ClassVar[int]
    PARTS_FIELD_NUMBER: _ClassVar[int]
    GAPS_FIELD_NUMBER: _ClassVar[int]
    BEGINS_FIELD_NUMBER: _ClassVar[int]
    BEGINS_OFFSET_MIN_FIELD_NUMBER: _ClassVar[int]
    BEGINS_FROM_FIELD_NUMBER: _ClassVar[int]
    uri: str
    reason: str
    seconds: float
    frames: int
    answers: _containers.RepeatedCompositeFieldContainer[RecordingQuestionAnswer]
    parts: _containers.RepeatedCompositeFieldContainer[PartOutcome]
    gaps: _containers.RepeatedCompositeFieldContainer[RecordingGap]
    begins: _timestamp_pb2.Timestamp
    begins_offset_min: int
    begins_from: str
    def __init__(self, uri: _Optional[str] = ..., reason: _Optional[str] = ..., seconds: _Optional[float] = ..., frames: _Optional[int] = ..., answers: _Optional[_Iterable[_Union[RecordingQuestionAnswer, _Mapping]]] = ..., parts: _Optional[_Iterable[_Union[PartOutcome, _Mapping]]] = ..., gaps: _Optional[_Iterable[_Union[RecordingGap, _Mapping]]] = ..., begins: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., begins_offset_min: _Optional[int] = ..., begins_from: _Optional[str] = ...) -> None: ...

class RecordingQuestionAnswer(_message.Message):
    __slots__ = ("question", "p_yes", "part", "start_s", "end_s", "moments", "yes", "text", "answers")
    QUESTION_FIELD_NUMBER: _ClassVar[int]
    P_YES_FIELD_NUMBER: _ClassVar[int]
    PART_FIELD_NUMBER: _ClassVar[int]
    START_S_FIELD_NUMBER: _ClassVar[int]
    END_S_FIELD_NUMBER: _ClassVar[int]
    MOMENTS_FIELD_NUMBER: _ClassVar[int]
    YES_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    ANSWERS_FIELD_NUMBER: _ClassVar[int]
    question: str
    p_yes: float
    part: int
    start_s: float
    end_s: float
    moments: _containers.RepeatedCompositeFieldContainer[RecordingMoment]
    yes: _containers.RepeatedCompositeFieldContainer[RecordingRange]
    text: str
    answers: _containers.RepeatedCompositeFieldContainer[_verdicts_pb2.AnswerShare]
    def __init__(self, question: _Optional[str] = ..., p_yes: _Optional[float] = ..., part: _Optional[int] = ..., start_s: _Optional[float] = ..., end_s: _Optional[float] = ..., moments: _Optional[_Iterable[_Union[RecordingMoment, _Mapping]]] = ..., yes: _Optional[_Iterable[_Union[RecordingRange, _Mapping]]] = ..., text: _Optional[str] = ..., answers: _Optional[_Iterable[_Union[_verdicts_pb2.AnswerShare, _Mapping]]] = ...) -> None: ...

class RecordingRange(_message.Message):
    __slots__ = ("start_s", "end_s")
    START_S_FIELD_NUMBER: _ClassVar[int]
    END_S_FIELD_NUMBER: _ClassVar[int]
    start_s: float
    end_s: float
    def __init__(self, start_s: _Optional[float] = ..., end_s: _Optional[float] = ...) -> None: ...

class PlanState(_message.Message):
    __slots__ = ("digest", "cancelled", "refused", "request_offset", "tenant")
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    CANCELLED_FIELD_NUMBER: _ClassVar[int]
    REFUSED_FIELD_NUMBER: _ClassVar[int]
    REQUEST_OFFSET_FIELD_NUMBER: _ClassVar[int]
    TENANT_FIELD_NUMBER: _ClassVar[int]
    digest: str
    cancelled: bool
    refused: bool
    request_offset: int
    tenant: str
    def __init__(self, digest: _Optional[str] = ..., cancelled: _Optional[bool] = ..., refused: _Optional[bool] = ..., request_offset: _Optional[int] = ..., tenant: _Optional[str] = ...) -> None: ...

class ReduceState(_message.Message):
    __slots__ = ("plan_offset", "parts", "numbers", "offsets", "expires", "ended", "sent", "tenant", "seconds", "questions")
    PLAN_OFFSET_FIELD_NUMBER: _ClassVar[int]
    PARTS_FIELD_NUMBER: _ClassVar[int]
    NUMBERS_FIELD_NUMBER: _ClassVar[int]
    OFFSETS_FIELD_NUMBER: _ClassVar[int]
    EXPIRES_FIELD_NUMBER: _ClassVar[int]
    ENDED_FIELD_NUMBER: _ClassVar[int]
    SENT_FIELD_NUMBER: _ClassVar[int]
    TENANT_FIELD_NUMBER: _ClassVar[int]
    SECONDS_FIELD_NUMBER: _ClassVar[int]
    QUESTIONS_FIELD_NUMBER: _ClassVar[int]
    plan_offset: int
    parts: int
    numbers: _containers.RepeatedScalarFieldContainer[int]
    offsets: _containers.RepeatedScalarFieldContainer[int]
    expires: _timestamp_pb2.Timestamp
    ended: bool
    sent: int
    tenant: str
    seconds: float
    questions: int
    def __init__(self, plan_offset: _Optional[int] = ..., parts: _Optional[int] = ..., numbers: _Optional[_Iterable[int]] = ..., offsets: _Optional[_Iterable[int]] = ..., expires: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., ended: _Optional[bool] = ..., sent: _Optional[int] = ..., tenant: _Optional[str] = ..., seconds: _Optional[float] = ..., questions: _Optional[int] = ...) -> None: ...
