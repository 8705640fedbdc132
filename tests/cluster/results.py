"""The last result of each step: kept in `results.json`, committed, shown on docs/cluster-tests.md."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Self

from tests.cluster.world import Score

RESULTS = Path(__file__).parent / "results.json"
OK = "ok"


@dataclass(frozen=True, slots=True)
class Result:
    """The last run of one step.

    Attributes:
        result: ``ok``, or what was wrong first.
        commit: What ran; ``+``: files differed from it.
        date: The day, UTC.
        device: The processor, and how many cores.
        seconds: How long it took.
        score: What it counted.
    """

    result: str
    commit: str
    date: str
    device: str
    seconds: int
    score: Score

    @classmethod
    def read(cls, fields: dict[str, object]) -> Self:
        """Return a result of the file."""
        score = fields.pop("score")
        assert isinstance(score, dict)
        return cls(**fields, score=Score(**score))  # type: ignore[arg-type]


def read(path: Path = RESULTS) -> dict[str, Result]:
    """Return the last result of each step that ran since results are kept."""
    return {step: Result.read(fields) for step, fields in json.loads(path.read_text()).items()}


def keep(step: str, result: Result, path: Path = RESULTS) -> None:
    """Write a step's result over its last one."""
    rows = {name: asdict(other) for name, other in read(path).items()} if path.exists() else {}
    rows[step] = asdict(result)
    path.write_text(json.dumps(dict(sorted(rows.items())), indent=1) + "\n")


def table(steps: Iterable[str], results: Mapping[str, Result]) -> str:
    """Return the steps with their last results, as a table of Markdown."""
    lines = ["| step | last result | outcomes | s | commit | date |", "| --- | --- | --- | --- | --- | --- |"]
    for step in steps:
        if (found := results.get(step)) is None:
            lines.append(f"| `{step}` | not run since results are kept | | | | |")
            continue
        score = found.score
        outcomes = f"{score.committed} of {score.expected}" if score.expected else ""
        cells = (f"`{step}`", found.result, outcomes, found.seconds, found.commit, found.date)
        lines.append("| " + " | ".join(map(str, cells)) + " |")
    return "\n".join(lines)
