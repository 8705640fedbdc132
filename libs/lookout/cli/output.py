"""Prints the commands' output, with all untrusted text escaped.

`TerminalConsole` and `echo` are the only ways to a terminal. `tests/unit/house/test_outside_text.py` finds
prints that bypass them, and unescaped values in rich's markup.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import typer
from rich.console import Console, ConsoleOptions, RenderableType
from rich.markup import escape
from rich.segment import Segment
from rich.status import Status

from lookout.text import CHARACTERS, clean, visible


class TerminalConsole(Console):
    """rich's console, with control characters in texts escaped."""

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """Yield a renderable's segments with their texts escaped. Segments with which rich controls the
        terminal stay unchanged.
        """
        for segment in super().render(renderable, options):
            yield segment if segment.control else segment._replace(text=visible(segment.text))


def echo(text: object = "", **options: Any) -> None:
    """Print text or JSON with control characters escaped."""
    typer.echo(visible(str(text)), **options)


def escaped(value: object, limit: int = CHARACTERS) -> str:
    """Return a value as text that is safe inside rich's markup."""
    return escape(clean(value, limit))


def say(console: Console, markup: str, *values: object) -> None:
    """Print one line.

    Args:
        console: Where to print it.
        markup: The line in rich's markup, with `{}` for every value.
        values: Anything, also untrusted texts.
    """
    console.print(markup.format(*map(escaped, values)), highlight=False, soft_wrap=True)


def stage(console: Console, text: str) -> Status:
    """Show a status line during the `with` block. In a file or pipe the line is printed once, so that a slow
    start does not look like a hang.

    Args:
        console: Where to show it.
        text: What is being done.
    """
    if not console.is_terminal:
        say(console, "{} ...", text)
    return console.status(escaped(text))
