"""`lookout publish`: sends footage to Kafka, cut at keyframes, without encoding it again."""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, BinaryIO, Literal

import typer
from confluent_kafka import KafkaError, Message
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from lookout.administration.footage import Piece, with_headers
from lookout.administration.writing import CONFIRM_S
from lookout.cli.connect import (
    LibraryErrors,
    check_reachable,
    find_bootstrap,
    hand_over,
    make_producer,
    signed_masks,
)
from lookout.cli.footage import footage_files
from lookout.cli.formats import count_text, size_text
from lookout.cli.options import BootstrapOption, CliError
from lookout.cli.output import TerminalConsole, escaped, say
from lookout.cli.times import parse_moment
from lookout.cli.watches import read_watches
from lookout.runtime.kafka_clients import Producer
from lookout.text import clean, public_url
from lookout.v1.cameras_pb2 import Camera
from lookout.video.sandbox import SandboxPool, SandboxSettings
from lookout.video.segments import CodecError
from lookout.wire import (
    CAMERA_ID_BYTES,
    MAX_SEGMENT_BYTES,
    PRIORITIES,
    SEGMENTS,
    WireError,
    check_tenant,
    is_camera_id,
    label_headers,
)
from lookout.wire.headers import Headers

if TYPE_CHECKING:
    from lookout.rules.masks import AppliedMask, Masks

_LONGEST_NAP_S = 0.2


class Rate(StrEnum):
    REAL = "real"
    MAX = "max"


@dataclass(slots=True)
class Published:
    """Counts of what was sent for one camera."""

    camera: str
    segments: int = 0
    bytes: int = 0
    duration_us: int = 0
    failures: list[str] = field(default_factory=list)


class Publisher:
    """Sends segments of any number of cameras, in order, and counts those that Kafka confirmed.

    Args:
        bootstrap: Kafka's address.
        timeout_s: Seconds after which a segment without an answer has failed.
    """

    def __init__(self, bootstrap: str, timeout_s: float = CONFIRM_S) -> None:
        self._bootstrap, self._timeout_s = bootstrap, timeout_s
        self._complaints = LibraryErrors()
        self._producer: Producer = make_producer(bootstrap, self._complaints, timeout_s)
        self.confirmed = 0
        self.sent = 0
        self._failures: list[str] = []

    def send(self, camera: str, data: bytes, headers: Headers = ()) -> None:
        """Hand a segment to the client; wait while the client's buffer is full.

        Raises:
            CliError: Kafka rejected this segment or an earlier one.
        """
        record = {"key": camera, "value": data, "headers": list(headers), "on_delivery": self._delivered}
        hand_over(self._producer, SEGMENTS.name, self._raise_failures, **record)
        self.sent += 1

    def poll(self, seconds: float) -> None:
        """Wait up to `seconds` for confirmations.

        Raises:
            CliError: Kafka rejected a segment.
        """
        self._producer.poll(seconds)
        self._raise_failures()

    def confirm(self) -> None:
        """Wait until Kafka has confirmed every segment.

        Raises:
            CliError: Kafka rejected a segment, or did not answer.
        """
        limit_s = 2 * self._timeout_s  # longer than a segment's own limit, so that each failure has a reason
        unsent = self._producer.flush(limit_s)
        self._raise_failures()
        if unsent:
            raise CliError(f"Kafka at {self._bootstrap} did not confirm {unsent} segments in {limit_s:.0f} s")

    def _delivered(self, error: KafkaError | None, _: Message) -> None:
        if error is None:
            self.confirmed += 1
        else:
            self._failures.append(self._complaints.explained(error))

    def _raise_failures(self) -> None:
        if self._failures:
            raise CliError(
                f"Kafka at {self._bootstrap} did not take a segment ({self._failures[0]}): "
                f"{self.confirmed} of {self.sent} are confirmed"
            )


SecondsOption = Annotated[
    float,
    typer.Option(min=0.0, help="Length of a segment: cut at the first keyframe after this many seconds."),
]
TenantOption = Annotated[
    str, typer.Option(help="Tenant that the camera belongs to.  [default: default]", show_default=False)
]
PriorityOption = Annotated[
    Literal["low", "normal", "high"],
    typer.Option(help="When the fleet falls behind, low is skipped first, high last."),
]
CapturedAtOption = Annotated[
    str | None,
    typer.Option(
        metavar="TIME",
        help="Clock time of the first picture, such as 2026-05-01T13:30:00Z; without an offset it is this "
        "machine's local time.  [default: so that files end now; with --rate real and stdin: now]",
        show_default=False,
    ),
]


SourceArgument = Annotated[
    str, typer.Argument(metavar="FILE|DIR|-", help="A video file, a folder of them, or - for stdin.")
]
CameraOption = Annotated[
    str, typer.Option("--camera", "-c", help="The camera's id. {name} stands for each file's name.")
]
RateOption = Annotated[Rate, typer.Option(help="real: as a camera would send it; max: as fast as possible.")]
WholeOption = Annotated[
    bool, typer.Option("--whole", help="Send each file as it is, as one segment, without looking inside.")
]
MaskOption = Annotated[
    bool,
    typer.Option("--mask", help="Grey out what the cameras' masks hide, and encode again, before sending."),
]


def publish(
    source: SourceArgument,
    camera: CameraOption,
    rate: RateOption = Rate.MAX,
    seconds: SecondsOption = 2.0,
    captured_at: CapturedAtOption = None,
    whole: WholeOption = False,
    mask: MaskOption = False,
    tenant: TenantOption = "",
    priority: PriorityOption = "normal",
    bootstrap: BootstrapOption = None,
) -> None:
    """Publish footage to camera.segments.v1.

    Footage is cut at keyframes and copied; only --mask encodes it again. Files of a folder follow each other
    in the order of their names; with {name} in --camera each file is a camera of its own. The command ends
    when Kafka has confirmed everything. Files that cannot be cut, or that break off, are reported, the rest
    is sent, and the exit code is 1.

    Examples:

        lookout publish clip.mp4 --camera gate

        lookout publish recordings/ --camera 'yard-{name}' --rate real

        other-recorder --to-stdout | lookout publish - --camera gate --rate real
    """
    cameras = {file: camera_of(camera, file) for file in sources_of(source)}
    if mask and whole:
        raise CliError("--mask re-encodes files, but --whole sends them as they are: choose one of the two")
    labels, address = _labels(tenant, priority), find_bootstrap(bootstrap)
    check_reachable(address, SEGMENTS.name)
    masks = _masks_of(address, cameras.values()) if mask else None
    _warn_unwatched(address)
    given_s = parse_moment(captured_at, "--captured-at") if captured_at else None
    publisher, failed = Publisher(address), 0
    with _progress(transient=False) as bar, cutter() as pool, cutter() as masker, ExitStack() as stack:
        start_s = given_s or _past_start_s(pool, cameras, rate, together="{name}" in camera)
        # Whole milliseconds, as in the header, so that segments sent again have the same times.
        start_us = int(start_s * 1e3) * 1000
        if None not in cameras:
            stack.enter_context(_telling_how_to_repeat(publisher, start_us))
        task = bar.add_task("publishing", total=len(cameras), detail="")
        for file, name in cameras.items():
            label = file.name if file else "stdin"
            published, tell = Published(name), _teller(bar, task, label)
            try:
                pieces = _whole(file) if whole else _cut(pool, file, seconds)
                if masks is not None:
                    pieces = _masked(masker, pieces, masks.filmed(name, start_us))
                ends = file is not None and not whole
                publish_one(publisher, published, pieces, rate, start_us, tell, labels=labels, ends=ends)
            except CodecError as error:
                failed += 1
                bar.console.print(f"[red]✗[/] {escaped(label)}: {escaped(error)}", highlight=False)
            start_us += 0 if "{name}" in camera else published.duration_us
            bar.advance(task)
        publisher.confirm()
    _conclude(publisher.confirmed, failed, len(cameras))


def _past_start_s(pool: SandboxPool, files: Iterable[Path | None], rate: Rate, *, together: bool) -> float:
    """Return when footage without a given time begins (Unix seconds), so that none of it is in the future.

    Args:
        pool: Reads how long the files are.
        files: The files that are published; None is standard input.
        rate: With `Rate.REAL`, footage begins now.
        together: Whether the files begin at the same time, each as a separate camera.
    """
    lengths = [_length_s(pool, file) for file in files] if rate is Rate.MAX else [0.0]
    return time.time() - (max(lengths) if together else sum(lengths))


@contextmanager
def _telling_how_to_repeat(publisher: Publisher, start_us: int) -> Iterator[None]:
    """Add to an error after the first segment how to repeat the command so that the fleet recognises
    duplicates.

    Args:
        publisher: Sends the segments.
        start_us: Wall clock of the first picture, Unix microseconds.
    """
    try:
        yield
    except CliError as error:
        if not publisher.sent:
            raise
        moment = datetime.fromtimestamp(start_us / 1e6, UTC).isoformat(timespec="milliseconds")
        raise CliError(
            f"{error}; once it answers, publish again with --captured-at {moment.replace('+00:00', 'Z')}: "
            "segments that Kafka already has are recognised by their times and asked once"
        ) from error


def _length_s(pool: SandboxPool, file: Path | None) -> float:
    """Return a file's length in seconds; 0 for standard input, and for unreadable files, which fail later."""
    from lookout.video.sandbox.confined_reader import recording_length_us

    try:
        return 0.0 if file is None else recording_length_us(pool, file) / 1e6
    except CodecError:
        return 0.0


def _cut(pool: SandboxPool, file: Path | None, seconds: float) -> Iterator[Piece]:
    """Cut a file, or standard input, into segments."""
    return cut_pipe(pool, sys.stdin.buffer, seconds) if file is None else cut_file(pool, file, seconds)


def _masks_of(address: str, cameras: Iterable[str]) -> Masks:
    """Return the current masks of cameras.

    Raises:
        CliError: A camera has no mask.
    """
    from lookout.rules.masks import Masks

    masks = Masks(signed_masks(address).newest)
    for name in cameras:
        if not masks.known(name):
            raise CliError(
                f"--mask: camera {clean(name, 60)} has no mask, and nothing was published; set one first: "
                f"lookout camera mask set {clean(name, 60)} --hide 'window:0.6,0.1 0.9,0.1 0.9,0.4'"
            )
    return masks


def _masked(pool: SandboxPool, pieces: Iterator[Piece], applied: AppliedMask) -> Iterator[Piece]:
    """Yield segments with a mask applied.

    Args:
        pool: Masks the segments; a different pool cuts them.
        pieces: The segments as they were filmed.
        applied: The mask.

    Raises:
        CodecError: A segment cannot be re-encoded; neither it nor any later segment is sent.
    """
    for piece in pieces:
        data = piece.data
        if applied.mask is not None:
            data = pool.masked(data, applied.mask, MAX_SEGMENT_BYTES)
        yield _Whole(data, piece.start_us, piece.duration_us)


def _teller(bar: Progress, task: TaskID, label: str) -> Callable[[Published], None]:
    """Return a callback that shows on the bar how much of a file was published."""

    def tell(published: Published) -> None:
        detail = f"{label}: {count_text(published.segments, 'segment')}, {size_text(published.bytes)}"
        bar.update(task, detail=detail)

    return tell


def _warn_unwatched(address: str) -> None:
    """Warn if no watch exists: footage is never asked about watches that are added after it is published."""
    with suppress(CliError):
        if not read_watches(address):
            TerminalConsole(stderr=True).print(
                "[yellow]![/] no watch exists yet, and footage published before a watch is never asked: "
                'lookout watch add "Is anyone lying on the ground?", then publish',
                highlight=False,
                soft_wrap=True,
            )


def sources_of(source: str) -> list[Path | None]:
    """Return the files to publish; None is standard input.

    Raises:
        CliError: The file does not exist, or the source is a URL.
    """
    if source == "-":
        return [None]
    if "://" in source:
        raise CliError(
            f"{public_url(source)} is an address, and publish takes files, folders and -: "
            "lookout camera add NAME ADDRESS pulls a camera"
        )
    return [*footage_files(Path(source))]


def camera_of(camera: str, path: Path | None) -> str:
    """Return the id under which a file (None: standard input) is published.

    Raises:
        CliError: The result is not a valid camera id, or `camera` has an unknown placeholder.
    """
    if unknown := re.search(r"\{\w*\}", camera.replace("{name}", "")):
        raise CliError(f"--camera {camera!r}: {unknown[0]} is unknown; {{name}} stands for each file's name")
    name = camera.replace("{name}", path.stem if path else "stdin")
    if not is_camera_id(name):
        raise CliError(
            f"--camera: {name[:40]!r} is not a valid camera id: give printable text of 1 to "
            f"{CAMERA_ID_BYTES} bytes"
        )
    return name


def _conclude(confirmed: int, failed: int, files: int) -> None:
    """Print what was sent.

    Raises:
        typer.Exit: A file was not sent completely.
    """
    broken = f"; {failed} of {count_text(files, 'file')} could not be cut to the end" if failed else ""
    console = TerminalConsole(stderr=True)
    say(console, "[green]✓[/] Kafka confirmed {}{}", count_text(confirmed, "segment"), broken)
    if failed:
        raise typer.Exit(1)


def _labels(tenant: str, priority: str) -> dict[str, str]:
    """Return the headers for tenant and priority."""
    try:
        return label_headers(Camera(tenant=check_tenant(tenant), priority=PRIORITIES[priority]))
    except WireError as error:
        raise CliError(f"--tenant: {error}") from None


def publish_one(
    publisher: Publisher,
    published: Published,
    pieces: Iterator[Piece],
    rate: Rate,
    start_us: int,
    tell: Callable[[Published], None] = lambda _: None,
    *,
    labels: Mapping[str, str] = MappingProxyType({}),
    ends: bool = False,
) -> None:
    """Send the pieces of one source under one camera id.

    Args:
        published: The camera, and counts of what was sent. The counts are updated after each segment, so they
            stay correct if the source breaks off.
        start_us: Wall clock of the first picture, Unix microseconds; each segment's header has the time of
            its own first picture.
        tell: Called after every segment.
        labels: Headers for every segment, in addition to its time.
        ends: Whether the source is a recording. If so, the last segment is marked, so that the silence after
            it does not count as an outage.
    """
    begin, end_us = time.monotonic(), 0
    for piece, headers in with_headers(pieces, start_us, labels, ends=ends):
        if rate is Rate.REAL:
            if not ends:  # a pipe: after a gap, the next segment has already arrived
                begin -= max(0, piece.start_us - end_us) / 1e6
            end_us = piece.start_us + piece.duration_us
            # Like a camera, send a segment only after its last picture's time.
            _wait_until(publisher, begin + (piece.start_us + piece.duration_us) / 1e6)
        publisher.send(published.camera, piece.data, headers)
        published.segments += 1
        published.bytes += len(piece.data)
        published.duration_us = max(published.duration_us, piece.start_us + piece.duration_us)
        tell(published)


def cutter() -> SandboxPool:
    """Start a process that cuts files and pipes. On Linux the process is confined to this; elsewhere it is
    not.
    """
    return SandboxPool(1, SandboxSettings(strict=sys.platform == "linux"))


def cut_file(pool: SandboxPool, path: Path, seconds: float) -> Iterator[Piece]:
    """Cut an untrusted file in a sandbox. Pieces start at keyframes and are small enough for Kafka."""
    return pool.cut(path, target_s=seconds, max_bytes=MAX_SEGMENT_BYTES)


def cut_pipe(pool: SandboxPool, pipe: BinaryIO, seconds: float) -> Iterator[Piece]:
    """Cut a pipe into segments and yield each one when complete."""
    return pool.cut_stream(pipe, target_s=seconds, max_bytes=MAX_SEGMENT_BYTES)


@dataclass(frozen=True, slots=True)
class _Whole:
    data: bytes
    start_us: int = 0
    duration_us: int = 0


def _whole(path: Path | None) -> Iterator[Piece]:
    data = path.read_bytes() if path else sys.stdin.buffer.read(MAX_SEGMENT_BYTES + 1)
    if len(data) > MAX_SEGMENT_BYTES:
        raise CliError(
            f"{path or 'stdin'} exceeds {size_text(MAX_SEGMENT_BYTES)}: omit --whole, so that it is cut "
            f"into segments"
        )
    yield _Whole(data)


def _wait_until(publisher: Publisher, moment: float) -> None:
    while (remaining := moment - time.monotonic()) > 0:
        publisher.poll(min(remaining, _LONGEST_NAP_S))


def _progress(transient: bool) -> Progress:
    return Progress(
        TextColumn("[bold]{task.description}"),
        BarColumn(bar_width=24),
        TextColumn("{task.completed}/{task.total} files"),
        TimeElapsedColumn(),
        TextColumn("[dim]{task.fields[detail]}"),
        console=TerminalConsole(stderr=True),
        transient=transient,
    )
