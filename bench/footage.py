"""`python -m bench.footage FOLDER [--into FILE]`: inspects every file of a folder and prints a Markdown table
of the results.

With --into, the table replaces the text between the markers in that file.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable
from pathlib import Path

from lookout.text import visible
from lookout.video.sandbox.survey import inspect_all
from lookout.video.segments.inspection import Inspection

BEGIN, END = "<!-- inspection: begin -->", "<!-- inspection: end -->"
HEAD = (
    "| file | container, codec | picture | fps | seconds | frames | key | anchors "
    "| motion | blocks | damage | remark |\n"
    "| --- | --- | --- | ---: | ---: | ---: | ---: | ---: | --- | ---: | --- | --- |"
)


def files_of(root: Path) -> list[Path]:
    """Return a file, or every file under a folder in path order."""
    return sorted(path for path in root.rglob("*") if path.is_file()) if root.is_dir() else [root]


def markdown(inspections: Iterable[Inspection], root: Path) -> str:
    """Return the table; .txt, .json and .md files are left out."""
    rows = [
        _row(inspection, root)
        for inspection in inspections
        if Path(inspection.path).suffix not in (".txt", ".json", ".md")
    ]
    return "\n".join([HEAD, *(row for row in rows if row)])


def _row(seen: Inspection, root: Path) -> str:
    name = Path(seen.path).resolve().relative_to(root.resolve()) if root.is_dir() else Path(seen.path).name
    if str(name).startswith("reference"):
        return ""
    if not seen.frames:
        return f"| `{name}` |{' |' * 10} {seen.reason}: {seen.error} |"
    turned = f", turned {seen.rotation}°" if seen.rotation else ""
    motion = f"vectors in {seen.vectors}" if seen.motion == "vectors" else "luma"
    damage = [f"{seen.corrupt} corrupt"] if seen.corrupt else []
    damage += [f"{seen.refused} refused"] if seen.refused else []
    damage += [f"{seen.leading_lost} leading lost"] if seen.leading_lost else []
    remarks = [] if seen.timed else ["no time stamps"]
    remarks += [f"{seen.jumps} clock jump"] if seen.jumps else []
    remarks += [f"{seen.sizes} sizes"] if seen.sizes > 1 else []
    remarks += ["interlaced"] if seen.interlaced else []
    remarks += [f"{seen.reason}: {seen.error}"] if seen.error else []
    cells = (
        f"`{name}`",
        f"{seen.container}, {seen.codec} {seen.profile}".strip(),
        f"{seen.width}x{seen.height}{turned}",
        f"{seen.fps:.4g}",
        f"{seen.seconds:.1f}",
        seen.frames,
        seen.keyframes,
        seen.anchors,
        motion,
        round(seen.blocks) if seen.vectors else "",
        ", ".join(damage),
        "; ".join(remarks),
    )
    return f"| {' | '.join(map(str, cells))} |"


def insert(document: str, table: str) -> str:
    """Return the document with its marked part replaced.

    Raises:
        ValueError: The document lacks the markers.
    """
    if BEGIN not in document or END not in document:
        raise ValueError(f"the document lacks the markers {BEGIN} and {END}")
    before, tail = document.split(BEGIN, 1)
    return f"{before}{BEGIN}\n{table}\n{END}{tail.split(END, 1)[1]}"


def main(arguments: list[str] | None = None) -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(prog="python -m bench.footage", description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--into", type=Path, help="Markdown file whose marked part the table replaces")
    options = parser.parse_args(arguments)
    if not options.folder.exists():
        print(visible(f"{options.folder} does not exist"), file=sys.stderr)
        return 2
    table = markdown(inspect_all(files_of(options.folder)), options.folder)
    if options.into is None:
        print(visible(str(table)))
    else:
        options.into.write_text(insert(options.into.read_text(), table))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
