"""What the commands print. Values go through `clean`, so a text from outside is shown and never obeyed."""

from __future__ import annotations

from rich.console import Console
from rich.markup import escape

from lookout.wire.outside_text import CHARACTERS, clean

__all__ = ["escaped", "say"]


def escaped(value: object, limit: int = CHARACTERS) -> str:
    """A value as it may stand in rich's markup."""
    return escape(clean(value, limit))


def say(console: Console, markup: str, *values: object) -> None:
    """Print one line.

    Args:
        console: Where.
        markup: The line in rich's markup; `{}` for every value.
        values: Anything, also texts from outside.
    """
    console.print(markup.format(*map(escaped, values)), highlight=False, soft_wrap=True)
