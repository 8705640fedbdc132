"""`lookout demo`: plays rendered cameras and given footage through a local fleet, and writes one page."""

from __future__ import annotations

import heapq
import shlex
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import typer
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn
from rich.status import Status
from rich.table import Table

from lookout.administration.footage import Piece
from lookout.cli.alerts import LinePrinter
from lookout.cli.connect import CommittedReader, fleet_masks, reading
from lookout.cli.fleet_settings import settings_of_services
from lookout.cli.footage import footage_files
from lookout.cli.model import DeviceOption, ModelOption, find_model
from lookout.cli.options import WEB_PAGES, CliError, Position, PresetOption, SettingOption, check_page
from lookout.cli.output import TerminalConsole, escaped, stage
from lookout.cli.publish import Publisher, cut_file, cutter
from lookout.cli.report import TOPICS, Album, FleetRecord, PageFacts, Truth, write_page
from lookout.cli.report.page import percent, saved_patches, saved_tokens
from lookout.cli.report.run import UnusedRecord
from lookout.cli.signals import ending_quietly
from lookout.cli.up import KafkaOption, RedisOption, parse_settings
from lookout.cli.watches import slug, write_watches
from lookout.local import CAMERA_AGENT, GATEWAY, RECALL, RECORDINGS_ROLES, Fleet
from lookout.models import DEMO_QUESTIONS
from lookout.v1.alerts_pb2 import Alert
from lookout.v1.watches_pb2 import Rule, Watch
from lookout.video.sandbox import SandboxPool
from lookout.video.segments import CodecError
from lookout.wire import NOTIFY, Stage
from lookout.wire.headers import CAPTURED_AT, encode

console = TerminalConsole(highlight=False)

_CUT_S = 2.0
_SILENCE_S = 4.0  # seconds without a segment after which a camera's last window closes
_CLOSING_S = 20.0
_STALL_S = 300.0
_TEND_EVERY_S = 1.0
_NAMED = 6  # maximum number of cameras that a line names
_KEPT = (GATEWAY, CAMERA_AGENT, NOTIFY.name, RECALL, *RECORDINGS_ROLES)
_MEMORY = "2h"  # how much of each camera's past the console can search


@dataclass(slots=True)
class DemoSource:
    """One camera of the demo."""

    id: str
    path: Path
    truth: Truth | None = None
    sent: int = 0
    duration_us: int = 0
    error: str = ""


@dataclass(slots=True)
class DemoResult:
    """The result of a demo."""

    run: FleetRecord
    sources: list[DemoSource]
    watches: list[Watch]
    notices: list[str] = field(default_factory=list)

    @property
    def answered(self) -> int:
        """Number of windows with an answer, all cameras together."""
        return sum(camera.windows for camera in self.run.cameras.values())


KeepOption = Annotated[
    bool | None,
    typer.Option(
        "--keep/--end",
        help="Keep the fleet and its console running afterwards until Ctrl-C, or end both. In a terminal the "
        "default is --keep.",
    ),
]


def demo(
    footage: Annotated[
        list[Path] | None,
        typer.Option("--footage", "-f", help="A video file or folder to play as well; repeat for more."),
    ] = None,
    out: Annotated[Path, typer.Option("--out", "-o", help="File to write the page to.")] = Path(
        "out/lookout-demo.html"
    ),
    keep: KeepOption = None,
    kafka: KafkaOption = None,
    redis: RedisOption = None,
    model: ModelOption = None,
    device: DeviceOption = None,
    preset: PresetOption = "default",
    setting: SettingOption = None,
) -> None:
    """Play rendered cameras (and your footage) through a real fleet on this machine and watch the alerts.

    Starts Kafka, Redis and the four services, asks the product's questions of every camera, publishes
    everything as fast as possible, prints each incident with its score, and writes one HTML page. In a
    terminal it ends with a link to the console, which offers everything that `lookout up` does: add cameras,
    search their past, try watches on it. Fails if no window was answered.
    """
    keep = sys.stdin.isatty() and sys.stdout.isatty() if keep is None else keep
    check_page(out, WEB_PAGES, "--out")
    files = [file for path in footage or [] for file in footage_files(path)]
    folder = find_model(model)
    common, own = parse_settings(setting or [], preset, device)
    fleet = _fleet(kafka, redis, {"model_dir": str(folder), **common}, own, keep=keep)
    with ending_quietly():
        try:
            with stage(console, "starting the fleet") as status:
                sources, watches = _prepare(fleet, files, status)
            outcome = play(fleet, sources, watches)
            _summary(outcome)
            with stage(console, "writing the page"):
                page = _write(fleet, outcome, out, folder)
            if keep:
                _keep(fleet, page)
        finally:
            with stage(console, "ending the fleet"):
                fleet.close()
    if not outcome.answered:
        console.print(
            "[bold red]No window of any camera was answered[/]: the reasons are above and on the page."
        )
    console.print(str(page), soft_wrap=True)
    if not outcome.answered:
        raise typer.Exit(1)


def _fleet(
    kafka: str | None,
    redis: str | None,
    common: dict[str, str],
    own: dict[str, dict[str, str]],
    *,
    keep: bool,
) -> Fleet:
    """Return a demo's fleet. If it keeps running, it offers everything that `lookout up` does, with memory
    and recordings.
    """
    own.setdefault(Stage.DECODE, {}).setdefault("silence_s", f"{_SILENCE_S:g}")
    return Fleet(
        kafka=kafka,
        redis_url=redis,
        settings={"model_dir": common["model_dir"]},
        stage_settings=settings_of_services(common, own, [*Stage, *(_KEPT if keep else ())]),
        announced=True,
        gateway=keep,
        cameras=keep,
        notifications=keep,
        memory=_MEMORY if keep else None,
        recordings=[_films()] if keep else [],
    )


def _prepare(fleet: Fleet, files: Sequence[Path], status: Status) -> tuple[list[DemoSource], list[Watch]]:
    """Start the fleet; return the cameras, and the watches with the product's questions."""
    fleet.on_progress(lambda text: status.update(f"starting the fleet: {text}"))
    fleet.start()
    console.print(
        f"[green]✓[/] the fleet runs: Kafka {escaped(fleet.bootstrap)}, Redis, {len(fleet.services)} services"
    )
    sources = [*rendered_sources(status.update), *footage_sources(files)]
    console.print(f"[green]✓[/] {len(sources)} cameras: {escaped(_names(sources))}")
    watches = product_watches()
    write_watches(fleet.bootstrap, watches)
    console.print(f"[green]✓[/] {len(watches)} questions: " + "  ".join(w.question for w in watches))
    return sources, watches


def _films() -> Path:
    """Return the folder of rendered films, so that a kept demo can answer questions about them as
    recordings.
    """
    from lookout.local.addresses import cache_folder

    folder = cache_folder() / "demo"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def rendered_sources(tell: Callable[[str], None]) -> list[DemoSource]:
    """Return the rendered cameras with the truth about what happens in them. Films that are not cached are
    rendered first.
    """
    from watchbench.cameras import DEMO, camera as rendered

    folder = _films()
    watches = {name: slug(question) for name, question in DEMO_QUESTIONS.items()}
    sources: list[DemoSource] = []
    for name in DEMO:
        tell(f"rendering camera {len(sources) + 1} of {len(DEMO)} (the first time; then it is cached)")
        camera = rendered(name, folder)
        spans: dict[str, list[tuple[float, float]]] = {watch: [] for watch in watches.values()}
        for event in camera.truth:
            if event.what in watches:
                spans[watches[event.what]].append((event.begin, event.end))
        sources.append(DemoSource(camera.id, camera.path, Truth(spans)))
    return sources


def footage_sources(files: Sequence[Path]) -> list[DemoSource]:
    """Return a camera for every file, named after the file. Names that occur twice get a number."""
    sources: list[DemoSource] = []
    counts: dict[str, int] = {}
    for file in files:
        name = slug_of_file(file)
        counts[name] = counts.get(name, 0) + 1
        sources.append(DemoSource(name if counts[name] == 1 else f"{name}-{counts[name]}", file))
    return sources


def slug_of_file(path: Path) -> str:
    """Make a camera id from a file's name."""
    letters = "".join(char if char.isalnum() or char in "-_." else "-" for char in path.stem)
    return letters.strip("-.")[:60] or "camera"


def _names(sources: Sequence[DemoSource]) -> str:
    names = ", ".join(source.id for source in sources[:_NAMED])
    return names if len(sources) <= _NAMED else f"{names} and {len(sources) - _NAMED} more"


def product_watches() -> list[Watch]:
    """Return watches with the product's questions for all cameras; an incident needs a yes in two of three
    windows.
    """
    rule = Rule(threshold=0.5, clear_threshold=0.4, k=2, n=3)
    return [
        Watch(id=slug(question), version=1, question=question, rule=rule)
        for question in DEMO_QUESTIONS.values()
    ]


def play(fleet: Fleet, sources: list[DemoSource], watches: list[Watch]) -> DemoResult:
    """Publish everything and follow the results until every window of every camera has an outcome.

    Raises:
        CliError: There was no progress for minutes; the message names what is unfinished.
    """
    outcome = DemoResult(FleetRecord(), sources, watches)
    for watch in watches:
        outcome.run.questions[watch.id] = watch.question
    publisher = Publisher(fleet.bootstrap)
    with (
        reading(fleet.bootstrap, list(TOPICS), Position()) as reader,
        _progress() as bar,
        cutter() as pool,
    ):
        player = _Player(fleet, reader, outcome, bar)
        start_us = int(time.time() * 1e6)
        for source, piece in interleaved(pool, sources):
            headers = encode({CAPTURED_AT: str((start_us + piece.start_us) // 1000)})
            publisher.send(source.id, piece.data, headers)
            source.sent += 1
            source.duration_us = max(source.duration_us, piece.start_us + piece.duration_us)
            player.follow(0.0)
        publisher.confirm()
        player.follow_to_the_end()
    # A broker given with --kafka may have other cameras' records.
    played = {source.id for source in sources}
    outcome.run.cameras = {name: camera for name, camera in outcome.run.cameras.items() if name in played}
    return outcome


def interleaved(pool: SandboxPool, sources: Sequence[DemoSource]) -> Iterator[tuple[DemoSource, Piece]]:
    """Yield the pieces of all cameras, merged by time as if they filmed together.

    If a file cannot be cut, its source's `error` says why.
    """
    waiting: list[tuple[int, int, Piece, Iterator[Piece]]] = []
    for index, source in enumerate(sources):
        _push(waiting, index, source, cut_file(pool, source.path, _CUT_S))
    while waiting:
        _, index, piece, pieces = heapq.heappop(waiting)
        yield sources[index], piece
        _push(waiting, index, sources[index], pieces)


def _push(
    waiting: list[tuple[int, int, Piece, Iterator[Piece]]],
    index: int,
    source: DemoSource,
    pieces: Iterator[Piece],
) -> None:
    try:
        piece = next(pieces, None)
    except CodecError as error:
        source.error = str(error)
        return
    if piece is not None:
        heapq.heappush(waiting, (piece.start_us, index, piece, pieces))


class _Player:
    """Follows the fleet's topics, prints alerts and errors, and ends when every window has an outcome."""

    def __init__(self, fleet: Fleet, reader: CommittedReader, outcome: DemoResult, bar: Progress) -> None:
        self._fleet = fleet
        self._reader = reader
        self._outcome = outcome
        self._bar = bar
        self._task: TaskID = bar.add_task("watching", total=None, detail="")
        self._print = LinePrinter(bar.console, self._clock)
        self._tended = time.monotonic()

    def follow(self, seconds: float) -> bool:
        """Process the records that have arrived, and supervise the fleet; return whether there were
        records.
        """
        received = False
        message = self._reader.poll(seconds)
        while message is not None:
            received = True
            self._show(self._outcome.run.take(message))
            message = self._reader.poll(0.0)
        if time.monotonic() - self._tended > _TEND_EVERY_S:
            self._tended = time.monotonic()
            for news in self._fleet.supervise():
                self._bar.console.print(f"[yellow]![/] {escaped(news)}")
        self._advance()
        return received

    def follow_to_the_end(self) -> None:
        quiet_since = time.monotonic()
        while unfinished := self._unfinished():
            if self.follow(0.5):
                quiet_since = time.monotonic()
            elif time.monotonic() - quiet_since > _STALL_S:
                raise CliError(
                    f"no progress for {_STALL_S:.0f} s; unfinished: {', '.join(unfinished[:5])}. "
                    f"The services' logs are in {self._fleet.logs}"
                )
        # The last incidents close right after the last outcomes, so wait until they have closed.
        deadline = time.monotonic() + _CLOSING_S
        while self._open() and time.monotonic() < deadline:
            self.follow(0.5)

    def _open(self) -> bool:
        """Whether an incident is still open."""
        cameras = self._outcome.run.cameras.values()
        return any(incident.closed is None for camera in cameras for incident in camera.incidents.values())

    def _unfinished(self) -> list[str]:
        watches = [watch.id for watch in self._outcome.watches]
        waiting = []
        for source in self._outcome.sources:
            if not source.sent:
                continue
            camera = self._outcome.run.cameras.get(source.id)
            if camera is None or len(camera.segments) < source.sent or not camera.finished(watches):
                waiting.append(source.id)
        return waiting

    def _advance(self) -> None:
        total = sum(source.duration_us for source in self._outcome.sources) / 1e6
        cameras = self._outcome.run.cameras.values()
        decoded = sum(camera.seconds for camera in cameras)
        decided = sum(sum(camera.decided_us.values()) for camera in cameras) / 1e6
        detail = f"{decided:.0f} of {total:.0f} s of footage decided ({decoded:.0f} s decoded)"
        self._bar.update(self._task, total=max(total, 1e-3), completed=min(decided, total), detail=detail)

    def _clock(self, alert: Alert) -> str:
        """Return when an alert's newest window ended, counted from the start of the stream."""
        camera = self._outcome.run.camera(alert.camera)
        seconds = camera.stream_us(alert.epoch, alert.end.ToMilliseconds()) // 1_000_000
        return f"{seconds // 60:3d}:{seconds % 60:02d}"

    def _show(self, news: Alert | UnusedRecord | None) -> None:
        if isinstance(news, UnusedRecord):
            text = f"{news.camera}: {news.topic}: {news.reason} {news.detail}"
            self._outcome.notices.append(text)
            self._bar.console.print(f"[yellow]✗[/] {escaped(text)}")
        elif news is not None and news.kind not in (Alert.KIND_UPDATED, Alert.KIND_OPINION):
            self._print(news)


def _summary(outcome: DemoResult) -> None:
    for source in outcome.sources:
        if source.error:
            outcome.notices.append(f"{source.path.name} could not be cut to its end: {source.error}")
            console.print(f"[yellow]✗[/] {escaped(source.path.name)}: {escaped(source.error)}")
    table = Table(box=None, header_style="bold", pad_edge=False)
    table.add_column("camera", overflow="fold")
    for name in ("seconds", "windows", "incidents", "patches never computed", "tokens never computed"):
        table.add_column(name, justify="right", max_width=9)
    for camera in sorted(outcome.run.cameras.values(), key=lambda each: each.id):
        table.add_row(
            escaped(camera.id),
            f"{camera.seconds:.0f}",
            str(camera.windows),
            str(len(camera.incidents)),
            percent(saved_patches(camera)),
            percent(saved_tokens(camera)),
        )
    console.print()
    console.print(table)
    incidents = sorted(
        (
            incident.peak,
            camera.id,
            incident.question,
            camera.stream_us(incident.epoch, incident.raised_wall_ms) / 1e6,
            camera.stream_us(incident.epoch, incident.end_wall_ms) / 1e6,
        )
        for camera in outcome.run.cameras.values()
        for incident in camera.incidents.values()
    )
    console.print(f"\n[bold]{len(incidents)} incidents[/], highest probability first")
    for peak, camera_id, question, begin, end in reversed(incidents):
        console.print(
            f"  [bold red]{peak:.2f}[/]  {camera_id:<20} {begin:4.0f}–{end:.0f} s  {escaped(question)}"
        )


def _write(fleet: Fleet, outcome: DemoResult, out: Path, model: Path) -> Path:
    decoders = [
        f"127.0.0.1:{service.grpc_port}" for service in fleet.services if service.stage is Stage.DECODE
    ]
    album = Album(fleet.bootstrap, decoders, masks=fleet_masks(fleet.bootstrap))
    facts = PageFacts(
        title="What the cameras showed",
        command=shlex.join(["lookout", *sys.argv[1:]]),
        facts={
            "fleet": "one machine: Apache Kafka, Redis, decode, prune-encode, prefill, alerts",
            "model": model.name,
            "rule": "two of the last three windows above 0.5",
        },
        notices=outcome.notices,
        truth={source.id: source.truth for source in outcome.sources if source.truth is not None},
    )
    try:
        return write_page(out.resolve(), outcome.run, album, facts)
    finally:
        album.close()


def _keep(fleet: Fleet, page: Path) -> None:
    console.print(f"\n[green]✓[/] the page: {escaped(page)}")
    console.print("The fleet keeps running: lookout publish, watch and alerts use it. Ctrl-C stops it.")
    console.print(
        "The films are over, so the console shows these cameras as offline. Clocks in the films are drawn."
    )
    console.print("The incidents with their pictures and clips (this link signs you in once):")
    console.print(escaped(str(fleet.address.sign_in_link())), soft_wrap=True)
    try:
        while True:
            time.sleep(_TEND_EVERY_S)
            for news in fleet.supervise():
                console.print(f"[yellow]![/] {escaped(news)}")
    except KeyboardInterrupt:
        console.print("stopping the fleet ...")


def _progress() -> Progress:
    return Progress(
        TextColumn("[bold]{task.description}"),
        BarColumn(bar_width=30),
        TextColumn("{task.fields[detail]}"),
        TimeElapsedColumn(),
        console=console,
        transient=True,
    )
