"""`lookout backtest`: asks a question about the past before it is enabled."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.progress import Progress

from lookout.cli.backtest_text import answer_facts, nothing_asked, tell_answer, write_page
from lookout.cli.connect import check_reachable, find_bootstrap, kafka_settings
from lookout.cli.fleet_jobs import new_id, send_job
from lookout.cli.fleet_settings import settings_of_replay
from lookout.cli.formats import count_text
from lookout.cli.label import read_labels
from lookout.cli.model import AnywayOption, DeviceOption, ModelOption, admit_questions, find_model
from lookout.cli.options import (
    WEB_PAGES,
    BootstrapOption,
    CliError,
    JobTenantOption,
    PrecisionOption,
    PresetOption,
    SettingOption,
    asked,
    check_page,
    in_utf8,
    refuse_given,
)
from lookout.cli.output import TerminalConsole, echo
from lookout.cli.times import is_length, parse_span
from lookout.cli.up import parse_settings
from lookout.cli.watches import (
    AskedOption,
    CameraOption,
    GateOption,
    MotionOption,
    OfOption,
    ScheduleOption,
    ThresholdOption,
    ZoneOption,
    check_patterns,
    gate_of,
    watch_rule,
)
from lookout.past.backtests.answers import backtest_message
from lookout.rules import ASKED, check_watch
from lookout.v1.labels_pb2 import Label
from lookout.v1.recordings_pb2 import (
    BacktestJob,
    RecordingJob,
)
from lookout.v1.watches_pb2 import Watch
from lookout.wire import TOKENS, names_id
from lookout.wire.limits import JOB_LABELS

if TYPE_CHECKING:
    from lookout.past.backtests import Backtest

_LATEST_MS = 1 << 62
LabelsOption = Annotated[
    bool,
    typer.Option("--labels", help="Measure precision and recall on labels (`lookout label`)."),
]
AsJobOption = Annotated[
    bool, typer.Option("--fleet", help="Run as a job of the fleet, on all its recordings pods.")
]
JobIdOption = Annotated[
    str | None, typer.Option("--id", help="With --fleet: the job's id.  [default: a new one]")
]
PastPageOption = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE", help="Write a page (.html) of the incidents: pictures, how often, and the cost."
    ),
]

_OWN = ("model", "device", "preset", "setting", "anyway")


def backtest(
    context: typer.Context,
    question: Annotated[str, typer.Argument(help='A yes/no question: "Is anyone lying on the ground?"')],
    camera: CameraOption = None,
    since: Annotated[str, typer.Option(help="start, how long ago (90m, 24h, 2d), or a time.")] = "24h",
    until: Annotated[str, typer.Option(help="now, how long ago (15m, 6h, 2d), or a time.")] = "now",
    threshold: ThresholdOption = 0.5,
    of: OfOption = "1/1",
    schedule: ScheduleOption = None,
    zone: ZoneOption = None,
    gate: GateOption = "",
    gate_motion: MotionOption = False,
    asked_of: AskedOption = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object.")] = False,
    model: ModelOption = None,
    device: DeviceOption = None,
    preset: PresetOption = "default",
    setting: SettingOption = None,
    anyway: AnywayOption = False,
    bootstrap: BootstrapOption = None,
    fleet: AsJobOption = False,
    wait: Annotated[bool, typer.Option("--wait", help="With --fleet: wait until the job has ended.")] = False,
    identity: JobIdOption = None,
    tenant: JobTenantOption = "",
    labels: LabelsOption = False,
    precision: PrecisionOption = None,
    page: PastPageOption = None,
) -> None:
    """Back-test a question: which incidents it would have raised in the past, and what it costs.

    Windows are computed again from Kafka, in the same chains as in the fleet: with --fleet by the fleet's
    settings, without it by those of --preset and --set.
    """
    check_patterns(camera)
    check_page(page, WEB_PAGES)
    rule = watch_rule(threshold=threshold, of=of, schedule=schedule, zone=zone)
    cameras = [in_utf8("--camera", pattern) for pattern in camera or ()]
    watch = Watch(id="backtest", version=1, question=asked(question), cameras=cameras, rule=rule)
    watch.MergeFrom(Watch(gate=gate_of(gate, gate_motion), asked=ASKED[asked_of or "windows"]))
    job = _job(watch, *parse_span(since, until), identity, tenant)
    if fleet:
        refuse_given(context, _OWN, "cannot be combined with --fleet, which uses the fleet's own")
        ago = [name for name, text in (("since", since), ("until", until)) if is_length(text)]
        _ask_fleet(job, bootstrap, bool(identity), ago, labels, precision, wait, page, as_json)
        return
    refuse_given(context, ("wait", "identity", "tenant"), "works only with a fleet: give --fleet as well")
    if precision is not None and not labels:
        raise CliError("--precision needs --labels")
    folder = find_model(model)
    settings = settings_of_replay(folder, *parse_settings(setting or [], preset, device))
    admit_questions(folder, [watch.question], anyway=anyway)
    address = find_bootstrap(bootstrap)
    past = _ask_here(folder, address, job.backtest, settings, labels)
    answer = backtest_message(past)
    tell_answer(answer, answer.incidents, answer.labels, precision, as_json=as_json)
    if not past.cameras:
        raise CliError(nothing_asked(watch.cameras))
    if page is not None:
        write_page(page, address, answer_facts(answer, watch), past.incidents, past.timeline)


def _ask_fleet(
    job: RecordingJob,
    bootstrap: str | None,
    named: bool,
    ago: Sequence[str],
    labels: bool,
    precision: float | None,
    wait: bool,
    page: Path | None,
    as_json: bool,
) -> None:
    """Run the back-test as a job of a fleet; `ago` names the times that were given relative to now."""
    if labels:
        job.backtest.labels.extend(_newest(_labels_of(find_bootstrap(bootstrap), job.backtest)))
    if precision is not None and not (labels and wait):
        raise CliError("--precision needs --labels and --wait, or later `lookout backtests show`")
    how = {"wait": wait, "as_json": as_json}
    send_job(job, named, bootstrap, **how, page=page, precision=precision, moving=ago)


def _ask_here(
    folder: Path,
    address: str,
    job: BacktestJob,
    settings: dict[str, dict[str, str]],
    labelled: bool,
) -> Backtest:
    """Run the back-test in this process."""
    check_reachable(address, TOKENS.name)
    labels = _labels_of(address, job) if labelled else []
    # Imported after the quick checks, because models take seconds to import.
    from lookout.models.families.inference import inference_only
    from lookout.past.backtests.jobs import scope_of
    from lookout.past.verification import fleet_backtest

    with inference_only(), Progress(console=TerminalConsole(stderr=True), transient=True) as bar:
        task = bar.add_task("asking the past", total=None)
        return fleet_backtest(
            folder,
            address,
            job.watch,
            scope_of(job),
            common=kafka_settings(address),
            own=settings,
            labels=labels,
            progress=lambda done, total: bar.update(task, completed=done, total=total),
        )


def _job(
    watch: Watch, begin_ms: int | None, end_ms: int | None, identity: str | None, tenant: str
) -> RecordingJob:
    check_watch(watch)  # checked here, too, because a question that is tried may be enabled later
    name, owner = in_utf8("--id", identity or new_id()), in_utf8("--tenant", tenant)
    job = RecordingJob(id=name, tenant=owner, backtest=BacktestJob(watch=watch))
    if begin_ms is not None:
        job.backtest.since.FromMilliseconds(begin_ms)
    if end_ms is not None:
        job.backtest.until.FromMilliseconds(end_ms)
    return job


def _labels_of(bootstrap: str, past: BacktestJob) -> list[Label]:
    """Return the labels of a back-test's question, cameras and time, the newest last.

    Raises:
        CliError: There is no label for them.
    """
    standing = read_labels(bootstrap)
    patterns = past.watch.cameras or ("*",)
    since_ms = past.since.ToMilliseconds() if past.HasField("since") else 0
    until_ms = past.until.ToMilliseconds() if past.HasField("until") else _LATEST_MS
    labels = [
        entry
        for entry in standing
        if entry.question == past.watch.question
        and any(names_id(pattern, entry.camera) for pattern in patterns)
        and since_ms <= entry.end.ToMilliseconds() < until_ms
    ]
    if not labels:
        raise CliError(
            f"--labels: labels.v1 has {count_text(len(standing), 'label')}, but none for this question, "
            "these cameras and this time; write one with `lookout label INCIDENT right|wrong`"
        )
    for entry in labels:
        entry.ClearField("labelled_by")
        entry.ClearField("question")
    return sorted(labels, key=lambda entry: entry.end.ToMilliseconds())


def _newest(labels: list[Label]) -> list[Label]:
    """Return the newest labels, but not more than a job accepts."""
    if len(labels) > JOB_LABELS:
        echo(
            f"--labels: a back-test takes the newest {JOB_LABELS} of {len(labels)} labels; for the "
            f"others, ask about a shorter time",
            err=True,
        )
    return labels[-JOB_LABELS:]
