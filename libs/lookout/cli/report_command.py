"""`lookout report`: the page of what a fleet has done, from its topics."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from lookout.cli.connect import check_reachable, find_bootstrap, fleet_masks, reading
from lookout.cli.label import read_labels
from lookout.cli.options import WEB_PAGES, BootstrapOption, CliError, check_page
from lookout.cli.output import TerminalConsole, echo
from lookout.cli.report import TOPICS, Album, FleetRecord, PageFacts, shift, write_page
from lookout.cli.times import PAST, parse_since
from lookout.local import running_fleets
from lookout.missing import MissingPackageError
from lookout.wire import VERDICTS

if TYPE_CHECKING:
    from lookout.services.gateway.prose import ProseWriter

console = TerminalConsole()
#: how far back the sentences go if --since gives no time
_LONGEST = timedelta(days=31)


def report(
    out: Annotated[Path, typer.Option("--out", "-o", help="File to write the page to.")] = Path(
        "out/lookout-report.html"
    ),
    since: Annotated[str, typer.Option(help=f"Begin of the page: {PAST}.")] = "1h",
    camera: Annotated[
        list[str] | None, typer.Option("--camera", "-c", help="Only these cameras; repeat for more.")
    ] = None,
    decoder: Annotated[
        list[str] | None,
        typer.Option(
            help="gRPC address of decode, for the model's own pixels.  [default: the running fleet's]"
        ),
    ] = None,
    prose: Annotated[
        bool,
        typer.Option("--prose", help="Let a model write it: LOOKOUT_PROSE_URL, LOOKOUT_PROSE_MODEL."),
    ] = False,
    bootstrap: BootstrapOption = None,
) -> None:
    """Say in a few sentences what the fleet has decided, and write one HTML page of it.

    The sentences are those of the gateway's report: incidents, what nobody took up, and what was not watched.
    The page has timelines, incidents, key frames and costs.
    """
    check_page(out, WEB_PAGES, "--out")
    writer = shift.prose_writer() if prose else None
    address = find_bootstrap(bootstrap)
    check_reachable(address, VERDICTS.name)
    with console.status("reading the topics"):
        run, sentences = _read(address, since, camera or [], writer)
    run.labels = {label.incident: label for label in read_labels(address)}
    decoders = decoder or [
        f"127.0.0.1:{port}"
        for fleet in running_fleets()
        if fleet.bootstrap == address
        for name, port in fleet.grpc.items()
        if name.startswith("decode")
    ]
    album = Album(address, decoders, len(run.cameras), masks=fleet_masks(address))
    try:
        with console.status("fetching key frames"):
            facts = PageFacts("What the cameras showed", shlex.join(["lookout", *sys.argv[1:]]))
            page = write_page(out.resolve(), run, album, facts)
    finally:
        album.close()
    for sentence in sentences:
        console.print(sentence, markup=False, soft_wrap=True)
    echo(str(page))


def _read(
    address: str, since: str, cameras: Sequence[str], writer: ProseWriter | None
) -> tuple[FleetRecord, list[str]]:
    """Return the record of cameras (empty: all cameras), and sentences about what happened.

    Raises:
        CliError: Kafka does not answer, or a camera has no record.
    """
    run, start, now = FleetRecord(), parse_since(since), datetime.now(UTC)
    begin = now - _LONGEST if start.at_ms is None else datetime.fromtimestamp(start.at_ms / 1000, UTC)
    with ExitStack() as stack:
        tables, missing = None, ""
        try:
            tables = stack.enter_context(shift.shift_tables(address))
        except MissingPackageError as error:  # the message says what to install for the sentences
            missing = f"no sentences about it: {error}"
        with reading(address, list(TOPICS), start) as reader:
            for message in reader.until_now():
                run.take(message)
                if tables is not None:
                    tables.take(message)
        _choose(run, since, cameras)
        if tables is None:
            return run, [missing]
        begin_ms, end_ms = (round(1000 * at.timestamp()) for at in (begin, now))
        summary = tables.report(list(run.cameras), begin_ms, end_ms, writer)
    lines = [sentence.text for sentence in summary.prose or summary.sentences]
    return run, [*lines, summary.prose_note] if summary.prose_note else lines


def _choose(run: FleetRecord, since: str, cameras: Sequence[str]) -> None:
    """Remove from the run all cameras but those that were asked for; none given: keep all.

    Raises:
        CliError: A camera has no record.
    """
    if not run.cameras:
        when = "" if since == "start" else f" of the last {since}"
        raise CliError(f"no camera has a record{when}: publish footage, or give --since start")
    if missing := [name for name in cameras if name not in run.cameras]:
        names = ", ".join(sorted(run.cameras))
        raise CliError(f"no record of camera {', '.join(missing)}; there are: {names}")
    if cameras:
        run.cameras = {name: run.cameras[name] for name in cameras}
