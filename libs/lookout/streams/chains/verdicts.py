"""Builds the verdicts that prefill publishes."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from lookout.models import engines
from lookout.models.windows import WindowPlan
from lookout.runtime.worker import Output
from lookout.streams import AnsweredWindow, NoAnswer, NoAnswerKind
from lookout.streams.chains.blocks import WIRE_CAUSES, keep_mask
from lookout.structured import DIGITS, named_shares
from lookout.text import clean
from lookout.v1 import tokens_pb2, verdicts_pb2
from lookout.v1.watches_pb2 import Rule, Watch
from lookout.video.motion import pack_mask
from lookout.wire import VERDICT_TYPE, VERDICTS, Stage, event_headers, to_json, verdict_id
from lookout.wire.limits import REASON
from lookout.wire.shares import share_messages

EVIDENCE = 3  # frames
_OUTCOMES = {
    NoAnswerKind.GAP: verdicts_pb2.Verdict.OUTCOME_GAP,
    NoAnswerKind.SKIPPED: verdicts_pb2.Verdict.OUTCOME_SKIPPED,
    NoAnswerKind.DEGRADED: verdicts_pb2.Verdict.OUTCOME_DEGRADED,
    NoAnswerKind.GATED: verdicts_pb2.Verdict.OUTCOME_GATED,
}


@dataclass(frozen=True, slots=True)
class WindowTime:
    """The window of a verdict. Times are stream times in microseconds; `wall_offset_us` is Unix time minus
    stream time."""

    camera: str
    epoch: int
    wall_offset_us: int
    window: int
    start_us: int
    end_us: int
    tenant: str = ""  # the camera's tenant; empty: default

    @property
    def start_wall_ms(self) -> int:
        return (self.wall_offset_us + self.start_us) // 1000

    @property
    def end_wall_ms(self) -> int:
        return (self.wall_offset_us + self.end_us) // 1000


def outcome(
    span: WindowTime,
    watch: Watch,
    kind: verdicts_pb2.Verdict.Outcome,
    reason: str = "",
    *,
    newest: tokens_pb2.StrideBlock | None = None,
) -> verdicts_pb2.Verdict:
    """Return a verdict in which the fields of an answer are not set.

    Args:
        span: The window.
        watch: The watch with the question.
        kind: The outcome.
        reason: Why there is no answer; empty if the caller will add one.
        newest: The window's newest block, whose encoding is a cost even without an answer; None: no cost.
    """
    verdict = verdicts_pb2.Verdict(
        id=verdict_id(span.camera, span.epoch, watch.id, watch.version, span.window),
        camera=span.camera,
        epoch=span.epoch,
        window=span.window,
        stream_start_s=span.start_us / 1e6,
        stream_end_s=span.end_us / 1e6,
        watch=watch.id,
        watch_version=watch.version,
        question=watch.question,
        outcome=kind,
        reason=clean(reason, REASON),
        rule=_without_zones_and_schedule(watch.rule),
        tenant=span.tenant,
    )
    verdict.start.FromMilliseconds(span.start_wall_ms)
    verdict.end.FromMilliseconds(span.end_wall_ms)
    # The tower did not encode blocks without patches.
    if newest is not None and newest.patches:
        verdict.cost.flops_vision = newest.flops_vision
    return verdict


def unanswered(
    span: WindowTime, watch: Watch, refusal: NoAnswer, *, newest: tokens_pb2.StrideBlock | None = None
) -> verdicts_pb2.Verdict:
    """Return the verdict of a window that has no answer."""
    verdict = outcome(span, watch, _OUTCOMES[refusal.kind], refusal.reason, newest=newest)
    verdict.cause = WIRE_CAUSES[refusal.cause]
    return verdict


def _without_zones_and_schedule(rule: Rule) -> Rule:
    """Return a rule without its schedule and zones, which verdicts do not repeat."""
    return Rule(
        threshold=rule.threshold,
        clear_threshold=rule.clear_threshold,
        k=rule.k,
        n=rule.n,
        cooldown_s=rule.cooldown_s,
    )


def output(verdict: verdicts_pb2.Verdict) -> Output:
    """Return the record of a verdict: a CloudEvent in binary mode with a JSON body."""
    headers = event_headers(
        VERDICT_TYPE, Stage.PREFILL, verdict.camera, verdict.id, verdict.end.ToJsonString()
    )
    return Output(VERDICTS.name, verdict.camera, to_json(verdict), headers)


def evidence_of(block: tokens_pb2.StrideBlock, wall_offset_us: int) -> list[verdicts_pb2.Evidence]:
    """Return the frames that show a block best, as evidence if the answer's attention is unknown: the
    anchors, then the frames with the most kept groups; at most `EVIDENCE` frames.

    Args:
        block: The block.
        wall_offset_us: Unix time minus stream time, microseconds.
    """
    patches = sorted(block.patches, key=lambda patch: (not patch.anchor, -patch.kept))
    return [_reference(block, patch, wall_offset_us) for patch in patches[:EVIDENCE]]


def _attended(
    answer: engines.Answer, blocks: Sequence[tokens_pb2.StrideBlock], wall_offset_us: int
) -> list[verdicts_pb2.Evidence]:
    """Return the frames to which an answer attended most, best first; an empty list if attention is
    unknown."""
    blocks_by_index = {block.index: block for block in blocks}
    return [
        _reference(
            blocks_by_index[shown.block], blocks_by_index[shown.block].patches[shown.frame], wall_offset_us
        )
        for shown in answer.frames
        if shown.block in blocks_by_index
    ]


def _reference(
    block: tokens_pb2.StrideBlock, patch: tokens_pb2.TemporalPatch, wall_offset_us: int
) -> verdicts_pb2.Evidence:
    """Return the first frame of a temporal patch as evidence."""
    frame = block.frames[patch.frames[0]]
    evidence = verdicts_pb2.Evidence(row=frame.row)
    evidence.time.FromMicroseconds(wall_offset_us + frame.time_us)
    if frame.input < len(block.inputs):
        evidence.record.CopyFrom(block.inputs[frame.input])
    return evidence


def show_activity(verdict: verdicts_pb2.Verdict, watch: Watch, block: tokens_pb2.StrideBlock) -> None:
    """If the watch's rule has zones, set the verdict's `activity` to the merge groups that moved: those that
    pruning kept in frames other than anchors."""
    if not block.group_rows or not watch.rule.zones:
        return
    moved = np.zeros((block.group_rows, block.group_cols), bool)
    for patch in block.patches:
        if not patch.anchor:
            moved |= keep_mask(block, patch)
    verdict.activity = pack_mask(moved)
    verdict.activity_rows, verdict.activity_cols = block.group_rows, block.group_cols


def answered(
    span: WindowTime,
    watch: Watch,
    asked: AnsweredWindow,
    answer: engines.Answer,
    *,
    blocks: Sequence[tokens_pb2.StrideBlock],
) -> verdicts_pb2.Verdict:
    """Return the verdict of an answered question.

    Args:
        span: The window.
        watch: The watch with the question.
        asked: How the window was computed.
        answer: The engine's answer to this question.
        blocks: The window's usable blocks, oldest first; the last is its newest block.
    """
    verdict = outcome(span, watch, verdicts_pb2.Verdict.OUTCOME_ANSWERED)
    verdict.p_yes = round(answer.p_yes, DIGITS)
    verdict.answers.extend(share_messages(named_shares(watch.question, answer.shares)))
    verdict.basis = asked.basis
    if not asked.alone:
        verdict.since_key = asked.plan.since_key
    verdict.description = answer.text or ""
    verdict.cost.CopyFrom(cost_of(asked.plan, asked.answer.cost, blocks, answer))
    if asked.audit is not None:
        verdict.audit = round(asked.audit.difference, DIGITS)
        verdict.cost.flops_prefill += asked.audit.flops
    verdict.cost.device_us = _device_us(asked, verdict.cost.flops_question)
    shown = _attended(answer, blocks, span.wall_offset_us)
    verdict.evidence.extend(shown or evidence_of(blocks[-1], span.wall_offset_us))
    show_activity(verdict, watch, blocks[-1])
    return verdict


def _device_us(asked: AnsweredWindow, own_flops: int) -> int:
    """Return a question's share of the engine's measured time for its window, in microseconds.

    The share is proportional to the question's own FLOPs plus an equal share of the window's other FLOPs, so
    that the shares of all questions add up to the measured time.

    Args:
        asked: How the window was computed.
        own_flops: FLOPs of the question alone.
    """
    cost, count = asked.answer.cost, len(asked.answer.answers)
    total = cost.total_flops
    shared = total - cost.flops.get("questions", 0) - cost.flops.get("describe", 0)
    share = (own_flops + shared / count) / total if total else 1 / count
    seconds = cost.seconds * share + (0.0 if asked.audit is None else asked.audit.seconds / count)
    return round(seconds * 1e6)


def cost_of(
    plan: WindowPlan,
    cost: engines.Cost,
    blocks: Sequence[tokens_pb2.StrideBlock],
    answer: engines.Answer,
) -> verdicts_pb2.Cost:
    """Return the cost of one question about a window, and what it would cost without pruning and reuse
    (`flops_dense`).

    The vision tower encodes a block once. These FLOPs are counted for the window that the block closes, so
    that the costs of all windows add up to what was computed. `flops_dense` counts this window alone, with
    all its blocks. `flops_question` is the question's share of all questions' FLOPs, by its tokens, plus the
    FLOPs of its text.
    """
    kept_tokens = sum(patch.kept for block in blocks for patch in block.patches)
    total = sum(len(block.patches) * block.group_rows * block.group_cols for block in blocks)
    rows, dense = plan.rows, plan.rows - kept_tokens + total
    asked, written = cost.flops.get("questions", 0), cost.flops.get("describe", 0)
    return verdicts_pb2.Cost(
        patches_total=sum(block.patches_total for block in blocks),
        patches_encoded=sum(block.patches_encoded for block in blocks),
        tokens_total=total,
        tokens_kept=kept_tokens,
        tokens_reused=cost.tokens_reused,
        tokens_refreshed=cost.tokens_refreshed,
        tokens_text=rows - kept_tokens,
        tokens_question=answer.tokens,
        flops_vision=blocks[-1].flops_vision,
        flops_prefill=cost.total_flops - asked - written,
        flops_question=round(asked * answer.tokens / max(cost.question_tokens, 1)) + answer.text_flops,
        flops_dense=sum(block.flops_vision_dense for block in blocks) + cost.full_flops(dense),
    )


def repeated_verdict(
    span: WindowTime, watch: Watch, before: verdicts_pb2.Verdict, newest: tokens_pb2.StrideBlock
) -> verdicts_pb2.Verdict:
    """Return the verdict of a window in which nothing changed. It repeats the watch's previous answer.

    Args:
        span: The window.
        watch: The watch with the question.
        before: The watch's previous answer.
        newest: The window's newest block.
    """
    verdict = outcome(span, watch, verdicts_pb2.Verdict.OUTCOME_ANSWERED)
    verdict.p_yes, verdict.description, verdict.basis = before.p_yes, before.description, "idle"
    verdict.answers.extend(before.answers)
    verdict.cost.CopyFrom(before.cost)
    # Only the newest block was computed, by the vision tower. The language model computed nothing.
    verdict.cost.flops_prefill = verdict.cost.flops_question = verdict.cost.device_us = 0
    verdict.cost.flops_vision = newest.flops_vision
    verdict.cost.tokens_reused, verdict.cost.tokens_refreshed = before.cost.tokens_kept, 0
    verdict.evidence.extend(evidence_of(newest, span.wall_offset_us))
    show_activity(verdict, watch, newest)
    return verdict
