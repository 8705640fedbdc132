"""What the processes of a fleet hold: resident memory and descriptors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import psutil

from lookout.local import Fleet


@dataclass(frozen=True, slots=True)
class Held:
    """One process with its children."""

    rss_mb: float
    descriptors: int


@dataclass(frozen=True, slots=True)
class Sample:
    """All processes at one time."""

    seconds: float
    processes: dict[str, Held]

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)


def sample(fleet: Fleet, seconds: float) -> Sample:
    """What every process of `fleet` holds now; one that is being started again is left out."""
    found: dict[str, Held] = {}
    for name, pid in fleet.pids().items():
        try:
            found[name] = _held(psutil.Process(pid))
        except psutil.Error:
            continue
    return Sample(seconds, found)


def _held(process: psutil.Process) -> Held:
    family = [process, *process.children(recursive=True)]
    rss, descriptors = 0, 0
    for each in family:
        try:
            rss += each.memory_info().rss
            descriptors += each.num_fds()
        except psutil.Error:
            continue  # a decoder that ended just now
    return Held(round(rss / 1e6, 1), descriptors)


def summary(samples: Sequence[Sample]) -> dict[str, Any]:
    """The last line: every process after a quarter of the time and at the end (medians of five samples)."""
    if not samples:
        return {"seconds": 0, "processes": {}}
    quarter = _median_of(samples, len(samples) // 4)
    end = _median_of(samples, len(samples) - 1)
    return {
        "seconds": round(samples[-1].seconds),
        "processes": {
            name: {
                "rss_mb": [quarter[name].rss_mb, end[name].rss_mb],
                "descriptors": [quarter[name].descriptors, end[name].descriptors],
            }
            for name in sorted(quarter.keys() & end.keys())
        },
    }


def _median_of(samples: Sequence[Sample], at: int) -> dict[str, Held]:
    """Medians of the (up to five) samples that end at `at`."""
    window = samples[max(0, at - 4) : at + 1]
    names = set[str]().union(*(each.processes for each in window))
    found = {}
    for name in names:
        held = [each.processes[name] for each in window if name in each.processes]
        middle = len(held) // 2
        found[name] = Held(
            sorted(each.rss_mb for each in held)[middle], sorted(each.descriptors for each in held)[middle]
        )
    return found
