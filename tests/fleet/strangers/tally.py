"""What strangers tried and what came of it."""

from __future__ import annotations

import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

#: seconds that one input may keep a reader busy on a machine that has other work
LONGEST_S = 60.0


@dataclass(frozen=True, slots=True)
class Score:
    """The last line of a run.

    Attributes:
        strange: Inputs of strangers that reached a door.
        kinds: Different kinds of them: a door and a way to be strange.
        honest_expected: Answers that the honest cameras must have.
        honest_committed: Different answers of theirs that were committed.
        doubled: Ids of theirs that were committed twice.
        crashes: Processes that ended, and errors that no caller is told of.
        hung: Inputs that held a reader up for too long, and stages that fell behind for good.
        leaked: Secrets at places where strangers read.
        held_up: Honest cameras whose partition stood still for more than 10 s while others went on.
        jobs_held_up: The same of partitions of recording jobs.
        erasures_undone: Erasures that no longer stand, or that count as confirmed by those who have not.
    """

    strange: int
    kinds: int
    honest_expected: int
    honest_committed: int
    doubled: int
    crashes: int
    hung: int
    leaked: int
    held_up: int
    jobs_held_up: int
    erasures_undone: int

    @property
    def clean(self) -> bool:
        """Whether strangers changed nothing."""
        whole = self.honest_expected == self.honest_committed
        faults = (self.doubled, self.crashes, self.hung, self.leaked)
        return whole and not any((*faults, self.held_up, self.jobs_held_up, self.erasures_undone))


@dataclass(slots=True)
class Tally:
    """Inputs by kind, and what went wrong in words."""

    inputs: Counter[str] = field(default_factory=Counter)
    crashes: list[str] = field(default_factory=list)
    hung: list[str] = field(default_factory=list)
    leaked: list[str] = field(default_factory=list)
    undone: list[str] = field(default_factory=list)

    @contextmanager
    def trying(self, kind: str, *allowed: type[BaseException]) -> Iterator[None]:
        """Around one input that this process reads itself.

        Args:
            kind: Door and mutation.
            allowed: Errors that are the plain answer to a strange input.
        """
        self.inputs[kind] += 1
        since = time.monotonic()
        try:
            yield
        except allowed:
            pass
        except Exception as error:
            frame = traceback.extract_tb(error.__traceback__)[-1]
            self.crashes.append(
                f"{kind}: {type(error).__name__}: {error!s:.200} ({frame.filename}:{frame.lineno})"
            )
        if (took := time.monotonic() - since) > LONGEST_S:
            self.hung.append(f"{kind}: {took:.0f} s")


@dataclass(frozen=True, slots=True)
class Door:
    """One place where strangers come in.

    Attributes:
        name: Of the place.
        ways: By mutation what sends one input, and how many to send in a run of minutes.
        close: Called once at the end.
    """

    name: str
    ways: dict[str, tuple[Callable[[], Any], int]]
    close: Callable[[], Any] = lambda: None

    @property
    def kinds(self) -> list[str]:
        """Its kinds of input."""
        return [f"{self.name} {way}" for way in self.ways]
