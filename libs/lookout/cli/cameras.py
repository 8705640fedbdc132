"""`lookout camera`: cameras that a fleet pulls itself, kept in a compacted topic."""

from __future__ import annotations

import hashlib
import shutil
from pathlib import Path
from typing import Annotated
from urllib.parse import unquote, urlsplit, urlunsplit

import typer
from rich.table import Table
from rich.text import Text

from lookout.administration.cameras import time_zone_fault
from lookout.cli import masks
from lookout.cli.connect import check_reachable, find_bootstrap, reading, send_and_confirm, signed_masks
from lookout.cli.options import BootstrapOption, CliError, Position
from lookout.cli.output import TerminalConsole, say
from lookout.disk import private_folder, replace_file
from lookout.local import CAMERA_SECRETS, FleetAddress, running_fleets
from lookout.text import clean, public_url
from lookout.v1.cameras_pb2 import Camera
from lookout.wire import (
    CAMERA_ID_BYTES,
    CAMERAS,
    WireError,
    from_json,
    is_camera_id,
    key_text,
    name_fault,
    to_json,
)

app = typer.Typer(
    no_args_is_help=True,
    help="Manage cameras that the fleet pulls (add, list, rm), their time zones, and privacy masks (mask).",
)
app.add_typer(masks.app, name="mask")
out = TerminalConsole()
NameArgument = Annotated[str, typer.Argument(metavar="NAME", help="The camera's id.")]


@app.command()
def add(
    name: NameArgument,
    url: Annotated[
        str, typer.Argument(metavar="URL", help="rtsp:// or rtsps://, with user name and password if needed.")
    ],
    udp: Annotated[bool, typer.Option("--udp", help="Pull over UDP.  [default: TCP]")] = False,
    mask: Annotated[
        bool,
        typer.Option(
            "--mask-before-publishing",
            help="Grey out what the mask hides before publishing; without a mask nothing is published.",
        ),
    ] = False,
    bootstrap: BootstrapOption = None,
) -> None:
    """Pull a camera from now on. The fleet reconnects whenever the stream breaks.

    A user name and password go into a file in the local fleet's folder, not into Kafka, and are sent only to
    the host of this address.

    Example:

        lookout camera add gate rtsp://admin:secret@192.0.2.7/stream1
    """
    _check_id(name)
    address = find_bootstrap(bootstrap)
    fleet = _fleet_at(address)
    check_reachable(address, CAMERAS.name)
    transport = Camera.TRANSPORT_UDP if udp else Camera.TRANSPORT_TCP
    cameras = _cameras(address)
    if name not in cameras and (fault := name_fault(name)):
        raise CliError(f"NAME: {fault}")
    before = cameras.get(name, Camera())
    camera = Camera(id=name, transport=transport, mask_before_publishing=mask, time_zone=before.time_zone)
    camera.url, secret = _without_secret(url)
    if secret is not None:
        camera.credentials = _write_secret(fleet, name, urlsplit(camera.url).hostname or "", secret)
    else:
        _remove_secret(fleet, name)
    _check(camera)
    send_and_confirm(address, CAMERAS.name, {name: to_json(camera)})
    say(out, "[green]✓[/] camera [bold]{}[/] is pulled from {}", name, public_url(camera.url))
    if mask and signed_masks(address).newest(name) is None:
        say(out, "nothing is published until it has a mask: lookout camera mask set {} --hide ...", name)


@app.command("list")
def list_(bootstrap: BootstrapOption = None) -> None:
    """List the cameras that the fleet pulls, and those that have a time zone."""
    cameras = _cameras(find_bootstrap(bootstrap))
    if not cameras:
        out.print("No cameras yet. Add one: lookout camera add gate rtsp://192.0.2.7/stream1")
        return
    table = Table(box=None, header_style="bold", pad_edge=False)
    longest = max(len(clean(name)) for name in cameras)
    table.add_column("id", no_wrap=True, min_width=longest)
    table.add_column("address", overflow="fold")
    table.add_column("time zone", no_wrap=True)
    for name, camera in sorted(cameras.items()):
        url = public_url(camera.url) if camera.url else "publishes by itself"
        table.add_row(Text(clean(name)), Text(url), Text(clean(camera.time_zone)))
    out.print(table, width=max(out.width, longest + 40), crop=False)


@app.command("time-zone")
def time_zone(
    name: NameArgument,
    zone: Annotated[
        str, typer.Argument(metavar="ZONE", help="An IANA name such as Europe/Berlin; '' removes it.")
    ],
    bootstrap: BootstrapOption = None,
) -> None:
    """Set a camera's time zone: the console shows its times next to the viewer's.

    Also works for cameras that publish by themselves.

    Example:

        lookout camera time-zone gate Europe/Berlin
    """
    _check_id(name)
    if fault := time_zone_fault(zone):
        raise CliError(f"ZONE: {fault}")
    address = find_bootstrap(bootstrap)
    camera = _cameras(address).get(name, Camera(id=name))
    camera.time_zone = zone
    send_and_confirm(address, CAMERAS.name, {name: to_json(camera)})
    say(out, "[green]✓[/] {} is in {}", name, zone or "no time zone")


@app.command("remove", hidden=True)
@app.command("rm")
def remove(name: NameArgument, bootstrap: BootstrapOption = None) -> None:
    """Stop pulling a camera and delete its password."""
    address = find_bootstrap(bootstrap)
    if name not in (cameras := _cameras(address)):
        names = ", ".join(clean(camera, 60) for camera in sorted(cameras)[:10]) or "none"
        raise CliError(f"there is no camera {clean(name, 60)}; the cameras are: {names}")
    send_and_confirm(address, CAMERAS.name, {name: None})
    for fleet in running_fleets():
        if fleet.bootstrap == address:
            _remove_secret(fleet, name)
    say(out, "[green]✓[/] removed {}", name)


def _cameras(address: str) -> dict[str, Camera]:
    """Return the cameras in the topic, by id. A camera whose newest record cannot be read is omitted."""
    check_reachable(address, CAMERAS.name)
    cameras: dict[str, Camera] = {}
    with reading(address, [CAMERAS.name], Position(oldest=True)) as reader:
        for message in reader.until_now():
            key, value = key_text(message.key() or b""), message.value()
            try:
                if value:
                    cameras[key] = from_json(value, Camera)
                else:
                    cameras.pop(key, None)
            except WireError:
                cameras.pop(key, None)
    return cameras


def _fleet_at(address: str) -> FleetAddress:
    """Return the fleet of this machine whose Kafka has this address.

    Raises:
        CliError: No such fleet runs here. On Kubernetes, Camera resources say which cameras are pulled.
    """
    fleet = next((fleet for fleet in running_fleets() if fleet.bootstrap == address), None)
    if fleet is None:
        raise CliError(
            f"the fleet at {address} does not run on this machine: start one with `lookout up`; on "
            "Kubernetes, use a Camera resource instead"
        )
    return fleet


def _without_secret(url: str) -> tuple[str, tuple[str, str] | None]:
    """Split user name and password off an address; return (address, (user, password)), or (address, None) if
    it has neither.

    Raises:
        CliError: The text is not a camera's address.
    """
    try:
        parts = urlsplit(url)
        host = parts.hostname
        parts.port  # noqa: B018 - raises if it is not a valid port
    except ValueError:
        parts, host = urlsplit(""), None
    if parts.scheme.lower() not in ("rtsp", "rtsps") or not host:
        raise CliError(f"{public_url(url)}: a camera's address begins with rtsp:// or rtsps:// and a host")
    if parts.username is None:
        return url, None
    place = parts.netloc.rpartition("@")[2]
    return urlunsplit(parts._replace(netloc=place)), (unquote(parts.username), unquote(parts.password or ""))


def _check_id(name: str) -> None:
    if not is_camera_id(name):
        raise CliError(
            f"{name[:40]!r} is not a valid camera id: give printable text of 1 to {CAMERA_ID_BYTES} bytes"
        )


def _check(camera: Camera) -> None:
    """Reject an address that would show a password to everyone who reads the topic.

    Raises:
        CliError: The address holds a password.
    """
    from lookout.video.sandbox.places import url_fault

    if url_fault(camera.url):
        raise CliError(
            f"{public_url(camera.url)}: the address holds a password; write it as rtsp://USER:PASSWORD@HOST; "
            "if the camera expects them in the path or query, put {username} and {password} there"
        )


def _secret_name(name: str) -> str:
    """Return the name of a camera's secret folder, which is a digest, because not every id is a valid file
    name.
    """
    return hashlib.blake2b(name.encode(), digest_size=12).hexdigest()


def _write_secret(fleet: FleetAddress, name: str, host: str, secret: tuple[str, str]) -> str:
    """Write a camera's user name and password for the fleet's agent, and return the secret's name."""
    folder = Path(fleet.folder) / CAMERA_SECRETS
    private_folder(folder)
    own = private_folder(folder / _secret_name(name))
    for key, value in (("username", secret[0]), ("password", secret[1]), ("hosts", host)):
        replace_file(own / key, value.encode())
    return own.name


def _remove_secret(fleet: FleetAddress, name: str) -> None:
    """Remove a camera's user name and password."""
    shutil.rmtree(Path(fleet.folder) / CAMERA_SECRETS / _secret_name(name), ignore_errors=True)
