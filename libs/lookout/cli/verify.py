"""`lookout verify`: recomputes committed verdicts from Kafka."""

from __future__ import annotations

import json
from typing import Annotated

import typer
from rich.progress import Progress

from lookout.cli.connect import check_reachable, find_bootstrap, kafka_settings
from lookout.cli.fleet_settings import settings_of_replay
from lookout.cli.model import DeviceOption, ModelOption, find_model
from lookout.cli.options import BootstrapOption, PresetOption, SettingOption
from lookout.cli.output import TerminalConsole, echo
from lookout.cli.times import PAST, parse_since
from lookout.cli.up import parse_settings
from lookout.wire import VERDICTS

_SHOWN = 20


def verify(
    camera: Annotated[str, typer.Option("--camera", "-c", help="Only cameras that match ('yard-*').")] = "*",
    since: Annotated[str, typer.Option(help=f"{PAST}.")] = "start",
    tolerance: Annotated[
        float | None,
        typer.Option(
            help="Largest difference of p(yes) that counts as equal.  [default: 1e-4 in float32, else twice "
            "the measured difference of a rerun]",
            min=0.0,
            show_default=False,
        ),
    ] = None,
    model: ModelOption = None,
    device: DeviceOption = None,
    preset: PresetOption = "default",
    setting: SettingOption = None,
    bootstrap: BootstrapOption = None,
) -> None:
    """Recompute committed verdicts from Kafka, and compare p(yes).

    Each chain of windows is replayed from its key window. Give the settings of the fleet with --preset and
    --set. A verdict whose records Kafka no longer has counts as expired. The exit code is 1 if a verdict
    differs.
    """
    from lookout.models.families.inference import inference_only
    from lookout.past import verification
    from lookout.streams.chains import PastScope

    folder = find_model(model)
    settings = settings_of_replay(folder, *parse_settings(setting or [], preset, device))
    address = find_bootstrap(bootstrap)
    check_reachable(address, VERDICTS.name)
    scope = PastScope(camera, parse_since(since).at_ms or 0)
    with inference_only(), Progress(console=TerminalConsole(stderr=True), transient=True) as bar:
        task = bar.add_task("recomputing verdicts", total=None)
        tally = verification.verify(
            folder,
            address,
            scope,
            common=kafka_settings(address),
            own=settings,
            tolerance=tolerance,
            progress=lambda done, total: bar.update(task, completed=done, total=total),
        )
    for finding in tally.unverified[:_SHOWN]:
        one = finding.verdict
        where = f"{one.camera}, epoch {one.epoch}, window {one.window}, watch {one.watch}"
        echo(f"{where}: {finding.reason}", err=True)
    echo(json.dumps(tally.to_dict()))
    if tally.unverified:
        raise typer.Exit(1)
