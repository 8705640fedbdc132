from google.protobuf import any_pb2 as _any_pb2
from lookout.v1 import alerts_pb2 as _alerts_pb2
from lookout.v1 import bounds_pb2 as _bounds_pb2
from lookout.v1 import cameras_pb2 as _cameras_pb2
from lookout.v1 import lineage_pb2 as _lineage_pb2
from lookout.v1 import verdicts_pb2 as _verdicts_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Checkpoint(_message.Message):
    __slots__ = ("config_digest", "record_ms", "decode", "prune", "prefill", "alerts", "own")
    CONFIG_DIGEST_FIELD_NUMBER: _ClassVar[int]
    RECORD_MS_FIELD_NUMBER: _ClassVar[int]
    DECODE_FIELD_NUMBER: _ClassVar[int]
    PRUNE_FIELD_NUMBER: _ClassVar[int]
    PREFILL_FIELD_NUMBER: _ClassVar[int]
    ALERTS_FIELD_NUMBER: _ClassVar[int]
    OWN_FIELD_NUMBER: _ClassVar[int]
    config_digest: str
    record_ms: int
    decode: DecodeState
    prune: PruneState
    prefill: PrefillState
    alerts: AlertsState
    own: _any_pb2.Any
    def __init__(self, config_digest: _Optional[str] = ..., record_ms: _Optional[int] = ..., decode: _Optional[_Union[DecodeState, _Mapping]] = ..., prune: _Optional[_Union[PruneState, _Mapping]] = ..., prefill: _Optional[_Union[PrefillState, _Mapping]] = ..., alerts: _Optional[_Union[AlertsState, _Mapping]] = ..., own: _Optional[_Union[_any_pb2.Any, _Mapping]] = ...) -> None: ...

class DecodeState(_message.Message):
    __slots__ = ("epoch", "wall_offset_us", "watermark_us", "epoch_pts", "last_pts", "last_arrival_ms", "silent", "next_sample", "anchored_us", "least_offset_us", "quota", "arrived_ms", "labels", "reconfigured", "finished", "health")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    WALL_OFFSET_US_FIELD_NUMBER: _ClassVar[int]
    WATERMARK_US_FIELD_NUMBER: _ClassVar[int]
    EPOCH_PTS_FIELD_NUMBER: _ClassVar[int]
    LAST_PTS_FIELD_NUMBER: _ClassVar[int]
    LAST_ARRIVAL_MS_FIELD_NUMBER: _ClassVar[int]
    SILENT_FIELD_NUMBER: _ClassVar[int]
    NEXT_SAMPLE_FIELD_NUMBER: _ClassVar[int]
    ANCHORED_US_FIELD_NUMBER: _ClassVar[int]
    LEAST_OFFSET_US_FIELD_NUMBER: _ClassVar[int]
    QUOTA_FIELD_NUMBER: _ClassVar[int]
    ARRIVED_MS_FIELD_NUMBER: _ClassVar[int]
    LABELS_FIELD_NUMBER: _ClassVar[int]
    RECONFIGURED_FIELD_NUMBER: _ClassVar[int]
    FINISHED_FIELD_NUMBER: _ClassVar[int]
    HEALTH_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    wall_offset_us: int
    watermark_us: int
    epoch_pts: float
    last_pts: float
    last_arrival_ms: int
    silent: bool
    next_sample: int
    anchored_us: int
    least_offset_us: int
    quota: Quota
    arrived_ms: int
    labels: _cameras_pb2.CameraLabels
    reconfigured: bool
    finished: bool
    health: CameraHealth
    def __init__(self, epoch: _Optional[int] = ..., wall_offset_us: _Optional[int] = ..., watermark_us: _Optional[int] = ..., epoch_pts: _Optional[float] = ..., last_pts: _Optional[float] = ..., last_arrival_ms: _Optional[int] = ..., silent: _Optional[bool] = ..., next_sample: _Optional[int] = ..., anchored_us: _Optional[int] = ..., least_offset_us: _Optional[int] = ..., quota: _Optional[_Union[Quota, _Mapping]] = ..., arrived_ms: _Optional[int] = ..., labels: _Optional[_Union[_cameras_pb2.CameraLabels, _Mapping]] = ..., reconfigured: _Optional[bool] = ..., finished: _Optional[bool] = ..., health: _Optional[_Union[CameraHealth, _Mapping]] = ...) -> None: ...

class CameraHealth(_message.Message):
    __slots__ = ("pictures", "hours", "hour", "similarity", "kept", "lost", "seen_s", "checksum", "same_s", "same_keys", "still_s", "quiet_s", "fps", "rate", "jumps", "held_s", "clear_s", "blank_s", "incident", "unjudged_s", "view", "history")
    PICTURES_FIELD_NUMBER: _ClassVar[int]
    HOURS_FIELD_NUMBER: _ClassVar[int]
    HOUR_FIELD_NUMBER: _ClassVar[int]
    SIMILARITY_FIELD_NUMBER: _ClassVar[int]
    KEPT_FIELD_NUMBER: _ClassVar[int]
    LOST_FIELD_NUMBER: _ClassVar[int]
    SEEN_S_FIELD_NUMBER: _ClassVar[int]
    CHECKSUM_FIELD_NUMBER: _ClassVar[int]
    SAME_S_FIELD_NUMBER: _ClassVar[int]
    SAME_KEYS_FIELD_NUMBER: _ClassVar[int]
    STILL_S_FIELD_NUMBER: _ClassVar[int]
    QUIET_S_FIELD_NUMBER: _ClassVar[int]
    FPS_FIELD_NUMBER: _ClassVar[int]
    RATE_FIELD_NUMBER: _ClassVar[int]
    JUMPS_FIELD_NUMBER: _ClassVar[int]
    HELD_S_FIELD_NUMBER: _ClassVar[int]
    CLEAR_S_FIELD_NUMBER: _ClassVar[int]
    BLANK_S_FIELD_NUMBER: _ClassVar[int]
    INCIDENT_FIELD_NUMBER: _ClassVar[int]
    UNJUDGED_S_FIELD_NUMBER: _ClassVar[int]
    VIEW_FIELD_NUMBER: _ClassVar[int]
    HISTORY_FIELD_NUMBER: _ClassVar[int]
    pictures: _containers.RepeatedCompositeFieldContainer[HealthPicture]
    hours: bytes
    hour: int
    similarity: float
    kept: float
    lost: float
    seen_s: float
    checksum: int
    same_s: float
    same_keys: int
    still_s: float
    quiet_s: float
    fps: float
    rate: float
    jumps: float
    held_s: _containers.RepeatedScalarFieldContainer[float]
    clear_s: float
    blank_s: float
    incident: OpenCameraIncident
    unjudged_s: float
    view: str
    history: bytes
    def __init__(self, pictures: _Optional[_Iterable[_Union[HealthPicture, _Mapping]]] = ..., hours: _Optional[bytes] = ..., hour: _Optional[int] = ..., similarity: _Optional[float] = ..., kept: _Optional[float] = ..., lost: _Optional[float] = ..., seen_s: _Optional[float] = ..., checksum: _Optional[int] = ..., same_s: _Optional[float] = ..., same_keys: _Optional[int] = ..., still_s: _Optional[float] = ..., quiet_s: _Optional[float] = ..., fps: _Optional[float] = ..., rate: _Optional[float] = ..., jumps: _Optional[float] = ..., held_s: _Optional[_Iterable[float]] = ..., clear_s: _Optional[float] = ..., blank_s: _Optional[float] = ..., incident: _Optional[_Union[OpenCameraIncident, _Mapping]] = ..., unjudged_s: _Optional[float] = ..., view: _Optional[str] = ..., history: _Optional[bytes] = ...) -> None: ...

class HealthPicture(_message.Message):
    __slots__ = ("luma", "detail", "seconds")
    LUMA_FIELD_NUMBER: _ClassVar[int]
    DETAIL_FIELD_NUMBER: _ClassVar[int]
    SECONDS_FIELD_NUMBER: _ClassVar[int]
    luma: bytes
    detail: bytes
    seconds: float
    def __init__(self, luma: _Optional[bytes] = ..., detail: _Optional[bytes] = ..., seconds: _Optional[float] = ...) -> None: ...

class OpenCameraIncident(_message.Message):
    __slots__ = ("id", "cause", "opened_ms", "segments", "tenant")
    ID_FIELD_NUMBER: _ClassVar[int]
    CAUSE_FIELD_NUMBER: _ClassVar[int]
    OPENED_MS_FIELD_NUMBER: _ClassVar[int]
    SEGMENTS_FIELD_NUMBER: _ClassVar[int]
    TENANT_FIELD_NUMBER: _ClassVar[int]
    id: str
    cause: str
    opened_ms: int
    segments: int
    tenant: str
    def __init__(self, id: _Optional[str] = ..., cause: _Optional[str] = ..., opened_ms: _Optional[int] = ..., segments: _Optional[int] = ..., tenant: _Optional[str] = ...) -> None: ...

class Quota(_message.Message):
    __slots__ = ("since_ms", "bytes", "work_us", "failures", "left_out", "first_left_out", "last_left_out", "left_out_since_ms")
    SINCE_MS_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    WORK_US_FIELD_NUMBER: _ClassVar[int]
    FAILURES_FIELD_NUMBER: _ClassVar[int]
    LEFT_OUT_FIELD_NUMBER: _ClassVar[int]
    FIRST_LEFT_OUT_FIELD_NUMBER: _ClassVar[int]
    LAST_LEFT_OUT_FIELD_NUMBER: _ClassVar[int]
    LEFT_OUT_SINCE_MS_FIELD_NUMBER: _ClassVar[int]
    since_ms: int
    bytes: int
    work_us: int
    failures: int
    left_out: int
    first_left_out: _lineage_pb2.RecordRef
    last_left_out: int
    left_out_since_ms: int
    def __init__(self, since_ms: _Optional[int] = ..., bytes: _Optional[int] = ..., work_us: _Optional[int] = ..., failures: _Optional[int] = ..., left_out: _Optional[int] = ..., first_left_out: _Optional[_Union[_lineage_pb2.RecordRef, _Mapping]] = ..., last_left_out: _Optional[int] = ..., left_out_since_ms: _Optional[int] = ...) -> None: ...

class PruneState(_message.Message):
    __slots__ = ("epoch", "wall_offset_us", "block", "offsets", "active", "last_block", "any", "watermark_us", "sampling", "heard_ms", "missing", "missing_cause", "late_block", "labels")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    WALL_OFFSET_US_FIELD_NUMBER: _ClassVar[int]
    BLOCK_FIELD_NUMBER: _ClassVar[int]
    OFFSETS_FIELD_NUMBER: _ClassVar[int]
    ACTIVE_FIELD_NUMBER: _ClassVar[int]
    LAST_BLOCK_FIELD_NUMBER: _ClassVar[int]
    ANY_FIELD_NUMBER: _ClassVar[int]
    WATERMARK_US_FIELD_NUMBER: _ClassVar[int]
    SAMPLING_FIELD_NUMBER: _ClassVar[int]
    HEARD_MS_FIELD_NUMBER: _ClassVar[int]
    MISSING_FIELD_NUMBER: _ClassVar[int]
    MISSING_CAUSE_FIELD_NUMBER: _ClassVar[int]
    LATE_BLOCK_FIELD_NUMBER: _ClassVar[int]
    LABELS_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    wall_offset_us: int
    block: int
    offsets: _containers.RepeatedScalarFieldContainer[int]
    active: bytes
    last_block: int
    any: bool
    watermark_us: int
    sampling: _lineage_pb2.Sampling
    heard_ms: int
    missing: str
    missing_cause: _lineage_pb2.Cause
    late_block: int
    labels: _cameras_pb2.CameraLabels
    def __init__(self, epoch: _Optional[int] = ..., wall_offset_us: _Optional[int] = ..., block: _Optional[int] = ..., offsets: _Optional[_Iterable[int]] = ..., active: _Optional[bytes] = ..., last_block: _Optional[int] = ..., any: _Optional[bool] = ..., watermark_us: _Optional[int] = ..., sampling: _Optional[_Union[_lineage_pb2.Sampling, _Mapping]] = ..., heard_ms: _Optional[int] = ..., missing: _Optional[str] = ..., missing_cause: _Optional[_Union[_lineage_pb2.Cause, str]] = ..., late_block: _Optional[int] = ..., labels: _Optional[_Union[_cameras_pb2.CameraLabels, _Mapping]] = ...) -> None: ...

class PrefillState(_message.Message):
    __slots__ = ("epoch", "offsets", "last_window", "any", "watches_offset", "watermark_us", "since_key", "key_every", "gates")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    OFFSETS_FIELD_NUMBER: _ClassVar[int]
    LAST_WINDOW_FIELD_NUMBER: _ClassVar[int]
    ANY_FIELD_NUMBER: _ClassVar[int]
    WATCHES_OFFSET_FIELD_NUMBER: _ClassVar[int]
    WATERMARK_US_FIELD_NUMBER: _ClassVar[int]
    SINCE_KEY_FIELD_NUMBER: _ClassVar[int]
    KEY_EVERY_FIELD_NUMBER: _ClassVar[int]
    GATES_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    offsets: _containers.RepeatedScalarFieldContainer[int]
    last_window: int
    any: bool
    watches_offset: int
    watermark_us: int
    since_key: int
    key_every: int
    gates: _containers.RepeatedCompositeFieldContainer[GateState]
    def __init__(self, epoch: _Optional[int] = ..., offsets: _Optional[_Iterable[int]] = ..., last_window: _Optional[int] = ..., any: _Optional[bool] = ..., watches_offset: _Optional[int] = ..., watermark_us: _Optional[int] = ..., since_key: _Optional[int] = ..., key_every: _Optional[int] = ..., gates: _Optional[_Iterable[_Union[GateState, _Mapping]]] = ...) -> None: ...

class GateState(_message.Message):
    __slots__ = ("watch", "version", "yes", "due")
    WATCH_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    YES_FIELD_NUMBER: _ClassVar[int]
    DUE_FIELD_NUMBER: _ClassVar[int]
    watch: str
    version: int
    yes: bool
    due: int
    def __init__(self, watch: _Optional[str] = ..., version: _Optional[int] = ..., yes: _Optional[bool] = ..., due: _Optional[int] = ...) -> None: ...

class AlertsState(_message.Message):
    __slots__ = ("epoch", "window", "watches")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    WINDOW_FIELD_NUMBER: _ClassVar[int]
    WATCHES_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    window: int
    watches: _containers.RepeatedCompositeFieldContainer[WatchState]
    def __init__(self, epoch: _Optional[int] = ..., window: _Optional[int] = ..., watches: _Optional[_Iterable[_Union[WatchState, _Mapping]]] = ...) -> None: ...

class WatchState(_message.Message):
    __slots__ = ("watch", "version", "epoch", "recent", "seen", "newest_ms", "cooldown_until_ms", "incident", "window", "held_since_ms")
    WATCH_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    RECENT_FIELD_NUMBER: _ClassVar[int]
    SEEN_FIELD_NUMBER: _ClassVar[int]
    NEWEST_MS_FIELD_NUMBER: _ClassVar[int]
    COOLDOWN_UNTIL_MS_FIELD_NUMBER: _ClassVar[int]
    INCIDENT_FIELD_NUMBER: _ClassVar[int]
    WINDOW_FIELD_NUMBER: _ClassVar[int]
    HELD_SINCE_MS_FIELD_NUMBER: _ClassVar[int]
    watch: str
    version: int
    epoch: int
    recent: int
    seen: int
    newest_ms: int
    cooldown_until_ms: int
    incident: OpenIncident
    window: int
    held_since_ms: int
    def __init__(self, watch: _Optional[str] = ..., version: _Optional[int] = ..., epoch: _Optional[int] = ..., recent: _Optional[int] = ..., seen: _Optional[int] = ..., newest_ms: _Optional[int] = ..., cooldown_until_ms: _Optional[int] = ..., incident: _Optional[_Union[OpenIncident, _Mapping]] = ..., window: _Optional[int] = ..., held_since_ms: _Optional[int] = ...) -> None: ...

class OpenIncident(_message.Message):
    __slots__ = ("id", "opened_ms", "peak", "score", "windows", "reported_peak", "evidence", "question", "coverage", "tenant", "raised_ms")
    ID_FIELD_NUMBER: _ClassVar[int]
    OPENED_MS_FIELD_NUMBER: _ClassVar[int]
    PEAK_FIELD_NUMBER: _ClassVar[int]
    SCORE_FIELD_NUMBER: _ClassVar[int]
    WINDOWS_FIELD_NUMBER: _ClassVar[int]
    REPORTED_PEAK_FIELD_NUMBER: _ClassVar[int]
    EVIDENCE_FIELD_NUMBER: _ClassVar[int]
    QUESTION_FIELD_NUMBER: _ClassVar[int]
    COVERAGE_FIELD_NUMBER: _ClassVar[int]
    TENANT_FIELD_NUMBER: _ClassVar[int]
    RAISED_MS_FIELD_NUMBER: _ClassVar[int]
    id: str
    opened_ms: int
    peak: float
    score: float
    windows: int
    reported_peak: float
    evidence: _containers.RepeatedCompositeFieldContainer[WindowEvidence]
    question: str
    coverage: _alerts_pb2.Coverage
    tenant: str
    raised_ms: int
    def __init__(self, id: _Optional[str] = ..., opened_ms: _Optional[int] = ..., peak: _Optional[float] = ..., score: _Optional[float] = ..., windows: _Optional[int] = ..., reported_peak: _Optional[float] = ..., evidence: _Optional[_Iterable[_Union[WindowEvidence, _Mapping]]] = ..., question: _Optional[str] = ..., coverage: _Optional[_Union[_alerts_pb2.Coverage, _Mapping]] = ..., tenant: _Optional[str] = ..., raised_ms: _Optional[int] = ...) -> None: ...

class WindowEvidence(_message.Message):
    __slots__ = ("p_yes", "frames")
    P_YES_FIELD_NUMBER: _ClassVar[int]
    FRAMES_FIELD_NUMBER: _ClassVar[int]
    p_yes: float
    frames: _containers.RepeatedCompositeFieldContainer[_verdicts_pb2.Evidence]
    def __init__(self, p_yes: _Optional[float] = ..., frames: _Optional[_Iterable[_Union[_verdicts_pb2.Evidence, _Mapping]]] = ...) -> None: ...
