"""`lookout find`: moments of a fleet's cameras, ranked by memory and verified on their windows."""

from __future__ import annotations

import json
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from google.protobuf.json_format import MessageToDict

from lookout.cli.ask import RecallOption
from lookout.cli.ask_fleet import failure, recall_of
from lookout.cli.formats import local_time
from lookout.cli.model import AnywayOption
from lookout.cli.options import BootstrapOption, CliError, asked
from lookout.cli.output import TerminalConsole, echo, say
from lookout.cli.times import parse_since, parse_span
from lookout.models.questions import UNTRAINED
from lookout.past.find import SHARE
from lookout.text import clean

if TYPE_CHECKING:
    from lookout.runtime.net import GrpcSecurity
    from lookout.v1.memory_pb2 import (
        FindHit,
        FindProgress,
        FindResponse,
        FindSummary,
        NotSearched,
        PictureRegion,
    )

_LISTED = 20
"""Maximum number of times not searched that are printed one by one."""


def find(
    question: Annotated[
        str | None,
        typer.Argument(
            help='What to look for: a yes/no question, such as "Is anyone lying down?". Join questions that '
            'hold one after the other by ", then ". Optional with --like or --picture.',
            show_default=False,
        ),
    ] = None,
    camera: Annotated[
        list[str] | None,
        typer.Option("--camera", "-c", help="Id, or pattern ('yard-*'); repeat for more.  [default: all]"),
    ] = None,
    since: Annotated[
        str | None, typer.Option(help="Start: how long ago (2h), or 2026-05-01T13:30.  [default: the oldest]")
    ] = None,
    until: Annotated[str | None, typer.Option(help="Only before this time.  [default: now]")] = None,
    limit: Annotated[int, typer.Option(min=1, max=1000, help="Stop after this many hits.")] = 20,
    threshold: Annotated[float, typer.Option(min=0.01, max=1.0, help="Minimum p(yes) of a hit.")] = 0.5,
    share: Annotated[
        float, typer.Option(min=0.001, max=1.0, help="Maximum share of all windows to compute.")
    ] = SHARE,
    like: Annotated[
        str | None, typer.Option(help="Look for what a picture of this camera shows (with --at).")
    ] = None,
    at: Annotated[str | None, typer.Option(help="When that picture was taken: 2026-05-01T13:30:05.")] = None,
    picture: Annotated[
        Path | None, typer.Option(help="Look for what a picture of your own shows: a JPEG of 1 MiB at most.")
    ] = None,
    zone: Annotated[
        str | None,
        typer.Option(help="The part of either picture: '0.1,0.2 0.4,0.2 0.4,0.9' (0..1).  [default: all]"),
    ] = None,
    anyway: AnywayOption = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object per line.")] = False,
    bootstrap: BootstrapOption = None,
    recall: RecallOption = None,
) -> None:
    """Find moments that a fleet's cameras saw: proposed by their memory, verified exactly."""
    from lookout.past.find.client import find as search

    begin_ms, end_ms = parse_span(since or "start", until or "now")
    region = _region(like, at, zone) if picture is None else _own_region(picture, like or at, zone)
    if question is None and region is None:
        raise CliError("say what to look for: a question, --like CAMERA --at TIME, or --picture FILE")
    address, security = recall_of(bootstrap, recall)
    scope = (camera or ["*"], _time(begin_ms), _time(end_ms), limit)
    if question is None:
        return _similar(region, scope, as_json, address, security)
    responses = search(
        asked(question),
        *scope,
        recall=address,
        threshold=threshold,
        share=share,
        anyway=anyway,
        like=region,
        security=security,
    )
    _verified(responses, as_json, address)


def _verified(responses: Iterable[FindResponse], as_json: bool, address: str) -> None:
    """Print the messages of a search as they arrive."""
    import grpc

    console = TerminalConsole(stderr=True)
    shown: dict[int, FindHit] = {}
    try:
        with console.status("ranking") as status:
            for response in responses:
                match response.WhichOneof("part"):
                    case "progress":
                        _progress(response.progress, status, console, as_json)
                    case "hit":
                        _hit(response.hit, shown, as_json)
                    case "summary":
                        _summary(response.summary, shown, as_json)
    except grpc.RpcError as error:
        found = ". The hits above are valid, but the rest was not searched: search again" if shown else ""
        raise CliError(failure(error, address) + found) from None


def _region(like: str | None, at: str | None, zone: str | None) -> PictureRegion | None:
    """Return the part of a picture that --like, --at and --zone name; None without --like.

    Raises:
        CliError: The options are incomplete or contradict each other.
    """
    if like is None:
        if at is not None or zone is not None:
            raise CliError("--at needs --like CAMERA, and --zone needs --like CAMERA or --picture FILE")
        return None
    if at is None:
        raise CliError("--like needs --at: when the picture was taken")
    from lookout.past.find.client import region

    corners = _corners(zone)
    taken = _time(parse_since(at, "--at").at_ms)
    if taken is None:
        raise CliError("--at start: give the time of a picture, such as 2026-05-01T13:30:05")
    return region(like, taken, corners)


def _own_region(path: Path, other: str | None, zone: str | None) -> PictureRegion:
    """Return the part of a picture in a file.

    Raises:
        CliError: The file is not a JPEG of a size that recall accepts.
    """
    from lookout.past.find.client import picture
    from lookout.past.find.types import JPEG, PICTURE_BYTES

    if other is not None:
        raise CliError("give --picture FILE, or --like CAMERA --at TIME, not both")
    name = clean(str(path), 200)
    try:
        with path.open("rb") as file:
            data = file.read(PICTURE_BYTES + 1)
    except OSError as error:
        raise CliError(f"--picture {name}: {error.strerror}") from None
    if len(data) > PICTURE_BYTES or not data.startswith(JPEG):
        raise CliError(
            f"--picture {name}: give a JPEG of {PICTURE_BYTES >> 20} MiB at most; "
            "ffmpeg -i PICTURE -vf scale=1280:-2 out.jpg makes one"
        )
    return picture(data, _corners(zone))


def _corners(zone: str | None) -> list[tuple[float, float]]:
    """Return the corners of --zone; none without it.

    Raises:
        CliError: The text is not a polygon.
    """
    from lookout.rules import RuleError
    from lookout.rules.zones import parse_points

    try:
        return parse_points(zone) if zone else []
    except RuleError as error:
        raise CliError(f"--zone {clean(zone or '', 60)!r}: {error}") from None


def _similar(
    region: PictureRegion | None,
    scope: tuple[list[str], datetime | None, datetime | None, int],
    as_json: bool,
    address: str,
    security: GrpcSecurity | None,
) -> None:
    """Print the times that look most like a part of a picture."""
    import grpc

    from lookout.past.find.client import similar

    assert region is not None
    try:
        response = similar(region, *scope, recall=address, security=security)
    except grpc.RpcError as error:
        raise CliError(failure(error, address)) from None
    if as_json:
        fields = MessageToDict(
            response, preserving_proto_field_name=True, always_print_fields_with_no_presence=True
        )
        echo(json.dumps(fields))
        return
    for span in response.spans:
        begin, end = local_time(span.begin_us), local_time(span.end_us).partition(" ")[2]
        echo(f"{span.score:6.2f}  {begin}  {end}  {span.camera}")
    echo(f"{len(response.spans)} times look like it; add a question to verify them")
    if response.note:
        echo(f"there may be more: {response.note}")


def _time(ms: int | None) -> datetime | None:
    return None if ms is None else datetime.fromtimestamp(ms / 1000, UTC)


def _progress(progress: FindProgress, status: Any, console: TerminalConsole, as_json: bool) -> None:
    if progress.note and not as_json:
        say(console, "{}: {}", progress.stage, progress.note)
    status.update(f"{progress.stage} {progress.camera} {progress.done} of {progress.total}")


def _hit(hit: FindHit, shown: dict[int, FindHit], as_json: bool) -> None:
    grown = hit.number in shown
    for number in hit.merged:
        shown.pop(number, None)
    shown[hit.number] = hit
    if as_json:
        echo(json.dumps({"hit": MessageToDict(hit, preserving_proto_field_name=True)}))
        return
    if not grown and len(shown) == 1 and hit.number == 1:
        echo(f"{'hit':>4}  {'p(yes)':6}  {'from':19}  {'to':8}  {'basis':11}  camera")
    begin, end = local_time(hit.begin_us), local_time(hit.end_us).partition(" ")[2]
    lowest = min(verdict.p_yes for verdict in (hit.verdict, *hit.then))
    echo(
        f"{hit.number:>4}  {lowest:6.3f}  {begin}  {end}  {hit.verdict.basis:11}  "
        f"{hit.verdict.camera}{'  (longer than before)' if grown else ''}"
        f"{f'  ({UNTRAINED})' if hit.verdict.untrained else ''}"
    )
    for verdict in hit.then:
        begin = local_time(verdict.start.ToMicroseconds())
        echo(f"{'':4}  {verdict.p_yes:6.3f}  {begin}  then: {verdict.question}")


def _summary(summary: FindSummary, shown: dict[int, FindHit], as_json: bool) -> None:
    if as_json:
        echo(json.dumps({"summary": MessageToDict(summary, preserving_proto_field_name=True)}))
        return
    cost = summary.cost
    echo(
        f"{len(summary.hits)} hits on {len({hit.verdict.camera for hit in shown.values()})} of "
        f"{summary.cameras} cameras; {summary.asked} of {summary.ranked} spans asked, {cost.windows} of "
        f"{cost.windows_total} windows computed; ended: {summary.ended}"
    )
    if cost.HasField("share"):
        echo(f"cost: {cost.share:.1%} of asking every window ({cost.flops / 1e9:.1f} GFLOP)")
    likely = sorted((one for one in summary.not_searched if one.HasField("proposed")), key=_unlikely)
    for entry in likely[:_LISTED]:
        begin, end = local_time(entry.begin_us), local_time(entry.end_us).partition(" ")[2]
        echo(f"likely: {entry.proposed:.3f}  {begin}  {end}  {entry.camera} (by its memory, not verified)")
    if likely:
        echo(f"likely moments: {len(likely)}; to verify one, add --camera, --since and --share 1")
    unsearched = [one for one in summary.not_searched if not one.HasField("proposed")]
    for entry in unsearched[:_LISTED]:
        times = (
            f" {local_time(entry.begin_us)} to {local_time(entry.end_us)}"
            if entry.HasField("begin_us")
            else ""
        )
        echo(f"not searched: {entry.camera or 'all'}{times}: {entry.reason}")
    if len(unsearched) > _LISTED:
        echo(f"not searched: {len(unsearched) - _LISTED} more; --json prints all")


def _unlikely(entry: NotSearched) -> float:
    return -entry.proposed
