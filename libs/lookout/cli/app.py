"""The `lookout` command."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from io import TextIOWrapper
from itertools import pairwise
from typing import Annotated

import typer

from lookout.cli.commands import CommandGroup, without_long_words
from lookout.errors import LookoutError
from lookout.missing import missing_package

app = typer.Typer(
    name="lookout",
    cls=CommandGroup,
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
_OUTPUT = "standard output"


def _version(wanted: bool) -> None:
    if wanted:
        import lookout
        from lookout.cli.output import echo

        echo(f"lookout {lookout.__version__}")
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


class _NamedOutput(TextIOWrapper):
    """Standard output whose errors (a full disk, for example) say that standard output failed."""

    def __init__(self, output: TextIOWrapper) -> None:
        encoding, errors = output.encoding, output.errors  # not available after `detach`
        lines, through = output.line_buffering, output.write_through
        buffer = output.detach()
        super().__init__(buffer, encoding, errors, line_buffering=lines, write_through=through)

    def write(self, text: str, /) -> int:
        """Write text; an error says that standard output failed."""
        with _named():
            return super().write(text)

    def flush(self) -> None:
        """Flush the output; an error says that standard output failed."""
        with _named():
            super().flush()


@contextmanager
def _named() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        error.filename = _OUTPUT
        raise


def _drop_output() -> None:
    """Discard the text that standard output did not accept, so that Python does not fail again at exit."""
    with open(os.devnull, "wb") as nothing:
        os.dup2(nothing.fileno(), sys.stdout.fileno())


def main() -> None:
    """Run the command; print an error as one line and exit with code 1."""
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")  # commands show their own progress bars
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):  # escape characters that the locale cannot encode
            stream.reconfigure(errors="backslashreplace")
    if type(sys.stdout) is TextIOWrapper:  # unless a test has replaced it
        sys.stdout = _NamedOutput(sys.stdout)
    try:
        if os.environ.get("LOOKOUT_PREFIX"):
            _check_prefix()
        _check_words(sys.argv[1:])
        app()
    except LookoutError as error:
        _fail(str(error), error)
    except ModuleNotFoundError as error:
        if (missing := missing_package(error)) is None:
            raise
        _fail(str(missing), error)
    except OSError as error:
        if error.filename == _OUTPUT:
            _drop_output()
        text = f"{error.filename}: {error.strerror}" if error.filename else error.strerror or str(error)
        _fail(text or type(error).__name__, error)
    except Exception as error:
        if not _is_kafka(error):
            raise
        from lookout.runtime.kafka_clients import error_text

        _fail(f"Kafka: {error_text(error.args[0])}", error)


def _check_prefix() -> None:
    from lookout.wire import NAME_PREFIX, prefix_fault

    if fault := prefix_fault():
        raise LookoutError(f"LOOKOUT_PREFIX={NAME_PREFIX[:60]!r} {fault}")


def _check_words(words: Sequence[str]) -> None:
    """Reject words that are empty, contain NUL, or hold characters that the locale cannot encode.

    A script passes an empty word for a variable that is not set. An empty folder would then mean the working
    folder, and an empty tenant all tenants.
    """
    for before, word in pairwise(["", *words]):
        option = word.removesuffix("=") if word.startswith("--") else before
        name = option if option.startswith("-") else "an argument"
        if not word.strip() or (word.startswith("--") and word.find("=") == len(word) - 1):
            raise LookoutError(f"{name} is empty: give it a value, or omit it")
        if "\0" in word:
            raise LookoutError(f"{name} contains a NUL character, which is not allowed in file names")
        locale = sys.getfilesystemencoding()
        if locale != "utf-8" and any("\udc80" <= letter <= "\udcff" for letter in word):
            raise LookoutError(
                f"{name} contains characters that this locale ({locale}) cannot encode: set "
                "LC_ALL=C.UTF-8, or PYTHONUTF8=1"
            )


def _is_kafka(error: Exception) -> bool:
    """Whether Kafka's client raised `error`. The client is not imported for the check, because a command that
    has not imported it cannot have raised its errors.
    """
    kafka = sys.modules.get("confluent_kafka")
    return kafka is not None and isinstance(error, kafka.KafkaException)


def _fail(text: str, error: BaseException) -> None:
    if _state["debug"]:
        raise error
    text = without_long_words(text, 300)  # longer than any path
    from rich.markup import escape

    from lookout.cli.output import TerminalConsole

    TerminalConsole(stderr=True).print(f"[bold red]error[/] {escape(text)}", highlight=False, soft_wrap=True)
    sys.exit(1)
