"""What the pages name exists: files, make targets, commands and settings."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import typer.main
from typer.core import TyperGroup

from lookout.cli.app import app
from lookout.runtime.worker import ServiceSettings
from tests.unit.house.test_operations import STAGES

ROOT = Path(__file__).parents[3]
PAGES = sorted(
    [
        *(ROOT / "docs").glob("*.md"),
        *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")),
    ]
)
#: where a page may count a path from
HOMES = [ROOT, ROOT / "libs", ROOT / "libs/lookout", ROOT / "libs/lookout/models/engines", ROOT / "docs"]
FILE = re.compile(r"`([\w./-]+/[\w.-]+\.(?:py|proto|md|toml|lua|yaml|json))(?:::\w+)?`")
#: written by a run, or a checkpoint's own
MADE = re.compile(r"^(out|/|models/|\.\./)")
TARGET = re.compile(r"`make ([a-z][\w-]*)")
COMMAND = re.compile(r"`lookout ([a-z][a-z-]*)(?: ([a-z][a-z-]*))?")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_file_that_a_page_names_is_there(page: Path) -> None:
    named = {path for path in FILE.findall(page.read_text()) if not MADE.match(path)}
    missing = [path for path in named if not any((home / path).exists() for home in HOMES)]
    assert not missing


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_make_target_that_a_page_names_is_there(page: Path) -> None:
    targets = set(re.findall(r"^([a-z][\w%-]*):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    benches = {f"bench-{path.stem}" for path in (ROOT / "bench").glob("*.py")}
    benches |= {f"bench-{path.parent.name}" for path in (ROOT / "bench").glob("*/__main__.py")}
    assert set(TARGET.findall(page.read_text())) <= targets | benches


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_command_that_a_page_names_is_there(page: Path) -> None:
    root = typer.main.get_command(app)
    context = typer.Context(root)
    unknown = []
    for name, below in COMMAND.findall(page.read_text()):
        command = root.get_command(context, name) if name in root.list_commands(context) else None
        inner = command.list_commands(context) if isinstance(command, TyperGroup) else None
        if command is None or (inner is not None and below and below not in inner):
            unknown.append(f"{name} {below}".strip())
    assert not unknown


SETTINGS = (ServiceSettings, *STAGES.values())
#: not settings of a stage: of the commands, of the tests, of image builds
OTHER = {
    *("LOOKOUT_CACHE", "LOOKOUT_FOOTAGE", "LOOKOUT_GATEWAY", "LOOKOUT_GATEWAY_TOKEN", "LOOKOUT_KAFKA"),
    *("LOOKOUT_RECEIPT_KEY", "LOOKOUT_REDIS"),
    *("LOOKOUT_IMAGE_PREFIX", "LOOKOUT_PYTHON_IMAGE"),
    *("LOOKOUT_RESIDUAL", "LOOKOUT_RULE"),  # the changelog: what they are called now
}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_setting_that_a_page_names_is_there(page: Path) -> None:
    known = {f"LOOKOUT_{name.upper()}" for kind in SETTINGS for name in kind.model_fields} | OTHER
    named = set(re.findall(r"\bLOOKOUT_[A-Z][A-Z_]*[A-Z]\b", page.read_text()))
    unknown = {each for each in named if each.split("__")[0] not in known}
    assert not unknown
