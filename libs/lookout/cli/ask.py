"""`lookout ask`: questions about the past of a file or a folder of memories; `lookout memory`: its upkeep."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from lookout import models
from lookout.cli.commands import log_plainly
from lookout.cli.formats import clock
from lookout.cli.model import (
    AnywayOption,
    DeviceOption,
    ModelOption,
    admit_questions,
    find_device,
    find_model,
)
from lookout.cli.options import BootstrapOption, CliError, asked, refuse_given
from lookout.cli.output import TerminalConsole, echo, say
from lookout.cli.rebuild import rebuild
from lookout.cli.times import parse_offset
from lookout.structured import shares_text

if TYPE_CHECKING:
    from lookout.past.memory.shelf import Entry
    from lookout.streams.pipeline import Recollection

app = typer.Typer(
    no_args_is_help=True,
    help="Manage memories: list, check, repair, remove, trim; rebuild a fleet's lost ones.",
)
app.command("rebuild")(rebuild)
_TEXT_TOKENS = 64
#: a memory that ends more than this many seconds before the end of its file is incomplete
_EARLY_S = 4.0
FolderArgument = Annotated[Path, typer.Argument(metavar="FOLDER", help="A folder of memories.")]


SourceArgument = Annotated[
    str,
    typer.Argument(metavar="FILE|FOLDER", help="A video file, or a folder of memories; not with --fleet."),
]
QuestionArgument = Annotated[
    str | None,
    typer.Argument(
        help='What to ask, such as "Is anyone lying on the ground?"', metavar="QUESTION", show_default=False
    ),
]
SinceOption = Annotated[
    str | None,
    typer.Option(
        help="Start time, from the start of the source: seconds, or h:mm:ss. With --fleet: how long ago "
        "(2h), or 2026-05-01T13:30."
    ),
]
UntilOption = Annotated[str | None, typer.Option(help="Only before this time.")]
DescribeOption = Annotated[
    int | None,
    typer.Option(
        min=0,
        metavar="TOKENS",
        help=f"Maximum length of a text answer; 0: none.  [default: {_TEXT_TOKENS}, 0 for yes/no questions]",
        show_default=False,
    ),
]
MemoryOption = Annotated[
    str, typer.Option(help="How much of FILE to remember: a duration (2h) or a size (500MB).")
]
KeepOption = Annotated[
    Path | None, typer.Option(help="Store the memory of FILE in this folder, for later questions.")
]
FramesOption = Annotated[
    Path | None, typer.Option(help="Write the frames on which the answer is based into this folder.")
]
CameraOption = Annotated[
    str | None,
    typer.Option(
        "--camera", "-c", help="Only this camera of FOLDER. With --fleet also a pattern ('yard-*')."
    ),
]
FleetOption = Annotated[
    bool,
    typer.Option(
        "--fleet", help="Ask recall about the cameras of a fleet: lookout ask --fleet QUESTION --camera gate."
    ),
]
RecallOption = Annotated[
    str | None,
    typer.Option(
        help="Recall's address (host:port).  [default: LOOKOUT_RECALL, else the fleet that runs here]",
        show_default=False,
    ),
]

_OWN = ("model", "device", "anyway")


def ask(
    context: typer.Context,
    source: SourceArgument,
    question: QuestionArgument = None,
    since: SinceOption = None,
    until: UntilOption = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object per line, one for each camera and epoch.")
    ] = False,
    describe: DescribeOption = None,
    memory: MemoryOption = "2h",
    keep: KeepOption = None,
    frames: FramesOption = None,
    camera: CameraOption = None,
    model: ModelOption = None,
    device: DeviceOption = None,
    anyway: AnywayOption = False,
    fleet: FleetOption = False,
    bootstrap: BootstrapOption = None,
    recall: RecallOption = None,
) -> None:
    """Ask what a file or a camera showed earlier: p(yes) or text, the times it used, coverage, cost."""
    # None: describe for "what happened?", but give only p(yes) for "was anyone there?"
    length: dict[str, Any] = {"text": None if describe is None else describe > 0}
    length["words"] = describe or _TEXT_TOKENS
    if fleet:
        if question is not None:
            raise CliError(
                "--fleet asks about cameras, not about a file: lookout ask --fleet QUESTION --camera gate"
            )
        if camera is None:
            raise CliError("--fleet needs --camera: an id, or a pattern such as 'yard-*'")
        refuse_given(context, _OWN, "cannot be combined with --fleet, which uses the fleet's own")
        refuse_given(context, ("memory", "keep", "frames"), "works only for a file: omit it with --fleet")
        from lookout.cli.ask_fleet import ask_fleet

        where: dict[str, Any] = {"since": since, "until": until, "bootstrap": bootstrap, "recall": recall}
        ask_fleet(asked(source), camera=camera, as_json=as_json, **length, **where)
        return
    if question is None:
        raise CliError(
            "the question is missing: lookout ask FILE QUESTION, or "
            "lookout ask --fleet QUESTION --camera gate"
        )
    refuse_given(context, ("recall", "bootstrap"), "works only with a fleet: give --fleet as well")
    if (path := Path(source)).is_dir():
        refuse_given(context, ("memory", "keep"), "works only for a file: a folder's memories do not change")
    _ask_files(
        path,
        asked(question),
        {**length, "since": parse_offset(since, "--since"), "until": parse_offset(until, "--until")},
        as_json=as_json,
        memory=memory,
        keep=keep,
        frames=frames,
        camera=camera,
        model=model,
        device=device,
        anyway=anyway,
    )


def _ask_files(
    source: Path,
    question: str,
    options: dict[str, Any],
    *,
    as_json: bool,
    memory: str,
    keep: Path | None,
    frames: Path | None,
    camera: str | None,
    model: Path | None,
    device: str | None,
    anyway: bool,
) -> None:
    """Ask about a file, or a folder of memories."""
    text = options["text"]
    if not source.exists():
        raise CliError(f"{source} is neither a file nor a folder")
    if source.is_file() and camera is not None:
        raise CliError("--camera works only for a folder of memories or a fleet: omit it for a file")
    _check_options(options, {"--keep": keep, "--frames": frames})
    if not as_json:
        options["on_text"] = lambda piece: echo(piece, nl=False)
    if keep is not None and source.is_file() and (entry := _remembered(keep, source)) is not None:
        note = "{} already has a memory of {}, which is used as it is{}"
        say(TerminalConsole(stderr=True), note, keep, source.name, _early_end(entry, source))
        source, camera = keep, entry.camera
    # These checks come before the imports and the model, which take seconds.
    if source.is_file():
        _check(model, question, text, anyway)
        _check_footage(source)
    place = find_device(device)
    from lookout.models.families.inference import inference_only
    from lookout.streams import pipeline
    from lookout.video.segments import CodecError

    if source.is_dir():
        from lookout.past.memory.shelf import entries

        about = entries(source, camera)[0].about
        _check(model or about.get("model"), question, text, anyway)
        options |= {"camera": camera, "model": model, "device": place}
        with inference_only():
            for answer in pipeline.ask_folder(source, question, **options):
                _show(answer, as_json, frames, _source_of(source, answer))
        return
    folder = find_model(model)
    with (
        inference_only(),
        pipeline.Pipeline(folder, device=place, memory=memory, memory_dir=keep, anyway=anyway) as playing,
    ):
        with TerminalConsole(stderr=True).status(f"watching {source.name}"):
            try:
                for _ in playing.watch(source):
                    pass
            except CodecError as error:
                raise CliError(f"{source}: {error}") from error
        for answer in playing.ask(question, **options):
            _show(answer, as_json, frames, source)


def _check_options(options: Mapping[str, Any], folders: Mapping[str, Path | None]) -> None:
    """Reject wrong options before a recording is watched, because that takes long.

    Raises:
        CliError: `since` is not before `until`, or a path of `folders` is a file.
    """
    since, until = options["since"], options["until"]
    if until is not None and (since or 0.0) >= until:
        raise CliError(f"--since {since or 0.0:g} s is not before --until {until:g} s")
    for option, folder in folders.items():
        if folder is not None and folder.exists() and not folder.is_dir():
            raise CliError(f"{option} names the file {folder}; name a folder")


def _remembered(folder: Path, file: Path) -> Entry | None:
    """Return the memory of a file in a folder. None: it is missing, damaged or older than the file."""
    from lookout.past.memory.shelf import entries

    if not folder.is_dir() or not any(folder.iterdir()):
        return None
    for entry in entries(folder):
        same = entry.about.get("source") == str(file.resolve()) and not entry.damage
        if same and entry.fed_s >= file.stat().st_mtime:
            return entry
    return None


def _early_end(entry: Entry, file: Path) -> str:
    """Return a warning if a memory ends long before its file (for example because of a full disk or Ctrl-C);
    otherwise an empty text.
    """
    from lookout.video.files import VideoReader
    from lookout.video.segments import CodecError

    try:
        with VideoReader(file) as reader:
            whole_s = reader.duration
    except CodecError:
        return ""
    end_s = _listed(entry)["to"]
    if end_s is None or whole_s - end_s < _EARLY_S:
        return ""
    return (
        f"; it ends at {clock(end_s)} of {clock(whole_s)}: to watch the whole file, first remove the memory "
        f"(`lookout memory remove {entry.path.parent.parent} --camera {entry.camera}`)"
    )


def _check_footage(source: Path) -> None:
    """Reject a file without a readable segment.

    Raises:
        CliError: No segment of the file can be read.
    """
    from lookout.video.segments import CodecError, cut

    try:
        next(cut(source), None)
    except CodecError as error:
        raise CliError(f"{source}: {error}") from error


def _check(model: object, question: str, text: bool | None, anyway: bool) -> None:
    """Reject questions that the model was not trained to answer."""
    folder = models.find_model(None if model is None else Path(str(model)))
    admit_questions(folder, [question], text=bool(text), anyway=anyway)


def _source_of(folder: Path, one: Recollection) -> Path | None:
    from lookout.past.memory.shelf import entries

    for entry in entries(folder, one.camera):
        if entry.epoch == one.epoch and entry.about.get("source"):
            return Path(str(entry.about["source"]))
    return None


def _show(one: Recollection, as_json: bool, frames: Path | None, source: Path | None) -> None:
    files = _write_frames(one, frames, source) if frames is not None else []
    if as_json:
        echo(json.dumps({**asdict(one), "frames": files}))
        return
    if one.text is not None:
        echo()
    else:
        echo(f"p(yes) = {one.p_yes:.3f}" if one.p_yes is not None else "no text was asked for")
        if one.answers:
            echo(shares_text(one.answers))
    if one.text is not None and one.p_yes is not None:
        echo(f"p(yes) = {one.p_yes:.3f}")
    echo(f"camera {one.camera}, epoch {one.epoch}")
    moments = ", ".join(f"{clock(m.time)} ({m.weight:.0%})" for m in one.moments)
    echo(f"based on: {moments}")
    start = "nothing" if one.covered_from is None else clock(one.covered_from)
    echo(f"covered from {start} to {clock(one.covered_to)}")
    cost = one.cost
    echo(
        f"cost: {cost.question_tokens} rows over {cost.memory_tokens:.0f} tokens of memory, "
        f"{cost.representatives:.0f} representatives and {cost.window_tokens} tokens of the window in each "
        f"layer; {cost.bytes_moved / 1e6:.1f} MB in {cost.copies} copies; {cost.flops / 1e9:.2f} GFLOP; "
        f"{cost.first_token_s * 1000:.0f} ms to the first token"
    )
    for name in files:
        echo(name)


def _write_frames(one: Recollection, folder: Path, source: Path | None) -> list[str]:
    """Read the evidence frames from the source again, write them as JPEG, and return their paths."""
    if source is None or not source.is_file():
        raise CliError(f"{one.camera}: its source {source} no longer exists, so its frames cannot be written")
    from PIL import Image

    from lookout.video.files import VideoReader

    folder.mkdir(parents=True, exist_ok=True)
    times = [moment.time for moment in one.moments]
    pictures = VideoReader(source).read(times_us=[round(seconds * 1e6) for seconds in times]).pixels
    out = []
    for seconds, picture in zip(times, pictures, strict=True):
        path = folder / f"{one.camera}-{seconds:08.1f}.jpg"
        Image.fromarray(picture).save(path, quality=90)
        out.append(str(path))
    return out


@app.command("list")
def list_memories(folder: FolderArgument, as_json: Annotated[bool, typer.Option("--json")] = False) -> None:
    """List each memory's camera, the time that it covers, and its bytes on disk."""
    from lookout.past.memory.shelf import entries

    rows = [_listed(entry) for entry in entries(folder)]
    if as_json:
        for row in rows:
            echo(json.dumps(row))
        return
    columns = [name for name in rows[0] if name != "damage" or any(row["damage"] for row in rows)]
    table = Table(box=None, header_style="bold", pad_edge=False)
    for name in columns:
        table.add_column(name, overflow="fold")
    for row in rows:
        shown = {name: str(row[name]) for name in columns}
        shown |= {name: "" if row[name] is None else clock(row[name]) for name in ("from", "to")}
        shown["bytes"] = f"{row['bytes'] / 1e6:.1f} MB"
        table.add_row(*shown.values())
    TerminalConsole().print(table)


def _listed(entry: Entry) -> dict[str, Any]:
    """Return a memory's row of the list; if the memory is damaged, the row says what is wrong."""
    log_plainly()
    from lookout.past.memory import HistoryError
    from lookout.past.memory.shelf import extent_of

    row: dict[str, Any] = {
        "camera": entry.camera,
        "epoch": entry.epoch,
        "from": None,
        "to": None,
        "frames": 0,
        "bytes": entry.bytes,
        "source": entry.about.get("source", ""),
        "damage": entry.damage,
    }
    try:
        extent = extent_of(entry.path)
    except HistoryError as error:
        return {**row, "damage": entry.damage or str(error)}
    began = float(entry.about.get("began_us", 0)) / 1e6
    return {
        **row,
        "from": None if extent.first_us is None else began + extent.first_us / 1e6,
        "to": None if extent.last_us is None else began + extent.last_us / 1e6,
        "frames": extent.frames,
    }


@app.command("check")
def check(folder: FolderArgument) -> None:
    """Check every file of every memory against its checksums. Exit code 1 if one is damaged."""
    log_plainly()
    from lookout.past.memory import HistoryError, shelf

    damaged = 0
    for entry in shelf.entries(folder):
        try:
            clusters = shelf.check(entry.path)
        except HistoryError as error:
            echo(f"{entry.camera} {entry.epoch}: {error}")
            damaged += 1
            continue
        echo(f"{entry.camera} {entry.epoch}: {clusters} clusters checked, no damage")
    if damaged:
        raise typer.Exit(1)


@app.command("repair")
def repair(
    folder: FolderArgument,
    camera: Annotated[str | None, typer.Option(help="Only this camera.  [default: all]")] = None,
) -> None:
    """Remove the damaged parts of memories, and print what is lost. Undamaged parts stay unchanged."""
    from lookout.past.memory import shelf

    log_plainly()
    for entry, damage in shelf.repair(folder, camera):
        for loss in damage or ["no damage"]:
            echo(f"{entry.camera} {entry.epoch}: {loss}")


@app.command("remove")
def remove(
    folder: FolderArgument,
    camera: Annotated[str, typer.Option(help="Which camera.")],
    since: Annotated[str | None, typer.Option(help="Start time.  [default: everything]")] = None,
    until: Annotated[str | None, typer.Option(help="Only before this time.")] = None,
) -> None:
    """Erase a camera, or a time range of it, from every file of the folder."""
    from lookout.past.memory import shelf

    log_plainly()
    removed, erased = shelf.remove(
        folder, camera, parse_offset(since, "--since"), parse_offset(until, "--until")
    )
    echo(f"memories removed: {removed}; frames erased: {erased}")


@app.command("trim")
def trim(
    folder: FolderArgument,
    size: Annotated[str | None, typer.Option(help="Maximum size on disk, such as 2GB.")] = None,
    age: Annotated[str | None, typer.Option(help="Maximum age of a frame, such as 7d.")] = None,
) -> None:
    """Keep a folder within a size and an age. The oldest recordings are removed first."""
    from lookout.past.memory import Keep, shelf

    if size is None and age is None:
        raise CliError("give --size (2GB), --age (7d), or both")
    limits = [None if limit is None else Keep.parse(limit) for limit in (size, age)]
    if limits[0] is not None and limits[0].bytes is None:
        raise CliError(f"--size {size} is not a size: write, for example, 2GB")
    if limits[1] is not None and limits[1].seconds is None:
        raise CliError(f"--age {age} is not a duration: write, for example, 7d")
    log_plainly()
    freed = shelf.trim(
        folder,
        None if limits[0] is None else limits[0].bytes,
        None if limits[1] is None else limits[1].seconds,
        time.time(),
    )
    echo(f"{freed / 1e6:.1f} MB freed")
