"""The wire: topics, headers, CloudEvents and ids. Messages are generated from `protos/lookout/v1`."""

from lookout.wire.door import (
    Received as Received,
    check_epoch as check_epoch,
    check_message as check_message,
    is_json as is_json,
    message_kind as message_kind,
    read_record as read_record,
    received as received,
)
from lookout.wire.events import (
    ALERT_TYPE as ALERT_TYPE,
    VERDICT_TYPE as VERDICT_TYPE,
    event_headers as event_headers,
    event_type as event_type,
    from_bytes as from_bytes,
)
from lookout.wire.ids import (
    CAMERA_ID_BYTES as CAMERA_ID_BYTES,
    incident_id as incident_id,
    is_camera_id as is_camera_id,
    key_text as key_text,
    label_key as label_key,
    names_id as names_id,
    stable_id as stable_id,
    tensor_id as tensor_id,
    verdict_id as verdict_id,
)
from lookout.wire.message_json import (
    WireError as WireError,
    from_json as from_json,
    from_own_json as from_own_json,
    to_json as to_json,
)
from lookout.wire.prefix import (
    NAME_PREFIX as NAME_PREFIX,
    REDIS_KEYS as REDIS_KEYS,
    prefix_fault as prefix_fault,
    prefixed as prefixed,
)
from lookout.wire.references import (
    BadReferenceError as BadReferenceError,
    check_references as check_references,
)
from lookout.wire.tenants import (
    DEFAULT_TENANT as DEFAULT_TENANT,
    PRIORITIES as PRIORITIES,
    check_tenant as check_tenant,
    label_headers as label_headers,
    labelled as labelled,
    priority_name as priority_name,
    read_labels as read_labels,
    tenant_of as tenant_of,
)
from lookout.wire.topics import (
    ACCESS as ACCESS,
    ACTIONS as ACTIONS,
    ALERTS as ALERTS,
    ANSWERS as ANSWERS,
    AUDIT as AUDIT,
    CAMERA_HEALTH as CAMERA_HEALTH,
    CAMERA_OFFLINE as CAMERA_OFFLINE,
    CAMERAS as CAMERAS,
    ERASURES as ERASURES,
    EVERY_CAMERA as EVERY_CAMERA,
    FRAMES as FRAMES,
    LABELS as LABELS,
    MASKS as MASKS,
    MAX_MESSAGE_BYTES as MAX_MESSAGE_BYTES,
    MAX_SEGMENT_BYTES as MAX_SEGMENT_BYTES,
    NOTIFICATIONS as NOTIFICATIONS,
    NOTIFY as NOTIFY,
    PARTS as PARTS,
    PIPELINE as PIPELINE,
    PLAN as PLAN,
    RECORDING_FLOWS as RECORDING_FLOWS,
    RECORDING_PARTS as RECORDING_PARTS,
    RECORDING_RESULTS as RECORDING_RESULTS,
    RECORDINGS as RECORDINGS,
    REDUCE as REDUCE,
    SEGMENTS as SEGMENTS,
    SHIFT_REPORT as SHIFT_REPORT,
    TOKENS as TOKENS,
    VERDICTS as VERDICTS,
    WATCHES as WATCHES,
    Flow as Flow,
    Stage as Stage,
    Topic as Topic,
    all_topics as all_topics,
    camera_topics as camera_topics,
    dead_letters as dead_letters,
    state_topic as state_topic,
)
