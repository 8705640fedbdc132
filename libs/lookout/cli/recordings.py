"""`lookout recordings` and `lookout backtests`: jobs that a fleet answers."""

from __future__ import annotations

import json
from typing import Annotated

import typer
from rich.table import Table

from lookout.cli.connect import find_bootstrap, send_and_confirm
from lookout.cli.fleet_jobs import OVER, Job, awaited, read_jobs, tell
from lookout.cli.options import (
    PAGES,
    WEB_PAGES,
    BootstrapOption,
    CliError,
    PageOption,
    PrecisionOption,
    check_page,
)
from lookout.cli.output import TerminalConsole, echo, escaped, say
from lookout.text import clean, public_url
from lookout.v1.recordings_pb2 import RecordingAnswers, RecordingJob
from lookout.wire import RECORDINGS, tenant_of, to_json

app = typer.Typer(help="Manage jobs about recordings: list, show, cancel.", no_args_is_help=True)
backtests = typer.Typer(help="Manage back-tests of a fleet: list, show, cancel.", no_args_is_help=True)
out = TerminalConsole()
news = TerminalConsole(stderr=True)

JobArgument = Annotated[str, typer.Argument(metavar="JOB", help="The job's id.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON.")]


@app.command("list")
def list_recordings(bootstrap: BootstrapOption = None, as_json: JsonOption = False) -> None:
    """List jobs about recordings, the newest last."""
    _list(find_bootstrap(bootstrap), "recordings", as_json)


@backtests.command("list")
def list_backtests(bootstrap: BootstrapOption = None, as_json: JsonOption = False) -> None:
    """List back-tests, the newest last."""
    _list(find_bootstrap(bootstrap), "backtests", as_json)


def _list(bootstrap: str, group: str, as_json: bool) -> None:
    jobs = read_jobs(bootstrap)
    ordered = sorted(
        (row for row in jobs.items() if row[1].group == group), key=lambda row: _requested(row[1])
    )
    if as_json:
        for identity, job in ordered:
            tenant = None if job.request is None else tenant_of(job.request.tenant)
            echo(json.dumps({"job": identity, "tenant": tenant, "state": job.state, **_counts(job)}))
        return
    table = Table(box=None, header_style="bold", pad_edge=False)
    about = "recordings" if group == "recordings" else "cameras"
    for name in ("job", "tenant", "state", "parts", about, "questions"):
        # An id stays on one line, so that it can be copied; a generated id has 19 characters.
        width = min(32, max(map(len, jobs), default=0)) if name == "job" else None
        table.add_column(name, overflow="fold", min_width=width)
    for identity, job in ordered:
        counts = _counts(job)
        parts = f"{counts['done']} of {counts['parts']}" if job.answers is not None else ""
        request = job.request or RecordingJob()
        watch = request.backtest.watch
        uris = ", ".join([public_url(uri) for uri in request.uris] or watch.cameras or ["all"])
        table.add_row(
            escaped(identity, 100),
            escaped(tenant_of(request.tenant), 100) if job.request is not None else "",
            job.state,
            parts,
            escaped(uris, 200),
            escaped(" ".join(request.questions) or watch.question, 200),
        )
    out.print(table if ordered else "no jobs")


@app.command("show")
@backtests.command("show")
def show_job(
    identity: JobArgument,
    wait: Annotated[bool, typer.Option("--wait", help="Wait until it has ended.")] = False,
    page: PageOption = None,
    precision: PrecisionOption = None,
    as_json: JsonOption = False,
    bootstrap: BootstrapOption = None,
) -> None:
    """Show a job's answers, or its progress."""
    where = find_bootstrap(bootstrap)
    job = _known(where, identity)
    check_page(page, WEB_PAGES if job.group == "backtests" else PAGES)
    if wait and (job.answers is None or job.answers.state not in OVER):
        tell(where, awaited(where, identity), page=page, as_json=as_json, precision=precision)
        return
    if job.answers is not None and job.answers.state in OVER:
        tell(where, job.answers, page=page, as_json=as_json, precision=precision)
        return
    counts = _counts(job)
    if as_json:
        echo(json.dumps({"job": identity, "state": job.state, **counts}))
    else:
        say(out, "{}: {}, {} of {} parts", identity, job.state, counts["done"], counts["parts"])


@app.command("cancel")
@backtests.command("cancel")
def cancel_job(identity: JobArgument, bootstrap: BootstrapOption = None) -> None:
    """Cancel a job. Answers that it already has are kept."""
    where = find_bootstrap(bootstrap)
    job = _known(where, identity)
    if job.answers is not None and job.answers.state in OVER:
        raise CliError(f"job {clean(identity)} has already ended ({job.state})")
    if job.request is None:
        raise CliError(f"job {clean(identity)} cannot be cancelled, because its request no longer exists")
    job.request.cancelled = True
    send_and_confirm(where, RECORDINGS.name, {identity: to_json(job.request)})
    say(out, "job {} is cancelled", identity)


def _known(bootstrap: str, identity: str) -> Job:
    """Return the job with an id.

    Raises:
        CliError: No job has this id.
    """
    if (job := read_jobs(bootstrap).get(identity)) is None:
        raise CliError(
            f"there is no job {clean(identity, 100)}: `lookout recordings list` and `lookout backtests list` "
            "show those that are known"
        )
    return job


def _counts(job: Job) -> dict[str, int]:
    answers = job.answers or RecordingAnswers()
    return {"done": answers.done, "parts": answers.parts}


def _requested(job: Job) -> int:
    moment = job.request.requested if job.request is not None else (job.answers or RecordingAnswers()).updated
    return moment.ToMilliseconds()
