"""Shared options and errors of the commands; imports no Kafka client, which is slow to import."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Final, Literal

import typer

from lookout.errors import LookoutError
from lookout.text import clean, is_encodable, question_text

BootstrapOption = Annotated[
    str | None,
    typer.Option(
        "--bootstrap",
        "-b",
        help="Kafka's address (host:port). Without it: LOOKOUT_KAFKA, else the fleet that runs here.",
        show_default=False,
    ),
]

SettingOption = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        help="A setting: window_s=20 for all services that have it, decode.silence_s=5 for one; "
        "repeat for more.",
        show_default=False,
    ),
]
Preset = Literal["default", "faithful", "codecsight", "strides"]
PresetOption = Annotated[
    Preset,
    typer.Option(
        help="Settings of masks and windows. faithful: smaller errors for more arithmetic; "
        "codecsight: the paper's; strides: each stride alone, for a third of the arithmetic."
    ),
]
PolicyOption = Annotated[
    str | None,
    typer.Option(
        help="Pruning policy by name (docs/pruning.md).  [default: the preset's]", show_default=False
    ),
]
PageOption = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="Write a page with the timeline; for recordings, a name that ends in .csv gives a table, one in "
        ".srt subtitles.",
    ),
]
JobTenantOption = Annotated[
    str,
    typer.Option(
        "--tenant",
        help="With --fleet: tenant of the job, for quotas.  [default: default]",
        show_default=False,
    ),
]
PrecisionOption = Annotated[
    float | None,
    typer.Option(
        min=0.0,
        max=1.0,
        help="With --labels: find the threshold that reaches this precision.",
        show_default=False,
    ),
]

WEB_PAGES: Final = (".html", ".htm")
PAGES: Final = (*WEB_PAGES, ".csv", ".srt")
"""Endings of the files that `--page` writes; only such files are replaced."""


class CliError(LookoutError):
    """An error for the user: one line that says what is wrong and what to do."""


def asked(question: str) -> str:
    """Return a question on one line, without the blanks around it.

    Raises:
        CliError: The question cannot be asked (`question_text`).
    """
    return question_text(question, CliError)


def in_utf8(option: str, text: str) -> str:
    """Return an argument that will be sent to a fleet, and check that it is valid UTF-8.

    Raises:
        CliError: The argument is not valid UTF-8.
    """
    if not is_encodable(text):
        raise CliError(f"{option}: {clean(text, 60)} is not valid UTF-8")
    return text


def check_page(page: Path | None, kinds: Sequence[str] = PAGES, option: str = "--page") -> None:
    """Create a page's folder; reject a page that cannot be written.

    Args:
        page: The page's file; None: nothing is checked.
        kinds: Allowed endings of the file's name; an existing file with another ending is never replaced.
        option: The option that names the file, for messages.

    Raises:
        CliError: The path is a folder, has an ending that the command does not write, or cannot be created.
    """
    if page is None:
        return
    kind, endings = page_kind(page), ", ".join(kinds)
    if page.is_dir():
        raise CliError(f"{option} names the folder {page}; name a file in it")
    if page.exists() and kind not in kinds:
        raise CliError(
            f"{option} names {page}, which is not a page: choose another name; only {endings} "
            f"files are replaced"
        )
    if page.suffix and kind not in PAGES:
        raise CliError(f"{option} names {page}, which is not a page: use a name that ends with {endings}")
    if kind in PAGES and kind not in kinds:
        raise CliError(
            f"{option} names {page}: this command writes only {endings}; {kind} works only for recordings"
        )
    try:
        page.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=page.parent):
            pass
    except OSError as error:
        raise CliError(f"{option} {page}: no file can be created in its folder ({error.strerror})") from None


def page_kind(page: Path) -> str:
    """Return a page's kind, which is the ending of its name: `.srt` for both answers.srt and .srt."""
    return page.suffix.lower() or page.name.lower()


@dataclass(frozen=True, slots=True)
class Position:
    """Where to begin reading a topic: at the oldest record, at the next new one, or at a time (Unix
    milliseconds).
    """

    at_ms: int | None = None
    oldest: bool = False


def refuse_given(context: typer.Context, names: Iterable[str], why: str) -> None:
    """Reject options that would be ignored.

    An option set by an environment variable may be meant for other commands, so it is not rejected.

    Args:
        context: The command's context.
        names: Names of the options' parameters (`bootstrap` for --bootstrap).
        why: The rest of the message, after the option's name.

    Raises:
        CliError: The command line gives one of these options.
    """
    options = {str(parameter.name): parameter for parameter in context.command.params}
    for name in names:
        source = context.get_parameter_source(name)
        if source is not None and source.name == "COMMANDLINE":
            option = options[name]
            words = option.secondary_opts if context.params[name] is False else option.opts
            raise CliError(f"{words[0]} {why}")
