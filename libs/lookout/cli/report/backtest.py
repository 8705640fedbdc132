"""The page of a back-test: the incidents it would have raised, with pictures, how often, and the cost."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np

from lookout.cli.formats import count_text
from lookout.cli.report.page import PageFacts, write_page
from lookout.cli.report.pictures import FootageAlbum, Pictures
from lookout.cli.report.run import (
    CameraRun,
    EvidenceFrame,
    FleetRecord,
    Point,
    ReportedIncident,
    place_of,
)
from lookout.past.backtests import Backtest, PastIncident, PastOutcome, clip_cameras
from lookout.past.backtests.answers import backtest_message
from lookout.rules import Outcome, Rule
from lookout.v1.recordings_pb2 import BacktestAnswer
from lookout.v1.verdicts_pb2 import Evidence, Verdict

TITLE = "What the question would have reported"
_WATCH = "backtest"
_OUTCOMES = {
    Outcome.ANSWERED: Verdict.OUTCOME_ANSWERED,
    Outcome.IDLE: Verdict.OUTCOME_ANSWERED,  # a repeated answer, because nothing had changed
    Outcome.GAP: Verdict.OUTCOME_GAP,
    Outcome.SKIPPED: Verdict.OUTCOME_SKIPPED,
    Outcome.DEGRADED: Verdict.OUTCOME_DEGRADED,
    Outcome.GATED: Verdict.OUTCOME_GATED,
}


@dataclasses.dataclass(frozen=True, slots=True)
class PastFacts:
    """Facts of a back-test that the page shows in addition to its incidents.

    Attributes:
        question: The question.
        rule: When answers become an incident.
        incidents: Number of incidents that the question would have raised; the page may show fewer.
        cameras: Cameras with a window.
        watched_s: Seconds that were answered, all cameras together.
        windows: Number of windows by outcome.
        question_share: The question's share of the cost of watched cameras; None: unknown.
        dense_share: The computed work as a share of computing every window in full; None: unknown.
        notices: Further notes for the reader.
    """

    question: str
    rule: Rule
    incidents: int
    cameras: int
    watched_s: float
    windows: Mapping[str, int]
    question_share: float | None = None
    dense_share: float | None = None
    notices: Sequence[str] = ()

    @classmethod
    def of(cls, answer: BacktestAnswer, question: str, rule: Rule, notices: Sequence[str] = ()) -> PastFacts:
        """Return the facts of a back-test's answer.

        Args:
            answer: The answer.
            question: The question.
            rule: When answers become an incident.
            notices: Notes for the reader.
        """
        cost = answer.cost
        return cls(
            question,
            rule,
            answer.incidents_total,
            answer.cameras,
            answer.watched_s,
            {count.outcome: count.windows for count in answer.windows},
            cost.flops_question / max(1, cost.flops_windows) if cost.flops_dense else None,
            cost.flops / cost.flops_dense if cost.flops_dense else None,
            notices,
        )


def write_clip_page(
    path: Path, past: Backtest, clips: str | Path | Iterable[str | Path], question: str, command: str
) -> Path:
    """Write the page of a back-test of files, with pictures from them, and return its path.

    Args:
        path: File to write.
        past: The result of `lookout.past.backtests.clip_backtest`.
        clips: The files and folders.
        question: The question.
        command: The command that made the page.
    """
    album = FootageAlbum(clip_cameras(clips))
    unread = [f"{file} could not be read to its end: {reason}" for file, reason in past.unread.items()]
    facts = PastFacts.of(backtest_message(past), question, past.rule, unread)
    return write_past_page(path, facts, past.incidents, past.timeline, album, command, wall=False)


def write_past_page(
    path: Path,
    facts: PastFacts,
    incidents: Sequence[PastIncident],
    timeline: Mapping[str, Sequence[PastOutcome]] | None,
    album: Pictures,
    command: str,
    *,
    wall: bool = True,
) -> Path:
    """Write the page of a back-test, and return its path.

    Args:
        path: File to write.
        facts: The back-test's facts.
        incidents: The incidents that it shows.
        timeline: Windows by camera; None: the page has no curves.
        album: The source of pictures.
        command: The command that made the page.
        wall: Whether times are Unix milliseconds; otherwise they are milliseconds within a file.
    """
    run = past_record(facts, incidents, timeline or {}, wall=wall)
    return write_page(path, run, album, _page_facts(facts, len(incidents), timeline is not None, command))


def past_record(
    facts: PastFacts,
    incidents: Sequence[PastIncident],
    timeline: Mapping[str, Sequence[PastOutcome]],
    *,
    wall: bool,
) -> FleetRecord:
    """Return a back-test as the record of a fleet with one watch; each camera is one epoch on its clock."""
    run = FleetRecord(questions={_WATCH: facts.question}, thresholds={_WATCH: facts.rule.threshold})
    for camera in sorted({*timeline, *(past.camera for past in incidents)}):
        own = [past for past in incidents if past.camera == camera]
        run.cameras[camera] = _camera(camera, facts.question, own, timeline.get(camera, ()), wall)
    return run


def _camera(
    name: str, question: str, incidents: Sequence[PastIncident], windows: Sequence[PastOutcome], wall: bool
) -> CameraRun:
    begin_ms = min([past.opened_ms for past in incidents] + [window.start_ms for window in windows])
    end_ms = max([past.end_ms for past in incidents] + [window.end_ms for window in windows])
    begin_ms = begin_ms if wall else 0
    camera = CameraRun(name, begin_ms=begin_ms if wall else None)
    camera.epochs, camera.walls_us = {0: 1000 * (end_ms - begin_ms)}, {0: 1000 * begin_ms}
    camera.points[_WATCH] = [
        Point(
            0,
            number,
            1000 * (window.start_ms - begin_ms),
            1000 * (window.end_ms - begin_ms),
            _OUTCOMES[window.outcome],
            window.p_yes,
            "",
            1.0,
        )
        for number, window in enumerate(windows)
    ]
    for number, past in enumerate(incidents):
        frames = [Evidence.FromString(frame) for frame in past.evidence]
        times_us = [camera.stream_us(0, frame.time.ToMilliseconds()) for frame in frames]
        camera.incidents[f"{name}-{number}"] = ReportedIncident(
            f"{name}-{number}",
            _WATCH,
            question,
            0,
            past.raised_ms,  # not its first window's begin, which may be within an earlier incident
            past.end_ms,
            past.peak,
            past.peak,
            closed=past.reason or None,
            evidence=times_us,
        )
        if frames:
            camera.shots.append(_shot(frames[0], times_us[0], number))
    return camera


def _shot(frame: Evidence, time_us: int, number: int) -> EvidenceFrame:
    """Return an incident's best frame in the page's form, without a mask of computed parts."""
    unknown = np.zeros((0, 0), np.bool_)
    return EvidenceFrame(0, time_us, number, False, unknown, place_of(frame.record), frame.row)


def _length(seconds: float) -> str:
    return f"{seconds / 3600:.1f} hours" if seconds >= 3600 else f"{seconds / 60:.1f} minutes"


def _page_facts(facts: PastFacts, shown: int, curves: bool, command: str) -> PageFacts:
    rule, hours = facts.rule, facts.watched_s / 3600
    often = 24 * facts.incidents / hours if hours else 0.0
    tiles = {"incidents per camera and day": f"{often:.1f}"}
    if facts.question_share is not None and facts.dense_share is not None:
        tiles["is what the question adds to the cost of watched cameras"] = f"{facts.question_share:.1%}"
        tiles["of the cost of computing every window in full"] = f"{facts.dense_share:.1%}"
    notices = list(facts.notices)
    if more := facts.incidents - shown:
        notices.append(f"{count_text(more, 'more incident')} are not on this page")
    if not curves:
        notices.append("the answers of a job have no curves: p(yes) of each window is not on this page")
    notices.append(
        "if a camera has many incidents, only the strongest have pictures; a picture is gone if its record "
        "is past its retention, or its footage can no longer be read"
    )
    counts = ", ".join(f"{count} {name}" for name, count in sorted(facts.windows.items()))
    return PageFacts(
        TITLE,
        command,
        facts={
            "rule": f"p(yes) {rule.threshold:g} in {rule.k} of {rule.n} windows",
            "windows": counts or "none",
        },
        notices=notices,
        lead=f"“{facts.question}” asked of {_length(facts.watched_s)} of "
        f"{count_text(facts.cameras, 'camera')}.",
        tiles=tiles,
    )
