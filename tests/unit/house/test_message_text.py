"""No code decides by the text of a message: classes, enums and codes say what happened."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.unit.house.source import walk

ROOT = Path(__file__).parents[3]
#: torch and vLLM hand errors of a device on as RuntimeError or text, without a class of their own; the code
#: of a Redis error is the first word of its text (WRONGTYPE); pydantic-settings names fields only in texts
FOREIGN = {
    "libs/lookout/models/engines/faults.py",
    "libs/lookout/runtime/worker/failures.py",
    "libs/lookout/runtime/net/redis_values.py",
    "libs/lookout/runtime/net/connections.py",
}
#: methods that look into a text
LOOKS = {"startswith", "endswith", "find", "index", "count", "lower", "casefold", "split", "partition"}
#: attributes that are texts for people
TEXTS = {"reason", "detail", "missing", "why", "description"}


def is_error(annotation: str) -> bool:
    """Whether an argument of this type is an error."""
    return "Exception" in annotation or annotation.endswith("Error")


def findings(source: str) -> Iterator[int]:
    """Lines on which a message's text decides."""
    nodes = walk(source)
    errors = {node.name for node in nodes if isinstance(node, ast.ExceptHandler) and node.name}
    errors |= {
        argument.arg
        for node in nodes
        if isinstance(node, ast.arguments)
        for argument in node.args
        if argument.annotation and is_error(ast.unparse(argument.annotation))
    }

    def is_message(node: ast.AST) -> bool:
        match node:
            case ast.Call(func=ast.Name(id="str" | "repr"), args=[ast.Name(id=name)]):
                return name in errors
            case ast.Subscript(value=ast.Attribute(value=ast.Name(id=name), attr="args")):
                return name in errors
            case ast.Attribute(attr=attr):
                return attr in TEXTS
        return False

    def is_text(node: ast.AST) -> bool:
        return isinstance(node, ast.Constant) and isinstance(node.value, str) and bool(node.value)

    for node in nodes:
        match node:
            case ast.Compare(left=left, comparators=comparators):
                sides = [left, *comparators]
                if any(map(is_message, sides)) and any(map(is_text, sides)):
                    yield node.lineno
            case ast.Attribute(value=value, attr=attr) if attr in LOOKS and is_message(value):
                yield node.lineno
            case ast.Call(func=ast.Attribute(value=ast.Name(id="re")), args=args) if any(
                map(is_message, args)
            ):
                yield node.lineno


@pytest.mark.parametrize(
    ("line", "count"),
    [
        ('if "another process" not in str(error): raise', 1),
        ('if str(error).startswith("quota"): raise', 1),
        ('if error.args[0] == "gone": raise', 1),
        ('if block.missing.startswith("quota"): raise', 1),
        ('if letter.reason == "late": raise', 1),
        ('option, _, rest = str(error).partition(" ")', 1),
        ('option, rest = re.split("[= ]", str(error), maxsplit=1)', 1),
        ("if error.code is Code.GONE: raise", 0),
        ('log.info("failed", why=str(error)); raise', 0),
        ("if not block.missing: raise", 0),
    ],
)
def test_the_check_finds_what_it_is_for(line: str, count: int) -> None:
    source = f"try:\n    work()\nexcept OSError as error:\n    {line}\n"
    assert len(list(findings(source))) == count


def test_no_message_decides() -> None:
    wrong = [
        f"{file.relative_to(ROOT)}:{line}"
        for folder in ("libs", "services")
        for file in sorted((ROOT / folder).rglob("*.py"))
        if str(file.relative_to(ROOT)) not in FOREIGN
        for line in findings(file.read_text())
    ]
    assert not wrong, "a message's text decides here: give it a class, an enum or a code: " + ", ".join(wrong)
