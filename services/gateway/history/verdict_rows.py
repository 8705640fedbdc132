"""Verdicts as the history counts them. They are parsed without building messages, because thousands arrive
per second.
"""

from __future__ import annotations

import json
import math
from datetime import UTC, datetime, timedelta
from typing import Any, Final, NamedTuple

from lookout.rules import Outcome
from lookout.rules.messages import verdict_of
from lookout.rules.types import Rule, RuleError
from lookout.v1.verdicts_pb2 import Verdict
from lookout.wire import WireError, from_json, tenant_of
from lookout.wire.limits import EPOCH_AHEAD_MS, ID_BYTES, TENANT_CHARS
from lookout.wire.ranges import LARGEST

OUTCOMES: Final = tuple(Outcome)
_PLACES: Final = {outcome.value: place for place, outcome in enumerate(OUTCOMES)}
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MS: Final = timedelta(milliseconds=1)
#: maximum time that a window can cover, in milliseconds
LONGEST_MS: Final = 3_600_000


class VerdictRow(NamedTuple):
    """The fields of a verdict that the history counts.

    `outcome` is an index into `OUTCOMES`. `p_yes` is NaN if there is no answer. `shared` and `own` are the
    FLOPs of the window and of the question. `device_us` is the question's share of the device time in
    microseconds.
    """

    tenant: str
    camera: str
    watch: str
    start_ms: int
    end_ms: int
    outcome: int
    p_yes: float
    shared: float
    own: float
    device_us: int


def read_row(value: bytes, key: str, written_ms: int) -> VerdictRow | None:
    """Return the fields of a verdicts.v1 record that the history counts. JSON in the form that `to_json`
    writes is read directly; any other form is read by the wire parser, with the same result.

    Args:
        value: The record's value.
        key: The record's key.
        written_ms: When Kafka got the record, Unix milliseconds.

    Returns:
        The row; None if the record is not a verdict about its key, or the verdict ends more than a day after
        it was written.
    """
    try:
        row = _fast(json.loads(value))
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError, RecursionError):
        row = None
    if row is None:
        row = _slow(value)
    if row is None or row.camera != key or row.end_ms > written_ms + EPOCH_AHEAD_MS or row.end_ms < 0:
        return None
    return row


def _fast(fields: dict[str, Any]) -> VerdictRow | None:
    """Return a verdict's row; None if a field does not have the form that `to_json` writes."""
    camera, watch, tenant = fields["camera"], fields["watch"], fields.get("tenant", "")
    if not (type(camera) is type(watch) is type(tenant) is str):
        return None
    if len(camera) > ID_BYTES or len(watch) > ID_BYTES or len(tenant) > TENANT_CHARS:
        return None
    start, end = fields["start"], fields["end"]
    if start[-1] != "Z" or end[-1] != "Z":
        return None
    outcome, p_yes = fields["outcome"], fields.get("p_yes")
    answered = outcome == "answered"
    if answered and fields.get("basis") == "idle":
        outcome = "idle"
    if p_yes is not None and not (type(p_yes) in (int, float) and 0 <= p_yes <= 1):
        return None
    cost = fields.get("cost") or {}
    shared, own = cost.get("flops_vision", 0) + cost.get("flops_prefill", 0), cost.get("flops_question", 0)
    device_us = cost.get("device_us", 0)
    if not (type(shared) is type(own) is type(device_us) is int) or not (
        0 <= shared < 2**65 and 0 <= own < 2**64 and 0 <= device_us <= LARGEST
    ):
        return None
    return VerdictRow(
        tenant_of(tenant),
        camera,
        watch,
        (datetime.fromisoformat(start) - _EPOCH) // _MS,
        (datetime.fromisoformat(end) - _EPOCH) // _MS,
        _PLACES[outcome],
        float(p_yes) if answered and p_yes is not None else math.nan,
        float(shared),
        float(own),
        device_us,
    )


def _slow(value: bytes) -> VerdictRow | None:
    try:
        message = from_json(value, Verdict)
        verdict = verdict_of(message, Rule())
    except (WireError, RuleError):
        return None
    answered = message.outcome == Verdict.OUTCOME_ANSWERED and message.HasField("p_yes")
    return VerdictRow(
        tenant_of(message.tenant),
        message.camera,
        message.watch,
        verdict.start_ms,
        verdict.end_ms,
        OUTCOMES.index(verdict.outcome),
        message.p_yes if answered else math.nan,
        float(message.cost.flops_vision + message.cost.flops_prefill),
        float(message.cost.flops_question),
        message.cost.device_us,
    )
