"""What a reader can hold at once: short functions, classes of few methods, one class of each name."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.unit.house.source import parse, walk

ROOT = Path(__file__).parents[3]
LINES, METHODS, SHARED_LINES = 60, 20, 6
# A service's handler, metrics and settings have the same names in every service: they never meet.
ROOMS = ROOT / "libs" / "lookout"
TWICE = {"Source"}  # bytes of a recording; a topic in a consumer group


def codes() -> Iterator[tuple[Path, str]]:
    """The project's own modules; generated ones are left out."""
    for folder in ("libs", "services"):
        for path in (ROOT / folder).rglob("*.py"):
            if "_pb2" not in path.name:
                yield path, path.read_text()


def nodes(kind: type[ast.AST] | tuple[type[ast.AST], ...]) -> Iterator[tuple[str, ast.AST]]:
    for path, code in codes():
        for node in walk(code):
            if isinstance(node, kind):
                yield str(path.relative_to(ROOT)), node


def public_methods(node: ast.ClassDef) -> list[str]:
    functions = [part for part in node.body if isinstance(part, (ast.FunctionDef, ast.AsyncFunctionDef))]
    return [function.name for function in functions if not function.name.startswith("_")]


def test_a_function_has_at_most_60_lines() -> None:
    long = [
        f"{path}: {node.name} has {lines} lines"
        for path, node in nodes((ast.FunctionDef, ast.AsyncFunctionDef))
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
        and (lines := (node.end_lineno or node.lineno) - node.lineno + 1) > LINES
    ]
    assert long == []


def test_a_class_has_at_most_20_public_methods() -> None:
    large = [
        f"{path}: {node.name} has {len(public_methods(node))} public methods"
        for path, node in nodes(ast.ClassDef)
        if isinstance(node, ast.ClassDef) and len(public_methods(node)) > METHODS
    ]
    assert large == []


def test_a_public_class_has_its_name_alone() -> None:
    places: dict[str, list[str]] = defaultdict(list)
    for path, code in codes():
        if path.is_relative_to(ROOMS):
            for node in parse(code).body:
                if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                    places[node.name].append(str(path.relative_to(ROOT)))
    assert {name: paths for name, paths in places.items() if len(paths) > 1 and name not in TWICE} == {}


def runs(block: list[ast.stmt]) -> Iterator[tuple[int, str]]:
    """From every statement of a block the shortest run of `SHARED_LINES` lines, as Python prints them."""
    texts = [ast.unparse(statement) for statement in block]
    for first, statement in enumerate(block):
        for last in range(first, len(block)):
            run = "\n".join(texts[first : last + 1])
            if run.count("\n") + 1 >= SHARED_LINES:
                yield statement.lineno, run
                break


@pytest.mark.slow
def test_no_two_places_share_six_lines_of_logic() -> None:
    places: dict[str, set[str]] = defaultdict(set)
    for path, node in nodes((ast.stmt, ast.ExceptHandler)):
        if isinstance(node, ast.ClassDef):
            continue
        for name in ("body", "orelse", "finalbody"):
            for line, run in runs(getattr(node, name, [])):
                places[run].add(f"{path}:{line}")
    shared = {" and ".join(sorted(where)): run for run, where in places.items() if len(where) > 1}
    assert shared == {}
