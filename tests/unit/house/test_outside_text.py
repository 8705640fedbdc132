"""Texts from outside reach a terminal through `lookout.cli.output` alone, and rich's markup escaped."""

from __future__ import annotations

import ast
import io
import logging
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from lookout.cli.output import TerminalConsole, echo, say
from lookout.runtime.observe import logs
from lookout.text import clean
from tests.unit.house.source import walk

ROOT = Path(__file__).parents[3]
CLI = sorted((ROOT / "libs/lookout/cli").rglob("*.py"))
#: what may stand in markup as it is
SAFE_CALLS = {"clean", "clock", "escape", "escaped", "len", "round", "public_url"}
NUMBER = set("dfgeE%")
#: ways to a terminal that `output` stands in front of
PRINTS = {"print", "sys.stderr.write", "sys.stdout.write"}
RAW = {"typer.echo", "click.echo", "sys.stdout.write", "print", "Console"}

STRANGE = [
    "\x1b[2J\x1b[31mred",
    "\x1b]0;title\x07",
    "\x1b]8;;http://evil\x1b\\link",
    "\x9b2J",
    "\u202egnp.exe\u202c",
    "a\u2066b\u2069",
    "\r\rover",
    "\x00\x08",
    "[/x] [bold] [link=http://evil]",
    "\ud800",
    "x" * 100_000,
    "\x1b" * 1000,
]


def wrong(path: Path) -> Iterator[str]:
    """Prints of a file that go without the one function."""
    for node in walk(path.read_text()):
        if not isinstance(node, ast.Call):
            continue
        name = ast.unparse(node.func)
        if name in RAW and path.name != "output.py":
            yield f"{path.relative_to(ROOT)}:{node.lineno}: {name}: use lookout.cli.output"
        if name.endswith(".print") and node.args and isinstance(node.args[0], ast.JoinedStr):
            for value in node.args[0].values:
                if isinstance(value, ast.FormattedValue) and not safe(value):
                    name = ast.unparse(value.value)
                    yield f"{path.relative_to(ROOT)}:{node.lineno}: {name}: use say or escaped"


def safe(value: ast.FormattedValue) -> bool:
    """Whether a value is a number, or went through one of the functions."""
    if value.format_spec is not None and set(ast.unparse(value.format_spec)) & NUMBER:
        return True
    inner = value.value
    return isinstance(inner, ast.Call) and ast.unparse(inner.func).rpartition(".")[2] in SAFE_CALLS


def test_nothing_is_printed_without_the_one_function() -> None:
    found = [line for path in CLI for line in wrong(path)]
    assert not found, "\n".join(found)


def unclean(code: str) -> Iterator[tuple[int, str]]:
    """(line, what) of prints of a service or a room that may hold text from outside, and of logs that are set
    up without the one processor.
    """
    for node in walk(code):
        if not isinstance(node, ast.Call):
            continue
        name = ast.unparse(node.func)
        if name == "structlog.configure" and "clean_event" not in ast.unparse(node):
            yield node.lineno, "structlog.configure without clean_event"
        if name == "logging.basicConfig":
            yield node.lineno, name
        if name in PRINTS and not all(plain(argument) for argument in node.args):
            yield node.lineno, f"{name}: use lookout.text.visible"


def plain(argument: ast.expr) -> bool:
    """Whether what is printed is a constant, or went through the one function."""
    if isinstance(argument, ast.Call):
        return ast.unparse(argument.func) in ("visible", "clean")
    return isinstance(argument, ast.Constant)


def test_services_and_rooms_print_and_log_through_the_one_function() -> None:
    """Watchbench is no part of a fleet: its user reads no text there but his own."""
    files = [path for path in sorted((ROOT / "libs/lookout").rglob("*.py")) if path not in CLI]
    files += sorted((ROOT / "services").rglob("*.py"))
    found = [
        f"{path.relative_to(ROOT)}:{line}: {what}"
        for path in files
        for line, what in unclean(path.read_text())
    ]
    assert not found, "\n".join(found)


@pytest.mark.parametrize(
    "code",
    [
        "print(key)",
        "sys.stderr.write(f'{key}')",
        "structlog.configure(processors=[])",
        "logging.basicConfig()",
    ],
)
def test_the_rule_for_services_finds_what_it_is_for(code: str) -> None:
    assert list(unclean(code))


@pytest.mark.parametrize("human", [False, True])
@pytest.mark.parametrize("text", STRANGE)
def test_a_log_line_shows_strange_text_and_obeys_none(
    text: str, human: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    """Lines of this project, of other libraries, and tracebacks."""
    logs.setup("toy", "toy-0", human=human)
    logs.get("own").error("it", key=text, places=[text, {"a": text}])
    logging.getLogger("other").error("theirs %s", text)
    try:
        raise ValueError(text)
    except ValueError:
        logs.get("own").exception("failed")
    shown = capsys.readouterr().err
    colours = re.compile(r"\x1b\[[0-9;]*m") if human else re.compile("$^")
    assert not set(colours.sub("", shown)) & set("\x9b\x07\x08\x00\r\u202e\u202c\u2066\u2069\ud800\x1b")
    assert len(shown) < 100_000


def test_the_rule_finds_what_it_is_for(tmp_path: Path) -> None:
    path = ROOT / "libs/lookout/cli/app.py"
    code = 'typer.echo(key)\nconsole.print(f"[bold]{key}[/] {n:.2f} {escape(key)}")\n'
    tree = ast.parse(code)
    values = [node for node in ast.walk(tree) if isinstance(node, ast.FormattedValue)]
    assert [safe(value) for value in values] == [False, True, True]
    assert path in CLI


@pytest.mark.parametrize("text", STRANGE)
def test_strange_text_is_shown_and_not_obeyed(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    screen = io.StringIO()
    console = TerminalConsole(file=screen, force_terminal=True, width=80)
    say(console, "[bold]{}[/]", text)
    console.print(text, markup=False, highlight=False, soft_wrap=True)
    echo(text)
    bold = screen.getvalue().replace("\x1b[1m", "").replace("\x1b[0m", "")
    for shown in (clean(text), capsys.readouterr().out, bold):
        assert not set(shown) & set("\x1b\x9b\x07\x08\x00\r\u202e\u202c\u2066\u2069\ud800")
    assert len(clean(text)) < 100 + 4 * 1200
    assert clean(text).isprintable()
