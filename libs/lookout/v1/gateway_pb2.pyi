import datetime

from google.protobuf import timestamp_pb2 as _timestamp_pb2
from lookout.v1 import access_pb2 as _access_pb2
from lookout.v1 import actions_pb2 as _actions_pb2
from lookout.v1 import alerts_pb2 as _alerts_pb2
from lookout.v1 import cameras_pb2 as _cameras_pb2
from lookout.v1 import erasures_pb2 as _erasures_pb2
from lookout.v1 import labels_pb2 as _labels_pb2
from lookout.v1 import memory_pb2 as _memory_pb2
from lookout.v1 import notifications_pb2 as _notifications_pb2
from lookout.v1 import recordings_pb2 as _recordings_pb2
from lookout.v1 import verdicts_pb2 as _verdicts_pb2
from lookout.v1 import watches_pb2 as _watches_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class SessionView(_message.Message):
    __slots__ = ("actor", "role", "cameras", "tenants", "csrf", "expires", "sign_out_url", "searches")
    ACTOR_FIELD_NUMBER: _ClassVar[int]
    ROLE_FIELD_NUMBER: _ClassVar[int]
    CAMERAS_FIELD_NUMBER: _ClassVar[int]
    TENANTS_FIELD_NUMBER: _ClassVar[int]
    CSRF_FIELD_NUMBER: _ClassVar[int]
    EXPIRES_FIELD_NUMBER: _ClassVar[int]
    SIGN_OUT_URL_FIELD_NUMBER: _ClassVar[int]
    SEARCHES_FIELD_NUMBER: _ClassVar[int]
    actor: str
    role: _access_pb2.Role
    cameras: _containers.RepeatedScalarFieldContainer[str]
    tenants: _containers.RepeatedScalarFieldContainer[str]
    csrf: str
    expires: _timestamp_pb2.Timestamp
    sign_out_url: str
    searches: bool
    def __init__(self, actor: _Optional[str] = ..., role: _Optional[_Union[_access_pb2.Role, str]] = ..., cameras: _Optional[_Iterable[str]] = ..., tenants: _Optional[_Iterable[str]] = ..., csrf: _Optional[str] = ..., expires: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., sign_out_url: _Optional[str] = ..., searches: _Optional[bool] = ...) -> None: ...

class Problem(_message.Message):
    __slots__ = ("type", "title", "status", "detail", "instance")
    TYPE_FIELD_NUMBER: _ClassVar[int]
    TITLE_FIELD_NUMBER: _ClassVar[int]
    STATUS_FIELD_NUMBER: _ClassVar[int]
    DETAIL_FIELD_NUMBER: _ClassVar[int]
    INSTANCE_FIELD_NUMBER: _ClassVar[int]
    type: str
    title: str
    status: int
    detail: str
    instance: str
    def __init__(self, type: _Optional[str] = ..., title: _Optional[str] = ..., status: _Optional[int] = ..., detail: _Optional[str] = ..., instance: _Optional[str] = ...) -> None: ...

class IncidentView(_message.Message):
    __slots__ = ("id", "camera", "tenant", "watch", "watch_version", "question", "epoch", "start", "end", "closed", "reason", "score", "peak", "windows", "evidence", "coverage", "state", "assignee", "right", "actions", "notes", "opinion", "cause", "raised")
    ID_FIELD_NUMBER: _ClassVar[int]
    CAMERA_FIELD_NUMBER: _ClassVar[int]
    TENANT_FIELD_NUMBER: _ClassVar[int]
    WATCH_FIELD_NUMBER: _ClassVar[int]
    WATCH_VERSION_FIELD_NUMBER: _ClassVar[int]
    QUESTION_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    START_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    CLOSED_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    SCORE_FIELD_NUMBER: _ClassVar[int]
    PEAK_FIELD_NUMBER: _ClassVar[int]
    WINDOWS_FIELD_NUMBER: _ClassVar[int]
    EVIDENCE_FIELD_NUMBER: _ClassVar[int]
    COVERAGE_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    ASSIGNEE_FIELD_NUMBER: _ClassVar[int]
    RIGHT_FIELD_NUMBER: _ClassVar[int]
    ACTIONS_FIELD_NUMBER: _ClassVar[int]
    NOTES_FIELD_NUMBER: _ClassVar[int]
    OPINION_FIELD_NUMBER: _ClassVar[int]
    CAUSE_FIELD_NUMBER: _ClassVar[int]
    RAISED_FIELD_NUMBER: _ClassVar[int]
    id: str
    camera: str
    tenant: str
    watch: str
    watch_version: int
    question: str
    epoch: int
    start: _timestamp_pb2.Timestamp
    end: _timestamp_pb2.Timestamp
    closed: bool
    reason: str
    score: float
    peak: float
    windows: int
    evidence: _containers.RepeatedCompositeFieldContainer[_verdicts_pb2.Evidence]
    coverage: _alerts_pb2.Coverage
    state: _actions_pb2.IncidentState
    assignee: str
    right: bool
    actions: _containers.RepeatedCompositeFieldContainer[_actions_pb2.IncidentAction]
    notes: int
    opinion: _alerts_pb2.SecondOpinion
    cause: str
    raised: _timestamp_pb2.Timestamp
    def __init__(self, id: _Optional[str] = ..., camera: _Optional[str] = ..., tenant: _Optional[str] = ..., watch: _Optional[str] = ..., watch_version: _Optional[int] = ..., question: _Optional[str] = ..., epoch: _Optional[int] = ..., start: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., end: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., closed: _Optional[bool] = ..., reason: _Optional[str] = ..., score: _Optional[float] = ..., peak: _Optional[float] = ..., windows: _Optional[int] = ..., evidence: _Optional[_Iterable[_Union[_verdicts_pb2.Evidence, _Mapping]]] = ..., coverage: _Optional[_Union[_alerts_pb2.Coverage, _Mapping]] = ..., state: _Optional[_Union[_actions_pb2.IncidentState, str]] = ..., assignee: _Optional[str] = ..., right: _Optional[bool] = ..., actions: _Optional[_Iterable[_Union[_actions_pb2.IncidentAction, _Mapping]]] = ..., notes: _Optional[int] = ..., opinion: _Optional[_Union[_alerts_pb2.SecondOpinion, _Mapping]] = ..., cause: _Optional[str] = ..., raised: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ...) -> None: ...

class IncidentPage(_message.Message):
    __slots__ = ("incidents", "next")
    INCIDENTS_FIELD_NUMBER: _ClassVar[int]
    NEXT_FIELD_NUMBER: _ClassVar[int]
    incidents: _containers.RepeatedCompositeFieldContainer[IncidentView]
    next: str
    def __init__(self, incidents: _Optional[_Iterable[_Union[IncidentView, _Mapping]]] = ..., next: _Optional[str] = ...) -> None: ...

class CameraView(_message.Message):
    __slots__ = ("id", "tenant", "state", "seen", "watches", "open_incidents", "source", "read_only", "fault", "pull", "pull_error")
    class State(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        STATE_UNSPECIFIED: _ClassVar[CameraView.State]
        STATE_WATCHED: _ClassVar[CameraView.State]
        STATE_IDLE: _ClassVar[CameraView.State]
        STATE_GAP: _ClassVar[CameraView.State]
        STATE_DEGRADED: _ClassVar[CameraView.State]
        STATE_SKIPPED: _ClassVar[CameraView.State]
        STATE_UNWATCHED: _ClassVar[CameraView.State]
        STATE_OFFLINE: _ClassVar[CameraView.State]
    STATE_UNSPECIFIED: CameraView.State
    STATE_WATCHED: CameraView.State
    STATE_IDLE: CameraView.State
    STATE_GAP: CameraView.State
    STATE_DEGRADED: CameraView.State
    STATE_SKIPPED: CameraView.State
    STATE_UNWATCHED: CameraView.State
    STATE_OFFLINE: CameraView.State
    ID_FIELD_NUMBER: _ClassVar[int]
    TENANT_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    SEEN_FIELD_NUMBER: _ClassVar[int]
    WATCHES_FIELD_NUMBER: _ClassVar[int]
    OPEN_INCIDENTS_FIELD_NUMBER: _ClassVar[int]
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    READ_ONLY_FIELD_NUMBER: _ClassVar[int]
    FAULT_FIELD_NUMBER: _ClassVar[int]
    PULL_FIELD_NUMBER: _ClassVar[int]
    PULL_ERROR_FIELD_NUMBER: _ClassVar[int]
    id: str
    tenant: str
    state: CameraView.State
    seen: _timestamp_pb2.Timestamp
    watches: int
    open_incidents: int
    source: _cameras_pb2.Camera
    read_only: bool
    fault: str
    pull: str
    pull_error: str
    def __init__(self, id: _Optional[str] = ..., tenant: _Optional[str] = ..., state: _Optional[_Union[CameraView.State, str]] = ..., seen: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., watches: _Optional[int] = ..., open_incidents: _Optional[int] = ..., source: _Optional[_Union[_cameras_pb2.Camera, _Mapping]] = ..., read_only: _Optional[bool] = ..., fault: _Optional[str] = ..., pull: _Optional[str] = ..., pull_error: _Optional[str] = ...) -> None: ...

class CameraPage(_message.Message):
    __slots__ = ("cameras", "next")
    CAMERAS_FIELD_NUMBER: _ClassVar[int]
    NEXT_FIELD_NUMBER: _ClassVar[int]
    cameras: _containers.RepeatedCompositeFieldContainer[CameraView]
    next: str
    def __init__(self, cameras: _Optional[_Iterable[_Union[CameraView, _Mapping]]] = ..., next: _Optional[str] = ...) -> None: ...

class WatchView(_message.Message):
    __slots__ = ("watch", "enabled", "snoozed_until", "read_only", "versions", "authors")
    WATCH_FIELD_NUMBER: _ClassVar[int]
    ENABLED_FIELD_NUMBER: _ClassVar[int]
    SNOOZED_UNTIL_FIELD_NUMBER: _ClassVar[int]
    READ_ONLY_FIELD_NUMBER: _ClassVar[int]
    VERSIONS_FIELD_NUMBER: _ClassVar[int]
    AUTHORS_FIELD_NUMBER: _ClassVar[int]
    watch: _watches_pb2.Watch
    enabled: bool
    snoozed_until: _timestamp_pb2.Timestamp
    read_only: bool
    versions: _containers.RepeatedCompositeFieldContainer[_watches_pb2.Watch]
    authors: _containers.RepeatedCompositeFieldContainer[WatchAuthor]
    def __init__(self, watch: _Optional[_Union[_watches_pb2.Watch, _Mapping]] = ..., enabled: _Optional[bool] = ..., snoozed_until: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., read_only: _Optional[bool] = ..., versions: _Optional[_Iterable[_Union[_watches_pb2.Watch, _Mapping]]] = ..., authors: _Optional[_Iterable[_Union[WatchAuthor, _Mapping]]] = ...) -> None: ...

class WatchAuthor(_message.Message):
    __slots__ = ("actor", "written")
    ACTOR_FIELD_NUMBER: _ClassVar[int]
    WRITTEN_FIELD_NUMBER: _ClassVar[int]
    actor: str
    written: _timestamp_pb2.Timestamp
    def __init__(self, actor: _Optional[str] = ..., written: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ...) -> None: ...

class NotificationView(_message.Message):
    __slots__ = ("notification", "read_only", "delivery")
    NOTIFICATION_FIELD_NUMBER: _ClassVar[int]
    READ_ONLY_FIELD_NUMBER: _ClassVar[int]
    DELIVERY_FIELD_NUMBER: _ClassVar[int]
    notification: _notifications_pb2.Notification
    read_only: bool
    delivery: _notifications_pb2.DeliveryState
    def __init__(self, notification: _Optional[_Union[_notifications_pb2.Notification, _Mapping]] = ..., read_only: _Optional[bool] = ..., delivery: _Optional[_Union[_notifications_pb2.DeliveryState, _Mapping]] = ...) -> None: ...

class NotificationList(_message.Message):
    __slots__ = ("notifications",)
    NOTIFICATIONS_FIELD_NUMBER: _ClassVar[int]
    notifications: _containers.RepeatedCompositeFieldContainer[NotificationView]
    def __init__(self, notifications: _Optional[_Iterable[_Union[NotificationView, _Mapping]]] = ...) -> None: ...

class PushView(_message.Message):
    __slots__ = ("key", "notifications")
    KEY_FIELD_NUMBER: _ClassVar[int]
    NOTIFICATIONS_FIELD_NUMBER: _ClassVar[int]
    key: str
    notifications: _containers.RepeatedCompositeFieldContainer[NotificationView]
    def __init__(self, key: _Optional[str] = ..., notifications: _Optional[_Iterable[_Union[NotificationView, _Mapping]]] = ...) -> None: ...

class WatchList(_message.Message):
    __slots__ = ("watches",)
    WATCHES_FIELD_NUMBER: _ClassVar[int]
    watches: _containers.RepeatedCompositeFieldContainer[WatchView]
    def __init__(self, watches: _Optional[_Iterable[_Union[WatchView, _Mapping]]] = ...) -> None: ...

class TimelineBucket(_message.Message):
    __slots__ = ("start", "verdicts", "answers", "p_max", "p_mean", "watched_s", "idle_s", "gap_s", "degraded_s", "skipped_s", "gated_s")
    START_FIELD_NUMBER: _ClassVar[int]
    VERDICTS_FIELD_NUMBER: _ClassVar[int]
    ANSWERS_FIELD_NUMBER: _ClassVar[int]
    P_MAX_FIELD_NUMBER: _ClassVar[int]
    P_MEAN_FIELD_NUMBER: _ClassVar[int]
    WATCHED_S_FIELD_NUMBER: _ClassVar[int]
    IDLE_S_FIELD_NUMBER: _ClassVar[int]
    GAP_S_FIELD_NUMBER: _ClassVar[int]
    DEGRADED_S_FIELD_NUMBER: _ClassVar[int]
    SKIPPED_S_FIELD_NUMBER: _ClassVar[int]
    GATED_S_FIELD_NUMBER: _ClassVar[int]
    start: _timestamp_pb2.Timestamp
    verdicts: int
    answers: int
    p_max: float
    p_mean: float
    watched_s: float
    idle_s: float
    gap_s: float
    degraded_s: float
    skipped_s: float
    gated_s: float
    def __init__(self, start: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., verdicts: _Optional[int] = ..., answers: _Optional[int] = ..., p_max: _Optional[float] = ..., p_mean: _Optional[float] = ..., watched_s: _Optional[float] = ..., idle_s: _Optional[float] = ..., gap_s: _Optional[float] = ..., degraded_s: _Optional[float] = ..., skipped_s: _Optional[float] = ..., gated_s: _Optional[float] = ...) -> None: ...

class TimelineSeries(_message.Message):
    __slots__ = ("camera", "tenant", "watch", "buckets")
    CAMERA_FIELD_NUMBER: _ClassVar[int]
    TENANT_FIELD_NUMBER: _ClassVar[int]
    WATCH_FIELD_NUMBER: _ClassVar[int]
    BUCKETS_FIELD_NUMBER: _ClassVar[int]
    camera: str
    tenant: str
    watch: str
    buckets: _containers.RepeatedCompositeFieldContainer[TimelineBucket]
    def __init__(self, camera: _Optional[str] = ..., tenant: _Optional[str] = ..., watch: _Optional[str] = ..., buckets: _Optional[_Iterable[_Union[TimelineBucket, _Mapping]]] = ...) -> None: ...

class Timeline(_message.Message):
    __slots__ = ("since", "until", "bucket_s", "series")
    SINCE_FIELD_NUMBER: _ClassVar[int]
    UNTIL_FIELD_NUMBER: _ClassVar[int]
    BUCKET_S_FIELD_NUMBER: _ClassVar[int]
    SERIES_FIELD_NUMBER: _ClassVar[int]
    since: _timestamp_pb2.Timestamp
    until: _timestamp_pb2.Timestamp
    bucket_s: float
    series: _containers.RepeatedCompositeFieldContainer[TimelineSeries]
    def __init__(self, since: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., until: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., bucket_s: _Optional[float] = ..., series: _Optional[_Iterable[_Union[TimelineSeries, _Mapping]]] = ...) -> None: ...

class CoverageRow(_message.Message):
    __slots__ = ("camera", "tenant", "watch", "coverage", "unseen_s")
    CAMERA_FIELD_NUMBER: _ClassVar[int]
    TENANT_FIELD_NUMBER: _ClassVar[int]
    WATCH_FIELD_NUMBER: _ClassVar[int]
    COVERAGE_FIELD_NUMBER: _ClassVar[int]
    UNSEEN_S_FIELD_NUMBER: _ClassVar[int]
    camera: str
    tenant: str
    watch: str
    coverage: _alerts_pb2.Coverage
    unseen_s: float
    def __init__(self, camera: _Optional[str] = ..., tenant: _Optional[str] = ..., watch: _Optional[str] = ..., coverage: _Optional[_Union[_alerts_pb2.Coverage, _Mapping]] = ..., unseen_s: _Optional[float] = ...) -> None: ...

class CoverageReport(_message.Message):
    __slots__ = ("since", "until", "rows")
    SINCE_FIELD_NUMBER: _ClassVar[int]
    UNTIL_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    since: _timestamp_pb2.Timestamp
    until: _timestamp_pb2.Timestamp
    rows: _containers.RepeatedCompositeFieldContainer[CoverageRow]
    def __init__(self, since: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., until: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., rows: _Optional[_Iterable[_Union[CoverageRow, _Mapping]]] = ...) -> None: ...

class ShiftReport(_message.Message):
    __slots__ = ("since", "until", "incidents", "more_incidents", "unwatched", "hours", "unusual", "note", "sentences", "prose", "prose_note", "more_unwatched", "unset", "cameras")
    SINCE_FIELD_NUMBER: _ClassVar[int]
    UNTIL_FIELD_NUMBER: _ClassVar[int]
    INCIDENTS_FIELD_NUMBER: _ClassVar[int]
    MORE_INCIDENTS_FIELD_NUMBER: _ClassVar[int]
    UNWATCHED_FIELD_NUMBER: _ClassVar[int]
    HOURS_FIELD_NUMBER: _ClassVar[int]
    UNUSUAL_FIELD_NUMBER: _ClassVar[int]
    NOTE_FIELD_NUMBER: _ClassVar[int]
    SENTENCES_FIELD_NUMBER: _ClassVar[int]
    PROSE_FIELD_NUMBER: _ClassVar[int]
    PROSE_NOTE_FIELD_NUMBER: _ClassVar[int]
    MORE_UNWATCHED_FIELD_NUMBER: _ClassVar[int]
    UNSET_FIELD_NUMBER: _ClassVar[int]
    CAMERAS_FIELD_NUMBER: _ClassVar[int]
    since: _timestamp_pb2.Timestamp
    until: _timestamp_pb2.Timestamp
    incidents: _containers.RepeatedCompositeFieldContainer[IncidentView]
    more_incidents: bool
    unwatched: _containers.RepeatedCompositeFieldContainer[UnwatchedTime]
    hours: _containers.RepeatedCompositeFieldContainer[ReportHour]
    unusual: _containers.RepeatedCompositeFieldContainer[_memory_pb2.ScoredSpan]
    note: str
    sentences: _containers.RepeatedCompositeFieldContainer[ReportSentence]
    prose: _containers.RepeatedCompositeFieldContainer[ReportSentence]
    prose_note: str
    more_unwatched: bool
    unset: _containers.RepeatedCompositeFieldContainer[UnwatchedTime]
    cameras: _containers.RepeatedCompositeFieldContainer[ReportCamera]
    def __init__(self, since: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., until: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., incidents: _Optional[_Iterable[_Union[IncidentView, _Mapping]]] = ..., more_incidents: _Optional[bool] = ..., unwatched: _Optional[_Iterable[_Union[UnwatchedTime, _Mapping]]] = ..., hours: _Optional[_Iterable[_Union[ReportHour, _Mapping]]] = ..., unusual: _Optional[_Iterable[_Union[_memory_pb2.ScoredSpan, _Mapping]]] = ..., note: _Optional[str] = ..., sentences: _Optional[_Iterable[_Union[ReportSentence, _Mapping]]] = ..., prose: _Optional[_Iterable[_Union[ReportSentence, _Mapping]]] = ..., prose_note: _Optional[str] = ..., more_unwatched: _Optional[bool] = ..., unset: _Optional[_Iterable[_Union[UnwatchedTime, _Mapping]]] = ..., cameras: _Optional[_Iterable[_Union[ReportCamera, _Mapping]]] = ...) -> None: ...

class ReportSentence(_message.Message):
    __slots__ = ("text", "incidents")
    TEXT_FIELD_NUMBER: _ClassVar[int]
    INCIDENTS_FIELD_NUMBER: _ClassVar[int]
    text: str
    incidents: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, text: _Optional[str] = ..., incidents: _Optional[_Iterable[str]] = ...) -> None: ...

class UnwatchedTime(_message.Message):
    __slots__ = ("camera", "tenant", "watch", "start", "end", "reason", "seconds", "began", "ended", "ongoing", "said")
    CAMERA_FIELD_NUMBER: _ClassVar[int]
    TENANT_FIELD_NUMBER: _ClassVar[int]
    WATCH_FIELD_NUMBER: _ClassVar[int]
    START_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    SECONDS_FIELD_NUMBER: _ClassVar[int]
    BEGAN_FIELD_NUMBER: _ClassVar[int]
    ENDED_FIELD_NUMBER: _ClassVar[int]
    ONGOING_FIELD_NUMBER: _ClassVar[int]
    SAID_FIELD_NUMBER: _ClassVar[int]
    camera: str
    tenant: str
    watch: str
    start: _timestamp_pb2.Timestamp
    end: _timestamp_pb2.Timestamp
    reason: str
    seconds: float
    began: str
    ended: str
    ongoing: bool
    said: str
    def __init__(self, camera: _Optional[str] = ..., tenant: _Optional[str] = ..., watch: _Optional[str] = ..., start: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., end: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., reason: _Optional[str] = ..., seconds: _Optional[float] = ..., began: _Optional[str] = ..., ended: _Optional[str] = ..., ongoing: _Optional[bool] = ..., said: _Optional[str] = ...) -> None: ...

class ReportCamera(_message.Message):
    __slots__ = ("camera", "tenant", "watched_s", "unwatched_s")
    CAMERA_FIELD_NUMBER: _ClassVar[int]
    TENANT_FIELD_NUMBER: _ClassVar[int]
    WATCHED_S_FIELD_NUMBER: _ClassVar[int]
    UNWATCHED_S_FIELD_NUMBER: _ClassVar[int]
    camera: str
    tenant: str
    watched_s: float
    unwatched_s: float
    def __init__(self, camera: _Optional[str] = ..., tenant: _Optional[str] = ..., watched_s: _Optional[float] = ..., unwatched_s: _Optional[float] = ...) -> None: ...

class ReportHour(_message.Message):
    __slots__ = ("start", "incidents", "watched_s", "unwatched_s")
    START_FIELD_NUMBER: _ClassVar[int]
    INCIDENTS_FIELD_NUMBER: _ClassVar[int]
    WATCHED_S_FIELD_NUMBER: _ClassVar[int]
    UNWATCHED_S_FIELD_NUMBER: _ClassVar[int]
    start: _timestamp_pb2.Timestamp
    incidents: int
    watched_s: float
    unwatched_s: float
    def __init__(self, start: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., incidents: _Optional[int] = ..., watched_s: _Optional[float] = ..., unwatched_s: _Optional[float] = ...) -> None: ...

class VerdictList(_message.Message):
    __slots__ = ("verdicts", "complete")
    VERDICTS_FIELD_NUMBER: _ClassVar[int]
    COMPLETE_FIELD_NUMBER: _ClassVar[int]
    verdicts: _containers.RepeatedCompositeFieldContainer[_verdicts_pb2.Verdict]
    complete: bool
    def __init__(self, verdicts: _Optional[_Iterable[_Union[_verdicts_pb2.Verdict, _Mapping]]] = ..., complete: _Optional[bool] = ...) -> None: ...

class LabelList(_message.Message):
    __slots__ = ("labels",)
    LABELS_FIELD_NUMBER: _ClassVar[int]
    labels: _containers.RepeatedCompositeFieldContainer[_labels_pb2.Label]
    def __init__(self, labels: _Optional[_Iterable[_Union[_labels_pb2.Label, _Mapping]]] = ...) -> None: ...

class JobView(_message.Message):
    __slots__ = ("request", "answers", "state")
    REQUEST_FIELD_NUMBER: _ClassVar[int]
    ANSWERS_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    request: _recordings_pb2.RecordingJob
    answers: _recordings_pb2.RecordingAnswers
    state: str
    def __init__(self, request: _Optional[_Union[_recordings_pb2.RecordingJob, _Mapping]] = ..., answers: _Optional[_Union[_recordings_pb2.RecordingAnswers, _Mapping]] = ..., state: _Optional[str] = ...) -> None: ...

class JobList(_message.Message):
    __slots__ = ("jobs",)
    JOBS_FIELD_NUMBER: _ClassVar[int]
    jobs: _containers.RepeatedCompositeFieldContainer[JobView]
    def __init__(self, jobs: _Optional[_Iterable[_Union[JobView, _Mapping]]] = ...) -> None: ...

class Upload(_message.Message):
    __slots__ = ("uri", "bytes")
    URI_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    uri: str
    bytes: int
    def __init__(self, uri: _Optional[str] = ..., bytes: _Optional[int] = ...) -> None: ...

class Film(_message.Message):
    __slots__ = ("camera", "begin", "end", "segments", "watches")
    CAMERA_FIELD_NUMBER: _ClassVar[int]
    BEGIN_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    SEGMENTS_FIELD_NUMBER: _ClassVar[int]
    WATCHES_FIELD_NUMBER: _ClassVar[int]
    camera: str
    begin: _timestamp_pb2.Timestamp
    end: _timestamp_pb2.Timestamp
    segments: int
    watches: int
    def __init__(self, camera: _Optional[str] = ..., begin: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., end: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., segments: _Optional[int] = ..., watches: _Optional[int] = ...) -> None: ...

class ErasureView(_message.Message):
    __slots__ = ("erasure", "confirmations", "waiting")
    ERASURE_FIELD_NUMBER: _ClassVar[int]
    CONFIRMATIONS_FIELD_NUMBER: _ClassVar[int]
    WAITING_FIELD_NUMBER: _ClassVar[int]
    erasure: _erasures_pb2.Erasure
    confirmations: _containers.RepeatedCompositeFieldContainer[_erasures_pb2.ErasureConfirmation]
    waiting: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, erasure: _Optional[_Union[_erasures_pb2.Erasure, _Mapping]] = ..., confirmations: _Optional[_Iterable[_Union[_erasures_pb2.ErasureConfirmation, _Mapping]]] = ..., waiting: _Optional[_Iterable[str]] = ...) -> None: ...

class ErasureList(_message.Message):
    __slots__ = ("erasures",)
    ERASURES_FIELD_NUMBER: _ClassVar[int]
    erasures: _containers.RepeatedCompositeFieldContainer[ErasureView]
    def __init__(self, erasures: _Optional[_Iterable[_Union[ErasureView, _Mapping]]] = ...) -> None: ...

class ApiTokenList(_message.Message):
    __slots__ = ("tokens",)
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    tokens: _containers.RepeatedCompositeFieldContainer[_access_pb2.ApiToken]
    def __init__(self, tokens: _Optional[_Iterable[_Union[_access_pb2.ApiToken, _Mapping]]] = ...) -> None: ...

class NewApiToken(_message.Message):
    __slots__ = ("token", "secret")
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    SECRET_FIELD_NUMBER: _ClassVar[int]
    token: _access_pb2.ApiToken
    secret: str
    def __init__(self, token: _Optional[_Union[_access_pb2.ApiToken, _Mapping]] = ..., secret: _Optional[str] = ...) -> None: ...

class AuditPage(_message.Message):
    __slots__ = ("entries", "next")
    ENTRIES_FIELD_NUMBER: _ClassVar[int]
    NEXT_FIELD_NUMBER: _ClassVar[int]
    entries: _containers.RepeatedCompositeFieldContainer[_access_pb2.AuditEntry]
    next: str
    def __init__(self, entries: _Optional[_Iterable[_Union[_access_pb2.AuditEntry, _Mapping]]] = ..., next: _Optional[str] = ...) -> None: ...

class Event(_message.Message):
    __slots__ = ("id", "kind", "time", "camera", "tenant", "incident", "action", "job", "watch", "dead_letter")
    ID_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    TIME_FIELD_NUMBER: _ClassVar[int]
    CAMERA_FIELD_NUMBER: _ClassVar[int]
    TENANT_FIELD_NUMBER: _ClassVar[int]
    INCIDENT_FIELD_NUMBER: _ClassVar[int]
    ACTION_FIELD_NUMBER: _ClassVar[int]
    JOB_FIELD_NUMBER: _ClassVar[int]
    WATCH_FIELD_NUMBER: _ClassVar[int]
    DEAD_LETTER_FIELD_NUMBER: _ClassVar[int]
    id: str
    kind: str
    time: _timestamp_pb2.Timestamp
    camera: str
    tenant: str
    incident: IncidentView
    action: _actions_pb2.IncidentAction
    job: JobView
    watch: _watches_pb2.Watch
    dead_letter: DeadLetterView
    def __init__(self, id: _Optional[str] = ..., kind: _Optional[str] = ..., time: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., camera: _Optional[str] = ..., tenant: _Optional[str] = ..., incident: _Optional[_Union[IncidentView, _Mapping]] = ..., action: _Optional[_Union[_actions_pb2.IncidentAction, _Mapping]] = ..., job: _Optional[_Union[JobView, _Mapping]] = ..., watch: _Optional[_Union[_watches_pb2.Watch, _Mapping]] = ..., dead_letter: _Optional[_Union[DeadLetterView, _Mapping]] = ...) -> None: ...

class DeadLetterView(_message.Message):
    __slots__ = ("topic", "partition", "offset", "time", "key", "stage", "reason", "detail", "source_topic", "source_partition", "source_offset", "records", "tenant")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    TIME_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    STAGE_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    DETAIL_FIELD_NUMBER: _ClassVar[int]
    SOURCE_TOPIC_FIELD_NUMBER: _ClassVar[int]
    SOURCE_PARTITION_FIELD_NUMBER: _ClassVar[int]
    SOURCE_OFFSET_FIELD_NUMBER: _ClassVar[int]
    RECORDS_FIELD_NUMBER: _ClassVar[int]
    TENANT_FIELD_NUMBER: _ClassVar[int]
    topic: str
    partition: int
    offset: int
    time: _timestamp_pb2.Timestamp
    key: str
    stage: str
    reason: str
    detail: str
    source_topic: str
    source_partition: int
    source_offset: int
    records: int
    tenant: str
    def __init__(self, topic: _Optional[str] = ..., partition: _Optional[int] = ..., offset: _Optional[int] = ..., time: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., key: _Optional[str] = ..., stage: _Optional[str] = ..., reason: _Optional[str] = ..., detail: _Optional[str] = ..., source_topic: _Optional[str] = ..., source_partition: _Optional[int] = ..., source_offset: _Optional[int] = ..., records: _Optional[int] = ..., tenant: _Optional[str] = ...) -> None: ...

class DeadLetterPage(_message.Message):
    __slots__ = ("letters", "next")
    LETTERS_FIELD_NUMBER: _ClassVar[int]
    NEXT_FIELD_NUMBER: _ClassVar[int]
    letters: _containers.RepeatedCompositeFieldContainer[DeadLetterView]
    next: str
    def __init__(self, letters: _Optional[_Iterable[_Union[DeadLetterView, _Mapping]]] = ..., next: _Optional[str] = ...) -> None: ...

class CostRow(_message.Message):
    __slots__ = ("camera", "tenant", "watch", "verdicts", "flops", "share", "money", "device_s")
    CAMERA_FIELD_NUMBER: _ClassVar[int]
    TENANT_FIELD_NUMBER: _ClassVar[int]
    WATCH_FIELD_NUMBER: _ClassVar[int]
    VERDICTS_FIELD_NUMBER: _ClassVar[int]
    FLOPS_FIELD_NUMBER: _ClassVar[int]
    SHARE_FIELD_NUMBER: _ClassVar[int]
    MONEY_FIELD_NUMBER: _ClassVar[int]
    DEVICE_S_FIELD_NUMBER: _ClassVar[int]
    camera: str
    tenant: str
    watch: str
    verdicts: int
    flops: float
    share: float
    money: float
    device_s: float
    def __init__(self, camera: _Optional[str] = ..., tenant: _Optional[str] = ..., watch: _Optional[str] = ..., verdicts: _Optional[int] = ..., flops: _Optional[float] = ..., share: _Optional[float] = ..., money: _Optional[float] = ..., device_s: _Optional[float] = ...) -> None: ...

class CostReport(_message.Message):
    __slots__ = ("since", "until", "currency", "rows")
    SINCE_FIELD_NUMBER: _ClassVar[int]
    UNTIL_FIELD_NUMBER: _ClassVar[int]
    CURRENCY_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    since: _timestamp_pb2.Timestamp
    until: _timestamp_pb2.Timestamp
    currency: str
    rows: _containers.RepeatedCompositeFieldContainer[CostRow]
    def __init__(self, since: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., until: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., currency: _Optional[str] = ..., rows: _Optional[_Iterable[_Union[CostRow, _Mapping]]] = ...) -> None: ...

class LagRow(_message.Message):
    __slots__ = ("group", "topic", "partition", "committed", "end", "lag")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    COMMITTED_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    LAG_FIELD_NUMBER: _ClassVar[int]
    group: str
    topic: str
    partition: int
    committed: int
    end: int
    lag: int
    def __init__(self, group: _Optional[str] = ..., topic: _Optional[str] = ..., partition: _Optional[int] = ..., committed: _Optional[int] = ..., end: _Optional[int] = ..., lag: _Optional[int] = ...) -> None: ...

class FleetView(_message.Message):
    __slots__ = ("version", "lag", "findings", "services")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    LAG_FIELD_NUMBER: _ClassVar[int]
    FINDINGS_FIELD_NUMBER: _ClassVar[int]
    SERVICES_FIELD_NUMBER: _ClassVar[int]
    version: str
    lag: _containers.RepeatedCompositeFieldContainer[LagRow]
    findings: _containers.RepeatedCompositeFieldContainer[Finding]
    services: _containers.RepeatedCompositeFieldContainer[ServiceRow]
    def __init__(self, version: _Optional[str] = ..., lag: _Optional[_Iterable[_Union[LagRow, _Mapping]]] = ..., findings: _Optional[_Iterable[_Union[Finding, _Mapping]]] = ..., services: _Optional[_Iterable[_Union[ServiceRow, _Mapping]]] = ...) -> None: ...

class Finding(_message.Message):
    __slots__ = ("about", "state", "found", "advice")
    ABOUT_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    FOUND_FIELD_NUMBER: _ClassVar[int]
    ADVICE_FIELD_NUMBER: _ClassVar[int]
    about: str
    state: str
    found: str
    advice: str
    def __init__(self, about: _Optional[str] = ..., state: _Optional[str] = ..., found: _Optional[str] = ..., advice: _Optional[str] = ...) -> None: ...

class ServiceRow(_message.Message):
    __slots__ = ("group", "instance", "host", "version")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    INSTANCE_FIELD_NUMBER: _ClassVar[int]
    HOST_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    group: str
    instance: str
    host: str
    version: str
    def __init__(self, group: _Optional[str] = ..., instance: _Optional[str] = ..., host: _Optional[str] = ..., version: _Optional[str] = ...) -> None: ...

class UsageRow(_message.Message):
    __slots__ = ("tenant", "cameras", "verdicts", "answers", "incidents", "flops", "device_s", "money")
    TENANT_FIELD_NUMBER: _ClassVar[int]
    CAMERAS_FIELD_NUMBER: _ClassVar[int]
    VERDICTS_FIELD_NUMBER: _ClassVar[int]
    ANSWERS_FIELD_NUMBER: _ClassVar[int]
    INCIDENTS_FIELD_NUMBER: _ClassVar[int]
    FLOPS_FIELD_NUMBER: _ClassVar[int]
    DEVICE_S_FIELD_NUMBER: _ClassVar[int]
    MONEY_FIELD_NUMBER: _ClassVar[int]
    tenant: str
    cameras: int
    verdicts: int
    answers: int
    incidents: int
    flops: float
    device_s: float
    money: float
    def __init__(self, tenant: _Optional[str] = ..., cameras: _Optional[int] = ..., verdicts: _Optional[int] = ..., answers: _Optional[int] = ..., incidents: _Optional[int] = ..., flops: _Optional[float] = ..., device_s: _Optional[float] = ..., money: _Optional[float] = ...) -> None: ...

class UsageReport(_message.Message):
    __slots__ = ("since", "until", "currency", "rows")
    SINCE_FIELD_NUMBER: _ClassVar[int]
    UNTIL_FIELD_NUMBER: _ClassVar[int]
    CURRENCY_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    since: _timestamp_pb2.Timestamp
    until: _timestamp_pb2.Timestamp
    currency: str
    rows: _containers.RepeatedCompositeFieldContainer[UsageRow]
    def __init__(self, since: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., until: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., currency: _Optional[str] = ..., rows: _Optional[_Iterable[_Union[UsageRow, _Mapping]]] = ...) -> None: ...

class TrainedQuestion(_message.Message):
    __slots__ = ("wordings", "rendered", "real")
    WORDINGS_FIELD_NUMBER: _ClassVar[int]
    RENDERED_FIELD_NUMBER: _ClassVar[int]
    REAL_FIELD_NUMBER: _ClassVar[int]
    wordings: _containers.RepeatedScalarFieldContainer[str]
    rendered: float
    real: float
    def __init__(self, wordings: _Optional[_Iterable[str]] = ..., rendered: _Optional[float] = ..., real: _Optional[float] = ...) -> None: ...

class TrainedQuestions(_message.Message):
    __slots__ = ("listed", "questions")
    LISTED_FIELD_NUMBER: _ClassVar[int]
    QUESTIONS_FIELD_NUMBER: _ClassVar[int]
    listed: bool
    questions: _containers.RepeatedCompositeFieldContainer[TrainedQuestion]
    def __init__(self, listed: _Optional[bool] = ..., questions: _Optional[_Iterable[_Union[TrainedQuestion, _Mapping]]] = ...) -> None: ...

class TestAlert(_message.Message):
    __slots__ = ("id", "time")
    ID_FIELD_NUMBER: _ClassVar[int]
    TIME_FIELD_NUMBER: _ClassVar[int]
    id: str
    time: _timestamp_pb2.Timestamp
    def __init__(self, id: _Optional[str] = ..., time: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ...) -> None: ...
