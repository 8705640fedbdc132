"""Converts a camera's outages to answers of the watch `camera-offline`, so that the usual rules apply."""

from __future__ import annotations

from dataclasses import replace

from lookout.rules import Outcome, Rule, WatchVerdict, covers
from lookout.rules.messages import rule_of
from lookout.v1 import verdicts_pb2, watches_pb2
from lookout.wire import CAMERA_OFFLINE, tenant_of

#: the reason of a gap in which nothing arrived, as opposed to a clock fault
SILENCE = "silence"
#: the reason of a gap that ends an epoch because the camera continues in another partition
MOVED = "moved"


def offline_answer(
    verdict: verdicts_pb2.Verdict, answer: WatchVerdict, watch: watches_pb2.Watch, newest: int = -1
) -> WatchVerdict | None:
    """Derive an answer of `camera-offline` from a verdict of any watch.

    A gap caused by silence counts as yes, a window with any other outcome as no. If the camera moved to
    another partition, the answer is a gap, which closes an open incident. The answers are numbered
    consecutively, because a camera that returns opens a new epoch and its clock may have been set back.

    Args:
        verdict: The first verdict of a window of the camera.
        answer: The same verdict in the form of the rules.
        watch: The watch `camera-offline`.
        newest: Number of the camera's newest answer of the watch; -1: none yet.

    Returns:
        The answer; None if the watch does not cover the camera.

    Raises:
        RuleError: The rule of the watch is invalid.
    """
    if not covers(watch, answer.camera, tenant_of(verdict.tenant)):
        return None
    reason = verdict.reason if answer.outcome is Outcome.GAP else ""
    rule: Rule = replace(rule_of(watch.rule), zones=())
    return replace(
        answer,
        epoch=0,
        window=newest + 1,
        watch=CAMERA_OFFLINE,
        version=watch.version,
        outcome=Outcome.GAP if reason == MOVED else Outcome.ANSWERED,
        p_yes=float(reason == SILENCE),
        rule=rule,
        activity=None,
        evidence=(),
    )
