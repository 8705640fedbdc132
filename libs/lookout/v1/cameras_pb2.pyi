from lookout.v1 import bounds_pb2 as _bounds_pb2
from lookout.v1 import watches_pb2 as _watches_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Camera(_message.Message):
    __slots__ = ("id", "url", "transport", "segment_s", "credentials", "paused", "tenant", "priority", "mask_before_publishing", "time_zone")
    class Transport(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        TRANSPORT_UNSPECIFIED: _ClassVar[Camera.Transport]
        TRANSPORT_TCP: _ClassVar[Camera.Transport]
        TRANSPORT_UDP: _ClassVar[Camera.Transport]
    TRANSPORT_UNSPECIFIED: Camera.Transport
    TRANSPORT_TCP: Camera.Transport
    TRANSPORT_UDP: Camera.Transport
    ID_FIELD_NUMBER: _ClassVar[int]
    URL_FIELD_NUMBER: _ClassVar[int]
    TRANSPORT_FIELD_NUMBER: _ClassVar[int]
    SEGMENT_S_FIELD_NUMBER: _ClassVar[int]
    CREDENTIALS_FIELD_NUMBER: _ClassVar[int]
    PAUSED_FIELD_NUMBER: _ClassVar[int]
    TENANT_FIELD_NUMBER: _ClassVar[int]
    PRIORITY_FIELD_NUMBER: _ClassVar[int]
    MASK_BEFORE_PUBLISHING_FIELD_NUMBER: _ClassVar[int]
    TIME_ZONE_FIELD_NUMBER: _ClassVar[int]
    id: str
    url: str
    transport: Camera.Transport
    segment_s: float
    credentials: str
    paused: bool
    tenant: str
    priority: _watches_pb2.Watch.Priority
    mask_before_publishing: bool
    time_zone: str
    def __init__(self, id: _Optional[str] = ..., url: _Optional[str] = ..., transport: _Optional[_Union[Camera.Transport, str]] = ..., segment_s: _Optional[float] = ..., credentials: _Optional[str] = ..., paused: _Optional[bool] = ..., tenant: _Optional[str] = ..., priority: _Optional[_Union[_watches_pb2.Watch.Priority, str]] = ..., mask_before_publishing: _Optional[bool] = ..., time_zone: _Optional[str] = ...) -> None: ...

class CameraLabels(_message.Message):
    __slots__ = ("tenant", "priority", "masks")
    TENANT_FIELD_NUMBER: _ClassVar[int]
    PRIORITY_FIELD_NUMBER: _ClassVar[int]
    MASKS_FIELD_NUMBER: _ClassVar[int]
    tenant: str
    priority: _watches_pb2.Watch.Priority
    masks: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, tenant: _Optional[str] = ..., priority: _Optional[_Union[_watches_pb2.Watch.Priority, str]] = ..., masks: _Optional[_Iterable[str]] = ...) -> None: ...
