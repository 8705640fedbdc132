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
    from lookout.video.segments.inspection import Inspection


def inspect(
    path: Annotated[Path, typer.Argument(metavar="FILE|DIR", help="A video file, or a folder of them.")],
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object per line, one for each file.")
    ] = False,
) -> None:
    """Show what decoding a file gives: codec, frames, motion, damage.

    anchors: I-frames; vectors: frames with motion vectors ("luma": the codec has none, so brightness is
    compared). A damaged or hostile file is listed with its error. The exit code is 1 if no file gave a frame.
    """
    from lookout.video.sandbox.survey import inspect_all

    files = footage_files(path)
    base = path if path.is_dir() else path.parent
    inspections: list[Inspection] = []
    looking = track(files, "looking", console=TerminalConsole(stderr=True), transient=True)
    for inspection, file in zip(inspect_all(files), looking, strict=True):
        inspections.append(replace(inspection, path=str(file.relative_to(base))))
        if as_json:
            echo(inspections[-1].to_json())
    if not as_json:
        _print(inspections)
    if not any(inspection.frames for inspection in inspections):
        raise typer.Exit(1)


def _print(found: list[Inspection]) -> None:
    table = Table(box=None, header_style="bold", pad_edge=False)
    table.add_column("file", overflow="fold")
    for name in ("format", "codec", "size"):
        table.add_column(name, no_wrap=True)
    for name in ("fps", "seconds", "frames", "anchors", "vectors", "corrupt"):
        table.add_column(name, justify="right", no_wrap=True)
    for inspection in found:
        if not inspection.frames:
            continue
        table.add_row(
            inspection.path,
            inspection.container.split(",")[0],
            inspection.codec,
            f"{inspection.width}x{inspection.height}" if inspection.width else "",
            f"{inspection.fps:g}",
            f"{inspection.seconds:.1f}",
            str(inspection.frames or ""),
            str(inspection.anchors or ""),
            str(inspection.vectors)
            if inspection.motion == "vectors"
            else "luma"
            if inspection.motion
            else "",
            str(inspection.corrupt or ""),
            style="yellow" if inspection.error else None,
        )
    console = TerminalConsole()
    if not console.is_terminal:  # no limit in a pipe, so that file names stay whole
        console.width = max(console.width, 90 + max(len(item.path) for item in found))
    if any(item.frames for item in found):
        console.print(table)
    for inspection in found:
        if inspection.error:
            console.print(
                f"[red]✗[/] {escape(f'{inspection.path}: {inspection.error}')}",
                highlight=False,
                soft_wrap=True,
            )
