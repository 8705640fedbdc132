"""One word for one thing: words that the tree no longer uses, each with the word to use instead.

docs/glossary.md has the words. A word is listed here when it named several things, or when a reader would not
find it in a textbook.
"""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from tests.unit.house.source import parse, walk

ROOT = Path(__file__).parents[3]

#: in code, messages, docs and tests
INSTEAD = {
    r"mend(s|ed|ing)?": "reconcile, repair or fix",
    r"tend(s|ed|ing)?": "supervise",
    r"calm(s|ed)?": "idle, undisturbed",
    r"patiently": "retry_until",
    r"ledgers?": "accounting, coverage",
    r"vouch(es|ed|ing)?": "say from where the bytes come",
    r"aloud": "with a message",
    r"namesakes?": "another process of the same name",
    r"anew": "again",
    r"be had": "available, fetched or made",
    r"rest(s|ed|ing)? on": "depends on, stands on",
}
FOLDERS = (
    "libs", "services", "examples", "docs", "protos", "tests/unit",
    "tests/fleet", "bench", "tests/cluster", "tests/vllm",
)  # fmt: skip
#: as names of variables, functions and classes in libs and services
NAMES = {
    "most": "limit",
    "told": "the name of what was read or said",
    "look": "the verb for what is done: find, update, inspect",
    "looks": "the plural of what is looked at",
    "calm": "idle",
    "Calm": "IdleState",
    "Look": "BlockChange",
    "Ledger": "TierAccounting",
    "patiently": "retry_until",
    "tend": "supervise",
    "mend": "reconcile",
}
#: drawing has a look of its own: what the picture of a scene looks like
DRAWN = {"watchbench"}


def _texts() -> Iterator[Path]:
    for folder in FOLDERS:
        for kind in ("*.py", "*.md", "*.proto", "*.lua"):
            yield from (ROOT / folder).rglob(kind)
    yield from (ROOT / name for name in ("README.md", "CONTRIBUTING.md", "Makefile"))


def _own(path: Path) -> bool:
    parts = path.relative_to(ROOT).parts
    return path != Path(__file__) and "v1" not in parts[:3] and parts[:3] != ("libs", "lookout", "services")


@cache
def _suspects() -> tuple[tuple[str, str], ...]:
    """(place, line) of every line with any old word: texts are read once for all words."""
    pattern = re.compile(rf"\b(?:{'|'.join(INSTEAD)})\b", re.IGNORECASE)
    return tuple(
        (f"{path.relative_to(ROOT)}:{number}", line.strip())
        for path in _texts()
        if _own(path) and pattern.search(text := path.read_text())
        for number, line in enumerate(text.splitlines(), 1)
        if pattern.search(line)
    )


@pytest.mark.parametrize("word", INSTEAD)
def test_an_old_word_is_not_used(word: str) -> None:
    pattern = re.compile(rf"\b{word}\b", re.IGNORECASE)
    found = [f"{place}: {line[:100]}" for place, line in _suspects() if pattern.search(line)]
    assert not found, f"use {INSTEAD[word]!r} instead:\n" + "\n".join(found)


def _names(code: str) -> Iterator[tuple[str, int]]:
    for node in walk(code):
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield node.name.strip("_"), node.lineno
        elif isinstance(node, ast.arg):
            yield node.arg.strip("_"), node.lineno
        elif isinstance(node, ast.Name | ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield (node.id if isinstance(node, ast.Name) else node.attr).strip("_"), node.lineno


def test_an_old_name_is_not_used() -> None:
    wrong = []
    for path in [*(ROOT / "libs").rglob("*.py"), *(ROOT / "services").rglob("*.py")]:
        if not _own(path) or DRAWN & set(path.parts):
            continue
        for name, line in _names(path.read_text()):
            if name in NAMES:
                wrong.append(f"{path.relative_to(ROOT)}:{line}: {name}, use {NAMES[name]!r} instead")
    assert not wrong, "\n".join(wrong)


#: what two rooms export under one name, and why that may stay
SHARED = {
    "pack_mask": "the same function, exported twice",
    "unpack_mask": "the same function, exported twice",
    "main": "an entry point",
    "PRESETS": "of pruning, of windows, and of both together, each with its room's name in front",
}


def exported(module: ast.Module) -> set[str]:
    """What a room gives: imports under their own names (`name as name`), and its public definitions."""
    names: set[str] = set()
    for node in ast.walk(module):
        if isinstance(node, ast.ImportFrom):
            names |= {alias.name for alias in node.names if alias.asname == alias.name}
    for node in module.body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            names |= {target.id for target in targets if isinstance(target, ast.Name)}
    return {name for name in names if not name.startswith("_") and len(name) > 1}


def test_two_rooms_export_no_two_things_under_one_name() -> None:
    rooms = defaultdict(list)
    home = ROOT / "libs/lookout"
    for path in [*home.glob("*/__init__.py"), *home.glob("*/*/__init__.py"), *home.glob("*.py")]:
        if path == home / "__init__.py" or path.is_relative_to(home / "services"):
            continue
        for name in exported(parse(path.read_text())):
            rooms[name].append(str(path.relative_to(home)))
    assert len(rooms) > 300
    twice = {name: where for name, where in rooms.items() if len(where) > 1}
    assert twice.keys() == SHARED.keys()
