import datetime

from google.protobuf import timestamp_pb2 as _timestamp_pb2
from lookout.v1 import actions_pb2 as _actions_pb2
from lookout.v1 import alerts_pb2 as _alerts_pb2
from lookout.v1 import bounds_pb2 as _bounds_pb2
from lookout.v1 import watches_pb2 as _watches_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Notification(_message.Message):
    __slots__ = ("id", "webhook", "apprise", "mqtt", "push", "watches", "cameras", "tenant", "severity", "hours", "quiet_hours", "events", "unclaimed_s", "disabled", "snoozed_until")
    class Event(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        EVENT_UNSPECIFIED: _ClassVar[Notification.Event]
        EVENT_OPENED: _ClassVar[Notification.Event]
        EVENT_UPDATED: _ClassVar[Notification.Event]
        EVENT_CLOSED: _ClassVar[Notification.Event]
        EVENT_ACTION: _ClassVar[Notification.Event]
        EVENT_REPORT: _ClassVar[Notification.Event]
    EVENT_UNSPECIFIED: Notification.Event
    EVENT_OPENED: Notification.Event
    EVENT_UPDATED: Notification.Event
    EVENT_CLOSED: Notification.Event
    EVENT_ACTION: Notification.Event
    EVENT_REPORT: Notification.Event
    ID_FIELD_NUMBER: _ClassVar[int]
    WEBHOOK_FIELD_NUMBER: _ClassVar[int]
    APPRISE_FIELD_NUMBER: _ClassVar[int]
    MQTT_FIELD_NUMBER: _ClassVar[int]
    PUSH_FIELD_NUMBER: _ClassVar[int]
    WATCHES_FIELD_NUMBER: _ClassVar[int]
    CAMERAS_FIELD_NUMBER: _ClassVar[int]
    TENANT_FIELD_NUMBER: _ClassVar[int]
    SEVERITY_FIELD_NUMBER: _ClassVar[int]
    HOURS_FIELD_NUMBER: _ClassVar[int]
    QUIET_HOURS_FIELD_NUMBER: _ClassVar[int]
    EVENTS_FIELD_NUMBER: _ClassVar[int]
    UNCLAIMED_S_FIELD_NUMBER: _ClassVar[int]
    DISABLED_FIELD_NUMBER: _ClassVar[int]
    SNOOZED_UNTIL_FIELD_NUMBER: _ClassVar[int]
    id: str
    webhook: Webhook
    apprise: Apprise
    mqtt: Mqtt
    push: WebPush
    watches: _containers.RepeatedScalarFieldContainer[str]
    cameras: _containers.RepeatedScalarFieldContainer[str]
    tenant: str
    severity: _watches_pb2.Severity
    hours: _containers.RepeatedCompositeFieldContainer[_watches_pb2.ScheduleEntry]
    quiet_hours: _containers.RepeatedCompositeFieldContainer[_watches_pb2.ScheduleEntry]
    events: _containers.RepeatedScalarFieldContainer[Notification.Event]
    unclaimed_s: float
    disabled: bool
    snoozed_until: _timestamp_pb2.Timestamp
    def __init__(self, id: _Optional[str] = ..., webhook: _Optional[_Union[Webhook, _Mapping]] = ..., apprise: _Optional[_Union[Apprise, _Mapping]] = ..., mqtt: _Optional[_Union[Mqtt, _Mapping]] = ..., push: _Optional[_Union[WebPush, _Mapping]] = ..., watches: _Optional[_Iterable[str]] = ..., cameras: _Optional[_Iterable[str]] = ..., tenant: _Optional[str] = ..., severity: _Optional[_Union[_watches_pb2.Severity, str]] = ..., hours: _Optional[_Iterable[_Union[_watches_pb2.ScheduleEntry, _Mapping]]] = ..., quiet_hours: _Optional[_Iterable[_Union[_watches_pb2.ScheduleEntry, _Mapping]]] = ..., events: _Optional[_Iterable[_Union[Notification.Event, str]]] = ..., unclaimed_s: _Optional[float] = ..., disabled: _Optional[bool] = ..., snoozed_until: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ...) -> None: ...

class Webhook(_message.Message):
    __slots__ = ("url", "secrets")
    URL_FIELD_NUMBER: _ClassVar[int]
    SECRETS_FIELD_NUMBER: _ClassVar[int]
    url: str
    secrets: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, url: _Optional[str] = ..., secrets: _Optional[_Iterable[str]] = ...) -> None: ...

class Apprise(_message.Message):
    __slots__ = ("url_file", "picture")
    URL_FILE_FIELD_NUMBER: _ClassVar[int]
    PICTURE_FIELD_NUMBER: _ClassVar[int]
    url_file: str
    picture: bool
    def __init__(self, url_file: _Optional[str] = ..., picture: _Optional[bool] = ...) -> None: ...

class Mqtt(_message.Message):
    __slots__ = ("host", "port", "tls", "username", "password_file", "ca_file", "topic", "discovery", "token_file")
    HOST_FIELD_NUMBER: _ClassVar[int]
    PORT_FIELD_NUMBER: _ClassVar[int]
    TLS_FIELD_NUMBER: _ClassVar[int]
    USERNAME_FIELD_NUMBER: _ClassVar[int]
    PASSWORD_FILE_FIELD_NUMBER: _ClassVar[int]
    CA_FILE_FIELD_NUMBER: _ClassVar[int]
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    DISCOVERY_FIELD_NUMBER: _ClassVar[int]
    TOKEN_FILE_FIELD_NUMBER: _ClassVar[int]
    host: str
    port: int
    tls: bool
    username: str
    password_file: str
    ca_file: str
    topic: str
    discovery: str
    token_file: str
    def __init__(self, host: _Optional[str] = ..., port: _Optional[int] = ..., tls: _Optional[bool] = ..., username: _Optional[str] = ..., password_file: _Optional[str] = ..., ca_file: _Optional[str] = ..., topic: _Optional[str] = ..., discovery: _Optional[str] = ..., token_file: _Optional[str] = ...) -> None: ...

class WebPush(_message.Message):
    __slots__ = ("endpoint", "p256dh", "auth", "person")
    ENDPOINT_FIELD_NUMBER: _ClassVar[int]
    P256DH_FIELD_NUMBER: _ClassVar[int]
    AUTH_FIELD_NUMBER: _ClassVar[int]
    PERSON_FIELD_NUMBER: _ClassVar[int]
    endpoint: str
    p256dh: str
    auth: str
    person: str
    def __init__(self, endpoint: _Optional[str] = ..., p256dh: _Optional[str] = ..., auth: _Optional[str] = ..., person: _Optional[str] = ...) -> None: ...

class NotificationEvent(_message.Message):
    __slots__ = ("notification", "severity", "alert", "action", "text", "console_url", "picture_url", "clip_url", "test")
    NOTIFICATION_FIELD_NUMBER: _ClassVar[int]
    SEVERITY_FIELD_NUMBER: _ClassVar[int]
    ALERT_FIELD_NUMBER: _ClassVar[int]
    ACTION_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    CONSOLE_URL_FIELD_NUMBER: _ClassVar[int]
    PICTURE_URL_FIELD_NUMBER: _ClassVar[int]
    CLIP_URL_FIELD_NUMBER: _ClassVar[int]
    TEST_FIELD_NUMBER: _ClassVar[int]
    notification: str
    severity: _watches_pb2.Severity
    alert: _alerts_pb2.Alert
    action: _actions_pb2.IncidentAction
    text: str
    console_url: str
    picture_url: str
    clip_url: str
    test: bool
    def __init__(self, notification: _Optional[str] = ..., severity: _Optional[_Union[_watches_pb2.Severity, str]] = ..., alert: _Optional[_Union[_alerts_pb2.Alert, _Mapping]] = ..., action: _Optional[_Union[_actions_pb2.IncidentAction, _Mapping]] = ..., text: _Optional[str] = ..., console_url: _Optional[str] = ..., picture_url: _Optional[str] = ..., clip_url: _Optional[str] = ..., test: _Optional[bool] = ...) -> None: ...

class NotifyState(_message.Message):
    __slots__ = ("told", "waiting", "escalations", "newest", "severity", "taken_up", "seen_ms", "asked_ms", "opinion", "partition")
    TOLD_FIELD_NUMBER: _ClassVar[int]
    WAITING_FIELD_NUMBER: _ClassVar[int]
    ESCALATIONS_FIELD_NUMBER: _ClassVar[int]
    NEWEST_FIELD_NUMBER: _ClassVar[int]
    SEVERITY_FIELD_NUMBER: _ClassVar[int]
    TAKEN_UP_FIELD_NUMBER: _ClassVar[int]
    SEEN_MS_FIELD_NUMBER: _ClassVar[int]
    ASKED_MS_FIELD_NUMBER: _ClassVar[int]
    OPINION_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    told: _containers.RepeatedScalarFieldContainer[str]
    waiting: _containers.RepeatedCompositeFieldContainer[WaitingEvent]
    escalations: _containers.RepeatedCompositeFieldContainer[Escalation]
    newest: _alerts_pb2.Alert
    severity: _watches_pb2.Severity
    taken_up: bool
    seen_ms: int
    asked_ms: int
    opinion: _alerts_pb2.SecondOpinion
    partition: int
    def __init__(self, told: _Optional[_Iterable[str]] = ..., waiting: _Optional[_Iterable[_Union[WaitingEvent, _Mapping]]] = ..., escalations: _Optional[_Iterable[_Union[Escalation, _Mapping]]] = ..., newest: _Optional[_Union[_alerts_pb2.Alert, _Mapping]] = ..., severity: _Optional[_Union[_watches_pb2.Severity, str]] = ..., taken_up: _Optional[bool] = ..., seen_ms: _Optional[int] = ..., asked_ms: _Optional[int] = ..., opinion: _Optional[_Union[_alerts_pb2.SecondOpinion, _Mapping]] = ..., partition: _Optional[int] = ...) -> None: ...

class WaitingEvent(_message.Message):
    __slots__ = ("alert", "action", "since_ms", "notifications")
    ALERT_FIELD_NUMBER: _ClassVar[int]
    ACTION_FIELD_NUMBER: _ClassVar[int]
    SINCE_MS_FIELD_NUMBER: _ClassVar[int]
    NOTIFICATIONS_FIELD_NUMBER: _ClassVar[int]
    alert: _alerts_pb2.Alert
    action: _actions_pb2.IncidentAction
    since_ms: int
    notifications: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, alert: _Optional[_Union[_alerts_pb2.Alert, _Mapping]] = ..., action: _Optional[_Union[_actions_pb2.IncidentAction, _Mapping]] = ..., since_ms: _Optional[int] = ..., notifications: _Optional[_Iterable[str]] = ...) -> None: ...

class Escalation(_message.Message):
    __slots__ = ("notification", "due_ms")
    NOTIFICATION_FIELD_NUMBER: _ClassVar[int]
    DUE_MS_FIELD_NUMBER: _ClassVar[int]
    notification: str
    due_ms: int
    def __init__(self, notification: _Optional[str] = ..., due_ms: _Optional[int] = ...) -> None: ...

class ListSecondModelsRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ListSecondModelsResponse(_message.Message):
    __slots__ = ("models",)
    MODELS_FIELD_NUMBER: _ClassVar[int]
    models: _containers.RepeatedCompositeFieldContainer[SecondModel]
    def __init__(self, models: _Optional[_Iterable[_Union[SecondModel, _Mapping]]] = ...) -> None: ...

class SecondModel(_message.Message):
    __slots__ = ("name", "model")
    NAME_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    name: str
    model: str
    def __init__(self, name: _Optional[str] = ..., model: _Optional[str] = ...) -> None: ...

class ListDeliveriesRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ListDeliveriesResponse(_message.Message):
    __slots__ = ("states",)
    STATES_FIELD_NUMBER: _ClassVar[int]
    states: _containers.RepeatedCompositeFieldContainer[DeliveryState]
    def __init__(self, states: _Optional[_Iterable[_Union[DeliveryState, _Mapping]]] = ...) -> None: ...

class DeliveryState(_message.Message):
    __slots__ = ("notification", "delivered", "failed", "error", "waiting")
    NOTIFICATION_FIELD_NUMBER: _ClassVar[int]
    DELIVERED_FIELD_NUMBER: _ClassVar[int]
    FAILED_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    WAITING_FIELD_NUMBER: _ClassVar[int]
    notification: str
    delivered: _timestamp_pb2.Timestamp
    failed: _timestamp_pb2.Timestamp
    error: str
    waiting: int
    def __init__(self, notification: _Optional[str] = ..., delivered: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., failed: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., error: _Optional[str] = ..., waiting: _Optional[int] = ...) -> None: ...

class TryNotificationRequest(_message.Message):
    __slots__ = ("notification",)
    NOTIFICATION_FIELD_NUMBER: _ClassVar[int]
    notification: str
    def __init__(self, notification: _Optional[str] = ...) -> None: ...

class TryNotificationResponse(_message.Message):
    __slots__ = ("delivered", "detail")
    DELIVERED_FIELD_NUMBER: _ClassVar[int]
    DETAIL_FIELD_NUMBER: _ClassVar[int]
    delivered: bool
    detail: str
    def __init__(self, delivered: _Optional[bool] = ..., detail: _Optional[str] = ...) -> None: ...
