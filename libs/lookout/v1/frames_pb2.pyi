from lookout.v1 import bounds_pb2 as _bounds_pb2
from lookout.v1 import cameras_pb2 as _cameras_pb2
from lookout.v1 import lineage_pb2 as _lineage_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class FramesRecord(_message.Message):
    __slots__ = ("camera", "epoch", "wall_offset_us", "segment", "event", "sampling", "labels")
    CAMERA_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    WALL_OFFSET_US_FIELD_NUMBER: _ClassVar[int]
    SEGMENT_FIELD_NUMBER: _ClassVar[int]
    EVENT_FIELD_NUMBER: _ClassVar[int]
    SAMPLING_FIELD_NUMBER: _ClassVar[int]
    LABELS_FIELD_NUMBER: _ClassVar[int]
    camera: str
    epoch: int
    wall_offset_us: int
    segment: SegmentFrames
    event: _lineage_pb2.StreamEvent
    sampling: _lineage_pb2.Sampling
    labels: _cameras_pb2.CameraLabels
    def __init__(self, camera: _Optional[str] = ..., epoch: _Optional[int] = ..., wall_offset_us: _Optional[int] = ..., segment: _Optional[_Union[SegmentFrames, _Mapping]] = ..., event: _Optional[_Union[_lineage_pb2.StreamEvent, _Mapping]] = ..., sampling: _Optional[_Union[_lineage_pb2.Sampling, _Mapping]] = ..., labels: _Optional[_Union[_cameras_pb2.CameraLabels, _Mapping]] = ...) -> None: ...

class SegmentFrames(_message.Message):
    __slots__ = ("segment", "start_us", "end_us", "frames", "pixels", "picture", "facts")
    SEGMENT_FIELD_NUMBER: _ClassVar[int]
    START_US_FIELD_NUMBER: _ClassVar[int]
    END_US_FIELD_NUMBER: _ClassVar[int]
    FRAMES_FIELD_NUMBER: _ClassVar[int]
    PIXELS_FIELD_NUMBER: _ClassVar[int]
    PICTURE_FIELD_NUMBER: _ClassVar[int]
    FACTS_FIELD_NUMBER: _ClassVar[int]
    segment: _lineage_pb2.RecordRef
    start_us: int
    end_us: int
    frames: _containers.RepeatedCompositeFieldContainer[Frame]
    pixels: _lineage_pb2.TensorRef
    picture: Picture
    facts: SegmentFacts
    def __init__(self, segment: _Optional[_Union[_lineage_pb2.RecordRef, _Mapping]] = ..., start_us: _Optional[int] = ..., end_us: _Optional[int] = ..., frames: _Optional[_Iterable[_Union[Frame, _Mapping]]] = ..., pixels: _Optional[_Union[_lineage_pb2.TensorRef, _Mapping]] = ..., picture: _Optional[_Union[Picture, _Mapping]] = ..., facts: _Optional[_Union[SegmentFacts, _Mapping]] = ...) -> None: ...

class Frame(_message.Message):
    __slots__ = ("time_us", "sample", "index", "key", "picture_type", "corrupt", "basis", "motion", "residual")
    class Basis(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        BASIS_UNSPECIFIED: _ClassVar[Frame.Basis]
        BASIS_VECTORS: _ClassVar[Frame.Basis]
        BASIS_LUMA: _ClassVar[Frame.Basis]
        BASIS_NEW: _ClassVar[Frame.Basis]
    BASIS_UNSPECIFIED: Frame.Basis
    BASIS_VECTORS: Frame.Basis
    BASIS_LUMA: Frame.Basis
    BASIS_NEW: Frame.Basis
    TIME_US_FIELD_NUMBER: _ClassVar[int]
    SAMPLE_FIELD_NUMBER: _ClassVar[int]
    INDEX_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    PICTURE_TYPE_FIELD_NUMBER: _ClassVar[int]
    CORRUPT_FIELD_NUMBER: _ClassVar[int]
    BASIS_FIELD_NUMBER: _ClassVar[int]
    MOTION_FIELD_NUMBER: _ClassVar[int]
    RESIDUAL_FIELD_NUMBER: _ClassVar[int]
    time_us: int
    sample: int
    index: int
    key: bool
    picture_type: str
    corrupt: bool
    basis: Frame.Basis
    motion: bytes
    residual: bytes
    def __init__(self, time_us: _Optional[int] = ..., sample: _Optional[int] = ..., index: _Optional[int] = ..., key: _Optional[bool] = ..., picture_type: _Optional[str] = ..., corrupt: _Optional[bool] = ..., basis: _Optional[_Union[Frame.Basis, str]] = ..., motion: _Optional[bytes] = ..., residual: _Optional[bytes] = ...) -> None: ...

class Picture(_message.Message):
    __slots__ = ("coded_width", "coded_height", "rotation", "width", "height", "patch", "rows", "cols", "fit")
    CODED_WIDTH_FIELD_NUMBER: _ClassVar[int]
    CODED_HEIGHT_FIELD_NUMBER: _ClassVar[int]
    ROTATION_FIELD_NUMBER: _ClassVar[int]
    WIDTH_FIELD_NUMBER: _ClassVar[int]
    HEIGHT_FIELD_NUMBER: _ClassVar[int]
    PATCH_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    COLS_FIELD_NUMBER: _ClassVar[int]
    FIT_FIELD_NUMBER: _ClassVar[int]
    coded_width: int
    coded_height: int
    rotation: int
    width: int
    height: int
    patch: int
    rows: int
    cols: int
    fit: str
    def __init__(self, coded_width: _Optional[int] = ..., coded_height: _Optional[int] = ..., rotation: _Optional[int] = ..., width: _Optional[int] = ..., height: _Optional[int] = ..., patch: _Optional[int] = ..., rows: _Optional[int] = ..., cols: _Optional[int] = ..., fit: _Optional[str] = ...) -> None: ...

class SegmentFacts(_message.Message):
    __slots__ = ("container", "codec", "fps", "decoded", "corrupt", "leading_lost", "bytes", "has_vectors", "first_pts", "last_pts", "gather")
    CONTAINER_FIELD_NUMBER: _ClassVar[int]
    CODEC_FIELD_NUMBER: _ClassVar[int]
    FPS_FIELD_NUMBER: _ClassVar[int]
    DECODED_FIELD_NUMBER: _ClassVar[int]
    CORRUPT_FIELD_NUMBER: _ClassVar[int]
    LEADING_LOST_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    HAS_VECTORS_FIELD_NUMBER: _ClassVar[int]
    FIRST_PTS_FIELD_NUMBER: _ClassVar[int]
    LAST_PTS_FIELD_NUMBER: _ClassVar[int]
    GATHER_FIELD_NUMBER: _ClassVar[int]
    container: str
    codec: str
    fps: float
    decoded: int
    corrupt: int
    leading_lost: int
    bytes: int
    has_vectors: bool
    first_pts: float
    last_pts: float
    gather: str
    def __init__(self, container: _Optional[str] = ..., codec: _Optional[str] = ..., fps: _Optional[float] = ..., decoded: _Optional[int] = ..., corrupt: _Optional[int] = ..., leading_lost: _Optional[int] = ..., bytes: _Optional[int] = ..., has_vectors: _Optional[bool] = ..., first_pts: _Optional[float] = ..., last_pts: _Optional[float] = ..., gather: _Optional[str] = ...) -> None: ...
