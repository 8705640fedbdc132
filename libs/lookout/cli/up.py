"""`lookout up`: a fleet on this machine for as long as the command runs."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.status import Status

from lookout.cli.connect import client_options
from lookout.cli.dead_letters import DeadLetterNews
from lookout.cli.model import ModelOption, find_model
from lookout.cli.signals import ending_quietly
from lookout.local import Fleet
from lookout.runtime import public_url
from lookout.wire import ALERTS, MAX_MESSAGE_BYTES, SEGMENTS, Stage

console = Console()
_ROUND_S = 0.5

KafkaOption = Annotated[
    str | None,
    typer.Option(help="A running Kafka to use instead of starting one.", envvar="LOOKOUT_KAFKA"),
]
RedisOption = Annotated[
    str | None,
    typer.Option(help="A running Redis (URL) to use instead of starting one.", envvar="LOOKOUT_REDIS"),
]
SettingOption = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        help="A setting of all services or of one: window_s=20, decode.silence_s=5; repeat for more.",
        show_default=False,
    ),
]


def up(
    kafka: KafkaOption = None,
    redis: RedisOption = None,
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
    setting: SettingOption = None,
) -> None:
    """Run a whole fleet here: Kafka, Redis and the four services. Ctrl-C ends it and leaves nothing behind.

    Other commands on this machine find the fleet without an address.
    """
    common, own = parse_settings(setting or [])
    fleet = Fleet(
        data,
        kafka=kafka,
        redis_url=redis,
        kafka_port=port,
        partitions=partitions,
        settings={"model_dir": str(find_model(model)), **common},
        stage_settings=own,
        announced=True,
    )
    with ending_quietly():
        try:
            with console.status("starting") as status:
                fleet = _start(fleet, status)
            _welcome(fleet)
            refused = DeadLetterNews(client_options(fleet.bootstrap))
            while True:
                time.sleep(_ROUND_S)
                for news in [*fleet.supervise(), *refused.news()]:
                    console.print(f"[yellow]![/] {escape(news)}", highlight=False, soft_wrap=True)
        except KeyboardInterrupt:
            console.print("stopping the fleet ...")
        finally:
            fleet.close()
            console.print("[green]✓[/] the fleet has stopped")


def parse_settings(pairs: list[str]) -> tuple[dict[str, str], dict[Stage, dict[str, str]]]:
    """NAME=VALUE for all services and STAGE.NAME=VALUE for one, with or without the LOOKOUT_ prefix."""
    common: dict[str, str] = {}
    own: dict[Stage, dict[str, str]] = {}
    for pair in pairs:
        name, sign, value = pair.partition("=")
        stage, dot, rest = name.strip().lower().replace("_", "-").partition(".")
        if not sign or not name or (dot and stage not in tuple(Stage)):
            stages = ", ".join(Stage)
            raise typer.BadParameter(
                f"{pair!r} is not NAME=VALUE or STAGE.NAME=VALUE (stages: {stages})", param_hint="--set"
            )
        target = own.setdefault(Stage(stage), {}) if dot else common
        target[(rest if dot else stage).replace("-", "_").removeprefix("lookout_")] = value.strip()
    return common, own


def _start(fleet: Fleet, status: Status) -> Fleet:
    fleet.on_progress(status.update)
    return fleet.start()


def _welcome(fleet: Fleet) -> None:
    limit = MAX_MESSAGE_BYTES
    # Lines to copy: neither framed nor broken.
    lines = [
        "[bold green]✓ the fleet is up[/]",
        "",
        f"  Kafka   [bold]{fleet.bootstrap}[/]",
        f"  Redis   {public_url(fleet.redis_url)}",
        f"  logs    {fleet.logs}",
        "",
        "[bold]publish footage[/]",
        "  lookout publish clip.mp4 --camera gate",
        "[dim]  or with plain tools:[/]",
        "  ffmpeg -i clip.mp4 -c copy -f segment -segment_time 2 -segment_format mpegts seg%05d.ts",
        f"  kcat -P -b {fleet.bootstrap} -t {SEGMENTS.name} -k gate -X message.max.bytes={limit} seg*.ts",
        "",
        "[bold]ask and listen[/]",
        '  lookout watch add "Is anyone lying on the ground?"',
        "  lookout alerts",
        "[dim]  or with plain tools:[/]",
        f"  kcat -C -b {fleet.bootstrap} -t {ALERTS.name}",
        "",
        "[dim]lookout report writes a page of what was seen. Ctrl-C ends the fleet.[/]",
    ]
    console.print("\n".join(lines), highlight=False, soft_wrap=True)
