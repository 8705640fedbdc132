"""What commands share that needs no Kafka: its client takes longer to import than a small command works."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

import typer

from lookout.errors import LookoutError

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
        help="A setting of all services or of one: window_s=20, decode.silence_s=5; repeat for more.",
        show_default=False,
    ),
]
Preset = Literal["default", "codecsight"]
PresetOption = Annotated[
    Preset,
    typer.Option(help="Settings that belong together; codecsight: those of the paper."),
]


class CliError(LookoutError):
    """An error for people: one line that says what is wrong and what to do."""


def asked(question: str) -> str:
    """A question without the blanks around it.

    Raises:
        CliError: It is empty, or longer than any question may be.
    """
    from lookout.outside_text import MAX_QUESTION

    text = question.strip()
    if not text:
        raise CliError("the question is empty")
    if len(text) > MAX_QUESTION:
        raise CliError(f"the question has {len(text)} characters; {MAX_QUESTION} is the limit")
    return text


@dataclass(frozen=True, slots=True)
class Position:
    """Where to begin reading: at the oldest record, at the next one, or at a moment (Unix milliseconds)."""

    at_ms: int | None = None
    oldest: bool = False
