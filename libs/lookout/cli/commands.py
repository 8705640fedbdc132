"""The commands by name. Each is imported only when it runs, so that no command waits for another command's
imports.
"""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import wraps
from importlib import import_module
from typing import Any, Final

import typer
from typer.core import TyperCommand, TyperGroup
from typer.exceptions import TyperException

from lookout.cli.options import CliError
from lookout.text import without_credentials


def without_long_words(text: str, limit: int) -> str:
    """Return a text in which words of `limit` characters or more are cut to sixty."""
    return re.sub(rf"\S{{{limit},}}", lambda word: f"{word[0][:60]}...", text)


@dataclass(frozen=True, slots=True)
class CommandPlace:
    """Where a command is defined.

    Attributes:
        module: Its module in `lookout.cli`.
        name: The name of its function; for a group of commands, of its app.
        text: The first line of its help.
        logs: Whether to call `log_plainly` before the command runs. If not, structlog is not imported,
            which would take longer than everything else in a small command. Such a command calls
            `log_plainly` itself before it opens anything that logs.
    """

    module: str
    name: str
    text: str
    group: bool = False
    logs: bool = True


COMMANDS = {
    "demo": CommandPlace(
        "demo",
        "demo",
        "Play rendered cameras (and your footage) through a real fleet on this machine and watch the alerts.",
    ),
    "up": CommandPlace(
        "up",
        "up",
        "Run a whole fleet on this machine: Kafka, Redis, the services and the HTTP API. Ctrl-C ends it.",
    ),
    "sign-in": CommandPlace(
        "sign_in",
        "sign_in",
        "Print a one-time link that signs in to the HTTP API of the fleet that runs here.",
    ),
    "publish": CommandPlace("publish", "publish", "Publish footage to camera.segments.v1."),
    "alerts": CommandPlace("alerts", "alerts", "Follow alerts until Ctrl-C."),
    "coverage": CommandPlace(
        "coverage", "coverage", "Show how much of each watch's time was analysed, and why the rest was not."
    ),
    "analyze": CommandPlace("analyze", "analyze", "Ask yes/no questions about recordings."),
    "ask": CommandPlace(
        "ask",
        "ask",
        "Ask what a file or a camera showed earlier: p(yes) or text, the times it used, coverage, cost.",
    ),
    "find": CommandPlace(
        "find",
        "find",
        "Find moments that a fleet's cameras saw: proposed by their memory, verified exactly.",
    ),
    "recordings": CommandPlace(
        "recordings",
        "app",
        "Manage jobs about recordings: list, show, cancel.",
        group=True,
        logs=False,
    ),
    "topics": CommandPlace(
        "topics",
        "app",
        "Manage the topics of a running fleet: grow (add partitions).",
        group=True,
        logs=False,
    ),
    "verify": CommandPlace(
        "verify", "verify", "Recompute committed verdicts from Kafka, and compare p(yes)."
    ),
    "canary": CommandPlace(
        "canary",
        "canary",
        "Compare a canary's verdicts with those of the fleet on the same windows.",
        logs=False,
    ),
    "backtest": CommandPlace(
        "backtest",
        "backtest",
        "Back-test a question: which incidents it would have raised in the past, and what it costs.",
    ),
    "label": CommandPlace(
        "label",
        "label",
        "Label an incident as right or wrong; `lookout backtest --labels` measures precision and recall.",
    ),
    "backtests": CommandPlace(
        "recordings", "backtests", "Manage back-tests of a fleet: list, show, cancel.", group=True, logs=False
    ),
    "erase": CommandPlace(
        "erase",
        "erase",
        "Erase a camera, or a time range of it, everywhere, and get a signed receipt.",
    ),
    "inspect": CommandPlace(
        "inspect", "inspect", "Show what decoding a file gives: codec, frames, motion, damage."
    ),
    "report": CommandPlace(
        "report_command",
        "report",
        "Say in a few sentences what the fleet has decided, and write one HTML page of it.",
    ),
    "cost": CommandPlace(
        "cost", "cost", "Print what each tenant, camera and watch cost in a month.", logs=False
    ),
    "doctor": CommandPlace(
        "doctor",
        "doctor",
        "Check software, addresses, topics and services of this machine, or of a cluster.",
    ),
    "eval": CommandPlace(
        "model_command",
        "evaluate_model",
        "Score a checkpoint on labelled clips: F1 per question and cost, with and without pruning and reuse.",
    ),
    "watch": CommandPlace(
        "watches", "app", "Manage standing questions: add, list, remove.", group=True, logs=False
    ),
    "camera": CommandPlace(
        "cameras",
        "app",
        "Manage cameras that the fleet pulls (add, list, rm), their time zones, and privacy masks (mask).",
        group=True,
        logs=False,
    ),
    "notify": CommandPlace(
        "notify",
        "app",
        "Manage who is told of incidents: add, list, test, snooze, remove.",
        group=True,
        logs=False,
    ),
    "memory": CommandPlace(
        "ask",
        "app",
        "Manage memories: list, check, repair, remove, trim; rebuild a fleet's lost ones.",
        group=True,
        logs=False,
    ),
    "model": CommandPlace(
        "model_command", "app", "Check or serve a model checkpoint, or write its vision half.", group=True
    ),
}


def load_command(name: str) -> Any:
    """Import a command and return it."""
    place = COMMANDS[name]
    found = getattr(import_module(f"lookout.cli.{place.module}"), place.name)
    if place.logs:
        log_plainly()
    if place.group:
        group = typer.main.get_group(found)
        group.name = name
        for command in _commands_of(group):
            _check_numbers(command)
            _sort_help(command)
        return group
    app = typer.Typer(
        add_completion=False,
        rich_markup_mode="markdown",
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.command(name)(found)
    command = typer.main.get_command(app)
    _check_numbers(command)
    _sort_help(command)
    return command


def _commands_of(group: Any) -> Iterator[Any]:
    """Yield the commands of a group and of the groups in it."""
    for command in group.commands.values():
        if hasattr(command, "commands"):
            yield from _commands_of(command)
        else:
            yield command


#: options that few people need; every command's help shows them last
_ADVANCED: Final = frozenset(
    [
        "anyway",
        "decoder",
        "device",
        "dtype",
        "gone",
        "group",
        "holder",
        "kafka",
        "key",
        "open_servers",
        "own",
        "part",
        "policy",
        "preset",
        "redis",
        "rho",
        "sandbox",
        "setting",
        "threads",
        "tolerance",
    ]
)
#: options that apply only together with --fleet
_WITH_FLEET: Final = frozenset(["bootstrap", "identity", "recall", "tenant", "wait"])


def _sort_help(command: Any) -> None:
    """Show options that few people need under separate headings, after the other options."""
    has_fleet = any(parameter.name == "fleet" for parameter in command.params)
    for parameter in command.params:
        if parameter.name in _ADVANCED and not parameter.required:
            parameter.rich_help_panel = "Advanced"
        elif has_fleet and parameter.name in _WITH_FLEET:
            parameter.rich_help_panel = "With --fleet"


def _check_numbers(command: Any) -> None:
    """Make a command reject infinite numbers and NaN, which the ranges of its options do not exclude."""
    run, options = command.callback, {option.name: option.opts[0] for option in command.params}

    @wraps(run)
    def checked(**values: Any) -> Any:
        for name, value in values.items():
            if isinstance(value, float) and not math.isfinite(value):
                raise CliError(f"{options[name]}: {value} is not a finite number")
        return run(**values)

    command.callback = checked


def log_plainly() -> None:
    """Format log lines for people: on stderr, without colours, untrusted texts escaped."""
    import structlog

    from lookout.text import clean_event

    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.format_exc_info,
            clean_event,
            structlog.dev.ConsoleRenderer(colors=False),
        ],
        # Looked up for every line: a caller may redirect stderr and close it again.
        logger_factory=lambda *_: structlog.PrintLogger(sys.stderr),
    )


@contextmanager
def _presentable() -> Iterator[None]:
    """Remove passwords in addresses, and words of thousands of characters, from usage errors."""
    try:
        yield
    except TyperException as error:
        if isinstance(message := getattr(error, "message", None), str):
            vars(error)["message"] = without_long_words(without_credentials(message), 80)
        raise


class CommandGroup(TyperGroup):
    """The group of all commands. Listing them imports none of them."""

    _listing = False

    def make_context(self, *arguments: Any, **more: Any) -> Any:
        """Parse the words before the command's name."""
        with _presentable():
            return super().make_context(*arguments, **more)

    def invoke(self, ctx: Any) -> Any:
        """Run the command."""
        with _presentable():
            return super().invoke(ctx)

    def list_commands(self, ctx: Any) -> list[str]:
        """Return the names in the order of the list."""
        return list(COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Return a command; while commands are listed, return only its name and help."""
        if cmd_name not in COMMANDS:
            return None
        if self._listing:
            return TyperCommand(cmd_name, help=COMMANDS[cmd_name].text)
        return load_command(cmd_name)

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Write the list of commands without rich, because importing its Markdown takes longer than
        everything else here.
        """
        self._listing, markup = True, self.rich_markup_mode
        self.rich_markup_mode = None
        try:
            super().format_help(ctx, formatter)
        finally:
            self._listing, self.rich_markup_mode = False, markup

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write each command with its whole text."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, place.text) for name, place in COMMANDS.items()])
