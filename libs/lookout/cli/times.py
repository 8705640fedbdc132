"""Parses times on the command line: times within a recording, and moments of the cameras' past."""

from __future__ import annotations

import re
import time

from lookout.cli.options import CliError, Position
from lookout.text import clean
from lookout.values import moment_of
from lookout.wire.headers import FIRST_CAPTURED_MS, LAST_CAPTURED_MS

#: the latest accepted time in a recording, in seconds: a century; a later time is a typing error
LATEST_S = 100 * 365 * 86400
#: how a moment of the past is written, for help texts
PAST = "start, how long ago (90s, 15m, 6h, 2d), or a time (2026-05-01T13:30)"
_LENGTH = r"(\d+(?:\.\d+)?)([smhd])"
_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}


def parse_offset(text: str | None, option: str) -> float | None:
    """Parse a place in a recording ("90", "1:30" or "1:02:03") to seconds; None stays None.

    Raises:
        CliError: The text has another form.
    """
    if text is None:
        return None
    match = re.fullmatch(r"(?:(?:(\d+):)?(\d{1,2}):)?(\d+(?:\.\d+)?)", text.strip())
    hours, minutes, seconds = (float(part or 0) for part in match.groups()) if match else (0.0, 60.0, 0.0)
    # Minutes above 59 without hours stay legal ("90:00"), as players print them.
    beyond = hours * 3600 + minutes * 60 + seconds > LATEST_S
    if match is None or beyond or (match[2] and seconds >= 60) or (match[1] and minutes >= 60):
        raise CliError(
            f"{option} {clean(text, 60)!r} is not a time: write seconds (90), minutes (1:30) or hours "
            "(1:02:03)"
        )
    return hours * 3600 + minutes * 60 + seconds


def parse_moment(text: str, option: str) -> float:
    """Parse a date and time in ISO 8601 to Unix seconds; without an offset it is local time.

    Raises:
        CliError: The time is invalid, out of range, or ambiguous or missing because of daylight saving time.
    """
    name = f"{option} {clean(text, 60)!r}"
    moment = moment_of(name, text, CliError)
    if moment is None or not FIRST_CAPTURED_MS <= moment.timestamp() * 1000 < LAST_CAPTURED_MS:
        raise CliError(f"{name} must be a time of the years 2000 to 2255 such as 2026-05-01T13:30:00Z")
    return moment.timestamp()


def parse_since(text: str, option: str = "--since") -> Position:
    """Parse `now`, `start`, a duration before now (15m), or a local time (2026-05-01T13:30).

    Raises:
        CliError: The text is none of these, or is ambiguous or missing because of daylight saving time.
    """
    if text in ("now", "start"):
        return Position(oldest=text == "start")
    if match := re.fullmatch(_LENGTH, text):
        length_s = min(float(match[1]) * _UNITS[match[2]], time.time())  # no record is older than 1970
        return Position(at_ms=int((time.time() - length_s) * 1000))
    name = f"{option} {clean(text, 60)!r}"
    moment = moment_of(name, text, CliError)
    if moment is None:
        raise CliError(
            f"{name} must be now, start, a duration such as 90s, 15m, 6h or 2d, or a time such as "
            "2026-05-01T13:30"
        )
    # Kafka gives negative times a special meaning: -1 is the end of a partition.
    return Position(at_ms=max(0, int(moment.timestamp() * 1000)))


def parse_until(text: str, option: str) -> float:
    """Parse an end in the future, a duration from now (8h) or a date and time, to Unix seconds.

    Raises:
        CliError: The text has another form, or the time has passed.
    """
    match = re.fullmatch(_LENGTH, text)
    if match is None:
        until = parse_moment(text, option)
    else:
        until = time.time() + float(match[1]) * _UNITS[match[2]]
    if not time.time() < until < LAST_CAPTURED_MS / 1000:
        raise CliError(
            f"{option} {clean(text, 60)!r} is not in the future: write 30m, 8h, 2d or a later time"
        )
    return until


def is_length(text: str) -> bool:
    """Whether a time is given relative to now, so that the same text means another time later."""
    return re.fullmatch(_LENGTH, text) is not None


def parse_span(since: str, until: str, *, ahead: bool = False) -> tuple[int | None, int | None]:
    """Parse `--since` and `--until` to Unix milliseconds; None: this bound is not given.

    Args:
        since: Text of `--since`.
        until: Text of `--until`.
        ahead: Whether a span with both bounds may be in the future, for a camera whose clock was ahead.

    Raises:
        CliError: A text cannot be parsed, or `since` is in the future or not before `until`.
    """
    if until == "start" or since == "now":
        raise CliError(
            "--since now and --until start leave nothing to ask: give an earlier --since, such as 24h"
        )
    begin, end = parse_since(since).at_ms, parse_since(until, "--until").at_ms
    if begin is not None and end is not None and begin >= end:
        raise CliError(f"--since {clean(since, 60)} is not before --until {clean(until, 60)}")
    if begin is not None and begin > time.time() * 1000 and not (ahead and end is not None):
        raise CliError(f"--since {clean(since, 60)} is in the future: ask about the past")
    return begin, end
