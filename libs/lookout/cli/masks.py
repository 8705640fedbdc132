"""`lookout camera mask`: hides parts of cameras' pictures."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated

import typer
from rich.table import Table
from rich.text import Text

from lookout.administration.masks import MaskError, next_masks, uncovers
from lookout.administration.writing import this_user
from lookout.cli.connect import (
    check_reachable,
    check_signs,
    find_bootstrap,
    mask_signer,
    send_and_confirm,
    signed_masks,
)
from lookout.cli.options import BootstrapOption, CliError
from lookout.cli.output import TerminalConsole, say
from lookout.cli.watches import parse_zone
from lookout.text import clean
from lookout.v1.masks_pb2 import CameraMasks, MaskVersion
from lookout.v1.watches_pb2 import Zone
from lookout.wire import MASKS, to_json

app = typer.Typer(no_args_is_help=True, help="Hide parts of a camera's pictures: list, set, history.")
out = TerminalConsole()
NameArgument = Annotated[str, typer.Argument(metavar="NAME", help="The camera's id.")]


@app.command("list")
def list_(bootstrap: BootstrapOption = None) -> None:
    """List the cameras with a mask in force."""
    masks = {name: own for name, own in _read(find_bootstrap(bootstrap)).items() if _hides(own.versions[-1])}
    if not masks:
        out.print(
            "Nothing is hidden. Hide a part of a camera: lookout camera mask set gate --hide "
            "'door:0.1,0.2 0.4,0.2 0.4,0.9'"
        )
        return
    table = _table()
    for name, own in sorted(masks.items()):
        _row(table, clean(name), own.versions[-1])
    out.print(table)


@app.command("set")
def set_(
    name: NameArgument,
    hide: Annotated[
        list[str] | None,
        typer.Option(
            help="Hide this polygon: 'door:0.1,0.2 0.4,0.2 0.4,0.9' (name:points); repeat for more."
        ),
    ] = None,
    keep: Annotated[
        list[str] | None, typer.Option(help="Hide everything outside these polygons; repeat for more.")
    ] = None,
    nothing: Annotated[
        bool, typer.Option("--nothing", help="Hide nothing of what is filmed from now on.")
    ] = False,
    bootstrap: BootstrapOption = None,
) -> None:
    """Hide these polygons of a camera instead of the earlier ones, from now on and in older footage as well.

    Points are shares of the whole picture as it is filmed; 0,0 is its top left corner. What was filmed under
    a mask stays hidden after the mask is changed.

    Example:

        lookout camera mask set gate --hide 'window:0.6,0.1 0.9,0.1 0.9,0.4 0.6,0.4'
    """
    if nothing == bool(hide or keep):
        raise CliError("give polygons with --hide or --keep, or --nothing to hide nothing from now on")
    address = find_bootstrap(bootstrap)
    signer = mask_signer(address)
    before = _read(address).get(name)
    hidden = [parse_zone(text, "--hide") for text in hide or []]
    shown = [parse_zone(text, "--keep") for text in keep or []]
    try:
        masks = next_masks(name, before, hidden, shown, this_user())
    except MaskError as error:
        raise CliError(str(error)) from None
    check_signs(address, signer)
    signer.sign(masks)
    send_and_confirm(address, MASKS.name, {name: to_json(masks)})
    if _read(address).get(name) != masks:
        raise CliError(
            f"somebody else changed the masks of {clean(name, 60)} at the same time: see "
            "`lookout camera mask history`, then run the same command again to set yours"
        )
    newest = masks.versions[-1]
    say(out, "[green]✓[/] [bold]{}[/] hides {} (version {})", name, _words(newest), newest.version)
    if uncovers(before, masks):
        say(out, "what was filmed under the previous version stays hidden")


@app.command()
def history(name: NameArgument, bootstrap: BootstrapOption = None) -> None:
    """Show which parts of a camera's pictures were hidden, since when, and by whom."""
    masks = _read(find_bootstrap(bootstrap)).get(name)
    if masks is None:
        raise CliError(f"camera {clean(name, 60)} has never had a mask")
    table = _table()
    for version in reversed(masks.versions):
        _row(table, str(version.version), version)
    out.print(table)


def _read(address: str) -> dict[str, CameraMasks]:
    """Return the masks in the topic, by camera. If a record cannot be used, the camera's previous masks stay
    in force.
    """
    check_reachable(address, MASKS.name)
    return signed_masks(address).cameras


def _hides(version: MaskVersion) -> bool:
    return bool(version.hide or version.keep)


def _table() -> Table:
    table = Table(box=None, header_style="bold", pad_edge=False)
    for column in ("", "since", "by", "hides"):
        table.add_column(column, overflow="fold")
    return table


def _row(table: Table, first: str, version: MaskVersion) -> None:
    since = version.since.ToDatetime().strftime("%Y-%m-%d %H:%M:%S UTC")
    table.add_row(Text(first), since, Text(clean(version.by)), Text(_words(version)))


def _words(version: MaskVersion) -> str:
    parts = [f"inside {_names(version.hide)}"] if version.hide else []
    parts += [f"outside {_names(version.keep)}"] if version.keep else []
    return " and ".join(parts) or "nothing"


def _names(zones: Iterable[Zone]) -> str:
    return ", ".join(clean(zone.name, 60) or f"polygon {place}" for place, zone in enumerate(zones, 1))
