"""`lookout backtest`: a question on the past before it is enabled."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated

import typer
from rich.progress import Progress

from lookout import models
from lookout.cli.connect import check_reachable, find_bootstrap, kafka_settings
from lookout.cli.model import ModelOption, find_model
from lookout.cli.options import BootstrapOption, CliError, PresetOption, SettingOption, asked
from lookout.cli.output import TerminalConsole, echo
from lookout.cli.times import parse_span
from lookout.cli.up import parse_settings
from lookout.cli.watches import (
    CameraOption,
    OfOption,
    ScheduleOption,
    ThresholdOption,
    ZoneOption,
    watch_rule,
)
from lookout.outside_text import clean
from lookout.v1.watches_pb2 import Watch
from lookout.wire import TOKENS

if TYPE_CHECKING:
    from lookout.backtest import Backtest

_LATEST_MS = 1 << 62


def backtest(
    question: Annotated[str, typer.Argument(help='A yes/no question: "Is anyone lying on the ground?"')],
    camera: CameraOption = None,
    since: Annotated[str, typer.Option(help="start, how long ago (90m, 24h, 2d), or a time.")] = "24h",
    until: Annotated[str, typer.Option(help="now, how long ago (15m, 6h, 2d), or a time.")] = "now",
    threshold: ThresholdOption = 0.5,
    of: OfOption = "1/1",
    schedule: ScheduleOption = None,
    zone: ZoneOption = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object.")] = False,
    model: ModelOption = None,
    preset: PresetOption = "default",
    setting: SettingOption = None,
    bootstrap: BootstrapOption = None,
) -> None:
    """Ask a question of what the cameras saw already: the incidents there would have been, and the cost.

    Windows are computed again out of Kafka, by the same chains as in the fleet. Give the settings of the
    fleet with --preset and --set.
    """
    if camera and not all(pattern.strip() for pattern in camera):
        raise CliError("--camera is empty: name a camera or a pattern, or leave it out for all cameras")
    rule = watch_rule(threshold=threshold, of=of, schedule=schedule, zone=zone)
    watch = Watch(id="backtest", version=1, question=asked(question), cameras=camera or [], rule=rule)
    begin_ms, end_ms = parse_span(since, until)
    folder = find_model(model)
    models.check_question(folder, watch.question)
    address = find_bootstrap(bootstrap)
    check_reachable(address, TOKENS.name)
    common, own = parse_settings(setting or [], preset)
    common = {**kafka_settings(address), **common}
    # After all that is refused at once: these import the models.
    from lookout.chains import PastScope
    from lookout.verification import fleet_backtest

    scope = PastScope(camera[0] if camera and len(camera) == 1 else "*", begin_ms or 0, end_ms or _LATEST_MS)
    with Progress(console=TerminalConsole(stderr=True), transient=True) as bar:
        task = bar.add_task("asking the past", total=None)
        past = fleet_backtest(
            folder,
            address,
            watch,
            scope,
            common=common,
            own=own,
            progress=lambda done, total: bar.update(task, completed=done, total=total),
        )
    if as_json:
        echo(json.dumps(past.as_json()))
        return
    _show(past)


def _show(past: Backtest) -> None:
    for incident in past.incidents:
        opened = datetime.fromtimestamp(incident.opened_ms / 1000, UTC).astimezone()
        seconds = (incident.end_ms - incident.opened_ms) / 1000
        end = incident.reason or "open at the end"
        echo(
            f"{opened:%Y-%m-%d %H:%M:%S}  {clean(incident.camera):<16}  {seconds:6.0f} s  "
            f"peak {incident.peak:.2f}  [{end}]"
        )
    counts = ", ".join(f"{count} {name}" for name, count in sorted(past.outcomes.items()))
    hours = past.watched_ms / 3_600_000
    echo(
        f"{_count(len(past.incidents), 'incident')} on {_count(len(past.cameras), 'camera')} "
        f"in {hours:.2f} hours "
        f"({past.incidents_a_camera_day:.1f} a day and camera); windows: {counts or 'none'}"
    )
    if past.dense_flops:
        echo(
            f"enabled, the question adds {past.question_share:.1%} to the cost of cameras that are watched; "
            f"this back-test computed {past.dense_share:.1%} of what asking every window whole costs"
        )


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"
