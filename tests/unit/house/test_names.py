"""Names are nouns of the field: pronouns and participles are below one name in a hundred."""

from __future__ import annotations

import ast
from pathlib import Path

from tests.unit.house.source import walk

ROOT = Path(__file__).parents[3]
WORDS = {
    "each", "every", "found", "held", "made", "kept", "said", "one", "other", "others", "both", "given",
    "taken", "known", "seen", "done", "wanted", "asked", "chosen", "told", "left", "met", "had", "got",
    "came", "gone", "more", "rest", "whole", "some", "any", "what", "who", "whose", "here", "there",
    "this", "that", "these", "those", "such", "same",
}  # fmt: skip


def _names(folder: str) -> list[tuple[str, str]]:
    return [
        (f"{path.relative_to(ROOT)}:{node.lineno}", node.id.strip("_"))
        for path in sorted((ROOT / folder).rglob("*.py"))
        if "_pb2" not in path.name
        for node in walk(path.read_text())
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
    ]


def test_names_are_nouns() -> None:
    names = _names("libs/lookout") + _names("services")
    wrong = [f"{place} {name}" for place, name in names if name in WORDS]
    assert len(names) > 5000
    assert len(wrong) < 0.01 * len(names), "\n".join(wrong)
