from lookout.v1 import bounds_pb2 as _bounds_pb2
from lookout.v1 import cameras_pb2 as _cameras_pb2
from lookout.v1 import lineage_pb2 as _lineage_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class TokensRecord(_message.Message):
    __slots__ = ("camera", "epoch", "wall_offset_us", "block", "event", "sampling", "labels")
    CAMERA_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    WALL_OFFSET_US_FIELD_NUMBER: _ClassVar[int]
    BLOCK_FIELD_NUMBER: _ClassVar[int]
    EVENT_FIELD_NUMBER: _ClassVar[int]
    SAMPLING_FIELD_NUMBER: _ClassVar[int]
    LABELS_FIELD_NUMBER: _ClassVar[int]
    camera: str
    epoch: int
    wall_offset_us: int
    block: StrideBlock
    event: _lineage_pb2.StreamEvent
    sampling: _lineage_pb2.Sampling
    labels: _cameras_pb2.CameraLabels
    def __init__(self, camera: _Optional[str] = ..., epoch: _Optional[int] = ..., wall_offset_us: _Optional[int] = ..., block: _Optional[_Union[StrideBlock, _Mapping]] = ..., event: _Optional[_Union[_lineage_pb2.StreamEvent, _Mapping]] = ..., sampling: _Optional[_Union[_lineage_pb2.Sampling, _Mapping]] = ..., labels: _Optional[_Union[_cameras_pb2.CameraLabels, _Mapping]] = ...) -> None: ...

class StrideBlock(_message.Message):
    __slots__ = ("index", "start_us", "end_us", "frames", "patches", "embeddings", "deepstack", "group_rows", "group_cols", "model_digest", "inputs", "patches_total", "patches_encoded", "flops_vision", "flops_vision_dense", "anchor_luma", "missing", "missing_cause", "tower_us")
    INDEX_FIELD_NUMBER: _ClassVar[int]
    START_US_FIELD_NUMBER: _ClassVar[int]
    END_US_FIELD_NUMBER: _ClassVar[int]
    FRAMES_FIELD_NUMBER: _ClassVar[int]
    PATCHES_FIELD_NUMBER: _ClassVar[int]
    EMBEDDINGS_FIELD_NUMBER: _ClassVar[int]
    DEEPSTACK_FIELD_NUMBER: _ClassVar[int]
    GROUP_ROWS_FIELD_NUMBER: _ClassVar[int]
    GROUP_COLS_FIELD_NUMBER: _ClassVar[int]
    MODEL_DIGEST_FIELD_NUMBER: _ClassVar[int]
    INPUTS_FIELD_NUMBER: _ClassVar[int]
    PATCHES_TOTAL_FIELD_NUMBER: _ClassVar[int]
    PATCHES_ENCODED_FIELD_NUMBER: _ClassVar[int]
    FLOPS_VISION_FIELD_NUMBER: _ClassVar[int]
    FLOPS_VISION_DENSE_FIELD_NUMBER: _ClassVar[int]
    ANCHOR_LUMA_FIELD_NUMBER: _ClassVar[int]
    MISSING_FIELD_NUMBER: _ClassVar[int]
    MISSING_CAUSE_FIELD_NUMBER: _ClassVar[int]
    TOWER_US_FIELD_NUMBER: _ClassVar[int]
    index: int
    start_us: int
    end_us: int
    frames: _containers.RepeatedCompositeFieldContainer[BlockFrame]
    patches: _containers.RepeatedCompositeFieldContainer[TemporalPatch]
    embeddings: _lineage_pb2.TensorRef
    deepstack: _lineage_pb2.TensorRef
    group_rows: int
    group_cols: int
    model_digest: str
    inputs: _containers.RepeatedCompositeFieldContainer[_lineage_pb2.RecordRef]
    patches_total: int
    patches_encoded: int
    flops_vision: int
    flops_vision_dense: int
    anchor_luma: bytes
    missing: str
    missing_cause: _lineage_pb2.Cause
    tower_us: int
    def __init__(self, index: _Optional[int] = ..., start_us: _Optional[int] = ..., end_us: _Optional[int] = ..., frames: _Optional[_Iterable[_Union[BlockFrame, _Mapping]]] = ..., patches: _Optional[_Iterable[_Union[TemporalPatch, _Mapping]]] = ..., embeddings: _Optional[_Union[_lineage_pb2.TensorRef, _Mapping]] = ..., deepstack: _Optional[_Union[_lineage_pb2.TensorRef, _Mapping]] = ..., group_rows: _Optional[int] = ..., group_cols: _Optional[int] = ..., model_digest: _Optional[str] = ..., inputs: _Optional[_Iterable[_Union[_lineage_pb2.RecordRef, _Mapping]]] = ..., patches_total: _Optional[int] = ..., patches_encoded: _Optional[int] = ..., flops_vision: _Optional[int] = ..., flops_vision_dense: _Optional[int] = ..., anchor_luma: _Optional[bytes] = ..., missing: _Optional[str] = ..., missing_cause: _Optional[_Union[_lineage_pb2.Cause, str]] = ..., tower_us: _Optional[int] = ...) -> None: ...

class BlockFrame(_message.Message):
    __slots__ = ("time_us", "sample", "input", "row", "key", "corrupt")
    TIME_US_FIELD_NUMBER: _ClassVar[int]
    SAMPLE_FIELD_NUMBER: _ClassVar[int]
    INPUT_FIELD_NUMBER: _ClassVar[int]
    ROW_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    CORRUPT_FIELD_NUMBER: _ClassVar[int]
    time_us: int
    sample: int
    input: int
    row: int
    key: bool
    corrupt: bool
    def __init__(self, time_us: _Optional[int] = ..., sample: _Optional[int] = ..., input: _Optional[int] = ..., row: _Optional[int] = ..., key: _Optional[bool] = ..., corrupt: _Optional[bool] = ...) -> None: ...

class TemporalPatch(_message.Message):
    __slots__ = ("frames", "anchor", "keep", "kept")
    FRAMES_FIELD_NUMBER: _ClassVar[int]
    ANCHOR_FIELD_NUMBER: _ClassVar[int]
    KEEP_FIELD_NUMBER: _ClassVar[int]
    KEPT_FIELD_NUMBER: _ClassVar[int]
    frames: _containers.RepeatedScalarFieldContainer[int]
    anchor: bool
    keep: bytes
    kept: int
    def __init__(self, frames: _Optional[_Iterable[int]] = ..., anchor: _Optional[bool] = ..., keep: _Optional[bytes] = ..., kept: _Optional[int] = ...) -> None: ...
