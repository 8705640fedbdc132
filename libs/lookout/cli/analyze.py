"""`lookout analyze`: questions about recordings, answered much faster than they play."""

from __future__ import annotations

import hashlib
import json
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from lookout.cli.footage import footage_files
from lookout.cli.formats import clock
from lookout.cli.model import (
    AnywayOption,
    DeviceOption,
    ModelOption,
    admit_questions,
    find_device,
    find_model,
)
from lookout.cli.options import (
    BootstrapOption,
    CliError,
    JobTenantOption,
    PageOption,
    PolicyOption,
    PresetOption,
    asked,
    check_page,
    refuse_given,
)
from lookout.cli.output import TerminalConsole, echo, escaped, say
from lookout.cli.recording_text import show
from lookout.cli.signals import ending_quietly
from lookout.cli.times import parse_offset
from lookout.disk import private_folder
from lookout.errors import LookoutError
from lookout.text import clean, public_url

if TYPE_CHECKING:
    from lookout.recordings.analysis import Analysis, AnalysisSettings, Analyzer, ClipFile, Progress as Done
    from lookout.video.files import RecordingReader, Source
    from lookout.video.segments import CodecError

#: maximum decoding threads or sandboxed processes per command; a larger number is rejected as a typing error
THREADS = 1024

STOPPED = "stopped; run the same command again to continue"

TimeOption = Annotated[str | None, typer.Option(metavar="TIME", help="Start time: 90, 1:30 or 1:02:03.")]
UntilOption = Annotated[str | None, typer.Option(metavar="TIME", help="Only before this time.")]
BeginsOption = Annotated[
    str | None,
    typer.Option(
        metavar="TIME",
        help="When the first frame was taken, 2026-05-01T13:30 (local) or with +02:00.  [default: what the "
        "file says]",
        show_default=False,
    ),
]
RhoOption = Annotated[float, typer.Option(help="Share of the KV cache to keep: above 0, at most 1.")]
GroupOption = Annotated[
    int, typer.Option(min=1, help="Encoded frames in a group; smaller groups need less memory.")
]
PartOption = Annotated[
    int | None,
    typer.Option(
        min=1, help="Samples read at once.  [default: what the model was made for]", show_default=False
    ),
]
DescribeOption = Annotated[
    int,
    typer.Option(
        min=0, metavar="TOKENS", help="Maximum length of the description that follows a yes; 0: none."
    ),
]
ThreadsOption = Annotated[
    int | None,
    typer.Option(help="Decoding threads.  [default: all usable cores]", show_default=False),
]
SourceArgument = Annotated[
    str, typer.Argument(metavar="FILE|URL|DIR", help="A video file, a URL, or a folder.")
]
ClipsOption = Annotated[
    Path | None,
    typer.Option(
        metavar="DIR",
        help="Write a clip of each range whose answer is yes into this folder. Clips are cut at keyframes, "
        "not encoded again, and have no sound; each lasts at most a minute.",
    ),
]
QuestionOption = Annotated[
    list[str], typer.Option("--question", "-q", help="A yes/no question; may be given several times.")
]
JsonOption = Annotated[
    bool, typer.Option("--json", help="Print one JSON object per line, one for each recording.")
]
FreshOption = Annotated[
    bool, typer.Option("--fresh", help="Start over: ignore the answers and downloads of earlier runs.")
]
SandboxOption = Annotated[bool, typer.Option(help="Decode in sandboxed processes.")]
FleetOption = Annotated[
    bool,
    typer.Option(
        "--fleet", help="Let a fleet answer, as a job. The fleet must be able to read the file or folder."
    ),
]
WaitOption = Annotated[
    bool,
    typer.Option(
        "--wait", help="With --fleet: wait for the answers (`lookout recordings show` prints them later)."
    ),
]
IdOption = Annotated[
    str | None,
    typer.Option("--id", help="With --fleet: the job's id.  [default: a new one]", show_default=False),
]


def analyze(
    context: typer.Context,
    source: SourceArgument,
    question: QuestionOption,
    model: ModelOption = None,
    since: TimeOption = None,
    until: UntilOption = None,
    begins: BeginsOption = None,
    fps: Annotated[float, typer.Option(help="Frames sampled per second.")] = 2.0,
    rho: RhoOption = 0.5,
    group: GroupOption = 16,
    part: PartOption = None,
    prune: Annotated[bool, typer.Option(help="Encode changed patches only.")] = False,
    preset: PresetOption = "default",
    policy: PolicyOption = None,
    describe: DescribeOption = 0,
    threads: ThreadsOption = None,
    device: DeviceOption = None,
    page: PageOption = None,
    clips: ClipsOption = None,
    as_json: JsonOption = False,
    fresh: FreshOption = False,
    sandbox: SandboxOption = True,
    anyway: AnywayOption = False,
    fleet: FleetOption = False,
    wait: WaitOption = False,
    identity: IdOption = None,
    tenant: JobTenantOption = "",
    bootstrap: BootstrapOption = None,
) -> None:
    """Ask yes/no questions about recordings.

    Several questions cost hardly more than one. To continue a stopped run, run the same command again.
    Files are decoded in sandboxed processes. A URL is downloaded first; the download stays in the cache
    folder for a day after its last use, 16 GiB of downloads at most. Progress goes to standard error. With
    --fleet a fleet answers: it reads the file itself, and keeps the answers.
    """
    question = [asked(text) for text in question]
    start_s, end_s = parse_offset(since, "--since") or 0.0, parse_offset(until, "--until")
    _check(threads)
    check_page(page)
    _check_clips(clips, source)
    plain = {"fps": fps, "start_s": start_s, "end_s": end_s, "part_frames": part, "prune": prune}
    masks = {"preset": preset, "policy": policy}
    options = {**plain, **masks, "threads": threads, "describe": describe, "rho": rho, "group_frames": group}
    settings, moment = _settings(options), _begin(begins)
    if not fleet:
        job = ("wait", "identity", "tenant", "bootstrap")
        refuse_given(context, job, "works only with a fleet: give --fleet as well")
        admit_questions(find_model(model), question, text=describe > 0, anyway=anyway)
        _answer_here(source, question, settings, model, device, sandbox, fresh, page, clips, moment, as_json)
        return
    if clips is not None:
        raise CliError("--clips needs the recording on this machine: omit --fleet")
    own = ("model", "device", "threads", "fresh", "sandbox", "anyway")
    refuse_given(context, own, "cannot be combined with --fleet, which uses the fleet's own")
    from lookout.cli.fleet_jobs import fleet_job, send_job

    request = fleet_job(source, question, options, identity, tenant, moment)
    send_job(request, identity is not None, bootstrap, wait=wait, page=page, as_json=as_json)


def _answer_here(
    source: str,
    questions: Sequence[str],
    settings: AnalysisSettings,
    model: Path | None,
    device: str | None,
    sandbox: bool,
    fresh: bool,
    page: Path | None,
    clips: Path | None,
    begins: datetime | None,
    as_json: bool,
) -> None:
    """Answer with a model in this process, and print the answers.

    Raises:
        CliError: A recording cannot be read, a clip cannot be cut, or `begins` is given for several
            recordings.
    """
    _check_cache()
    place = find_device(device)
    names = recordings(source)  # quick, so checked before the imports, which take seconds
    if begins is not None and len(names) > 1:
        raise CliError(f"--begins applies to one recording; {clean(source)} holds {len(names)}")
    opened: dict[str, str | Source | RecordingReader] = {}
    with ExitStack() as files:
        if len(names) == 1:  # opened before the model loads, because it may fail
            opened[names[0]] = _opened(names[0], sandbox, settings.threads, fresh, files)

        from lookout.models.families.inference import inference_only
        from lookout.recordings.analysis import Analyzer

        with inference_only(), Analyzer(model, device=place) as analyzer:
            batch = _Batch(analyzer, questions, settings, sandbox, fresh, opened, files, clips, begins)
            try:
                with ending_quietly():
                    for analysis in batch.run(names):
                        _print(analysis, batch.cut(analysis), as_json)
            except KeyboardInterrupt:
                echo(batch.stopped(), err=True)
                raise
            finally:
                if page is not None:
                    batch.write_page(page)
    if batch.refused:
        raise CliError(f"{len(batch.refused)} of {len(names)} recordings could not be read")
    if batch.uncut:
        raise CliError(f"not every clip could be cut: {'; '.join(batch.uncut)}")


_OPTIONS = {
    "fps": "--fps",
    "rho": "--rho",
    "group_frames": "--group",
    "part_frames": "--part",
    "threads": "--threads",
    "describe": "--describe",
    "preset": "--preset",
    "policy": "--policy",
}
"""By the name of a setting: the option that gives it."""


def _settings(options: Mapping[str, Any]) -> AnalysisSettings:
    """Return the analysis settings that the options give.

    Raises:
        CliError: A number is invalid; the message names the option.
    """
    from lookout.recordings.analysis.settings import AnalysisSettings, with_options

    settings = AnalysisSettings()
    for name, value in options.items():  # one option at a time, so that an error names the option
        try:
            settings = with_options(settings, {name: value})
        except LookoutError as error:
            option = _OPTIONS.get(name)
            raise CliError(f"{option}: {error}" if option else str(error)) from None
    return settings


def _begin(text: str | None) -> datetime | None:
    """Parse --begins, the time when the recording begins; None without the option.

    Raises:
        CliError: The text is not a time.
    """
    from lookout.recordings.analysis.begin import given_begin

    try:
        return None if text is None else given_begin(text.strip())
    except LookoutError as error:
        raise CliError(f"--begins: {error}") from None


@dataclass
class _Batch:
    """Answers the recordings of one command in turn, with one model."""

    analyzer: Analyzer
    questions: Sequence[str]
    settings: AnalysisSettings
    sandbox: bool
    fresh: bool
    opened: dict[str, str | Source | RecordingReader]
    files: ExitStack
    clips: Path | None = None
    begins: datetime | None = None
    analyses: list[Analysis] = field(default_factory=list)
    refused: list[tuple[str, str]] = field(default_factory=list)
    uncut: list[str] = field(default_factory=list)
    reached: tuple[str, Done] | None = None
    _stems: Counter[str] = field(default_factory=Counter)

    def run(self, names: Sequence[str]) -> Iterator[Analysis]:
        """Yield each recording's answers; a recording that cannot be read is skipped, with a message.

        Raises:
            CliError: The only recording cannot be read.
        """
        from lookout.video.segments import CodecError

        for name in names:
            journal = journal_of(name, self.questions, self.settings, self.analyzer)
            if self.fresh:
                journal.unlink(missing_ok=True)
            try:
                if name not in self.opened:
                    self.opened[name] = _fetched(name, self.files, self.fresh) if self.sandbox else name
                analysis = self._one(self.opened[name], journal)
            except CodecError as error:
                self.refused.append(_refused(name, error, alone=len(names) == 1))
                continue
            self.opened.setdefault(analysis.source, self.opened[name])  # the URL without its password
            self.analyses.append(analysis)
            yield analysis

    def stopped(self) -> str:
        """Return how far a stopped run got, for logs that do not show the progress bar."""
        if self.reached is None:
            return STOPPED
        name, progress = self.reached
        return STOPPED.replace(";", f" after {progress.done} of {progress.parts} parts of {_shown(name)};")

    def cut(self, analysis: Analysis) -> list[ClipFile] | None:
        """Write the clips of a recording and return them; None if no clips are wanted."""
        if self.clips is None:
            return None
        from lookout.recordings.analysis.clips import recording_stem, write_clips

        stem = recording_stem(analysis.source)
        self._stems[stem] += 1  # several subfolders may have a recording of this name
        name = stem if self._stems[stem] == 1 else f"{stem}-{self._stems[stem]}"
        source = self.opened.get(analysis.source, analysis.source)
        clips = write_clips(analysis, self.clips, source=source, sandbox=self.sandbox, name=name)
        self.uncut += [clip.reason for clip in clips if clip.path is None]
        return clips

    def write_page(self, page: Path) -> None:
        """Write one page with all answers, unless no recording was read or rejected."""
        if not self.analyses and not self.refused:
            return
        from lookout.cli.answer_files import write_answers

        how = {"refused": self.refused, "sandbox": self.sandbox}
        for path in write_answers(page, self.analyses, self.opened, **how):
            say(TerminalConsole(stderr=True), "page: {}", path)

    def _one(self, source: str | Source | RecordingReader, journal: Path) -> Analysis:
        from lookout.recordings.analysis import analyze

        def noted(done: Done) -> None:
            self.reached = (name, done)
            advance(done)

        name = _name(source)
        with _bar(name) as advance:
            return analyze(
                source,
                self.questions,
                analyzer=self.analyzer,
                settings=self.settings,
                journal=journal,
                progress=noted,
                sandbox=self.sandbox,
                begins=self.begins,
                anyway=True,  # check the questions once, before the model loads
            )


def _opened(name: str, sandbox: bool, threads: int | None, fresh: bool, files: ExitStack) -> RecordingReader:
    """Open a recording; closing `files` closes the recording.

    Raises:
        CliError: The recording cannot be read.
    """
    from lookout.video.sandbox import open_recording
    from lookout.video.segments import CodecError

    try:
        source = _fetched(name, files, fresh) if sandbox else name
        return files.enter_context(open_recording(source, sandbox=sandbox, workers=threads))
    except CodecError as error:
        raise CliError(f"{_shown(name)}: {error}") from error


def _shown(name: str) -> str:
    """Return a source's name for messages: a URL without its password."""
    return public_url(name) if "://" in name else name


def _refused(name: str, error: CodecError, alone: bool) -> tuple[str, str]:
    """Print that a recording is skipped; return its name and the reason.

    Raises:
        CliError: The recording is the only one.
    """
    if alone:
        raise CliError(f"{_shown(name)}: {error}") from error
    say(TerminalConsole(stderr=True), "[yellow]skipped[/] {}", f"{_shown(name)}: {error}")
    return _shown(name), str(error)


def recordings(source: str) -> list[str]:
    """Return the recordings of a source: a URL, a file, or the video files of a folder.

    Raises:
        CliError: There is no such file, the folder holds no video, or the URL is not http(s).
    """
    if source.lower().startswith(("http://", "https://")):
        return [source]
    if not source.strip():
        raise CliError("the source is empty: name a file, a URL or a folder")
    if "://" in source and not Path(source).exists():
        raise CliError(f"{public_url(source)} is not supported: give a file, a folder or an http(s) address")
    return [str(path) for path in footage_files(Path(source))]


def _check(threads: int | None) -> None:
    """Reject a number of threads out of range."""
    if threads is not None and not 1 <= threads <= THREADS:
        raise CliError(f"--threads {threads}: it must be from 1 to {THREADS}")


def _check_clips(clips: Path | None, source: str) -> None:
    """Reject a folder for clips that cannot be written to or is inside the analysed folder, where the next
    run would analyse the clips as footage.

    Raises:
        CliError: The folder is rejected.
    """
    if clips is None:
        return
    if clips.exists() and not clips.is_dir():
        raise CliError(f"--clips names the file {clean(clips)}; name a folder")
    if (
        "://" not in source
        and Path(source).is_dir()
        and clips.resolve().is_relative_to(Path(source).resolve())
    ):
        raise CliError(
            f"--clips {clean(clips)} is inside the analysed folder, and the next run would analyse the "
            "clips: name another folder"
        )
    try:
        private_folder(clips)
    except OSError as error:
        raise CliError(f"--clips {clean(clips)}: the folder cannot be created ({error.strerror})") from error


def journal_of(source: str, questions: Sequence[str], settings: object, analyzer: Analyzer) -> Path:
    """Return the path of the journal that records which parts of a request are finished."""
    where = source if "://" in source else str(Path(source).resolve())
    name = hashlib.blake2b(
        repr((where, list(questions), settings, str(analyzer.folder))).encode(), digest_size=12
    )
    return _cache() / f"{name.hexdigest()}.jsonl"


def _cache() -> Path:
    """Return the folder of journals."""
    import platformdirs

    return Path(platformdirs.user_cache_dir("lookout")) / "analyze"


def _check_cache() -> None:
    """Create the cache folder, which gets the journals of finished parts, or reject it.

    Raises:
        CliError: The folder cannot be created.
    """
    folder = _cache()
    try:
        private_folder(folder)
    except OSError as error:
        raise CliError(
            f"the cache folder {clean(folder)} cannot be created ({error.strerror}): set XDG_CACHE_HOME to "
            "a folder that can be written"
        ) from None


def _fetched(name: str, files: ExitStack, fresh: bool) -> str | Source:
    """Download a URL, because sandboxed processes have no sockets, and return the file; return a path
    unchanged.
    """
    if "://" not in name:
        return name
    from lookout.cli.downloads import Downloads
    from lookout.video.files import UrlSource

    console = TerminalConsole(stderr=True)
    columns = (TextColumn("downloading"), BarColumn(), DownloadColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task(_shown(name), total=None)
        recording = Downloads(_cache() / "downloads").recording(
            UrlSource(name),
            lambda done, size: bar.update(task, completed=done, total=size),
            fresh=fresh,
            notice=lambda change: say(console, "[yellow]{}[/]", change),
        )
        try:
            return files.enter_context(recording)
        except KeyboardInterrupt:
            echo(STOPPED, err=True)
            raise


def _name(source: str | Source | RecordingReader) -> str:
    """Return a recording's display name."""
    if isinstance(source, str):
        return _shown(source)
    return source.name if hasattr(source, "name") else source.facts.name


@contextmanager
def _bar(source: str) -> Iterator[Callable[[Done], None]]:
    """Show a progress bar on standard error, with the rate of each stage."""
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


def _print(found: Analysis, clips: Sequence[ClipFile] | None, as_json: bool) -> None:
    """Print a recording's answers, and its clips if clips are wanted."""
    if as_json:
        paths = {} if clips is None else {"clips": [clip.to_dict() for clip in clips]}
        echo(json.dumps({**found.to_dict(), **paths}))
        return
    show(found)
    console = TerminalConsole()
    if clips is not None and not clips:
        say(console, "no clip: no answer is above one half")
    for clip in clips or ():
        if clip.path is not None:
            questions = ", ".join(clip.moment.questions)
            say(
                console, "clip {}  {}", clip.path, f"{clock(clip.start_s)} - {clock(clip.end_s)}  {questions}"
            )
