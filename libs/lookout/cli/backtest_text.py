"""Results of a back-test as text, JSON and a page."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lookout.cli.connect import fleet_masks, read_erasures
from lookout.cli.formats import count_text
from lookout.cli.options import CliError
from lookout.cli.output import TerminalConsole, echo, say
from lookout.past.backtests.answers import incident_of
from lookout.past.backtests.labels import LabelShare, Quality, quality, threshold_for
from lookout.text import clean
from lookout.v1.recordings_pb2 import BacktestAnswer, LabelScore, PastIncident, RecordingAnswers
from lookout.v1.watches_pb2 import Watch

if TYPE_CHECKING:
    from lookout.cli.report import PastFacts
    from lookout.past.backtests import PastIncident as Past, PastOutcome


def nothing_asked(cameras: Sequence[str]) -> str:
    """Return a message that says that a back-test found no window, so the absence of incidents means nothing.

    Args:
        cameras: Ids or patterns that the back-test was about; empty: all cameras.
    """
    named = (
        f"camera{'s' if len(cameras) > 1 else ''} {clean(', '.join(cameras), 200)}"
        if cameras
        else "any camera"
    )
    return (
        f"no window of {named} was asked: tokens.v1 has none from this time, or the names differ "
        "(`lookout coverage` shows the cameras that are watched)"
    )


def write_page(
    page: Path,
    bootstrap: str,
    facts: PastFacts,
    incidents: Sequence[Past],
    timeline: Mapping[str, Sequence[PastOutcome]] | None,
) -> None:
    """Write the page of a back-test of cameras, with pictures from Kafka."""
    from lookout.cli.report import Album, write_past_page

    news, album = TerminalConsole(stderr=True), Album(bootstrap, masks=fleet_masks(bootstrap))
    command = shlex.join(["lookout", *sys.argv[1:]])
    try:
        with news.status("fetching pictures"):
            written = write_past_page(page.resolve(), facts, incidents, timeline, album, command)
    finally:
        album.close()
    say(news, "page: {}", written)


def show_answer(
    bootstrap: str,
    answers: RecordingAnswers,
    *,
    as_json: bool,
    precision: float | None = None,
    page: Path | None = None,
    watch: Watch | None = None,
) -> None:
    """Print the answer of a back-test that ran as a job, without incidents that were erased in the meantime.

    Args:
        bootstrap: Kafka's address.
        answers: The job's answers.
        as_json: Print JSON.
        precision: Also find the threshold that reaches this precision.
        page: File to write a page to.
        watch: The watch that was asked; None: the request no longer exists.
    """
    from lookout.past.erasures.fence import Fence

    answer = answers.backtest
    fence = Fence(read_erasures(bootstrap).erasures.values())
    incidents = [
        past
        for past in answer.incidents
        if fence.hides(past.camera, past.opened.ToMicroseconds(), past.end.ToMicroseconds()) is None
    ]
    labels = [score for score in answer.labels if not any(own.whole for own in fence.of(score.camera))]
    if precision is not None and not labels:
        raise CliError("--precision: the back-test was asked without --labels")
    tell_answer(answer, incidents, labels, precision, as_json=as_json, job=answers.id)
    if page is not None:
        write_page(page, bootstrap, answer_facts(answer, watch), list(map(incident_of, incidents)), None)


def tell_answer(
    answer: BacktestAnswer,
    incidents: Sequence[PastIncident],
    labels: Sequence[LabelScore],
    precision: float | None,
    *,
    as_json: bool,
    job: str = "",
) -> None:
    """Print the answer of a back-test.

    Args:
        answer: The answer.
        incidents: The answer's incidents to show.
        labels: The answer's labels to count.
        precision: Also find the threshold that reaches this precision.
        as_json: Print JSON.
        job: The job's id; empty: the back-test ran in this process.
    """
    if as_json:
        facts = {"job": job} if job else {}
        facts |= _answer_json(answer, incidents) | _labels_json(labels, answer.threshold, precision)
        echo(json.dumps(facts))
    else:
        _show_answer(answer, incidents, labels, precision)


def answer_facts(answer: BacktestAnswer, watch: Watch | None) -> PastFacts:
    """Return the facts for the page of a back-test.

    Args:
        answer: The answer.
        watch: The watch that was asked; None: the request no longer exists.
    """
    from lookout.cli.report import PastFacts
    from lookout.rules import Rule, messages

    notices = [f"part {gap.samples} has no answer: {gap.reason}" for gap in answer.unanswered]
    if answer.replanned:
        notices.append(
            f"{count_text(answer.replanned, 'window')} planned with other settings, so answers may differ"
        )
    notices += [_other_tenant(camera) for camera in answer.other_tenants]
    if watch is None:
        question, rule = "a question whose request no longer exists", Rule(threshold=answer.threshold)
    else:
        question, rule = watch.question, messages.rule_of(watch.rule, watch.question)
    return PastFacts.of(answer, question, rule, notices)


def _show_answer(
    answer: BacktestAnswer,
    incidents: Sequence[PastIncident],
    labels: Sequence[LabelScore],
    precision: float | None,
) -> None:
    for past in incidents:
        _show_incident(
            past.camera, past.opened.ToMilliseconds(), past.end.ToMilliseconds(), past.peak, past.reason
        )
    unnamed = answer.incidents_total - len(answer.incidents)
    if unnamed:
        echo(f"and {count_text(unnamed, 'incident')} more")
    counts = ", ".join(f"{count.windows} {count.outcome}" for count in answer.windows)
    hours = answer.watched_s / 3600
    often = 24 * answer.incidents_total / hours if hours else 0.0
    if answer.cameras:
        echo(
            f"{count_text(answer.incidents_total, 'incident')} on {count_text(answer.cameras, 'camera')} "
            f"in {hours:.2f} hours ({often:.1f} per camera and day); windows: {counts or 'none'}"
        )
    cost = answer.cost
    if cost.flops_dense:
        live = max(1, cost.flops_windows)
        shares = cost.flops_question / live, cost.flops / live, cost.flops / cost.flops_dense
        _show_cost(*shares, cost.cpu_s, cost.device_s)
    if answer.replanned:
        echo(f"{count_text(answer.replanned, 'window')} planned with other settings, so answers may differ")
    for camera in answer.other_tenants:
        echo(clean(_other_tenant(camera)))
    for gap in answer.unanswered:
        echo(f"part {gap.samples} has no answer: {clean(gap.reason)}")
    if labels:
        _show_labels(labels, answer.threshold, precision)


def _show_cost(question: float, live: float, dense: float, cpu_s: float, device_s: float) -> None:
    echo(
        f"once enabled, the question adds {question:.1%} to the cost of watched cameras; this back-test "
        f"computed {live:.1%} of that cost, {dense:.1%} of the cost of computing every window in full"
    )
    device = f", {device_s:.1f} s of a GPU" if device_s else ""
    echo(f"it took {cpu_s:.1f} s of processor time{device}")


def _other_tenant(camera: str) -> str:
    return f"camera {camera} belongs to another tenant: a job reads only cameras of its own tenant"


def _labels_json(scores: Sequence[LabelScore], threshold: float, precision: float | None) -> dict[str, Any]:
    """Return the precision and recall of a question on labels, for JSON; empty without labels."""
    if not scores:
        return {}
    facts: dict[str, Any] = {
        "labels": len(scores),
        "labels_without_windows": sum(not score.HasField("score") for score in scores),
        "quality": quality(scores, threshold).as_json(),
    }
    if precision is not None:
        best = threshold_for(scores, precision)
        facts["for_precision"] = {"wanted": precision, "quality": None if best is None else best.as_json()}
    return facts


def _show_labels(scores: Sequence[LabelScore], threshold: float, precision: float | None) -> None:
    known = [score for score in scores if score.HasField("score")]
    wrong = sum(not score.right for score in known)
    echo(f"labels: {len(known) - wrong} right, {wrong} wrong, {len(scores) - len(known)} without a window")
    echo(_quality_text(quality(scores, threshold)))
    if precision is None:
        return
    best = threshold_for(scores, precision)
    if best is None:
        echo(f"no threshold reaches a precision of {precision:g} on these labels")
    else:
        echo(f"for a precision of {precision:g}: {_quality_text(best)}")


def _quality_text(own: Quality) -> str:
    return f"threshold {own.shown_threshold}: precision {_share(own.precision)}, recall {_share(own.recall)}"


def _share(share: LabelShare) -> str:
    if not share.total:
        return "unknown (no labels)"
    low, high = share.interval
    return f"{share.value:.2f} [{low:.2f}, {high:.2f}] of {share.total}"


def _answer_json(answer: BacktestAnswer, incidents: Sequence[PastIncident]) -> dict[str, Any]:
    cost, watched = answer.cost, answer.watched_s
    return {
        "incidents": [incident_of(past).as_json() for past in incidents],
        "incidents_total": answer.incidents_total,
        "incidents_a_camera_day": round(86_400 * answer.incidents_total / watched, 3) if watched else 0.0,
        "cameras": answer.cameras,
        "watched_s": round(watched, 3),
        "windows": {count.outcome: count.windows for count in answer.windows},
        "question_share": round(cost.flops_question / max(1, cost.flops_windows), 4),
        "share_of_live": round(cost.flops / max(1, cost.flops_windows), 4),
        "share_of_dense": round(cost.flops / max(1, cost.flops_dense), 4),
        "cpu_s": round(cost.cpu_s, 3),
        "device_s": round(cost.device_s, 3),
        "replanned": answer.replanned,
        "other_tenants": list(answer.other_tenants),
        "unanswered": [{"part": gap.samples, "reason": gap.reason} for gap in answer.unanswered],
    }


def _show_incident(camera: str, opened_ms: int, end_ms: int, peak: float, reason: str) -> None:
    opened = datetime.fromtimestamp(opened_ms / 1000, UTC).astimezone()
    echo(
        f"{opened:%Y-%m-%d %H:%M:%S}  {clean(camera):<16}  {(end_ms - opened_ms) / 1000:6.0f} s  "
        f"peak {peak:.2f}  [{reason or 'open at the end'}]"
    )
