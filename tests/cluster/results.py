"""The last result of each step: kept in `results.json`, committed, shown on docs/cluster-tests.md."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
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


def table(steps: Sequence[str], results: Mapping[str, Result]) -> str:
    """Return the steps with their last results, as a table of Markdown; with all together if they ran at one
    commit."""
    lines = ["| step | last result | outcomes | s | commit | date |", "| --- | --- | --- | --- | --- | --- |"]
    for step in steps:
        if (found := results.get(step)) is None:
            lines.append(f"| `{step}` | not run since results are kept | | | | |")
            continue
        score = found.score
        outcomes = f"{score.committed} of {score.expected}" if score.expected else ""
        cells = (f"`{step}`", found.result, outcomes, found.seconds, found.commit, found.date)
        lines.append("| " + " | ".join(map(str, cells)) + " |")
    return "\n".join(lines) + _together([results.get(step) for step in steps])


def _together(results: Sequence[Result | None]) -> str:
    """Return the row of all steps together; empty unless all of them ran at one commit."""
    found = [result for result in results if result is not None]
    if len(found) < len(results) or len({result.commit for result in found}) > 1:
        return ""
    passed = sum(result.result == OK for result in found)
    expected, committed, doubled, behind = (
        sum(getattr(result.score, name) for result in found)
        for name in ("expected", "committed", "doubled", "left_behind")
    )
    cells = (
        "**all**",
        f"{passed} of {len(found)} ok",
        f"{committed} of {expected}; {doubled} committed twice, {behind} objects left behind",
        sum(result.seconds for result in found),
        found[0].commit,
        max(result.date for result in found),
    )
    return "\n| " + " | ".join(map(str, cells)) + " |"
