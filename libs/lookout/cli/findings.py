"""What `lookout doctor` finds."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class State(StrEnum):
    """How well something is."""

    GOOD = "ok"
    NOTE = "note"
    BAD = "bad"


@dataclass(frozen=True, slots=True)
class CheckResult:
    """The result of one check. `advice` says what to do where the state is not ok."""

    about: str
    state: State
    found: str
    advice: str = ""
