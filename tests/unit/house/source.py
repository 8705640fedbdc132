"""Syntax trees of source texts, parsed and walked once in a process: a dozen rules read the same files."""

from __future__ import annotations

import ast
from functools import cache


@cache
def parse(code: str) -> ast.Module:
    """The tree of a source text, shared by all rules: none may change it."""
    return ast.parse(code)


@cache
def walk(code: str) -> tuple[ast.AST, ...]:
    """Every node of a source text, in the order of `ast.walk`."""
    return tuple(ast.walk(parse(code)))
