import datetime

from google.protobuf import timestamp_pb2 as _timestamp_pb2
from lookout.v1 import bounds_pb2 as _bounds_pb2
from lookout.v1 import watches_pb2 as _watches_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class CameraMasks(_message.Message):
    __slots__ = ("camera", "versions", "signature")
    CAMERA_FIELD_NUMBER: _ClassVar[int]
    VERSIONS_FIELD_NUMBER: _ClassVar[int]
    SIGNATURE_FIELD_NUMBER: _ClassVar[int]
    camera: str
    versions: _containers.RepeatedCompositeFieldContainer[MaskVersion]
    signature: str
    def __init__(self, camera: _Optional[str] = ..., versions: _Optional[_Iterable[_Union[MaskVersion, _Mapping]]] = ..., signature: _Optional[str] = ...) -> None: ...

class MaskVersion(_message.Message):
    __slots__ = ("version", "since", "hide", "keep", "by")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    SINCE_FIELD_NUMBER: _ClassVar[int]
    HIDE_FIELD_NUMBER: _ClassVar[int]
    KEEP_FIELD_NUMBER: _ClassVar[int]
    BY_FIELD_NUMBER: _ClassVar[int]
    version: int
    since: _timestamp_pb2.Timestamp
    hide: _containers.RepeatedCompositeFieldContainer[_watches_pb2.Zone]
    keep: _containers.RepeatedCompositeFieldContainer[_watches_pb2.Zone]
    by: str
    def __init__(self, version: _Optional[int] = ..., since: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., hide: _Optional[_Iterable[_Union[_watches_pb2.Zone, _Mapping]]] = ..., keep: _Optional[_Iterable[_Union[_watches_pb2.Zone, _Mapping]]] = ..., by: _Optional[str] = ...) -> None: ...
