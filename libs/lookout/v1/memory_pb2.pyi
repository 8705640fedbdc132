from lookout.v1 import lineage_pb2 as _lineage_pb2
from lookout.v1 import verdicts_pb2 as _verdicts_pb2
from lookout.v1 import watches_pb2 as _watches_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class ListChaptersRequest(_message.Message):
    __slots__ = ("cameras", "since_us", "until_us", "after", "page")
    CAMERAS_FIELD_NUMBER: _ClassVar[int]
    SINCE_US_FIELD_NUMBER: _ClassVar[int]
    UNTIL_US_FIELD_NUMBER: _ClassVar[int]
    AFTER_FIELD_NUMBER: _ClassVar[int]
    PAGE_FIELD_NUMBER: _ClassVar[int]
    cameras: str
    since_us: int
    until_us: int
    after: str
    page: int
    def __init__(self, cameras: _Optional[str] = ..., since_us: _Optional[int] = ..., until_us: _Optional[int] = ..., after: _Optional[str] = ..., page: _Optional[int] = ...) -> None: ...

class ListChaptersResponse(_message.Message):
    __slots__ = ("chapter", "chunk")
    CHAPTER_FIELD_NUMBER: _ClassVar[int]
    CHUNK_FIELD_NUMBER: _ClassVar[int]
    chapter: ChapterInfo
    chunk: bytes
    def __init__(self, chapter: _Optional[_Union[ChapterInfo, _Mapping]] = ..., chunk: _Optional[bytes] = ...) -> None: ...

class ChapterInfo(_message.Message):
    __slots__ = ("name", "camera", "epoch", "first_block", "version", "sealed", "begin_us", "end_us", "bytes", "head_bytes", "model_digest")
    NAME_FIELD_NUMBER: _ClassVar[int]
    CAMERA_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    FIRST_BLOCK_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    SEALED_FIELD_NUMBER: _ClassVar[int]
    BEGIN_US_FIELD_NUMBER: _ClassVar[int]
    END_US_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    HEAD_BYTES_FIELD_NUMBER: _ClassVar[int]
    MODEL_DIGEST_FIELD_NUMBER: _ClassVar[int]
    name: str
    camera: str
    epoch: int
    first_block: int
    version: int
    sealed: bool
    begin_us: int
    end_us: int
    bytes: int
    head_bytes: int
    model_digest: str
    def __init__(self, name: _Optional[str] = ..., camera: _Optional[str] = ..., epoch: _Optional[int] = ..., first_block: _Optional[int] = ..., version: _Optional[int] = ..., sealed: _Optional[bool] = ..., begin_us: _Optional[int] = ..., end_us: _Optional[int] = ..., bytes: _Optional[int] = ..., head_bytes: _Optional[int] = ..., model_digest: _Optional[str] = ...) -> None: ...

class ReadSlabsRequest(_message.Message):
    __slots__ = ("chapters",)
    CHAPTERS_FIELD_NUMBER: _ClassVar[int]
    chapters: _containers.RepeatedCompositeFieldContainer[ChapterRanges]
    def __init__(self, chapters: _Optional[_Iterable[_Union[ChapterRanges, _Mapping]]] = ...) -> None: ...

class ChapterRanges(_message.Message):
    __slots__ = ("name", "version", "ranges")
    NAME_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    RANGES_FIELD_NUMBER: _ClassVar[int]
    name: str
    version: int
    ranges: _containers.RepeatedCompositeFieldContainer[SlabRange]
    def __init__(self, name: _Optional[str] = ..., version: _Optional[int] = ..., ranges: _Optional[_Iterable[_Union[SlabRange, _Mapping]]] = ...) -> None: ...

class SlabRange(_message.Message):
    __slots__ = ("file", "offset", "length")
    FILE_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    LENGTH_FIELD_NUMBER: _ClassVar[int]
    file: str
    offset: int
    length: int
    def __init__(self, file: _Optional[str] = ..., offset: _Optional[int] = ..., length: _Optional[int] = ...) -> None: ...

class ReadSlabsResponse(_message.Message):
    __slots__ = ("header", "chunk", "batch")
    HEADER_FIELD_NUMBER: _ClassVar[int]
    CHUNK_FIELD_NUMBER: _ClassVar[int]
    BATCH_FIELD_NUMBER: _ClassVar[int]
    header: SlabHeader
    chunk: bytes
    batch: SlabBatch
    def __init__(self, header: _Optional[_Union[SlabHeader, _Mapping]] = ..., chunk: _Optional[bytes] = ..., batch: _Optional[_Union[SlabBatch, _Mapping]] = ...) -> None: ...

class SlabBatch(_message.Message):
    __slots__ = ("slabs", "data")
    SLABS_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    slabs: _containers.RepeatedCompositeFieldContainer[SlabHeader]
    data: bytes
    def __init__(self, slabs: _Optional[_Iterable[_Union[SlabHeader, _Mapping]]] = ..., data: _Optional[bytes] = ...) -> None: ...

class SlabHeader(_message.Message):
    __slots__ = ("length", "crc32c")
    LENGTH_FIELD_NUMBER: _ClassVar[int]
    CRC32C_FIELD_NUMBER: _ClassVar[int]
    length: int
    crc32c: int
    def __init__(self, length: _Optional[int] = ..., crc32c: _Optional[int] = ...) -> None: ...

class AskRequest(_message.Message):
    __slots__ = ("question", "cameras", "since_us", "until_us", "text", "words", "frames")
    QUESTION_FIELD_NUMBER: _ClassVar[int]
    CAMERAS_FIELD_NUMBER: _ClassVar[int]
    SINCE_US_FIELD_NUMBER: _ClassVar[int]
    UNTIL_US_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    WORDS_FIELD_NUMBER: _ClassVar[int]
    FRAMES_FIELD_NUMBER: _ClassVar[int]
    question: str
    cameras: str
    since_us: int
    until_us: int
    text: bool
    words: int
    frames: int
    def __init__(self, question: _Optional[str] = ..., cameras: _Optional[str] = ..., since_us: _Optional[int] = ..., until_us: _Optional[int] = ..., text: _Optional[bool] = ..., words: _Optional[int] = ..., frames: _Optional[int] = ...) -> None: ...

class AskResponse(_message.Message):
    __slots__ = ("progress", "text", "answer", "summary")
    PROGRESS_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    ANSWER_FIELD_NUMBER: _ClassVar[int]
    SUMMARY_FIELD_NUMBER: _ClassVar[int]
    progress: AskProgress
    text: AskText
    answer: CameraAnswer
    summary: AskSummary
    def __init__(self, progress: _Optional[_Union[AskProgress, _Mapping]] = ..., text: _Optional[_Union[AskText, _Mapping]] = ..., answer: _Optional[_Union[CameraAnswer, _Mapping]] = ..., summary: _Optional[_Union[AskSummary, _Mapping]] = ...) -> None: ...

class AskProgress(_message.Message):
    __slots__ = ("stage", "camera", "done", "total")
    STAGE_FIELD_NUMBER: _ClassVar[int]
    CAMERA_FIELD_NUMBER: _ClassVar[int]
    DONE_FIELD_NUMBER: _ClassVar[int]
    TOTAL_FIELD_NUMBER: _ClassVar[int]
    stage: str
    camera: str
    done: int
    total: int
    def __init__(self, stage: _Optional[str] = ..., camera: _Optional[str] = ..., done: _Optional[int] = ..., total: _Optional[int] = ...) -> None: ...

class AskText(_message.Message):
    __slots__ = ("camera", "piece")
    CAMERA_FIELD_NUMBER: _ClassVar[int]
    PIECE_FIELD_NUMBER: _ClassVar[int]
    camera: str
    piece: str
    def __init__(self, camera: _Optional[str] = ..., piece: _Optional[str] = ...) -> None: ...

class CameraAnswer(_message.Message):
    __slots__ = ("camera", "p_yes", "text", "moments", "covered", "missing", "cost", "cheap", "answers")
    CAMERA_FIELD_NUMBER: _ClassVar[int]
    P_YES_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    MOMENTS_FIELD_NUMBER: _ClassVar[int]
    COVERED_FIELD_NUMBER: _ClassVar[int]
    MISSING_FIELD_NUMBER: _ClassVar[int]
    COST_FIELD_NUMBER: _ClassVar[int]
    CHEAP_FIELD_NUMBER: _ClassVar[int]
    ANSWERS_FIELD_NUMBER: _ClassVar[int]
    camera: str
    p_yes: float
    text: str
    moments: _containers.RepeatedCompositeFieldContainer[Moment]
    covered: _containers.RepeatedCompositeFieldContainer[TimeRange]
    missing: _containers.RepeatedScalarFieldContainer[str]
    cost: AskCost
    cheap: bool
    answers: _containers.RepeatedCompositeFieldContainer[_verdicts_pb2.AnswerShare]
    def __init__(self, camera: _Optional[str] = ..., p_yes: _Optional[float] = ..., text: _Optional[str] = ..., moments: _Optional[_Iterable[_Union[Moment, _Mapping]]] = ..., covered: _Optional[_Iterable[_Union[TimeRange, _Mapping]]] = ..., missing: _Optional[_Iterable[str]] = ..., cost: _Optional[_Union[AskCost, _Mapping]] = ..., cheap: _Optional[bool] = ..., answers: _Optional[_Iterable[_Union[_verdicts_pb2.AnswerShare, _Mapping]]] = ...) -> None: ...

class Moment(_message.Message):
    __slots__ = ("time_us", "weight", "epoch", "stream_us", "chapter")
    TIME_US_FIELD_NUMBER: _ClassVar[int]
    WEIGHT_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    STREAM_US_FIELD_NUMBER: _ClassVar[int]
    CHAPTER_FIELD_NUMBER: _ClassVar[int]
    time_us: int
    weight: float
    epoch: int
    stream_us: int
    chapter: str
    def __init__(self, time_us: _Optional[int] = ..., weight: _Optional[float] = ..., epoch: _Optional[int] = ..., stream_us: _Optional[int] = ..., chapter: _Optional[str] = ...) -> None: ...

class TimeRange(_message.Message):
    __slots__ = ("begin_us", "end_us")
    BEGIN_US_FIELD_NUMBER: _ClassVar[int]
    END_US_FIELD_NUMBER: _ClassVar[int]
    begin_us: int
    end_us: int
    def __init__(self, begin_us: _Optional[int] = ..., end_us: _Optional[int] = ...) -> None: ...

class AskCost(_message.Message):
    __slots__ = ("question_tokens", "memory_tokens", "fetched_bytes", "fetches", "cached_ranges", "flops", "list_s", "first_token_s", "retrieve_s", "move_s", "attend_s", "tries", "round_trips_a_layer")
    QUESTION_TOKENS_FIELD_NUMBER: _ClassVar[int]
    MEMORY_TOKENS_FIELD_NUMBER: _ClassVar[int]
    FETCHED_BYTES_FIELD_NUMBER: _ClassVar[int]
    FETCHES_FIELD_NUMBER: _ClassVar[int]
    CACHED_RANGES_FIELD_NUMBER: _ClassVar[int]
    FLOPS_FIELD_NUMBER: _ClassVar[int]
    LIST_S_FIELD_NUMBER: _ClassVar[int]
    FIRST_TOKEN_S_FIELD_NUMBER: _ClassVar[int]
    RETRIEVE_S_FIELD_NUMBER: _ClassVar[int]
    MOVE_S_FIELD_NUMBER: _ClassVar[int]
    ATTEND_S_FIELD_NUMBER: _ClassVar[int]
    TRIES_FIELD_NUMBER: _ClassVar[int]
    ROUND_TRIPS_A_LAYER_FIELD_NUMBER: _ClassVar[int]
    question_tokens: int
    memory_tokens: float
    fetched_bytes: int
    fetches: int
    cached_ranges: int
    flops: int
    list_s: float
    first_token_s: float
    retrieve_s: float
    move_s: float
    attend_s: float
    tries: int
    round_trips_a_layer: float
    def __init__(self, question_tokens: _Optional[int] = ..., memory_tokens: _Optional[float] = ..., fetched_bytes: _Optional[int] = ..., fetches: _Optional[int] = ..., cached_ranges: _Optional[int] = ..., flops: _Optional[int] = ..., list_s: _Optional[float] = ..., first_token_s: _Optional[float] = ..., retrieve_s: _Optional[float] = ..., move_s: _Optional[float] = ..., attend_s: _Optional[float] = ..., tries: _Optional[int] = ..., round_trips_a_layer: _Optional[float] = ...) -> None: ...

class AskSummary(_message.Message):
    __slots__ = ("cameras", "answered", "not_asked")
    CAMERAS_FIELD_NUMBER: _ClassVar[int]
    ANSWERED_FIELD_NUMBER: _ClassVar[int]
    NOT_ASKED_FIELD_NUMBER: _ClassVar[int]
    cameras: int
    answered: int
    not_asked: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, cameras: _Optional[int] = ..., answered: _Optional[int] = ..., not_asked: _Optional[_Iterable[str]] = ...) -> None: ...

class FindRequest(_message.Message):
    __slots__ = ("question", "cameras", "since_us", "until_us", "limit", "threshold", "share", "anyway", "exact", "tenants", "like")
    QUESTION_FIELD_NUMBER: _ClassVar[int]
    CAMERAS_FIELD_NUMBER: _ClassVar[int]
    SINCE_US_FIELD_NUMBER: _ClassVar[int]
    UNTIL_US_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    THRESHOLD_FIELD_NUMBER: _ClassVar[int]
    SHARE_FIELD_NUMBER: _ClassVar[int]
    ANYWAY_FIELD_NUMBER: _ClassVar[int]
    EXACT_FIELD_NUMBER: _ClassVar[int]
    TENANTS_FIELD_NUMBER: _ClassVar[int]
    LIKE_FIELD_NUMBER: _ClassVar[int]
    question: str
    cameras: _containers.RepeatedScalarFieldContainer[str]
    since_us: int
    until_us: int
    limit: int
    threshold: float
    share: float
    anyway: bool
    exact: bool
    tenants: _containers.RepeatedScalarFieldContainer[str]
    like: PictureRegion
    def __init__(self, question: _Optional[str] = ..., cameras: _Optional[_Iterable[str]] = ..., since_us: _Optional[int] = ..., until_us: _Optional[int] = ..., limit: _Optional[int] = ..., threshold: _Optional[float] = ..., share: _Optional[float] = ..., anyway: _Optional[bool] = ..., exact: _Optional[bool] = ..., tenants: _Optional[_Iterable[str]] = ..., like: _Optional[_Union[PictureRegion, _Mapping]] = ...) -> None: ...

class PictureRegion(_message.Message):
    __slots__ = ("camera", "time_us", "zone", "picture")
    CAMERA_FIELD_NUMBER: _ClassVar[int]
    TIME_US_FIELD_NUMBER: _ClassVar[int]
    ZONE_FIELD_NUMBER: _ClassVar[int]
    PICTURE_FIELD_NUMBER: _ClassVar[int]
    camera: str
    time_us: int
    zone: _watches_pb2.Zone
    picture: bytes
    def __init__(self, camera: _Optional[str] = ..., time_us: _Optional[int] = ..., zone: _Optional[_Union[_watches_pb2.Zone, _Mapping]] = ..., picture: _Optional[bytes] = ...) -> None: ...

class FindResponse(_message.Message):
    __slots__ = ("progress", "hit", "summary")
    PROGRESS_FIELD_NUMBER: _ClassVar[int]
    HIT_FIELD_NUMBER: _ClassVar[int]
    SUMMARY_FIELD_NUMBER: _ClassVar[int]
    progress: FindProgress
    hit: FindHit
    summary: FindSummary
    def __init__(self, progress: _Optional[_Union[FindProgress, _Mapping]] = ..., hit: _Optional[_Union[FindHit, _Mapping]] = ..., summary: _Optional[_Union[FindSummary, _Mapping]] = ...) -> None: ...

class FindProgress(_message.Message):
    __slots__ = ("stage", "camera", "done", "total", "note")
    STAGE_FIELD_NUMBER: _ClassVar[int]
    CAMERA_FIELD_NUMBER: _ClassVar[int]
    DONE_FIELD_NUMBER: _ClassVar[int]
    TOTAL_FIELD_NUMBER: _ClassVar[int]
    NOTE_FIELD_NUMBER: _ClassVar[int]
    stage: str
    camera: str
    done: int
    total: int
    note: str
    def __init__(self, stage: _Optional[str] = ..., camera: _Optional[str] = ..., done: _Optional[int] = ..., total: _Optional[int] = ..., note: _Optional[str] = ...) -> None: ...

class FindHit(_message.Message):
    __slots__ = ("number", "verdict", "begin_us", "end_us", "windows", "proposed", "segments", "merged", "then", "picture_us")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    VERDICT_FIELD_NUMBER: _ClassVar[int]
    BEGIN_US_FIELD_NUMBER: _ClassVar[int]
    END_US_FIELD_NUMBER: _ClassVar[int]
    WINDOWS_FIELD_NUMBER: _ClassVar[int]
    PROPOSED_FIELD_NUMBER: _ClassVar[int]
    SEGMENTS_FIELD_NUMBER: _ClassVar[int]
    MERGED_FIELD_NUMBER: _ClassVar[int]
    THEN_FIELD_NUMBER: _ClassVar[int]
    PICTURE_US_FIELD_NUMBER: _ClassVar[int]
    number: int
    verdict: _verdicts_pb2.Verdict
    begin_us: int
    end_us: int
    windows: int
    proposed: float
    segments: _containers.RepeatedCompositeFieldContainer[_lineage_pb2.RecordRef]
    merged: _containers.RepeatedScalarFieldContainer[int]
    then: _containers.RepeatedCompositeFieldContainer[_verdicts_pb2.Verdict]
    picture_us: int
    def __init__(self, number: _Optional[int] = ..., verdict: _Optional[_Union[_verdicts_pb2.Verdict, _Mapping]] = ..., begin_us: _Optional[int] = ..., end_us: _Optional[int] = ..., windows: _Optional[int] = ..., proposed: _Optional[float] = ..., segments: _Optional[_Iterable[_Union[_lineage_pb2.RecordRef, _Mapping]]] = ..., merged: _Optional[_Iterable[int]] = ..., then: _Optional[_Iterable[_Union[_verdicts_pb2.Verdict, _Mapping]]] = ..., picture_us: _Optional[int] = ...) -> None: ...

class FindSummary(_message.Message):
    __slots__ = ("hits", "cameras", "ranked", "asked", "not_searched", "cost", "ended")
    HITS_FIELD_NUMBER: _ClassVar[int]
    CAMERAS_FIELD_NUMBER: _ClassVar[int]
    RANKED_FIELD_NUMBER: _ClassVar[int]
    ASKED_FIELD_NUMBER: _ClassVar[int]
    NOT_SEARCHED_FIELD_NUMBER: _ClassVar[int]
    COST_FIELD_NUMBER: _ClassVar[int]
    ENDED_FIELD_NUMBER: _ClassVar[int]
    hits: _containers.RepeatedScalarFieldContainer[int]
    cameras: int
    ranked: int
    asked: int
    not_searched: _containers.RepeatedCompositeFieldContainer[NotSearched]
    cost: FindCost
    ended: str
    def __init__(self, hits: _Optional[_Iterable[int]] = ..., cameras: _Optional[int] = ..., ranked: _Optional[int] = ..., asked: _Optional[int] = ..., not_searched: _Optional[_Iterable[_Union[NotSearched, _Mapping]]] = ..., cost: _Optional[_Union[FindCost, _Mapping]] = ..., ended: _Optional[str] = ...) -> None: ...

class NotSearched(_message.Message):
    __slots__ = ("camera", "begin_us", "end_us", "reason", "proposed", "kind")
    CAMERA_FIELD_NUMBER: _ClassVar[int]
    BEGIN_US_FIELD_NUMBER: _ClassVar[int]
    END_US_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    PROPOSED_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    camera: str
    begin_us: int
    end_us: int
    reason: str
    proposed: float
    kind: str
    def __init__(self, camera: _Optional[str] = ..., begin_us: _Optional[int] = ..., end_us: _Optional[int] = ..., reason: _Optional[str] = ..., proposed: _Optional[float] = ..., kind: _Optional[str] = ...) -> None: ...

class UnusualRequest(_message.Message):
    __slots__ = ("cameras", "since_us", "until_us", "limit", "exact")
    CAMERAS_FIELD_NUMBER: _ClassVar[int]
    SINCE_US_FIELD_NUMBER: _ClassVar[int]
    UNTIL_US_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    EXACT_FIELD_NUMBER: _ClassVar[int]
    cameras: _containers.RepeatedScalarFieldContainer[str]
    since_us: int
    until_us: int
    limit: int
    exact: bool
    def __init__(self, cameras: _Optional[_Iterable[str]] = ..., since_us: _Optional[int] = ..., until_us: _Optional[int] = ..., limit: _Optional[int] = ..., exact: _Optional[bool] = ...) -> None: ...

class UnusualResponse(_message.Message):
    __slots__ = ("spans", "note")
    SPANS_FIELD_NUMBER: _ClassVar[int]
    NOTE_FIELD_NUMBER: _ClassVar[int]
    spans: _containers.RepeatedCompositeFieldContainer[ScoredSpan]
    note: str
    def __init__(self, spans: _Optional[_Iterable[_Union[ScoredSpan, _Mapping]]] = ..., note: _Optional[str] = ...) -> None: ...

class SimilarRequest(_message.Message):
    __slots__ = ("like", "cameras", "since_us", "until_us", "limit", "exact")
    LIKE_FIELD_NUMBER: _ClassVar[int]
    CAMERAS_FIELD_NUMBER: _ClassVar[int]
    SINCE_US_FIELD_NUMBER: _ClassVar[int]
    UNTIL_US_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    EXACT_FIELD_NUMBER: _ClassVar[int]
    like: PictureRegion
    cameras: _containers.RepeatedScalarFieldContainer[str]
    since_us: int
    until_us: int
    limit: int
    exact: bool
    def __init__(self, like: _Optional[_Union[PictureRegion, _Mapping]] = ..., cameras: _Optional[_Iterable[str]] = ..., since_us: _Optional[int] = ..., until_us: _Optional[int] = ..., limit: _Optional[int] = ..., exact: _Optional[bool] = ...) -> None: ...

class SimilarResponse(_message.Message):
    __slots__ = ("spans", "note")
    SPANS_FIELD_NUMBER: _ClassVar[int]
    NOTE_FIELD_NUMBER: _ClassVar[int]
    spans: _containers.RepeatedCompositeFieldContainer[ScoredSpan]
    note: str
    def __init__(self, spans: _Optional[_Iterable[_Union[ScoredSpan, _Mapping]]] = ..., note: _Optional[str] = ...) -> None: ...

class ScoredSpan(_message.Message):
    __slots__ = ("camera", "begin_us", "end_us", "score")
    CAMERA_FIELD_NUMBER: _ClassVar[int]
    BEGIN_US_FIELD_NUMBER: _ClassVar[int]
    END_US_FIELD_NUMBER: _ClassVar[int]
    SCORE_FIELD_NUMBER: _ClassVar[int]
    camera: str
    begin_us: int
    end_us: int
    score: float
    def __init__(self, camera: _Optional[str] = ..., begin_us: _Optional[int] = ..., end_us: _Optional[int] = ..., score: _Optional[float] = ...) -> None: ...

class FindCost(_message.Message):
    __slots__ = ("windows", "windows_total", "flops", "flops_total", "fetched_bytes", "share")
    WINDOWS_FIELD_NUMBER: _ClassVar[int]
    WINDOWS_TOTAL_FIELD_NUMBER: _ClassVar[int]
    FLOPS_FIELD_NUMBER: _ClassVar[int]
    FLOPS_TOTAL_FIELD_NUMBER: _ClassVar[int]
    FETCHED_BYTES_FIELD_NUMBER: _ClassVar[int]
    SHARE_FIELD_NUMBER: _ClassVar[int]
    windows: int
    windows_total: int
    flops: int
    flops_total: int
    fetched_bytes: int
    share: float
    def __init__(self, windows: _Optional[int] = ..., windows_total: _Optional[int] = ..., flops: _Optional[int] = ..., flops_total: _Optional[int] = ..., fetched_bytes: _Optional[int] = ..., share: _Optional[float] = ...) -> None: ...
