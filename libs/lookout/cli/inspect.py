"""`lookout inspect`: what Lookout reads from a file, without publishing it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape
from rich.progress import track
from rich.table import Table

from lookout.cli.footage import footage_files
from lookout.cli.output import TerminalConsole, echo

if TYPE_CHECKING:
    from lookout.segments.inspection import Inspection


def inspect(
    path: Annotated[Path, typer.Argument(metavar="FILE|DIR", help="A video file, or a folder of them.")],
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object per line, one for each file.")
    ] = False,
) -> None:
    """Decode footage as the fleet would, in a sandbox, and show the result.

    anchors: I-pictures; vectors: frames with motion vectors ("luma": the codec has none, so brightness is
    compared).
    Damaged or hostile files are named with their one error; the exit code is 1 if no file gave a frame.
    """
    from lookout.sandbox.pool import SandboxPool, SandboxSettings
    from lookout.sandbox.survey import inspect as inspect_one

    files = footage_files(path)
    base = path if path.is_dir() else path.parent
    found: list[Inspection] = []
    with SandboxPool(1, SandboxSettings(wall_s=120, cpu_s=100)) as pool:
        for file in track(files, "looking", console=TerminalConsole(stderr=True), transient=True):
            found.append(replace(inspect_one(file, pool), path=str(file.relative_to(base))))
            if as_json:
                echo(found[-1].to_json())
    if not as_json:
        _print(found)
    if not any(each.frames for each in found):
        raise typer.Exit(1)


def _print(found: list[Inspection]) -> None:
    table = Table(box=None, header_style="bold", pad_edge=False)
    table.add_column("file", overflow="fold")
    for name in ("format", "codec", "size"):
        table.add_column(name, no_wrap=True)
    for name in ("fps", "seconds", "frames", "anchors", "vectors", "corrupt"):
        table.add_column(name, justify="right", no_wrap=True)
    for each in found:
        if not each.frames:
            continue
        table.add_row(
            each.path,
            each.container.split(",")[0],
            each.codec,
            f"{each.width}x{each.height}" if each.width else "",
            f"{each.fps:g}",
            f"{each.seconds:.1f}",
            str(each.frames or ""),
            str(each.anchors or ""),
            str(each.vectors) if each.motion == "vectors" else "luma" if each.motion else "",
            str(each.corrupt or ""),
            style="yellow" if each.error else None,
        )
    console = TerminalConsole()
    if not console.is_terminal:  # a pipe has no width: file names stay whole
        console.width = max(console.width, 90 + max(len(item.path) for item in found))
    if any(item.frames for item in found):
        console.print(table)
    for each in found:
        if each.error:
            console.print(
                f"[red]✗[/] {escape(f'{each.path}: {each.error}')}", highlight=False, soft_wrap=True
            )
