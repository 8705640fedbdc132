"""`lookout analyze`: questions about recordings, answered much faster than they play."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.table import Table

from lookout.cli.connect import CliError, asked
from lookout.cli.footage import footage_files
from lookout.cli.model import ModelOption
from lookout.cli.output import TerminalConsole, echo, escaped, say
from lookout.cli.recording_text import clock, cost_line, damage_lines
from lookout.cli.signals import ending_quietly

if TYPE_CHECKING:
    from lookout.analysis import Analysis, Analyzer
    from lookout.analysis import Progress as Done
    from lookout.files import RecordingReader, Source
    from lookout.segments import CodecError


def analyze(
    source: Annotated[str, typer.Argument(metavar="FILE|URL|DIR", help="A video file, a URL, or a folder.")],
    question: Annotated[
        list[str], typer.Option("--question", "-q", help="A yes/no question; may be given several times.")
    ],
    model: ModelOption = None,
    begin: Annotated[
        str | None, typer.Option("--from", metavar="TIME", help="Start time: 90, 1:30 or 1:02:03.")
    ] = None,
    end: Annotated[str | None, typer.Option("--to", metavar="TIME", help="End time, not included.")] = None,
    fps: Annotated[float, typer.Option(help="Frames sampled per second.")] = 2.0,
    rho: Annotated[float, typer.Option(help="Share of the KV cache that is kept: above 0, at most 1.")] = 0.5,
    group: Annotated[
        int, typer.Option(help="Encoded frames in a group; smaller groups need less memory.")
    ] = 16,
    part: Annotated[
        int | None,
        typer.Option(
            help="Samples read at once.  [default: what the model was made for]", show_default=False
        ),
    ] = None,
    prune: Annotated[bool, typer.Option(help="Encode changed patches only.")] = False,
    describe: Annotated[
        int, typer.Option(help="Length of a description, in tokens; written where the answer is yes.")
    ] = 0,
    threads: Annotated[
        int | None, typer.Option(help="Decoding threads.  [default: all cores]", show_default=False)
    ] = None,
    device: Annotated[str, typer.Option(help="Where the model runs: cpu, cuda, cuda:1.")] = "cpu",
    page: Annotated[Path | None, typer.Option(metavar="FILE", help="Write a page with the timeline.")] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object per line, one for each recording.")
    ] = False,
    fresh: Annotated[
        bool, typer.Option("--fresh", help="Start again; ignore what an earlier run has answered.")
    ] = False,
    sandbox: Annotated[bool, typer.Option(help="Decode in sandboxed processes.")] = True,
) -> None:
    """Ask yes/no questions about recordings.

    Several questions cost hardly more than one. A run that was stopped continues where it was when the same
    command is given again. Files are demuxed and decoded in confined processes; a URL is downloaded first.
    Progress goes to standard error.
    """
    question = [asked(text) for text in question]
    names = recordings(source)  # what is cheap to refuse is refused before the imports, which take seconds
    start_s, end_s = 0.0 if begin is None else seconds(begin), None if end is None else seconds(end)
    if page is not None:
        _writable(page)

    from lookout.segments import CodecError

    opened: dict[str, str | Source | RecordingReader] = {}
    with ExitStack() as files:
        if len(names) == 1:  # opening it may refuse it, and needs no model
            opened[names[0]] = _opened(names[0], sandbox, threads, files)

        from lookout.analysis import AnalysisSettings, Analyzer
        from lookout.recordings import PrefillSettings

        settings = AnalysisSettings(
            fps=fps,
            start_s=start_s,
            end_s=end_s,
            prefill=PrefillSettings(group_frames=group, rho=rho),
            part_frames=part,
            prune=prune,
            threads=threads,
            describe=describe,
        )
        analyses: list[Analysis] = []
        refused: list[tuple[str, str]] = []
        analyzer = Analyzer(model, device=device)
        try:
            with ending_quietly():
                for name in names:
                    journal = journal_of(name, question, settings, analyzer)
                    if fresh:
                        journal.unlink(missing_ok=True)
                    try:
                        if name not in opened:
                            opened[name] = _fetched(name, files) if sandbox else name
                        analyses.append(_one(analyzer, opened[name], question, settings, journal, sandbox))
                    except CodecError as error:
                        refused.append(_refused(name, error, alone=len(names) == 1))
                        continue
                    if as_json:
                        echo(json.dumps(analyses[-1].to_dict()))
                    else:
                        show(analyses[-1])
        except KeyboardInterrupt:
            TerminalConsole(stderr=True).print("stopped; run the same command again to continue")
            raise
        finally:
            analyzer.close()
            if page is not None and (analyses or refused):
                from lookout.cli.report.recording import write_recording_page

                write_recording_page(page, analyses, opened, refused=refused, sandbox=sandbox)
                TerminalConsole(stderr=True).print(f"page: {escaped(page)}")
    if refused:
        raise CliError(f"{len(refused)} of {len(names)} recordings could not be read")


def _opened(name: str, sandbox: bool, threads: int | None, files: ExitStack) -> RecordingReader:
    """A recording, open until `files` closes."""
    from lookout.sandbox import open_recording
    from lookout.segments import CodecError

    if threads is not None and threads < 1:
        raise CliError(f"--threads {threads}: it must be at least 1")
    try:
        source = _fetched(name, files) if sandbox else name
        return files.enter_context(open_recording(source, sandbox=sandbox, workers=threads))
    except CodecError as error:
        raise CliError(f"{name}: {error}") from error


def _refused(name: str, error: CodecError, alone: bool) -> tuple[str, str]:
    """A recording that cannot be read, and why; the command goes on with the others.

    Raises:
        CliError: There is no other.
    """
    if alone:
        raise CliError(f"{name}: {error}") from error
    say(TerminalConsole(stderr=True), "[yellow]left out[/] {}", f"{name}: {error}")
    return name, str(error)


def recordings(source: str) -> list[str]:
    """A URL, a file, or the video files of a folder.

    Raises:
        CliError: There is no such file, or the folder holds no video.
    """
    if source.lower().startswith(("http://", "https://")):
        return [source]
    return [str(path) for path in footage_files(Path(source))]


def _writable(page: Path) -> None:
    """Refuse a page that could not be written in the end."""
    if page.is_dir():
        raise CliError(f"--page names the folder {page}; name a file in it")
    page.parent.mkdir(parents=True, exist_ok=True)


def seconds(text: str) -> float:
    """A time as people write it: seconds, minutes:seconds or hours:minutes:seconds.

    Raises:
        CliError: It is none of these.
    """
    try:
        parts = [float(part) for part in text.split(":")]
    except ValueError:
        parts = []
    if not 1 <= len(parts) <= 3 or any(part < 0 for part in parts) or any(part >= 60 for part in parts[1:]):
        raise CliError(f"{text!r} is not a time: write seconds, minutes:seconds or hours:minutes:seconds")
    total = 0.0
    for part in parts:
        total = 60 * total + part
    return total


def journal_of(source: str, questions: Sequence[str], settings: object, analyzer: Analyzer) -> Path:
    """Where finished parts of a request are remembered."""
    import platformdirs

    where = source if "://" in source else str(Path(source).resolve())
    name = hashlib.blake2b(
        repr((where, list(questions), settings, str(analyzer.folder))).encode(), digest_size=12
    )
    return Path(platformdirs.user_cache_dir("lookout")) / "analyze" / f"{name.hexdigest()}.jsonl"


def _fetched(name: str, files: ExitStack) -> str | Source:
    """A URL's bytes in a temporary file, because sandboxed processes have no sockets; a path as it is."""
    from lookout.files import UrlSource
    from lookout.sandbox import downloaded

    if "://" not in name:
        return name
    columns = (TextColumn("downloading"), BarColumn(), DownloadColumn(), TimeRemainingColumn())
    with Progress(*columns, console=TerminalConsole(stderr=True), transient=True) as bar:
        task = bar.add_task(name, total=None)
        return files.enter_context(
            downloaded(UrlSource(name), lambda done, size: bar.update(task, completed=done, total=size))
        )


def _one(
    analyzer: Analyzer,
    source: str | Source | RecordingReader,
    questions: Sequence[str],
    settings: object,
    journal: Path,
    sandbox: bool,
) -> Analysis:
    from lookout.analysis import AnalysisSettings, analyze

    assert isinstance(settings, AnalysisSettings)
    with _bar(_name(source)) as advance:
        return analyze(
            source,
            questions,
            analyzer=analyzer,
            settings=settings,
            journal=journal,
            progress=advance,
            sandbox=sandbox,
        )


def _name(source: str | Source | RecordingReader) -> str:
    """How a recording is called."""
    if isinstance(source, str):
        return source
    return source.name if hasattr(source, "name") else source.facts.name


@contextmanager
def _bar(source: str) -> Iterator[Callable[[Done], None]]:
    """A progress bar with the rate of each stage, on standard error."""
    name = source.rstrip("/").rpartition("/")[2] or source
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.percentage:>3.0f}%"),
        TextColumn("{task.fields[rates]}"),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=TerminalConsole(stderr=True), transient=True) as bar:
        task = bar.add_task(escaped(name, 40), total=None, rates="opening")
        begun = time.monotonic()

        def advance(done: Done) -> None:
            spent = max(1e-3, time.monotonic() - begun)
            rates = (
                f"decoded {done.decoded / spent:.1f}/s, prefilled {done.prefilled / spent:.1f}/s, "
                f"part {done.done} of {done.parts}"
            )
            bar.update(task, completed=done.prefilled, total=done.samples, rates=rates)

        yield advance


def show(found: Analysis) -> None:
    """Print one recording's answers, and what they cost."""
    console = TerminalConsole()
    say(console, "[bold]{}[/]  {}, {} frames", found.source, clock(found.seconds), found.frames)
    table = Table(box=None, header_style="bold", pad_edge=False)
    for name in ("question", "p(yes)", "where", "evidence", "yes from - to"):
        table.add_column(name, justify="right" if name == "p(yes)" else "left", overflow="fold")
    for answer in found.answers:
        ranges = ", ".join(f"{clock(a)} - {clock(b)}" for a, b in answer.yes_s[:4])
        ranges_left = f" and {len(answer.yes_s) - 4} more" if len(answer.yes_s) > 4 else ""
        table.add_row(
            escaped(answer.question),
            f"{answer.p_yes:.3f}",
            f"{clock(answer.start_s)} - {clock(answer.end_s)}",
            ", ".join(f"{clock(at)} ({share:.0%})" for at, share in answer.seen_s),
            ranges + ranges_left,
            style="bold" if answer.p_yes > 0.5 else None,
        )
        if answer.text:
            table.add_row(f"  {escaped(answer.text)}")
    console.print(table)
    for line in damage_lines(found):
        console.print(escaped(line), style="yellow", highlight=False)
    console.print(cost_line(found), style="dim", highlight=False)
