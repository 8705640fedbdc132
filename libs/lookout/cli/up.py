"""`lookout up`: a fleet on this machine for as long as the command runs."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.panel import Panel
from rich.status import Status

from lookout.cli.model import ModelOption, find_model
from lookout.cli.signals import ending_quietly
from lookout.local import Fleet
from lookout.wire import ALERTS, SEGMENTS, VERDICTS

console = Console()
_ROUND_S = 0.5


def up(
    kafka: Annotated[
        str | None,
        typer.Option(help="A running Kafka to use instead of starting one.", envvar="LOOKOUT_KAFKA"),
    ] = None,
    redis: Annotated[
        str | None,
        typer.Option(help="A running Redis (URL) to use instead of starting one.", envvar="LOOKOUT_REDIS"),
    ] = None,
    port: Annotated[
        int | None,
        typer.Option(min=1, max=65535, help="Kafka's port.  [default: a free one]", show_default=False),
    ] = None,
    data: Annotated[
        Path | None,
        typer.Option(
            help="Keep topics and logs in this folder.  [default: a temporary one]", show_default=False
        ),
    ] = None,
    model: ModelOption = None,
    partitions: Annotated[int, typer.Option(min=1, max=256, help="Partitions of every topic.")] = 4,
    setting: Annotated[
        list[str] | None,
        typer.Option("--set", help="A setting of the services, NAME=VALUE (window_s=20); repeat for more."),
    ] = None,
) -> None:
    """Run a whole fleet here: Kafka, Redis and the four services. Ctrl-C ends it and leaves nothing behind.

    Other commands on this machine find it by themselves.
    """
    fleet = Fleet(
        data,
        kafka=kafka,
        redis_url=redis,
        kafka_port=port,
        partitions=partitions,
        settings={"model_dir": str(find_model(model)), **parse_settings(setting or [])},
    )
    with ending_quietly():
        try:
            with console.status("starting") as status:
                fleet = _start(fleet, status)
            _welcome(fleet)
            while True:
                time.sleep(_ROUND_S)
                for news in fleet.tend():
                    console.print(f"[yellow]![/] {news}", highlight=False)
        except KeyboardInterrupt:
            console.print("ending the fleet ...")
        finally:
            fleet.close()
            console.print("[green]✓[/] everything has ended")


def parse_settings(pairs: list[str]) -> dict[str, str]:
    """NAME=VALUE pairs as settings, with or without the LOOKOUT_ prefix."""
    found = {}
    for pair in pairs:
        name, sign, value = pair.partition("=")
        if not sign or not name:
            raise typer.BadParameter(f"{pair!r} is not NAME=VALUE", param_hint="--set")
        found[name.strip().lower().removeprefix("lookout_")] = value.strip()
    return found


def _start(fleet: Fleet, status: Status) -> Fleet:
    fleet.on_progress(status.update)
    return fleet.start()


def _welcome(fleet: Fleet) -> None:
    kcat = f"kcat -P -b {fleet.bootstrap} -t {SEGMENTS.name} -k gate"
    lines = [
        f"Kafka     [bold]{fleet.bootstrap}[/]",
        f"Redis     {fleet.redis_url}",
        f"logs      {fleet.logs}",
        "",
        "[bold]Publish footage[/]",
        "  lookout publish clip.mp4 --camera gate",
        "  ffmpeg -i clip.mp4 -c copy -f segment -segment_format mpegts seg%05d.ts",
        f'  for s in seg*.ts; do {kcat} "$s"; done',
        "",
        "[bold]Ask and listen[/]",
        '  lookout watch add "Is anyone lying on the ground?"',
        "  lookout alerts",
        f"  kcat -C -b {fleet.bootstrap} -t {ALERTS.name}        (or {VERDICTS.name})",
        "",
        "Ctrl-C ends the fleet.",
    ]
    console.print(Panel("\n".join(lines), title="the fleet is up", expand=False, highlight=False))
