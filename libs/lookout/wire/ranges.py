"""The range of every field on the wire, in one table, checked wherever a record is read.

Protobuf has no ranges of its own. protovalidate would put them alongside the fields, but evaluates an
expression (CEL) for each; this table is compiled once for each message into plain comparisons.
`tests/unit/house/test_field_ranges.py` fails for a field that is missing here.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, Final

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

from lookout.errors import LookoutError
from lookout.text import MAX_QUESTION
from lookout.wire import limits

LARGEST: Final = 2**53
"""What a JSON number holds exactly (RFC 8259, section 6). As microseconds 285 years: the sum of two
times is a date.
"""

_TIMESTAMP: Final = "google.protobuf.Timestamp"
_PACKAGE: Final = "lookout.v1."
#: a message or field descriptor; its class differs between protobuf back ends
_Descriptor = Any
_Check = Callable[[Message], None]

_INDEX: Final = (0, LARGEST)  # counts that only grow: offsets, windows, samples
_TIME: Final = (-LARGEST, LARGEST)  # microseconds or milliseconds
_INT32: Final = (0, 2**31 - 1)
_UINT32: Final = (0, 2**32 - 1)
_SHARE: Final = (0.0, 1.0)
_SECONDS: Final = (-1e11, 1e11)  # 3 000 years
_LENGTH_S: Final = (0.0, 1e11)
_OFFSET_MIN: Final = (-1439, 1439)  # from UTC: less than a day
_SIDE: Final = (0, 65_536)  # pixels
_GRID: Final = (0, limits.GRID_SIDE)
_FLOPS: Final = (0, 2**64 - 1)  # nothing is computed from them

#: of every numeric field the least and the largest value, both included
NUMBERS: Final[dict[str, tuple[float, float]]] = {
    "Alert.epoch": _INDEX,
    "Alert.watch_version": _UINT32,
    "Alert.score": _SHARE,
    "Alert.peak": _SHARE,
    "Alert.windows": _UINT32,
    "Coverage.answered_s": _LENGTH_S,
    "Coverage.idle_s": _LENGTH_S,
    "Coverage.degraded_s": _LENGTH_S,
    "Coverage.skipped_s": _LENGTH_S,
    "Coverage.gap_s": _LENGTH_S,
    "Camera.segment_s": (0.0, 120.0),
    "ClipFacts.width": _SIDE,
    "ClipFacts.height": _SIDE,
    "ClipFacts.frames": _UINT32,
    "ClipFacts.bytes": _INDEX,
    "ClipFacts.seconds": _LENGTH_S,
    "ClipSpan.at_s": _LENGTH_S,
    "KeptEvidence.bytes": _INDEX,
    "Erasure.begin_us": _TIME,
    "Erasure.end_us": _TIME,
    "Erasure.requested_us": _TIME,
    "ErasureConfirmation.confirmed_us": _TIME,
    "ErasureConfirmation.begin_us": _TIME,
    "ErasureConfirmation.end_us": _TIME,
    "ErasedPart.count": _INDEX,
    "ErasureMember.since_us": _TIME,
    "ErasureMember.announced_us": _TIME,
    "FramesRecord.epoch": _INDEX,
    "FramesRecord.wall_offset_us": _TIME,
    "SegmentFrames.start_us": _TIME,
    "SegmentFrames.end_us": _TIME,
    "Frame.time_us": _TIME,
    "Frame.sample": _INDEX,
    "Frame.index": _UINT32,
    "Picture.coded_width": _SIDE,
    "Picture.coded_height": _SIDE,
    "Picture.rotation": (-360, 360),
    "Picture.width": _SIDE,
    "Picture.height": _SIDE,
    "Picture.patch": _SIDE,
    "Picture.rows": _GRID,
    "Picture.cols": _GRID,
    "SegmentFacts.fps": (0.0, 1e6),
    "SegmentFacts.decoded": _UINT32,
    "SegmentFacts.corrupt": _UINT32,
    "SegmentFacts.leading_lost": _UINT32,
    "SegmentFacts.bytes": _INDEX,
    "SegmentFacts.first_pts": _SECONDS,
    "SegmentFacts.last_pts": _SECONDS,
    "RecordRef.partition": _INT32,
    "RecordRef.offset": (-1, LARGEST),  # -1: not known
    "TensorRef.epoch": _INDEX,
    "TensorRef.shape": (0, 2**31 - 1),
    "TensorRef.length": (0, 2**40),
    "TensorRef.crc32c": _UINT32,
    "Sampling.step_us": (0, 3_600_000_000),
    "Sampling.block_samples": (0, limits.BLOCK_SAMPLES),
    "Sampling.window_blocks": (0, limits.WINDOW_BLOCKS),
    "StreamEvent.start_us": _TIME,
    "StreamEvent.end_us": _TIME,
    "Checkpoint.record_ms": _TIME,
    "DecodeState.epoch": _INDEX,
    "DecodeState.wall_offset_us": _TIME,
    "DecodeState.watermark_us": _TIME,
    "DecodeState.epoch_pts": _SECONDS,
    "DecodeState.last_pts": _SECONDS,
    "DecodeState.last_arrival_ms": _TIME,
    "DecodeState.next_sample": _INDEX,
    "DecodeState.anchored_us": _TIME,
    "DecodeState.least_offset_us": _TIME,
    "DecodeState.arrived_ms": _TIME,
    "Quota.since_ms": _TIME,
    "Quota.bytes": _INDEX,
    "Quota.work_us": _INDEX,
    "Quota.failures": _UINT32,
    "Quota.left_out": _INDEX,
    "Quota.last_left_out": _INDEX,
    "Quota.left_out_since_ms": _TIME,
    "PruneState.epoch": _INDEX,
    "PruneState.wall_offset_us": _TIME,
    "PruneState.block": _INDEX,
    "PruneState.offsets": _INDEX,
    "PruneState.last_block": _INDEX,
    "PruneState.watermark_us": _TIME,
    "PruneState.late_block": _INDEX,
    "PruneState.heard_ms": _TIME,
    "PrefillState.epoch": _INDEX,
    "PrefillState.offsets": _INDEX,
    "PrefillState.last_window": _INDEX,
    "PrefillState.watches_offset": _INDEX,
    "PrefillState.watermark_us": _TIME,
    "PrefillState.since_key": _UINT32,
    "PrefillState.key_every": _UINT32,
    "AlertsState.epoch": _INDEX,
    "AlertsState.window": (-1, LARGEST),
    "WatchState.version": _UINT32,
    "WatchState.epoch": _INDEX,
    "WatchState.recent": (0, 2**64 - 1),
    "WatchState.seen": (0, limits.LAST_ANSWERS),
    "WatchState.newest_ms": _TIME,
    "WatchState.cooldown_until_ms": _TIME,
    "WatchState.window": (-1, LARGEST),
    "OpenIncident.opened_ms": _TIME,
    "OpenIncident.peak": _SHARE,
    "OpenIncident.score": _SHARE,
    "OpenIncident.windows": _UINT32,
    "OpenIncident.reported_peak": _SHARE,
    "WindowEvidence.p_yes": _SHARE,
    "RowRange.start": (0, 2**31 - 1),
    "RowRange.stop": (0, 2**31 - 1),
    "TensorHeader.shape": (0, 2**31 - 1),
    "TensorHeader.length": (0, 2**40),
    "TensorHeader.crc32c": _UINT32,
    "TokensRecord.epoch": _INDEX,
    "TokensRecord.wall_offset_us": _TIME,
    "StrideBlock.index": _INDEX,
    "StrideBlock.start_us": _TIME,
    "StrideBlock.end_us": _TIME,
    "StrideBlock.group_rows": _GRID,
    "StrideBlock.group_cols": _GRID,
    "StrideBlock.patches_total": _UINT32,
    "StrideBlock.patches_encoded": _UINT32,
    "StrideBlock.flops_vision": _FLOPS,
    "StrideBlock.flops_vision_dense": _FLOPS,
    "StrideBlock.tower_us": _INDEX,
    "BlockFrame.time_us": _TIME,
    "BlockFrame.sample": _INDEX,
    "BlockFrame.input": (0, 65_536),
    "BlockFrame.row": (0, 2**31 - 1),
    "TemporalPatch.frames": (0, 2 * limits.BLOCK_SAMPLES),
    "TemporalPatch.kept": (0, limits.GRID_CELLS),
    "Verdict.epoch": _INDEX,
    "Verdict.window": _INDEX,
    "Verdict.stream_start_s": _SECONDS,
    "Verdict.stream_end_s": _SECONDS,
    "Verdict.watch_version": _UINT32,
    "Verdict.p_yes": _SHARE,
    "Verdict.coverage": _SHARE,
    "Verdict.activity_rows": _GRID,
    "Verdict.activity_cols": _GRID,
    "Verdict.since_key": _UINT32,
    "Verdict.audit": _SHARE,
    "Verdict.key_every": _UINT32,
    "Verdict.watches_offset": _INDEX,
    "Verdict.damaged": _SHARE,
    "Cost.patches_total": _UINT32,
    "Cost.patches_encoded": _UINT32,
    "Cost.tokens_total": _UINT32,
    "Cost.tokens_kept": _UINT32,
    "Cost.tokens_reused": _UINT32,
    "Cost.tokens_refreshed": _UINT32,
    "Cost.tokens_text": _UINT32,
    "Cost.tokens_question": _UINT32,
    "Cost.flops_vision": _FLOPS,
    "Cost.flops_prefill": _FLOPS,
    "Cost.flops_question": _FLOPS,
    "Cost.flops_dense": _FLOPS,
    "Cost.device_us": _INDEX,
    "Evidence.row": (0, 2**31 - 1),
    "Watch.version": _UINT32,
    "Rule.threshold": _SHARE,
    "Rule.clear_threshold": _SHARE,
    "Rule.k": (0, limits.LAST_ANSWERS),
    "Rule.n": (0, limits.LAST_ANSWERS),
    "Rule.cooldown_s": (0.0, limits.COOLDOWN_S),
    "ScheduleEntry.weekdays": (1, 7),
    "Point.x": _SHARE,
    "Point.y": _SHARE,
    "RecordingJob.expires_s": (0.0, limits.JOB_S),
    "RecordingSettings.fps": (0.0, 1000.0),
    "RecordingSettings.start_s": _LENGTH_S,
    "RecordingSettings.end_s": _LENGTH_S,
    "RecordingSettings.group_frames": (0, limits.PART_SAMPLES),
    "RecordingSettings.rho": _SHARE,
    "RecordingSettings.part_frames": (0, limits.PART_SAMPLES),
    "RecordingSettings.describe": (0, limits.DESCRIPTION_TOKENS),
    "RecordingSettings.begins_offset_min": _OFFSET_MIN,
    "RecordingPart.number": (0, limits.JOB_PARTS - 1),
    "RecordingPart.recording": (0, limits.JOB_RECORDINGS - 1),
    "RecordingPart.home": _INT32,
    "BacktestPart.partition": _INT32,
    "BacktestPart.first": _INDEX,
    "BacktestPart.stop": _INDEX,
    "BacktestPart.read_from": _INDEX,
    "BacktestOutcome.replanned": _INDEX,
    "PastStream.epoch": _INDEX,
    "BacktestCost.flops": _FLOPS,
    "BacktestCost.flops_windows": _FLOPS,
    "BacktestCost.flops_question": _FLOPS,
    "BacktestCost.flops_dense": _FLOPS,
    "BacktestCost.cpu_s": _LENGTH_S,
    "BacktestCost.device_s": _LENGTH_S,
    "BacktestAnswer.incidents_total": _INDEX,
    "BacktestAnswer.cameras": _INDEX,
    "BacktestAnswer.watched_s": _LENGTH_S,
    "BacktestAnswer.replanned": _INDEX,
    "BacktestAnswer.threshold": _SHARE,
    "PastIncident.peak": _SHARE,
    "PastIncident.score": _SHARE,
    "PastIncident.windows": _INDEX,
    "OutcomeCount.windows": _INDEX,
    "LabelScore.score": _SHARE,
    "PartSamples.height": (0, 65_536),
    "PartSamples.width": (0, 65_536),
    "PartSample.place": _INDEX,
    "PartSample.picture": (0, 16),
    "LostSample.place": _INDEX,
    "PartSpan.number": (0, limits.JOB_PARTS - 1),
    "PartSpan.first": _INDEX,
    "PartSpan.stop": _INDEX,
    "PartSpan.start_s": _LENGTH_S,
    "PartSpan.end_s": _LENGTH_S,
    "RecordingOutcome.place": _INT32,
    "RecordingPlan.parts": (0, limits.JOB_PARTS),
    "RecordingPlan.seconds": _LENGTH_S,
    "RecordingPlan.partition_parts": (0, limits.JOB_PARTS),
    "PlannedRecording.seconds": _LENGTH_S,
    "PlannedRecording.frames": _INDEX,
    "PlannedRecording.parts": (0, limits.JOB_PARTS),
    "PlannedRecording.begins_offset_min": _OFFSET_MIN,
    "RecordingGap.start_us": _TIME,
    "RecordingGap.end_us": _TIME,
    "RecordingGap.samples": _INDEX,
    "PartOutcome.number": (0, limits.JOB_PARTS - 1),
    "PartOutcome.recording": (0, limits.JOB_RECORDINGS - 1),
    "PartOutcome.frames": _INDEX,
    "PartOutcome.damaged": _INDEX,
    "PartOutcome.rows": _INDEX,
    "PartOutcome.kept": _INDEX,
    "PartOutcome.kv_bytes": _INDEX,
    "PartOutcome.tokens": _INDEX,
    "PartOutcome.tokens_total": _INDEX,
    "PartOutcome.flops_vision": _FLOPS,
    "PartOutcome.flops_prefill": _FLOPS,
    "PartOutcome.flops_questions": _FLOPS,
    "RecordingPartAnswer.p_yes": _SHARE,
    "RecordingMoment.time_s": _LENGTH_S,
    "RecordingMoment.share": _SHARE,
    "RecordingAnswers.parts": (0, limits.JOB_PARTS),
    "RecordingAnswers.done": (0, limits.JOB_PARTS),
    "RecordingAnswer.seconds": _LENGTH_S,
    "RecordingAnswer.frames": _INDEX,
    "RecordingAnswer.begins_offset_min": _OFFSET_MIN,
    "RecordingQuestionAnswer.p_yes": _SHARE,
    "RecordingQuestionAnswer.part": (0, limits.JOB_PARTS - 1),
    "RecordingQuestionAnswer.start_s": _LENGTH_S,
    "RecordingQuestionAnswer.end_s": _LENGTH_S,
    "RecordingRange.start_s": _LENGTH_S,
    "RecordingRange.end_s": _LENGTH_S,
    "PlanState.request_offset": _INDEX,
    "ReduceState.plan_offset": _INDEX,
    "ReduceState.parts": (0, limits.JOB_PARTS),
    "ReduceState.numbers": (0, limits.JOB_PARTS - 1),
    "ReduceState.offsets": _INDEX,
    "ReduceState.sent": (0, limits.JOB_PARTS),
    "ReduceState.seconds": _LENGTH_S,
    "ReduceState.questions": (0, limits.JOB_QUESTIONS),
}

#: of texts the most characters, of bytes fields the most bytes
SIZES: Final[dict[str, int]] = {
    "ApiToken.id": 64,
    "ApiToken.name": limits.ACTOR_CHARS,
    "ApiToken.cameras": limits.ID_BYTES,
    "ApiToken.tenants": limits.TENANT_CHARS,
    "ApiToken.created_by": limits.ACTOR_CHARS,
    "ApiToken.digest": 64,
    "AuditEntry.id": 64,
    "AuditEntry.actor": limits.ACTOR_CHARS,
    "AuditEntry.action": 64,
    "AuditEntry.subject": limits.ID_BYTES,
    "AuditEntry.camera": limits.ID_BYTES,
    "AuditEntry.tenant": limits.TENANT_CHARS,
    "AuditEntry.address": 64,
    "AuditEntry.request": limits.REQUEST_KEY,
    "IncidentAction.id": 64,
    "IncidentAction.incident": 64,
    "IncidentAction.actor": limits.ACTOR_CHARS,
    "IncidentAction.note": limits.NOTE_CHARS,
    "IncidentAction.camera": limits.ID_BYTES,
    "IncidentAction.tenant": limits.TENANT_CHARS,
    "IncidentAction.watch": limits.ID_BYTES,
    "IncidentAction.question": MAX_QUESTION,
    "Opinion.incident": 64,
    "ErasureRequest.camera": limits.ID_BYTES,
    "Alert.id": 64,
    "Alert.incident": 64,
    "Alert.camera": limits.ID_BYTES,
    "Alert.watch": limits.ID_BYTES,
    "Alert.question": MAX_QUESTION,
    "Alert.reason": limits.REASON,
    "Alert.tenant": limits.TENANT_CHARS,
    "ClipFacts.camera": limits.ID_BYTES,
    "ClipFacts.codec": 64,
    "ClipFacts.media_type": 200,
    "KeptEvidence.incident": 64,
    "KeptEvidence.camera": limits.ID_BYTES,
    "KeptEvidence.tenants": limits.TENANT_CHARS,
    "KeptEvidence.kept_by": limits.ACTOR_CHARS,
    "Camera.id": limits.ID_BYTES,
    "Camera.url": 2048,
    "Camera.credentials": 253,
    "Camera.tenant": limits.TENANT_CHARS,
    "CameraLabels.tenant": limits.TENANT_CHARS,
    "FramesRecord.camera": limits.ID_BYTES,
    "Frame.picture_type": 8,
    "Frame.motion": 2 * limits.GRID_CELLS,
    "Frame.residual": 2 * limits.GRID_CELLS,
    "Picture.fit": 16,
    "SegmentFacts.container": 100,
    "SegmentFacts.codec": 100,
    "SegmentFacts.gather": 100,
    "RecordRef.topic": 249,
    "TensorRef.id": 1024,
    "TensorRef.camera": limits.ID_BYTES,
    "TensorRef.config_digest": 200,
    "TensorRef.dtype": 32,
    "StreamEvent.reason": limits.REASON,
    "Checkpoint.config_digest": 1000,
    "google.protobuf.Any.type_url": 200,
    "google.protobuf.Any.value": 1 << 20,  # a record of a state topic is no larger
    "Erasure.id": 64,
    "Erasure.camera": limits.ID_BYTES,
    "Erasure.requested_by": 200,
    "Erasure.signature": 64,
    "ErasureConfirmation.camera": limits.ID_BYTES,
    "ErasureMember.signature": 64,
    "ErasureConfirmation.erasure": 64,
    "ErasureConfirmation.instance": 253,
    "ErasureConfirmation.service": 64,
    "ErasureConfirmation.signature": 64,
    "ErasedPart.what": 64,
    "ErasureMember.instance": 253,
    "ErasureMember.service": 64,
    "PruneState.active": 1 << 20,
    "PruneState.missing": limits.REASON,
    "WatchState.watch": limits.ID_BYTES,
    "OpenIncident.id": 64,
    "OpenIncident.question": MAX_QUESTION,
    "OpenIncident.tenant": limits.TENANT_CHARS,
    "GetTensorResponse.chunk": 1 << 20,
    "MaterializeTensorResponse.chunk": 1 << 20,
    "TensorHeader.dtype": 32,
    "TokensRecord.camera": limits.ID_BYTES,
    "StrideBlock.model_digest": 200,
    "StrideBlock.anchor_luma": 1 << 20,
    "StrideBlock.missing": limits.REASON,
    "TemporalPatch.keep": limits.GRID_CELLS // 8,
    "Verdict.id": 64,
    "Verdict.camera": limits.ID_BYTES,
    "Verdict.watch": limits.ID_BYTES,
    "Verdict.question": MAX_QUESTION,
    "Verdict.reason": 2 * limits.REASON,
    "Verdict.basis": 32,
    "Verdict.model_digest": 200,
    "Verdict.activity": limits.GRID_CELLS // 8,
    "Verdict.description": 16_384,
    "Verdict.plan_digest": 200,
    "Verdict.tenant": limits.TENANT_CHARS,
    "Watch.id": limits.ID_BYTES,
    "Watch.question": MAX_QUESTION,
    "Watch.cameras": limits.ID_BYTES,
    "Watch.tenant": limits.TENANT_CHARS,
    "ScheduleEntry.start": 16,
    "ScheduleEntry.end": 16,
    "ScheduleEntry.time_zone": limits.TIME_ZONE,
    "Zone.name": limits.ZONE_NAME,
    "RecordingJob.id": limits.JOB_BYTES,
    "RecordingJob.uris": limits.URI_CHARS,
    "RecordingJob.questions": MAX_QUESTION,
    "RecordingJob.tenant": limits.TENANT_CHARS,
    "PlanState.tenant": limits.TENANT_CHARS,
    "ReduceState.tenant": limits.TENANT_CHARS,
    "RecordingSettings.policy": 32,
    "RecordingPart.job": limits.JOB_BYTES,
    "RecordingPart.uri": limits.URI_CHARS,
    "RecordingPart.mark": 200,
    "RecordingPart.questions": MAX_QUESTION,
    "RecordingOutcome.job": limits.JOB_BYTES,
    "BacktestOutcome.other_tenants": limits.ID_BYTES,
    "BacktestAnswer.other_tenants": limits.ID_BYTES,
    "PastStream.camera": limits.ID_BYTES,
    "PastIncident.camera": limits.ID_BYTES,
    "PastIncident.reason": limits.REASON,
    "OutcomeCount.outcome": 32,
    "Label.camera": limits.ID_BYTES,
    "Label.watch": limits.ID_BYTES,
    "Label.incident": 64,
    "Label.question": MAX_QUESTION,
    "Label.labelled_by": 200,
    "LabelScore.camera": limits.ID_BYTES,
    "LabelScore.watch": limits.ID_BYTES,
    "LabelScore.incident": 64,
    "RecordingPlan.reason": limits.REASON,
    "LostSample.reason": limits.REASON,
    "PlannedRecording.uri": limits.URI_CHARS,
    "PlannedRecording.reason": limits.REASON,
    "PlannedRecording.mark": 200,
    "RecordingGap.reason": limits.REASON,
    "PartOutcome.reason": limits.REASON,
    "PartOutcome.model_digest": 200,
    "RecordingPartAnswer.text": 16_384,
    "RecordingAnswers.id": limits.JOB_BYTES,
    "RecordingAnswers.reason": limits.REASON,
    "RecordingAnswer.begins_from": 16,
    "RecordingAnswer.uri": limits.URI_CHARS,
    "RecordingAnswer.reason": limits.REASON,
    "RecordingQuestionAnswer.question": MAX_QUESTION,
    "RecordingQuestionAnswer.text": 16_384,
    "PlanState.digest": 64,
}

#: of every repeated field the most entries
COUNTS: Final[dict[str, int]] = {
    "ClipFacts.spans": 10_000,
    "KeptEvidence.tenants": 1000,
    "ApiToken.cameras": limits.TOKEN_SCOPES,
    "ApiToken.tenants": limits.TOKEN_SCOPES,
    "Alert.evidence": 64,
    "ErasureConfirmation.parts": 32,
    "SegmentFrames.frames": 65_536,
    "TensorRef.segments": 4096,
    "TensorRef.shape": 8,
    "PruneState.offsets": 65_536,
    "PrefillState.offsets": limits.WINDOW_BLOCKS,
    "AlertsState.watches": limits.CAMERA_WATCHES + 1,  # and camera-offline
    "OpenIncident.evidence": 8,
    "WindowEvidence.frames": 16,
    "GetTensorRequest.rows": 4096,
    "MaterializeTensorRequest.rows": 4096,
    "TensorHeader.shape": 8,
    "StrideBlock.frames": 2 * limits.BLOCK_SAMPLES,
    "StrideBlock.patches": 2 * limits.BLOCK_SAMPLES,
    "StrideBlock.inputs": 4096,
    "TemporalPatch.frames": 16,
    "Verdict.evidence": 16,
    "Watch.cameras": limits.WATCH_CAMERAS,
    "Rule.schedule": limits.SCHEDULE_ENTRIES,
    "Rule.zones": limits.ZONES,
    "ScheduleEntry.weekdays": 7,
    "Zone.points": limits.ZONE_POINTS,
    "RecordingJob.uris": limits.JOB_URIS,
    "RecordingJob.questions": limits.JOB_QUESTIONS,
    "RecordingPart.questions": limits.JOB_QUESTIONS,
    "RecordingPlan.recordings": limits.JOB_RECORDINGS,
    "RecordingPlan.partition_parts": limits.JOB_PARTS,
    "RecordingPlan.past": limits.JOB_PARTS,
    "PlannedRecording.spans": limits.JOB_PARTS,
    "PartSamples.frames": limits.PART_SAMPLES,
    "PartSamples.lost": limits.PART_SAMPLES,
    "BacktestOutcome.streams": limits.PART_SAMPLES,
    "BacktestOutcome.other_tenants": limits.WATCH_CAMERAS,
    "BacktestAnswer.other_tenants": limits.WATCH_CAMERAS,
    "PastStream.verdicts": limits.PART_SAMPLES,
    "BacktestAnswer.incidents": limits.JOB_INCIDENTS,
    "BacktestAnswer.windows": 16,
    "BacktestAnswer.labels": limits.JOB_LABELS,
    "BacktestJob.labels": limits.JOB_LABELS,
    "BacktestAnswer.unanswered": limits.JOB_PARTS,
    "PastIncident.evidence": 16,
    "PlannedRecording.gaps": limits.RECORDING_GAPS,
    "PartOutcome.answers": limits.JOB_QUESTIONS,
    "PartOutcome.gaps": limits.RECORDING_GAPS,
    "RecordingPartAnswer.moments": 16,
    "RecordingAnswers.recordings": limits.JOB_RECORDINGS,
    "RecordingAnswer.answers": limits.JOB_QUESTIONS,
    "RecordingAnswer.parts": limits.JOB_PARTS,
    "RecordingAnswer.gaps": limits.RECORDING_GAPS,
    "RecordingQuestionAnswer.moments": 16,
    "RecordingQuestionAnswer.yes": limits.JOB_PARTS,
    "ReduceState.numbers": limits.JOB_PARTS,
    "ReduceState.offsets": limits.JOB_PARTS,
}


class RangeError(LookoutError, ValueError):
    """A field outside its range."""


def check_ranges(message: Message) -> None:
    """Check every field of a message and of those in it.

    Raises:
        RangeError: One is outside its range; the text names the field, the value and the range.
    """
    for check in _checks(message.DESCRIPTOR):
        check(message)


@cache
def _checks(kind: _Descriptor) -> tuple[_Check, ...]:
    """The comparisons of one kind of message. Messages of the wire do not contain themselves."""
    return tuple(check for field in kind.fields for check in _field_checks(kind, field))


def _field_checks(kind: _Descriptor, field: _Descriptor) -> list[_Check]:
    path = f"{kind.full_name.removeprefix(_PACKAGE)}.{field.name}"
    checks = [_count(path, field.name)] if field.is_repeated else []
    if field.message_type is not None:
        if field.message_type.full_name == _TIMESTAMP:
            checks.append(_timestamps(path, field))
        elif _checks(field.message_type):
            checks.append(_inner(field))
    elif field.type in (FieldDescriptor.TYPE_STRING, FieldDescriptor.TYPE_BYTES):
        checks.append(_size(path, field))
    elif field.type not in (FieldDescriptor.TYPE_BOOL, FieldDescriptor.TYPE_ENUM):
        checks.append(_number(path, field))
    return checks


def _number(path: str, field: _Descriptor) -> _Check:
    low, high = NUMBERS[path]
    name = field.name

    def check_one(message: Message) -> None:
        if not low <= getattr(message, name) <= high:  # so written, it also refuses NaN
            _refuse(path, getattr(message, name), low, high)

    def check_all(message: Message) -> None:
        for value in getattr(message, name):
            if not low <= value <= high:
                _refuse(path, value, low, high)

    return check_all if field.is_repeated else check_one


def _refuse(path: str, value: float, low: float, high: float) -> None:
    raise RangeError(f"{_PACKAGE}{path}: {value} is outside {_written(low)} to {_written(high)}")


def _written(value: float) -> str:
    return f"{'-' if value < 0 else ''}2^53" if abs(value) == LARGEST else f"{value:.12g}"


def _size(path: str, field: _Descriptor) -> _Check:
    limit, name, repeated = SIZES[path], field.name, field.is_repeated
    unit = "bytes" if field.type == FieldDescriptor.TYPE_BYTES else "characters"

    def check(message: Message) -> None:
        values = getattr(message, name)
        for value in values if repeated else (values,):
            if len(value) > limit:
                raise RangeError(f"{_PACKAGE}{path}: {len(value)} {unit}, {limit} at most")

    return check


def _count(path: str, name: str) -> _Check:
    limit = COUNTS[path]

    def check(message: Message) -> None:
        if len(getattr(message, name)) > limit:
            raise RangeError(f"{_PACKAGE}{path}: {len(getattr(message, name))} entries, {limit} at most")

    return check


def _inner(field: _Descriptor) -> _Check:
    name, checks = field.name, _checks(field.message_type)

    def check_one(message: Message) -> None:
        if message.HasField(name):
            inner = getattr(message, name)
            for check in checks:
                check(inner)

    def check_all(message: Message) -> None:
        for inner in getattr(message, name):
            for check in checks:
                check(inner)

    return check_all if field.is_repeated else check_one


def _timestamps(path: str, field: _Descriptor) -> _Check:
    """Within the years 1 to 9999, as a Timestamp promises: beyond, the conversions raise."""
    name = field.name

    def check(message: Message) -> None:
        if message.HasField(name):
            time = getattr(message, name)
            if not (-62_135_596_800 <= time.seconds <= 253_402_300_799 and 0 <= time.nanos < 10**9):
                raise RangeError(f"{_PACKAGE}{path}: {time.seconds} s is no time of the years 1 to 9999")

    return check
