"""Formats counts, sizes and times for people."""

from __future__ import annotations

import unicodedata
from datetime import UTC, datetime

from lookout.text import clean

#: first characters that make a spreadsheet evaluate a cell as a formula (OWASP, CSV injection)
_FORMULA = ("=", "+", "-", "@", "\t", "\r")


def count_text(number: int, noun: str) -> str:
    """Format a number with its noun: "1 camera", "2 cameras"."""
    return f"{number} {noun}{'' if number == 1 else 's'}"


def size_text(count: float) -> str:
    """Format bytes in the largest unit with a value of at least one: "1.5 MiB"."""
    if count < 1024:
        return f"{count:.0f} B"
    for unit in ("KiB", "MiB"):
        count /= 1024
        if count < 1024:
            return f"{count:.1f} {unit}"
    return f"{count / 1024:.1f} GiB"


def local_time(time_us: int) -> str:
    """Format Unix microseconds as date and time in this machine's time zone."""
    return f"{datetime.fromtimestamp(time_us / 1e6, UTC).astimezone():%Y-%m-%d %H:%M:%S}"


def minutes_text(seconds: float) -> str:
    """Format seconds as m:ss, also above an hour."""
    total = round(seconds)
    return f"{total // 60}:{total % 60:02d}"


def clock(at_s: float) -> str:
    """Format seconds as h:mm:ss, or m:ss.s below an hour."""
    minutes, seconds = divmod(round(at_s, 1), 60)
    hours, minutes = divmod(int(minutes), 60)
    return f"{hours}:{minutes:02d}:{int(seconds):02d}" if hours else f"{minutes}:{seconds:04.1f}"


def spreadsheet_cell(text: str) -> str:
    """Escape untrusted text so that no spreadsheet evaluates it as a formula."""
    shown = clean(text)
    # Some spreadsheets skip leading blanks and treat full-width signs as plain ones.
    begins = unicodedata.normalize("NFKC", shown).lstrip()
    return f"'{shown}" if begins.startswith(_FORMULA) or shown.startswith(_FORMULA) else shown
