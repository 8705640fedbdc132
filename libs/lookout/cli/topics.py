"""`lookout topics`: adds partitions while a fleet runs."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from typing import Annotated

import typer

from lookout.cli.connect import Outage, check_reachable, client_options, find_bootstrap
from lookout.cli.options import BootstrapOption
from lookout.cli.output import TerminalConsole, echo, say
from lookout.cli.signals import ending_quietly
from lookout.text import clean
from lookout.wire import SEGMENTS

app = typer.Typer(help="Manage the topics of a running fleet: grow (add partitions).", no_args_is_help=True)
news = TerminalConsole(stderr=True)

_TURN_S = 2.0


@app.callback()
def _group() -> None:
    """Keep `grow` a subcommand, because Typer would run a group's only command without its name."""


@app.command()
def grow(
    partitions: Annotated[
        int,
        typer.Option(
            "--partitions", "-p", help="Number of partitions that each of the cameras' topics gets."
        ),
    ],
    own: Annotated[
        list[str] | None,
        typer.Option("--topic", help="A topic of your own service to grow as well.", show_default=False),
    ] = None,
    wait: Annotated[
        float,
        typer.Option(
            min=0.0,
            help="Seconds to follow cameras that move. A producer sees new partitions at its client's next "
            "metadata refresh, by default within five minutes.",
        ),
    ] = 600.0,
    bootstrap: BootstrapOption = None,
) -> None:
    """Add partitions to the cameras' topics while the fleet runs.

    A camera whose key now belongs to another partition begins a new stream epoch there, and a record tells
    its old partition that it left. If the command was interrupted, run it again.
    """
    from lookout.runtime.worker.growth import add_partitions

    address = find_bootstrap(bootstrap)
    check_reachable(address, SEGMENTS.name)
    options = client_options(address)
    changed = add_partitions(options, partitions, own or ())
    say(news, "{} topics changed, {} partitions each", len(changed), partitions)
    moved = _follow(options, wait)
    echo(json.dumps({"partitions": partitions, "changed": list(changed), "moved": moved}))


def _follow(options: Mapping[str, object], wait_s: float) -> int:
    """For `wait_s` seconds, tell old partitions about cameras that moved; return the number of cameras that
    moved.
    """
    from lookout.runtime.worker.growth import Moves

    outage = Outage(options)
    moves = Moves({**options, "error_cb": outage.failed})
    moved, until = 0, time.monotonic() + wait_s
    say(news, "following cameras that move, for {} s; Ctrl-C ends it", f"{wait_s:g}")
    try:
        with ending_quietly():
            while (left_s := until - time.monotonic()) > 0:
                outage.tell()
                for departure in moves.follow(min(_TURN_S, left_s)):
                    moved += 1
                    places = departure.partition, departure.target
                    say(news, "camera {}: from partition {} to {}", clean(departure.camera), *places)
    except KeyboardInterrupt:
        say(news, "interrupted: run the command again, because cameras may still move")
    finally:
        moves.close()
    return moved
