"""Sends jobs to a fleet, waits for them and prints their answers."""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from confluent_kafka import Message
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from lookout.cli.connect import check_reachable, find_bootstrap, reading, send_and_confirm
from lookout.cli.options import CliError, Position, in_utf8
from lookout.cli.output import TerminalConsole, echo, say
from lookout.cli.signals import ending_quietly
from lookout.text import clean, public_url
from lookout.v1.recordings_pb2 import RecordingAnswers, RecordingJob
from lookout.wire import ANSWERS, RECORDINGS, WireError, from_json, key_text, to_json

news = TerminalConsole(stderr=True)
#: seconds without an answer after which a hint about possible reasons is printed
_SILENT_S = 20.0
OVER = {
    RecordingAnswers.STATE_DONE,
    RecordingAnswers.STATE_REFUSED,
    RecordingAnswers.STATE_CANCELLED,
    RecordingAnswers.STATE_EXPIRED,
}


@dataclass(frozen=True, slots=True)
class Job:
    """A job's request and newest answers; each is None if it does not exist."""

    request: RecordingJob | None = None
    answers: RecordingAnswers | None = None

    @property
    def state(self) -> str:
        """The job's state in one word."""
        if self.answers is not None:
            return _state(self.answers)
        return "cancelled" if self.request is not None and self.request.cancelled else "waiting"

    @property
    def group(self) -> str:
        """The command group that the job belongs to: `recordings` or `backtests`."""
        past = self.answers is not None and self.answers.HasField("backtest")
        return "backtests" if past or (self.request and self.request.HasField("backtest")) else "recordings"

    @property
    def refusal(self) -> RecordingAnswers | None:
        """The job's answers if it was rejected; otherwise None. A corrected request may reuse the id."""
        refused = self.answers is not None and self.answers.state == RecordingAnswers.STATE_REFUSED
        return self.answers if refused else None


def fleet_job(
    source: str,
    questions: Sequence[str],
    options: Mapping[str, Any],
    identity: str | None,
    tenant: str,
    begins: datetime | None = None,
) -> RecordingJob:
    """Return a request about a recording or a folder of recordings.

    Raises:
        CliError: A relative path does not exist.
    """
    from lookout.recordings.analysis import AnalysisSettings
    from lookout.recordings.analysis.settings import with_options
    from lookout.recordings.jobs import settings_message
    from lookout.wire.begins import set_begin

    settings = settings_message(with_options(AnalysisSettings(), options))
    set_begin(settings, begins)
    name, owner = in_utf8("--id", identity or new_id()), in_utf8("--tenant", tenant)
    return RecordingJob(id=name, tenant=owner, uris=[uri_of(source)], questions=questions, settings=settings)


def send_job(
    job: RecordingJob,
    named: bool,
    bootstrap: str | None,
    *,
    wait: bool,
    page: Path | None = None,
    as_json: bool = False,
    precision: float | None = None,
    moving: Sequence[str] = (),
) -> None:
    """Send a request; with `wait`, wait for its answers and print them.

    Args:
        job: The request; its time is set here.
        named: Whether the user gave the id, so that a job with this id may exist already.
        bootstrap: Kafka's address.
        wait: Whether to wait until the job has ended.
        page: File to write a page to.
        as_json: Print JSON.
        precision: For a back-test: also find the threshold that reaches this precision.
        moving: Fields of a back-test (`since`, `until`) that were given relative to now. If the job already
            exists, its values are used instead.

    Raises:
        CliError: The job is invalid, its id belongs to another request, or Kafka rejects it.
    """
    from lookout.recordings.jobs import JobError, check_job, job_digest

    if page is not None and not wait:
        raise CliError("--page needs --wait: the page is written from the answers")
    job.requested.GetCurrentTime()
    try:
        check_job(job)
    except JobError as error:
        raise CliError(str(error)) from None
    where = find_bootstrap(bootstrap)
    standing = read_jobs(where).get(job.id) if named else None
    refusal = standing.refusal if standing is not None else None
    if standing is not None and refusal is None:
        if standing.request is not None:
            take_times(job, standing.request, moving)
        if standing.request is None or job_digest(standing.request) != job_digest(job):
            raise CliError(f"job {clean(job.id)} already exists and asks something else: give another --id")
    else:
        check_reachable(where, RECORDINGS.name)
        send_and_confirm(where, RECORDINGS.name, {job.id: to_json(job)})
    if not wait:
        echo(json.dumps({"job": job.id}) if as_json else job.id)
        say(news, "lookout {} show {} --wait", Job(job).group, job.id)
        return
    tell(where, awaited(where, job.id, after=refusal), page=page, as_json=as_json, precision=precision)


def take_times(job: RecordingJob, standing: RecordingJob, names: Sequence[str]) -> None:
    """Copy an earlier, equal request's times to a back-test, because "24h ago" meant a different moment then.

    Args:
        job: The new request.
        standing: The earlier request.
        names: Fields to copy: `since`, `until`.
    """
    for name in names:
        if standing.backtest.HasField(name):  # type: ignore[arg-type]
            getattr(job.backtest, name).CopyFrom(getattr(standing.backtest, name))


def new_id() -> str:
    """Return a new job id."""
    return f"{time.strftime('%Y-%m-%d')}-{secrets.token_hex(4)}"


def uri_of(source: str) -> str:
    """Return a recording's URI for the fleet: a URL unchanged, a path as `file://`.

    Raises:
        CliError: A relative path does not exist.
    """
    if "://" in source or source.lower().startswith("file:"):
        return source
    path = Path(source)
    if not path.is_absolute() and not path.exists():
        raise CliError(
            f"there is no file or folder {source}; give an absolute path if only the fleet can read it"
        )
    return path.resolve().as_uri() if path.exists() else path.as_uri()


def read_jobs(bootstrap: str) -> dict[str, Job]:
    """Return every job in the topics, by id."""
    check_reachable(bootstrap, RECORDINGS.name)
    requests: dict[str, RecordingJob] = {}
    answers: dict[str, RecordingAnswers] = {}
    with reading(bootstrap, [RECORDINGS.name, ANSWERS.name], Position(oldest=True)) as reader:
        for message in reader.until_now():
            key, value = key_text(message.key()), message.value()
            rows: dict[str, Any] = requests if message.topic() == RECORDINGS.name else answers
            kind = RecordingJob if rows is requests else RecordingAnswers
            if value is None:
                rows.pop(key, None)
                continue
            try:
                rows[key] = from_json(value, kind)
            except WireError:
                continue  # reported as a dead letter by the service
    return {key: Job(requests.get(key), answers.get(key)) for key in requests | answers}


def awaited(bootstrap: str, identity: str, after: RecordingAnswers | None = None) -> RecordingAnswers:
    """Wait until a job has ended; return its answers. Progress is printed on standard error.

    Ctrl-C ends the wait, not the job.

    Args:
        bootstrap: Kafka's address.
        identity: The job's id.
        after: Answers to an earlier request with the same id, which do not count.
    """
    hint_at = time.monotonic() + _SILENT_S
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with (
        ending_quietly(),
        reading(bootstrap, [ANSWERS.name], Position(oldest=True)) as reader,
        Progress(*columns, console=news, transient=True) as bar,
    ):
        task = bar.add_task("waiting for other jobs", total=None)
        answers: RecordingAnswers | None = None
        for message in reader.until_now():  # skip answers to an earlier request
            answers = _answers_in(message, identity) or answers
        while True:
            if answers is not None and answers != after:
                if answers.state in OVER:
                    return answers
                hint_at = float("inf")
                bar.update(task, description="parts", completed=answers.done, total=answers.parts)
            if time.monotonic() > hint_at:
                hint_at = float("inf")
                hint = "no answer yet: does the fleet run recordings (`lookout up --recordings FOLDER`)?"
                say(bar.console, "[yellow]![/] {}", hint)
            answers = _answers_in(reader.poll(0.2), identity)


def _answers_in(message: Message | None, identity: str) -> RecordingAnswers | None:
    """Return the answers in a record; None if they are about another job or invalid."""
    if message is None or key_text(message.key()) != identity:
        return None
    try:
        return from_json(message.value() or b"", RecordingAnswers)
    except WireError:
        return None


def tell(
    bootstrap: str,
    answers: RecordingAnswers,
    *,
    page: Path | None = None,
    as_json: bool = False,
    precision: float | None = None,
) -> None:
    """Print a job's answers.

    Raises:
        CliError: The job was not completed, a recording could not be read, or a back-test found no window.
    """
    from lookout.cli.recording_text import show
    from lookout.recordings.jobs import analysis_of

    if answers.HasField("backtest"):
        from lookout.cli.backtest_text import nothing_asked, show_answer

        empty = not answers.backtest.cameras
        request = read_jobs(bootstrap)[answers.id].request if page is not None or empty else None
        watch = request.backtest.watch if request is not None else None
        show_answer(bootstrap, answers, as_json=as_json, precision=precision, page=page, watch=watch)
        if empty and answers.state == RecordingAnswers.STATE_DONE and not answers.backtest.unanswered:
            raise CliError(nothing_asked(watch.cameras if watch is not None else ()))
    refused = [
        (public_url(recording.uri), recording.reason) for recording in answers.recordings if recording.reason
    ]
    analyses = [analysis_of(recording) for recording in answers.recordings if not recording.reason]
    answered = f"answered by a fleet as job {answers.id}"
    for analysis in analyses:
        if as_json:
            echo(json.dumps(analysis.to_dict()))
        else:
            show(analysis, answered)
    for uri, reason in refused:
        say(news, "[yellow]skipped[/] {}", reason if reason.startswith(uri) else f"{uri}: {reason}")
    if page is not None and (analyses or refused):
        from lookout.cli.answer_files import write_answers

        # The page's pictures are read on this machine, if it has the same files.
        here = {analysis.source: unquote(urlsplit(analysis.source).path) for analysis in analyses}
        for path in write_answers(page, analyses, here, refused=refused, answered=answered):
            say(news, "page: {}", path)
    if answers.state == RecordingAnswers.STATE_DONE and not refused:
        return
    if answers.state == RecordingAnswers.STATE_DONE:
        raise CliError(f"{len(refused)} of {len(answers.recordings)} recordings could not be read")
    why = answers.reason or f"{answers.done} of {answers.parts} parts have an outcome"
    if answers.state == RecordingAnswers.STATE_REFUSED and not answers.reason:
        why = "none of its recordings can be read"
    raise CliError(f"job {clean(answers.id)} {_state(answers)}: {why}")


def _state(answers: RecordingAnswers) -> str:
    name = (
        RecordingAnswers.State.Name(answers.state)
        if answers.state in RecordingAnswers.State.values()
        else "?"
    )
    return name.removeprefix("STATE_").lower()
