"""A model family is named in its own files and in the registry, and nowhere else in the code."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

from lookout.models.families import FAMILIES
from tests.unit.house.source import walk

ROOT = Path(__file__).parents[3]
HOME = ROOT / "libs/lookout/models/families"
WORDS = ("internvl", "qwen", "llava", "smolvlm")


def _names(code: str) -> Iterator[tuple[int, str]]:
    """The names and strings of code; docstrings and comments may say where something comes from."""
    prose = {
        id(node.value)
        for node in walk(code)
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    }
    for node in walk(code):
        line = getattr(node, "lineno", 0)
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in prose:
            yield line, node.value
        elif isinstance(node, ast.Name):
            yield line, node.id
        elif isinstance(node, ast.Attribute):
            yield line, node.attr
        elif isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            yield line, node.name
        elif isinstance(node, ast.ImportFrom):
            yield line, node.module or ""
        elif isinstance(node, ast.alias):
            yield line, node.name


def _named(text: str) -> bool:
    return any(word in text.lower() for word in WORDS) or text in FAMILIES


def test_no_other_file_names_a_family() -> None:
    wrong = [
        f"{file.relative_to(ROOT)}:{line}: {text[:60]!r}"
        for root in ("libs/lookout", "services")
        for file in sorted((ROOT / root).rglob("*.py"))
        if HOME not in file.parents and "v1" not in file.parts
        for line, text in _names(file.read_text())
        if _named(text)
    ]
    assert not wrong, "\n".join(wrong)


def test_a_family_is_named_in_its_own_files_and_in_the_registry() -> None:
    for name in FAMILIES:
        files = {
            str(file.relative_to(HOME))
            for file in HOME.rglob("*.py")
            for _, text in _names(file.read_text())
            if text == name or text.endswith(f".{name}")
        }
        own = {f"{name}.py", f"towers/{name}.py", "registry.py"}
        # A family that builds on another begins with its name: another_moe imports the record of another.
        heirs = {file for file in files - own if Path(file).stem.startswith(f"{name}_")}
        assert files - heirs == own, name


def test_every_family_has_the_words_that_are_looked_for() -> None:
    assert not [name for name in FAMILIES if not any(word in name for word in WORDS)]
