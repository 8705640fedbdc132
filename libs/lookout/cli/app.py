"""The `lookout` command."""

from __future__ import annotations

import os
import sys
from importlib import metadata
from typing import Annotated

import typer
from confluent_kafka import KafkaException
from rich.markup import escape

from lookout.cli import alerts as alerts_command
from lookout.cli import analyze as analyze_command
from lookout.cli import ask as ask_command
from lookout.cli import coverage as coverage_command
from lookout.cli import demo as demo_command
from lookout.cli import doctor as doctor_command
from lookout.cli import inspect as inspect_command
from lookout.cli import model_command, report_command, watches
from lookout.cli import publish as publish_command
from lookout.cli import up as up_command
from lookout.cli import verify as verify_command
from lookout.cli.output import TerminalConsole, echo
from lookout.errors import LookoutError

app = typer.Typer(
    name="lookout",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Standing questions, answered on every window of every camera.\n\n"
    "Start with `lookout demo`. For footage of your own: `lookout up` in one terminal, then "
    "`lookout watch add`, `lookout publish` and `lookout alerts` in another.",
)

_state = {"debug": False}


def _version(wanted: bool) -> None:
    if wanted:
        echo(f"lookout {metadata.version('lookout-fleet')}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool,
        typer.Option("--version", help="Show the version and exit.", callback=_version, is_eager=True),
    ] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")] = False,
) -> None:
    _state["debug"] = debug


app.command("demo")(demo_command.demo)
app.command("up")(up_command.up)
app.command("publish")(publish_command.publish)
app.add_typer(watches.app, name="watch")
app.command("alerts")(alerts_command.alerts)
app.command("coverage")(coverage_command.coverage)
app.command("analyze")(analyze_command.analyze)
app.command("ask")(ask_command.ask)
app.add_typer(ask_command.app, name="memory")
app.command("verify")(verify_command.verify)
app.command("inspect")(inspect_command.inspect)
app.command("report")(report_command.report)
app.command("doctor")(doctor_command.doctor)
app.add_typer(model_command.app, name="model")
app.command("eval")(model_command.evaluate_model)


def main() -> None:
    """Run the command; an error is one line and exit code 1."""
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")  # commands have bars of their own
    try:
        app()
    except KafkaException as error:
        _fail(f"Kafka: {error.args[0].str()}", error)
    except LookoutError as error:
        _fail(str(error), error)
    except OSError as error:
        text = f"{error.filename}: {error.strerror}" if error.filename else str(error)
        _fail(text or type(error).__name__, error)


def _fail(text: str, error: BaseException) -> None:
    if _state["debug"]:
        raise error
    TerminalConsole(stderr=True).print(f"[bold red]error[/] {escape(text)}", highlight=False, soft_wrap=True)
    sys.exit(1)
