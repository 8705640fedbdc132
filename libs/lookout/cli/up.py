"""`lookout up`: a fleet on this machine for as long as the command runs."""

from __future__ import annotations

import os
import shlex
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape
from rich.status import Status

from lookout.cli.advice import CameraAdvice
from lookout.cli.connect import client_options
from lookout.cli.dead_letters import DeadLetterNews
from lookout.cli.fleet_settings import settings_of_services
from lookout.cli.model import DeviceOption, ModelOption, find_model, with_device
from lookout.cli.options import CliError, Preset, PresetOption, SettingOption, refuse_given
from lookout.cli.output import TerminalConsole, escaped
from lookout.cli.signals import ending_quietly
from lookout.local import (
    CAMERA_AGENT,
    GATEWAY,
    RECALL,
    RECORDINGS_DECODE,
    RECORDINGS_ROLES,
    Fleet,
    running_fleets,
)
from lookout.runtime.net import GrpcSecurity, KafkaSecurity, RedisSecurity
from lookout.runtime.worker.settings import FOREIGN
from lookout.text import public_url
from lookout.wire import ALERTS, CANARY_STAGES, MAX_MESSAGE_BYTES, NOTIFY, SEGMENTS, Stage

console = TerminalConsole()
_ROUND_S = 0.5
_READ = FOREIGN | {"LOOKOUT_MODEL_DIR"}

KafkaOption = Annotated[
    str | None,
    typer.Option(help="A running Kafka to use instead of starting one.", envvar="LOOKOUT_KAFKA"),
]
RedisOption = Annotated[
    str | None,
    typer.Option(help="A running Redis (URL) to use instead of starting one.", envvar="LOOKOUT_REDIS"),
]
RecordingsOption = Annotated[
    list[Path] | None,
    typer.Option(
        metavar="FOLDER",
        help="Answer jobs about recordings in this folder (`lookout analyze --fleet`); repeat for more.  "
        "[default: none]",
        show_default=False,
    ),
]
MemoryOption = Annotated[
    str | None,
    typer.Option(
        help="How much of every camera's past to keep for `lookout ask --fleet`: a duration (2h) or a size "
        "(500MB) for each camera.  [default: nothing]",
        show_default=False,
    ),
]
CanaryOption = Annotated[
    Path | None,
    typer.Option(
        metavar="FOLDER",
        help="Try this checkpoint on some cameras; `lookout canary` compares it with the fleet's.  "
        "[default: none]",
        show_default=False,
    ),
]
ShareOption = Annotated[
    float, typer.Option(min=0.001, max=1.0, help="Share of the cameras that the canary is tried on.")
]
OpenOption = Annotated[
    bool,
    typer.Option(
        "--open",
        help="Kafka and Redis need no password: every process on this machine may read and write them.",
    ),
]

PortOption = Annotated[
    int | None,
    typer.Option(min=1, max=65535, help="Kafka's port.  [default: a free one]", show_default=False),
]


def up(
    context: typer.Context,
    kafka: KafkaOption = None,
    redis: RedisOption = None,
    port: PortOption = None,
    data: Annotated[
        Path | None,
        typer.Option(
            help="Keep topics and logs in this folder.  [default: a temporary one]", show_default=False
        ),
    ] = None,
    model: ModelOption = None,
    device: DeviceOption = None,
    partitions: Annotated[int, typer.Option(min=1, max=256, help="Partitions of every topic.")] = 4,
    preset: PresetOption = "default",
    memory: MemoryOption = None,
    recordings: RecordingsOption = None,
    open_servers: OpenOption = False,
    canary: CanaryOption = None,
    canary_share: ShareOption = 0.1,
    setting: SettingOption = None,
) -> None:
    """Run a whole fleet on this machine: Kafka, Redis, the services and the HTTP API. Ctrl-C ends it.

    Other commands on this machine find the fleet without an address.
    """
    _check_servers(context, kafka, redis)
    common, own = parse_settings(setting or [], preset, device)
    length, folders = kept(memory), _folders(recordings or [])
    services = [*Stage, GATEWAY, CAMERA_AGENT, NOTIFY.name, *([RECALL] if length else [])]
    services += RECORDINGS_ROLES if folders else ()
    if folders and own.get("recordings", {}).get("ahead", common.get("ahead", "0")) != "0":
        services.append(RECORDINGS_DECODE)
    folder = str(find_model(model))
    trial = None if canary is None else {"model_dir": str(find_model(canary)), "canary": f"{canary_share:g}"}
    services += CANARY_STAGES if trial else ()
    checked = settings_of_services({"model_dir": folder, **common}, own, services)
    fleet = Fleet(
        data,
        kafka=kafka,
        redis_url=redis,
        kafka_port=port,
        partitions=partitions,
        settings={"model_dir": folder},
        stage_settings=checked,
        announced=True,
        memory=length,
        recordings=folders,
        open_servers=open_servers,
        gateway=True,
        cameras=True,
        notifications=True,
        canary=trial,
    )
    _say_unread(unread_settings(os.environ))
    _run(fleet)


def _check_servers(context: typer.Context, kafka: str | None, redis: str | None) -> None:
    """Reject options for servers that this command does not start."""
    if kafka is not None:
        refuse_given(
            context,
            ("port",),
            "works only for a Kafka that this command starts: omit it with --kafka or LOOKOUT_KAFKA",
        )
        if redis is not None:
            refuse_given(
                context,
                ("open_servers",),
                "works only for servers that this command starts, but you gave both Kafka and Redis",
            )


def _say_unread(ignored: list[str]) -> None:
    """Print which environment variables a local fleet ignores."""
    if ignored:
        console.print(
            f"[yellow]![/] ignored: {escaped(', '.join(ignored))}; "
            "give settings of this fleet with --set "
            f"({escaped(ignored[0].removeprefix('LOOKOUT_').lower())}=...)",
            highlight=False,
            soft_wrap=True,
        )


def _run(fleet: Fleet) -> None:
    """Start a fleet, show its news, and end it at Ctrl-C."""
    begun = False
    with ending_quietly():
        try:
            with console.status("starting") as status:
                fleet = _start(fleet, status)
            begun = True
            _welcome(fleet)
            refused, advice = (
                DeadLetterNews(client_options(fleet.bootstrap)),
                CameraAdvice(fleet.folder / "logs"),
            )
            while True:
                time.sleep(_ROUND_S)
                for news in [*fleet.supervise(), *refused.news(), *advice.news()]:
                    console.print(f"[yellow]![/] {escape(news)}", highlight=False, soft_wrap=True)
        except KeyboardInterrupt:
            console.print("stopping the fleet ...")
            begun = True
        finally:
            fleet.close()
            if begun:
                console.print("[green]✓[/] the fleet has stopped")


def kept(text: str | None) -> str | None:
    """Parse --memory; None: off.

    Raises:
        CliError: The text is neither a duration nor a size.
    """
    if text is None or text.strip().lower() in ("", "off"):
        return None
    from lookout.past.memory import HistoryError, Keep

    try:
        Keep.parse(text)
    except HistoryError as error:
        raise CliError(f"--memory: {error}") from None
    return text.strip()


def _folders(folders: list[Path]) -> list[Path]:
    """Check the folders of recordings.

    Raises:
        CliError: A path is not a folder, or has a comma in its name, which separates folders in the setting.
    """
    for folder in folders:
        if not folder.is_dir():
            raise CliError(f"--recordings {folder}: there is no such folder")
        if "," in str(folder.resolve()):
            raise CliError(
                f"--recordings {folder}: the name of a folder of recordings must not contain a comma"
            )
    return folders


def unread_settings(environ: Mapping[str, str]) -> list[str]:
    """Return the LOOKOUT_ variables that a local fleet does not read, because its services get their settings
    from --set.
    """
    security = (*KafkaSecurity.model_fields, *RedisSecurity.model_fields, *GrpcSecurity.model_fields)
    read = _READ | {f"LOOKOUT_{name.upper()}" for name in security}
    return sorted(name for name in environ if name.startswith("LOOKOUT_") and name not in read)


def parse_settings(
    pairs: list[str], preset: Preset = "default", device: str | None = None
) -> tuple[dict[str, str], dict[str, dict[str, str]]]:
    """Parse NAME=VALUE for all services and STAGE.NAME=VALUE for one, with or without the LOOKOUT_ prefix.

    A pair overrides a setting of the preset. The device of `--device` is added.

    Raises:
        typer.BadParameter: A pair has another form.
        CliError: This machine does not have the device, or `--set` names another one.
    """
    known = (*Stage, GATEWAY, CAMERA_AGENT, NOTIFY.name, RECALL, *RECORDINGS_ROLES)
    known += (RECORDINGS_DECODE, *CANARY_STAGES)
    common: dict[str, str] = {} if preset == "default" else {"preset": preset}
    own: dict[str, dict[str, str]] = {}
    for pair in pairs:
        name, sign, value = pair.partition("=")
        stage, dot, setting = name.strip().lower().replace("_", "-").partition(".")
        if not sign or not name or (dot and stage not in known):
            stages = ", ".join(known)
            raise typer.BadParameter(
                f"{pair!r} is not of the form NAME=VALUE or STAGE.NAME=VALUE (stages: {stages})",
                param_hint="--set",
            )
        target = own.setdefault(stage, {}) if dot else common
        target[(setting if dot else stage).replace("-", "_").removeprefix("lookout_")] = value.strip()
    return with_device(common, device), own


def _start(fleet: Fleet, status: Status) -> Fleet:
    fleet.on_progress(status.update)
    return fleet.start()


def _other_fleets(fleet: Fleet) -> list[str]:
    """Return a warning if several fleets run, because commands then need an address; otherwise an empty
    list.
    """
    if all(address.bootstrap == fleet.bootstrap for address in running_fleets()):
        return []
    return [f"[yellow]![/] another fleet runs here: give commands --bootstrap {fleet.bootstrap}", ""]


def _passwords(fleet: Fleet) -> list[str]:
    """Return lines that say where other producers and consumers find Kafka's password."""
    if fleet.client_properties is None:
        return []
    from lookout.local.kcat import kcat_fault

    fault = kcat_fault()
    return [
        f"  clients {fleet.client_properties}  (address, user and password for your own producers)",
        *([] if fault is None else [f"          [yellow]{fault}[/]"]),
    ]


def _past(fleet: Fleet) -> list[str]:
    """Return lines that say how to ask about the past; empty without a memory."""
    if not any(service.stage == RECALL for service in fleet.services):
        return []
    return [
        "[bold]ask about the past[/]",
        '  lookout ask --fleet "Was a vehicle in view earlier?" --camera gate --since 15m',
        "",
    ]


def _recordings(fleet: Fleet) -> list[str]:
    """Return lines that say how to ask about recordings; empty if that service does not run."""
    if not any(service.stage in RECORDINGS_ROLES for service in fleet.services):
        return []
    return [
        "[bold]ask about recordings[/]",
        '  lookout analyze --fleet FILE|FOLDER -q "Is a person in view?" --wait',
        "",
    ]


def _welcome(fleet: Fleet) -> None:
    limit = MAX_MESSAGE_BYTES
    # The file also contains the address. Its path may have blanks, so the path is quoted for a shell.
    properties = fleet.client_properties
    kafka = f"-F {shlex.quote(str(properties))}" if properties else f"-b {fleet.bootstrap}"
    # Printed without a frame and unwrapped, so that lines can be copied.
    lines = [
        "[bold green]✓ the fleet is up[/]",
        "",
        f"  Kafka   [bold]{fleet.bootstrap}[/]",
        f"  Redis   {public_url(fleet.redis_url)}",
        f"  logs    {fleet.logs}",
        f"  HTTP    {fleet.address.sign_in_link()}  (signs in once; `lookout sign-in` prints another)",
        *_passwords(fleet),
        "",
        "[bold]ask[/]",
        '  lookout watch add "Is anyone lying on the ground?"',
        "",
        "[bold]then publish footage[/]",
        "  lookout publish clip.mp4 --camera gate",
        "[dim]  or with plain tools:[/]",
        "  ffmpeg -i clip.mp4 -c copy -f segment -segment_time 2 -segment_format mpegts seg%05d.ts",
        f"  kcat -P {kafka} -t {SEGMENTS.name} -k gate -X message.max.bytes={limit} seg*.ts",
        "",
        "[bold]and listen[/]",
        "  lookout alerts --since 15m",
        "[dim]  or with plain tools:[/]",
        f"  kcat -C {kafka} -t {ALERTS.name}",
        "",
        *_past(fleet),
        *_recordings(fleet),
        *_other_fleets(fleet),
        "[dim]lookout report writes a page of what the cameras showed. Ctrl-C ends the fleet.[/]",
    ]
    console.print("\n".join(lines), highlight=False, soft_wrap=True)
