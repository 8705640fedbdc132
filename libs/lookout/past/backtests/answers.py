"""Joins the parts of a back-test into one answer."""

from __future__ import annotations

from array import array
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import groupby
from typing import Final, Protocol

import numpy as np

from lookout.past.backtests.results import Backtest, PastIncident
from lookout.rules import messages
from lookout.v1 import recordings_pb2
from lookout.v1.recordings_pb2 import (
    BacktestAnswer,
    BacktestCost,
    BacktestOutcome,
    OutcomeCount,
    PartOutcome,
    RecordingGap,
    RecordingPlan,
)
from lookout.v1.verdicts_pb2 import Evidence, Verdict
from lookout.wire.limits import JOB_INCIDENTS

#: maximum number of references to frames in an answer, per incident
_PICTURES: Final = 3
_COSTS: Final = tuple(field.name for field in BacktestCost.DESCRIPTOR.fields)

Hidden = Callable[[str, int, int], bool]
"""Returns whether any part of a camera's time range (Unix milliseconds) was erased."""


class Erased(Protocol):
    """Tells which time ranges were erased (`lookout.past.erasures.Fence`)."""

    def hides(self, camera: str, begin_us: int, end_us: int) -> object | None:
        """Return an erasure that overlaps a time range, or None."""
        ...


def hidden_by(fence: Erased) -> Hidden:
    """Return a function that asks a fence whether a time range was erased."""
    return lambda camera, begin_ms, end_ms: fence.hides(camera, 1000 * begin_ms, 1000 * end_ms) is not None


def nothing_hidden(camera: str, begin_ms: int, end_ms: int) -> bool:
    """Return False, for callers without erasures."""
    return False


def remove_hidden(outcome: BacktestOutcome, hidden: Hidden) -> None:
    """Remove verdicts whose time was erased from an outcome."""
    for stream in outcome.streams:
        verdicts = [verdict for verdict in stream.verdicts if not _is_hidden(stream.camera, verdict, hidden)]
        if len(verdicts) < len(stream.verdicts):
            del stream.verdicts[:]
            stream.verdicts.extend(verdicts)


def _is_hidden(camera: str, verdict: Verdict, hidden: Hidden) -> bool:
    return hidden(camera, verdict.start.ToMilliseconds(), verdict.end.ToMilliseconds())


def answer_of(
    plan: RecordingPlan,
    outcomes: Callable[[Sequence[int]], Iterable[PartOutcome]],
    *,
    hidden: Hidden = nothing_hidden,
) -> BacktestAnswer:
    """Return a back-test's answer: the incidents that the rule would have opened, scores of labels, and
    costs.

    Args:
        plan: The job's plan.
        outcomes: Given numbers of parts, returns the outcomes that exist; called once per partition.
        hidden: Returns whether any part of a time range was erased.
    """
    answer = BacktestAnswer()
    job = plan.job.backtest
    rule = messages.rule_of(job.watch.rule, job.watch.question)
    backtest = Backtest(rule, job.labels, most_incidents=JOB_INCIDENTS)
    first = 0
    for parts in plan.partition_parts:
        numbers = range(first, first + parts)
        first += parts
        windows: dict[str, CameraWindows] = defaultdict(CameraWindows)
        for outcome in outcomes(numbers):
            _take(answer, backtest.cost, outcome, windows, hidden)
        for camera in sorted(windows):
            for verdict in windows.pop(camera).rising():
                backtest.take(verdict, expired=not verdict.outcome)
    answer.MergeFrom(backtest_message(backtest))
    for place, label in reversed([*enumerate(job.labels)]):
        if hidden(label.camera, label.start.ToMilliseconds(), label.end.ToMilliseconds()):
            del answer.labels[place]
    return answer


def backtest_message(past: Backtest) -> BacktestAnswer:
    """Convert a back-test to a message, which omits its timeline and the files that could not be read."""
    return BacktestAnswer(
        incidents=map(incident_message, past.incidents),
        incidents_total=past.opened,
        cameras=len(past.cameras),
        watched_s=past.watched_ms / 1000,
        windows=[OutcomeCount(outcome=name, windows=n) for name, n in sorted(past.outcomes.items())],
        cost=past.cost,
        labels=past.labels,
        threshold=past.rule.threshold,
    )


class CameraWindows:
    """Collects a camera's verdicts, which may arrive in any order.

    Verdicts are stored serialised, because a week of a hundred cameras has millions of windows, which would
    take gigabytes as messages.
    """

    def __init__(self) -> None:
        self._epochs, self._windows = array("Q"), array("Q")
        self._begins, self._bytes = array("Q", [0]), bytearray()

    def add(self, verdict: Verdict) -> None:
        """Add a window's verdict."""
        self._epochs.append(verdict.epoch)
        self._windows.append(verdict.window)
        self._bytes += verdict.SerializeToString()
        self._begins.append(len(self._bytes))

    def rising(self) -> Iterator[Verdict]:
        """Yield one verdict per window, in order of time. If a window has several, the first one with an
        outcome is chosen."""
        epochs, windows = self._epochs, self._windows
        order = np.lexsort((np.asarray(windows), np.asarray(epochs))).tolist()
        for _, places in groupby(order, key=lambda place: (epochs[place], windows[place])):
            verdicts = [self._at(place) for place in places]
            yield next((verdict for verdict in verdicts if verdict.outcome), verdicts[-1])

    def _at(self, place: int) -> Verdict:
        return Verdict.FromString(bytes(self._bytes[self._begins[place] : self._begins[place + 1]]))


def _take(
    answer: BacktestAnswer,
    cost: BacktestCost,
    outcome: PartOutcome,
    windows: dict[str, CameraWindows],
    hidden: Hidden,
) -> None:
    """Add a part's outcome to the answer, and its verdicts to `windows`."""
    if outcome.reason:
        answer.unanswered.append(RecordingGap(samples=outcome.number, reason=outcome.reason))
        return
    past = outcome.backtest
    remove_hidden(past, hidden)
    answer.replanned += past.replanned
    answer.other_tenants[:] = sorted({*answer.other_tenants, *past.other_tenants})
    for name in _COSTS:
        setattr(cost, name, getattr(cost, name) + getattr(past.cost, name))
    for stream in past.streams:
        for verdict in stream.verdicts:
            verdict.camera, verdict.epoch = stream.camera, stream.epoch
            # A window may be in two parts, because retention can move the begin of its chain into the next
            # part.
            windows[stream.camera].add(verdict)


def incident_of(message: recordings_pb2.PastIncident) -> PastIncident:
    """Convert an answer's incident from its message."""
    return PastIncident(
        message.camera,
        message.opened.ToMilliseconds(),
        message.end.ToMilliseconds(),
        message.peak,
        message.windows,
        message.reason,
        tuple(frame.SerializeToString(deterministic=True) for frame in message.evidence),
        # Earlier releases do not set `raised`; use the begin of the first window instead.
        (message.raised if message.HasField("raised") else message.opened).ToMilliseconds(),
        message.score,
    )


def incident_message(past: PastIncident) -> recordings_pb2.PastIncident:
    """Convert an incident to a message."""
    message = recordings_pb2.PastIncident(
        camera=past.camera,
        peak=past.peak,
        windows=past.windows,
        score=past.score,
        reason=past.reason,
        evidence=[Evidence.FromString(frame) for frame in past.evidence[:_PICTURES]],
    )
    message.opened.FromMilliseconds(past.opened_ms)
    message.end.FromMilliseconds(past.end_ms)
    message.raised.FromMilliseconds(past.raised_ms)
    return message
