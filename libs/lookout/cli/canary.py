"""`lookout canary`: compares the answers of a new model or policy with the fleet's."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from typing import Annotated

import typer

from lookout.cli.alerts import CameraPattern, WatchPattern
from lookout.cli.connect import check_reachable, find_bootstrap, has_topic, reading
from lookout.cli.options import BootstrapOption, CliError, Position
from lookout.cli.output import echo
from lookout.cli.times import PAST, parse_since
from lookout.past.canaries import CanaryComparison, CanaryRule, Decision
from lookout.text import clean
from lookout.v1.verdicts_pb2 import Verdict
from lookout.wire import CANARY_VERDICTS, VERDICTS, WireError, from_json, names_id

_CODES = {Decision.PROMOTE: 0, Decision.ROLL_BACK: 1, Decision.WAIT: os.EX_TEMPFAIL}


def canary(
    windows: Annotated[
        int, typer.Option(min=1, help="Number of windows to compare before deciding.")
    ] = CanaryRule.windows,
    differ: Annotated[
        float,
        typer.Option(min=0.0, max=1.0, help="Maximum share of windows whose answers may differ."),
    ] = CanaryRule.differ,
    unanswered: Annotated[
        float,
        typer.Option(min=0.0, max=1.0, help="Maximum share of the fleet's answers that the canary may lack."),
    ] = CanaryRule.unanswered,
    camera: CameraPattern = None,
    watch: WatchPattern = None,
    since: Annotated[str, typer.Option(help=f"{PAST}.")] = "start",
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
    bootstrap: BootstrapOption = None,
) -> None:
    """Compare a canary's verdicts with those of the fleet on the same windows.

    Exit code: 0 promote it, 1 roll it back, 75 wait for more windows.
    """
    address = find_bootstrap(bootstrap)
    check_reachable(address, VERDICTS.name)
    if not has_topic(address, CANARY_VERDICTS.name):
        raise CliError(
            f"no topic {CANARY_VERDICTS.name}: start a canary first (lookout up --canary, or the chart's "
            "canary.enabled)"
        )
    comparison, begin = CanaryComparison(), parse_since(since)
    for verdict in _verdicts(address, CANARY_VERDICTS.name, begin, camera, watch):
        comparison.add_canary(verdict)
    for verdict in _verdicts(address, VERDICTS.name, begin, camera, watch):
        comparison.add_fleet(verdict)
    decision, why = comparison.decide(CanaryRule(windows, differ, unanswered))
    if as_json:
        echo(json.dumps({"decision": decision.value, "why": why, **comparison.as_json()}))
    else:
        _tell(comparison, decision, why)
    raise typer.Exit(_CODES[decision])


def _verdicts(
    address: str, topic: str, begin: Position, camera: str | None, watch: str | None
) -> Iterator[Verdict]:
    with reading(address, [topic], begin) as reader:
        for message in reader.until_now():
            try:
                verdict = from_json(message.value() or b"", Verdict)
            except WireError:
                continue  # other programs may write to the topic
            if names_id(camera or "*", verdict.camera) and names_id(watch or "*", verdict.watch):
                yield verdict


def _tell(comparison: CanaryComparison, decision: Decision, why: str) -> None:
    numbers = comparison.as_json()
    echo(f"{decision.value}: {why}")
    echo(
        f"{numbers['cameras']} cameras, {numbers['pairs']} windows answered by both; p(yes) differs by "
        f"{numbers['mean_difference']:.4f} on average, {numbers['largest_difference']:.4f} at most"
    )
    for name in ("partial", "gained", "neither", "missing", "doubled"):
        if numbers[name]:
            echo(f"  {name}: {numbers[name]}")
    for kind, count in numbers["unanswered"].items():
        echo(f"  answered by the fleet, {kind} in the canary: {count}")
    for entry in comparison.disagreements:
        place = f"{clean(entry.camera)}, {clean(entry.watch)}, until {entry.end_ms}"
        echo(f"  {place}: fleet {entry.fleet:.3f}, canary {entry.canary:.3f}")
