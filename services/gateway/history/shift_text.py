"""Puts a report into sentences. They come from templates, so they say only what the report says."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, tzinfo
from typing import Final
from zoneinfo import ZoneInfo

from lookout.services.gateway.history.asked import PAUSED, UNSEEN
from lookout.text import clean
from lookout.v1.actions_pb2 import IncidentState
from lookout.v1.gateway_pb2 import IncidentView, ReportSentence, ShiftReport
from lookout.wire import CAMERA_HEALTH

#: maximum number of questions that get a separate sentence, and of cameras or incidents that a sentence names
_QUESTIONS: Final = 5
_NAMED: Final = 3
_DAY_S: Final = 86_400
_REASONS: Final = {UNSEEN: "nothing came", PAUSED: "the question was paused"}


@dataclass(frozen=True, slots=True)
class _Clock:
    """Formats times in a time zone, with the day if the report covers more than a day."""

    zone: tzinfo
    dated: bool

    def __call__(self, time_ms: float) -> str:
        moment = datetime.fromtimestamp(time_ms / 1000, self.zone)
        return f"{moment:%d %b %H:%M:%S}" if self.dated else f"{moment:%H:%M:%S}"


def sentences(report: ShiftReport, zone: str = "UTC") -> Iterator[ReportSentence]:
    """Yield sentences that describe a report.

    Args:
        report: The report, complete except for its sentences.
        zone: The time zone for times in the sentences.

    Yields:
        Sentences, each with the ids of the incidents that it is about.
    """
    at = _Clock(ZoneInfo(zone), report.until.seconds - report.since.seconds > _DAY_S)
    yield from _incidents(report, at)
    yield _watched(report, at)
    yield from _unset(report, at)
    if report.unusual:
        span = report.unusual[0]
        begin, end = at(span.begin_us / 1000), at(span.end_us / 1000)
        count = _count(len(report.unusual), "span looks", "spans look")
        strangest = f"{clean(span.camera, 100)}, {begin} to {end}"
        yield ReportSentence(text=f"{count} unusual for the time of day; the most unusual: {strangest}.")


def _incidents(report: ShiftReport, at: _Clock) -> Iterator[ReportSentence]:
    total = sum(hour.incidents for hour in report.hours)
    if not report.incidents:
        yield ReportSentence(text="No incident began.")
        return
    cameras = {incident.camera for incident in report.incidents}
    count = _count(max(total, len(report.incidents)), "incident", "incidents")
    where = _count(len(cameras), "camera", "cameras")
    limit = f"; this report lists the newest {len(report.incidents)}" if report.more_incidents else ""
    yield ReportSentence(text=f"{count} began on {where}{limit}.", incidents=_ids(report.incidents))
    by_question: dict[str, list[IncidentView]] = defaultdict(list)  # "": camera health
    for incident in report.incidents:
        by_question["" if incident.watch == CAMERA_HEALTH else incident.question].append(incident)
    for question, found in sorted(by_question.items(), key=lambda pair: -len(pair[1]))[:_QUESTIONS]:
        yield _of_question(question, found, at)
    yield from _open(report.incidents, at)
    busiest = max(report.hours, key=lambda hour: hour.incidents, default=None)
    if busiest is not None and len(report.hours) > 1 and 1 < busiest.incidents < total:
        begin_ms = busiest.start.ToMilliseconds()
        span = f"{at(begin_ms)} and {at(begin_ms + 3_600_000)}"
        yield ReportSentence(text=f"Most began between {span}: {busiest.incidents}.")


def _of_question(question: str, found: Sequence[IncidentView], at: _Clock) -> ReportSentence:
    cameras = Counter(clean(incident.camera, 100) for incident in found)
    where = _listed([f"{name} ({count})" for name, count in cameras.most_common()])
    if not question:
        return ReportSentence(text=f"Camera health: something was wrong with {where}.", incidents=_ids(found))
    best = max(found, key=lambda incident: incident.peak)
    surest = f"{best.peak:.0%}".replace("%", " %")
    peak = f"the model was surest ({surest}) on {clean(best.camera, 100)} at {at(_began_ms(best))}"
    text = f"“{clean(question, 300)}” was yes on {where}; {peak}."
    return ReportSentence(text=text, incidents=_ids(found))


def _open(incidents: Sequence[IncidentView], at: _Clock) -> Iterator[ReportSentence]:
    """Yield sentences about incidents that nobody has taken up, and about incidents that people called false
    alarms.
    """
    new = [incident for incident in incidents if incident.state == IncidentState.INCIDENT_STATE_NEW]
    wrong = [incident for incident in incidents if incident.HasField("right") and not incident.right]
    if new:
        named = _listed([f"{clean(incident.camera, 100)} at {at(_began_ms(incident))}" for incident in new])
        count = "Nobody has taken up" if len(new) == 1 else f"Nobody has taken up {len(new)} of them"
        yield ReportSentence(text=f"{count}: {named}.", incidents=_ids(new))
    if wrong:
        count = _count(len(wrong), "was called a false alarm", "were called false alarms")
        yield ReportSentence(text=f"{count}.", incidents=_ids(wrong))


def _watched(report: ShiftReport, at: _Clock) -> ReportSentence:
    watched_s = sum(hour.watched_s for hour in report.hours)
    lost_s = sum(hour.unwatched_s for hour in report.hours)
    if not watched_s + lost_s:
        return ReportSentence(text="Nothing was watched: no question has an answer in this time.")
    if not lost_s:
        return ReportSentence(text="Every question was answered all the time.")
    reasons: Counter[str] = Counter()
    for stretch in report.unwatched:
        reasons[_REASONS.get(stretch.reason, stretch.reason)] += round(stretch.seconds)
    why = _listed([f"{reason} {_span(seconds)}" for reason, seconds in reasons.most_common()])
    text = f"{_span(lost_s)} of {_span(watched_s + lost_s)} had no answer, summed over cameras and questions"
    longest = max(report.unwatched, key=lambda stretch: stretch.seconds, default=None)
    if longest is None:
        return ReportSentence(text=f"{text}.")
    begin, end = at(longest.start.ToMilliseconds()), at(longest.end.ToMilliseconds())
    span = f"since {begin}, still ongoing" if longest.ongoing else f"{begin} to {end}"
    where = f"{clean(longest.camera, 100)}, {span}"
    reason = _REASONS.get(longest.reason, longest.reason)
    if longest.said:
        reason = f"{reason} ({clean(longest.said, 300)})"
    return ReportSentence(text=f"{text}: {why}. The longest: {where}, {reason}.")


def _unset(report: ShiftReport, at: _Clock) -> Iterator[ReportSentence]:
    """Yield a sentence about cameras that were not yet set up when the range began."""
    late = [stretch for stretch in report.unset if not stretch.watch]
    if late:
        named = [f"{clean(stretch.camera, 100)} until {at(stretch.end.ToMilliseconds())}" for stretch in late]
        text = f"Not set up yet, and not counted above: {_listed(named)}."
        yield ReportSentence(text=text)


def _ids(incidents: Iterable[IncidentView]) -> list[str]:
    return [incident.id for incident in incidents]


def _began_ms(incident: IncidentView) -> int:
    """Return when an incident became visible (`raised`). The window that opened it begins earlier."""
    return (incident.raised if incident.HasField("raised") else incident.start).ToMilliseconds()


def _count(count: int, one: str, many: str) -> str:
    return f"{count} {one if count == 1 else many}"


def _listed(names: Sequence[str]) -> str:
    more = len(names) - _NAMED
    return ", ".join([*names[:_NAMED], *([f"{more} more"] if more > 0 else [])])


def _span(seconds: float) -> str:
    """Format a duration as the console does: below an hour in minutes and seconds, otherwise in hours and
    minutes.
    """
    whole = round(seconds)
    if whole < 3600:
        parts = [(whole // 60, "min"), (whole % 60, "s")]
    else:
        minutes = round(whole / 60)
        parts = [(minutes // 60, "h"), (minutes % 60, "min")]
    return " ".join(f"{count} {unit}" for count, unit in parts if count) or "0 s"
