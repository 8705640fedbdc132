from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Basis(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    BASIS_UNSPECIFIED: _ClassVar[Basis]
    BASIS_VECTORS: _ClassVar[Basis]
    BASIS_LUMA: _ClassVar[Basis]
    BASIS_NONE: _ClassVar[Basis]

class Reason(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    REASON_UNSPECIFIED: _ClassVar[Reason]
    REASON_EMPTY: _ClassVar[Reason]
    REASON_UNREADABLE: _ClassVar[Reason]
    REASON_NO_VIDEO: _ClassVar[Reason]
    REASON_NO_DECODER: _ClassVar[Reason]
    REASON_NO_KEYFRAME: _ClassVar[Reason]
    REASON_NO_FRAMES: _ClassVar[Reason]
    REASON_BYTES: _ClassVar[Reason]
    REASON_DIMENSIONS: _ClassVar[Reason]
    REASON_LENGTH: _ClassVar[Reason]
    REASON_MEMORY: _ClassVar[Reason]
    REASON_POISON: _ClassVar[Reason]
    REASON_REQUEST: _ClassVar[Reason]
    REASON_UNAVAILABLE: _ClassVar[Reason]
    REASON_CLOSED: _ClassVar[Reason]
BASIS_UNSPECIFIED: Basis
BASIS_VECTORS: Basis
BASIS_LUMA: Basis
BASIS_NONE: Basis
REASON_UNSPECIFIED: Reason
REASON_EMPTY: Reason
REASON_UNREADABLE: Reason
REASON_NO_VIDEO: Reason
REASON_NO_DECODER: Reason
REASON_NO_KEYFRAME: Reason
REASON_NO_FRAMES: Reason
REASON_BYTES: Reason
REASON_DIMENSIONS: Reason
REASON_LENGTH: Reason
REASON_MEMORY: Reason
REASON_POISON: Reason
REASON_REQUEST: Reason
REASON_UNAVAILABLE: Reason
REASON_CLOSED: Reason

class Reply(_message.Message):
    __slots__ = ("number", "ready", "refusal", "bug", "decoded", "inspected", "pieces", "table", "samples", "clip", "joined", "masked")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    READY_FIELD_NUMBER: _ClassVar[int]
    REFUSAL_FIELD_NUMBER: _ClassVar[int]
    BUG_FIELD_NUMBER: _ClassVar[int]
    DECODED_FIELD_NUMBER: _ClassVar[int]
    INSPECTED_FIELD_NUMBER: _ClassVar[int]
    PIECES_FIELD_NUMBER: _ClassVar[int]
    TABLE_FIELD_NUMBER: _ClassVar[int]
    SAMPLES_FIELD_NUMBER: _ClassVar[int]
    CLIP_FIELD_NUMBER: _ClassVar[int]
    JOINED_FIELD_NUMBER: _ClassVar[int]
    MASKED_FIELD_NUMBER: _ClassVar[int]
    number: int
    ready: Ready
    refusal: Refusal
    bug: Bug
    decoded: Decoded
    inspected: Inspected
    pieces: Pieces
    table: Table
    samples: Samples
    clip: Clip
    joined: Joined
    masked: Masked
    def __init__(self, number: _Optional[int] = ..., ready: _Optional[_Union[Ready, _Mapping]] = ..., refusal: _Optional[_Union[Refusal, _Mapping]] = ..., bug: _Optional[_Union[Bug, _Mapping]] = ..., decoded: _Optional[_Union[Decoded, _Mapping]] = ..., inspected: _Optional[_Union[Inspected, _Mapping]] = ..., pieces: _Optional[_Union[Pieces, _Mapping]] = ..., table: _Optional[_Union[Table, _Mapping]] = ..., samples: _Optional[_Union[Samples, _Mapping]] = ..., clip: _Optional[_Union[Clip, _Mapping]] = ..., joined: _Optional[_Union[Joined, _Mapping]] = ..., masked: _Optional[_Union[Masked, _Mapping]] = ...) -> None: ...

class Ready(_message.Message):
    __slots__ = ("confinement",)
    CONFINEMENT_FIELD_NUMBER: _ClassVar[int]
    confinement: str
    def __init__(self, confinement: _Optional[str] = ...) -> None: ...

class Refusal(_message.Message):
    __slots__ = ("reason", "detail")
    REASON_FIELD_NUMBER: _ClassVar[int]
    DETAIL_FIELD_NUMBER: _ClassVar[int]
    reason: Reason
    detail: str
    def __init__(self, reason: _Optional[_Union[Reason, str]] = ..., detail: _Optional[str] = ...) -> None: ...

class Bug(_message.Message):
    __slots__ = ("trace",)
    TRACE_FIELD_NUMBER: _ClassVar[int]
    trace: str
    def __init__(self, trace: _Optional[str] = ...) -> None: ...

class Frame(_message.Message):
    __slots__ = ("index", "time_us", "picture", "key", "corrupt", "interlaced", "width", "height", "jump", "basis", "with_v", "with_r")
    INDEX_FIELD_NUMBER: _ClassVar[int]
    TIME_US_FIELD_NUMBER: _ClassVar[int]
    PICTURE_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    CORRUPT_FIELD_NUMBER: _ClassVar[int]
    INTERLACED_FIELD_NUMBER: _ClassVar[int]
    WIDTH_FIELD_NUMBER: _ClassVar[int]
    HEIGHT_FIELD_NUMBER: _ClassVar[int]
    JUMP_FIELD_NUMBER: _ClassVar[int]
    BASIS_FIELD_NUMBER: _ClassVar[int]
    WITH_V_FIELD_NUMBER: _ClassVar[int]
    WITH_R_FIELD_NUMBER: _ClassVar[int]
    index: int
    time_us: int
    picture: int
    key: bool
    corrupt: bool
    interlaced: bool
    width: int
    height: int
    jump: bool
    basis: Basis
    with_v: bool
    with_r: bool
    def __init__(self, index: _Optional[int] = ..., time_us: _Optional[int] = ..., picture: _Optional[int] = ..., key: _Optional[bool] = ..., corrupt: _Optional[bool] = ..., interlaced: _Optional[bool] = ..., width: _Optional[int] = ..., height: _Optional[int] = ..., jump: _Optional[bool] = ..., basis: _Optional[_Union[Basis, str]] = ..., with_v: _Optional[bool] = ..., with_r: _Optional[bool] = ...) -> None: ...

class Facts(_message.Message):
    __slots__ = ("container", "codec", "profile", "width", "height", "rotation", "fps", "timed", "first_us", "end_us", "packets", "frames", "decoded", "keyframes", "intra", "corrupt", "refused", "leading_lost", "jumps", "sizes", "interlaced", "has_vectors")
    CONTAINER_FIELD_NUMBER: _ClassVar[int]
    CODEC_FIELD_NUMBER: _ClassVar[int]
    PROFILE_FIELD_NUMBER: _ClassVar[int]
    WIDTH_FIELD_NUMBER: _ClassVar[int]
    HEIGHT_FIELD_NUMBER: _ClassVar[int]
    ROTATION_FIELD_NUMBER: _ClassVar[int]
    FPS_FIELD_NUMBER: _ClassVar[int]
    TIMED_FIELD_NUMBER: _ClassVar[int]
    FIRST_US_FIELD_NUMBER: _ClassVar[int]
    END_US_FIELD_NUMBER: _ClassVar[int]
    PACKETS_FIELD_NUMBER: _ClassVar[int]
    FRAMES_FIELD_NUMBER: _ClassVar[int]
    DECODED_FIELD_NUMBER: _ClassVar[int]
    KEYFRAMES_FIELD_NUMBER: _ClassVar[int]
    INTRA_FIELD_NUMBER: _ClassVar[int]
    CORRUPT_FIELD_NUMBER: _ClassVar[int]
    REFUSED_FIELD_NUMBER: _ClassVar[int]
    LEADING_LOST_FIELD_NUMBER: _ClassVar[int]
    JUMPS_FIELD_NUMBER: _ClassVar[int]
    SIZES_FIELD_NUMBER: _ClassVar[int]
    INTERLACED_FIELD_NUMBER: _ClassVar[int]
    HAS_VECTORS_FIELD_NUMBER: _ClassVar[int]
    container: str
    codec: str
    profile: str
    width: int
    height: int
    rotation: int
    fps: float
    timed: bool
    first_us: int
    end_us: int
    packets: int
    frames: int
    decoded: int
    keyframes: int
    intra: int
    corrupt: int
    refused: int
    leading_lost: int
    jumps: int
    sizes: int
    interlaced: int
    has_vectors: bool
    def __init__(self, container: _Optional[str] = ..., codec: _Optional[str] = ..., profile: _Optional[str] = ..., width: _Optional[int] = ..., height: _Optional[int] = ..., rotation: _Optional[int] = ..., fps: _Optional[float] = ..., timed: _Optional[bool] = ..., first_us: _Optional[int] = ..., end_us: _Optional[int] = ..., packets: _Optional[int] = ..., frames: _Optional[int] = ..., decoded: _Optional[int] = ..., keyframes: _Optional[int] = ..., intra: _Optional[int] = ..., corrupt: _Optional[int] = ..., refused: _Optional[int] = ..., leading_lost: _Optional[int] = ..., jumps: _Optional[int] = ..., sizes: _Optional[int] = ..., interlaced: _Optional[int] = ..., has_vectors: _Optional[bool] = ...) -> None: ...

class Decoded(_message.Message):
    __slots__ = ("frames", "facts", "mirror", "end_stream_us")
    FRAMES_FIELD_NUMBER: _ClassVar[int]
    FACTS_FIELD_NUMBER: _ClassVar[int]
    MIRROR_FIELD_NUMBER: _ClassVar[int]
    END_STREAM_US_FIELD_NUMBER: _ClassVar[int]
    frames: _containers.RepeatedCompositeFieldContainer[Frame]
    facts: Facts
    mirror: bool
    end_stream_us: int
    def __init__(self, frames: _Optional[_Iterable[_Union[Frame, _Mapping]]] = ..., facts: _Optional[_Union[Facts, _Mapping]] = ..., mirror: _Optional[bool] = ..., end_stream_us: _Optional[int] = ...) -> None: ...

class Inspected(_message.Message):
    __slots__ = ("container", "codec", "profile", "width", "height", "rotation", "fps", "seconds", "timed", "packets", "frames", "keyframes", "anchors", "vectors", "blocks", "motion", "corrupt", "refused", "leading_lost", "jumps", "sizes", "interlaced", "reason", "error")
    CONTAINER_FIELD_NUMBER: _ClassVar[int]
    CODEC_FIELD_NUMBER: _ClassVar[int]
    PROFILE_FIELD_NUMBER: _ClassVar[int]
    WIDTH_FIELD_NUMBER: _ClassVar[int]
    HEIGHT_FIELD_NUMBER: _ClassVar[int]
    ROTATION_FIELD_NUMBER: _ClassVar[int]
    FPS_FIELD_NUMBER: _ClassVar[int]
    SECONDS_FIELD_NUMBER: _ClassVar[int]
    TIMED_FIELD_NUMBER: _ClassVar[int]
    PACKETS_FIELD_NUMBER: _ClassVar[int]
    FRAMES_FIELD_NUMBER: _ClassVar[int]
    KEYFRAMES_FIELD_NUMBER: _ClassVar[int]
    ANCHORS_FIELD_NUMBER: _ClassVar[int]
    VECTORS_FIELD_NUMBER: _ClassVar[int]
    BLOCKS_FIELD_NUMBER: _ClassVar[int]
    MOTION_FIELD_NUMBER: _ClassVar[int]
    CORRUPT_FIELD_NUMBER: _ClassVar[int]
    REFUSED_FIELD_NUMBER: _ClassVar[int]
    LEADING_LOST_FIELD_NUMBER: _ClassVar[int]
    JUMPS_FIELD_NUMBER: _ClassVar[int]
    SIZES_FIELD_NUMBER: _ClassVar[int]
    INTERLACED_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    container: str
    codec: str
    profile: str
    width: int
    height: int
    rotation: int
    fps: float
    seconds: float
    timed: bool
    packets: int
    frames: int
    keyframes: int
    anchors: int
    vectors: int
    blocks: float
    motion: str
    corrupt: int
    refused: int
    leading_lost: int
    jumps: int
    sizes: int
    interlaced: int
    reason: Reason
    error: str
    def __init__(self, container: _Optional[str] = ..., codec: _Optional[str] = ..., profile: _Optional[str] = ..., width: _Optional[int] = ..., height: _Optional[int] = ..., rotation: _Optional[int] = ..., fps: _Optional[float] = ..., seconds: _Optional[float] = ..., timed: _Optional[bool] = ..., packets: _Optional[int] = ..., frames: _Optional[int] = ..., keyframes: _Optional[int] = ..., anchors: _Optional[int] = ..., vectors: _Optional[int] = ..., blocks: _Optional[float] = ..., motion: _Optional[str] = ..., corrupt: _Optional[int] = ..., refused: _Optional[int] = ..., leading_lost: _Optional[int] = ..., jumps: _Optional[int] = ..., sizes: _Optional[int] = ..., interlaced: _Optional[int] = ..., reason: _Optional[_Union[Reason, str]] = ..., error: _Optional[str] = ...) -> None: ...

class Piece(_message.Message):
    __slots__ = ("bytes", "start_us", "duration_us", "frames", "container", "jump")
    BYTES_FIELD_NUMBER: _ClassVar[int]
    START_US_FIELD_NUMBER: _ClassVar[int]
    DURATION_US_FIELD_NUMBER: _ClassVar[int]
    FRAMES_FIELD_NUMBER: _ClassVar[int]
    CONTAINER_FIELD_NUMBER: _ClassVar[int]
    JUMP_FIELD_NUMBER: _ClassVar[int]
    bytes: int
    start_us: int
    duration_us: int
    frames: int
    container: str
    jump: bool
    def __init__(self, bytes: _Optional[int] = ..., start_us: _Optional[int] = ..., duration_us: _Optional[int] = ..., frames: _Optional[int] = ..., container: _Optional[str] = ..., jump: _Optional[bool] = ...) -> None: ...

class Pieces(_message.Message):
    __slots__ = ("pieces",)
    PIECES_FIELD_NUMBER: _ClassVar[int]
    pieces: _containers.RepeatedCompositeFieldContainer[Piece]
    def __init__(self, pieces: _Optional[_Iterable[_Union[Piece, _Mapping]]] = ...) -> None: ...

class Table(_message.Message):
    __slots__ = ("container", "codec", "width", "height", "packets", "time_base_num", "time_base_den", "fps_num", "fps_den", "stamped", "damage", "listed", "promised_us", "upright_width", "upright_height", "reordered", "begins_us", "begins_offset_min")
    CONTAINER_FIELD_NUMBER: _ClassVar[int]
    CODEC_FIELD_NUMBER: _ClassVar[int]
    WIDTH_FIELD_NUMBER: _ClassVar[int]
    HEIGHT_FIELD_NUMBER: _ClassVar[int]
    PACKETS_FIELD_NUMBER: _ClassVar[int]
    TIME_BASE_NUM_FIELD_NUMBER: _ClassVar[int]
    TIME_BASE_DEN_FIELD_NUMBER: _ClassVar[int]
    FPS_NUM_FIELD_NUMBER: _ClassVar[int]
    FPS_DEN_FIELD_NUMBER: _ClassVar[int]
    STAMPED_FIELD_NUMBER: _ClassVar[int]
    DAMAGE_FIELD_NUMBER: _ClassVar[int]
    LISTED_FIELD_NUMBER: _ClassVar[int]
    PROMISED_US_FIELD_NUMBER: _ClassVar[int]
    UPRIGHT_WIDTH_FIELD_NUMBER: _ClassVar[int]
    UPRIGHT_HEIGHT_FIELD_NUMBER: _ClassVar[int]
    REORDERED_FIELD_NUMBER: _ClassVar[int]
    BEGINS_US_FIELD_NUMBER: _ClassVar[int]
    BEGINS_OFFSET_MIN_FIELD_NUMBER: _ClassVar[int]
    container: str
    codec: str
    width: int
    height: int
    packets: int
    time_base_num: int
    time_base_den: int
    fps_num: int
    fps_den: int
    stamped: bool
    damage: str
    listed: int
    promised_us: int
    upright_width: int
    upright_height: int
    reordered: bool
    begins_us: int
    begins_offset_min: int
    def __init__(self, container: _Optional[str] = ..., codec: _Optional[str] = ..., width: _Optional[int] = ..., height: _Optional[int] = ..., packets: _Optional[int] = ..., time_base_num: _Optional[int] = ..., time_base_den: _Optional[int] = ..., fps_num: _Optional[int] = ..., fps_den: _Optional[int] = ..., stamped: _Optional[bool] = ..., damage: _Optional[str] = ..., listed: _Optional[int] = ..., promised_us: _Optional[int] = ..., upright_width: _Optional[int] = ..., upright_height: _Optional[int] = ..., reordered: _Optional[bool] = ..., begins_us: _Optional[int] = ..., begins_offset_min: _Optional[int] = ...) -> None: ...

class Sample(_message.Message):
    __slots__ = ("pick", "key", "corrupt", "picture")
    PICK_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    CORRUPT_FIELD_NUMBER: _ClassVar[int]
    PICTURE_FIELD_NUMBER: _ClassVar[int]
    pick: int
    key: bool
    corrupt: bool
    picture: int
    def __init__(self, pick: _Optional[int] = ..., key: _Optional[bool] = ..., corrupt: _Optional[bool] = ..., picture: _Optional[int] = ...) -> None: ...

class Samples(_message.Message):
    __slots__ = ("samples", "packets", "fed", "skipped", "frames", "painted", "runs", "seeks", "repaired", "missing")
    SAMPLES_FIELD_NUMBER: _ClassVar[int]
    PACKETS_FIELD_NUMBER: _ClassVar[int]
    FED_FIELD_NUMBER: _ClassVar[int]
    SKIPPED_FIELD_NUMBER: _ClassVar[int]
    FRAMES_FIELD_NUMBER: _ClassVar[int]
    PAINTED_FIELD_NUMBER: _ClassVar[int]
    RUNS_FIELD_NUMBER: _ClassVar[int]
    SEEKS_FIELD_NUMBER: _ClassVar[int]
    REPAIRED_FIELD_NUMBER: _ClassVar[int]
    MISSING_FIELD_NUMBER: _ClassVar[int]
    samples: _containers.RepeatedCompositeFieldContainer[Sample]
    packets: int
    fed: int
    skipped: int
    frames: int
    painted: int
    runs: int
    seeks: int
    repaired: int
    missing: int
    def __init__(self, samples: _Optional[_Iterable[_Union[Sample, _Mapping]]] = ..., packets: _Optional[int] = ..., fed: _Optional[int] = ..., skipped: _Optional[int] = ..., frames: _Optional[int] = ..., painted: _Optional[int] = ..., runs: _Optional[int] = ..., seeks: _Optional[int] = ..., repaired: _Optional[int] = ..., missing: _Optional[int] = ...) -> None: ...

class Clip(_message.Message):
    __slots__ = ("bytes", "start_us", "end_us", "frames", "container")
    BYTES_FIELD_NUMBER: _ClassVar[int]
    START_US_FIELD_NUMBER: _ClassVar[int]
    END_US_FIELD_NUMBER: _ClassVar[int]
    FRAMES_FIELD_NUMBER: _ClassVar[int]
    CONTAINER_FIELD_NUMBER: _ClassVar[int]
    bytes: int
    start_us: int
    end_us: int
    frames: int
    container: str
    def __init__(self, bytes: _Optional[int] = ..., start_us: _Optional[int] = ..., end_us: _Optional[int] = ..., frames: _Optional[int] = ..., container: _Optional[str] = ...) -> None: ...

class Span(_message.Message):
    __slots__ = ("at_us", "start_us", "end_us")
    AT_US_FIELD_NUMBER: _ClassVar[int]
    START_US_FIELD_NUMBER: _ClassVar[int]
    END_US_FIELD_NUMBER: _ClassVar[int]
    at_us: int
    start_us: int
    end_us: int
    def __init__(self, at_us: _Optional[int] = ..., start_us: _Optional[int] = ..., end_us: _Optional[int] = ...) -> None: ...

class Joined(_message.Message):
    __slots__ = ("bytes", "codec", "codecs", "width", "height", "frames", "spans", "end_us")
    BYTES_FIELD_NUMBER: _ClassVar[int]
    CODEC_FIELD_NUMBER: _ClassVar[int]
    CODECS_FIELD_NUMBER: _ClassVar[int]
    WIDTH_FIELD_NUMBER: _ClassVar[int]
    HEIGHT_FIELD_NUMBER: _ClassVar[int]
    FRAMES_FIELD_NUMBER: _ClassVar[int]
    SPANS_FIELD_NUMBER: _ClassVar[int]
    END_US_FIELD_NUMBER: _ClassVar[int]
    bytes: int
    codec: str
    codecs: str
    width: int
    height: int
    frames: int
    spans: _containers.RepeatedCompositeFieldContainer[Span]
    end_us: int
    def __init__(self, bytes: _Optional[int] = ..., codec: _Optional[str] = ..., codecs: _Optional[str] = ..., width: _Optional[int] = ..., height: _Optional[int] = ..., frames: _Optional[int] = ..., spans: _Optional[_Iterable[_Union[Span, _Mapping]]] = ..., end_us: _Optional[int] = ...) -> None: ...

class Masked(_message.Message):
    __slots__ = ("bytes",)
    BYTES_FIELD_NUMBER: _ClassVar[int]
    bytes: int
    def __init__(self, bytes: _Optional[int] = ...) -> None: ...

class PullJob(_message.Message):
    __slots__ = ("url", "datagrams", "connect_s", "segment_s", "segment_bytes", "jump_s", "memory_bytes", "basic")
    URL_FIELD_NUMBER: _ClassVar[int]
    DATAGRAMS_FIELD_NUMBER: _ClassVar[int]
    CONNECT_S_FIELD_NUMBER: _ClassVar[int]
    SEGMENT_S_FIELD_NUMBER: _ClassVar[int]
    SEGMENT_BYTES_FIELD_NUMBER: _ClassVar[int]
    JUMP_S_FIELD_NUMBER: _ClassVar[int]
    MEMORY_BYTES_FIELD_NUMBER: _ClassVar[int]
    BASIC_FIELD_NUMBER: _ClassVar[int]
    url: str
    datagrams: bool
    connect_s: float
    segment_s: float
    segment_bytes: int
    jump_s: float
    memory_bytes: int
    basic: bool
    def __init__(self, url: _Optional[str] = ..., datagrams: _Optional[bool] = ..., connect_s: _Optional[float] = ..., segment_s: _Optional[float] = ..., segment_bytes: _Optional[int] = ..., jump_s: _Optional[float] = ..., memory_bytes: _Optional[int] = ..., basic: _Optional[bool] = ...) -> None: ...

class PullReply(_message.Message):
    __slots__ = ("ready", "segment", "failure", "progress")
    READY_FIELD_NUMBER: _ClassVar[int]
    SEGMENT_FIELD_NUMBER: _ClassVar[int]
    FAILURE_FIELD_NUMBER: _ClassVar[int]
    PROGRESS_FIELD_NUMBER: _ClassVar[int]
    ready: Ready
    segment: PulledSegment
    failure: PullFailure
    progress: PullProgress
    def __init__(self, ready: _Optional[_Union[Ready, _Mapping]] = ..., segment: _Optional[_Union[PulledSegment, _Mapping]] = ..., failure: _Optional[_Union[PullFailure, _Mapping]] = ..., progress: _Optional[_Union[PullProgress, _Mapping]] = ...) -> None: ...

class PulledSegment(_message.Message):
    __slots__ = ("data", "seconds", "dropped_packets", "waited_s")
    DATA_FIELD_NUMBER: _ClassVar[int]
    SECONDS_FIELD_NUMBER: _ClassVar[int]
    DROPPED_PACKETS_FIELD_NUMBER: _ClassVar[int]
    WAITED_S_FIELD_NUMBER: _ClassVar[int]
    data: bytes
    seconds: float
    dropped_packets: int
    waited_s: float
    def __init__(self, data: _Optional[bytes] = ..., seconds: _Optional[float] = ..., dropped_packets: _Optional[int] = ..., waited_s: _Optional[float] = ...) -> None: ...

class PullProgress(_message.Message):
    __slots__ = ("dropped_packets",)
    DROPPED_PACKETS_FIELD_NUMBER: _ClassVar[int]
    dropped_packets: int
    def __init__(self, dropped_packets: _Optional[int] = ...) -> None: ...

class PullFailure(_message.Message):
    __slots__ = ("error", "unconfined")
    ERROR_FIELD_NUMBER: _ClassVar[int]
    UNCONFINED_FIELD_NUMBER: _ClassVar[int]
    error: str
    unconfined: bool
    def __init__(self, error: _Optional[str] = ..., unconfined: _Optional[bool] = ...) -> None: ...
