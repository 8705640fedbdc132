from lookout.v1 import bounds_pb2 as _bounds_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Erasure(_message.Message):
    __slots__ = ("id", "camera", "begin_us", "end_us", "whole", "requested_us", "requested_by", "signature")
    ID_FIELD_NUMBER: _ClassVar[int]
    CAMERA_FIELD_NUMBER: _ClassVar[int]
    BEGIN_US_FIELD_NUMBER: _ClassVar[int]
    END_US_FIELD_NUMBER: _ClassVar[int]
    WHOLE_FIELD_NUMBER: _ClassVar[int]
    REQUESTED_US_FIELD_NUMBER: _ClassVar[int]
    REQUESTED_BY_FIELD_NUMBER: _ClassVar[int]
    SIGNATURE_FIELD_NUMBER: _ClassVar[int]
    id: str
    camera: str
    begin_us: int
    end_us: int
    whole: bool
    requested_us: int
    requested_by: str
    signature: str
    def __init__(self, id: _Optional[str] = ..., camera: _Optional[str] = ..., begin_us: _Optional[int] = ..., end_us: _Optional[int] = ..., whole: _Optional[bool] = ..., requested_us: _Optional[int] = ..., requested_by: _Optional[str] = ..., signature: _Optional[str] = ...) -> None: ...

class ErasureConfirmation(_message.Message):
    __slots__ = ("erasure", "instance", "service", "confirmed_us", "parts", "signature", "camera", "begin_us", "end_us")
    ERASURE_FIELD_NUMBER: _ClassVar[int]
    INSTANCE_FIELD_NUMBER: _ClassVar[int]
    SERVICE_FIELD_NUMBER: _ClassVar[int]
    CONFIRMED_US_FIELD_NUMBER: _ClassVar[int]
    PARTS_FIELD_NUMBER: _ClassVar[int]
    SIGNATURE_FIELD_NUMBER: _ClassVar[int]
    CAMERA_FIELD_NUMBER: _ClassVar[int]
    BEGIN_US_FIELD_NUMBER: _ClassVar[int]
    END_US_FIELD_NUMBER: _ClassVar[int]
    erasure: str
    instance: str
    service: str
    confirmed_us: int
    parts: _containers.RepeatedCompositeFieldContainer[ErasedPart]
    signature: str
    camera: str
    begin_us: int
    end_us: int
    def __init__(self, erasure: _Optional[str] = ..., instance: _Optional[str] = ..., service: _Optional[str] = ..., confirmed_us: _Optional[int] = ..., parts: _Optional[_Iterable[_Union[ErasedPart, _Mapping]]] = ..., signature: _Optional[str] = ..., camera: _Optional[str] = ..., begin_us: _Optional[int] = ..., end_us: _Optional[int] = ...) -> None: ...

class ErasedPart(_message.Message):
    __slots__ = ("what", "count")
    WHAT_FIELD_NUMBER: _ClassVar[int]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    what: str
    count: int
    def __init__(self, what: _Optional[str] = ..., count: _Optional[int] = ...) -> None: ...

class ErasureMember(_message.Message):
    __slots__ = ("instance", "service", "since_us", "announced_us", "left", "signature")
    INSTANCE_FIELD_NUMBER: _ClassVar[int]
    SERVICE_FIELD_NUMBER: _ClassVar[int]
    SINCE_US_FIELD_NUMBER: _ClassVar[int]
    ANNOUNCED_US_FIELD_NUMBER: _ClassVar[int]
    LEFT_FIELD_NUMBER: _ClassVar[int]
    SIGNATURE_FIELD_NUMBER: _ClassVar[int]
    instance: str
    service: str
    since_us: int
    announced_us: int
    left: bool
    signature: str
    def __init__(self, instance: _Optional[str] = ..., service: _Optional[str] = ..., since_us: _Optional[int] = ..., announced_us: _Optional[int] = ..., left: _Optional[bool] = ..., signature: _Optional[str] = ...) -> None: ...
